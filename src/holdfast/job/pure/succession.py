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
returning to a leader of a lower term than one it has answered.

A launcher that looks for a leader is sent on to the one that leads, if that has sent something
lately, or to the one that others are bound to. The leader before is asked as well, when a candidate
has had its votes in vain, and after the successors, or alone where there are none: it may lead the
others, or need votes to lead again.

*The votes.* Those of the launchers of the last round, its spares too. A round may be on its way
when its leader dies: a launcher that has it needs a majority of the round before as well, and of
each before that, back to one that is *settled* (``LeaderBeat.settled``): as many launchers have
that one as no majority can do without. A vote is refused by a candidate that knows less than the
voter. Thus two candidates always need one launcher both.

*When ranks may start.* Launchers from which no word came may have ranks, for as long as they need
to find that their leader is silent (``fence_s``, and the time of a kill). So the next cycle begins
``silence_s`` after the last proof of a death that any voter has, or at once if every node of the
last cycle has said that its ranks are gone, and none that a later cycle was being formed; without
proof, ``takeover_s`` after the last beat of the leader that any voter has received.

Invariants: R-1 (see :mod:`.leader`), and L-1: at most one launcher leads in a term.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.base.pure.common_events import TimePassed
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.never import assert_never
from holdfast.base.pure.value import Value
from holdfast.job.pure import membership as msg
from holdfast.job.pure.member_messages import LeaderFound
from holdfast.job.pure.timing import Pace


# ---------------------------------------------------------------- events
class LeaderDied(Value):
    """The launcher that led has died, as its kernel says; ``text``: for people."""

    text: str


class LeaderSilent(Value):
    """The leader may be there, but not for this launcher.

    ``ranks_s``: for how long its ranks may be alive, at most.
    """

    text: str
    ranks_s: float


class Ready(Value):
    """The own ranks are gone; ``join`` is for the leader that comes next."""

    join: msg.Join


class Reached(Value):
    """The launcher that was approached is there, and would take a vote."""

    node: str


class NotReached(Value):
    """It is not, or it does not answer; it has no vote of this launcher."""

    node: str


class PeerDied(Value):
    """A launcher that had answered has died, as its kernel says."""

    node: str


class Follows(Value):
    """The launcher that has this one's vote leads."""


class LeaderKnown(Value):
    """A launcher of the job has proved that it leads there, in this term."""

    term: int
    leads_at: msg.Successor


class KeyTaken(Value):
    """The key names this launcher, in this term; ``before``: the node that it named, or empty."""

    before: str
    term: int


class KeyHeld(Value):
    """The key names another launcher, which was not among the dead."""

    holder: msg.Successor


class Released(Value):
    """A launcher gives a vote back.

    ``term``: the next that it could lead in; ``asks``: for the vote in that. ``ahead``: the
    launcher that it would have lead, or that leads; None: it knows none.
    """

    node: str
    term: int
    asks: bool = False
    ahead: msg.Successor | None = None


Event = (
    msg.Decision
    | LeaderDied
    | LeaderSilent
    | Ready
    | Reached
    | NotReached
    | PeerDied
    | Follows
    | Released
    | LeaderKnown
    | KeyTaken
    | KeyHeld
    | msg.Offer
    | TimePassed
)
"""A decision: of the leader that this launcher follows. ``Offer``: of another launcher."""


# ---------------------------------------------------------------- effects
class Approach(Value):
    """Connect to this launcher, in the place of the one before; answer Reached or NotReached."""

    successor: msg.Successor


class Give(Value):
    """Send the offer to the launcher that was reached."""

    to: str
    offer: msg.Offer


class LeaveLeader(Value):
    """Close the connection to the leader, which is silent, or to the launcher approached."""


class Release(Value):
    """Tell these launchers that their votes were for nothing, and never count them again."""

    nodes: tuple[str, ...]
    term: int
    asks: bool = False
    ahead: msg.Successor | None = None


class ClaimKey(Value):
    """Take the key if it names one of these dead launchers; answer KeyTaken or KeyHeld.

    ``term``: the least that it may be taken in. See :mod:`.succession_by_key`.
    """

    term: int
    dead: tuple[str, ...]


