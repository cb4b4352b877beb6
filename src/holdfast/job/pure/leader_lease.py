"""The lease of a leader: how long it leads without another word of the launchers that follow it.

Pure. Times are seconds on the leader's clock.

Leadership moves by silence, too, so a leader that cannot be reached must end its ranks before
another one starts any. Each of its beats has a number, and each launcher answers with the number of
the newest that it has received. The lease ends ``leader_lease_s`` after the leader *sent* the
newest beat that is answered by half of the electorate, itself counted: more than half are needed to
elect another one, and a launcher that answered votes ``fence_s`` later at the earliest, and brings
the time of the beat along (``Offer.ranks_s``). So no two leaders have a lease at a time, whatever
the delay of a message, and no clock of another host counts.

- Each *electorate* counts that the next leader may need: those of the rounds since the last settled
  one (:mod:`.succession`), which as many launchers have as leave no majority among the others. A
  round that is just published starts its electorate's lease: no launcher of it can have been silent
  for long.
- A leader that was elected has no lease before *more* than half have answered: then the leader
  before has lost its own for good, as a launcher never returns to a lower term.
- A launcher that *died while it followed*, or has left, votes for no other: it counts for ever.
- In a cycle that no other follows leadership does not move, and the lease has no end.

Without a lease a leader decides nothing (:mod:`.leader`), and its own node ends its ranks like any
other: its beats grant none any time.

Invariant: L-2 at most one leader has a lease at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.job.pure.membership import elector
from holdfast.job.pure.timing import Pace


@dataclass
class _Electorate:
    nodes: frozenset[str]
    since: float
    """When its round was published here; minus infinity: by another leader."""
    can_move: bool
    """Another launcher can lead after this round."""
    gone: int = 0
    """Launchers that never vote for another one."""
    answers: dict[int, int] = field(default_factory=dict)
    """How many of the others have answered a beat, or a later one, by its number."""
    received: int = 0
    """How many launchers have the last round of the leader."""

    def half(self) -> int:
        return (len(self.nodes) + 1) // 2

    def majority(self) -> int:
        return len(self.nodes) // 2 + 1


@dataclass
class LeaderLease:
    """Of one leader, in one term.

    Attributes:
        home: The leader's node.
        is_needed: Leadership can move by silence.
        is_established: It was the first leader, or more than half have answered.
        is_settled: As many launchers have its last round as leave no majority among the others.
    """

    pace: Pace
    home: str
    is_needed: bool = True
    is_established: bool = True

    is_settled: bool = field(default=True, init=False)
    number: int = field(default=0, init=False)
    """Of the last beat."""
    _granted_s: float = field(default=math.inf, init=False)
    """The rest of the lease when that was sent."""
    _electorates: list[_Electorate] = field(default_factory=list, init=False)
    _sent: dict[int, float] = field(default_factory=dict, init=False)
    """When the last beats were sent, by their numbers."""
    _answered: dict[str, int] = field(default_factory=dict, init=False)
    """The last beat that a launcher has answered."""
    _received: set[str] = field(default_factory=set, init=False)
    """Launchers that have the last round."""
    not_before: float = field(default=-math.inf, init=False)
    """A leader before may have one until then."""
    _seen_at: dict[str, float] = field(default_factory=dict, init=False)
    """When that was sent, or the first round with the launcher."""
    _gone: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.home = elector(self.home)

    def inherit(self, electorates: Iterable[frozenset[str]], leases_until: float) -> None:
        """This leader was elected by a majority of each of these."""
        self.is_established = not self.is_needed
        self.wait_until(leases_until)
        for nodes in electorates:
            self._add(nodes, -math.inf, can_move=True)
        self._note_majority()

    def wait_until(self, leases_until: float) -> None:
        """No leader before has a lease after that."""
        if self.is_needed:
            self.not_before = max(self.not_before, leases_until)

    def formed(self, nodes: frozenset[str], now: float, *, can_move: bool) -> None:
        """The next round is published."""
        known = frozenset().union(*(one.nodes for one in self._electorates))
        for node in nodes - known:
            self._seen_at.setdefault(node, now)  # it has no vote yet, and gets one now
        self._add(nodes, now, can_move=can_move)
        self.is_settled = False
        self._received.clear()
        for one in self._electorates:
            one.received = 0

    def is_of(self, node: str) -> bool:
        """Whether the launcher of a node has a vote."""
        return any(elector(node) in one.nodes for one in self._electorates)

    def received(self, node: str) -> bool:
        """A launcher has the last round; whether that settles it: none leads without knowing it."""
        node = elector(node)
        if self.is_settled or node in self._received:
            return False
        self._received.add(node)
        for one in self._electorates:
            one.received += node in one.nodes
        if all(2 * one.received >= len(one.nodes) for one in self._electorates):
            self.is_settled = True
            del self._electorates[:-1]
        return self.is_settled

    def since(self) -> tuple[tuple[str, ...], ...]:
        """The electorates since the last settled round: those that the next round adds its to."""
        return tuple(tuple(sorted(one.nodes)) for one in self._electorates)

    def beat(self, now: float) -> int:
        """The number of the next beat, which is sent now."""
        self.number += 1
        self._sent[self.number] = now
        for number in [it for it, at in self._sent.items() if now - at > self._length_s]:
            del self._sent[number]
            for one in self._electorates:
                one.answers.pop(number, None)
        self._granted_s = self.left_s(now)
        return self.number

    def answered(self, node: str, number: int, now: float) -> bool:
        """A launcher has answered this beat.

        Returns whether the next beat should not wait: the last one granted less than followers wait
        for by themselves, as that of a leader that has just woken up does, and there is more now.
        """
        node = elector(node)
        before = self._answered.get(node, 0)
        if not before < number <= self.number or node in self._gone or node == self.home:
            return False
        self._answered[node] = number
        self._seen_at[node] = max(
            self._sent.get(number, -math.inf), self._seen_at.get(node, -math.inf)
        )
        for it in self._sent:
            if before < it <= number:
                self._count(node, it, 1)
        self._note_majority()
        return self._granted_s < self.pace.fence_s <= self.left_s(now)

    def died(self, node: str, now: float) -> None:
        """Its kernel says so; it may have left this leader before, if it was silent for long."""
        node = elector(node)
        if now - self._seen_at.get(node, -math.inf) < self.pace.fence_s:
            self.left(node)

    def left(self, node: str) -> None:
        """It says so itself."""
        node = elector(node)
        if node in self._gone or node == self.home:
            return
        self._gone.add(node)
        for number in self._sent:
            if number <= self._answered.get(node, 0):
                self._count(node, number, -1)
        for one in self._electorates:
            one.gone += node in one.nodes
        self._note_majority()

    def until(self) -> float:
        """When it ends; infinity: never; minus infinity: there was none yet."""
        if not self.is_needed:
            return math.inf
        if not self.is_established:
            return -math.inf
        ends = (self._sent_at(one, one.half()) for one in self._moving)
        return min(ends, default=math.inf) + self._length_s

    def is_held(self, now: float) -> bool:
        """Whether this leader may decide."""
        return self.not_before <= now < self.until()

    def left_s(self, now: float) -> float:
        """The rest of it in seconds; infinity: this leader needs none."""
        return max(0.0, min(self.until() - now, self._length_s)) if self.is_needed else math.inf

    # ------------------------------------------------------------ counting
    @property
    def _length_s(self) -> float:
        return self.pace.leader_lease_s

    @property
    def _moving(self) -> list[_Electorate]:
        return [one for one in self._electorates if one.can_move]

    def _add(self, nodes: frozenset[str], since: float, *, can_move: bool) -> None:
        one = _Electorate(nodes, since, can_move)
        one.gone = len(nodes & (self._gone | {self.home}))
        self._electorates.append(one)
        for node in nodes - self._gone:
            for number in self._sent:
                if number <= self._answered.get(node, 0):
                    self._count_in(one, node, number, 1)

    def _count(self, node: str, number: int, more: int) -> None:
        for one in self._electorates:
            self._count_in(one, node, number, more)

    def _count_in(self, one: _Electorate, node: str, number: int, more: int) -> None:
        if node in one.nodes and node != self.home:
            one.answers[number] = one.answers.get(number, 0) + more

    def _note_majority(self) -> None:
        if not self.is_established:
            self.is_established = all(self._has(one, one.majority()) for one in self._moving)

    def _has(self, one: _Electorate, needed: int) -> bool:
        return self._sent_at(one, needed) > -math.inf

    def _sent_at(self, one: _Electorate, needed: int) -> float:
        """When the newest beat was sent that so many have answered."""
        if one.gone >= needed:
            return math.inf
        enough = (
            self._sent[number]
            for number, answers in one.answers.items()
            if one.gone + answers >= needed
        )
        return max([one.since, *enough])
