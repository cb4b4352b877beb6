"""Decide whether one rank is hung, from the clocks in its page. Pure.

Times are seconds of the caller's monotonic clock; ``None`` as a limit means "never", ``None`` as an
instant means "not running". Up to four kinds of clock run at once; each of the others runs alone::

    initial heartbeat   since armed, until the first heartbeat; a default one also ends with the
                        first section, for a rank that opens sections need not send heartbeats
    heartbeat           since the last heartbeat
    section             since it was opened; one clock per open section that has a limit
    outside sections    since the last section was closed (or armed); only while none is open

    process exit        since the rank left its monitor, until its process ends
    first report        of a rank that never was armed: since another rank was
    optimizer step      since the last sign of progress of a rank whose steps are counted, only
                        while none of the others runs: between two sections, or where it reports
                        nothing. Before that runs out, "pause of steps" does, once in each pause

A rank is overdue when **any** running clock is strictly older than its limit, so a section past its
limit is found however many younger ones are open inside it (H-1, H-2). :func:`next_deadline` is
exact: at that instant the rank is healthy, at every later one overdue, unless it reports meanwhile.
So no polling is necessary: a reader that sleeps until ``min(next_deadline, now + shortest_limit)``
misses nothing, because a clock started after ``now`` runs at least ``shortest_limit``. Steps have
no chosen limit: ``monitor.py`` says how often to look at them.
"""

from __future__ import annotations

from holdfast.page.pure.clocks import (
    EXIT,
    FIRST_REPORT,
    HEARTBEAT,
    INITIAL_HEARTBEAT,
    MAIN_THREAD,
    OF_STEPS,
    OUTSIDE_SECTIONS,
    PAUSE,
    PING,
    SECTION,
    STEP,
    RunningClock,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.base.pure.excuse import Excuse
    from holdfast.page.pure.clocks import MainThreadMarks, Snapshot, Timeouts


def running(snapshot: Snapshot, limits: Timeouts) -> list[RunningClock]:
    """All running clocks that have a limit, in no particular order."""
    if snapshot.left_at is not None:
        if limits.exit is None:
            return []
        return [RunningClock(EXIT, None, snapshot.left_at, limits.exit)]
    if snapshot.is_awaited:
        if limits.initial is None:
            return []
        return [RunningClock(FIRST_REPORT, None, snapshot.armed_at, limits.initial)]
    clocks = []
    if snapshot.heartbeat_at is None:
        is_over = limits.section_ends_initial and snapshot.has_used_sections
        if limits.initial is not None and not is_over:
            clocks.append(RunningClock(INITIAL_HEARTBEAT, None, snapshot.armed_at, limits.initial))
    elif limits.subsequent is not None:
        clocks.append(RunningClock(HEARTBEAT, None, snapshot.heartbeat_at, limits.subsequent))
    for name, opened_at in snapshot.sections.items():
        limit_s = limits.sections.get(name)
        if limit_s is not None:
            clocks.append(RunningClock(SECTION, name, opened_at, limit_s))
    if (
        limits.out_of_section is not None
        and snapshot.outside_since is not None
        and not snapshot.sections
        and not snapshot.warming_up
    ):
        clocks.append(
            RunningClock(OUTSIDE_SECTIONS, None, snapshot.outside_since, limits.out_of_section)
        )
    if snapshot.steps and limits.steps is not None and not clocks:
        clock = STEP if snapshot.is_pause_known else PAUSE
        clocks.append(RunningClock(clock, None, snapshot.last_sign_at, limits.steps))
    return clocks


def is_by_steps(snapshot: Snapshot, limits: Timeouts) -> bool:
    """The rank is watched by its optimizer's steps now: no timeout that was chosen counts."""
    return any(it.clock in OF_STEPS for it in running(snapshot, limits))


def running_in_place(
    marks: MainThreadMarks, since: float, ping_since: float, limit_s: float
) -> list[RunningClock]:
    """Running clocks of a function that is restarted in place; none while it has switched them off.

    No clock starts before ``since``; ``ping()`` counts once it was called after ``ping_since``.
    """
    if marks.unlimited:
        return []
    clocks = [RunningClock(MAIN_THREAD, None, max(marks.automatic, since), limit_s)]
    if marks.manual > ping_since:
        clocks.append(RunningClock(PING, None, max(marks.manual, since), limit_s))
    return clocks


def first_to_run_out(clocks: Iterable[RunningClock]) -> RunningClock | None:
    """The clock with the earliest deadline; the first of equal ones, ``None`` of none."""
    return min(clocks, key=lambda clock: clock.deadline, default=None)


def _excused_deadline(clock: RunningClock, excuse: Excuse | None) -> float:
    return clock.deadline if excuse is None else excuse.extend(clock.deadline, clock.limit_s)


def overdue(
    snapshot: Snapshot, limits: Timeouts, now: float, excuse: Excuse | None = None
) -> RunningClock | None:
    """The clock that ran out first, or ``None`` while the rank is healthy."""
    clocks = running(snapshot, limits)
    return first_to_run_out(c for c in clocks if now > _excused_deadline(c, excuse))


def next_deadline(
    snapshot: Snapshot, limits: Timeouts, excuse: Excuse | None = None
) -> float | None:
    """Earliest instant after which :func:`overdue` is true; ``None``: never."""
    return min((_excused_deadline(c, excuse) for c in running(snapshot, limits)), default=None)


def shortest_limit(limits: Timeouts) -> float | None:
    """Seconds that any clock started from now on certainly has; ``None``: for ever.

    But for that of steps.
    """
    every = (
        limits.initial,
        limits.subsequent,
        limits.out_of_section,
        limits.exit,
        *limits.sections.values(),
    )
    return min((limit for limit in every if limit is not None), default=None)
