"""Faults for an unmodified script: Python imports this as it starts, if our folder is on its path.

With HOLDFAST_INJECT, in a rank: the faults that it names begin to wait. With HOLDFAST_CHAOS: a
signal makes this process carry out an order of ``holdfast chaos``, and the steps of torch's
optimizers are noted. Without either, nothing. Then the ``sitecustomize`` of a plain start is
imported, as if this one had never been on the path.

A parked interpreter (docs/warm-standby.md) runs this before it knows its rank; so the file of steps
is opened at the first step, and faults of HOLDFAST_INJECT begin to wait at a later import.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # the module signal takes 3 ms of each start
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

ORDER_SIGNAL = _signal.SIGRTMIN + 12
_OPTIMIZERS = "torch.optim.optimizer"
_BAD_PLAN = 2
"""Exit code."""


class _Finder:
    """Watches for torch's optimizers, and for the first import of a rank that was parked.

    It stays in ``sys.meta_path``: a parked process must not differ from a plain start there.
    """

    def __init__(self) -> None:
        self._is_planned = "HOLDFAST_INJECT" in os.environ
        self._is_asking = False
        self.begin_plan()

    def begin_plan(self) -> None:
        if self._is_planned and "RANK" in os.environ:
            self._is_planned = False
            try:
                from holdfast.testing.inject import from_environment  # noqa: PLC0415 - seldom needed

                from_environment()
            except (ValueError, RuntimeError) as error:
                os.write(2, f"holdfast: HOLDFAST_INJECT: {error}\n".encode())
                os._exit(_BAD_PLAN)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: Any = None
    ) -> ModuleSpec | None:
        self.begin_plan()
        if name != _OPTIMIZERS or "HOLDFAST_CHAOS" not in os.environ or self._is_asking:
            return None
        self._is_asking = True  # the launcher's own finder for it asks us in turn
        try:
            finders = [
                each for each in sys.meta_path if hasattr(each, "find_spec")
            ]  # old ones lack it
            found = (finder.find_spec(name, path, _target) for finder in finders)
            spec = next((spec for spec in found if spec is not None), None)
        finally:
            self._is_asking = False
        if spec is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


class _Loader:
    """The loader of torch's optimizers, and what follows."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        spec: Any = module.__spec__
        spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        register: Any = module.register_optimizer_step_post_hook
        register(_stepped)


def _stepped(optimizer: object, *_: object) -> None:
    from holdfast.testing.chaos_rank import note_optimizer_step  # noqa: PLC0415 - at the first step

    note_optimizer_step(optimizer)


def _on_order(_signum: int, _frame: object) -> None:
    from holdfast.testing.chaos_rank import carry_out_order  # noqa: PLC0415 - once

    carry_out_order(os.environ["HOLDFAST_CHAOS"])


def _introduce(folder: str) -> None:
    """Say which rank this process is; one that is parked does not know yet."""
    if "RANK" in os.environ:
        rank, cycle = os.environ["RANK"], os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        hello = f"{folder}/hello.{os.getpid()}"
        with open(f"{hello}.new", "w") as file:
            file.write(f"{rank} {cycle} {os.getppid()}")
        os.replace(f"{hello}.new", hello)


def _main() -> None:
    folder = os.environ.get("HOLDFAST_CHAOS")
    if folder is not None and os.path.isdir(folder):
        _signal.signal(ORDER_SIGNAL, _on_order)
        _introduce(folder)
    elif "HOLDFAST_INJECT" not in os.environ:
        return
    sys.meta_path.insert(0, _Finder())


def _undo_the_way_in() -> None:
    here = os.path.dirname(__file__)
    sys.path[:] = [folder for folder in sys.path if folder != here]
    sys.path_importer_cache.pop(here, None)
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found] # noqa: F401, PLC0415


_main()
_undo_the_way_in()