class Leads(Value):
    """This launcher leads from now on.

    Attributes:
        term: Of it, greater than that of every leader before.
        round: The last one.
        electorates: A majority of each counts until the next round is settled.
        offers: Of the launchers that follow.
        stop: Of the last round's cycle; None: it ran.
        ranks_until: No ranks of the leaders before are alive after that.
        leases_until: None of them has a lease after that.
        ended: Launchers that are.
        incident: Number of the last one.
        text: How the leader was lost, for people.
    """

    term: int
    round: msg.Round
    electorates: tuple[frozenset[str], ...]
    offers: tuple[msg.Offer, ...]
    stop: msg.StopCycle | None
    ranks_until: float
    leases_until: float
    ended: frozenset[str]
    incident: int
    text: str


ToShell = Approach | Give | LeaveLeader | Release | ClaimKey | Leads
Effect = ToShell | LeaderFound


class Allegiance(enum.Enum):
    """Of a launcher without a leader; see the picture in the module's docstring."""

    FOLLOWING = "following"
    SEEKING = "seeking"
    BOUND = "bound"
    LEADING = "leading"
    LEAVING = "leaving"


def _is_one(node: str, other: str) -> bool:
    """Whether two names are of one launcher, which may have come back as another node."""
    return msg.elector(node) == msg.elector(other)


def is_majority(votes: Iterable[str], electorate: frozenset[str]) -> bool:
    """More than half of the electorate."""
    return 2 * len(electorate.intersection(map(msg.elector, votes))) > len(electorate)


