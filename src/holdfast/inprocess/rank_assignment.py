"""New numbers for ranks, and which of them are active, after ranks were lost.

Every rank computes them. An assignment takes a :class:`RankAssignmentCtx` and gives it back,
changed: ``state.rank`` and ``state.world_size`` without gaps; ``state.mode``, ``state.active_rank``
and ``state.active_world_size`` where it makes ranks active or inactive; ``terminated_ranks`` empty.
Assignments of the first generation take and give ``(state, terminated_ranks)``; all of these here
do both. ``Compose(last, ..., first)`` makes one of several.
"""

from __future__ import annotations

import abc
import datetime as dt
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, overload

from holdfast.inplace.pure import rank_tree
from holdfast.inplace.pure.rank_tree import NO_FLAG, LayerFlag, LayerRule, RankTree, TreeError, grow
from holdfast.inprocess._timing import in_seconds
from holdfast.inprocess.compose import positional_capacity
from holdfast.inprocess.exception import RestartError
from holdfast.inprocess.state import Mode, State

__all__ = [
    "ActivateAllRanks",
    "ActiveWorldSizeDivisibleBy",
    "FillGaps",
    "FilterCountGroupedByKey",
    "FilterGroupedByKey",
    "Layer",
    "LayerFlag",
    "MaxActiveWorldSize",
    "RankAssignment",
    "RankAssignmentCtx",
    "RankDiscarded",
    "RankFilter",
    "ShiftRanks",
    "Tree",
    "WorldSizeDivisibleBy",
]


class RankDiscarded(RestartError):  # noqa: N818 - the name is public API
    """The assignment has no place for this rank; it leaves, and the others go on."""


@dataclass
class RankAssignmentCtx:
    """The input of an assignment, which changes it.

    Attributes:
        state: Of this rank.
        store: Of this iteration; its ``gather`` shows ranks each other's values.
        terminated_ranks: Numbers, before the assignment, of ranks that are lost or have left.
    """

    state: State
    store: Any
    terminated_ranks: set[int]
    _gathered: int = field(default=0, init=False, repr=False, compare=False)

    def gather(self, name: str, value: Any, timeout_s: float | None = None) -> list[Any]:
        """Values of all living ranks; the n-th call of a rank meets the n-th of the others.

        Over a store without ``gather``, such as ``inprocess.store.FileStore``, ranks that leave
        meanwhile are waited for.

        Raises:
            BarrierTimeout: Not all came in time.
            RestartError: The store cannot gather.
            TypeError: JSON cannot carry the value.
        """
        self._gathered += 1
        name = f"{name}/{self._gathered}"
        if not hasattr(self.store, "gather"):
            if hasattr(self.store, "exchange"):
                return self._exchange(name, value, timeout_s)
            raise RestartError(
                f"{name} needs to know of all ranks, and {self.store!r} has no gather(name, value, "
                "timeout_s): the Wrapper gives its assignments a store that has"
            )
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{name}: ranks exchange keys as JSON, which cannot carry this: {error}"
            ) from None
        found: list[Any] = self.store.gather(name, value, timeout_s)
        return found

    def _exchange(self, name: str, value: Any, timeout_s: float | None) -> list[Any]:
        """Over a store that does not know which ranks live, and may be as old as the job."""
        state, store, lost = self.state, self.store, self.terminated_ranks
        living = [rank for rank in range(state.world_size) if rank not in lost]
        if state.rank in lost:
            return []  # no rank waits for it
        # Exchanges of the same ranks are distinguished by how many ranks have come so far: all of
        # one come before any of the next. States cannot count: they may be new ones for each call.
        prefix = f"holdfast/{name}/{state.world_size}-{'.'.join(map(str, sorted(lost)))}"
        turn = (store.add(f"{prefix}/arrived", 1) - 1) // len(living)
        wait = {} if timeout_s is None else {"timeout": dt.timedelta(seconds=timeout_s)}
        found: list[Any] = store.exchange(
            f"{prefix}/{turn}", state.rank, len(living), value, ranks=living, **wait
        )
        return found


