"""Decide which launcher leads a job when the launcher that led it has died, or is silent.

Pure: reads no clock, touches no connection. Times are seconds on the caller's monotonic clock.

                  the leader has died, or is silent, and own ranks are gone
    FOLLOWING ------------------------------------------------------> SEEKING the next of the
        ^                                                              |   ^  successors, term + 1
        | it leads: its first decision                  it answers     |   |
        |                                                              v   | it has died, is silent,
        +----------------------------------------------------------- BOUND   gives the vote back
        |
        +-- LEADING: a majority of the launchers of the last round is bound to this one

*Proof* is the word of a leader that goes, or a kernel that refuses where its launcher has accepted
before: such a leader has no ranks any more. A leader that is *silent* may have some, and the next
one waits until its lease has kept it from that (:mod:`.leader_lease`): each vote says for how long
ranks of the leaders that the voter followed may be alive.

A vote binds until the launcher that has it gives it back, having promised not to lead with it, is
proved dead, or has said nothing for ``fence_s``. It elects at most one launcher in each term; two
that were elected in different terms are kept apart by their leases, and by a launcher's never
returning to a leader of a lower term than one it has answered. A vote is refused by a candidate
that knows less than the voter.

A launcher that looks for a leader is sent on to the one that leads, if that has sent something
lately, or to the one that others are bound to.

Here a launcher gives its one vote, to another one or to itself, and counts those that it has. The
facts and rules of that have modules: the last round and the leader (:mod:`.following`); the
launcher that is asked next (:mod:`.leader_search`), and the turns of the successors
(:mod:`.turns`); votes for this launcher (:mod:`.votes`); and until when ranks of the leaders before
may be alive (:mod:`.lost_leaders`).

Invariants: R-1 (see :mod:`.leader`), and L-1: at most one launcher leads in a term.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.base.pure.common_events import TimePassed
from holdfast.base.pure.deadlines import earliest
from holdfast.job.pure import membership as msg
from holdfast.job.pure import turns
from holdfast.job.pure.following import Following
from holdfast.job.pure.leader_search import LeaderSearch
from holdfast.job.pure.lost_leaders import LostLeaders
from holdfast.job.pure.member_messages import LeaderFound
from holdfast.job.pure.succession_messages import (
    Approach,
    Effect,
    Event,
    Follows,
    Give,
    KeyHeld,
    KeyTaken,
    LeaderDied,
    LeaderKnown,
    LeaderSilent,
    Leads,
    LeaveLeader,
    NotReached,
    PeerDied,
    Reached,
    Ready,
    Released,
)
from holdfast.job.pure.timing import Pace
from holdfast.job.pure.votes import Votes


class Allegiance(enum.Enum):
    """Of a launcher without a leader; see the picture in the module's docstring."""

    FOLLOWING = "following"
    SEEKING = "seeking"
    BOUND = "bound"
    LEADING = "leading"
    LEAVING = "leaving"


