"""How much memory snapshots may take, decided before any is given. Pure. Bytes."""

from __future__ import annotations

from holdfast.base.pure.value import Value

LEAST_SLOTS = 2
"""With one there is no common snapshot while it is written."""
SHARE = 4
"""Without a limit of the user, one part in so many of the memory that is left."""
_PAGE = 4096


class SlotsGranted(Value):
    """So many slots for each rank.

    Attributes:
        bytes_max: Memory of all ranks of the node then.
        limit: The most that was to be had.
    """

    n_slots: int
    bytes_max: int
    limit: int


class TooLittleMemory(Value):
    """Snapshots are off: the least that they need, and the most that is to be had."""

    needs: int
    limit: int


def grant(
    slot_bytes: int, wanted: int, n_ranks: int, left: int | None, limit: int | None
) -> SlotsGranted | TooLittleMemory:
    """As many slots as have room, if those are enough.

    Args:
        slot_bytes: Of one snapshot; each rank of the node is assumed to need that.
        wanted: Slots per rank.
        n_ranks: Of the node.
        left: Memory that processes could have, with what snapshots have already; None: not known.
        limit: The user's; None: a quarter of that.
    """
    theirs = [it for it in (limit, left) if it is not None]
    most = min(theirs, default=0) if limit is not None else (left or 0) // SHARE
    each = n_ranks * max(_PAGE, -(-slot_bytes // _PAGE) * _PAGE)
    fit = most // each
    if fit < LEAST_SLOTS:
        return TooLittleMemory(LEAST_SLOTS * each, most)
    n_slots = min(max(wanted, LEAST_SLOTS), fit)
    return SlotsGranted(n_slots, n_slots * each, most)


def shown(n_bytes: int) -> str:
    """``612 MiB``, ``1.5 GiB``."""
    mib = n_bytes / (1 << 20)
    if mib < 1:
        return f"{max(1, n_bytes >> 10)} KiB"
    return f"{mib:.0f} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"
