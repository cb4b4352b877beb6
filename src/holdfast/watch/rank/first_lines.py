"""The first lines of a rank, before its script, which need not know of holdfast.

A part of the start of its Python (``base/processes/start_hook/sitecustomize.py``):

- the signal that dumps the rank's stacks gets its handler, which forked children inherit, as the
  workers of a data loader are (:func:`register_dump`);
- the start of the interpreter's end is watched, for an exception that nothing has caught
  (``rank_end.py``, ``uncaught.py``);
- torch calls :class:`_StepHook` after each step of an optimizer
  (``register_optimizer_step_post_hook``; 0.2 microseconds);
- the rank meets the others in short pauses, where torch's are long (``store_wait.py``).

Nothing is imported that the script does not import, until its third step or its end. It works with
any Python that holdfast supports; where holdfast is not installed for it, nothing happens.
"""

# Annotations are quoted: the module __future__ would take 0.1 ms of each start, and stay imported.
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType

    from holdfast.base.processes.start_hook.sitecustomize import PythonStart

DUMP_FILE = "stacks.txt"
"""Beside the file in ``TORCHELASTIC_ERROR_FILE``."""
_DUMP_SIGNAL = 7
"""Above SIGRTMIN; as in ``evidence/dump_signal.py``."""
_KEPT_AS = "_holdfast_start"
"""This module in ``sys.modules``, once it has run for a rank; as in ``rank_end.py``."""
_OPTIMIZER = "torch.optim.optimizer"
_RENDEZVOUS = "torch.distributed.rendezvous"
_THREADING = "threading"
_FIRST_STEPS = 3
"""A script that reports by itself has begun to by then."""


def start(python_start: "PythonStart", orders: str) -> "ModuleType | None":
    """Set up stacks, end and steps as the orders say, and go on.

    Args:
        python_start: Of this process.
        orders: See ``auto_start.py``: ``1`` where steps count; seconds for exit handlers, ``-``
            where an exception ends nothing; the PYTHONPATH of the rank after a ``+``, or nothing.
    """
    sys.modules[_KEPT_AS] = python_start.part
    steps, grace, path = orders.split(" ", 2)
    if steps == "1":
        python_start.after_import(_OPTIMIZER, _count_steps)
    if grace != "-":
        end = python_start.load("watch/rank/rank_end.py")
        if (threading := sys.modules.get(_THREADING)) is not None:
            end.watch_end(float(grace), threading)
        else:
            python_start.after_import(_THREADING, lambda it: end.watch_end(float(grace), it))
    python_start.after_import(_RENDEZVOUS, lambda it: _wait_for_servers(python_start, it))
    register_dump()
    python_start.restore_pythonpath(path[1:] if path else None)
    return python_start.proceed()


def _wait_for_servers(python_start: "PythonStart", rendezvous: "ModuleType") -> None:
    try:
        until_listens = python_start.load("net/until_listens.py")
        python_start.load("watch/rank/store_wait.py").wait_for_servers(rendezvous, until_listens)
    except Exception:  # noqa: BLE001 - holdfast may be gone from the disk by then: torch's import goes on
        return


# ------------------------------------------------------------------ steps
class _StepHook:
    """Called by torch after each step."""

    def __init__(self) -> None:
        self._seen = 0
        self._beat: Callable[[], None] = self._wait

    def __call__(self, _optimizer: object, _args: object, _kwargs: object) -> None:
        self._beat()

    def _wait(self) -> None:
        if is_in_a_checkpoint(sys._getframe(2)):  # noqa: SLF001 - documented in the module sys
            return
        self._seen += 1
        if self._seen == _FIRST_STEPS:
            self._beat = _nothing
            try:
                from holdfast.watch.rank.auto_heartbeat import begin  # noqa: PLC0415

                self._beat = begin()
            except Exception:  # noqa: BLE001 - another interpreter than the launcher's; no step may fail for this
                return


def _nothing() -> None:
    pass


def is_in_a_checkpoint(frame: "FrameType | None") -> bool:
    """DCP makes one step of each new optimizer, so that there is a state to load into.

    Args:
        frame: In which the step was made, or of which it was called.
    """
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("torch.distributed.checkpoint"):
            return True
        frame = frame.f_back
    return False


def _count_steps(optimizer: "ModuleType") -> None:
    register = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(_StepHook())


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
