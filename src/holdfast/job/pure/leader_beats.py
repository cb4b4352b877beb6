"""When a leader sends a beat, and the news in it.

Pure. Times are seconds on the leader's clock. A beat goes out every ``beat_s``, and at once where
launchers should know more: a round, that enough launchers have it, a longer lease, or why those
without a place wait. They learn that not of each change, and of none twice. The answers to beats
are the leader's lease (:mod:`.leader_lease`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.job.pure import membership as msg
from holdfast.job.pure.leader_lease import LeaderLease
from holdfast.job.pure.rounds import Rounds
from holdfast.job.pure.timing import NEWS_S, Pace


@dataclass
class News:
    """When launchers that wait learn why.

    Attributes:
        text: The last that was published; empty: nothing that still holds.
        number: Of that, counted from 1; the same if it is published once more.
        due_at: When the next will be; None: there is no news.
    """

    text: str = ""
    number: int = 0
    due_at: float | None = None
    _last: tuple[object, ...] = ()
    """Cycle and facts of the last one, also where it does not hold any more."""

    def forget(self) -> None:
        """No launcher waits for that any more."""
        self.text, self.due_at = "", None

    def are_due(self, news: tuple[object, ...] | None, cycle: int, now: float) -> bool:
        """Whether to publish this now, in a new ``text``. ``cycle``: the last that was formed."""
        if news is None or (self.text and (cycle, *news) == self._last):
            self.due_at = None
        elif self.due_at is None:
            self.due_at = now + NEWS_S
        elif now >= self.due_at:
            self.due_at = None
            self.number += (cycle, *news) != self._last
            self._last = cycle, *news
            return True
        return False


@dataclass
class LeaderBeats:
    """Of one leader, in one term.

    Attributes:
        at: When the next one is due.
    """

    pace: Pace
    term: int
    lease: LeaderLease
    rounds: Rounds

    at: float = field(default=0.0, init=False)
    news: News = field(default_factory=News, init=False)
    _reported: int = field(default=-1, init=False)

    def ask(self, now: float) -> None:
        """Launchers should know soon: the next one is due."""
        self.at = now

    def reported(self, cycle: int) -> None:
        """A rank has reported to its monitor in this cycle."""
        self._reported = max(self._reported, cycle)

    def next(self, now: float) -> msg.LeaderBeat:
        """The one that is due; it is on its way."""
        self.at = now + self.pace.beat_s
        return msg.LeaderBeat(
            self.news.text,
            self.term,
            self._reported,
            self.news.number,
            self.rounds.settled,
            self.lease.beat(now),
            self.lease.left_s(now),
            now,
        )
