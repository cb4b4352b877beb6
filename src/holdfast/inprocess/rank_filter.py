"""Filters of ``rank_assignment``, which make ranks inactive, by the first generation's names."""

from holdfast.inprocess.rank_assignment import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    MaxActiveWorldSize,
    RankFilter,
    WorldSizeDivisibleBy,
)

__all__ = [
    "ActivateAllRanks",
    "ActiveWorldSizeDivisibleBy",
    "MaxActiveWorldSize",
    "RankFilter",
    "WorldSizeDivisibleBy",
]
