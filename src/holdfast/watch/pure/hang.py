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

from holdfast.base.pure.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet
    from typing import TypeAlias

    from holdfast.base.pure.excuse import Excuse

    ClockKey: TypeAlias = tuple[str, str | None]

INITIAL_HEARTBEAT = "initial heartbeat"
HEARTBEAT = "heartbeat"
SECTION = "section"
OUTSIDE_SECTIONS = "outside sections"
EXIT = "process exit"
FIRST_REPORT = "first report"
STEP = "optimizer step"
PAUSE = "pause of steps"

_NONE: Mapping[str, float] = {}


class Limits(Value):
    """How long is too long, in seconds; ``None``: never. Not changed after construction.

    Attributes:
        initial: From arming to the first heartbeat; of a rank that is awaited, to its arming.
        subsequent: Between heartbeats.
        out_of_section: With no section open.
        sections: Per section name. A section that is not named here is not timed.
        learned: ``(clock, name)`` of the limits that were calculated from measured intervals.
        section_ends_initial: The first section ends the initial clock, as the first heartbeat does.
        exit: From leaving the monitor to the end of the process.
    """

    initial: float | None = None
    subsequent: float | None = None
    out_of_section: float | None = None
    sections: Mapping[str, float | None] = _NONE
    learned: AbstractSet[ClockKey] = frozenset()
    section_ends_initial: bool = False
    exit: float | None = None


class Snapshot(Value):
    """What a rank showed of itself at one moment.

    Attributes:
        armed_at: When it asked to be watched; identifies the watch.
        heartbeat_at: Its last heartbeat; ``None`` before the first.
        outside_since: Since when no section is open; ``None`` while one is.
        sections: Name to opening time of the open sections.
        warming_up: The time outside sections is not judged yet.
        has_used_sections: It has opened one since it was armed, watched or not.
        left_at: When it left its monitor; its process is expected to end. ``None``: it has not.
        steps: Optimizer steps so far, which are its heartbeats (``watch/pure/steps.py``); 0: they
            are not.
        longest_step_s: Of a rank with steps, the longest time between two.
        is_pause_known: Of a rank with steps, that it makes none at present has been noticed.
        is_awaited: It has not asked to be watched; ``armed_at`` is when another of its node did.
    """

    armed_at: float
    heartbeat_at: float | None = None
    outside_since: float | None = None
    sections: Mapping[str, float] = _NONE
    warming_up: bool = False
    has_used_sections: bool = False
    left_at: float | None = None
    is_awaited: bool = False
    steps: float = 0.0
    longest_step_s: float = -1.0
    is_pause_known: bool = False

    @property
    def last_sign_at(self) -> float:
        """When the rank was armed, or last showed progress since, as far as its clocks tell."""
        signs = (self.armed_at, self.heartbeat_at, self.outside_since, *self.sections.values())
        return max(at for at in signs if at is not None)


class Overdue(Value):
    """One clock that ran (or can run) out.

    Attributes:
        clock: One of the kinds above.
        name: Of the section; ``None`` for other clocks.
        since: Instant at which the clock started.
        limit_s: How old it may become.
    """

    clock: str
    name: str | None
    since: float
    limit_s: float

    @property
    def deadline(self) -> float:
        """Last instant at which the clock is within its limit."""
        return self.since + self.limit_s

    def age_s(self, now: float) -> float:
        """Seconds since the clock started."""
        return now - self.since


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
