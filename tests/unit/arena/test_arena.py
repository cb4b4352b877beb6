"""The memory: sealed, reserved before it is used, read only where it is committed."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.arena import arena, sums
from holdfast.arena.arena import ArenaError, ArenaMemory
from holdfast.arena.pure import layout
from holdfast.arena.pure.cadence import cadence, is_due
from holdfast.arena.pure.snapshots import Held, SnapshotId


@pytest.fixture
def memory() -> Iterator[ArenaMemory]:
    fd = arena.create("test")
    yield ArenaMemory(fd)
    os.close(fd)


def fill(memory: ArenaMemory, slot: int, step: int, cycle: int = 0, text: bytes = b"x") -> None:
    memory.reserve(slot, 100)
    memory.begin(slot)
    with memory.map_slot(slot) as mapped:
        mapped[: len(text)] = text
    memory.commit(slot, Held(0, 1, cycle, 0, step), len(text))


def blocks(memory: ArenaMemory) -> int:
    return os.fstat(memory.fd).st_blocks * 512


def test_a_new_arena_takes_one_page_and_cannot_be_cut_short(memory: ArenaMemory) -> None:
    assert blocks(memory) == layout.HEAD_BYTES
    with pytest.raises(PermissionError):
        os.ftruncate(memory.fd, 4096)
    assert fcntl.fcntl(memory.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_a_slot_has_the_memory_that_was_reserved_and_keeps_it(memory: ArenaMemory) -> None:
    page = mmap.PAGESIZE
    assert memory.reserve(1, page + 1) == 2 * page
    assert memory.reserve(1, 10) == 2 * page
    assert blocks(memory) == layout.HEAD_BYTES + 2 * page
    fill(memory, 1, 3)
    assert memory.reserve(1, 5 * page) == 5 * page
    assert memory.held(1) is not None  # it grows in place
    memory.release(1)
    assert memory.held(1) is None
    assert blocks(memory) == layout.HEAD_BYTES
    with pytest.raises(ArenaError, match="has no memory"):
        memory.map_slot(1)


def test_memory_that_the_kernel_does_not_give_changes_nothing(
    memory: ArenaMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.reserve(0, 4096)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        memory.reserve(0, 1 << 20)
    assert memory.words[layout.slot(0) + layout.CAPACITY] == 4096


def test_only_what_is_committed_is_held(memory: ArenaMemory) -> None:
    assert list(memory.all_held()) == []
    fill(memory, 2, 7)
    assert [each.held.id for each in memory.all_held()] == [SnapshotId(0, 0, 7)]
    memory.begin(2)
    assert list(memory.all_held()) == []


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (layout.STEP, 8),
        (layout.COMMIT, -1),
        (layout.BYTES, 0),
        (layout.BYTES, 1 << 50),
        (layout.RANK, -1),
        (layout.CYCLE, -3),
        (layout.CAPACITY, layout.SLOT_STRIDE + 4096),
    ],
)
def test_words_that_no_rank_writes_are_no_snapshot(
    memory: ArenaMemory, word: int, value: int
) -> None:
    fill(memory, 0, 7)
    memory.words[layout.slot(0) + word] = value
    assert memory.held(0) is None


def test_steps_above_the_chosen_one_are_void_and_those_below_stay(memory: ArenaMemory) -> None:
    """After a restore they will exist twice, with other bytes."""
    fill(memory, 0, 5)
    fill(memory, 1, 6)
    fill(memory, 2, 3, cycle=1)
    memory.void_others(SnapshotId(0, 0, 5))
    assert [each.held.id for each in memory.all_held()] == [SnapshotId(0, 0, 5)]
    memory.void_others(None)
    assert list(memory.all_held()) == []


@pytest.mark.parametrize("life", [(0, 0), (7, 3)])
def test_a_rank_gives_up_all_snapshots_until_the_end_of_a_life_and_none_of_later_ones(
    memory: ArenaMemory, life: tuple[int, int]
) -> None:
    assert memory.void_until() is None
    memory.give_up(*life)
    void = memory.void_until()
    assert void is not None
    cycle, iteration = life
    assert SnapshotId(cycle, iteration, 1 << 40) < void
    assert SnapshotId(cycle, iteration + 1, 0) > void
    assert SnapshotId(cycle + 1, 0, 0) > void


def test_a_file_that_is_no_arena_is_refused() -> None:
    fd = os.memfd_create("other")
    try:
        with pytest.raises(ArenaError, match="0 bytes"):
            ArenaMemory(fd)
        os.ftruncate(fd, layout.file_bytes(2))
        with pytest.raises(ArenaError, match="has layout 0, this process knows 2"):
            ArenaMemory(fd)
    finally:
        os.close(fd)


# ---------------------------------------------------------------- sums
def test_a_sum_counts_only_for_the_commit_that_it_was_made_of(memory: ArenaMemory) -> None:
    fill(memory, 0, 7)
    assert memory.sum_of(0) is None
    memory.store_sum(0, 8, 1234)
    assert memory.sum_of(0) == 1234
    fill(memory, 0, 7)  # the same step again, in another life
    assert memory.sum_of(0) is None
    memory.store_sum(0, 5, 99)  # of what was there before
    assert memory.sum_of(0) is None


@given(st.binary(max_size=100))
def test_the_sum_is_that_of_signed_words_padded_by_zeros(data: bytes) -> None:
    padded = data + bytes(-len(data) % 8)
    words = memoryview(padded).cast("q")
    expected = sum(words) % (1 << 64)
    assert sums.checksum(memoryview(data)) % (1 << 64) == expected
    assert -(1 << 63) <= sums.checksum(memoryview(data)) < 1 << 63


# ---------------------------------------------------------------- cadence
@pytest.mark.parametrize(
    ("cost", "step", "expected"),
    [(0.0, 1.0, 1), (0.01, 1.0, 1), (0.0101, 1.0, 2), (0.1, 1.0, 10), (0.003, 0.001, 300)],
)
def test_one_step_of_so_many_costs_a_hundredth_at_most(
    cost: float, step: float, expected: int
) -> None:
    assert cadence(cost, step) == expected


def test_each_step_is_taken_until_a_number_is_agreed_and_its_step_has_come() -> None:
    assert all(is_due(step, 0, 0) for step in range(20))
    assert [step for step in range(10, 25) if is_due(step, 5, 18)] == [*range(10, 18), 20]
