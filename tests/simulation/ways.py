"""The ways between the launchers of a simulated job: delays, cuts, and what is lost by a death."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from holdfast.testing.clock import VirtualClock
from tests.simulation.scenario import Cut, Network, Partition, Store
from tests.simulation.simulated_node import SimulatedNode

NO_ANSWER_S = 3.0
"""After that a connection that is not made is given up."""


@dataclass
class Ways:
    """Between all hosts; a host is cut off from all others, in one direction or both."""

    clock: VirtualClock
    network: Network
    rng: random.Random

    _out: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    _in: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    _parts: list[tuple[float, float, frozenset[int], bool]] = field(default_factory=list)
    _last_at: dict[tuple[int, int], float] = field(default_factory=dict)
    """When the last thing arrives that must not be overtaken, by launchers."""

    def cut(self, cut: Cut) -> None:
        """From now on."""
        during = self.clock.now, self.clock.now + cut.for_s
        if cut.up:
            self._out[cut.host].append(during)
        if cut.down:
            self._in[cut.host].append(during)

    def part(self, partition: Partition) -> None:
        """From now on these hosts are apart from the others."""
        now, hosts = self.clock.now, partition.hosts
        self._parts.append((now, now + partition.for_s, hosts, partition.one_way))

    def _cuts_between(self, source: int, target: int) -> list[tuple[float, float]]:
        parts = [
            (since, until)
            for since, until, hosts, one_way in self._parts
            if (source in hosts) is not (target in hosts) and not (one_way and source in hosts)
        ]
        return sorted([*self._out[source], *self._in[target], *parts])

    def are_open(self, one: SimulatedNode, other: SimulatedNode) -> bool:
        """Neither way between them is cut at the moment."""
        cuts = [
            *self._cuts_between(one.host, other.host),
            *self._cuts_between(other.host, one.host),
        ]
        return not any(since <= self.clock.now < until for since, until in cuts)

    def delay_s(self) -> float:
        """Of one message."""
        network = self.network
        if network.spike and self.rng.random() < network.spike:
            return self.rng.uniform(0, network.spike_s)
        return self.rng.uniform(*network.delay_s)

    def arrives_at(self, source: SimulatedNode, target: SimulatedNode) -> float:
        """When something sent now arrives; a cut holds it back."""
        at = self.clock.now + self.delay_s()
        if source.host == target.host:
            return at
        for since, until in self._cuts_between(source.host, target.host):
            if since <= at < until:
                at = until + self.delay_s()
        return at

    def to_store_at(self, store: Store, host: int) -> float:
        """When something sent now arrives at the store, or comes back from it."""
        at = self.clock.now + self.rng.uniform(*store.delay_s)
        cuts = [] if store.is_apart else self._out[host] + self._in[host]
        for since, until in sorted([*cuts, *store.outages]):
            if since <= at < until:
                at = until + self.rng.uniform(*store.delay_s)
        return at

    def in_order(self, source: SimulatedNode, target: SimulatedNode) -> float:
        """The same for something that arrives after all before it."""
        key = id(source), id(target)
        at = max(self.arrives_at(source, target), self._last_at.get(key, 0.0))
        self._last_at[key] = at
        return at

    def send(
        self, source: SimulatedNode, target: SimulatedNode, arrive: Callable[[], None]
    ) -> None:
        """In order; a launcher that dies takes a part of what is under way with it."""
        at = self.in_order(source, target)
        self.clock.call_at(at, partial(self._arrive, source, target, arrive))

    def _arrive(
        self, source: SimulatedNode, target: SimulatedNode, arrive: Callable[[], None]
    ) -> None:
        heard_until = source.heard_until.get(id(target))
        if heard_until is None or self.clock.now <= heard_until:
            arrive()

    def dies(self, source: SimulatedNode, target: SimulatedNode) -> float:
        """Of what is under way, some arrives; when all that does has."""
        end = max(self.clock.now, self._last_at.get((id(source), id(target)), 0.0))
        until = self.clock.now + self.rng.choice((0.0, 1.0, self.rng.random())) * (
            end - self.clock.now
        )
        source.heard_until[id(target)] = until
        return until

    def answers_at(self, source: SimulatedNode, target: SimulatedNode) -> float | None:
        """When a program there has answered a connection; None: it does not in time."""
        there = self.arrives_at(source, target)
        back = self.arrives_at(target, source)
        at = there + back - self.clock.now
        return at if at <= self.clock.now + NO_ANSWER_S else None
