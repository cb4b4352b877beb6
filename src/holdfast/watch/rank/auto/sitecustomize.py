"""The first lines of a rank, before its script, which need not know of holdfast.

Python imports ``sitecustomize`` at the end of its own start. With this folder first on PYTHONPATH
it finds this file, which undoes that. Then

- the signal that dumps the rank's stacks gets its handler, which forked children inherit, as the
  workers of a data loader are (:func:`register_dump`);
- the start of the interpreter's end is watched, for an exception that nothing has caught
  (:func:`watch_end`, ``watch/rank/uncaught.py``);
- torch calls :class:`_Steps` after each step of an optimizer
  (``register_optimizer_step_post_hook``; 0.2 microseconds).

Nothing is imported that the script does not import, until its third step or its end. The way in
works with any Python; where holdfast is not installed for it, nothing happens.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

ORDERS = "HOLDFAST_AUTO"
"""Environment variable, see ``watch/rank/auto_start.py``: ``1`` where steps count; seconds for exit
handlers, ``-`` where an exception ends nothing; the PYTHONPATH of the rank after a ``+``, or
nothing."""
KEPT_AS = "_holdfast_start"
"""This module in ``sys.modules``, once it has run for a rank."""
DUMP_FILE = "stacks.txt"
"""Beside the file in ``TORCHELASTIC_ERROR_FILE``."""
_DUMP_SIGNAL = 7
"""Above SIGRTMIN; as in ``evidence/dump_signal.py``."""
_OPTIMIZER = "torch.optim.optimizer"
_THREADING = "threading"
_FIRST_STEPS = 3
"""A script that reports by itself has begun to by then."""


class _Steps:
    """Called by torch after each step."""

    def __init__(self) -> None:
        self._seen = 0
        self._beat: Callable[[], None] = self._wait

    def __call__(self, _optimizer: object, _args: object, _kwargs: object) -> None:
        self._beat()

    def _wait(self) -> None:
        if _is_in_a_checkpoint():
            return
        self._seen += 1
        if self._seen == _FIRST_STEPS:
            self._beat = _nothing
            try:
                from holdfast.watch.rank.auto_heartbeat import begin  # noqa: PLC0415

                self._beat = begin()
            except Exception:  # noqa: BLE001 - another interpreter than the launcher's; no step may fail for us
                return


def _nothing() -> None:
    pass


def _is_in_a_checkpoint() -> bool:
    """DCP makes one step of each new optimizer, so that there is a state to load into."""
    frame: Any = sys._getframe(3)  # noqa: SLF001 - documented in the module sys
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("torch.distributed.checkpoint"):
            return True
        frame = frame.f_back
    return False


class _Await:
    """A finder for ``sys.meta_path``, which stays there: libraries compare it with its past."""

    def __init__(self, awaited: dict[str, Callable[[ModuleType], None]]) -> None:
        self._awaited = awaited
        self._asking: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the others find, with a loader that says when it has run."""
        if name not in self._awaited or name in self._asking:
            return None
        self._asking.add(name)  # another finder of this kind asks this one in turn
        try:
            finders = [
                each for each in sys.meta_path if hasattr(each, "find_spec")
            ]  # old ones lack it
            found = (finder.find_spec(name, path, target) for finder in finders)
            spec = next((spec for spec in found if spec is not None), None)
        finally:
            self._asking.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._awaited[name])  # type: ignore[assignment]
        return spec


class _Loader:
    """The loader of a plain import, and a call afterwards."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As ever."""
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        """As ever; then the call, and the module looks as ever, too."""
        self._loader.exec_module(module)
        spec = module.__spec__
        if spec is not None:
            spec.loader = module.__loader__ = self._loader
        self._then(module)


def _count_steps(optimizer: ModuleType) -> None:
    register = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(_Steps())