class RankAssignment(abc.ABC):
    """Base of all assignments. Raises :class:`RankDiscarded` where this rank has no place."""

    @abc.abstractmethod
    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Assign."""


class _Assignment(RankAssignment):
    """An assignment that is called in the manner of either generation."""

    @overload
    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx: ...
    @overload
    def __call__(self, ctx: State, terminated_ranks: set[int]) -> tuple[State, set[int]]: ...
    @overload
    def __call__(self, ctx: State) -> State: ...

    def __call__(
        self, ctx: RankAssignmentCtx | State, terminated_ranks: set[int] | None = None
    ) -> RankAssignmentCtx | tuple[State, set[int]] | State:
        """Assign, and give back what came."""
        if isinstance(ctx, RankAssignmentCtx):
            self._assign(ctx)
            return ctx
        whole = RankAssignmentCtx(ctx, ctx.store, set(terminated_ranks or ()))
        self._assign(whole)
        return ctx if terminated_ranks is None else (ctx, whole.terminated_ranks)

    @abc.abstractmethod
    def _assign(self, ctx: RankAssignmentCtx) -> None:
        """Change ``ctx``."""


def _renumber(ctx: RankAssignmentCtx, rank: int | None) -> None:
    state, dead = ctx.state, ctx.terminated_ranks
    if rank is None:
        raise RankDiscarded(
            f"rank {state.rank} (initially {state.initial_rank}) has no place after iteration "
            f"{state.iteration}: it is among the {len(dead)} of {state.world_size} ranks that are "
            "lost or were filtered out"
        )
    state.rank = rank
    state.world_size -= len(dead)
    ctx.terminated_ranks = set()


class ShiftRanks(_Assignment):
    """Every rank moves down past the lost ones: order is kept."""

    def _assign(self, ctx: RankAssignmentCtx) -> None:
        _renumber(ctx, rank_tree.shifted(ctx.state.rank, ctx.terminated_ranks))


class FillGaps(_Assignment):
    """As few ranks as possible move: the last take the numbers of the lost."""

    def _assign(self, ctx: RankAssignmentCtx) -> None:
        state = ctx.state
        _renumber(ctx, rank_tree.gaps_filled(state.rank, state.world_size, ctx.terminated_ranks))


def _key_of(key_or_fn: Any, state: State) -> Any:
    """A key, or the function's result, given ``state``, ``(rank, world_size)``, or nothing."""
    if not callable(key_or_fn):
        return key_or_fn
    needed, most = positional_capacity(key_or_fn)
    if needed == 2:  # the first generation's
        return key_or_fn(state.rank, state.world_size)
    return key_or_fn(state) if most else key_or_fn()


class FilterCountGroupedByKey(_Assignment):
    """Give up all ranks of groups that lost too many; an assignment has to follow.

    ``Compose(ShiftRanks(), FilterCountGroupedByKey(node_name, lambda count: count == 8))`` keeps
    nodes that have all of their 8 ranks.

    Args:
        key_or_fn: This rank's group, or a function of ``state`` or ``(rank, world_size)`` that
            returns it: anything that JSON can carry; a list and a tuple are the same.
        condition: Number of living ranks in a group to true where the group stays.
        timeout: How long ranks wait for each other's keys.
    """

    def __init__(
        self,
        key_or_fn: Any,
        condition: Callable[[int], bool],
        timeout: dt.timedelta = dt.timedelta(seconds=60),
    ) -> None:
        if not callable(condition):
            raise TypeError(f"condition should be a function of a count, is {condition!r}")
        self.key_or_fn = key_or_fn
        self.condition = condition
        self.timeout = timeout

    def _assign(self, ctx: RankAssignmentCtx) -> None:
        shown = (ctx.state.rank, _key_of(self.key_or_fn, ctx.state))
        gathered = ctx.gather(type(self).__name__, shown, in_seconds(self.timeout))
        keys = [(rank, _as_key(key)) for rank, key in gathered]
        ctx.terminated_ranks |= rank_tree.members_of_failing_groups(
            keys, ctx.terminated_ranks, self.condition
        )


FilterGroupedByKey = FilterCountGroupedByKey


class RankFilter(RankAssignment):
    """Base of assignments that only make ranks inactive; may take ``state`` instead of ``ctx``."""


class _Filter(_Assignment, RankFilter):
    """Ranks below some size are active; sizes start from the present active world size."""

    def _assign(self, ctx: RankAssignmentCtx) -> None:
        state = ctx.state
        world = state.world_size
        size = world if state.active_world_size is None else min(state.active_world_size, world)
        size = self._size(size)
        active = state.rank < size
        state.active_world_size = size
        state.active_rank = state.rank if active else None
        state.mode = Mode.ACTIVE if active else Mode.INACTIVE

    @abc.abstractmethod
    def _size(self, size: int) -> int:
        """How many of ``size`` are active."""


class ActivateAllRanks(_Assignment, RankFilter):
    """Every rank is active."""

    def _assign(self, ctx: RankAssignmentCtx) -> None:
        ctx.state.activate_all_ranks()


class MaxActiveWorldSize(_Filter):
    """At most so many ranks are active.

    Once smaller, the active world does not grow again, unless :class:`ActivateAllRanks` runs first.

    Args:
        max_active_world_size: How many; ``None``: no limit.
    """

    def __init__(self, max_active_world_size: int | None = None) -> None:
        if max_active_world_size is not None:
            _need_whole("max_active_world_size", max_active_world_size, 1)
        self.max_active_world_size = max_active_world_size

    def _size(self, size: int) -> int:
        return rank_tree.at_most(size, self.max_active_world_size)


class ActiveWorldSizeDivisibleBy(_Filter):
    """The largest number of ranks that ``divisor`` divides is active."""

    def __init__(self, divisor: int = 1) -> None:
        _need_whole("divisor", divisor, 1)
        self.divisor = divisor

    def _size(self, size: int) -> int:
        return rank_tree.multiple_of(size, self.divisor)


WorldSizeDivisibleBy = ActiveWorldSizeDivisibleBy


