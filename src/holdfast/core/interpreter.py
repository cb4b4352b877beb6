"""Tell from two stamps whether a process runs, is blocked, or holds the interpreter.

A rank stamps the clock in two ways: its *main thread* between two instructions of Python, and a
*thread* that does nothing else whenever it can have the interpreter. So

    main stamp   thread stamp   verdict
    fresh        fresh          HEALTHY
    old          fresh          BLOCKED: in C, others can run; it can be freed from within
    old          old            HELD: in C with the interpreter, or stopped; only a kill helps
    fresh        old            HEALTHY: Python runs, the thread is late (or a stamp is on its way)

Measured with a period of 50 ms: in Python loops and in long operators the older stamp is at most
0.10 s old; in a call that blocks for 1.5 s, 1.50 s.

Pure. Times are seconds on one monotonic clock. A stamp is old when its age is *above* the limit, so
:func:`next_look` is exact: healthy at that instant, not at any later one (H-1, H-2).
"""

from __future__ import annotations

import enum


class Verdict(enum.Enum):
    """What a process does; see the module."""

    HEALTHY = "healthy"
    BLOCKED = "blocked, the interpreter is free"
    HELD = "the interpreter is held, or the process is stopped"


def judge(main_at: float, thread_at: float, now: float, limit_s: float) -> Verdict:
    """What the stamps say at ``now``.

    Args:
        main_at: Stamp of the main thread; for one that has not begun, when it should have.
        thread_at: Stamp of the other thread, likewise.
        now: The time.
        limit_s: How old is too old, seconds; several periods of stamping at least.
    """
    # Compared as next_look() adds, so that rounding cannot part the two.
    if now <= main_at + limit_s:
        return Verdict.HEALTHY
    if now <= thread_at + limit_s:
        return Verdict.BLOCKED
    return Verdict.HELD


def next_look(main_at: float, thread_at: float, now: float, limit_s: float) -> float | None:
    """The last instant at which the verdict is what it is at ``now``, if no stamp is made.

    Returns:
        ``None``: it is :attr:`Verdict.HELD`, which only a stamp changes.
    """
    ends = [at + limit_s for at in (main_at, thread_at) if now <= at + limit_s]
    if not ends:
        return None
    main_ends = main_at + limit_s
    return main_ends if now <= main_ends else max(ends)
