"""Decide which launcher leads next where a rendezvous backend holds a key with the leader's name.

Pure: reads no clock, touches no store. Times are seconds on the caller's monotonic clock.

Proof, votes and their order are those of :mod:`.succession`. Another rule takes the place of the
majority: a candidate leads when it has changed the key from a dead launcher's name to its own, by
`compare_set`, so that one launcher of two can lead, or any minority.

    BOUND to itself --ClaimKey--> KeyTaken: it leads
                         |
                         +------> KeyHeld: it follows the launcher that the key names

*When a candidate claims the key.* At once, if it has the votes that a majority would be, or if
every launcher of the last round has voted for it or is proved dead, and none knew of a stop. Else
`silence_s` after the last proof of a death: earlier than that no next cycle could begin, and a
candidate that knows more, or has more followers, is faster. After that each launcher claims it,
in turn or not, and so finds a leader that it did not meet as a candidate.

*Only a dead launcher loses the key.* The claim names those that are proved dead. If the key names
one that is not, that one leads, or is about to. If it was taken from another launcher than the
last round's leader, a cycle may have run of which this launcher knows nothing: the next one waits
until the ranks of that have ended.

A round is forgotten if it reached only launchers that the new leader does not meet before it leads;
but they bring the number of its cycle and its restarts when they come (``Offer``).

Invariants: R-1, and L-1 (see :mod:`.succession`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.base.pure.common_events import TimePassed
from holdfast.base.pure.deadlines import earliest
from holdfast.job.pure import membership as msg
from holdfast.job.pure.succession import Allegiance, Succession
from holdfast.job.pure.succession_messages import ClaimKey, Effect, Event, KeyHeld, KeyTaken


@dataclass
class SuccessionByKey(Succession):
    """One launcher's part in finding the next leader, which the key names."""

    _is_claiming: bool = field(default=False, init=False)
    """The answer is not there yet; nothing else is decided meanwhile."""
    _now: float = field(default=0.0, init=False)

    @property
    def can_move(self) -> bool:
        """See :attr:`.Succession.can_move`; a majority is not needed."""
        formed = self.round
        return formed is not None and not formed.is_last and bool(formed.successors)

    @property
    def can_move_by_silence(self) -> bool:
        """See :attr:`.Succession.can_move_by_silence`: the key names a leader that may live."""
        return False

    def next_deadline(self) -> float | None:
        """See :meth:`.Succession.next_deadline`."""
        return earliest(super().next_deadline(), self._claims_at())

    def handle(self, event: Event, now: float) -> list[Effect]:
        """See :meth:`.Succession.handle`."""
        self._now = now
        if isinstance(event, KeyTaken | KeyHeld):
            self._effects = []
            if self._is_claiming:
                self._is_claiming = False
                self._on_answer(event)
            return self._effects
        if isinstance(event, TimePassed) and now >= self._lost.died_until:
            resumes_at = self._search.resumes_at
            if resumes_at is not None and now >= resumes_at:
                self._vote_without_another_candidate()
            if self._claims_at() is not None:
                self._votes.keep()  # it claims the key, and gives no vote back
        return super().handle(event, now)

    def _binds_until(self, now: float) -> float | None:  # noqa: ARG002
        """Only proof gives a vote back: the key names no launcher that may live."""
        return None

    def quit(self) -> list[Effect]:
        """See :meth:`.Succession.quit`; if it gets the key, that is of a dead launcher soon."""
        self._is_claiming = False
        return super().quit()

    # ------------------------------------------------------------ the claim
    def _vote_without_another_candidate(self) -> None:
        """No successor could be reached: there may be a leader, as the key says; or this one is."""
        self._nominate_itself()
        self._take(self._offer(self._now), self._now)

    def _claims_at(self) -> float | None:
        is_bound_to_itself = self.allegiance is Allegiance.BOUND and self._is_candidate(self._own)
        is_waiting = is_bound_to_itself and not self._is_claiming
        return self._lost.died_until if is_waiting else None

    def _elect(self) -> None:
        claims_at, formed = self._claims_at(), self.round
        if claims_at is None or formed is None:
            return
        electorates, ended = self._following.electorates, self._lost.ended
        has_majority = electorates is not None and self._votes.elect(self.term, electorates)
        sure = self._following.is_sure and all(offer.is_sure for offer in self._votes)
        votes = {offer.node for offer in self._votes if offer.term == self.term}
        has_all = sure and formed.electorate <= {*map(msg.elector, votes | ended)}
        if has_majority or has_all or self._now >= claims_at:
            self._is_claiming = True
            self._votes.keep()
            self._effects.append(ClaimKey(self.term, tuple(sorted(ended))))

    def _on_answer(self, answer: KeyTaken | KeyHeld) -> None:
        formed, following = self.round, self._following
        assert formed is not None
        if isinstance(answer, KeyTaken):
            self.term = answer.term
            following.is_sure = following.is_sure and answer.before == formed.leader
            self._votes.replace(self._offer(self._now))
            self._lead(formed, following.electorates or [formed.electorate])
            return
        following.is_sure = False
        holder = answer.holder
        if holder.node in self._lost.ended:  # its death was proved meanwhile
            self._elect()
            return
        self._votes.drop(self._own)
        self._effects += self._votes.release_all(self.term + 1)
        self.allegiance, self._candidate = Allegiance.SEEKING, holder
        self._approach(holder)

    # ------------------------------------------------------------ while it waits for the answer
    def _take(self, offer: msg.Offer, now: float) -> None:
        super()._take(offer, now)
        if self._is_claiming:
            self._votes.keep()

    def _on_offer(self, offer: msg.Offer, now: float) -> None:
        formed = self.round
        if not self._is_claiming or formed is None or offer.last > formed.version:
            super()._on_offer(offer, now)
            return
        self._lost.note_ended(offer.ended, now)
        self._take(offer, now)
