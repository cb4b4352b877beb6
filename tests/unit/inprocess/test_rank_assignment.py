"""What ranks are called after others were lost, and who works."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.inplace.pure import rank_tree
from holdfast.inprocess import Compose
from holdfast.inprocess.exception import RestartError
from holdfast.inprocess.rank_assignment import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    FillGaps,
    FilterCountGroupedByKey,
    FilterGroupedByKey,
    Layer,
    LayerFlag,
    MaxActiveWorldSize,
    RankAssignmentCtx,
    RankDiscarded,
    ShiftRanks,
    Tree,
    WorldSizeDivisibleBy,
)
from holdfast.inprocess.state import Mode, State
from holdfast.inprocess.store import FileStore
from tests.unit.inprocess.job import Job

RESERVE, BACKFILL = LayerFlag.RESERVE, LayerFlag.BACKFILL
_ = None


def losses(world: int = 24) -> st.SearchStrategy[tuple[int, set[int]]]:
    return st.integers(1, world).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), max_size=n - 1))
    )


# ------------------------------------------------------------------ shift, fill
@pytest.mark.parametrize(
    ("lost", "shifted", "filled"),
    [
        ([], [0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]),
        ([1], [0, _, 1, 2, 3, 4, 5, 6], [0, _, 2, 3, 4, 5, 6, 1]),
        ([7], [0, 1, 2, 3, 4, 5, 6, _], [0, 1, 2, 3, 4, 5, 6, _]),
        ([0, 2], [_, 0, _, 1, 2, 3, 4, 5], [_, 1, _, 3, 4, 5, 0, 2]),
        # The (rank - new world)-th smallest lost number would be 4 and 5 here, of a world of 5.
        ([1, 4, 5], [0, _, 1, 2, _, _, 3, 4], [0, _, 2, 3, _, _, 1, 4]),
        ([0, 1, 2, 3, 4, 5, 6], [_] * 7 + [0], [_] * 7 + [0]),
    ],
)
def test_survivors_are_numbered_without_gaps(lost, shifted, filled) -> None:
    """ShiftRanks keeps the order, FillGaps keeps the numbers of as many as it can."""
    assert Job(8, ShiftRanks).lose(*lost).ranks == shifted
    assert Job(8, FillGaps).lose(*lost).ranks == filled


@given(losses())
def test_each_survivor_has_one_number_and_nobody_else_has_it(case) -> None:
    """R-1, for both, whoever is lost."""
    world, lost = case
    survivors = [rank for rank in range(world) if rank not in lost]
    shifted = [rank_tree.shifted(rank, lost) for rank in range(world)]
    filled = [rank_tree.gaps_filled(rank, world, lost) for rank in range(world)]

    assert [rank for rank in shifted if rank is not None] == list(range(len(survivors)))
    assert sorted(rank for rank in filled if rank is not None) == list(range(len(survivors)))
    assert {k for k, rank in enumerate(filled) if rank is None} == lost
    moved = [rank for rank in survivors if filled[rank] != rank]
    assert moved == [rank for rank in survivors if rank >= len(survivors)]


@given(losses())
def test_fill_gaps_is_the_formula_wherever_that_gives_numbers_of_the_new_world(case) -> None:
    """A rank past the new world takes the (rank - new world)-th smallest lost number."""
    world, lost = case
    new_world = world - len(lost)
    for rank in range(new_world, world):
        if rank not in lost and not any(gone >= new_world for gone in lost):
            expected = sorted(lost)[rank - new_world]
            assert rank_tree.gaps_filled(rank, world, lost) == expected


@pytest.mark.parametrize("kind", [ShiftRanks, FillGaps])
def test_a_rank_among_the_lost_is_discarded(kind) -> None:
    """With a message that says who, and of how many."""
    with pytest.raises(RankDiscarded, match=r"rank 2 .* 2 of 4 ranks"):
        kind()(RankAssignmentCtx(State(2, 4), None, {1, 2}))


# ------------------------------------------------------------------ by key
def node(state: State) -> int:
    return state.initial_rank // 4


@pytest.mark.parametrize("key", [node, lambda rank, world: rank // 4], ids=["state", "rank, world"])
def test_a_node_that_lost_a_rank_goes_whole(key) -> None:
    """Key functions of both generations."""
    job = Job(12, lambda: Compose(ShiftRanks(), FilterCountGroupedByKey(key, lambda n: n == 4)))
    assert job.lose().ranks == list(range(12))
    job.lose(5)
    assert job.ranks == [0, 1, 2, 3, _, _, _, _, 4, 5, 6, 7]
    assert job.discarded == {4, 6, 7}


def test_two_filters_see_each_others_losses() -> None:
    """Racks of two nodes: a rack with fewer than 5 ranks left goes, too."""
    job = Job(
        16,
        lambda: Compose(
            ShiftRanks(),
            FilterCountGroupedByKey(lambda s: ("rack", s.initial_rank // 8), lambda n: n >= 5),
            FilterCountGroupedByKey(node, lambda n: n == 4),
        ),
    )
    job.lose(9)
    assert job.ranks == [0, 1, 2, 3, 4, 5, 6, 7] + [_] * 8
    assert job.gathers == 2


def test_a_key_can_be_a_value() -> None:
    """Each rank knows its own; the first generation's name is the same class."""
    assert FilterGroupedByKey is FilterCountGroupedByKey
    names = iter(["a", "a", "b", "b", "b"])
    job = Job(5, lambda: Compose(ShiftRanks(), FilterGroupedByKey(next(names), lambda n: n > 2)))
    assert job.lose().ranks == [_, _, 0, 1, 2]


