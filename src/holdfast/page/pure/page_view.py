"""Read a page: from words to the records that ``watch.pure.hang`` judges.

The rank may be in the middle of a store, may have died there, and may have scribbled over its own
memory. So no content of a page raises: an instant that is no positive number is "not running",
limits that are incomplete or senseless leave the last complete ones in force.
Pure.
"""

from __future__ import annotations

from holdfast.base.pure.codec import Instant
from holdfast.base.pure.value import Value
from holdfast.page.pure import page
from holdfast.page.pure.clocks import Learned, MainThreadMarks, Snapshot, Timeouts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FOREVER = float("inf")
_TRIES = 3
"""Limits change a few times per rank; a reader that meets that thrice keeps the old ones."""


def _instant(word: float) -> float | None:
    return word if 0.0 < word < _FOREVER else None


def _limit(word: float) -> float | None:
    """Zero is a limit; infinity and "not a number" are none."""
    return word if 0.0 <= word < _FOREVER else None


def _whole(word: float, unknown: int = 0) -> int:
    return int(word) if -_FOREVER < word < _FOREVER else unknown


class ClosedSection(Value):
    """The occurrences of a section that have ended: how many, seconds, and two instants.

    ``first_at``: when the first was opened. ``closed_at``: when the last was closed.
    """

    AS_LIST = True

    times: int
    total_s: float
    longest_s: float
    first_at: Instant
    closed_at: Instant


class RankProgress(Value):
    """Progress of a rank, from its page; event files keep it (docs/run-folder.md).

    Attributes:
        rank: Global.
        longest_gap_s: Between two heartbeats.
        open: Sections, and since when.
        sections: Those that have ended at least once.
        steps: Of its optimizer, where it reports nothing else; None: it does.
    """

    rank: int
    open: dict[str, Instant]
    sections: dict[str, ClosedSection]
    heartbeat_at: Instant | None = None
    first_heartbeat_at: Instant | None = None
    left_at: Instant | None = None
    outside_since: Instant | None = None
    longest_gap_s: float | None = None
    iteration: int | None = None
    steps: int | None = None


