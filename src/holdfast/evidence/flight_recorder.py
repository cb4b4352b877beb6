"""Write torch's flight record to a file: the collectives that each rank started and ended."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.base.torch_private import flight_recorder

_BUFFER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Environment variables, the one that torch prefers first."""


def is_recording() -> bool:
    """The environment asks for a flight recorder: its buffer has a size above 0."""
    for name in _BUFFER_SIZES:
        value = os.environ.get(name)
        if value is not None:
            return value.isdecimal() and int(value) > 0
    return False


def dump_flight_record(folder: Path, rank: int) -> Path | None:
    """Write this rank's record to ``folder/rank_<rank>``, for torch's ``fr_trace`` tool.

    Args:
        folder: Made where there is none.
        rank: Goes into the file's name.

    Returns:
        The file; ``None``: this torch has no recorder.

    Raises:
        OSError: It cannot be written.
    """
    dump = flight_recorder()
    if dump is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank_{rank}"
    path.write_bytes(dump())
    return path
