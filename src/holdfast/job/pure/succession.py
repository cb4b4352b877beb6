"""Decide which launcher leads a job when the launcher that led it has died.

Pure: reads no clock, touches no connection. Times are seconds on the caller's monotonic clock.

                  proof that the leader has died, and own ranks are gone
    FOLLOWING ------------------------------------------------------> SEEKING the next of the
        ^                                                              |   ^  successors, term + 1
        | it leads: its first decision                  it answers     |   |
        |                                                              v   | it has died, or gives
        +----------------------------------------------------------- BOUND   the vote back
        |
        +-- LEADING: a majority of the launchers of the last round is bound to this one

Only proof moves leadership: the word of a leader that goes, or a kernel that refuses where its
launcher has accepted before. Silence moves nothing, for a leader that is silent may have ranks. A
vote binds until the launcher that has it gives it back, having promised not to lead with it, or is
proved dead. So a launcher that has the votes of a majority is the only one that lives and has them,
for as long as it lives: it needs no lease, and no clock of another host is trusted.

*The votes.* Those of the launchers of the last round, its spares too. A round may be on its way
when its leader dies: a launcher that has it needs a majority of the round before as well, and of
each before that, back to one that is *settled* (``LeaderBeat.settled``): as many launchers have
that one as no majority can do without. A vote is refused by a candidate that knows less than the
voter. Thus two candidates always need one launcher both.

*When ranks may start.* Launchers from which no word came may have ranks, for as long as they need
to find that their leader is silent (``fence_s``, and the time of a kill). So the next cycle begins
``silence_s`` after the proof, or at once if every node of the last cycle has said that its ranks
are gone, and none that a later cycle was being formed.

Invariants: R-1 (see :mod:`.leader`), and S-1: at most one launcher leads in a term.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.base.pure.common_events import TimePassed
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.never import assert_never
from holdfast.base.pure.value import Value
from holdfast.job.pure import membership as msg
from holdfast.job.pure.member import LeaderFound
from holdfast.job.pure.timing import Pace


# ---------------------------------------------------------------- events
class LeaderDied(Value):
    """The launcher that led has died, as its kernel says; ``text``: for people."""

    text: str


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


class KeyTaken(Value):
    """The key names this launcher, in this term; ``before``: the node that it named, or empty."""

    before: str
    term: int


class KeyHeld(Value):
    """The key names another launcher, which was not among the dead."""

    holder: msg.Successor


class Released(Value):
    """A launcher gives a vote back.

    ``term``: the next that it could lead in; ``asks``: for the vote in that.
    """

    node: str
    term: int
    asks: bool = False


Event = (
    msg.Decision
    | LeaderDied
    | Ready
    | Reached
    | NotReached
    | PeerDied
    | Follows
    | Released
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


class Release(Value):
    """Tell these launchers that their votes were for nothing, and never count them again."""

    nodes: tuple[str, ...]
    term: int
    asks: bool = False


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
        died_at: When the leader was proved dead.
        ended: Launchers that are.
        incident: Number of the last one.
        text: How the leader was lost, for people.
    """

    term: int
    round: msg.Round
    electorates: tuple[frozenset[str], ...]
    offers: tuple[msg.Offer, ...]
    stop: msg.StopCycle | None
    died_at: float
    ended: frozenset[str]
    incident: int
    text: str


ToShell = Approach | Give | Release | ClaimKey | Leads
Effect = ToShell | LeaderFound


class Allegiance(enum.Enum):
    """Of a launcher without a leader; see the picture in the module's docstring."""

    FOLLOWING = "following"
    SEEKING = "seeking"
    BOUND = "bound"
    LEADING = "leading"
    LEAVING = "leaving"


def is_majority(votes: Iterable[str], electorate: frozenset[str]) -> bool:
    """More than half of the electorate."""
    return 2 * len(electorate.intersection(votes)) > len(electorate)