def test_a_key_that_json_cannot_carry_is_a_type_error() -> None:
    """It names the class that asked."""
    with pytest.raises(TypeError, match=r"FilterCountGroupedByKey.*JSON"):
        Job(1, lambda: FilterCountGroupedByKey(lambda _: object(), bool)).lose()


def test_a_store_that_cannot_gather_is_named() -> None:
    """Instead of an AttributeError."""
    with pytest.raises(RestartError, match="has no gather"):
        FilterCountGroupedByKey(0, bool)(RankAssignmentCtx(State(0, 1), "a store", set()))


# ------------------------------------------------------------------ who works
@pytest.mark.parametrize(
    ("filters", "size"),
    [
        ([MaxActiveWorldSize(5)], 5),
        ([MaxActiveWorldSize()], 8),
        ([MaxActiveWorldSize(99)], 8),
        ([ActiveWorldSizeDivisibleBy(3)], 6),
        ([ActiveWorldSizeDivisibleBy()], 8),
        ([WorldSizeDivisibleBy(16)], 0),
        ([WorldSizeDivisibleBy(4), MaxActiveWorldSize(7)], 4),
        ([MaxActiveWorldSize(7), WorldSizeDivisibleBy(3)], 6),
    ],
)
def test_filters_decide_how_many_work(filters, size) -> None:
    """Compose calls the last first, and each filter starts from what the one before it left."""
    job = Job(8, lambda: Compose(*filters, ActivateAllRanks(), ShiftRanks())).lose()
    assert [state.active_world_size for state in job.states.values()] == [size] * 8
    assert job.active == list(range(size)) + [_] * (8 - size)
    modes = [state.mode for state in job.states.values()]
    assert modes == [Mode.ACTIVE] * size + [Mode.INACTIVE] * (8 - size)


def test_a_reduced_world_stays_so_unless_all_are_activated_first() -> None:
    """The second generation's filters start from the active world before; idle ones take over."""
    job = Job(8, lambda: Compose(MaxActiveWorldSize(6), ShiftRanks()))
    job.lose()
    assert job.active == [0, 1, 2, 3, 4, 5, _, _]
    job.lose(0, 1, 2)
    assert job.active == [_, _, _, 0, 1, 2, 3, 4]

    kept = Job(8, lambda: Compose(WorldSizeDivisibleBy(4), ShiftRanks()))
    assert kept.lose(0).active == [_, 0, 1, 2, 3, _, _, _]
    kept = Job(8, lambda: Compose(MaxActiveWorldSize(4), WorldSizeDivisibleBy(8), ShiftRanks()))
    assert kept.lose().active == [0, 1, 2, 3, _, _, _, _]
    assert kept.lose(7).active == [_] * 8


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "2"])
@pytest.mark.parametrize("kind", [MaxActiveWorldSize, ActiveWorldSizeDivisibleBy])
def test_a_size_is_a_positive_whole_number(kind, bad) -> None:
    """Otherwise the constructor says so."""
    with pytest.raises((TypeError, ValueError), match="should be"):
        kind(bad)


# ------------------------------------------------------------------ trees
def tree(outer, inner, **limits):
    """Two groups of four under a root."""
    return Tree(
        [
            Layer(flag=outer, max_ranks=limits.get("outer_max"), min_ranks=limits.get("least", 1)),
            Layer(
                flag=inner,
                max_ranks=limits.get("inner_max"),
                min_ranks=limits.get("inner_least", 1),
                key_or_fn=node,
            ),
        ]
    )


