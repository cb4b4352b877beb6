"""Trees, as one table: what the machine of all ranks at once must keep."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.inplace.pure.rank_tree import LayerFlag, LayerRule, RankTree, TreeError, grow

BOTH = LayerFlag.RESERVE | LayerFlag.BACKFILL


def check(tree: RankTree) -> None:
    """Active indices have one owner each and no gap (R-1); whoever has none stands by."""
    owners = sorted(index for index in tree.active if index is not None)
    assert owners == list(range(tree.active_world_size))
    idle = {leaf for leaf, index in enumerate(tree.active) if index is None}
    assert len(tree.benched) == len(idle)
    assert set(tree.benched) == idle


def test_a_job_of_16384_ranks_loses_1000_at_a_time() -> None:
    """Nodes of 8 with 7 at work, racks of 16 nodes; a rack that has lost half of itself goes."""
    world = 16_384
    rules = [LayerRule(flag=BOTH), LayerRule(64, None, BOTH), LayerRule(1, 7, BOTH)]
    tree, order = grow(rules, [("", rank // 128, rank // 8) for rank in range(world)])
    assert order == list(range(world))
    check(tree)
    chance = random.Random(7)
    while tree.world_size > 2_000:
        dead = set(chance.sample(range(tree.world_size), 1_000))
        active_before = tree.active
        after, names = tree.without(dead)
        check(after)
        assert [name for name in names if name is not None] == list(range(after.world_size))
        assert all(names[rank] is None for rank in dead)
        if tree.benched and len(after.benched):  # as long as there are reserves, nobody moves
            kept = (
                active_before[leaf] == after.active[name]
                for leaf, name in enumerate(names)
                if name is not None and active_before[leaf] is not None
            )
            assert all(kept)
        tree = after


def test_the_last_deactivated_is_the_first_to_come_back() -> None:
    """Those that a filter rests come after those that never worked."""
    tree, _ = grow([LayerRule(1, 6, LayerFlag.RESERVE)], [("",)] * 8)
    assert tree.benched == (6, 7)
    tree = tree.with_active_world_size(4)
    assert tree.benched == (6, 7, 4, 5)
    after, names = tree.without({0, 1})
    assert [after.active[name] for name in names if name is not None] == [2, 3, 1, 0, None, None]
    assert tree.with_active_world_size(4) is tree


def test_several_holes_of_a_domain_are_filled_in_order() -> None:
    """The largest move, in ascending order; what they leave behind is closed."""
    tree, _ = grow([LayerRule(flag=LayerFlag.BACKFILL)], [("",)] * 8)
    after, names = tree.without({1, 2})
    assert [after.active[name] for name in names if name is not None] == [0, 3, 4, 5, 1, 2]
    after, names = tree.without({0, 7})
    assert sorted(x for x in after.active if x is not None) == list(range(6))


def test_more_holes_than_hands() -> None:
    """A domain that has lost more than it has left."""
    tree, _ = grow([LayerRule(flag=LayerFlag.BACKFILL)], [("",)] * 8)
    after, _ = tree.without({0, 1, 2, 4, 5, 6})
    assert after.active == (0, 1)
    after, names = tree.without(set(range(8)))
    assert (after.world_size, after.active_world_size, set(names)) == (0, 0, {None})


def test_ranks_with_other_layers_are_named() -> None:
    """Instead of a tree that only some of them have."""
    with pytest.raises(TreeError, match="rank 1 has 1 layers and this one 2"):
        grow([LayerRule(), LayerRule()], [("", "a"), ("",)])
    with pytest.raises(TreeError, match=r"there are 6: 0, 1, 2, 3, \.\.\."):
        grow([LayerRule()], [(k,) for k in range(6)])


# ------------------------------------------------------------------ any tree
flags = st.sampled_from([LayerFlag(0), LayerFlag.RESERVE, LayerFlag.BACKFILL, BOTH])


@st.composite
def losses(draw: st.DrawFn, *, flag: LayerFlag | None = None) -> tuple[RankTree, set[int]]:
    """Two layers of groups under a root, and whom it loses."""
    world = draw(st.integers(1, 40))
    limits = st.none() | st.integers(1, 12)
    rules = [
        LayerRule(
            draw(st.integers(0, 3)) if flag is None else 0,
            draw(limits),
            draw(flags) if flag is None else flag,
        )
        for _ in range(3)
    ]
    tree, _ = grow(rules, [(0, rank // 8, rank // 4) for rank in range(world)])
    return tree, draw(st.sets(st.integers(0, world - 1)))


def moves(tree: RankTree, dead: set[int]) -> list[tuple[int | None, int | None]]:
    """Active indices of survivors, before and after."""
    after, names = tree.without(dead)
    check(after)
    return [
        (tree.active[leaf], after.active[name])
        for leaf, name in enumerate(names)
        if name is not None
    ]


@given(losses())
def test_who_works_goes_on_working_and_indices_have_one_owner(case) -> None:
    """R-1, whatever the layers say; a loss puts nobody to rest."""
    tree, dead = case
    assert all(new is not None for old, new in moves(tree, dead) if old is not None)


@given(losses(flag=LayerFlag(0)))
def test_without_flags_order_is_kept_and_reserves_stay_where_they_are(case) -> None:
    """Survivors move down past the lost, as far as they need to."""
    tree, dead = case
    survivors = [(old, new) for old, new in moves(tree, dead) if new is not None]
    assert [new for _, new in sorted(survivors)] == list(range(len(survivors)))
    assert all(old is not None for old, _ in survivors)


@given(losses(flag=LayerFlag.RESERVE))
def test_with_enough_reserves_nobody_moves(case) -> None:
    """Each hole goes to one that stood by; where they run out, the others close up in order."""
    tree, dead = case
    survivors = moves(tree, dead)
    idle_before = sum(old is None for old, _ in survivors)
    holes = sum(tree.active[leaf] is not None for leaf in dead)
    stayed = [(old, new) for old, new in survivors if old is not None]
    if idle_before >= holes:
        assert all(old == new for old, new in stayed)
        assert sum(new is None for _, new in survivors) == idle_before - holes
    else:
        assert all(new is not None for _, new in survivors)
        assert stayed == sorted(stayed)
        assert [new for _, new in stayed] == sorted(new for _, new in stayed if new is not None)


@given(losses(flag=LayerFlag.BACKFILL))
def test_with_backfill_all_the_way_only_the_last_move(case) -> None:
    """At most as many as there are holes; the others below the new size keep their index."""
    tree, dead = case
    holes = [leaf for leaf in dead if tree.active[leaf] is not None]
    working = [(old, new) for old, new in moves(tree, dead) if old is not None]
    assert sum(old != new for old, new in working) <= len(holes)
    if holes and all(tree.active[leaf] < len(working) for leaf in holes):
        assert sum(old != new for old, new in working) == len(holes)
