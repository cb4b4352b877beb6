"""Read a page: from words to what ``core.monitor.hang`` judges.

The rank may be in the middle of a store, may have died there, and may have scribbled over its own
memory. So nothing here raises for what a page holds: an instant that is no positive number is "not
running", limits that are incomplete or senseless leave the last complete ones in force.
Pure.
"""

from __future__ import annotations

from holdfast.core.monitor import hang
from holdfast.core.monitor.hang import Limits, Snapshot
from holdfast.wire import page

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FOREVER = float("inf")
_TRIES = 3
"""Limits change a few times in the life of a rank; who meets that thrice keeps the old ones."""


def _instant(word: float) -> float | None:
    return word if 0.0 < word < _FOREVER else None


def _limit(word: float) -> float | None:
    """Zero is a limit; infinity and "not a number" are none."""
    return word if 0.0 <= word < _FOREVER else None


def _whole(word: float, unknown: int = 0) -> int:
    return int(word) if -_FOREVER < word < _FOREVER else unknown


class PageView:
    """What one page shows.

    Args:
        words: Of the page, format ``d``.
        read_names: Reads the table of section names, in slot order.
    """

    __slots__ = ("_limits", "_names", "_read_names", "_version", "_words")

    def __init__(self, words: memoryview[float], read_names: Callable[[], Sequence[str]]) -> None:
        self._words = words
        self._read_names = read_names
        self._version = 0.0
        self._limits = Limits()
        self._names: Sequence[str] = ()

    @property
    def pid(self) -> int:
        """Of the rank, as it knows itself; 0 before it armed."""
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
    def dump_signal(self) -> int:
        """Signal that dumps the rank's stacks; 0: none, and none may be sent."""
        return _whole(self._words[page.DUMP_SIGNAL])

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
        iteration = words[page.ITERATION]
        return Snapshot(
            armed_at,
            _instant(words[page.HEARTBEAT_AT]),
            outside_since,
            self.open_sections(),
            warming_up=0.0 <= iteration < words[page.WARM_UNTIL],
            has_used_sections=words[page.USED_SECTIONS] == 1.0,
        )

    def open_sections(self) -> dict[str, float]:
        """Name to opening time; also of a rank that has left or died."""
        self.limits()
        words = self._words
        sections = {}
        for index, name in enumerate(self._names):
            opened_at = _instant(words[page.slot(index) + page.OPENED_AT])
            if opened_at is not None:
                sections[name] = opened_at
        return sections

    def limits(self) -> Limits:
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

    def _read_limits(self) -> tuple[Sequence[str], Limits]:
        words = self._words
        try:
            names = self._read_names()
        except (ValueError, OverflowError):
            names = ()
        learned: list[hang.ClockKey] = []
        if words[page.LEARNED_HEARTBEAT] == 1.0:
            learned += [(hang.INITIAL_HEARTBEAT, None), (hang.HEARTBEAT, None)]
        if words[page.LEARNED_OUTSIDE] == 1.0:
            learned.append((hang.OUTSIDE_SECTIONS, None))
        sections = {}
        for index, name in enumerate(names):
            slot = page.slot(index)
            sections[name] = _limit(words[slot + page.LIMIT])
            if words[slot + page.LEARNED] == 1.0:
                learned.append((hang.SECTION, name))
        return names, Limits(
            _limit(words[page.LIMIT_INITIAL]),
            _limit(words[page.LIMIT_HEARTBEAT]),
            _limit(words[page.LIMIT_OUTSIDE]),
            sections,
            frozenset(learned),
            section_ends_initial=words[page.SECTION_ENDS_INITIAL] == 1.0,
        )
