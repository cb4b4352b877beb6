"""Shards of several ranks as tiles of a tensor."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.arena.pure.tiles import ShardOfRank, TilesError, tiles


def cut(size: int, n: int) -> list[tuple[int, int]]:
    """Begin and size of each of ``n`` parts, as torch.chunk cuts; some may be empty."""
    chunk = -(-size // n)
    return [(min(i * chunk, size), max(0, min(chunk, size - i * chunk))) for i in range(n)]


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4)), min_size=1, max_size=3),
    st.integers(1, 2),
    st.randoms(),
)
def test_a_grid_of_shards_and_its_replicas_cover_each_element_once(
    dims: list[tuple[int, int]], n_replicas: int, random: object
) -> None:
    shape = [size for size, _ in dims]
    blocks = list(itertools.product(*(cut(*it) for it in dims))) * n_replicas
    shards = [
        ShardOfRank(rank, tuple(b for b, _ in it), tuple(n for _, n in it))
        for rank, it in enumerate(blocks)
    ]
    random.shuffle(shards)  # type: ignore[attr-defined]
    found = tiles(shape, shards)
    seen: list[tuple[int, ...]] = []
    for it in found:
        assert it.offsets is not None
        ranges = [range(b, b + n) for b, n in zip(it.offsets, it.sizes, strict=True)]
        seen += itertools.product(*ranges)
    assert len(seen) == len({*seen}) == math.prod(shape)


@pytest.mark.parametrize(
    ("shards", "why"),
    [
        ([ShardOfRank(0, (0, 0), (2, 3))], "its shards have 6 elements, and the whole has 12"),
        ([ShardOfRank(0, None, (4, 3))], "rank 0 has a part that is not one block of the whole"),
        ([ShardOfRank(1, (3, 0), (2, 3))], r"rank 1 has shape \[2, 3\] at \[3, 0\], and the whole"),
        ([ShardOfRank(1, (0,), (4,))], r"rank 1 has shape \[4\] at \[0\], and the whole"),
        (
            [ShardOfRank(0, (0, 0), (2, 3)), ShardOfRank(1, (0, 0), (4, 3))],
            "ranks 0 and 1 have shapes",
        ),
        ([], "its shards have 0 elements"),
    ],
)
def test_shards_that_are_not_the_whole_are_refused(shards: list[ShardOfRank], why: str) -> None:
    with pytest.raises(TilesError, match=why):
        tiles([4, 3], shards)


def test_a_scalar_has_one_tile() -> None:
    assert tiles([], [ShardOfRank(0, (), ()), ShardOfRank(1, (), ())]) == [ShardOfRank(0, (), ())]
