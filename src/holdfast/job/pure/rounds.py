"""The rounds of one leader: the launchers that have a vote, those that lead next, and a revision.

Pure. Times are seconds on the leader's clock. A round names its spares, a witness and the
successors of its leader. When others are there the round is *revised*, while its cycle runs: so
those that came know the successors, and have a vote once they have said that they do. A launcher
that knows no round cannot vote, and if its vote counted, those that can might be too few: where a
host comes back a moment before the leader is lost, it would count twice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from holdfast.job.pure import membership as msg
from holdfast.job.pure.leader_lease import LeaderLease
from holdfast.job.pure.nodes import Nodes
from holdfast.job.pure.timing import NEWS_S

_REVISED_NODES = 64
"""In a larger job some spares more or less change nothing, and all launchers read each round."""
_SUCCESSORS = 32
"""Launchers that a round names as successors, at most."""


@dataclass
class Rounds:
    """Of one leader, in one term.

    Attributes:
        before: The last round of the leader before; None: there was none.
        formed: The last that this leader has published, maybe revised; None: there is none yet.
    """

    home: str
    term: int
    before: msg.Round | None
    nodes: Nodes
    lease: LeaderLease

    formed: msg.Round | None = field(default=None, init=False)
    _revise_from: float = field(default=0.0, init=False)
    _have_round: set[str] = field(default_factory=set, init=False)
    """Spares that came later, and have received one."""

    def form(self, bare: msg.Round) -> msg.Round:
        """A round of the next cycle, as far as it is decided, with all that concerns leadership."""
        everyone = *(place.node for place in bare.places), *bare.spares
        last = self.formed or self.before
        formed = dataclasses.replace(
            bare,
            term=self.term,
            leader=self.home,
            leads_at=self._leads_at(),
            successors=self.successors(everyone),
            after=() if last is None else last.version,
            witness=self._witness_beside(everyone),
        )
        if len(formed.electorate) > _REVISED_NODES:
            return formed
        return dataclasses.replace(formed, since=self.lease.since())

    def revised(self) -> msg.Round:
        """The last one with the spares, the witness and the successors that are there."""
        assert self.formed is not None
        spares = (*self.nodes.ready,)
        learners = tuple(node for node in spares if self._is_learner(node))
        everyone = (*(place.node for place in self.formed.places), *spares)
        voters = [node for node in everyone if node not in learners]
        return dataclasses.replace(
            self.formed,
            spares=spares,
            learners=learners,
            leads_at=self._leads_at(),
            successors=self.successors(everyone),
            revision=self.formed.revision + 1,
            after=self.formed.version,
            witness=self._witness_beside(voters),
            since=self.lease.since(),
        )

    def _is_learner(self, node: str) -> bool:
        """It has no vote yet, and is not known to have a round."""
        assert self.formed is not None
        has_vote = msg.elector(node) in self.formed.electorate or node == self.home
        return not has_vote and node not in self._have_round

    def once_more(self, node: str) -> msg.Round:
        """The last one, for a node that has missed it.

        Others of its places may have missed it as well, and not be known to have: each has one.
        """
        assert self.formed is not None
        return dataclasses.replace(self.formed, again_for=node)

    def published(self, formed: msg.Round, now: float) -> None:
        """It is on its way to all launchers."""
        self.formed, self._revise_from = formed, now + NEWS_S
        can_move = bool(formed.successors) and not formed.is_last
        self.lease.formed(formed.electorate, now, can_move=can_move)

    def revise_at(self) -> float:
        """When to revise it; infinity: it is as it would be."""
        formed = self.formed
        if formed is None or formed.is_last or len(formed.electorate) > _REVISED_NODES:
            return math.inf
        leads_at = self._leads_at()
        if leads_at is None or not leads_at.port:
            return math.inf  # the job ends with this leader
        have_round = self._have_round.intersection(formed.learners)
        if have_round and len(have_round) == len(formed.learners):
            return self._revise_from - NEWS_S  # now: all that came have a vote then
        if self.nodes.ready.keys() == {*formed.spares} and not have_round:
            launchers = len(formed.electorate) - bool(formed.witness)
            if formed.witness == self.nodes.witness_for(launchers):
                return math.inf
        return self._revise_from

    @property
    def settled(self) -> tuple[int, ...]:
        """Version of the last one, if enough launchers have it; else empty."""
        return self.formed.version if self.formed is not None and self.lease.is_settled else ()

    def received(self, node: str, version: tuple[int, ...]) -> bool:
        """A launcher has this round; whether enough have the last one since."""
        learners = () if self.formed is None else self.formed.learners
        if node in learners and version[:1] == (self.term,):
            self._have_round.add(node)
        is_last = self.formed is not None and version == self.formed.version
        return is_last and self.lease.received(node)

    def successors(self, nodes: Iterable[str]) -> tuple[msg.Successor, ...]:
        """The first of these that can lead, in order."""
        alive = self.nodes.alive
        able = (alive[node] for node in nodes if node != self.home and node in alive)
        first = islice((it for it in able if it.serves), _SUCCESSORS)
        return tuple(msg.Successor(it.id, it.addr, it.serves) for it in first)

    def _leads_at(self) -> msg.Successor | None:
        desc = self.nodes.alive.get(self.home)
        return None if desc is None else msg.Successor(self.home, desc.addr, desc.serves)

    def _witness_beside(self, nodes: Iterable[str]) -> str:
        """A launcher that has come back as another node has one vote."""
        return self.nodes.witness_for(len({*map(msg.elector, nodes)}))