@dataclass
class Succession:
    """One launcher's part in finding the next leader.

    Attributes:
        allegiance: See the module's docstring.
        term: The last in which this launcher has voted, or followed a leader.
        round: The last one that it has received.
    """

    pace: Pace

    allegiance: Allegiance = field(default=Allegiance.FOLLOWING, init=False)
    term: int = field(default=0, init=False)
    round: msg.Round | None = field(default=None, init=False)
    _electorates: list[frozenset[str]] | None = field(default=None, init=False)
    """Since the last that is settled; None: some are not known."""
    _stop: msg.StopCycle | None = field(default=None, init=False)
    _is_sure: bool = field(default=False, init=False)
    """No later round can have been formed: no stop came, and no other leader had this vote."""
    _incident: int = field(default=0, init=False)
    _died_until: float = field(default=0.0, init=False)
    """No ranks of leaders that have died are alive after that."""
    _silent_until: float = field(default=0.0, init=False)
    """The same of leaders that were silent, which this launcher and its voters have followed."""
    _followed: int = field(default=0, init=False)
    """The greatest term of a leader that this launcher has answered: it never returns to others."""
    _voted_for: msg.Successor | None = field(default=None, init=False)
    """The launcher that has this one's vote, on the connection that is open."""
    _leads_at: msg.Successor | None = field(default=None, init=False)
    """Where the leader serves."""
    _leader_at: float = field(default=-math.inf, init=False)
    """When that has sent something."""
    _has_tried_leader: bool = field(default=False, init=False)
    _was_in_vain: bool = field(default=False, init=False)
    """A candidate has had votes, and too few: that leader may have the others."""
    _retries_former_at: float = field(default=0.0, init=False)
    """It was not reached: before that it is asked in its turn only, as each time takes seconds."""
    _text: str = field(default="", init=False)
    _ended: set[str] = field(default_factory=set, init=False)
    _ready: Ready | None = field(default=None, init=False)
    _leader: str = field(default="", init=False)
    """The node that leads, or led."""
    _candidate: msg.Successor | None = field(default=None, init=False)
    _given_at: float = field(default=0.0, init=False)
    """When the candidate got the vote."""
    _bound_until: float | None = field(default=None, init=False)
    """When a candidate of which nothing came has it for nothing."""
    _ahead: msg.Successor | None = field(default=None, init=False)
    """A launcher that has a later round than this one: the next to be tried."""
    _known: msg.Successor | None = field(default=None, init=False)
    """A launcher that has proved that it leads."""
    _tried: int = field(default=0, init=False)
    """Successors, since the last pause."""
    _seeks_at: float | None = field(default=None, init=False)
    """When the pause is over."""
    _offers: dict[str, msg.Offer] = field(default_factory=dict, init=False)
    """To this launcher; its own is one of them if it votes for itself."""
    _patient_until: dict[int, float] = field(default_factory=dict, init=False)
    """By term: when its votes are given back."""
    _effects: list[Effect] = field(default_factory=list, init=False)

    @property
    def can_move(self) -> bool:
        """Whether another launcher may lead, if the leader dies now.

        Not before the first round, nor in a last cycle, after which there is no other; nor where
        the launchers without the leader are no majority.
        """
        formed = self.round
        if formed is None or formed.is_last or not formed.successors:
            return False
        others = formed.electorate - {msg.elector(formed.leader)}
        return is_majority(others, formed.electorate)

    def can_move_after(self, event: LeaderDied | msg.Resigned) -> bool:
        """The same, when this is known of the leader.

        One that stays may lead again itself, with its own vote: no other that can is needed.
        """
        if isinstance(event, LeaderDied) or not event.stays:
            return self.can_move
        formed = self.round
        if formed is None or formed.is_last:
            return False
        return bool(formed.successors) or (formed.leads_at is not None and formed.leads_at.port > 0)

    @property
    def can_move_by_silence(self) -> bool:
        """The same, if the leader cannot be reached."""
        return self.can_move

    @property
    def leader(self) -> str:
        """The node that leads, or led."""
        return self._leader

    @property
    def is_leaderless(self) -> bool:
        """The leader has died, and no other is known."""
        return self.allegiance in (Allegiance.SEEKING, Allegiance.BOUND)

    def is_superseded(self, decision: msg.Decision) -> bool:
        """Whether it is of a leader that another one has followed, which this launcher knows."""
        if not isinstance(decision, msg.LeaderBeat | msg.Round):
            return False
        return decision.term < self._followed

    def shows_death(self, offer: msg.Offer) -> bool:
        """Whether another launcher has the proof that the leader of this one has died."""
        return self.allegiance is Allegiance.FOLLOWING and self._leader in offer.ended

    def quit(self) -> list[Effect]:
        """This launcher leaves the job: it does not lead any more."""
        self._effects = []
        self.allegiance, self._candidate, self._ready = Allegiance.LEAVING, None, None
        self._seeks_at = self._bound_until = None
        self._patient_until.clear()
        self._release([*self._offers], self.term + 1)
        return self._effects

    def next_deadline(self) -> float | None:
        """Earliest time at which :class:`TimePassed` would do something; None: never."""
        return earliest(self._seeks_at, self._bound_until, *self._patient_until.values())

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
                self._is_sure = True  # it has formed no later round, and will not
            case Ready():
                self._ready = event
                if self.allegiance is Allegiance.SEEKING and self._candidate is None:
                    self._seek(now)
            case Reached(node):
                self._on_reached(node, now)
            case NotReached(node):
                if self.allegiance is Allegiance.SEEKING and self._is_candidate(node):
                    self._on_not_reached(node, now)
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
                self._give_back(now)
                if self._bound_until is not None and now >= self._bound_until:
                    self._is_sure = False  # it may lead
                    self._seek_after_vote(now)
                if self._seeks_at is not None and now >= self._seeks_at:
                    self._seek(now)
            case _:
                self._leader_at = now
                self._follow(event)
        self._elect()
        return self._effects

    # ------------------------------------------------------------ following
    def _follow(self, decision: msg.Decision) -> None:
        match decision:
            case msg.Round():
                self._on_round(decision)
            case msg.StopCycle():
                self._stop, self._is_sure = decision, False
            case msg.OpenIncident(incident=incident):
                self._incident = max(self._incident, incident)
            case msg.LeaderBeat(term=term, settled=settled):
                self._followed = max(self._followed, term)
                formed = self.round
                if formed is not None and formed.version == settled:
                    self._electorates = [formed.electorate]
            case (
                msg.End()
                | msg.NodeRefused()
                | msg.Judged()
                | msg.Resigned()
                | msg.Cadence()
                | msg.Keep()
                | msg.Kept()
            ):
                pass
            case _:
                assert_never(decision)

    def _on_round(self, formed: msg.Round) -> None:
        if self.round is not None and self.round.version == formed.version:
            return  # once more, for another launcher
        known, self.round, self._stop, self._is_sure = self.round, formed, None, True
        self._followed, self._leads_at = max(self._followed, formed.term), formed.leads_at
        self.term, self._leader = max(self.term, formed.term), formed.leader
        if not formed.after or formed.since:
            self._electorates = [*map(frozenset, formed.since), formed.electorate]
        elif known is None or known.version != formed.after:
            self._electorates = None
        elif self._electorates is not None:
            self._electorates.append(formed.electorate)

    def _on_follows(self, now: float) -> None:
        """Votes for this launcher are for nothing: the one that it is bound to leads."""
        leads_at, self._voted_for = self._voted_for, None
        if leads_at is None or not self.is_leaderless:
            return  # it leads, and was only approached: it knows nothing of this launcher
        self._leader, self._seeks_at, self._is_sure = leads_at.node, None, False
        self._leads_at, self._leader_at, self._bound_until = leads_at, now, None
        self.allegiance, self._candidate, self._ready = Allegiance.FOLLOWING, None, None
        self._release([*self._offers], self.term + 1)
        self._patient_until.clear()
        self._effects.append(LeaderFound(now - self._given_at))

    # ------------------------------------------------------------ without a leader
    def _on_death(self, text: str, now: float) -> None:
        if self.allegiance is not Allegiance.FOLLOWING:
            return
        self._lose_leader(text)
        self._died_until = max(self._died_until, now + self.pace.silence_s)
        self._ended.add(self._leader)

    def _on_silence(self, text: str, ranks_until: float) -> None:
        """No proof: the leader may come back."""
        if self.allegiance in (Allegiance.FOLLOWING, Allegiance.LEADING):
            self._lose_leader(text)
            self._effects.append(LeaveLeader())
            self._silent_until = max(self._silent_until, ranks_until)
            self._is_sure = False

    def _lose_leader(self, text: str) -> None:
        self.allegiance, self._text = Allegiance.SEEKING, text
        self._ready, self._candidate, self._bound_until = None, None, None
        self._tried, self._has_tried_leader, self._was_in_vain = 0, False, False
        self._retries_former_at, self._known = 0.0, None

    def _note_ended(self, nodes: Iterable[str], now: float) -> None:
        """Each may have led others until now: their ranks end no later than if it had died now."""
        if not self._ended.issuperset(nodes):
            self._ended.update(nodes)
            self._died_until = now + self.pace.silence_s

    def _on_peer_died(self, node: str, now: float) -> None:
        self._note_ended((node,), now)
        if self.is_leaderless and self._is_candidate(node):
            # It may have led already.
            self._is_sure = self._is_sure and self.allegiance is Allegiance.SEEKING
            self._seek(now)

    def _on_released(self, released: Released, now: float) -> None:
        node, term, asks = released.node, released.term, released.asks
        candidate = self._candidate
        if self.allegiance is not Allegiance.BOUND or candidate is None:
            return
        if not _is_one(candidate.node, node):
            return
        if asks and term > self.term:
            self.term, self.allegiance, self._bound_until = term, Allegiance.SEEKING, None
            self._approach(candidate)
            return
        self.term = max(self.term, term - 1)
        self._ahead = released.ahead or self._ahead
        if now - self._given_at < self.pace.beat_s:
            self._seek(now)  # it was refused
        else:
            self._seek_after_vote(now)

    def _on_known(self, known: LeaderKnown, now: float) -> None:
        """The next to be tried: also by one that has led until now, and names no successor.

        A launcher of an earlier run of this job has no vote, and counts terms of its own.
        """
        formed, elector = self.round, msg.elector(known.leads_at.node)
        electorates = self._electorates or ([] if formed is None else [formed.electorate])
        has_vote = any(elector in one for one in electorates)
        if known.term > self._followed and has_vote:
            self._ahead = self._known = known.leads_at
            if self._seeks_at is not None:
                self._seek(now)

    def _seek_after_vote(self, now: float) -> None:
        """The candidate had it for some time, and did not lead."""
        candidate, leads_at = self._candidate, self._leads_at
        if candidate is not None and leads_at is not None:
            self._was_in_vain = not _is_one(candidate.node, leads_at.node)
        self._seek(now)

    def _seek(self, now: float) -> None:
        """Vote in the next term that has a candidate."""
        formed, ready = self.round, self._ready
        if formed is None or ready is None or not self.is_leaderless:
            return
        self.allegiance, self._candidate, self._seeks_at = Allegiance.SEEKING, None, None
        self._bound_until = None
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.node not in self._ended:
            self._try_out_of_turn(ahead, ready.join.node, now)
            return
        if self._offers and self._may_lead(ready.join.node):
            self._stand(ready.join.node, now)
            return
        former = self._former_leader(ready.join)
        was_in_vain, self._was_in_vain = self._was_in_vain, False
        was_in_vain = was_in_vain and now >= self._retries_former_at
        if was_in_vain and former is not None and not _is_one(former.node, ready.join.node):
            self._try_out_of_turn(former, ready.join.node, now)
            return
        for _ in formed.successors:
            if self._tried == len(formed.successors):
                break
            self._tried += 1
            self.term += 1
            candidate = formed.successors[(self.term - formed.term - 1) % len(formed.successors)]
            if candidate.node not in self._ended:
                self.term -= 1
                self._try(candidate, ready.join.node, now)
                return
        if former is not None:
            self._has_tried_leader = True
            self._try(former, ready.join.node, now)
            return
        self._tried, self._has_tried_leader = 0, False
        self._seeks_at = now + self.pace.beat_s

    def _stand(self, own: str, now: float) -> None:
        """Vote for itself; launchers whose votes came for earlier terms are asked for them again.

        Otherwise these wait for this one, which gives its own vote to another.
        """
        self.term = max([self.term + 1, *(offer.term for offer in self._offers.values())])
        while not self._would_lead_in(self.term, own):
            self.term += 1
        self._nominate(own)
        self._vote_for_itself(now)

    def _try_out_of_turn(self, candidate: msg.Successor, own: str, now: float) -> None:
        """The next successor keeps its turn: it goes by the term."""
        assert self.round is not None
        self.term += len(self.round.successors[1:])
        self._try(candidate, own, now)

    def _try(self, candidate: msg.Successor, own: str, now: float) -> None:
        if not _is_one(candidate.node, own):
            self.term, self._candidate = self.term + 1, candidate
            self._approach(candidate)
        elif self._may_lead(own):
            self._stand(own, now)
        else:
            self.term, self._candidate = self.term + 1, candidate
            self._vote_for_itself(now)

    def _former_leader(self, join: msg.Join) -> msg.Successor | None:
        """It may lead the others, and be there again; or this one has led, and knows most."""
        former = self._leads_at
        if former is None or not former.port or self._has_tried_leader:
            return None
        if _is_one(former.node, join.node):
            return former if join.desc.serves > 0 else None
        return None if former.node in self._ended else former

    def _vote_for_itself(self, now: float) -> None:
        assert self._ready is not None
        self.allegiance = Allegiance.BOUND
        earlier = [node for node, offer in self._offers.items() if offer.term < self.term]
        self._release(earlier, self.term, asks=True)
        self._take(self._offer(now), now)

    def _approach(self, candidate: msg.Successor) -> None:
        self._voted_for = None  # the connection to that one is closed
        self._effects.append(Approach(candidate))

    def _on_not_reached(self, node: str, now: float) -> None:
        if self._leads_at is not None and _is_one(node, self._leads_at.node):
            self._retries_former_at = now + self.pace.silence_s
        self._seek(now)

    def _is_candidate(self, node: str) -> bool:
        return self._candidate is not None and _is_one(self._candidate.node, node)

    def _on_reached(self, node: str, now: float) -> None:
        if self.allegiance is Allegiance.SEEKING and self._is_candidate(node):
            self.allegiance, self._given_at = Allegiance.BOUND, now
            self._bound_until, self._voted_for = self._binds_until(now), self._candidate
            self._effects.append(Give(node, self._offer(now)))
            self._send_votes_on()

    def _send_votes_on(self) -> None:
        """Votes that came while this launcher looked for a leader: the one that it found has them.

        Otherwise these launchers wait for this one, which does not lead, and are missing there.
        """
        own = self._ready.join.node if self._ready is not None else ""
        for offer in [*self._offers.values()]:
            if offer.node != own and not self._precedes(offer.node, own):
                self._release([offer.node], offer.term + 1, ahead=self._candidate)

    def _binds_until(self, now: float) -> float | None:
        """A candidate that is silent for so long may have died, as a leader may."""
        return now + self.pace.fence_s

    def _offer(self, now: float) -> msg.Offer:
        ready, formed = self._ready, self.round
        assert ready is not None
        assert formed is not None
        return msg.Offer(
            ready.join.node,
            self.term,
            ready.join,
            formed.version,
            self._is_sure,
            tuple(sorted(self._ended)),
            self._incident,
            formed.restarts_used,
            # One that names the electorates before it: of a job that is not large.
            formed if ready.join.desc.is_witness and (formed.since or not formed.after) else None,
            max(0.0, self._silent_until - now),
            self._followed,
        )

    # ------------------------------------------------------------ as a candidate
    def _on_offer(self, offer: msg.Offer, now: float) -> None:
        self._note_ended(offer.ended, now)
        if offer.round is not None and self.is_leaderless:
            self._adopt(offer.round, now)
        formed = self.round
        if formed is None or offer.last > formed.version:
            # It knows more. If it can lead it gets this vote; the round here may not name it.
            desc = offer.join.desc
            if desc.serves and not desc.is_witness:
                self._ahead = msg.Successor(offer.node, desc.addr, desc.serves)
            self._release([offer.node], offer.term + 1, ahead=self._leader_now(now))
            return
        if not self.is_leaderless:
            # There is a leader, or will be.
            self._release([offer.node], offer.term + 1, ahead=self._leader_now(now))
            return
        own = self._ready.join.node if self._ready is not None else ""
        if own and not self._may_lead(own):
            self._release([offer.node], offer.term + 1)  # it cannot lead
            return
        known = self._known
        if self.allegiance is Allegiance.SEEKING and known and self._is_candidate(known.node):
            self._release([offer.node], offer.term + 1, ahead=known)  # both go there
            return
        votes_for_itself = bool(own) and self._is_candidate(own)
        if votes_for_itself and offer.term < self.term:
            self._release([offer.node], self.term, asks=True)
            return
        if votes_for_itself or (own and self.allegiance is Allegiance.SEEKING):
            term = offer.term
            while votes_for_itself and term > self.term and not self._would_lead_in(term, own):
                term += 1
            if term > self.term and self._would_lead_in(term, own):
                if not votes_for_itself:
                    self._effects.append(LeaveLeader())
                self._offers.pop(own, None)
                self.term = term
                self._nominate(own)
                if offer.term == term:
                    self._vote_for_itself(now)
                else:
                    self._take(offer, now)
                    self._vote_for_itself(now)
                    return
        elif self.allegiance is Allegiance.BOUND and not self._precedes(offer.node, own):
            self._release([offer.node], offer.term + 1, ahead=self._candidate)
            return
        self._take(offer, now)

    def _leader_now(self, now: float) -> msg.Successor | None:
        """It leads this launcher, and has sent something lately; None: it may be lost."""
        is_there = now - self._leader_at <= self.pace.ask_s
        return self._leads_at if self.allegiance is Allegiance.FOLLOWING and is_there else None

    def _may_lead(self, own: str) -> bool:
        """It is a successor, or has led before, and perhaps knows more than the others."""
        formed = self.round
        assert formed is not None
        able = any(_is_one(it.node, own) for it in formed.successors)
        return able or _is_one(formed.leader, own)

    def _nominate(self, own: str) -> None:
        assert self._ready is not None
        desc = self._ready.join.desc
        self._candidate = msg.Successor(own, desc.addr, desc.serves)

    def _precedes(self, node: str, own: str) -> bool:
        """Of two launchers that have each other's vote the first successor keeps both."""
        formed = self.round
        assert formed is not None
        order = [msg.elector(it.node) for it in formed.successors]
        both = msg.elector(own), msg.elector(node)
        is_mutual = self._is_candidate(node) and all(it in order for it in both)
        return is_mutual and order.index(both[0]) < order.index(both[1])

    def _adopt(self, later: msg.Round, now: float) -> None:
        """A round that has not come here, from a witness: as if it came now, after its leader died.

        If it is of another cycle, nothing is certain of rounds after it.
        """
        known = self.round
        if known is None or later.version <= known.version:
            return
        if later.leader != self._leader:
            self._died_until = max(self._died_until, now + self.pace.silence_s)
        stop, is_sure = self._stop, self._is_sure
        self._on_round(later)
        self._stop, self._is_sure = stop, is_sure
        if later.cycle != known.cycle:
            self._stop, self._is_sure = None, False
            own = self._ready.join.node if self._ready is not None else ""
            if own in self._offers:
                self._offers[own] = self._offers[own].but(is_sure=False)

    def _would_lead_in(self, term: int, own: str) -> bool:
        formed = self.round
        assert formed is not None
        if _is_one(formed.leader, own):
            return term > formed.term
        at = (term - formed.term - 1) % len(formed.successors)
        return term > formed.term and _is_one(formed.successors[at].node, own)

    def _take(self, offer: msg.Offer, now: float) -> None:
        self._offers[offer.node] = offer
        self._silent_until = max(self._silent_until, now + offer.ranks_s)
        self._patient_until.setdefault(offer.term, now + self.pace.ask_s)

    def _release(
        self,
        nodes: list[str],
        term: int,
        *,
        asks: bool = False,
        ahead: msg.Successor | None = None,
    ) -> None:
        """From now on the votes of these are never counted."""
        for node in nodes:
            self._offers.pop(node, None)
        if nodes:
            self._effects.append(Release(tuple(nodes), term, asks, ahead))

    def _give_back(self, now: float) -> None:
        """Votes that came to no majority in time; the own one as well."""
        own = self._ready.join.node if self._ready is not None else ""
        for term in [term for term, until in self._patient_until.items() if now >= until]:
            del self._patient_until[term]
            votes = [node for node, offer in self._offers.items() if offer.term == term]
            had_own = own in votes
            if had_own:
                votes.remove(own)
                del self._offers[own]
            self._release(votes, term + 1)
            if had_own and self._is_candidate(own):
                self._seek_after_vote(now)

    def _elect(self) -> None:
        """Lead, if the launchers that are bound to this one are enough."""
        formed, ready = self.round, self._ready
        if self.allegiance is not Allegiance.BOUND or formed is None or ready is None:
            return
        if self._electorates is None or not self._is_candidate(ready.join.node):
            return
        offers = [offer for offer in self._offers.values() if offer.term == self.term]
        votes = {offer.node for offer in offers}
        if all(is_majority(votes, electorate) for electorate in self._electorates):
            self._lead(formed, self._electorates)

    def _lead(self, formed: msg.Round, electorates: list[frozenset[str]]) -> None:
        self.allegiance, self._seeks_at, self._bound_until = Allegiance.LEADING, None, None
        self._followed = max(self._followed, self.term)
        self._patient_until.clear()
        self._effects.append(
            Leads(
                self.term,
                formed,
                tuple(electorates),
                tuple(self._offers.values()),
                self._stop,
                max(self._died_until, self._silent_until),
                self._silent_until - self.pace.step_down_s,
                frozenset(self._ended),
                max(offer.incident for offer in self._offers.values()),
                self._text,
            )
        )
        self._offers.clear()
