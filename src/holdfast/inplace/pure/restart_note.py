"""What a guard notes of a restart in place, for the launcher of its node.

Pure. Begun at the first abort of a call of the function, finished when the next call begins.
"""

from __future__ import annotations

from holdfast.inplace.pure import messages as msg
from holdfast.inplace.pure.in_place import CAUSES_MAX, InPlaceCause, RestartedInPlace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


_TEXT_CHARS_MAX = 500
"""Of a cause: all of them have to fit into a request to a launcher."""


class RestartNote:
    """Of one restart.

    Args:
        abort: Its first one.
        ranks: Of this node, in the function.

    Attributes:
        began: Its first cause; None: not known.
        noticed_at: This node was told to abort.
        awaited: Of these ranks the last progress is not known yet: nobody knows better than their
            pages, before they are freed. Empty where no rank hangs.
    """

    def __init__(self, abort: msg.Abort, ranks: Iterable[int], now: float) -> None:
        self.noticed_at = now
        self.began = _shortened(abort.causes[0]) if abort.causes else None
        self._progress_at = now
        is_hang = any(cause.kind in msg.HANGS for cause in abort.causes)
        self.awaited = set(ranks) if is_hang else set()

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


def _shortened(cause: msg.Cause) -> InPlaceCause:
    return InPlaceCause(cause.rank, cause.kind.value, cause.text[:_TEXT_CHARS_MAX])
