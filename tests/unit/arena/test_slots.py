"""Which slot is written: a table, and many ranks killed at any moment."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.arena.pure.slots import n_slots, next_slot
from holdfast.arena.pure.snapshots import SnapshotId


def of(step: int, cycle: int = 0) -> SnapshotId:
    return SnapshotId(cycle, 0, step)


@pytest.mark.parametrize(
    ("usable", "held", "writing", "expected"),
    [
        ([0, 1], {}, [], 0),
        ([0, 1], {0: of(1)}, [], 1),
        ([0, 1], {0: of(3), 1: of(2)}, [], 1),
        ([0, 1], {0: of(3), 1: of(9)}, [], 0),
        ([0, 1], {0: of(9), 1: of(1, cycle=1)}, [], 0),  # a later life is newer
        ([0, 1], {0: of(3), 1: of(2)}, [1], None),
        ([0], {0: of(3)}, [], None),
        ([0, 1, 2], {0: of(3), 1: of(2), 2: of(1)}, [], 2),
        ([0, 1], {2: of(7), 0: of(3), 1: of(2)}, [], 1),  # the restored one is in a third
        ([], {}, [], None),
    ],
)
def test_the_oldest_is_written_and_never_the_newest(
    usable: list[int], held: dict[int, SnapshotId], writing: list[int], expected: int | None
) -> None:
    assert next_slot(usable, held, writing) == expected


@given(
    st.sets(st.integers(0, 7)),
    st.dictionaries(st.integers(0, 7), st.integers(0, 30).map(of)),
    st.sets(st.integers(0, 7)),
)
def test_the_newest_is_never_written(
    usable: set[int], held: dict[int, SnapshotId], writing: set[int]
) -> None:
    found = next_slot(usable, held, writing)
    if found is not None:
        assert found in usable - writing
        assert (
            not held
            or held.get(found) != max(held.values())
            or list(held.values()).count(held[found]) > 1
        )


class Rank:
    """The order of one rank's events, as ``snapshot/_copy.py`` has it; each call is one event.

    A step has a collective, which no rank leaves before all have entered it.
    """

    def __init__(self, *, beside: bool) -> None:
        self.beside = beside
        self.held: dict[int, SnapshotId] = {}
        self.entered = self.done = 0
        self.copy: list[tuple[str, int, int]] = []

    def main(self, others: list[Rank]) -> None:
        if self.copy and not self.beside:
            self.thread()
        elif self.entered == self.done:
            self.entered += 1  # the copy of the step before may still run
        elif all(other.entered >= self.entered for other in others):
            if self.copy:  # the fence, before the optimizer
                self.thread()
                return
            self.done += 1
            slot = next_slot(range(n_slots(beside=self.beside)), self.held)
            assert slot is not None
            self.copy = [("void", slot, self.done), ("commit", slot, self.done)]

    def thread(self) -> None:
        if self.copy:
            kind, slot, step = self.copy.pop(0)
            if kind == "void":
                self.held.pop(slot, None)
            else:
                self.held[slot] = of(step)


def killed_at_every_moment(beside: bool, n: int, seed: int, events: int = 200) -> None:
    """A random history; after each event, the ranks must share a step that is recent enough."""
    order = random.Random(seed)
    ranks = [Rank(beside=beside) for _ in range(n)]
    most = 2 if beside else 1
    for _ in range(events):
        rank = order.choice(ranks)
        if beside and order.random() < 0.5:
            rank.thread()
        else:
            rank.main([other for other in ranks if other is not rank])
        done = max(rank.done for rank in ranks)
        common = set.intersection(*({x.step for x in rank.held.values()} for rank in ranks))
        assert done <= most or max(common, default=0) >= done - most, (done, common)


@pytest.mark.parametrize("beside", [False, True])
@settings(max_examples=150, deadline=None)
@given(st.integers(2, 4), st.integers(0, 1 << 32))
def test_ranks_killed_at_any_moment_share_a_recent_step(beside: bool, n: int, seed: int) -> None:
    """Copied in the step, at most one that any rank has ended is lost; beside it, two."""
    killed_at_every_moment(beside, n, seed)


def test_the_third_slot_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two, there are histories after which ranks share none: the check above can fail."""
    monkeypatch.setitem(globals(), "n_slots", lambda beside: 2)
    failed = 0
    for seed in range(50):
        try:
            killed_at_every_moment(beside=True, n=3, seed=seed)
        except AssertionError:
            failed += 1
    assert failed > 0
