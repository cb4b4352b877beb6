"""When a launcher sends the leader a beat, and the news in it.

Pure. Times are seconds on the launcher's clock. A beat goes out where no other message did for
``beat_s``, and sooner as the answer to a beat of the leader: its lease counts those. In a large job
launchers answer one after the other, but at once where the leader has no lease: until then it can
give no time to one that has slept, and asks. Neither another message nor the leader's next beat,
which may come soon, puts an answer off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from holdfast.job.pure import membership as msg
from holdfast.job.pure.timing import Pace

ANSWERING_NODES = 64
"""Launchers of a larger job tell the leader with their next beat that they have a round."""


@dataclass
class Beats:
    """Of one launcher."""

    pace: Pace

    _due_at: float = field(default=0.0, init=False)
    """If nothing else is sent."""
    _answer_at: float = field(default=math.inf, init=False)
    """When the leader is answered; infinity: it has its answer."""
    _reported: int = field(default=-1, init=False)
    _received: tuple[int, ...] = field(default=(), init=False)
    """The version of the last round."""
    _echo: int = field(default=0, init=False)
    """Number of the leader's last beat."""
    _answers_after: float | None = field(default=None, init=False)
    """How long after a beat of the leader; None: before the first round."""

    @property
    def at(self) -> float:
        """When the next one is due."""
        return min(self._due_at, self._answer_at)

    def ask(self, now: float) -> None:
        """The leader may be awake again: the next one is due."""
        self._due_at = now

    def next(self, node: str, now: float) -> msg.Beat:
        """The one that is due; it is on its way."""
        self._answer_at = math.inf
        self.sent(now)
        return msg.Beat(node, self._reported, self._received, self._echo)

    def sent(self, now: float) -> None:
        """A message of this launcher is on its way."""
        self._due_at = now + self.pace.beat_s

    def reported(self, cycle: int) -> None:
        """A rank of this node has reported to its monitor."""
        self._reported = max(self._reported, cycle)

    def leader_changes(self) -> None:
        """The beats of the leader before do not count."""
        self._echo, self._answer_at = 0, math.inf

    def on_round(self, formed: msg.Round, node: str, now: float) -> None:
        """The leader learns that this launcher has it."""
        self._received = formed.version if formed.successors else ()
        self._answers_after = 0.0
        if len(formed.electorate) > ANSWERING_NODES:
            place = formed.place_of(node)
            share = place.group_rank / len(formed.places) if place is not None else 1.0
            self._answers_after = share * self.pace.beat_s / 2
        elif formed.successors:
            self._answer_at = now

    def on_leader_beat(self, beat: msg.LeaderBeat, now: float) -> None:
        """Answer it; at once, if the leader needs that for its lease."""
        self._echo = beat.number
        if self._answers_after is not None and beat.number:
            after = self._answers_after if beat.lease_s else 0.0
            self._answer_at = min(self._answer_at, now + after)