def _need_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} should be a whole number, is {value!r}")
    if value < least:
        raise ValueError(f"{name} should be at least {least}, is {value}")


@dataclass
class Layer:
    """One layer of a :class:`Tree`.

    Attributes:
        min_ranks: A group with fewer living ranks is given up, with all its ranks.
        max_ranks: At most so many ranks of a group are active at the start; ``None``: all.
        key_or_fn: This rank's group in this layer, or a function of ``state`` that returns it;
            anything that JSON can carry.
        flag: ``LayerFlag.RESERVE``, ``LayerFlag.BACKFILL``, both, or ``None``.
    """

    min_ranks: int = 1
    max_ranks: int | None = None
    key_or_fn: Any = ""
    flag: LayerFlag | None = None

    def __post_init__(self) -> None:
        if self.max_ranks is not None:
            _need_whole("max_ranks", self.max_ranks, 1)
        _need_whole("min_ranks", self.min_ranks, 0)
        if self.flag is not None and not isinstance(self.flag, LayerFlag):
            raise TypeError(f"flag should be a LayerFlag or None, is {self.flag!r}")


def _rule(layer: Layer) -> LayerRule:
    return LayerRule(layer.min_ranks, layer.max_ranks, layer.flag or NO_FLAG)


_LAYERS_ATTRIBUTES = tuple(part.name for part in fields(Layer))


class Tree(_Assignment):
    """Replace lost ranks by others of the same node, or rack; see ``inplace/pure/rank_tree.py``.

    Ranks exchange their keys once per call of the wrapped function, and compute the rest by
    themselves. Decides numbers and active ranks; cannot be composed with other assignments.

    Args:
        layers: The first is the root, and all ranks have one key there.
        world_size_filter: Number of active ranks to a number that is not larger: ranks from that
            one on are inactive.

    Raises:
        TypeError: A layer has not the attributes of a :class:`Layer`.
        ValueError: There is no layer.
    """

    def __init__(
        self, layers: Sequence[Layer], world_size_filter: Callable[[int], int] | None = None
    ) -> None:
        self.layers = list(layers)
        if not self.layers:
            raise ValueError("layers: a tree needs at least one")
        for layer in self.layers:
            missing = [name for name in _LAYERS_ATTRIBUTES if not hasattr(layer, name)]
            if missing:
                raise TypeError(
                    f"layers: should be Layer objects, or like them; {layer!r} has no "
                    f"{', '.join(missing)}"
                )
        self.world_size_filter = world_size_filter

    def _assign(self, ctx: RankAssignmentCtx) -> None:
        state = ctx.state
        known = state.kept.get(self)
        names: Sequence[int | None]
        if isinstance(known, RankTree):
            tree, names = known.without(ctx.terminated_ranks)
        else:
            tree, names = self._first_tree(ctx)
        name = names[state.rank]
        # Ranks that the tree gave up with their groups count as lost.
        ctx.terminated_ranks = {rank for rank, new in enumerate(names) if new is None}
        _renumber(ctx, name)
        assert name is not None
        tree = self._filtered(tree)
        state.kept = {**state.kept, self: tree}
        state.active_rank = tree.active[name]
        state.active_world_size = tree.active_world_size
        state.mode = Mode.INACTIVE if state.active_rank is None else Mode.ACTIVE

    def _first_tree(self, ctx: RankAssignmentCtx) -> tuple[RankTree, Sequence[int | None]]:
        state = ctx.state
        keys = [_key_of(layer.key_or_fn, state) for layer in self.layers]
        shown = ctx.gather("Tree", (state.rank, keys))
        ranks = [rank for rank, _ in shown]
        try:
            rules = [_rule(layer) for layer in self.layers]
            tree, order = grow(rules, [[_as_key(key) for key in path] for _, path in shown])
        except TreeError as error:
            raise RuntimeError(f"Tree: {error}") from None
        if order != sorted(order):
            warnings.warn(
                "Tree: ranks of one group are not next to each other; they are numbered by the "
                f"order of the tree, which begins with {[ranks[leaf] for leaf in order[:8]]}",
                UserWarning,
                stacklevel=4,
            )
        leaves: Sequence[int | None] = range(len(order))
        if ctx.terminated_ranks:  # lost before there was a tree; groups may be too small already
            # Where their keys are known, they had their places in it.
            lost = {leaf for leaf, at in enumerate(order) if ranks[at] in ctx.terminated_ranks}
            tree, leaves = tree.without(lost)
        names: list[int | None] = [None] * state.world_size
        for leaf, place in enumerate(order):
            names[ranks[place]] = leaves[leaf]
        return tree, names

    def _filtered(self, tree: RankTree) -> RankTree:
        if self.world_size_filter is None:
            return tree
        size = self.world_size_filter(tree.active_world_size)
        if not 0 <= size <= tree.active_world_size:
            raise AssertionError(
                f"world_size_filter made {size} of {tree.active_world_size} active ranks; it may "
                "only make fewer"
            )
        return tree.with_active_world_size(size)


def _as_key(value: Any) -> str:
    """A name for a value that came through JSON, equal where the values are."""
    return json.dumps(value, sort_keys=True)
