"""In which collectives this rank is, from torch's flight recorder, for its monitor."""

from __future__ import annotations

import torch.distributed as dist

from holdfast.base import clock
from holdfast.base.pure.rank_sets import text_of
from holdfast.base.torch_private import all_groups, count_collectives, recorded_collectives
from holdfast.evidence.pure import collectives
from holdfast.evidence.pure.evidence import GroupDigest

__all__ = ["count_collectives", "current_collectives"]


def current_collectives() -> tuple[tuple[GroupDigest, ...], tuple[str, ...]]:
    """Where this rank is in each group, and its last operations as lines.

    Takes the interpreter's lock, and never waits for a collective.
    """
    known = {name: group for group, name in all_groups()}

    def members(name: str) -> tuple[int, ...]:
        group = known.get(name)
        return () if group is None else tuple(dist.get_process_group_ranks(group))

    entries = recorded_collectives()
    groups = collectives.digests(entries, members, text_of, clock.wall())
    return groups, collectives.recent(entries)
