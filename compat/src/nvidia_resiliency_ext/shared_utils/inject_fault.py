"""Faults on purpose, in this process, some seconds from now: for tests of recovery."""

from __future__ import annotations

import enum
import os
import random
import threading
from collections.abc import Callable, Iterable

from holdfast.testing import inject
from holdfast.testing.inject import InjectedException
from holdfast.testing.inject import clear as clear_workload_exception
from holdfast.testing.inject import maybe_raise as maybe_raise_workload_exception
from nvidia_resiliency_ext._former import ignore

__all__ = [
    "Fault",
    "InjectedException",
    "clear_workload_exception",
    "dispatch_fault_injection",
    "inject_fault",
    "maybe_raise_workload_exception",
]


class Fault(enum.IntEnum):
    """Kinds of faults; :class:`holdfast.testing.inject.Fault` describes each, by the same names."""

    GPU_ERROR = 1
    GPU_SLEEP = 2
    WORKLOAD_EXC = 3
    ASYNC_EXC = 4
    SIGNAL_EXC = 5
    OS_ABORT = 6
    LOCK_GIL = 7
    SEGFAULT = 8
    SIGINT = 9
    SIGKILL = 10
    SIGTERM = 11
    SIGSTOP = 12

    # By the names of version 0.2.
    GPU = GPU_ERROR
    ABORT = OS_ABORT
    GIL = LOCK_GIL
    INT = SIGINT
    KILL = SIGKILL
    TERM = SIGTERM
    STOP = SIGSTOP


def dispatch_fault_injection(
    fault: Fault | int | str,
    delay: float = 0.0,
    callback: Callable[[], object] | None = None,
) -> threading.Thread:
    """Have a fault happen in this process, ``delay`` seconds from now. Returns at once.

    Args:
        fault: Which one; also its number or name.
        delay: Seconds.
        callback: Called in a thread right before the fault.

    Returns:
        The thread that waits and injects.

    Raises:
        ValueError, KeyError: There is no such fault.
        RuntimeError: It needs a GPU and there is none, or a signal and none is free.
    """
    kind = Fault[fault] if isinstance(fault, str) else Fault(fault)
    return inject.inject(inject.Fault[kind.name], delay, callback)


def inject_fault(
    faults: Iterable[Fault | int | str] | None = None,
    num_faults: int | tuple[int, int] = 1,
    delay: float | tuple[float, float] = 0.0,
    seed: int | None = None,
    callback: Callable[[], object] | None = None,
    **others: object,
) -> Fault | None:
    """Inject a fault of several, drawn by a seed, on ranks that are drawn by the same seed.

    All ranks call it with the same arguments, and agree without talking.

    Args:
        faults: To draw from; ``None``: all that this process can have.
        num_faults: On how many ranks of ``WORLD_SIZE``, or the range to draw that from.
        delay: Seconds from now, or the range to draw them from.
        seed: ``None``: 0.
        callback: See :func:`dispatch_fault_injection`.
        **others: Without effect, with one warning each.

    Returns:
        The fault that will happen on this rank; ``None``: none.
    """
    ignore(others, "inject_fault")
    drawn = random.Random(0 if seed is None else seed)  # noqa: S311 - no secret
    kinds = [Fault[each] if isinstance(each, str) else Fault(each) for each in faults or ()]
    kinds = kinds or [each for each in Fault if inject.why_not(inject.Fault[each.name]) is None]
    count = drawn.randint(*num_faults) if isinstance(num_faults, tuple) else num_faults
    rank = int(os.environ.get("RANK", "0"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    plan = {
        unlucky: (
            drawn.choice(kinds),
            drawn.uniform(*delay) if isinstance(delay, tuple) else float(delay),
        )
        for unlucky in drawn.sample(range(world), min(count, world))
    }
    if rank not in plan:
        return None
    fault, delay_s = plan[rank]
    dispatch_fault_injection(fault, delay_s, callback)
    return fault
