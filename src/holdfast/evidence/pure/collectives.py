"""From torch's flight recorder to where a rank is in its collectives. Pure.

The recorder numbers the collectives of each group on each rank alike. Its own summary counts sends
and receives with them on some backends, so all is taken from its entries.
"""

from __future__ import annotations

from itertools import pairwise

from holdfast.base.pure.rank_sets import text_of
from holdfast.evidence.pure.evidence import GroupDigest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    Entry = Mapping[str, Any]

RECENT = 16
"""Operations that are shown."""
_ORDER = 64
"""Operations in which a rank's own order is looked for."""
_GROUPS = 64
"""Groups that are reported, those used last first."""
_CHARS = 60


def _number_of(entry: Entry) -> str:
    """Torch's name of its group."""
    number: str = entry.get("process_group", ("?",))[0]
    return number


def group_of(entry: Entry) -> str:
    """A group may have a backend for each device, which count on their own: ``0 gloo``."""
    return f"{_number_of(entry)} {entry.get('profiling_name', '').partition(':')[0]}"


def operation(entry: Entry) -> str:
    """As ``all_reduce Float[8, 8]``: ranks that match show the same text."""
    name = entry.get("profiling_name", "").partition(":")[2] or "?"
    kinds, sizes = entry.get("input_dtypes") or [], entry.get("input_sizes") or []
    parts = [f"{kind}{size}" for kind, size in zip(kinds, sizes, strict=False)]
    return f"{name} {', '.join(parts)}".strip()[:_CHARS]


def is_pending(entry: Entry) -> bool:
    """It has not ended. NCCL's are retired by a thread that is late."""
    return not entry.get("retired") and entry.get("state") != "completed"


def digests(
    entries: Iterable[Entry],
    members: Callable[[str], tuple[int, ...]],
    wall_s: float = 0.0,
) -> tuple[GroupDigest, ...]:
    """Where the rank is in each group.

    Args:
        entries: Of all recorders, those of each one oldest first.
        members: Global ranks of a group, by torch's name of it; empty: not known.
        wall_s: Now, seconds since 1970, as the recorder's instants.
    """
    known = of_living_groups(entries, members)
    groups: dict[str, list[Entry]] = {}
    for entry in known:
        name = group_of(entry)
        of_group = groups.pop(name, [])
        of_group.append(entry)
        groups[name] = of_group
    is_unusual = breaks_order(known)
    found = []
    for name, of_group in [*groups.items()][-_GROUPS:]:
        ranks = members(_number_of(of_group[-1]))
        found.append(_digest(name, of_group, ranks, wall_s, is_unusual=is_unusual))
    return tuple(found)


def of_living_groups(
    entries: Iterable[Entry], members: Callable[[str], tuple[int, ...]]
) -> list[Entry]:
    """Without operations of groups that were destroyed: after an abort, they may never end.

    A new group may have the name of an old one; its number differs. Where no group is known any
    more, the entries are all there is.
    """
    listed = [*entries]
    newest = {group_of(entry): entry.get("pg_id") for entry in listed}
    listed = [entry for entry in listed if entry.get("pg_id") == newest[group_of(entry)]]
    living = {number for number in set(map(_number_of, listed)) if members(number)}
    return [entry for entry in listed if _number_of(entry) in living] if living else listed


def _digest(
    name: str,
    entries: list[Entry],
    ranks: tuple[int, ...],
    wall_s: float,
    *,
    is_unusual: bool,
) -> GroupDigest:
    collectives = [entry for entry in entries if not entry.get("is_p2p")]
    pending = [entry for entry in entries if is_pending(entry)]
    oldest = pending[0] if pending else None
    enqueued = collectives[-1].get("collective_seq_id", -1) if collectives else -1
    waits = next((entry for entry in pending if not entry.get("is_p2p")), None)
    completed = enqueued if waits is None else waits.get("collective_seq_id", 0) - 1
    is_p2p = oldest is not None and bool(oldest.get("is_p2p"))
    ended = [entry for entry in collectives if entry.get("collective_seq_id") == completed]
    begun_s = [entry.get("time_created_ns", 0) / 1e9 for entry in pending]
    return GroupDigest(
        name,
        text_of(ranks),
        enqueued,
        completed,
        pending="" if oldest is None else operation(oldest),
        seq=-1 if oldest is None else oldest.get("collective_seq_id", -1),
        peers=_peers(oldest, ranks) if oldest is not None and is_p2p else "",
        is_unusual=is_unusual and oldest is not None,
        last=operation(ended[-1]) if ended and oldest is not None and not is_p2p else "",
        n_pending=len(pending),
        n_transfers=sum(bool(entry.get("is_p2p")) for entry in pending),
        waits_s=round(max(0.0, wall_s - max(begun_s)), 3) if begun_s and min(begun_s) > 0 else 0.0,
        timeout_s=max((entry.get("timeout_ms", 0) / 1e3 for entry in pending), default=0.0),
    )


def _peers(entry: Entry, ranks: tuple[int, ...]) -> str:
    """Of ``nccl:recv 0<-1`` or ``nccl:send 0->1``, which say ranks of the group."""
    words = entry.get("profiling_name", "").replace("<-", " ").replace("->", " ").split()
    peer = int(words[-1]) if words and words[-1].isdigit() else -1
    return text_of([ranks[peer]]) if 0 <= peer < len(ranks) else ""


def breaks_order(entries: list[Entry]) -> bool:
    """The operation that the rank waits in has never followed the one before it, and others have.

    In the order of all groups: a rank that leaves out an operation of one group goes on with
    another. An operation that the rank has not called before breaks no order: evaluations begin
    with such.
    """
    at = next((at for at, entry in enumerate(entries) if is_pending(entry)), 0)
    if at == 0:
        return False
    names = [f"{group_of(one)} {operation(one)}" for one in entries[max(0, at - _ORDER) : at + 1]]
    followed = {after for before, after in pairwise(names[:-1]) if before == names[-2]}
    is_known = names[-1] in names[:-1]
    return bool(followed) and is_known and names[-1] not in followed


def recent(entries: Iterable[Entry]) -> tuple[str, ...]:
    """The last operations, one line each, newest last."""
    last = [*entries][-RECENT:]
    return tuple(
        f"{group_of(entry)} {entry.get('collective_seq_id', '?')} {operation(entry)}"
        f"{' (has not ended)' if is_pending(entry) else ''}"
        for entry in last
    )
