"""Decide which launcher is asked next by one that has no leader.

Pure. Times are seconds on the launcher's clock. In this order:

- a launcher that knows more, or leads, as another one has said: *ahead*;
- itself, if it may lead, and has a vote of another one that was not in vain yet;
- the leader before, out of turn, when a candidate has had its votes in vain: it may lead the
  others, or need votes to lead again;
- the successors, one in each term (:mod:`.turns`);
- the leader before, after the successors, or alone where there are none;
- none for ``beat_s``, and all again.

Neither the leader before nor a successor is asked while it has voted for this launcher, and waits.

A host that is off answers nothing, and each attempt takes a fifth of ``silence_s``. So a launcher
that was not reached is left alone for a while, the longer the more of them there are, as long as
others are reached: else two groups, neither of which is enough, try those that are off in turn, and
are seldom there for each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from holdfast.base.pure.value import Value
from holdfast.job.pure import turns
from holdfast.job.pure.following import Following
from holdfast.job.pure.lost_leaders import LostLeaders
from holdfast.job.pure.membership import Join, Successor, elector
from holdfast.job.pure.timing import Pace

_TRIED_SHARE = 1 / 3
"""Of its time a launcher tries others that it did not reach, at most."""


class Turn(Value):
    """The launcher that is asked next, in a later term than ``after``; None: there is a pause."""

    candidate: Successor | None
    after: int


@dataclass
class LeaderSearch:
    """Of one launcher, since it lost its leader.

    Attributes:
        ahead: A launcher that has a later round than this one, or leads: the next to be asked.
        known: A launcher that has proved that it leads.
        resumes_at: When the pause is over; None: there is none.
    """

    pace: Pace
    following: Following
    lost: LostLeaders

    ahead: Successor | None = field(default=None, init=False)
    known: Successor | None = field(default=None, init=False)
    resumes_at: float | None = field(default=None, init=False)
    _tried: int = field(default=0, init=False)
    """Successors, since the last pause."""
    _has_tried_leader: bool = field(default=False, init=False)
    _was_in_vain: bool = field(default=False, init=False)
    """A candidate has had votes, and too few: the leader before may have the others."""
    _has_reached: bool = field(default=False, init=False)
    """A launcher, since the last pause."""
    _asked_at: float = field(default=0.0, init=False)
    """When the last one was asked."""
    _left_until: dict[str, float] = field(default_factory=dict, init=False)
    """Of those that were not reached: they are left alone until then."""

    def begin(self) -> None:
        """The leader is lost."""
        self._tried, self._has_tried_leader, self._was_in_vain = 0, False, False
        self._has_reached = False
        self._left_until.clear()
        self.known = None

    def end(self, leads_at: Successor) -> None:
        """This launcher leads."""
        self.resumes_at = None
        if self.ahead is not None and turns.is_one(self.ahead.node, leads_at.node):
            self.ahead = None  # the first to be asked when it is lost, else

    # ------------------------------------------------------------ events
    def found_later_round(self, join: Join) -> None:
        """If it can lead it gets the next vote; the last round here may not name it."""
        desc = join.desc
        if desc.serves and not desc.is_witness:
            self.ahead = Successor(join.node, desc.addr, desc.serves)

    def found(self, known: Successor) -> None:
        """A launcher has proved that it leads."""
        self.ahead = self.known = known

    def was_in_vain(self, candidate: Successor | None) -> None:
        """That one had votes for some time, and did not lead."""
        if candidate is not None and self.following.leads_at is not None:
            self._was_in_vain = not self._was_leader(candidate.node)

    def not_reached(self, node: str, now: float) -> None:
        """It has no vote of this launcher; if that took long, its host may be off."""
        attempt_s = self.pace.silence_s / 5
        if now - self._asked_at >= attempt_s / 2:
            n_left = len({*self._left_until, node})
            self._left_until[node] = now + n_left * attempt_s / _TRIED_SHARE

    def reached(self, node: str) -> None:
        """Its host is not off."""
        self._has_reached = True
        self._left_until.pop(node, None)

    def _is_left(self, node: str, now: float) -> bool:
        return now < self._left_until.get(node, now)

    # ------------------------------------------------------------ the next one
    def take_next(
        self, own: Join, term: int, now: float, voters: Collection[str], *, leads_them: bool
    ) -> Turn:
        """The launcher that is asked now.

        Args:
            own: Of this launcher.
            term: The last in which it has voted.
            now: The time.
            voters: Launchers that have voted for it, and so have no vote for others.
            leads_them: There are some, and it has not had all of them in vain.
        """
        formed, ended = self.following.round, self.lost.ended
        assert formed is not None
        self.resumes_at, self._asked_at = None, now
        ahead, self.ahead = self.ahead, None
        if ahead is not None and ahead.node not in ended:
            return Turn(ahead, turns.after_out_of_turn(formed, term))
        if leads_them and turns.may_lead(formed, own.node):
            return Turn(Successor(own.node, own.desc.addr, own.desc.serves), term)
        former = self._former(own)
        was_in_vain, self._was_in_vain = self._was_in_vain, False
        if former is not None:
            waits_for_it = elector(former.node) in voters
            former = None if waits_for_it or self._is_left(former.node, now) else former
        if was_in_vain and former is not None and not self._was_leader(own.node):
            return Turn(former, turns.after_out_of_turn(formed, term))
        while self._tried < len(formed.successors):
            self._tried += 1
            candidate = turns.successor_in(formed, term + 1)
            is_in_vain = candidate.node in ended or elector(candidate.node) in voters
            if not is_in_vain and not self._is_left(candidate.node, now):
                return Turn(candidate, term)
            term += 1
        if former is not None:
            self._has_tried_leader = True
            return Turn(former, term)
        if not self._has_reached:
            self._left_until.clear()
        self._tried, self._has_tried_leader, self._has_reached = 0, False, False
        self.resumes_at = now + self.pace.beat_s
        return Turn(None, term)

    def others(self, voters: Iterable[str]) -> Iterator[Successor]:
        """Launchers that gave this one no vote, and to which those come that look for a leader.

        The leader before may have led others meanwhile. A successor of the last round may lead, or
        be the one that others vote for in their turns, and never come to ask here.
        """
        formed, before = self.following.round, self.following.leads_at
        assert formed is not None
        known = {*map(elector, voters)}
        for one in (before, formed.leads_at, *formed.successors):
            if one is None or not one.port or one.node in self.lost.ended:
                continue
            if elector(one.node) not in known:
                known.add(elector(one.node))
                yield one

    def _former(self, own: Join) -> Successor | None:
        """It may lead the others, and be there again; or this one has led, and knows most."""
        former = self.following.leads_at
        if former is None or not former.port or self._has_tried_leader:
            return None
        if self._was_leader(own.node):
            return former if own.desc.serves > 0 else None
        return None if former.node in self.lost.ended else former

    def _was_leader(self, node: str) -> bool:
        leads_at = self.following.leads_at
        return leads_at is not None and turns.is_one(node, leads_at.node)
