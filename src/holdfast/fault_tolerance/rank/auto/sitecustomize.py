"""The first lines of a rank: its optimizer's steps become heartbeats, if it sends none itself.

Python imports ``sitecustomize`` at the end of its own start. With this folder first on PYTHONPATH
it finds us: we undo that, wait for the import of ``torch.optim``, and have torch call us after each
step of an optimizer (``register_optimizer_step_post_hook``; 0.2 microseconds). Nothing is imported
that the script does not import, until its third step. The way in works with any Python; where
holdfast is not installed for it, nothing happens.
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
"""Environment variable: the PYTHONPATH that the rank is to have, after a ``+``; or empty."""
_AWAITED = "torch.optim.optimizer"
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
                from holdfast.fault_tolerance.rank.auto_heartbeat import begin  # noqa: PLC0415

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

    def __init__(self) -> None:
        self._is_asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the others find, with a loader that tells us when it has run."""
        if name != _AWAITED or self._is_asking:
            return None
        self._is_asking = True  # another finder of this kind asks us in turn
        try:
            finders = [
                each for each in sys.meta_path if hasattr(each, "find_spec")
            ]  # old ones lack it
            found = (finder.find_spec(name, path, target) for finder in finders)
            spec = next((spec for spec in found if spec is not None), None)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


class _Loader:
    """The loader of a plain import, and a word to torch afterwards."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As ever."""
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        """As ever; then the hook, and the module looks as ever, too."""
        self._loader.exec_module(module)
        spec = module.__spec__
        if spec is not None:
            spec.loader = module.__loader__ = self._loader
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is not None:
            register(_Steps())


def _undo_the_way_in(orders: str) -> ModuleType | None:
    """As if this folder had never been on the path; the sitecustomize that there is without us."""
    here = os.path.dirname(__file__)
    sys.path[:] = [folder for folder in sys.path if folder != here]
    sys.path_importer_cache.pop(here, None)
    os.environ.pop("PYTHONPATH", None)
    if orders:
        os.environ["PYTHONPATH"] = orders[1:]
    del sys.modules["sitecustomize"]
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: PLC0415
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        return None
    return sitecustomize  # type: ignore[no-any-return, unused-ignore]


def _main() -> None:
    orders = os.environ.pop(ORDERS, None)
    if orders is None:  # imported by accident
        return
    sys.meta_path.insert(0, _Await())
    real = _undo_the_way_in(orders)
    if real is None:  # nothing of this name is there, and nothing of it stays
        raise ImportError("no sitecustomize", name="sitecustomize")
    sys.modules["sitecustomize"] = real


_main()
