"""One log file per cycle, with the output of all ranks (``--ft-per-cycle-applog-prefix``)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.base.file_writer import LineLog, cycle_path
from holdfast.base.rank_log import rank_logger

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PerCycleLog", "get_cycle_log_path"]

_LOGGER = rank_logger("holdfast.compat")


def get_cycle_log_path(base: str, cycle: int) -> str:
    """``/logs/run.log`` and 3: ``/logs/run_cycle3.log``; without an extension it gets ``.log``.

    Raises:
        ValueError: ``base`` is no absolute path.
    """
    if not os.path.isabs(base):
        raise ValueError(f"the path of a per-cycle log must be absolute, is {base!r}")
    return cycle_path(base, cycle)


class PerCycleLog:
    """Appends lines of ranks to the file of a cycle; several processes may write to one file.

    A file that cannot be written is logged once, as a warning, and given up.

    Args:
        base: Absolute path that the names of all cycles are made of.
        cycle: Number of the cycle.
        world_size: Of the job: the ranks before the lines are as wide as its largest.

    Raises:
        ValueError: ``base`` is no absolute path.
    """

    def __init__(self, base: str, cycle: int = 0, world_size: int = 1) -> None:
        self.path = get_cycle_log_path(base, cycle)
        self._width = len(str(max(world_size - 1, 0)))
        self._log = LineLog(self.path, _LOGGER.warning)

    def write(self, rank: int, lines: str | Iterable[str]) -> None:
        """Append lines, each after ``"<rank>: "``."""
        texts = lines.splitlines() if isinstance(lines, str) else lines
        prefix = f"{rank:>{self._width}}: ".encode()
        self._log.write(prefix, [text.encode(errors="replace") for text in texts])

    def close(self) -> None:
        """Close the file."""
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