class PageView:
    """Reads one page; ``read_names``: reads the table of section names, in slot order."""

    __slots__ = ("_limits", "_names", "_read_names", "_version", "_words")

    def __init__(self, words: memoryview[float], read_names: Callable[[], Sequence[str]]) -> None:
        self._words = words
        self._read_names = read_names
        self._version = 0.0
        self._limits = Timeouts()
        self._names: Sequence[str] = ()

    @property
    def pid(self) -> int:
        """As the rank knows itself; 0 before it armed."""
        return _whole(self._words[page.PID])

    @property
    def start_ticks(self) -> int:
        """Of the rank."""
        return _whole(self._words[page.START_TICKS])

    @property
    def global_rank(self) -> int:
        """Of the rank."""
        return _whole(self._words[page.GLOBAL_RANK])

    @property
    def is_by_steps(self) -> bool:
        """The steps of its optimizer are all that the rank reports."""
        return self._words[page.STEPS] > 0.0

    @property
    def steps(self) -> int:
        """Optimizer steps so far, of a rank that reports nothing else; 0: it does, or made none."""
        return max(0, _whole(self._words[page.STEPS]))

    @property
    def dump_signal(self) -> int:
        """Signal that dumps the rank's stacks; 0: none, and none may be sent."""
        return _whole(self._words[page.DUMP_SIGNAL])

    @property
    def armed_at(self) -> float | None:
        """When the rank asked to be watched; None: it has not, or has left."""
        return _instant(self._words[page.ARMED_AT])

    @property
    def iteration(self) -> int | None:
        """Training iteration, where the rank reports it."""
        iteration = _whole(self._words[page.ITERATION], -1)
        return None if iteration < 0 else iteration

    def snapshot(self) -> Snapshot | None:
        """The clocks; ``None`` while the rank is not armed, and has not left."""
        words = self._words
        armed_at = _instant(words[page.ARMED_AT])
        if armed_at is None:
            left_at = _instant(words[page.LEFT_AT])
            return None if left_at is None else Snapshot(left_at, left_at=left_at)
        # Before the sections: a rank that closes one stamps this first, then clears the slot.
        outside_since = _instant(words[page.OUTSIDE_SINCE])
        iteration, beat_at = words[page.ITERATION], _instant(words[page.HEARTBEAT_AT])
        shown = Snapshot(
            armed_at,
            beat_at,
            outside_since,
            self.open_sections(),
            warming_up=0.0 <= iteration < words[page.WARM_UNTIL],
            has_used_sections=words[page.USED_SECTIONS] == 1.0,
        )
        if self.is_by_steps:
            steps, gap_s = words[page.STEPS], words[page.LONGEST_GAP]
            return shown.but(heartbeat_at=None, steps=steps, stepped_at=beat_at, longest_s=gap_s)
        if not words[page.STEPS_BESIDE] > 0.0:
            return shown
        return shown.but(
            steps=words[page.STEPS_BESIDE],
            stepped_at=_instant(words[page.STEPPED_AT]),
            closed_at=self._closed_at(),
            longest_s=self._longest_pause_s(shown),
        )

    def _closed_at(self) -> float | None:
        """When a section was closed last, also inside another one."""
        words = self._words
        closed = (_instant(words[slot + page.CLOSED_AT]) for slot in self._slots().values())
        return max((at for at in closed if at is not None), default=None)

    def _longest_pause_s(self, shown: Snapshot) -> float:
        """No pause that has ended was longer, of a rank that reports by itself.

        A pause is one between two steps, and, but for sections without a timeout, outside sections.
        """
        words, limits = self._words, self._limits.sections
        longest_s, outside_s = words[page.LONGEST_STEP], words[page.LONGEST_OUTSIDE]
        if any(limits.get(name) is None for name in shown.sections):
            return longest_s
        if shown.outside_since is not None:
            signs_at = max(words[page.STEPPED_AT], words[page.HEARTBEAT_AT])
            outside_s = max(outside_s, signs_at - shown.outside_since)
        return min(longest_s, outside_s)

    def _slots(self) -> dict[str, int]:
        """First word of each section, by its name."""
        self.limits()
        return {name: page.slot(index) for index, name in enumerate(self._names)}

    def open_sections(self) -> dict[str, float]:
        """Name to opening time; also of a rank that has left or died."""
        words, slots = self._words, self._slots()
        opened = {name: _instant(words[slot + page.OPENED_AT]) for name, slot in slots.items()}
        return {name: at for name, at in opened.items() if at is not None}

    def ended_sections(self) -> dict[str, ClosedSection]:
        """Sections that have ended at least once; see ``page/pure/page.py``."""
        words = self._words
        sections = {}
        for name, slot in self._slots().items():
            times, total_s = _whole(words[slot + page.TIMES]), words[slot + page.TOTAL_S]
            first_at = _instant(words[slot + page.FIRST_AT])
            closed_at = _instant(words[slot + page.CLOSED_AT])
            if times > 0 and first_at and closed_at and 0.0 <= total_s < _FOREVER:
                longest_s = _limit(words[slot + page.LONGEST]) or 0.0
                sections[name] = ClosedSection(times, total_s, longest_s, first_at, closed_at)
        return sections

    def section_names(self) -> list[str]:
        """All that have a slot."""
        return list(self._slots())

    def progress(self, rank: int, armed_at: float | None) -> RankProgress:
        """Progress of a rank (global number) for the event files; also of one that is gone.

        ``armed_at``: when it was armed, which a page says only until the rank leaves.
        """
        words = self._words
        initial_s = _limit(words[page.LONGEST_INITIAL])
        first = None if armed_at is None or initial_s is None else armed_at + initial_s
        return RankProgress(
            rank,
            self.open_sections(),
            self.ended_sections(),
            heartbeat_at=_instant(words[page.HEARTBEAT_AT]),
            first_heartbeat_at=first,
            left_at=_instant(words[page.LEFT_AT]),
            outside_since=_instant(words[page.OUTSIDE_SINCE]),
            longest_gap_s=_instant(words[page.LONGEST_GAP]),
            iteration=self.iteration,
            steps=self.steps or None,
        )

    # ------------------------------------------------------------ restart in place

    def marks(self) -> MainThreadMarks:
        """Progress of the main thread."""
        words = self._words
        return MainThreadMarks(
            words[page.AUTOMATIC],
            words[page.MANUAL],
            words[page.THREAD],
            unlimited=words[page.UNLIMITED] != 0.0,
            waits=words[page.WAITS] != 0.0,
        )

    @property
    def torch_rank(self) -> int | None:
        """Torch's number of the process in its present call; None: not known."""
        number = _whole(self._words[page.NUMBER])
        return number - 1 if number > 0 else None

    # ------------------------------------------------------------ limits

    def limits(self) -> Timeouts:
        """The newest complete limits."""
        for _ in range(_TRIES):
            version = self._words[page.LIMITS_VERSION]
            if version == self._version or version % 2 != 0 or not version > 0:
                break
            names, limits = self._read_limits()
            if self._words[page.LIMITS_VERSION] == version:
                self._version, self._names, self._limits = version, names, limits
                break
        return self._limits

    def _read_limits(self) -> tuple[Sequence[str], Timeouts]:
        words = self._words
        try:
            names = self._read_names()
        except (ValueError, OverflowError):
            names = ()
        slots = {name: page.slot(index) for index, name in enumerate(names)}
        learned = Learned(
            words[page.LEARNED_HEARTBEAT] == 1.0,
            words[page.LEARNED_OUTSIDE] == 1.0,
            tuple(name for name, slot in slots.items() if words[slot + page.LEARNED] == 1.0),
        )
        return names, Timeouts(
            _limit(words[page.LIMIT_INITIAL]),
            _limit(words[page.LIMIT_HEARTBEAT]),
            _limit(words[page.LIMIT_OUTSIDE]),
            {name: _limit(words[slot + page.LIMIT]) for name, slot in slots.items()},
            learned,
            section_ends_initial=words[page.SECTION_ENDS_INITIAL] == 1.0,
        )
