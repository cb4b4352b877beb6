"""Decide which nodes have ranks in the next cycle, and which ranks.

Pure. The same nodes give the same answer in whatever order they come.

1. **How many.** The most nodes that ``--nnodes MIN:MAX`` allows are active (or the least, with
   ``active="min"``); every other node is a spare. Fewer than MIN is an error.
2. **Which order**, see :class:`Policy`. *By infra rank*: the number that Slurm or the user gave a
   node is its group rank. Holes below the number of active nodes are filled by the nodes beyond it,
   the smallest infra rank first. Numbers that only order nodes (``infra_is_place`` False) are
   compacted to 0, 1, 2 ... If one node has no infra rank, all are assigned *by descriptor*: a node
   keeps the rank it had; the nodes that have waited longest take the places that are left, and
   among them ranks follow (address, pid, id).
3. **Segments** (``segment=N``): ranks ``k * N ... k * N + N - 1`` are of one domain (one NVLink
   fabric, say), so only whole multiples of N nodes of a domain can be active. Infra ranks only
   order nodes then.

Invariant R-1: a rank number has one owner, and the numbers have no holes.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from holdfast.base.pure.value import Value
from holdfast.base.pure.wording import count
from holdfast.errors import HoldfastError
from holdfast.job.pure.membership import CyclePlace, Descriptor

NAMED = 4
"""How many nodes a text names before it only counts them; a job may have 10,000."""


class Problem(enum.Enum):
    """Why nodes cannot have ranks."""

    POLICY = "policy"
    """Waiting cannot cure it."""
    BAD_NODE = "bad node"
    DUPLICATE_NODE = "duplicate node"
    DUPLICATE_INFRA_RANK = "duplicate infra rank"
    TOO_FEW_NODES = "too few nodes"
    TOO_FEW_SEGMENTS = "too few segments"


class AssignmentError(HoldfastError):
    """These nodes cannot have ranks under this policy.

    Attributes:
        problem: Of which kind.
        nodes: Ids of the nodes at fault, in the order in which they joined; empty: none is.
        domains: Number of nodes of each domain, where that is the problem.
    """

    def __init__(
        self,
        problem: Problem,
        text: str,
        nodes: Iterable[str] = (),
        domains: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(text)
        self.problem = problem
        self.nodes = tuple(nodes)
        self.domains = dict(domains or {})

    @property
    def facts(self) -> tuple[object, ...]:
        """Equal for two errors of one cause."""
        return self.problem, self.nodes, *self.domains.items()


@dataclass(frozen=True)
class NodeDesc(Descriptor):
    """A launcher that is ready for the next cycle.

    Attributes:
        id: Its incarnation; a launcher that is started again is another one.
        joined: Its place in the queue; smaller came earlier.
    """

    id: str = ""
    joined: int = 0

    def __str__(self) -> str:
        return f"{self.hostname or self.addr} (pid {self.pid})"


@dataclass(frozen=True)
class Policy:
    """How nodes get ranks; the same for all cycles of a job.

    Attributes:
        min_nodes: Fewer active nodes than this are none.
        max_nodes: More active nodes than this there never are.
        use_infra_group_rank: Ranks by infra rank where every node has one; False: by descriptor.
        active: ``max``: as many nodes as are there, up to ``max_nodes``, as under torchrun;
            ``min``: ``min_nodes`` of them, all others are spares.
        segment: Nodes of one domain with consecutive ranks; ``None``: domains don't count.

    Raises:
        AssignmentError: These values contradict each other.
    """

    min_nodes: int = 1
    max_nodes: int = 1
    use_infra_group_rank: bool = True
    active: Literal["max", "min"] = "max"
    segment: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.min_nodes <= self.max_nodes:
            raise AssignmentError(
                Problem.POLICY, f"--nnodes: {self.nnodes!r} cannot be used; it takes 0 < MIN <= MAX"
            )
        if self.segment is None:
            return
        if self.segment < 1:
            raise AssignmentError(
                Problem.POLICY, f"--ft-segment: {self.segment} cannot be used; it takes at least 1"
            )
        if self.min_nodes % self.segment:
            raise AssignmentError(
                Problem.POLICY,
                f"--ft-segment: {self.segment} cannot be used with --nnodes {self.nnodes}; "
                f"the least number of nodes must be a multiple of {self.segment}",
            )

    @property
    def nnodes(self) -> str:
        """As on the command line."""
        if self.min_nodes == self.max_nodes:
            return str(self.min_nodes)
        return f"{self.min_nodes}:{self.max_nodes}"

    @property
    def wanted(self) -> int:
        """Active nodes of a cycle that has all it can have; more nodes than these are spares."""
        most = self.min_nodes if self.active == "min" else self.max_nodes
        return most - most % (self.segment or 1)


class NoteOn(enum.Enum):
    """A fact about an assignment that people should know."""

    NO_INFRA_RANK = "ranks follow addresses: these nodes have no infra rank; no nodes: none has"
    NO_DOMAIN = "these nodes stay spares, as no domain is known of them"
    ODD_MAXIMUM = "MAX is not a multiple of the segment"
    HOLES_FILLED = "these nodes get other places than their infra ranks"


class AssignmentNote(Value):
    """For people; :func:`.job_words.assignment_note` renders it.

    Attributes:
        places: Group ranks of ``nodes``, where they fill holes.
        policy: Where it cannot be used to the full.
    """

    on: NoteOn
    nodes: tuple[NodeDesc, ...] = ()
    places: tuple[int, ...] = ()
    policy: Policy | None = None


class Assignment(Value):
    """The role of each node in a cycle.

    Attributes:
        places: The active nodes by group rank; ``places[0]`` is the master.
        spares: Ids of the nodes without ranks, in the order of their turns.
        notes: Equal for the same cause.
    """

    places: tuple[CyclePlace, ...]
    spares: tuple[str, ...] = ()
    notes: tuple[AssignmentNote, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        last = self.places[-1]
        return last.rank_offset + last.nproc

    @property
    def group_ranks(self) -> dict[str, int]:
        """Group rank by node id, which the next cycle takes as ``previous``."""
        return {place.node: place.group_rank for place in self.places}


class _Order(Value):
    """How nodes compare: in rank, in the queue for places, and the places that they want."""

    rank_key: Callable[[NodeDesc], Any]
    queue_key: Callable[[NodeDesc], Any]
    wishes: Mapping[str, int]
    infra_ranks_are_places: bool = False
    notes: tuple[AssignmentNote, ...] = ()


def assign(
    nodes: Iterable[NodeDesc], policy: Policy, previous: Mapping[str, int] | None = None
) -> Assignment:
    """Give ranks to nodes.

    Args:
        nodes: All that are ready, in any order.
        policy: The job's.
        previous: Group rank by node id in the cycle before; ids that are gone do no harm.

    Raises:
        AssignmentError: No cycle can be formed of these nodes.
    """
    present = list(nodes)
    _check(present)
    if len(present) < policy.min_nodes:
        raise AssignmentError(Problem.TOO_FEW_NODES, _too_few(present, policy))
    order = _order(present, policy, previous or {})
    domains, notes = _domains(present, policy, order)
    owners = _share_segments(domains, policy, order)
    segment = policy.segment or 1

    placed: dict[int, NodeDesc] = {}
    for domain, segments in owners.items():
        free = [k * segment + i for k in segments for i in range(segment)]
        placed.update(_fill(free, domains[domain], order))
    # a dict has one owner per rank; that there are no holes has to be proved
    assert len(placed) == sum(map(len, owners.values())) * segment
    actives = [placed[rank] for rank in range(len(placed))]

    offsets = accumulate((node.nproc for node in actives), initial=0)
    active_ids = {node.id for node in actives}
    spares = [node for node in present if node.id not in active_ids]
    return Assignment(
        places=tuple(
            CyclePlace(node.id, rank, node.nproc, offset, node.addr)
            for (rank, node), offset in zip(enumerate(actives), offsets, strict=False)
        ),
        spares=tuple(node.id for node in sorted(spares, key=order.queue_key)),
        notes=(*order.notes, *notes, *_filled_holes(actives, order)),
    )


# ------------------------------------------------------------------ nodes that cannot be
def _check(nodes: Sequence[NodeDesc]) -> None:
    by_id = _group(nodes, lambda node: node.id)
    for same in by_id.values():
        if len(same) > 1:
            raise AssignmentError(
                Problem.DUPLICATE_NODE,
                f"{name_some(same)} are there under one id, {same[0].id!r}",
                [same[0].id],
            )
    bad = [node for node in nodes if node.nproc < 1 or (node.infra_rank or 0) < 0]
    if bad:
        raise AssignmentError(
            Problem.BAD_NODE,
            f"{name_some(bad)} cannot take part: a node runs at least 1 rank and its infra rank is "
            f"at least 0; the first has {bad[0].nproc} and {bad[0].infra_rank}",
            _ids(bad),
        )


def _check_infra_ranks(nodes: Sequence[NodeDesc]) -> None:
    by_rank = _group(nodes, lambda node: node.infra_rank)
    twice = {rank: same for rank, same in by_rank.items() if len(same) > 1}
    if not twice:
        return
    rank, same = min(twice.items(), key=lambda item: item[1][0].infra_rank or 0)
    more = f", and {len(twice) - 1} more infra ranks like it" if len(twice) > 1 else ""
    raise AssignmentError(
        Problem.DUPLICATE_INFRA_RANK,
        f"infra rank {rank} is claimed by {count(len(same), 'node')}: {name_some(same)}{more}. "
        "Start one launcher per node, each with its own SLURM_PROCID or GROUP_RANK, or number "
        "nodes without them: --ft-use-infra-group-rank false",
        _ids(node for group in twice.values() for node in group),
    )


def _too_few(nodes: Sequence[NodeDesc], policy: Policy) -> str:
    there = count(len(nodes), "node")
    names = f" ({name_some(nodes)})" if nodes else ""
    return f"{there} of at least {policy.min_nodes}{names}; --nnodes is {policy.nnodes}"


# ------------------------------------------------------------------ order
def _descriptor(node: NodeDesc) -> tuple[str, int, str]:
    return node.addr, node.pid, node.id


def _order(nodes: Sequence[NodeDesc], policy: Policy, previous: Mapping[str, int]) -> _Order:
    notes: tuple[AssignmentNote, ...] = ()
    if policy.use_infra_group_rank:
        without = [node for node in nodes if node.infra_rank is None]
        if not without:
            _check_infra_ranks(nodes)
            return _infra_order(nodes, policy)
        named = sorted(without, key=_descriptor) if len(without) < len(nodes) else ()
        notes = (AssignmentNote(NoteOn.NO_INFRA_RANK, tuple(named)),)
    return _Order(
        rank_key=_descriptor,
        queue_key=lambda node: (node.id not in previous, node.joined, _descriptor(node)),
        wishes=previous,
        notes=notes,
    )


def _infra_order(nodes: Sequence[NodeDesc], policy: Policy) -> _Order:
    def by_infra_rank(node: NodeDesc) -> int | None:
        return node.infra_rank

    # in whole segments no node can insist on a place: its domain decides
    if policy.segment is not None or not all(node.infra_is_place for node in nodes):
        return _Order(by_infra_rank, by_infra_rank, {})
    return _Order(
        rank_key=by_infra_rank,
        queue_key=by_infra_rank,
        wishes={node.id: node.infra_rank for node in nodes if node.infra_rank is not None},
        infra_ranks_are_places=True,
    )


def _filled_holes(actives: Sequence[NodeDesc], order: _Order) -> tuple[AssignmentNote, ...]:
    if not order.infra_ranks_are_places:
        return ()
    moved = [(rank, node) for rank, node in enumerate(actives) if node.infra_rank != rank]
    if not moved:
        return ()
    ranks, nodes = zip(*moved, strict=True)
    return (AssignmentNote(NoteOn.HOLES_FILLED, nodes, ranks),)


# ------------------------------------------------------------------ domains and places
def _domains(
    nodes: Sequence[NodeDesc], policy: Policy, order: _Order
) -> tuple[dict[str, list[NodeDesc]], tuple[AssignmentNote, ...]]:
    """Nodes by domain, the domain of the first node first; one domain when domains don't count."""
    if policy.segment is None:
        return {"": sorted(nodes, key=order.rank_key)}, ()
    domains: dict[str, list[NodeDesc]] = {}
    without = []
    for node in sorted(nodes, key=order.rank_key):
        if node.domain is None:
            without.append(node)
        else:
            domains.setdefault(node.domain, []).append(node)
    notes: list[AssignmentNote] = []
    if without:
        notes.append(AssignmentNote(NoteOn.NO_DOMAIN, tuple(without)))
    if policy.max_nodes % policy.segment:
        notes.append(AssignmentNote(NoteOn.ODD_MAXIMUM, policy=policy))
    return domains, tuple(notes)


