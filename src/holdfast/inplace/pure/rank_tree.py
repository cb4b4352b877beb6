"""New numbers for the ranks that are left: without gaps, each with one owner (R-1). Pure.

Every rank computes the same from the same dead set, in functions for numbers alone (``dead`` holds
ranks as numbered before, below ``world``), or in a tree, where a loss stays inside its node, rack,
... and ranks are active or inactive.

    layer 0              root                 one group that all ranks are in
    layer 1       a               b           groups by key, e.g. nodes
    leaves     0  1  2  3      4  5  6  7     ranks, in the order of the tree

Each leaf has an *active index*, or is inactive. When ranks are lost:

1. Bottom-up, a group with fewer than ``min_ranks`` living leaves is given up: all its leaves go.
2. Each lost active leaf climbs while its groups carry RESERVE. The first that has an inactive
   leaf gives the one that was deactivated last, and that one inherits the index.
3. For each index still without an owner: in the highest group that is reached through BACKFILL
   groups only, the leaves with the largest indices move into the holes.
4. Holes that remain are closed by shifting all larger indices down.

Ranks are then numbered in the order of the tree: leaf ``k`` has rank ``k``.
"""

from __future__ import annotations

import enum
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any


def shifted(rank: int, dead: AbstractSet[int]) -> int | None:
    """New number of ``rank`` when all move down past the dead; ``None``: it is dead."""
    if rank in dead:
        return None
    return rank - sum(gone < rank for gone in dead)


def gaps_filled(rank: int, world: int, dead: AbstractSet[int]) -> int | None:
    """New number of ``rank`` when as few as possible move; ``None``: it is dead.

    A rank below the new world size keeps its number. The others take the numbers of the dead below
    it, both in ascending order.
    """
    if rank in dead:
        return None
    new_world = world - len(dead)
    if rank < new_world:
        return rank
    place = rank - new_world - sum(new_world <= gone < rank for gone in dead)
    return sorted(gone for gone in dead if gone < new_world)[place]


def members_of_failing_groups(
    keys: Iterable[tuple[int, Any]], dead: AbstractSet[int], condition: Callable[[int], object]
) -> frozenset[int]:
    """Living ranks whose group has a number of living ranks that ``condition`` rejects.

    ``keys``: of each rank, its number and its group, hashable; those of dead ranks do not count.
    """
    living = [(rank, key) for rank, key in keys if rank not in dead]
    counts = Counter(key for _, key in living)
    failing = {key for key, count in counts.items() if not condition(count)}
    return frozenset(rank for rank, key in living if key in failing)


def at_most(size: int, most: int | None) -> int:
    """Number of active ranks when ``most`` are wanted; ``None``: all."""
    return size if most is None else min(size, most)


def multiple_of(size: int, divisor: int) -> int:
    """The largest multiple of ``divisor`` that is at most ``size``."""
    return size // divisor * divisor


# ---------------------------------------------------------------- trees
class LayerFlag(enum.Flag):
    """How the ranks of a group replace each other; flags combine with ``|``."""

    RESERVE = enum.auto()
    """Inactive ranks take the place of lost active ones of their group."""
    BACKFILL = enum.auto()
    """The last active ranks of a group move into the places of its lost ones."""


NO_FLAG = LayerFlag(0)


@dataclass(frozen=True)
class LayerRule:
    """The rule for each group of one layer; see ``inprocess.rank_assignment.Layer``."""

    min_ranks: int = 1
    max_ranks: int | None = None
    flag: LayerFlag = NO_FLAG


class TreeError(ValueError):
    """These ranks do not make one tree."""


@dataclass(frozen=True)
class RankTree:
    """The ranks of one iteration. Leaf ``k`` is rank ``k``.

    Attributes:
        rules: Of each layer, the root first.
        paths: Of each leaf, the group it is in, per layer.
        owners: Of each active index, its leaf.
        benched: Inactive leaves, the one deactivated last at the end.
    """

    rules: tuple[LayerRule, ...]
    paths: tuple[tuple[int, ...], ...]
    owners: tuple[int, ...]
    benched: tuple[int, ...]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.paths)

    @property
    def active_world_size(self) -> int:
        """Number of ranks that work."""
        return len(self.owners)

    @functools.cached_property
    def active(self) -> tuple[int | None, ...]:
        """Of each leaf, its active index; ``None``: inactive."""
        index_of = {leaf: index for index, leaf in enumerate(self.owners)}
        return tuple(index_of.get(leaf) for leaf in range(self.world_size))

    def without(self, dead: AbstractSet[int]) -> tuple[RankTree, tuple[int | None, ...]]:
        """The tree after the loss of these ranks, and each old rank's new number.

        ``None``: it is lost, or given up with its group.
        """
        lost = self._with_groups_too_small(dead)
        owners = [None if leaf in lost else leaf for leaf in self.owners]
        _take_reserves(self, lost, owners)
        _fill_back(self, owners)
        active = [leaf for leaf in owners if leaf is not None]
        idle = set(self.benched) - lost - set(active)
        benched = [leaf for leaf in self.benched if leaf in idle]
        living = [leaf for leaf in range(self.world_size) if leaf not in lost]
        names = {leaf: name for name, leaf in enumerate(living)}
        tree = RankTree(
            self.rules,
            tuple(self.paths[leaf] for leaf in living),
            tuple(names[leaf] for leaf in active),
            tuple(names[leaf] for leaf in benched),
        )
        return tree, tuple(names.get(leaf) for leaf in range(self.world_size))

    def with_active_world_size(self, size: int) -> RankTree:
        """Ranks with an active index of ``size`` or more are inactive from now on."""
        if size >= self.active_world_size:
            return self
        benched = self.benched + self.owners[size:]
        return RankTree(self.rules, self.paths, self.owners[:size], benched)

    def _with_groups_too_small(self, dead: AbstractSet[int]) -> set[int]:
        lost = set(dead)
        for depth in reversed(range(len(self.rules))):
            living: defaultdict[int, list[int]] = defaultdict(list)
            for leaf, path in enumerate(self.paths):
                if leaf not in lost:
                    living[path[depth]].append(leaf)
            for leaves in living.values():
                if len(leaves) < self.rules[depth].min_ranks:
                    lost.update(leaves)
        return lost


