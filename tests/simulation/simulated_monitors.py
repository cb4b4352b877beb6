"""The monitors of a simulated node: they find ranks hung, look, wait for the verdict, and kill.

K-2 is checked here, for each rank that is killed because it hung: before that, evidence of all
ranks of its node was there or the reason why not, and the launcher let its monitor go on in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from holdfast.base.pure.rank_sets import ranks_of
from holdfast.evidence.pure.evidence import RankDigest
from holdfast.node.pure import rank_life
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.watch.pure import monitor_messages

if TYPE_CHECKING:
    from tests.simulation.simulated_node import Rank, SimulatedNode

SIGKILL = 9
_SILENT = 0.05
"""Probability that a monitor answers no question in a cycle."""
_STARTS_S = 0.05
_QUICK_S = 0.05
"""On a network with longer ways the verdict of the others may come before a look is over."""


@dataclass
class _Hang:
    """A rank that is overdue, and what its monitor does about it."""

    rank: Rank
    cycle: int
    found_at: float
    is_ended: bool = False
    """Its monitor has signalled it, or is gone."""


class SimulatedMonitors:
    """Of one node.

    Attributes:
        overs: The last incident that the launcher has written down.
    """

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._hangs: dict[int, _Hang] = {}
        self._silent: set[tuple[int, int]] = set()
        self._without: set[int] = set()
        self._died: set[tuple[int | None, int]] = set()
        """Cycles and local ranks whose monitors have."""
        self._answers_at: dict[int, float] = {}
        self.over: IncidentOver | None = None

    # ------------------------------------------------------------ ranks hang
    def hang(self, *, every: bool = False) -> None:
        """The first rank hangs, or all do: its monitor finds it, and ends it when it may."""
        node = self._node
        if node.running is None or not node.ranks or not node.alive:
            return
        for local_rank, rank in list(node.ranks.items())[: None if every else 1]:
            if not rank.is_ending and rank.hung_at is None:
                node.failing = True
                rank.hung_at, rank.is_stubborn = node.world.clock.now, True
                self._find(local_rank, rank, node.running)

    def _find(self, local_rank: int, rank: Rank, cycle: int) -> None:
        node, now = self._node, self._node.world.clock.now
        if node.ranks.get(local_rank) is not rank or local_rank in self._without or not node.alive:
            return
        self._hangs[local_rank] = hang = _Hang(rank, cycle, now)
        about = "section", "step", 6.0, 5.0, False, now, now
        self._say(
            local_rank,
            monitor_messages.Overdue(cycle, local_rank, local_rank, 100 + local_rank, *about),
        )
        if evidence_s := node.core.node.evidence.timeout_s:
            node.clock.call_in(evidence_s, partial(self._by_itself, local_rank, hang))
        else:
            takes_s = node.rng.choice((0.05, 0.05, 1.0))
            node.clock.call_in(takes_s, partial(self._end, local_rank, hang))

    def _by_itself(self, local_rank: int, hang: _Hang) -> None:
        """The timeout of evidence is over."""
        node = self._node
        is_late = self._hangs.get(local_rank) is hang and not hang.is_ended
        if is_late and node.ranks.get(local_rank) is hang.rank:
            held_up = not node.alive or node.has_quit or node.paused_until > hang.found_at
            node.world.check(held_up, f"K-2: {node.name} lets a monitor wait for its verdict")
            self._end(local_rank, hang)

    def _end(self, local_rank: int, hang: _Hang) -> None:
        node = self._node
        is_there = node.ranks.get(local_rank) is hang.rank
        if hang.is_ended or not is_there or self._hangs.get(local_rank) is not hang:
            return
        hang.is_ended = True
        whose = hang.cycle, local_rank, 100 + local_rank
        took_s = node.world.clock.now - hang.found_at
        self._say(local_rank, monitor_messages.Evidence(*whose, None, None, took_s, None))
        self._say(local_rank, monitor_messages.Signalled(*whose, SIGKILL, "hung"))
        if node.alive and node.core.node.evidence.timeout_s and node.paused_until <= hang.found_at:
            over = self.over
            is_explained = over is not None and (over.cycle, local_rank) == (
                hang.cycle,
                local_rank if local_rank in over.overdue else -1,
            )
            what = f"K-2: local rank {local_rank} of {node.name} is killed, and no incident says so"
            node.world.check(is_explained or node.has_quit, what)
        if node.ranks.get(local_rank) is hang.rank:
            node.signal(local_rank, SIGKILL)
            outlived = monitor_messages.Unkillable(*whose, 15.0, "state D")
            node.clock.call_in(15.0, partial(self._outlives, local_rank, hang, outlived))

    def _outlives(self, local_rank: int, hang: _Hang, word: monitor_messages.Unkillable) -> None:
        if self._node.ranks.get(local_rank) is hang.rank:
            self._node.tell(rank_life.MonitorSaid(local_rank, word))

    def _say(self, local_rank: int, word: monitor_messages.ToLauncher) -> None:
        if self._node.alive:
            event = rank_life.MonitorSaid(local_rank, word)
            self._node.world.say(self._node.name, event)
            self._node.tell(event)

    # ------------------------------------------------------------ monitors come and go
    def die(self) -> None:
        """That of the first rank; the launcher starts another."""
        self._without.add(0)
        self._died.add((self._node.running, 0))
        if 0 in self._hangs:
            self._hangs[0].is_ended = True
        self._node.tell(rank_life.MonitorGone(0))

    def start(self, local_rank: int) -> None:
        """Another one; it finds what the last one had found."""
        self._node.clock.call_in(_STARTS_S, partial(self._starts, local_rank))

    def _starts(self, local_rank: int) -> None:
        self._without.discard(local_rank)
        self._say(local_rank, monitor_messages.MonitorReady())
        rank, cycle = self._node.ranks.get(local_rank), self._node.running
        if cycle is not None and rank and rank.hung_at is not None and not rank.is_ending:
            self._find(local_rank, rank, cycle)

    # ------------------------------------------------------------ an incident
    def carry_out(self, effect: rank_life.ToMonitors | IncidentOver) -> None:
        """What the launcher wants of its monitors, or writes down."""
        if isinstance(effect, IncidentOver):
            self._check(effect)
            self.over = effect
            return
        for local_rank, message in effect.messages.items():
            match message:
                case monitor_messages.CollectEvidence():
                    self._look(local_rank, message)
                case monitor_messages.Proceed(cycle=cycle):
                    hang = self._hangs.get(local_rank)
                    if hang is not None and hang.cycle == cycle and local_rank not in self._without:
                        self._node.clock.call_in(0.0, partial(self._end, local_rank, hang))

    def _look(self, local_rank: int, look: monitor_messages.CollectEvidence) -> None:
        node = self._node
        if node.rng.random() < _SILENT:
            self._silent.add((look.cycle, local_rank))
        takes_s = min(node.rng.choice((0.02, 0.05, 0.09, 0.3)), look.within_s)
        self._answers_at[local_rank] = node.world.clock.now + takes_s
        node.clock.call_in(takes_s, partial(self._looked, look, local_rank))

    def _looked(self, look: monitor_messages.CollectEvidence, local_rank: int) -> None:
        node = self._node
        is_silent = (look.cycle, local_rank) in self._silent or local_rank in self._without
        if is_silent or local_rank not in node.ranks or node.running != look.cycle:
            return
        digest = RankDigest(look.rank, node.name, local_rank, look.pid, "S", place="f x.py:1")
        self._say(local_rank, monitor_messages.EvidenceCollected(look.incident, look.cycle, digest))

    def _check(self, over: IncidentOver) -> None:
        node, place = self._node, self._node.core.node.place
        if place is None or over.cycle != node.core.node.cycle:
            return
        for local_rank in range(place.nproc):
            digest = over.digests.get(place.rank_offset + local_rank)
            node.world.check(
                digest is not None and bool(digest.place or digest.end or digest.lacks),
                f"K-2: {node.name} writes nothing of local rank {local_rank}, and not why",
            )
            ways_s = 2 * node.world.longest_way_s
            # A node that was cut off hears of the incident and of the verdict without it together.
            leader = node.world.leader
            too_late = leader is None or any(
                place.rank_offset in ranks_of(it.ranks) for it in leader.incidents.missing.values()
            )
            excused = (
                (too_late and node.world.clock.now < self._answers_at.get(local_rank, 0.0))
                or local_rank not in node.ranks
                or local_rank in self._without
                or (over.cycle, local_rank) in self._died
                or (over.cycle, local_rank) in self._silent
                or node.told_to_stop
                or node.signalled
                or node.paused_until > 0
                or ways_s > _QUICK_S
            )
            node.world.check(
                excused or digest is None or not (digest.end or digest.lacks),
                f"K-2: {node.name} lacks evidence of local rank {local_rank}, which was there",
            )