def _share_segments(
    domains: Mapping[str, Sequence[NodeDesc]], policy: Policy, order: _Order
) -> dict[str, list[int]]:
    """Numbers of the segments that each domain fills; together 0, 1, 2 ... without holes.

    A segment goes to the domain that has most nodes wanting a place in it; the other segments go to
    the domains in their order.
    """
    size = policy.segment or 1
    room = {domain: len(nodes) // size for domain, nodes in domains.items()}
    count = min(sum(room.values()), policy.wanted // size)
    if count * size < policy.min_nodes:
        sizes = {domain: len(nodes) for domain, nodes in domains.items()}
        text = _too_few_segments(sizes, sum(room.values()), policy)
        raise AssignmentError(Problem.TOO_FEW_SEGMENTS, text, domains=sizes)
    place_in_line = {domain: index for index, domain in enumerate(domains)}
    claims: Counter[tuple[int, str]] = Counter()
    for domain, nodes in domains.items():
        for node in nodes:
            wish = order.wishes.get(node.id, -1)
            if 0 <= wish < count * size:
                claims[wish // size, domain] += 1

    def strongest_first(item: tuple[tuple[int, str], int]) -> tuple[int, int, int]:
        (segment, domain), claim = item
        return -claim, segment, place_in_line[domain]

    shares: dict[str, list[int]] = {domain: [] for domain in domains}
    free = dict.fromkeys(range(count))
    for (segment, domain), _claim in sorted(claims.items(), key=strongest_first):
        if segment in free and room[domain]:
            shares[domain].append(segment)
            room[domain] -= 1
            del free[segment]
    left = list(free)
    for domain in domains:
        taken, left = left[: room[domain]], left[room[domain] :]
        shares[domain] += taken
    return shares


def _too_few_segments(sizes: Mapping[str, int], whole: int, policy: Policy) -> str:
    by_domain = [f"{size} in {domain}" for domain, size in sizes.items()]
    shown = ", ".join(by_domain[:NAMED]) + and_more(len(sizes)) if sizes else "none known"
    return (
        f"--ft-segment {policy.segment}: {count(whole, 'whole segment')} in "
        f"{count(len(sizes), 'domain')}, {policy.min_nodes // (policy.segment or 1)} are "
        f"needed for {count(policy.min_nodes, 'node')}; nodes by domain: {shown}"
    )


def _fill(
    free: Sequence[int], nodes: Sequence[NodeDesc], order: _Order
) -> Iterable[tuple[int, NodeDesc]]:
    """One owner for each place: a node that wants exactly it, else one that waits, by rank."""
    places = dict.fromkeys(sorted(free))
    rest = []
    for node in nodes:  # in order of rank: of two who want one place (none should) the first has it
        wish = order.wishes.get(node.id, -1)
        if wish in places:
            del places[wish]
            yield wish, node
        else:
            rest.append(node)
    chosen = sorted(sorted(rest, key=order.queue_key)[: len(places)], key=order.rank_key)
    yield from zip(places, chosen, strict=True)


# ------------------------------------------------------------------ order and names
def _group(nodes: Iterable[NodeDesc], key: Callable[[NodeDesc], Any]) -> dict[Any, list[NodeDesc]]:
    groups = defaultdict(list)
    for node in sorted(nodes, key=lambda node: (node.joined, _descriptor(node))):
        groups[key(node)].append(node)
    return groups


def _ids(nodes: Iterable[NodeDesc]) -> list[str]:
    return [node.id for node in sorted(nodes, key=lambda node: (node.joined, _descriptor(node)))]


def name_some(nodes: Sequence[NodeDesc]) -> str:
    """Names of nodes for people: the first few, and how many more there are."""
    shown = ", ".join(str(node) for node in sorted(nodes, key=_descriptor)[:NAMED])
    return shown + and_more(len(nodes))


def and_more(count: int) -> str:
    """The end of a list that names the first few of so many."""
    return f" and {count - NAMED} more" if count > NAMED else ""
