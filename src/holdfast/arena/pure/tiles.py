"""Shards of one tensor, from the files of several ranks, as tiles of the whole. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class TilesError(ValueError):
    """Shards do not make up the whole; the text says why."""


class ShardOfRank(NamedTuple):
    """A part of a tensor.

    Attributes:
        rank: That has it.
        offsets: Of its first element in the whole, one per dimension; None: not known.
        sizes: One per dimension.
    """

    rank: int
    offsets: tuple[int, ...] | None
    sizes: tuple[int, ...]


def tiles(shape: Sequence[int], shards: Iterable[ShardOfRank]) -> list[ShardOfRank]:
    """Shards that cover the whole once: replicas and empty ones are left out.

    Raises:
        TilesError: They leave a gap, overlap, reach beyond it, or lie at unknown places.
    """
    found: dict[tuple[int, ...], ShardOfRank] = {}
    for it in shards:
        if it.offsets is None:
            raise TilesError(f"rank {it.rank} has a part that is not one block of the whole")
        if math.prod(it.sizes) == 0 and math.prod(shape) != 0:
            continue
        ends = [begin + size for begin, size in zip(it.offsets, it.sizes, strict=False)]
        is_within = len(ends) == len(it.sizes) == len(it.offsets) == len(shape)
        if not is_within or any(end > size for end, size in zip(ends, shape, strict=True)):
            raise TilesError(
                f"rank {it.rank} has shape {list(it.sizes)} at {list(it.offsets)}, and the whole "
                f"is {list(shape)}"
            )
        known = found.setdefault(it.offsets, it)
        if known.sizes != it.sizes:
            raise TilesError(
                f"ranks {known.rank} and {it.rank} have shapes {list(known.sizes)} and "
                f"{list(it.sizes)} at {list(it.offsets)}"
            )
    covered, needed = sum(math.prod(it.sizes) for it in found.values()), math.prod(shape)
    if covered != needed:
        raise TilesError(f"its shards have {covered} elements, and the whole has {needed}")
    return list(found.values())