# ------------------------------------------------------------------ the end
def watch_end(grace_s: float) -> None:
    """From now on, an exception that nothing catches ends this process soon; once per process.

    Args:
        grace_s: How long exit handlers may take.
    """
    if not _ends:
        _ends.append(grace_s)
        _watch_shutdown(sys.modules[_THREADING])


_ends: list[float] = []


def _watch_shutdown(threading: Any) -> None:
    """The interpreter calls ``threading._shutdown`` first when it ends, to wait for threads."""
    before = getattr(threading, "_shutdown", None)
    if before is None:
        return
    pid, grace_s = os.getpid(), _ends[0]

    def _shutdown() -> None:
        # Called by the interpreter itself, and in the rank's own process, not in a fork of it.
        is_end = os.getpid() == pid and sys._getframe().f_back is None  # noqa: SLF001
        value = getattr(sys, "last_value", None)
        # After an interrupt nothing is imported: Python would forget to end with SIGINT.
        if is_end and value is not None and not isinstance(value, KeyboardInterrupt):
            _end_process(grace_s)
        before()

    threading._shutdown = _shutdown  # noqa: SLF001


def _end_process(grace_s: float) -> None:
    try:
        from holdfast.watch.rank.uncaught import end_process  # noqa: PLC0415

        end_process(grace_s)
    except Exception:  # noqa: BLE001 - then it ends as it would without us
        return


# ------------------------------------------------------------------ stacks
dump: tuple[str, int, int] | None = None
"""Path of the file, the signal, and a descriptor of the file; None: no handler was installed."""


def register_dump() -> None:
    """Let the signal append the stacks of all threads to the rank's file, from now on.

    Before any fork, so that the workers of a data loader have the handler, too.
    """
    global dump  # noqa: PLW0603 - a process has one handler
    beside = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not beside or dump is not None:
        return
    try:
        import _signal  # type: ignore[import-not-found] # noqa: PLC0415 - signal takes 2 ms
        import faulthandler  # noqa: PLC0415

        number = _signal.SIGRTMIN + _DUMP_SIGNAL
        if _signal.getsignal(number) != _signal.SIG_DFL:
            return
        path = os.path.join(os.path.dirname(beside), DUMP_FILE)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        faulthandler.register(number, file=fd, all_threads=True, chain=False)
    except (ImportError, OSError, AttributeError, ValueError, RuntimeError):
        return  # its stacks are missing from incidents, unless the client registers them
    dump = path, number, fd


# ------------------------------------------------------------------ the way in
def _undo_the_way_in(path: str) -> ModuleType | None:
    """As if this folder had never been on the path; the sitecustomize that there is without us."""
    here = os.path.dirname(__file__)
    sys.path[:] = [folder for folder in sys.path if folder != here]
    sys.path_importer_cache.pop(here, None)
    os.environ.pop("PYTHONPATH", None)
    if path:
        os.environ["PYTHONPATH"] = path[1:]
    sys.modules[KEPT_AS] = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: PLC0415
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        return None
    return sitecustomize  # type: ignore[no-any-return, unused-ignore]


def _main() -> None:
    if __name__ != "sitecustomize":  # imported by the client
        return
    orders = os.environ.pop(ORDERS, None)
    if orders is None:  # by accident
        return
    steps, grace, path = orders.split(" ", 2)
    awaited: dict[str, Callable[[ModuleType], None]] = {}
    if steps == "1":
        awaited[_OPTIMIZER] = _count_steps
    if grace != "-":
        _ends.append(float(grace))
        if _THREADING in sys.modules:
            _watch_shutdown(sys.modules[_THREADING])
        else:
            awaited[_THREADING] = _watch_shutdown
    register_dump()
    if awaited:
        sys.meta_path.insert(0, _Await(awaited))
    real = _undo_the_way_in(path)
    if real is None:  # nothing of this name is there, and nothing of it stays
        raise ImportError("no sitecustomize", name="sitecustomize")
    sys.modules["sitecustomize"] = real


_main()
