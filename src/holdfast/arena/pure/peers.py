"""Which node takes the snapshots of another one's ranks. Pure.

Each node has one peer, and is the peer of one. Nodes of a failure domain may be lost together: so
the peer is of another one, where that can be.
"""

from __future__ import annotations

from collections import Counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SHIFTS_MAX = 256


def peers(domains: Sequence[str | None]) -> list[int]:
    """The group rank of each node's peer; none where there is only one node.

    All nodes are shifted by the same number, so each takes the snapshots of one other. Of several
    numbers that keep as many nodes apart the least counts.

    Args:
        domains: By group rank; None: that of this node alone.
    """
    n = len(domains)
    if n <= 1:
        return []
    named = [object() if it is None else it for it in domains]
    longest = max(Counter(named).values())
    shifts = range(1, min(n - 1, longest, _SHIFTS_MAX) + 1)
    if longest == n:
        shifts = range(1, 2)

    def together(shift: int) -> int:
        return sum(named[k] == named[(k + shift) % n] for k in range(n))

    shift = min(shifts, key=together)
    return [(k + shift) % n for k in range(n)]