@dataclass
class Settling:
    """Whether enough launchers have the last round, as far as its leader knows.

    As many as leave no majority among the others, in each electorate since the last settled round.
    """

    electorates: Iterable[frozenset[str]] = ()

    is_settled: bool = field(default=False, init=False)
    _counts: list[int] = field(default_factory=list, init=False)
    _received: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._all = [*self.electorates]

    def since(self) -> tuple[tuple[str, ...], ...]:
        """All electorates from the last settled one on: those that the next round adds its to."""
        return tuple(tuple(sorted(electorate)) for electorate in self._all)

    def formed(self, electorate: frozenset[str]) -> None:
        """The next round is on its way."""
        self._all.append(electorate)
        self._counts = [0] * len(self._all)
        self._received, self.is_settled = set(), False

    def received(self, node: str) -> bool:
        """A launcher has it; whether that settles it."""
        if self.is_settled or node in self._received or not self._counts:
            return False
        self._received.add(node)
        for k, electorate in enumerate(self._all):
            self._counts[k] += node in electorate
        pairs = zip(self._counts, self._all, strict=True)
        if all(2 * count >= len(electorate) for count, electorate in pairs):
            self._all, self.is_settled = self._all[-1:], True
        return self.is_settled


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
    _died_at: float = field(default=0.0, init=False)
    _text: str = field(default="", init=False)
    _ended: set[str] = field(default_factory=set, init=False)
    _ready: Ready | None = field(default=None, init=False)
    _leader: str = field(default="", init=False)
    """The node that leads, or led."""
    _candidate: msg.Successor | None = field(default=None, init=False)
    _given_at: float = field(default=0.0, init=False)
    """When the candidate got the vote."""
    _ahead: msg.Successor | None = field(default=None, init=False)
    """A launcher that has a later round than this one: the next to be tried."""
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
        others = formed.electorate - {formed.leader}
        return is_majority(others, formed.electorate)

    @property
    def leader(self) -> str:
        """The node that leads, or led."""
        return self._leader

    @property
    def is_leaderless(self) -> bool:
        """The leader has died, and no other is known."""
        return self.allegiance in (Allegiance.SEEKING, Allegiance.BOUND)

    def shows_death(self, offer: msg.Offer) -> bool:
        """Whether another launcher has the proof that the leader of this one has died."""
        return self.allegiance is Allegiance.FOLLOWING and self._leader in offer.ended

    def quit(self) -> list[Effect]:
        """This launcher leaves the job: it does not lead any more."""
        self._effects = []
        self.allegiance, self._candidate, self._ready = Allegiance.LEAVING, None, None
        self._seeks_at = None
        self._patient_until.clear()
        self._release([*self._offers], self.term + 1)
        return self._effects

    def next_deadline(self) -> float | None:
        """Earliest time at which :class:`TimePassed` would do something; None: never."""
        return earliest(self._seeks_at, *self._patient_until.values())

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Effects of ``event``, in order."""
        self._effects = []
        match event:
            case LeaderDied(text):
                self._on_death(text, now)
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
                    self._seek(now)
            case PeerDied(node):
                self._on_peer_died(node, now)
            case Follows():
                self._on_follows(now)
            case Released(node, term, asks):
                self._on_released(node, term, now, asks=asks)
            case msg.Offer():
                self._on_offer(event, now)
            case KeyTaken() | KeyHeld():
                pass  # there is no key
            case TimePassed():
                self._give_back(now)
                if self._seeks_at is not None and now >= self._seeks_at:
                    self._seek(now)
            case _:
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
            case msg.LeaderBeat(settled=settled):
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
        known, self.round, self._stop, self._is_sure = self.round, formed, None, True
        self.term, self._leader = max(self.term, formed.term), formed.leader
        if not formed.after or formed.since:
            self._electorates = [*map(frozenset, formed.since), formed.electorate]
        elif known is None or known.version != formed.after:
            self._electorates = None
        elif self._electorates is not None:
            self._electorates.append(formed.electorate)

    def _on_follows(self, now: float) -> None:
        """Votes for this launcher are for nothing: the one that it is bound to leads."""
        if self._candidate is None:
            return
        self._leader, self._seeks_at, self._is_sure = self._candidate.node, None, False
        self.allegiance, self._candidate, self._ready = Allegiance.FOLLOWING, None, None
        self._release([*self._offers], self.term + 1)
        self._patient_until.clear()
        self._effects.append(LeaderFound(now - self._given_at))

    # ------------------------------------------------------------ without a leader
    def _on_death(self, text: str, now: float) -> None:
        if self.allegiance is not Allegiance.FOLLOWING:
            return
        self.allegiance, self._died_at, self._text = Allegiance.SEEKING, now, text
        self._ready, self._tried = None, 0
        self._ended.add(self._leader)

    def _on_peer_died(self, node: str, now: float) -> None:
        self._ended.add(node)
        if self.is_leaderless and self._is_candidate(node):
            # It may have led already.
            self._is_sure = self._is_sure and self.allegiance is Allegiance.SEEKING
            self._seek(now)

    def _on_released(self, node: str, term: int, now: float, *, asks: bool) -> None:
        candidate = self._candidate
        if self.allegiance is not Allegiance.BOUND or candidate is None or candidate.node != node:
            return
        if asks and term > self.term:
            self.term, self.allegiance = term, Allegiance.SEEKING
            self._effects.append(Approach(candidate))
            return
        self.term = max(self.term, term - 1)
        self._seek(now)

    def _seek(self, now: float) -> None:
        """Vote in the next term that has a candidate."""
        formed, ready = self.round, self._ready
        if formed is None or ready is None or not self.is_leaderless:
            return
        self.allegiance, self._candidate, self._seeks_at = Allegiance.SEEKING, None, None
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.node not in self._ended:
            self.term += 1
            self._candidate = ahead
            self._effects.append(Approach(ahead))
            return
        for _ in formed.successors:
            if self._tried == len(formed.successors):
                break
            self._tried += 1
            self.term += 1
            candidate = formed.successors[(self.term - formed.term - 1) % len(formed.successors)]
            if candidate.node in self._ended:
                continue
            self._candidate = candidate
            if candidate.node == ready.join.node:
                self._vote_for_itself(now)
            else:
                self._effects.append(Approach(candidate))
            return
        self._tried, self._seeks_at = 0, now + self.pace.beat_s

    def _vote_for_itself(self, now: float) -> None:
        assert self._ready is not None
        self.allegiance = Allegiance.BOUND
        earlier = [node for node, offer in self._offers.items() if offer.term < self.term]
        self._release(earlier, self.term, asks=True)
        self._take(self._offer(), now)

    def _is_candidate(self, node: str) -> bool:
        return self._candidate is not None and self._candidate.node == node

    def _on_reached(self, node: str, now: float) -> None:
        if self.allegiance is Allegiance.SEEKING and self._is_candidate(node):
            self.allegiance, self._given_at = Allegiance.BOUND, now
            self._effects.append(Give(node, self._offer()))

    def _offer(self) -> msg.Offer:
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
        )

    # ------------------------------------------------------------ as a candidate
    def _on_offer(self, offer: msg.Offer, now: float) -> None:
        self._ended.update(offer.ended)
        if offer.round is not None and self.is_leaderless:
            self._adopt(offer.round, now)
        formed = self.round
        if formed is None or offer.last > formed.version:
            # It knows more. If it can lead it gets this vote; the round here may not name it.
            desc = offer.join.desc
            if desc.serves and not desc.is_witness:
                self._ahead = msg.Successor(offer.node, desc.addr, desc.serves)
            self._release([offer.node], offer.term + 1)
            return
        if not self.is_leaderless:
            self._release([offer.node], offer.term + 1)  # there is a leader, or will be
            return
        own = self._ready.join.node if self._ready is not None else ""
        votes_for_itself = bool(own) and self._is_candidate(own)
        may_rise = votes_for_itself or self.allegiance is Allegiance.SEEKING
        if own and may_rise and offer.term > self.term and self._would_lead_in(offer.term, own):
            self._offers.pop(own, None)
            self.term = offer.term
            self._candidate = next(it for it in formed.successors if it.node == own)
            self._vote_for_itself(now)
        elif votes_for_itself and offer.term < self.term:
            self._release([offer.node], self.term, asks=True)
            return
        self._take(offer, now)

    def _adopt(self, later: msg.Round, now: float) -> None:
        """A round that has not come here, from a witness: as if it came now, after its leader died.

        If it is of another cycle, nothing is certain of rounds after it.
        """
        known = self.round
        if known is None or later.version <= known.version:
            return
        if later.leader != self._leader:
            self._died_at = now  # of that one, at the latest
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
        at = (term - formed.term - 1) % len(formed.successors)
        return term > formed.term and formed.successors[at].node == own

    def _take(self, offer: msg.Offer, now: float) -> None:
        self._offers[offer.node] = offer
        self._patient_until.setdefault(offer.term, now + self.pace.ask_s)

    def _release(self, nodes: list[str], term: int, *, asks: bool = False) -> None:
        """From now on the votes of these are never counted."""
        for node in nodes:
            self._offers.pop(node, None)
        if nodes:
            self._effects.append(Release(tuple(nodes), term, asks))

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
                self._seek(now)

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
        self.allegiance, self._seeks_at = Allegiance.LEADING, None
        self._patient_until.clear()
        self._effects.append(
            Leads(
                self.term,
                formed,
                tuple(electorates),
                tuple(self._offers.values()),
                self._stop,
                self._died_at,
                frozenset(self._ended),
                max(offer.incident for offer in self._offers.values()),
                self._text,
            )
        )
        self._offers.clear()
