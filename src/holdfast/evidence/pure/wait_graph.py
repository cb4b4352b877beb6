"""Where the waiting of ranks for each other ends: in collectives that all have begun. Pure.

Ranks whose calls do not match wait in a circle. Where there is none, and all have called the same,
they wait for collectives that do not end though no rank is missing: no fault of the script.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from holdfast.base.pure.rank_sets import ranks_of
from holdfast.evidence.pure.evidence import GroupDigest
from holdfast.evidence.pure.mismatch import CallsAt, differ

Groups = Mapping[tuple[str, str], Mapping[int, GroupDigest]]
"""By name and members of a group: its digest on each rank."""
Call = tuple[str, str, int, str]
"""Name and members of a group, number of a collective, peers of a send or receive."""

PEERS_UNKNOWN = ("coalesced", "send", "recv")
"""Calls of sends and receives; of several at once, the recorder does not say the peers."""


def complete(
    groups: Groups, calls_at: CallsAt, all_ranks: Collection[int]
) -> dict[tuple[str, str, int], set[int]]:
    """Collectives that no rank is missing from, if all waiting ends there, and their waiting ranks.

    Args:
        groups: Of all ranks.
        calls_at: By name and members of a group and number of a collective: the call of each rank.
        all_ranks: Members of groups whose members are not known.

    Returns:
        Empty where there is a circle, or the calls of all members of one are not known.
    """
    missing: dict[Call, set[int]] = {}
    waiting: dict[Call, set[int]] = defaultdict(set)
    for (name, members), digests in groups.items():
        for rank, group in digests.items():
            if group.is_unusual or (group.pending.startswith(PEERS_UNKNOWN) and not group.peers):
                return {}
            if not group.pending:
                continue
            call = name, members, group.seq, group.peers
            waiting[call].add(rank)
            if call not in missing and group.peers:
                missing[call] = {*ranks_of(group.peers)}
            elif call not in missing:
                begun = {it for it, its in digests.items() if its.enqueued >= group.seq}
                missing[call] = {*_of(members, all_ranks)} - begun
    ends = [call for call, behind in missing.items() if not behind]
    if len(_lead_to(ends, missing, waiting)) < len(missing):
        return {}
    found = {call[:3]: waiting[call] for call in ends}
    is_sure = all(
        calls_at[at].keys() >= {*_of(at[1], all_ranks)} and not differ(calls_at[at]) for at in found
    )
    return found if is_sure else {}


def _lead_to(
    ends: list[Call], missing: Mapping[Call, set[int]], waiting: Mapping[Call, set[int]]
) -> list[Call]:
    """Those, and calls whose missing ranks wait in such calls alone."""
    missed_by = defaultdict(list)
    for call, behind in missing.items():
        for rank in behind:
            missed_by[rank].append(call)
    n_behind = {call: len(behind) for call, behind in missing.items()}
    n_calls = Counter(rank for ranks in waiting.values() for rank in ranks)
    found = list(ends)
    for call in found:  # which grows
        for rank in waiting[call]:
            n_calls[rank] -= 1
            for blocked in () if n_calls[rank] else missed_by[rank]:
                n_behind[blocked] -= 1
                if not n_behind[blocked]:
                    found.append(blocked)
    return found


def _of(members: str, all_ranks: Collection[int]) -> Collection[int]:
    return ranks_of(members) or all_ranks
