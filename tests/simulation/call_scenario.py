"""A call of a wrapped function, and what goes wrong in it; drawn from a seed, or by hand."""

from __future__ import annotations

import enum
import random

from holdfast.base.pure.value import Value

FOR_EVER_S = 1e6


class What(enum.Enum):
    """What a rank does instead of its work, once."""

    RAISE = "raises"
    LEAVE = "leaves"
    HANG = "hangs, and can be interrupted"
    HANG_AGAIN = "the same, in each epoch from then on"
    HOLD = "holds the interpreter"
    DIE = "dies"
    SWALLOW = "swallows every interrupt"
    SLOW = "takes long to unwind"
    LATE_RAISE = "raises while others are done"


class RankFault(Value):
    """In ``epoch``, the rank that was born as ``rank`` does ``what`` after ``after_s`` of work."""

    epoch: int
    rank: int
    what: What
    after_s: float = 0.5


class GuardDies(Value):
    """The guard of a node dies; that of node 0 takes the coordinator with it."""

    at: float
    node: int


class Cut(Value):
    """Nothing passes between a node and the coordinator for a while."""

    at: float
    node: int
    for_s: float


class GuardStops(Value):
    """The guard of a node is stopped for a while; the coordinator with it, where it is there."""

    at: float
    node: int
    for_s: float


class NodeStops(Value):
    """All processes of a node are stopped for a while, as when a container is frozen."""

    at: float
    node: int
    for_s: float


NodeFault = GuardDies | Cut | GuardStops | NodeStops


class Call(Value):
    """A call of a wrapped function, and what goes wrong in it."""

    ranks: int
    per_node: int
    faults: tuple[RankFault, ...] = ()
    node_faults: tuple[NodeFault, ...] = ()
    drops_odd: bool = False
    """The assignment leaves out the last place of a world of odd size."""
    active: int | None = None
    """At most so many ranks work, the others stand by; None: all work."""
    work_s: float = 1.0
    """How long a rank works before it waits for the others."""
    snapshots: bool = False
    """Ranks take them, and begin from them."""
    bad: float = 0.0
    """So often a rank cannot use its part."""
    began: int = 0
    """The step of the snapshot that the launchers have chosen for the cycle; 0: none."""
    is_broken: bool = False
    """A rank that begins from that one fails before its first step."""
    ends_at: float = 0.0
    """Launchers end all ranks then, and choose a snapshot for the next cycle; 0: there are none."""


def random_call(seed: int, ranks: int = 8) -> Call:
    """A call with one to four faults, often two at the same time."""
    rng = random.Random(seed)
    per_node = rng.choice([1, 2, 4])
    faults = []
    for _ in range(rng.randint(1, 4)):
        epoch = rng.choice([0, 0, 0, 1, 1, 2])
        after_s = rng.choice([0.0, 0.001, 0.5, 0.5, rng.random()])
        faults.append(RankFault(epoch, rng.randrange(ranks), rng.choice(list(What)), after_s))
        if rng.random() < 0.3:  # another, at the same time
            other = rng.randrange(ranks)
            faults.append(RankFault(epoch, other, rng.choice(list(What)), after_s))
    node_faults: list[NodeFault] = []
    if rng.random() < 0.4:
        node = rng.randrange((ranks + per_node - 1) // per_node)
        at = rng.choice([0.5, 1.0, rng.random() * 5])
        for_s = rng.choice([0.5, 5.0, 19.0, 22.0, 25.0, 27.0, 31.0, 200.0, FOR_EVER_S])
        kind = rng.choice([GuardDies, Cut, GuardStops, NodeStops])
        node_faults.append(GuardDies(at, node) if kind is GuardDies else kind(at, node, for_s))
    drops_odd, active = rng.random() < 0.2, rng.choice([None, None, rng.randint(1, ranks)])
    snapshots, bad = rng.random() < 0.7, rng.choice([0.0, 0.0, 0.1])
    about = (tuple(faults), tuple(node_faults), drops_odd, active)
    return Call(ranks, per_node, *about, snapshots=snapshots, bad=bad)


def random_end_by_launchers(seed: int) -> Call:
    """A rank dies, and the launchers end all ranks a little before or after the others go on."""
    rng = random.Random(seed)
    ranks = rng.choice([2, 3, 4])
    epoch = rng.choice([0, 0, 1])
    faults = [RankFault(epoch, rng.randrange(ranks), What.DIE, rng.uniform(0.2, 0.95))]
    if epoch:
        faults.append(RankFault(0, rng.randrange(ranks), What.RAISE, rng.uniform(0.2, 0.95)))
    for later in range(epoch + 1, epoch + 3):
        if rng.random() < 0.5:
            what = rng.choice([What.RAISE, What.RAISE, What.DIE, What.LEAVE])
            faults.append(RankFault(later, rng.randrange(ranks), what, rng.uniform(0.0, 0.9)))
    return Call(
        ranks,
        rng.choice([1, 2, 4]),
        tuple(faults),
        snapshots=True,
        bad=rng.choice([0.0, 0.0, 0.2]),
        began=rng.choice([0, 0, 5]),
        ends_at=(1 + epoch) * rng.uniform(0.4, 3.0),
    )
