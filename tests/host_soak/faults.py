"""Faults of hosts and links: what is done, for how long, and how it is undone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

from tests.host_soak.hosts import HostJob


@dataclass(frozen=True)
class Fault:
    """Something is done to hosts, and undone after ``lasts_s``.

    ``hosts``: 0 is the one whose launcher leads, and the others follow in order.
    """

    kind: str
    hosts: tuple[int, ...]
    lasts_s: float

    def __str__(self) -> str:
        names = " and ".join("the leader's" if it == 0 else f"host {it}" for it in self.hosts)
        return f"{self.kind}: {names}, {self.lasts_s:g} s"


def _pairs(one: Iterable[int], other: Iterable[int]) -> list[tuple[int, int]]:
    return [(a, b) for a, b in product(one, other) if a != b]


def begin(fault: Fault, job: HostJob) -> tuple[list[int], Callable[[], None]]:
    """Do it; returns the hosts, and what undoes it."""
    leader, count = job.leader(), job.layout.hosts
    places = [leader, *(it for it in range(count) if it != leader)]
    hosts = [places[it] for it in fault.hosts]
    rest = [it for it in range(count) if it not in hosts]

    def on_each(do: Callable[[int], None], undo: Callable[[int], None]) -> Callable[[], None]:
        for host in hosts:
            do(host)

        def undo_all() -> None:
            for host in hosts:
                undo(host)

        return undo_all

    def on_links(lost: list[tuple[int, int]]) -> Callable[[], None]:
        for pair in lost:
            job.network.lose(*pair)

        def undo_all() -> None:
            for pair in lost:
                job.network.deliver(*pair)

        return undo_all

    def suspend(host: int) -> None:
        job.cut(host)
        job.freeze(host)

    def resume(host: int) -> None:
        job.heal(host)
        job.thaw(host)

    kinds: dict[str, Callable[[], Callable[[], None]]] = {
        "processes frozen": lambda: on_each(job.freeze, job.thaw),
        "host suspended": lambda: on_each(suspend, resume),
        "launcher stopped": lambda: on_each(job.stop, job.go_on),
        "link cut": lambda: on_each(job.cut, job.heal),
        "cut in half": lambda: on_links(_pairs(hosts, rest) + _pairs(rest, hosts)),
        "sends are lost": lambda: on_links(_pairs(hosts, range(count))),
        "receives are lost": lambda: on_links(_pairs(range(count), hosts)),
        "one way to one host": lambda: on_links([(hosts[0], hosts[1])]),
    }
    return hosts, kinds[fault.kind]()


SLEEPS = ("processes frozen", "host suspended")
LINKS = ("link cut", "sends are lost", "receives are lost")


def frozen_hosts(_: int) -> list[Fault]:
    """The leader's and another's, for times below and above all silences."""
    return [Fault(kind, (host,), s) for kind in SLEEPS for host in (0, 1) for s in (3, 10, 60)]


def broken_links(hosts: int) -> list[Fault]:
    """The leader's and another's link, both ways and one; halves of the network."""
    minority = tuple(range((hosts - 1) // 2))
    return [
        *(Fault(kind, (host,), 30) for kind in LINKS for host in (0, 1)),
        Fault("link cut", (0,), 5),
        *([Fault("cut in half", minority, 30)] if minority else []),
        Fault("one way to one host", (0, 1), 30),
        Fault("one way to one host", (1, 0), 30),
    ]


def drawn(hosts: int, silence_s: float, rng: random.Random) -> Fault:
    """Any of these, on any host; a minority of them at a time.

    They last for less than eight silences, after which a launcher leaves that is alone.
    """
    kind = rng.choice([*SLEEPS, "launcher stopped", *LINKS, "cut in half", "one way to one host"])
    lasts_s = rng.choice(
        [it for it in (1, 3, 5, 8, 10, 12, 15, 20, 25, 40, 60) if it <= 5 * silence_s]
    )
    order = [0, *rng.sample(range(1, hosts), hosts - 1)]
    if rng.random() < 0.5:
        rng.shuffle(order)
    size = 2 if kind == "one way to one host" else rng.randint(1, max(1, (hosts - 1) // 2))
    return Fault(kind, tuple(order[:size]), lasts_s)
