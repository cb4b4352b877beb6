"""Name the rank that left a job by itself, before others failed of the lost connection. Pure.

A rank that leaves in the middle of a job is lost to those that still need it, and no error says so:
it has raised nothing, and its peers report a closed connection. The sentence begins with the rank
that left, as a console may cut its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.base.pure.rank_sets import named
from holdfast.base.pure.value import Value
from holdfast.base.pure.wording import count
from holdfast.evidence.pure.failure import RankEnd, explain, rank_name

_EXITING = "sys.exit, or the end of its script"
"""All that is known of a rank that was stopped while Python exited."""


class LeftEarly(Value):
    """The rank that left last before another one lost a peer.

    Attributes:
        ranks: All that had left, the last one first.
        how: Which rank it is, and how it left.
        then: The failure of the other rank.
        advice: Where to look.
        at: When it left, monotonic seconds.
    """

    ranks: tuple[int, ...]
    how: str
    then: str
    advice: str
    at: float

    def __str__(self) -> str:
        """The whole sentence."""
        return f"{self.how}; {self.then}"


def gone_before(ends: Sequence[RankEnd], cause: RankEnd) -> list[tuple[float, RankEnd]]:
    """Ranks that had left when others lost a peer, and when, the last one first.

    One that has ended did so with exit code 0; another was still exiting when it was stopped.
    Empty: the cause is no lost peer.
    """
    if not cause.names_a_peer:
        return []
    return [
        (at, end)
        for at, end in _that_left(ends)
        if at <= (cause.began_at if end.asked else cause.ended_at)
    ]


def left_early(ends: Sequence[RankEnd], cause: RankEnd, node: str = "") -> LeftEarly | None:
    """The rank that left before the first failure; None: none did.

    ``node``: the name of this one, for others.
    """
    gone = gone_before(ends, cause)
    if not gone:
        return None
    left, found = {end.rank for _, end in gone}, cause.attribution
    others = named([end.rank for end in ends if end.rank not in left])
    later = f"{cause.ended_at - gone[0][0]:.2f} s later rank {cause.rank} failed{found.at}"
    return _left(gone, node, others, f"{later}: {found.words or explain(cause)}")


def left_before_other_node(ends: Sequence[RankEnd], cause: str, node: str = "") -> LeftEarly | None:
    """The rank of this node that left before one of another node lost a peer; None: none did.

    ``cause``: the failure of that rank, which has ended the cycle.
    """
    gone = _that_left(ends)
    return _left(gone, node, "other nodes", f"then {cause}") if gone else None


def _that_left(ends: Sequence[RankEnd]) -> list[tuple[float, RankEnd]]:
    left = [(end.left_at, end) for end in ends if end.left_at is not None]
    return sorted(left, key=lambda it: -it[0])


def _left(gone: Sequence[tuple[float, RankEnd]], node: str, others: str, then: str) -> LeftEarly:
    (at, last), *before = gone
    more = f" after {count(len(before), 'other rank')}" if before else ""
    return LeftEarly(
        tuple(int(end.rank) for _, end in gone),
        f"{rank_name(last, node)} {how_it_left(last)}{more} while {others} continued",
        then,
        f"look in rank {last.rank} for sys.exit, an early return or fewer batches",
        at,
    )


def how_it_left(end: RankEnd) -> str:
    """The exit code of a rank that was stopped is known if that came too late."""
    if not end.asked:
        return "exited with code 0"
    code = f", with exit code {end.exit_code}" if end.exit_code >= 0 else ""
    return f"began to exit ({_EXITING}{code})"