@dataclass
class Succession:
    """One launcher's part in finding the next leader.

    Attributes:
        allegiance: See the module's docstring.
        term: The last in which this launcher has voted, or followed a leader.
    """

    pace: Pace

    allegiance: Allegiance = field(default=Allegiance.FOLLOWING, init=False)
    term: int = field(default=0, init=False)
    _ready: Ready | None = field(default=None, init=False)
    _candidate: msg.Successor | None = field(default=None, init=False)
    """The launcher that gets the vote of this one, or has it; it may be this one."""
    _voted_for: msg.Successor | None = field(default=None, init=False)
    """The launcher that has this one's vote, on the connection that is open."""
    _given_at: float = field(default=0.0, init=False)
    """When the candidate got the vote."""
    _bound_until: float | None = field(default=None, init=False)
    """When a candidate of which nothing came has it for nothing."""
    _effects: list[Effect] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._following = Following(self.pace)
        self._lost = LostLeaders(self.pace)
        self._search = LeaderSearch(self.pace, self._following, self._lost)
        self._votes = Votes(self.pace)

    @property
    def round(self) -> msg.Round | None:
        """The last one that this launcher has received."""
        return self._following.round

    @property
    def can_move(self) -> bool:
        """Whether another launcher may lead, if the leader dies now."""
        return self._following.can_move

    def can_move_after(self, event: LeaderDied | msg.Resigned) -> bool:
        """The same, when this is known of the leader.

        One that stays may lead again itself, with its own vote: no other that can is needed.
        """
        stays = isinstance(event, msg.Resigned) and event.stays
        return self._following.can_move_if_it_stays if stays else self.can_move

    @property
    def can_move_by_silence(self) -> bool:
        """The same, if the leader cannot be reached."""
        return self.can_move

    @property
    def leader(self) -> str:
        """The node that leads, or led."""
        return self._following.leader

    @property
    def is_leaderless(self) -> bool:
        """The leader has died, and no other is known."""
        return self.allegiance in (Allegiance.SEEKING, Allegiance.BOUND)

    def is_superseded(self, decision: msg.Decision) -> bool:
        """Whether it is of a leader that another one has followed, which this launcher knows."""
        return self._following.is_superseded(decision)

    def shows_death(self, offer: msg.Offer) -> bool:
        """Whether another launcher has the proof that the leader of this one has died."""
        return self.allegiance is Allegiance.FOLLOWING and self.leader in offer.ended

    def quit(self) -> list[Effect]:
        """This launcher leaves the job: it does not lead any more."""
        self._effects = []
        self.allegiance, self._candidate, self._ready = Allegiance.LEAVING, None, None
        self._search.resumes_at = self._bound_until = None
        self._votes.keep()
        self._effects += self._votes.release_all(self.term + 1)
        return self._effects

    def next_deadline(self) -> float | None:
        """Earliest time at which :class:`TimePassed` would do something; None: never."""
        return earliest(self._search.resumes_at, self._bound_until, self._votes.next_deadline())

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Effects of ``event``, in order."""
        self._effects = []
        match event:
            case LeaderDied(text):
                self._on_death(text, now)
            case LeaderSilent(text, ranks_s):
                self._on_silence(text, now + ranks_s)
            case msg.Resigned(why, stays=True, ranks_s=ranks_s):
                self._on_silence(why, now + ranks_s)
            case msg.Resigned(why):
                self._on_death(why, now)
                self._following.is_sure = True  # it has formed no later round, and will not
            case Ready():
                self._on_ready(event, now)
            case Reached(node):
                self._on_reached(node, now)
            case NotReached(node):
                if self.allegiance is Allegiance.SEEKING and self._is_candidate(node):
                    self._search.not_reached(node, now)
                    self._seek(now)
            case PeerDied(node):
                self._on_peer_died(node, now)
            case Follows():
                self._on_follows(now)
            case Released():
                self._on_released(event, now)
            case msg.Offer():
                self._on_offer(event, now)
            case LeaderKnown():
                self._on_known(event, now)
            case KeyTaken() | KeyHeld():
                pass  # there is no key
            case TimePassed():
                self._on_time_passed(now)
            case _:
                self._following.receive(event, now)
                self.term = max(self.term, self._following.round_term)
        self._elect()
        return self._effects

    # ------------------------------------------------------------ the leader is lost, or found
    def _on_death(self, text: str, now: float) -> None:
        if self.allegiance is Allegiance.FOLLOWING:
            self._lose_leader(text)
            self._lost.died(self.leader, now)

    def _on_silence(self, text: str, ranks_until: float) -> None:
        """No proof: the leader may come back."""
        if self.allegiance in (Allegiance.FOLLOWING, Allegiance.LEADING):
            self._lose_leader(text)
            self._leave()
            self._lost.was_silent(ranks_until)
            self._following.is_sure = False

    def _lose_leader(self, text: str) -> None:
        self.allegiance, self._lost.text = Allegiance.SEEKING, text
        self._ready, self._candidate, self._bound_until = None, None, None
        self._search.begin()

    def _on_follows(self, now: float) -> None:
        """Votes for this launcher are for nothing: the one that it is bound to leads."""
        leads_at, self._voted_for = self._voted_for, None
        if leads_at is None or not self.is_leaderless:
            return  # it leads, and was only approached: it knows nothing of this launcher
        self._following.find(leads_at, now)
        self.allegiance, self._candidate, self._ready = Allegiance.FOLLOWING, None, None
        self._search.end(leads_at)
        self._bound_until = None
        self._effects += self._votes.release_all(self.term + 1)
        self._votes.keep()
        self._effects.append(LeaderFound(now - self._given_at))

    # ------------------------------------------------------------ as a voter
    def _on_ready(self, ready: Ready, now: float) -> None:
        """The ranks are gone; or the node holds more snapshots than it did then."""
        is_again = self._own == ready.join.node
        self._ready = ready
        if is_again and (own := self._votes.of(self._own)) is not None:
            self._votes.replace(own.but(join=ready.join))
        if not is_again and self.allegiance is Allegiance.SEEKING and self._candidate is None:
            self._seek(now)

    def _seek(self, now: float) -> None:
        """Vote in the next term that has a candidate."""
        if self.round is None or self._ready is None or not self.is_leaderless:
            return
        self.allegiance, self._candidate, self._bound_until = Allegiance.SEEKING, None, None
        voters, leads_them = {msg.elector(it.node) for it in self._votes}, not self._votes.are_held
        own = self._ready.join
        turn = self._search.take_next(own, self.term, now, voters, leads_them=leads_them)
        self.term = turn.after
        if turn.candidate is not None:
            self._try(self.round, turn.candidate, now)

    def _seek_after_vote(self, now: float) -> None:
        """The candidate had it for some time, and did not lead."""
        self._search.was_in_vain(self._candidate)
        self._seek(now)

    def _try(self, formed: msg.Round, candidate: msg.Successor, now: float) -> None:
        own, term = self._own, self.term + 1
        if not turns.is_one(candidate.node, own):
            self.term, self._candidate = term, candidate
            self._approach(candidate)
            return
        if turns.may_lead(formed, own):
            term = self._own_term_for_all(formed)
        self._vote_for_itself(term, now)

    def _approach(self, candidate: msg.Successor) -> None:
        self._voted_for = None  # the connection to that one is closed
        self._effects.append(Approach(candidate))

    def _leave(self) -> None:
        self._voted_for = None  # what that one has sent is for nothing
        self._effects.append(LeaveLeader())

    def _is_candidate(self, node: str) -> bool:
        return self._candidate is not None and turns.is_one(self._candidate.node, node)

    def _on_reached(self, node: str, now: float) -> None:
        if self.allegiance is Allegiance.SEEKING and self._is_candidate(node):
            self._search.reached(node)
            self.allegiance, self._given_at = Allegiance.BOUND, now
            self._bound_until, self._voted_for = self._binds_until(now), self._candidate
            self._effects.append(Give(node, self._offer(now)))
            self._send_votes_on()

    def _send_votes_on(self) -> None:
        """Votes that came while this launcher looked for a leader: the one that it found has them.

        Otherwise these launchers wait for this one, which does not lead, and are missing there.
        """
        own = self._own
        for offer in self._votes:
            if offer.node != own and not self._precedes(offer.node):
                self._effects += self._votes.release([offer.node], offer.term + 1, self._candidate)

    def _binds_until(self, now: float) -> float | None:
        """A candidate that is silent for so long may have died, as a leader may."""
        return now + self.pace.fence_s

    def _on_peer_died(self, node: str, now: float) -> None:
        self._lost.note_ended((node,), now)
        if self.is_leaderless and self._is_candidate(node):
            # It may have led already.
            following = self._following
            following.is_sure = following.is_sure and self.allegiance is Allegiance.SEEKING
            self._seek(now)

    def _on_released(self, released: Released, now: float) -> None:
        term, candidate = released.term, self._candidate
        if self.allegiance is not Allegiance.BOUND or candidate is None:
            return
        if not self._is_candidate(released.node):
            return
        if released.asks and term > self.term:
            self.term, self.allegiance, self._bound_until = term, Allegiance.SEEKING, None
            self._approach(candidate)
            return
        self.term = max(self.term, term - 1)
        self._search.ahead = released.ahead or self._search.ahead
        if now - self._given_at < self.pace.beat_s:
            self._seek(now)  # it was refused
        else:
            self._seek_after_vote(now)

    def _on_known(self, known: LeaderKnown, now: float) -> None:
        """The next to be tried: also by one that has led until now, and names no successor.

        A launcher of an earlier run of this job has no vote, and counts terms of its own.
        """
        following, leads_at = self._following, known.leads_at
        if known.term > following.followed and following.has_vote(leads_at.node):
            self._search.found(leads_at)
            if self._search.resumes_at is not None:
                self._seek(now)

    def _on_time_passed(self, now: float) -> None:
        self._give_back(now)
        if self._bound_until is not None and now >= self._bound_until:
            self._following.is_sure = False  # it may lead
            self._seek_after_vote(now)
        resumes_at = self._search.resumes_at
        if resumes_at is not None and now >= resumes_at:
            self._seek(now)

    # ------------------------------------------------------------ as a candidate
    @property
    def _own(self) -> str:
        """This node, once its ranks are gone; empty: they are not."""
        return self._ready.join.node if self._ready is not None else ""

    @property
    def _bound_to(self) -> msg.Successor | None:
        """Another launcher, which has the vote of this one."""
        is_bound = self.allegiance is Allegiance.BOUND and not self._is_candidate(self._own)
        return self._candidate if is_bound else None

    def _nominate_itself(self) -> None:
        assert self._ready is not None
        desc = self._ready.join.desc
        self.allegiance, self._search.resumes_at = Allegiance.BOUND, None
        self._candidate = msg.Successor(self._own, desc.addr, desc.serves)

    @property
    def _goes_to_leader(self) -> bool:
        """It gives its vote to a launcher that has proved that it leads."""
        known = self._search.known
        is_seeking = self.allegiance is Allegiance.SEEKING
        return is_seeking and known is not None and self._is_candidate(known.node)

    def _own_term_for_all(self, formed: msg.Round) -> int:
        """The first in which this launcher leads, and all votes that are here can be for it."""
        term = max([self.term + 1, *(offer.term for offer in self._votes)])
        return turns.next_own_term(formed, term, self._own)

    def _gather(self, now: float) -> bool:
        """If it is free to, vote for itself in one term with all that have voted for it."""
        own, formed, is_seeking = self._own, self.round, self.allegiance is Allegiance.SEEKING
        if not own or formed is None or not is_seeking or self._goes_to_leader:
            return False
        if turns.may_lead(formed, own):
            self._leave()
            self._vote_for_itself(self._own_term_for_all(formed), now)
            return True
        return False

    def _vote_for_itself(self, term: int, now: float) -> None:
        """Launchers whose votes came for earlier terms are asked for them again.

        Otherwise these wait for this one, which may give its own vote to another.
        """
        self.term = term
        self._nominate_itself()
        self._effects += self._votes.ask_again(term)
        self._take(self._offer(now), now)

    def _offer(self, now: float) -> msg.Offer:
        """The vote of this launcher."""
        assert self._ready is not None
        return self._following.offer(self._ready.join, self.term, self._lost, now)

    def _on_offer(self, offer: msg.Offer, now: float) -> None:
        self._lost.note_ended(offer.ended, now)
        if offer.round is not None and self.is_leaderless:
            self._adopt(offer.round, now)
        if self._is_refused(offer, now):
            return
        formed, own = self.round, self._own
        assert formed is not None
        votes_for_itself = bool(own) and self._is_candidate(own)
        if votes_for_itself and offer.term < self.term:
            self._effects += self._votes.release([offer.node], self.term, asks=True)
            return
        if votes_for_itself or (own and self.allegiance is Allegiance.SEEKING):
            term = offer.term
            if votes_for_itself and term > self.term:
                term = turns.next_own_term(formed, term, own)
            if term > self.term and turns.leads_in(formed, term, own):
                if not votes_for_itself:
                    self._leave()
                self._votes.drop(own)
                if offer.term < term:
                    self._take(offer, now)  # it is asked for again
                    self._vote_for_itself(term, now)
                    return
                self._vote_for_itself(term, now)
        elif self.allegiance is Allegiance.BOUND and not self._precedes(offer.node):
            self._effects += self._votes.release([offer.node], offer.term + 1, self._candidate)
            return
        self._take(offer, now)
        electorates, is_seeking = self._following.electorates, self.allegiance is Allegiance.SEEKING
        if is_seeking and electorates is not None and self._votes.would_elect(own, electorates):
            self._gather(now)

    def _is_refused(self, offer: msg.Offer, now: float) -> bool:
        """This launcher will not lead the voter, which gets its vote back."""
        formed, own = self.round, self._own
        is_led = self.allegiance is Allegiance.FOLLOWING
        ahead = self._following.leads_lately_at(now) if is_led else None
        if formed is None or offer.last > formed.version:
            self._search.found_later_round(offer.join)
            ahead = ahead or self._bound_to  # so that this one learns of the later round
        elif self.is_leaderless and (not own or turns.may_lead(formed, own)):
            if not self._goes_to_leader:
                return False
            ahead = self._search.known  # both go there
        self._effects += self._votes.release([offer.node], offer.term + 1, ahead)
        return True

    def _precedes(self, node: str) -> bool:
        """Of two launchers that have each other's vote the first successor keeps both."""
        assert self.round is not None
        return self._is_candidate(node) and turns.precedes(self.round, self._own, node)

    def _adopt(self, later: msg.Round, now: float) -> None:
        """A round that has not come here, from a witness: as if it came now, after its leader died.

        If it is of another cycle, nothing is certain of rounds after it.
        """
        known, own = self.round, self._votes.of(self._own)
        if known is None or later.version <= known.version:
            return
        if later.leader != self.leader:
            self._lost.may_have_died(now)
        self._following.adopt(later)
        self.term = max(self.term, self._following.round_term)
        if later.cycle != known.cycle and own is not None:
            self._votes.replace(own.but(is_sure=False))

    def _take(self, offer: msg.Offer, now: float) -> None:
        self._votes.take(offer, now)
        self._lost.was_silent(now + offer.ranks_s)

    def _give_back(self, now: float) -> None:
        """Votes that came to no majority in time: the own one, and after a while the others.

        So launchers that have found together stay together. If more came meanwhile, all try again.
        """
        own = self._own
        for term, voters in self._votes.due(now):
            if own in voters:
                self._votes.hold(term, own, now)
                if self._is_candidate(own):
                    self._seek_after_vote(now)
            elif voters and (self._votes.are_held or not self._gather(now)):
                self._effects += self._votes.release(voters, term + 1)

    def _elect(self) -> None:
        """Lead, if the launchers that are bound to this one are enough."""
        formed, electorates = self.round, self._following.electorates
        if self.allegiance is not Allegiance.BOUND or formed is None or electorates is None:
            return
        if self._is_candidate(self._own) and self._votes.elect(self.term, electorates):
            self._lead(formed, electorates)

    def _lead(self, formed: msg.Round, electorates: Iterable[frozenset[str]]) -> None:
        following, lost = self._following, self._lost
        self.allegiance = Allegiance.LEADING
        self._search.resumes_at = self._bound_until = None
        following.followed = max(following.followed, self.term)
        offers = tuple(self._votes)
        self._votes.clear()
        self._effects.append(
            Leads(
                self.term,
                formed,
                tuple(electorates),
                offers,
                following.stop,
                lost.ranks_until,
                lost.leases_until,
                frozenset(lost.ended),
                max(offer.incident for offer in offers),
                lost.text,
                following.leader,
                tuple(self._search.others(offer.node for offer in offers)),
            )
        )
