"""What the node guard of a restart in place tells the launcher of its node.

Pure. Said when a call of the function begins and when it ends; once per restart, when all ranks
enter the function again; and of each rank that is ended because it hangs, before its first signal.
Nothing is answered. The launcher writes restarts into the events of the run, and with min-healthy
on one node a call tells it which ranks may be lost. Times: the node's monotonic clock.
"""

from __future__ import annotations

from holdfast.base.pure.codec import Count, Raw, Text, Whole
from holdfast.base.pure.value import Value
from holdfast.evidence.pure.evidence import RankDigest, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Rank: TypeAlias = int
else:
    Rank = Whole(-1, (1 << 31) - 1)

CAUSES_MAX = 8
"""A lost node is a cause for each of its ranks."""


class CallBegan(Value):
    """All ranks have entered the function; the call goes on without those that are lost.

    Attributes:
        cycle: Of the launcher that started them.
        ranks: Of this node, global.
    """

    cycle: Count
    ranks: tuple[Rank, ...]


class CallEnded(Value):
    """The call is over; said before its ranks hear of it.

    Attributes:
        cycle: Of the launcher that started them.
        ranks: Of this node, global: those that were in it to the end.
        finished: The function has completed on all that are left; else the call has failed.
    """

    cycle: Count
    ranks: tuple[Rank, ...]
    finished: bool


class InPlaceCause(Value):
    """Why the function was interrupted.

    Attributes:
        rank: Global, as the cycle began; -1: not known.
        kind: Name of a ``inplace.pure.messages.Kind``.
        text: For people.
    """

    rank: Rank
    kind: Raw
    text: Text = ""


class RestartedInPlace(Value):
    """All ranks have entered the function again.

    Attributes:
        call: Which call of the function this is; the first one, not a restart, was 0.
        causes: Why the one before has ended: the first :data:`CAUSES_MAX`.
        n_causes: How many there were.
        progress_at: Where a rank hung: the last progress of that rank of this node which has made
            none for the longest time. Otherwise as ``noticed_at``.
        noticed_at: This node was told to abort.
        entered_at: Its ranks were told to enter the function.
        verdict: After a hang, which ranks held up the others; None: not known.
    """

    call: Count
    causes: tuple[InPlaceCause, ...]
    n_causes: Count
    progress_at: float
    noticed_at: float
    entered_at: float
    verdict: Verdict | None = None


class EndsHungRank(Value):
    """A rank hangs, and is ended.

    Attributes:
        rank: Global, as the cycle began.
        text: How long it has hung, for people.
        seen: What it shows; None: not known.
        began: Why the restart began that it holds up; None: it holds up none.
        began_at: When this node was told to abort.
    """

    rank: Rank
    text: Text
    seen: RankDigest | None = None
    began: InPlaceCause | None = None
    began_at: float = 0.0
