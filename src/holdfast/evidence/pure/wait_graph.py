"""Where the waiting of ranks for each other ends: in collectives that all have begun. Pure.

Ranks whose calls do not match wait in a circle. Where there is none, and all have called the same,
they wait for collectives that do not end though no rank is missing: no fault of the script.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from holdfast.evidence.pure.evidence import Call

PEERS_UNKNOWN = ("coalesced", "send", "recv")
"""Calls of sends and receives; of several at once, the recorder does not say the peers."""


def ends_of_waiting(waits: Mapping[Call, set[int]], behind: Mapping[Call, set[int]]) -> list[Call]:
    """Calls that no rank is missing from, if all waiting ends there; empty: there is a circle.

    Args:
        waits: Ranks that wait in each call.
        behind: Ranks that each call waits for.
    """
    missed_by = defaultdict(list)
    for call, missing in behind.items():
        for rank in missing:
            missed_by[rank].append(call)
    n_behind = {call: len(missing) for call, missing in behind.items()}
    n_calls = Counter(rank for ranks in waits.values() for rank in ranks)
    ends = [call for call, missing in behind.items() if not missing]
    lead_there = list(ends)  # they, and calls whose missing ranks wait in such calls alone
    for call in lead_there:  # which grows
        for rank in waits[call]:
            n_calls[rank] -= 1
            for blocked in () if n_calls[rank] else missed_by[rank]:
                n_behind[blocked] -= 1
                if not n_behind[blocked]:
                    lead_there.append(blocked)
    return ends if len(lead_there) == len(behind) else []
