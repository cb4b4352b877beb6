"""Ranks of a training agree before they begin: a snapshot is for all of them, or for none."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from holdfast.base.rank_log import rank_logger
from holdfast.errors import SnapshotError
from holdfast.integrations._pure.snapshot_moments import is_snapshot_newer
from holdfast.snapshot import Snapshots


def _is_alone() -> bool:
    return not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


NOT_IN_PLACE = (
    "this callback does not work in a function that restarts in place. Use "
    "holdfast.snapshot.Snapshots with a loop of your own there, or leave restarts to ft_launcher"
)


def agreed_step(step: int, device: Any) -> int:
    """``step`` where all ranks have the same; -1: they do not, or it is -1. A collective."""
    if _is_alone():
        return step
    both = torch.tensor([step, -step], dtype=torch.int64, device=device)
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    most, least = int(both[0]), -int(both[1])
    if most != least:
        rank_logger(__name__).warning(
            "the snapshot is not used: this rank has step %d, others have steps %d to %d",
            step,
            least,
            most,
        )
        return -1
    return step


def begins_from_snapshot(step: int, checkpoint_step: int | None, device: Any) -> bool:
    """Whether the snapshot is used, and not the checkpoint, as rank 0 finds. A collective.

    ``step``: of the snapshot. ``checkpoint_step``: None where the checkpoint has none.
    """
    is_used = is_snapshot_newer(step, checkpoint_step)
    if not _is_alone():
        found = torch.tensor([int(is_used)], dtype=torch.int64, device=device)
        dist.broadcast(found, src=0)
        is_used = bool(found[0])
    if not is_used and (_is_alone() or dist.get_rank() == 0):
        rank_logger(__name__).info(
            "begins from the checkpoint of step %s: it is newer than the snapshot of step %d",
            checkpoint_step,
            step,
        )
    return is_used


def restore_as_agreed(snapshots: Snapshots, step: int) -> None:
    """Restore the snapshot that all ranks have agreed on.

    Raises:
        SnapshotError: This rank cannot, and others have; the next restart begins anew.
    """
    restored = snapshots.restore()
    if restored != step:
        raise SnapshotError(
            f"the snapshot of step {step}, which other ranks begin from, was not restored on this "
            "rank: its launcher gave no memory for it"
        )
