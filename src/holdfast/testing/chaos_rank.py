"""A rank's side of ``holdfast chaos``: it notes steps of the training, and carries out orders.

Through files in a folder that HOLDFAST_CHAOS names, each written by one process:

    hello.PID    "RANK CYCLE PARENT", by the hook as the rank starts
    steps.PID    :data:`STEPS`, by the rank after each step
    order.PID    name of a fault, by chaos; then a signal
    struck.PID   "TIME REASON", by the rank right before the fault; with a reason there is none
"""

from __future__ import annotations

import os
import signal
import struct
import sys
from pathlib import Path
from typing import Any

from holdfast.base import clock
from holdfast.testing.inject import Fault, strike, why_not
from holdfast.watch.rank.first_lines import is_in_a_checkpoint

FOLDER = "HOLDFAST_CHAOS"
"""Environment variable."""
ORDER_SIGNAL = signal.SIGRTMIN + 12
"""Makes a rank look for an order; the hook has installed its handler."""
STEPS = struct.Struct("=5d")
"""When the first step of this process ended, its number; the same of the last; how many."""
UNKNOWN = -1.0
"""In place of a number."""


class _StepFile:
    """The file of steps of one process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._first = (0.0, UNKNOWN)
        self._count = 0
        self._fd = -1
        if folder := os.environ.get(FOLDER):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._fd = os.open(f"{folder}/steps.{pid}", flags, 0o600)

    def note(self, step: int | None) -> None:
        if self._fd < 0:
            return
        last = clock.monotonic(), UNKNOWN if step is None else float(step)
        self._first = self._first if self._count else last
        self._count += 1
        os.pwrite(self._fd, STEPS.pack(*self._first, *last, self._count), 0)


_steps: _StepFile | None = None


def note_step(step: int | None = None) -> None:
    """Tell ``holdfast chaos`` that a step of the training is done; elsewhere without effect.

    Only for a training without optimizers of torch: their steps are counted without it. Costs some
    microseconds.

    Args:
        step: How many are done, counted over restarts; ``None``: not known.
    """
    global _steps  # noqa: PLW0603 - one per process
    pid = os.getpid()
    if _steps is None or _steps.pid != pid:  # a fork has steps of its own
        _steps = _StepFile(pid)
    _steps.note(step)


def note_optimizer_step(optimizer: Any) -> None:
    """Note a step of an optimizer of torch; Adam and its relatives count them over restarts.

    One that torch's checkpoints make is passed over: it only gives the optimizer a state to load
    into, before the training goes on.
    """
    if is_in_a_checkpoint(sys._getframe(1)):  # noqa: SLF001 - documented in the module sys
        return
    state: dict[str, Any] = next(iter(optimizer.state.values()), {})
    step = state.get("step")
    if step is None or getattr(step, "is_cuda", False):  # to read it there would wait for the GPU
        note_step()
    else:
        note_step(int(step))


def carry_out_order(folder: str) -> None:
    """Have the fault that is ordered for this process, if there is one.

    The handler of a signal calls it, in the main thread.
    """
    order = Path(folder) / f"order.{os.getpid()}"
    try:
        fault = Fault(order.read_text())
        order.unlink()
    except (OSError, ValueError):
        return
    reason = why_not(fault)
    struck = order.with_name(f"struck.{os.getpid()}")
    new = struck.with_name(f"{struck.name}.new")
    new.write_text(f"{clock.monotonic()!r} {reason or ''}")
    new.replace(struck)
    if reason is None:
        strike(fault)
