"""Records of a rank's clocks: their state in its page, their timeouts, and one that runs.

``page_view.py`` reads them, ``watch/pure/hang.py`` judges them, evidence and reports carry them.
Times are seconds of the caller's monotonic clock, limits are seconds.
"""

from __future__ import annotations

from holdfast.base.pure.codec import Limit, Raw
from holdfast.base.pure.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    Limits: TypeAlias = Mapping[str, float | None]
else:
    Limits = dict[str, Limit | None]

INITIAL_HEARTBEAT = "initial heartbeat"
HEARTBEAT = "heartbeat"
SECTION = "section"
OUTSIDE_SECTIONS = "outside sections"
EXIT = "process exit"
FIRST_REPORT = "first report"
STEP = "optimizer step"
PAUSE = "pause of steps"
OF_STEPS = STEP, PAUSE
MAIN_THREAD = "main thread"
PING = "ping()"

_NONE: Mapping[str, float] = {}


class Learned(Value):
    """The limits that were calculated from measured intervals, in this cycle or before."""

    heartbeat: bool = False
    out_of_section: bool = False
    sections: tuple[Raw, ...] = ()

    def has(self, clock: str, name: str | None) -> bool:
        """Whether the limit of this clock is one of them; ``name``: of the section."""
        if clock == SECTION:
            return name in self.sections
        if clock == OUTSIDE_SECTIONS:
            return self.out_of_section
        return self.heartbeat and clock in (INITIAL_HEARTBEAT, HEARTBEAT)


class Timeouts(Value):
    """How long is too long, in seconds; ``None``: never. A rank sends its own to its monitor.

    Attributes:
        initial: From arming to the first heartbeat; of a rank that is awaited, to its arming.
        subsequent: Between heartbeats.
        out_of_section: With no section open.
        sections: Per section name. A section that is not named here is not timed.
        section_ends_initial: The first section ends the initial clock, as the first heartbeat does.
        exit: From leaving the monitor to the end of the process.
        steps: Between two signs of progress, of a rank with steps, while no other clock runs. Its
            monitor learns it (``watch/pure/steps.py``).
    """

    initial: Limit | None = None
    subsequent: Limit | None = None
    out_of_section: Limit | None = None
    sections: Limits = _NONE
    learned: Learned = Learned()
    section_ends_initial: bool = False
    exit: Limit | None = None
    steps: Limit | None = None


class Snapshot(Value):
    """The state of a rank's clocks at one moment.

    Attributes:
        armed_at: When it asked to be watched; identifies the watch.
        heartbeat_at: Its last heartbeat; ``None`` before the first.
        outside_since: Since when no section is open; ``None`` while one is.
        sections: Name to opening time of the open sections.
        warming_up: The time outside sections is not judged yet.
        has_used_sections: It has opened one since it was armed, watched or not; or is a spare.
        left_at: When it left its monitor; its process is expected to end. ``None``: it has not.
        steps: Optimizer steps so far (``watch/pure/steps.py``); 0: none, or they are not counted.
        stepped_at: Of a rank with steps, the last one.
        closed_at: The same: when it closed a section last.
        longest_s: The same: none of its pauses that have ended was longer.
        is_pause_known: The same: that it makes no progress at present has been noticed.
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
    stepped_at: float | None = None
    closed_at: float | None = None
    longest_s: float = -1.0
    is_pause_known: bool = False

    @property
    def last_sign_at(self) -> float:
        """When the rank was armed, or last showed progress since, as far as its clocks tell."""
        signs = (self.armed_at, self.heartbeat_at, self.outside_since, self.stepped_at)
        every = (*signs, self.closed_at, *self.sections.values())
        return max(at for at in every if at is not None)


class MainThreadMarks(Value):
    """Instants of a rank's last marks in a call of a function that is restarted in place.

    Attributes:
        automatic: Of the main thread; 0.0: none yet.
        manual: Of ``ping()``; 0.0: not called.
        thread: Of the watcher thread, which marks whenever it can have the interpreter.
        unlimited: The function has switched its timeouts off for a while.
        waits: The main thread waits for other ranks: it may be a victim.
    """

    automatic: float
    manual: float = 0.0
    thread: float = 0.0
    unlimited: bool = False
    waits: bool = False

    @property
    def last_progress(self) -> float:
        """An instant."""
        return min(self.automatic, self.manual or self.automatic)


class RunningClock(Value):
    """A clock that runs, and when it runs out.

    Attributes:
        clock: One of the kinds above.
        name: Of the section; ``None`` for other clocks.
        since: Instant at which the clock started.
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