@pytest.mark.parametrize(
    ("outer", "inner", "active"),
    [
        (BACKFILL, BACKFILL, [0, _, 2, 3, 4, 5, 6, 1]),
        (None, BACKFILL, [0, _, 2, 1, 3, 4, 5, 6]),
        (BACKFILL, None, [0, _, 1, 2, 3, 4, 5, 6]),
        (None, None, [0, _, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_holes_are_filled_as_far_up_as_the_layers_allow(outer, inner, active) -> None:
    """The specification's outcomes: 8 ranks, groups of 4, rank 1 lost."""
    job = Job(8, lambda: tree(outer, inner)).lose().lose(1)
    assert job.active == active
    assert job.ranks == [0, _, 1, 2, 3, 4, 5, 6]


def test_reserves_of_the_own_group_come_first_then_those_of_others() -> None:
    """The specification's outcomes: three of each four work, reserves in both layers."""
    job = Job(8, lambda: tree(RESERVE, RESERVE, inner_max=3)).lose()
    assert job.active == [0, 1, 2, _, 3, 4, 5, _]
    job.lose(1)
    assert job.active == [0, _, 2, 1, 3, 4, 5, _]
    job.lose(3)
    assert job.active == [0, _, 2, 1, _, 4, 5, 3]
    job.lose(0)
    assert job.active == [_, _, 1, 0, _, 3, 4, 2]
    assert job.gathers == 1


def test_a_reserve_that_is_lost_leaves_no_hole() -> None:
    """And cannot be given out afterwards."""
    job = Job(8, lambda: tree(RESERVE, RESERVE, inner_max=3)).lose().lose(3, 7)
    assert job.active == [0, 1, 2, _, 3, 4, 5, _]
    assert job.lose(0).active == [_, 0, 1, _, 2, 3, 4, _]


def test_a_group_with_too_few_ranks_is_given_up() -> None:
    """Its reserves with it; a reserve of the other group takes over where the root allows it."""
    job = Job(8, lambda: tree(RESERVE, RESERVE, outer_max=6, inner_least=4)).lose()
    assert job.active == [0, 1, 2, 3, 4, 5, _, _]
    job.lose(0)
    assert job.active == [_, _, _, _, 2, 3, 1, 0]
    assert job.ranks == [_, _, _, _, 0, 1, 2, 3]
    assert job.discarded == {1, 2, 3}


def test_a_root_with_too_few_ranks_ends_the_job() -> None:
    """Everybody is discarded, none is left over."""
    job = Job(8, lambda: tree(None, None, least=8)).lose().lose(0)
    assert job.discarded == set(range(1, 8))


def test_a_world_size_filter_rests_the_last_ones() -> None:
    """They stand by, and can be reserves."""
    job = Job(
        8,
        lambda: Tree([Layer(flag=RESERVE)], world_size_filter=lambda n: n // 3 * 3),
    )
    assert job.lose().active == [0, 1, 2, 3, 4, 5, _, _]
    assert job.lose(0).active == [_, 1, 2, 3, 4, 5, _, 0]
    assert job.lose(0, 1).active == [_, _, _, 2, _, _, 1, 0]


def test_a_world_size_filter_that_adds_ranks_is_a_mistake() -> None:
    """As the specification has it, an AssertionError."""
    with pytest.raises(AssertionError, match="9 of 8"):
        Job(8, lambda: Tree([Layer()], world_size_filter=lambda n: n + 1)).lose()


def test_groups_that_interleave_are_numbered_by_the_tree_with_a_warning() -> None:
    """Ranks 0 2 and 1 3 are neighbours."""
    job = Job(4, lambda: Tree([Layer(), Layer(key_or_fn=lambda s: s.initial_rank % 2)]))
    with pytest.warns(UserWarning, match=r"\[0, 2, 1, 3\]"):
        job.lose()
    assert job.active == job.ranks == [0, 2, 1, 3]


def test_more_than_one_root_is_an_error() -> None:
    """The first layer has one key."""
    with pytest.raises(RuntimeError, match="first layer is the root"):
        Job(8, lambda: Tree([Layer(key_or_fn=node)])).lose()


def test_a_rank_lost_before_there_was_a_tree_is_not_in_it_if_its_keys_are_not_known() -> None:
    """A fault of the first iteration comes back with the ranks as they were born."""
    job = Job(8, lambda: tree(BACKFILL, BACKFILL, inner_least=4)).lose(6)
    assert job.ranks == [0, 1, 2, 3, _, _, _, _]
    assert job.active == [0, 1, 2, 3, _, _, _, _]


def test_a_rank_lost_before_there_was_a_tree_has_its_place_in_it_if_its_keys_are_known() -> None:
    """A reserve takes its number, as if it had been lost afterwards."""

    class Known:
        def gather(self, name, value, timeout_s=None):
            return [[rank, ["", rank // 4]] for rank in range(8)]

    def active_of(rank: int, *losses: set[int]) -> int | None:
        assignment, state = tree(RESERVE, RESERVE, inner_max=3), State(rank, 8)
        for lost in losses:
            assignment(RankAssignmentCtx(state, Known(), lost))
        return state.active_rank

    survivors = [0, 2, 3, 4, 5, 6, 7]
    at_once = [active_of(rank, {1}) for rank in survivors]
    assert at_once == [active_of(rank, set(), {1}) for rank in survivors]
    assert at_once == [0, 2, 1, 3, 4, 5, _]


def test_an_assignment_that_is_undone_is_made_again_from_the_same_state() -> None:
    """A fault may catch some ranks after their assignment: they go back, tree included."""
    one = tree(RESERVE, RESERVE, inner_max=3)
    job = Job(8, lambda: one).lose()
    before = {rank: state.copy() for rank, state in job.states.items()}
    job.lose(1)
    after = job.active
    job.states = {rank: state.copy() for rank, state in before.items()}
    job.lose(0)
    assert job.active == [_, 1, 2, 0, 3, 4, 5, _]
    job.states = before
    job.lose(1)
    assert job.active == after


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Tree([]), ValueError, "at least one"),
        (
            lambda: Tree(["layer"]),
            TypeError,
            "'layer' has no min_ranks, max_ranks, key_or_fn, flag",
        ),
        (lambda: Layer(min_ranks=-1), ValueError, "min_ranks"),
        (lambda: Layer(max_ranks=0), ValueError, "max_ranks"),
        (lambda: Layer(max_ranks="2"), TypeError, "max_ranks"),
        (lambda: Layer(flag="RESERVE"), TypeError, "flag"),
    ],
)
def test_a_layer_that_cannot_be_is_named(make, error, text) -> None:
    """When it is made."""
    with pytest.raises(error, match=text):
        make()


def test_what_is_like_a_layer_is_one() -> None:
    """A stand-in of a test, or a class of the program's own."""

    def like(**more):
        return SimpleNamespace(min_ranks=1, max_ranks=None, key_or_fn="", flag=None, **more)

    job = Job(3, lambda: Tree([like(), like(name="node")])).lose().lose(1)
    assert job.active == [0, _, 1]


# ------------------------------------------------------------------ exchanges in other stores
def test_exchanges_of_states_made_by_hand_do_not_meet_earlier_ones(tmp_path) -> None:
    """One store, a new state for each assignment: no state says how many there were before."""
    path = str(tmp_path / "store")

    def ranks_left(world: int, lost: set[int]) -> list[int | None]:
        def assign(rank: int) -> int | None:
            state, store = State(rank, world), FileStore(path, -1)
            whole = FilterCountGroupedByKey(
                lambda state: state.rank // 2, lambda n: n == 2, timeout=dt.timedelta(seconds=30)
            )
            try:
                Compose(ShiftRanks(), whole)(RankAssignmentCtx(state, store, set(lost)))
            except RankDiscarded:
                return None
            return state.rank

        with ThreadPoolExecutor(world) as threads:
            return list(threads.map(assign, range(world)))

    assert ranks_left(6, set()) == [0, 1, 2, 3, 4, 5]
    assert ranks_left(6, {1}) == [_, _, 0, 1, 2, 3]
    assert ranks_left(4, set()) == [0, 1, 2, 3]
    assert ranks_left(6, set()) == [0, 1, 2, 3, 4, 5]
    assert ranks_left(6, {1}) == [_, _, 0, 1, 2, 3]


# ------------------------------------------------------------------ any tree, any losses
@st.composite
def histories(draw):
    """A tree, and who is lost in each of some iterations."""
    flags = st.sampled_from([None, RESERVE, BACKFILL, RESERVE | BACKFILL])
    world = draw(st.integers(1, 18))
    widths = draw(st.sampled_from([[], [4], [6, 3], [8, 4, 2]]))
    limits = st.one_of(st.none(), st.integers(1, 8))
    rules = [
        (draw(flags), draw(limits), draw(st.integers(0, 3)), width) for width in [world, *widths]
    ]
    losses = draw(st.lists(st.sets(st.integers(0, world - 1), max_size=5), max_size=4))
    return world, rules, losses


@settings(max_examples=150)
@given(histories())
def test_whatever_is_lost_numbers_have_one_owner_and_no_gaps(case) -> None:
    """R-1 for trees, of ranks and of active ranks; all ranks compute the same."""
    world, rules, losses = case

    def layers():
        return Tree(
            [
                Layer(least, most, lambda s, width=width: s.initial_rank // width, flag)
                for flag, most, least, width in rules
            ]
        )

    job = Job(world, layers).lose()
    for lost in losses:
        before = len(job.states)
        job.lose(*(rank for rank in lost if rank < before))
        states = list(job.states.values())
        assert sorted(state.rank for state in states) == list(range(len(states)))
        active = sorted(s.active_rank for s in states if s.mode is Mode.ACTIVE)
        assert active == list(range(len(active)))
        assert {s.active_world_size for s in states} <= {len(active)}
        assert {s.world_size for s in states} <= {len(states)}
        assert all(s.active_rank is None for s in states if s.mode is Mode.INACTIVE)
