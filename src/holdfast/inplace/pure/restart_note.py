"""A guard's note of one restart in place, for the launcher of its node. Pure."""

from __future__ import annotations

from holdfast.inplace.pure import messages as msg
from holdfast.inplace.pure.job_calls import CAUSES_MAX, Cause, RestartedInPlace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


_TEXT_CHARS_MAX = 500
"""Of a cause: all of them have to fit into a request to a launcher."""


class RestartNote:
    """From the first abort of a call of the function to the begin of the next call.

    Attributes:
        began: Its first cause; None: not known.
        noticed_at: The abort reached this node.
        awaited: Ranks of this node in the function with unknown last progress: only their pages
            have it, until they are freed. Empty where no rank hangs.
    """

    def __init__(self, abort: msg.AbortEpoch, ranks: Iterable[int], now: float) -> None:
        self.noticed_at = now
        self.began = _shortened(abort.causes[0]) if abort.causes else None
        self._progress_at = now
        self.awaited = set(ranks) if abort.is_hang else set()

    def saw(self, rank: int, at: float) -> None:
        """A rank made its last progress then; counts once."""
        if rank in self.awaited:
            self.awaited.discard(rank)
            self._progress_at = min(self._progress_at, at)

    def finish(self, commit: msg.Commit, now: float) -> RestartedInPlace:
        """The next call begins."""
        return RestartedInPlace(
            call=commit.epoch,
            causes=tuple(_shortened(cause) for cause in commit.causes[:CAUSES_MAX]),
            n_causes=len(commit.causes),
            progress_at=self._progress_at,
            noticed_at=self.noticed_at,
            entered_at=now,
            verdict=commit.verdict,
        )


def _shortened(cause: Cause) -> Cause:
    return Cause(cause.rank, cause.kind, cause.text[:_TEXT_CHARS_MAX])
