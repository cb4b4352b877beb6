"""Faults for an unmodified script: a part of the start of a Python (``base/processes/start_hook``).

With HOLDFAST_INJECT, in a rank: the faults that it names begin to wait. With HOLDFAST_CHAOS: a
signal makes this process carry out an order of ``holdfast chaos``, which gets a note of each step
of torch's optimizers.

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
    from types import ModuleType
    from typing import Any

    from holdfast.base.processes.start_hook.sitecustomize import PythonStart

ORDER_SIGNAL = _signal.SIGRTMIN + 12
_OPTIMIZERS = "torch.optim.optimizer"
_BAD_PLAN = 2
"""Exit code."""


def start(python_start: PythonStart, _orders: str) -> ModuleType | None:
    """Let this process have faults, and go on."""
    folder = os.environ.get("HOLDFAST_CHAOS")
    if folder is not None and os.path.isdir(folder):
        _signal.signal(ORDER_SIGNAL, _on_order)
        _introduce(folder)
        python_start.after_import(_OPTIMIZERS, _note_steps)
    if "HOLDFAST_INJECT" in os.environ:
        sys.meta_path.insert(0, _PlanFinder())
    return python_start.proceed()


class _PlanFinder:
    """Begins the plan of HOLDFAST_INJECT, in a rank that was parked at its first import.

    It finds nothing, and stays in ``sys.meta_path``: a parked process must not differ from a plain
    start there.
    """

    def __init__(self) -> None:
        self._is_planned = True
        self._begin_plan()

    def _begin_plan(self) -> None:
        if self._is_planned and "RANK" in os.environ:
            self._is_planned = False
            try:
                from holdfast.testing.inject import from_environment  # noqa: PLC0415 - seldom needed

                from_environment()
            except (ValueError, RuntimeError) as error:
                os.write(2, f"holdfast: HOLDFAST_INJECT: {error}\n".encode())
                os._exit(_BAD_PLAN)

    def find_spec(
        self, _name: str, _path: Sequence[str] | None = None, _target: Any = None
    ) -> None:
        self._begin_plan()


def _note_steps(optimizers: Any) -> None:
    optimizers.register_optimizer_step_post_hook(_stepped)


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