def grow(
    rules: Sequence[LayerRule], keys: Sequence[Sequence[Hashable]]
) -> tuple[RankTree, list[int]]:
    """The first tree, and which rank each of its leaves was, from the rules and keys per layer.

    Depth first, a leaf becomes active unless a group above it has its ``max_ranks`` already.

    Raises:
        TreeError: Ranks differ in the number of layers, or there is more than one root.
    """
    for rank, path in enumerate(keys):
        if len(path) != len(rules):
            raise TreeError(
                f"rank {rank} has {len(path)} layers and this one {len(rules)}: "
                "every rank must be given the same layers"
            )
    if len(roots := dict.fromkeys(path[0] for path in keys)) > 1:
        some = ", ".join(map(repr, list(roots)[:4]))
        raise TreeError(
            f"the first layer is the root and needs one key for all ranks; there are "
            f"{len(roots)}: {some}{', ...' if len(roots) > 4 else ''}"
        )
    numbers: dict[tuple[Hashable, ...], int] = {}
    """Groups in order of arrival; a group is its key and those above it."""
    arrived = [
        tuple(
            numbers.setdefault(tuple(path[: depth + 1]), len(numbers))
            for depth in range(len(rules))
        )
        for path in keys
    ]
    order = sorted(range(len(keys)), key=lambda rank: (arrived[rank], rank))
    paths = tuple(arrived[rank] for rank in order)
    counts: defaultdict[int, int] = defaultdict(int)
    owners: list[int] = []
    benched: list[int] = []
    for leaf, path in enumerate(paths):
        if any(
            rule.max_ranks is not None and counts[group] >= rule.max_ranks
            for rule, group in zip(rules, path, strict=True)
        ):
            benched.append(leaf)
            continue
        owners.append(leaf)
        for group in path:
            counts[group] += 1
    return RankTree(tuple(rules), paths, tuple(owners), tuple(benched)), order


def _top(rules: Sequence[LayerRule], flag: LayerFlag) -> int:
    """Depth of the highest layer reached from a leaf through layers that carry ``flag`` only."""
    top = len(rules)
    while top and rules[top - 1].flag & flag:
        top -= 1
    return top


def _take_reserves(tree: RankTree, lost: AbstractSet[int], owners: list[int | None]) -> None:
    """Step 2: inactive leaves take indices of lost ones."""
    top = _top(tree.rules, LayerFlag.RESERVE)
    bench: defaultdict[int, list[int]] = defaultdict(list)
    for leaf in tree.benched:
        if leaf not in lost:
            for group in tree.paths[leaf]:
                bench[group].append(leaf)
    taken: set[int] = set()
    for leaf, index in sorted((leaf, i) for i, leaf in enumerate(tree.owners) if leaf in lost):
        for group in reversed(tree.paths[leaf][top:]):
            inactive = bench[group]
            while inactive and inactive[-1] in taken:
                inactive.pop()  # it was taken through another group
            if inactive:
                taken.add(inactive[-1])
                owners[index] = inactive.pop()
                break


def _fill_back(tree: RankTree, owners: list[int | None]) -> None:
    """Step 3: the last of a domain move into its holes."""
    top = _top(tree.rules, LayerFlag.BACKFILL)
    if top == len(tree.rules):
        return
    holes: defaultdict[int, list[int]] = defaultdict(list)
    owned: defaultdict[int, list[int]] = defaultdict(list)
    for index, (before, leaf) in enumerate(zip(tree.owners, owners, strict=True)):
        if leaf is None:
            holes[tree.paths[before][top]].append(index)
        else:
            owned[tree.paths[leaf][top]].append(index)
    for group, indices in holes.items():
        for hole, last in zip(indices, owned[group][-len(indices) :], strict=False):
            owners[hole], owners[last] = owners[last], None
