"""The progress of a rank while no timeout of it runs, and how long it may take. Pure; seconds.

Its optimizer's steps are in its page, and the sections of a rank that opens some: a section that
is opened or closed is progress. Where all of these pause, the sequence numbers of its collectives
are asked for: a rank that evaluates makes no steps. How long its pauses may be is not known, so

    the limit    is ``FACTOR`` times the pause that nine of ten do not exceed, at least ``TWICE``
                 the longest one and the floor, at most the configured timeout between heartbeats
    when it is   all ranks of the job are looked at, and a stall is reported; ranks are ended only
    over         at proof (``evidence/pure/stall.py``). Another look follows when as much time has
                 passed again, or when the verdict says that it may tell more
    before that  with a tenth of the floor in the place of the floor: all ranks are looked at once
                 in each pause, for a line of the log

The default floor is the timeout of NCCL's own watchdog (10 minutes). A pause shorter than a
``FACTOR``-th of it decides nothing, so the page is read no more often. Learned limits hold for the
next cycles, too, but none from the first steps, which compile.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.page.pure.clocks import Snapshot

FACTOR = 10.0
TWICE = 2.0
WARM_UP = 20
"""Steps: the first ones compile, allocate and fill caches."""
WARM_UP_LOOKS = 3
"""Looks that have seen new collectives: as good, of a rank without steps."""
QUANTILE = 0.9
_KEPT = 64
_ASKED_S = 1.0
"""The rank's helper thread takes the interpreter's lock to answer: no more often than that."""


class StepProgress:
    """Of one rank at a time; the same object serves every rank and cycle of a monitor.

    Attributes:
        floor_s: The least limit.
        sign_at: The last instant at which progress is known; None: none is.
        longest_s: The longest pause that has ended; negative: there was none.
        next_look_at: When to look at the rank from outside, and to ask it; None: it is unknown.
        is_pause_known: The present pause has been noticed.
    """

    def __init__(self, floor_s: float) -> None:
        self.floor_s = floor_s
        self.every_s = floor_s / FACTOR
        self.longest_s = -1.0
        self._pauses: list[float] = []
        self._armed_at: float | None = None
        self._begin(None)

    def _begin(self, armed_at: float | None) -> None:
        self._armed_at = self.sign_at = armed_at
        self.next_look_at = None if armed_at is None else armed_at + self.every_s
        self._steps = 0.0
        self._total: int | None = None
        self._looks = 0
        self.is_pause_known = False
        self._not_before_s = 0.0
        self._asked_at = self._counted_at = float("-inf")

    @property
    def is_warm(self) -> bool:
        """The first steps are over."""
        return self._steps >= WARM_UP or self._looks >= WARM_UP_LOOKS

    def looked(self, shown: Snapshot) -> None:
        """Take in the page of such a rank."""
        if shown.armed_at != self._armed_at:
            self._begin(shown.armed_at)
        at, before = shown.last_sign_at, self.sign_at
        if self.is_warm and before is not None and at > before:
            # Between looks there may have been many.
            done = max(1.0, shown.steps - self._steps)
            longest_s = min(at - before, max(shown.longest_s, 0.0))
            self._paused(longest_s, min(longest_s, (at - before) / done))
        self._steps = shown.steps
        self._sign(at)

    def counted(self, total: int, now: float) -> None:
        """Take in how many collectives there were; negative: not known."""
        if total < 0:
            return
        before, self._total = self._total, total
        if before is None or total <= before or self.sign_at is None:
            self._counted_at = now
            return
        asked_at, self._counted_at = self._counted_at, now
        if self.is_warm:  # it has begun before the last answer, and ended before this one
            self._paused(now - self.sign_at, max(0.0, asked_at - self.sign_at))
        self._looks += 1
        self._sign(now)

    def _paused(self, longest_s: float, usual_s: float) -> None:
        self.longest_s = max(self.longest_s, longest_s)
        self._pauses = [*self._pauses[1 - _KEPT :], usual_s]

    def _sign(self, at: float) -> None:
        if self.sign_at is None or at > self.sign_at:
            self.is_pause_known, self._not_before_s = False, 0.0
            self.sign_at = at
            self.next_look_at = max(self.next_look_at or at, at + self.every_s)

    def limit_s(self, configured_s: float | None) -> float:
        """How long the present pause may become until all ranks are looked at.

        ``configured_s``: the timeout between heartbeats, the most; None: there is no most.
        """
        least_s = self.floor_s if self.is_pause_known else self.every_s
        return self._at_least(least_s, configured_s)

    def stall_s(self, configured_s: float | None) -> float:
        """How long the present pause may become until a stall is reported; for live views."""
        return self._at_least(self.floor_s, configured_s)

    def _at_least(self, least_s: float, configured_s: float | None) -> float:
        ordered = sorted(self._pauses)
        usual_s = ordered[min(len(ordered) - 1, int(QUANTILE * len(ordered)))] if ordered else 0.0
        limit_s = max(least_s, FACTOR * usual_s, TWICE * self.longest_s)
        limit_s = limit_s if configured_s is None else min(limit_s, configured_s)
        return max(limit_s, self._not_before_s)

    def pause_s(self, now: float) -> float:
        """Since the last sign of progress."""
        return 0.0 if self.sign_at is None else max(0.0, now - self.sign_at)

    @property
    def is_given_longer(self) -> bool:
        """A stall of this rank has ended nothing, and the rank has made no progress since."""
        return self._not_before_s > 0.0

    def judged(self, now: float, again_s: float, *, is_pause: bool) -> None:
        """All ranks have been looked at, and the rank goes on; the rest as in ``Verdict``."""
        pause_s = self.pause_s(now)
        if not is_pause:
            self._not_before_s = pause_s + (min(again_s, pause_s) if again_s else pause_s)
        self.is_pause_known = True

    def proved(self) -> None:
        """The job hangs after all: another look, for which the rank is ended, is due at once."""
        self._not_before_s = 0.0

    def is_look_due(self, now: float) -> bool:
        """Whether the rank is to be looked at now; True once for each time."""
        if self.next_look_at is None or now < self.next_look_at:
            return False
        self.next_look_at = now + self.every_s
        return True

    def is_question_due(self, now: float) -> bool:
        """Whether its collectives are to be asked for, too; True once for each time."""
        if now < self._asked_at + _ASKED_S:
            return False
        self._asked_at = now
        return True
