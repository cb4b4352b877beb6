"""Who works: the first generation's home of the filters of ``rank_assignment``."""

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
