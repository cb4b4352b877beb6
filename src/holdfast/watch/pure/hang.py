"""Decide whether one rank is hung, from what its page shows.

Pure: reads no clock, opens nothing. Times are seconds of the caller's monotonic clock, ages and
limits are seconds; ``None`` as a limit means "never", ``None`` as an instant means "not running".

Up to four kinds of clock run at once, each on its own, and one alone after them::

    initial heartbeat   since armed, until the first heartbeat; a default one also ends with the
                        first section, for a rank that opens sections need not send heartbeats
    heartbeat           since the last heartbeat
    section             since it was opened; one clock per open section that has a limit
    outside sections    since the last section was closed (or armed); only while none is open
    process exit        since the rank left its monitor, until its process ends; none of the others
    first report        of a rank that never was armed: since another rank was; none of the others
    optimizer step      since the last one, or the last collective, of a rank that reports nothing
                        else; none of the others. Before that runs out, "pause of steps" does,
                        once in each pause

A rank is overdue when **any** running clock is strictly older than its limit, so a section past its
limit is found however many younger ones are open inside it. Two promises (DESIGN §10):

    H-1  no rank is called hung before its earliest deadline
    H-2  a hung rank is found at its deadline, whatever else is open

:func:`next_deadline` is exact: at that instant the rank is healthy, at every later one overdue
(unless the rank reports something in between). That is what makes polling unnecessary: a reader who
sleeps until ``min(next_deadline, now + shortest_limit)`` and then looks again misses nothing,
because a clock started after ``now`` cannot run out before ``now + shortest_limit``.
"""

from __future__ import annotations

from holdfast.page.pure.clocks import (
    EXIT,
    FIRST_REPORT,
    HEARTBEAT,
    INITIAL_HEARTBEAT,
    OUTSIDE_SECTIONS,
    PAUSE,
    SECTION,
    STEP,
    Overdue,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.base.pure.excuse import Excuse
    from holdfast.page.pure.clocks import Limits, Snapshot


def running(snapshot: Snapshot, limits: Limits) -> list[Overdue]:
    """All running clocks that have a limit, in no particular order."""
    if snapshot.left_at is not None:
        if limits.exit is None:
            return []
        return [Overdue(EXIT, None, snapshot.left_at, limits.exit)]
    if snapshot.is_awaited:
        if limits.initial is None:
            return []
        return [Overdue(FIRST_REPORT, None, snapshot.armed_at, limits.initial)]
    if snapshot.steps:
        if limits.subsequent is None:
            return []
        clock = STEP if snapshot.is_pause_known else PAUSE
        return [Overdue(clock, None, snapshot.heartbeat_at or snapshot.armed_at, limits.subsequent)]
    clocks = []
    if snapshot.heartbeat_at is None:
        is_over = limits.section_ends_initial and snapshot.has_used_sections
        if limits.initial is not None and not is_over:
            clocks.append(Overdue(INITIAL_HEARTBEAT, None, snapshot.armed_at, limits.initial))
    elif limits.subsequent is not None:
        clocks.append(Overdue(HEARTBEAT, None, snapshot.heartbeat_at, limits.subsequent))
    for name, opened_at in snapshot.sections.items():
        limit_s = limits.sections.get(name)
        if limit_s is not None:
            clocks.append(Overdue(SECTION, name, opened_at, limit_s))
    if (
        limits.out_of_section is not None
        and snapshot.outside_since is not None
        and not snapshot.sections
        and not snapshot.warming_up
    ):
        clocks.append(
            Overdue(OUTSIDE_SECTIONS, None, snapshot.outside_since, limits.out_of_section)
        )
    return clocks


def _excused_deadline(clock: Overdue, excuse: Excuse | None) -> float:
    return clock.deadline if excuse is None else excuse.extend(clock.deadline, clock.limit_s)


def overdue(
    snapshot: Snapshot, limits: Limits, now: float, excuse: Excuse | None = None
) -> Overdue | None:
    """The clock that ran out first, or ``None`` while the rank is healthy."""
    late = [c for c in running(snapshot, limits) if now > _excused_deadline(c, excuse)]
    return min(late, key=lambda clock: clock.deadline) if late else None


def next_deadline(snapshot: Snapshot, limits: Limits, excuse: Excuse | None = None) -> float | None:
    """Earliest instant after which :func:`overdue` is true; ``None``: never."""
    return min((_excused_deadline(c, excuse) for c in running(snapshot, limits)), default=None)


def shortest_limit(limits: Limits) -> float | None:
    """Seconds that any clock started from now on certainly has; ``None``: for ever."""
    every = (
        limits.initial,
        limits.subsequent,
        limits.out_of_section,
        limits.exit,
        *limits.sections.values(),
    )
    return min((limit for limit in every if limit is not None), default=None)
