"""The leaders that were lost, and until when ranks of theirs may be alive.

Pure. Times are seconds on the launcher's clock. Launchers from which no word came may have ranks,
for as long as they need to find that their leader is silent (``fence_s``, and the time of a kill).
So the next cycle begins ``silence_s`` after the last proof of a death that any voter has; without
proof, ``takeover_s`` after the last beat of the leader that any voter has received. If every node
of the last cycle has said that its ranks are gone, it begins at once (:mod:`.takeover`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.job.pure.timing import Pace


@dataclass
class LostLeaders:
    """As one launcher knows them, and the launchers that vote for it.

    Attributes:
        ended: Launchers that have died, as their kernels say.
        died_until: No ranks of leaders that have died are alive after that.
        text: How the last one was lost, for people.
    """

    pace: Pace

    ended: set[str] = field(default_factory=set, init=False)
    died_until: float = field(default=0.0, init=False)
    text: str = field(default="", init=False)
    _silent_until: float = field(default=0.0, init=False)
    """The same of leaders that were silent, which this launcher and its voters have followed."""

    def died(self, leader: str, now: float) -> None:
        """There is proof; the leader has led others until now."""
        self.ended.add(leader)
        self.may_have_died(now)

    def may_have_died(self, now: float) -> None:
        """Some leader that this launcher did not know has led others, at the latest until now."""
        self.died_until = max(self.died_until, now + self.pace.silence_s)

    def was_silent(self, ranks_until: float) -> None:
        """No proof: this launcher, or one that votes for it, has lost it."""
        self._silent_until = max(self._silent_until, ranks_until)

    def note_ended(self, nodes: Iterable[str], now: float) -> None:
        """Each may have led others until now: their ranks end no later than if it had died now."""
        if not self.ended.issuperset(nodes):
            self.ended.update(nodes)
            self.died_until = now + self.pace.silence_s

    @property
    def ranks_until(self) -> float:
        """No ranks of any of them are alive after that."""
        return max(self.died_until, self._silent_until)

    @property
    def leases_until(self) -> float:
        """None of them has a lease after that; the dead have none."""
        return self._silent_until - self.pace.step_down_s

    def silent_ranks_s(self, now: float) -> float:
        """For how long ranks of the silent ones may be alive: voters say this of theirs."""
        return max(0.0, self._silent_until - now)
