"""Torch's flight recorder in this rank: the collectives that it is in, and its record as a file."""

from __future__ import annotations

import os
from pathlib import Path

import torch.distributed as dist

from holdfast.base import clock
from holdfast.base.torch_private import (
    all_groups,
    count_collectives,
    flight_recorder,
    recorded_collectives,
)
from holdfast.evidence.pure import collectives
from holdfast.evidence.pure.evidence import GroupDigest

__all__ = ["count_collectives", "current_collectives", "dump_flight_record", "is_recording"]

_BUFFER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Environment variables, the one that torch prefers first."""


def current_collectives() -> tuple[tuple[GroupDigest, ...], tuple[str, ...]]:
    """Where this rank is in each group, and its last operations as lines.

    Takes the interpreter's lock, and never waits for a collective.
    """
    known = {name: group for group, name in all_groups()}

    def members(name: str) -> tuple[int, ...]:
        group = known.get(name)
        return () if group is None else tuple(dist.get_process_group_ranks(group))

    entries = recorded_collectives()
    groups = collectives.digests(entries, members, clock.wall())
    return groups, collectives.recent(entries)


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
