"""Which snapshot all ranks begin from, against a slow model; lineage and trust."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.arena.pure.choice import Chosen, choose, why_not_newer
from holdfast.arena.pure.lineage import belongs, cut, last_life
from holdfast.arena.pure.snapshots import (
    Ancestor,
    CopySource,
    DamagedCopy,
    Held,
    Refused,
    Restore,
    SnapshotId,
)
from holdfast.arena.pure.trust import is_spent, times

LIFE = (last_life(0, 0),)


def held(rank: int, step: int, *, of: int = 2, cycle: int = 0, term: int = 0) -> Held:
    return Held(rank, of, cycle, 0, step, term)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[dict[str, list[Held]], dict[str, range], list[Ancestor]]:
    sizes = draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    places, first = {}, 0
    for number, size in enumerate(sizes):
        places[f"n{number}"] = range(first, first + size)
        first += size
    some = st.builds(
        Held,
        st.integers(0, first - 1),
        st.sampled_from([first, first, first, first + 1]),
        st.integers(0, 1),
        st.just(0),
        st.integers(0, 2),
        st.sampled_from([0, 0, 0, 1]),
    )
    nodes = {node: draw(st.lists(some, max_size=4)) for node in [*places, "gone"]}
    if draw(st.booleans()):  # one that all have
        name = draw(some)
        for node, ranks in places.items():
            nodes[node] += [
                Held(rank, first, name.cycle, 0, name.step, name.term) for rank in ranks
            ]
    left_at = draw(st.integers(0, 2))
    return (
        nodes,
        places,
        draw(
            st.sampled_from([[last_life(0, 0)], [Ancestor(0, 0, 0, left_at), last_life(0, 1)], []])
        ),
    )


NAMES = st.builds(SnapshotId, st.integers(0, 1), st.just(0), st.integers(0, 2))


@given(jobs(), st.lists(NAMES), st.none() | NAMES)
def test_the_newest_that_every_rank_has_where_it_will_be_is_chosen(
    job: tuple[dict[str, list[Held]], dict[str, range], list[Ancestor]],
    bad: list[SnapshotId],
    void_until: SnapshotId | None,
) -> None:
    """As a model says that tries every name."""
    nodes, places, lineage = job
    world = sum(map(len, places.values()))
    found = None
    for cycle in (0, 1):
        for step in range(3):
            name = SnapshotId(cycle, 0, step)
            lives = [it for it in lineage if it.cycle == cycle and step <= it.step]
            all_have = all(
                any(it.rank == rank and it.id == name and it.world_size == world and it.term == 0
                    for it in nodes[node])
                for node, ranks in places.items()
                for rank in ranks
            )  # fmt: skip
            is_void = void_until is not None and name <= void_until
            if lives and all_have and name not in bad and not is_void:
                found = name
    refused = [Refused(it, 0, "its sum is wrong") for it in bad]
    assert choose(nodes, places, lineage, refused, void_until=void_until).snapshot == found


def test_a_step_that_a_rank_lacks_is_no_step_of_the_job() -> None:
    chosen = choose({"a": [held(0, 4), held(0, 5)], "b": [held(1, 4)]}, PLACES, LIFE)
    assert chosen == Chosen(SnapshotId(0, 0, 4), SnapshotId(0, 0, 5), (1,), 2)
    assert why_not_newer(chosen, 2, 10) == ""


PLACES = {"a": range(1), "b": range(1, 2)}


def test_the_state_of_a_node_that_is_lost_is_lost_and_the_reason_names_its_ranks() -> None:
    chosen = choose({"a": [held(0, 5)]}, PLACES, LIFE)
    assert chosen.snapshot is None
    assert why_not_newer(chosen, 2, 10) == "step 5 is not there for rank 1"


def test_another_number_of_ranks_cannot_use_it() -> None:
    chosen = choose({"a": [held(0, 5)], "b": [held(1, 5)]}, {"a": range(1)}, LIFE)
    assert why_not_newer(chosen, 1, 10) == "step 5 is of 2 ranks, and there are 1"


def test_a_snapshot_that_a_rank_cannot_use_is_used_by_none() -> None:
    both = {"a": [held(0, 4), held(0, 5)], "b": [held(1, 4), held(1, 5)]}
    bad = Refused(SnapshotId(0, 0, 5), 1, "its sum is wrong")
    chosen = choose(both, PLACES, LIFE, [bad])
    assert chosen.snapshot == SnapshotId(0, 0, 4)
    assert why_not_newer(chosen, 2, 10) == "rank 1 could not use step 5: its sum is wrong"


def test_a_damaged_copy_leaves_the_step_to_the_other_copies() -> None:
    """Where nodes may send each other copies; otherwise a step without it is none."""
    nodes = {"a": [held(0, 4), held(0, 5), held(1, 5)], "b": [held(1, 4), held(1, 5)]}
    five = SnapshotId(0, 0, 5)
    found = Refused(five, 1, "its bytes have changed", is_damaged=True)
    damaged = {DamagedCopy(five, 1, "b")}
    chosen = choose(nodes, PLACES, LIFE, [found], None, damaged, may_move=True)
    assert (chosen.snapshot, chosen.sources) == (five, (CopySource(1, "a"),))
    why = "rank 1 gets another copy, as its own is damaged: its bytes have changed"
    assert why_not_newer(chosen, 2, 10) == why
    chosen = choose(nodes, PLACES, LIFE, [found], None, damaged)
    assert chosen.snapshot == SnapshotId(0, 0, 4)
    assert why_not_newer(chosen, 2, 10) == "rank 1 could not use step 5: its bytes have changed"


def test_a_part_of_which_all_copies_are_damaged_gives_the_step_up() -> None:
    nodes = {"a": [held(0, 5), held(1, 5)], "b": [held(1, 5)]}
    five = SnapshotId(0, 0, 5)
    damaged = {DamagedCopy(five, 1, node) for node in "ab"}
    assert choose(nodes, PLACES, LIFE, [], None, damaged, may_move=True).snapshot is None


def test_a_snapshot_that_led_nowhere_twice_is_given_up_with_all_newer_ones() -> None:
    last = Restore(SnapshotId(0, 0, 5), 2, times=2)
    assert is_spent(last, last_step=14, progress=10)
    assert is_spent(last, last_step=-1, progress=10)
    assert not is_spent(last, last_step=15, progress=10)
    assert not is_spent(last.but(times=1), last_step=-1, progress=10)
    both = {"a": [held(0, 4), held(0, 6)], "b": [held(1, 4), held(1, 6)]}
    chosen = choose(both, PLACES, LIFE, spent=SnapshotId(0, 0, 5))
    assert chosen.snapshot == SnapshotId(0, 0, 4)
    assert "fewer than 10 new steps" in why_not_newer(chosen, 2, 10)


def test_lives_in_a_row_from_one_snapshot_are_counted_until_one_leads_on() -> None:
    name = SnapshotId(0, 0, 5)
    assert times(None, -1, 10, name) == 1
    assert times(Restore(name, 2), 6, 10, name) == 2
    assert times(Restore(name, 2), 15, 10, name) == 1
    assert times(Restore(name, 2), 6, 10, SnapshotId(1, 0, 6)) == 1


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Lives of a job: where in the chain each began, by (life, step); and its last step."""
    return draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=8))


