"""How much memory snapshots get."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.arena.pure.budget import LEAST_SLOTS, SlotsGranted, TooLittleMemory, grant, shown

MIB = 1 << 20
GIB = 1 << 30


def test_without_a_limit_a_quarter_of_what_is_left_is_used() -> None:
    assert grant(100 * MIB, 3, 2, 4 * GIB, None) == SlotsGranted(3, 600 * MIB, GIB)
    assert grant(200 * MIB, 3, 2, 4 * GIB, None) == SlotsGranted(2, 800 * MIB, GIB)
    assert grant(300 * MIB, 3, 2, 4 * GIB, None) == TooLittleMemory(1200 * MIB, GIB)


def test_a_limit_is_taken_at_its_word_but_for_memory_that_is_not_there() -> None:
    assert grant(100 * MIB, 3, 2, 4 * GIB, 3 * GIB) == SlotsGranted(3, 600 * MIB, 3 * GIB)
    assert grant(GIB, 3, 1, GIB, 3 * GIB) == TooLittleMemory(2 * GIB, GIB)
    assert grant(100 * MIB, 3, 2, None, GIB) == SlotsGranted(3, 600 * MIB, GIB)


def test_where_nothing_is_known_nothing_is_used() -> None:
    assert isinstance(grant(1, 3, 1, None, None), TooLittleMemory)


@given(
    st.integers(0, 1 << 62), st.integers(0, 99), st.integers(1, 64),
    st.none() | st.integers(0, 1 << 50), st.none() | st.integers(0, 1 << 50),
)  # fmt: skip
def test_never_more_than_the_limit_nor_fewer_slots_than_are_of_use(
    slot_bytes: int, wanted: int, n_ranks: int, left: int | None, limit: int | None
) -> None:
    found = grant(slot_bytes, wanted, n_ranks, left, limit)
    if isinstance(found, SlotsGranted):
        assert LEAST_SLOTS <= found.n_slots <= max(wanted, LEAST_SLOTS)
        assert n_ranks * found.n_slots * slot_bytes <= found.bytes_max <= found.limit
        assert limit is None or found.limit <= limit
        assert left is None or found.limit <= left
    else:
        assert found.needs > found.limit


def test_numbers_are_for_people() -> None:
    assert [shown(it) for it in (1, 5000, 600 * MIB, 3 * GIB // 2)] == [
        "1 KiB",
        "4 KiB",
        "600 MiB",
        "1.5 GiB",
    ]
