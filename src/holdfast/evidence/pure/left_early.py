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
    """

    ranks: tuple[int, ...]
    how: str
    then: str
    advice: str

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
    left = [(end.left_at, end) for end in ends if end.left_at is not None]
    gone = [it for it in left if it[0] <= (cause.began_at if it[1].asked else cause.ended_at)]
    return sorted(gone, key=lambda it: -it[0])


def left_early(ends: Sequence[RankEnd], cause: RankEnd, node: str = "") -> LeftEarly | None:
    """The rank that left before the first failure; None: none did.

    ``node``: the name of this one, for others.
    """
    gone = gone_before(ends, cause)
    if not gone:
        return None
    left_at, last = gone[0]
    ranks = tuple(int(end.rank) for _, end in gone)
    more = f" after {count(len(gone) - 1, 'other rank')}" if len(gone) > 1 else ""
    others = named([end.rank for end in ends if end.rank not in ranks])
    found = cause.attribution
    return LeftEarly(
        ranks,
        f"{rank_name(last, node)} {how_it_left(last)}{more} while {others} continued",
        f"{cause.ended_at - left_at:.2f} s later rank {cause.rank} failed{found.at}: "
        f"{found.words or explain(cause)}",
        f"look in rank {last.rank} for sys.exit, an early return or fewer batches",
    )


def how_it_left(end: RankEnd) -> str:
    """The exit code of a rank that was stopped is known if that came too late."""
    if not end.asked:
        return "exited with code 0"
    code = f", with exit code {end.exit_code}" if end.exit_code >= 0 else ""
    return f"began to exit ({_EXITING}{code})"