@given(histories())
def test_the_lineage_has_the_states_that_the_last_life_goes_back_to(
    history: list[tuple[int, int]],
) -> None:
    """As a model says that follows each state to the one before it."""
    states: dict[tuple[int, int], tuple[int, int] | None] = {}
    lineage: tuple[Ancestor, ...] = ()
    head: tuple[int, int] | None = None
    for life, (back, n_steps) in enumerate(history):
        chain: list[tuple[int, int]] = []
        while head is not None:
            chain.append(head)
            head = states[head]
        begins = chain[back] if back < len(chain) else None
        lives = (*lineage, last_life(0, life - 1)) if life else ()
        lineage = cut(lives, None if begins is None else SnapshotId(begins[0], 0, begins[1]))
        head, first = begins, 0 if begins is None else begins[1]
        for step in range(first + 1, first + n_steps + 1):
            states[life, step] = head
            head = (life, step)
    true: set[tuple[int, int]] = set()
    while head is not None:
        true.add(head)
        head = states[head]
    lives = (*lineage, last_life(0, len(history) - 1)) if history else ()
    found = {(c, s) for c, s in states if belongs(Held(0, 1, c, 0, s), lives)}
    assert found == true


def test_a_life_of_another_term_is_another_life() -> None:
    """A leader that died may have formed a cycle of that number, too."""
    assert belongs(held(0, 5), LIFE)
    assert not belongs(held(0, 5, term=1), LIFE)


def test_snapshots_of_all_restarts_in_place_count_up_to_the_one_that_a_cycle_begins_from() -> None:
    """Guards have voided all that those have left behind."""
    in_place = [Held(0, 1, 0, iteration, step) for iteration, step in [(0, 5), (1, 7), (2, 6)]]
    assert all(belongs(it, LIFE) for it in in_place)
    [left] = cut(LIFE, SnapshotId(0, 1, 7))
    assert [belongs(it, [left]) for it in in_place] == [True, True, False]
    assert not belongs(Held(0, 1, 0, 1, 8), [left])
