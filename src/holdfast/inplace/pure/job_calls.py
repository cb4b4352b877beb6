"""Messages of a node guard to the launcher of its node: calls, restarts in place, hung ranks. Pure.

The launcher does not answer. It writes restarts into the events of the run; with min-healthy on one
node, a call says which ranks may be lost. Times: the node's monotonic clock.
"""

from __future__ import annotations

import enum

from holdfast.base.pure.codec import Count, Text, Whole
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


class FaultKind(enum.Enum):
    """The interruption of an epoch, by the names that users know."""

    EXCEPTION = "EXCEPTION"
    """The function raised; the rank stays."""
    BASE_EXCEPTION = "BASE_EXCEPTION"
    """The rank leaves: SystemExit, KeyboardInterrupt, RestartAbort, or it is not healthy."""
    SOFT_TIMEOUT = "SOFT_TIMEOUT"
    """No progress for ``soft_timeout``; the rank is interrupted."""
    HARD_TIMEOUT = "HARD_TIMEOUT"
    """No progress for ``hard_timeout``; the rank is killed."""
    TERMINATED = "TERMINATED"
    """Its process ended without a message."""
    UNRESPONSIVE = "UNRESPONSIVE"
    """Its node is silent."""
    MONITOR_PROCESS_EXCEPTION = "MONITOR_PROCESS_EXCEPTION"
    """Its node guard failed."""


class Cause(Value):
    """Why an epoch ended: this happened to a rank.

    Attributes:
        rank: Global, as the cycle began; -1: not known.
        kind: The fault of that rank.
        text: For people.
    """

    rank: Rank
    kind: FaultKind
    text: Text = ""


class CallBegan(Value):
    """All ranks have entered the function; the call goes on without those that are lost.

    Attributes:
        cycle: Of the launcher that started them.
        ranks: Of this node, global.
    """

    cycle: Count
    ranks: tuple[Rank, ...]


class CallEnded(Value):
    """The call is over; sent before its ranks get the message.

    Attributes:
        cycle: Of the launcher that started them.
        ranks: Of this node, global: those that were in it to the end.
        finished: The function has completed on all that are left; else the call has failed.
    """

    cycle: Count
    ranks: tuple[Rank, ...]
    finished: bool


class RestartedInPlace(Value):
    """All ranks have entered the function again; once per restart.

    Attributes:
        call: Which call of the function this is; the first one, not a restart, was 0.
        causes: Why the one before has ended: the first :data:`CAUSES_MAX`.
        n_causes: How many there were.
        progress_at: Where a rank hung: the last progress of that rank of this node which has made
            none for the longest time. Otherwise as ``noticed_at``.
        noticed_at: The abort reached this node.
        entered_at: Its ranks got the message to enter the function.
        verdict: After a hang, which ranks held up the others; None: not known.
        step: Of the snapshot that all ranks begin from; None: from none, or as the cycle began.
        lost_steps: Steps that are computed again; -1: not known.
    """

    call: Count
    causes: tuple[Cause, ...]
    n_causes: Count
    progress_at: float
    noticed_at: float
    entered_at: float
    verdict: Verdict | None = None
    step: Count | None = None
    lost_steps: int = -1


class EndsHungRank(Value):
    """A rank hangs, and is ended; sent before its first signal.

    Attributes:
        rank: Global, as the cycle began.
        text: How long it has hung, for people.
        seen: Its evidence; None: not known.
        began: Why the restart began that it holds up; None: it holds up none.
        began_at: When that abort reached this node.
    """

    rank: Rank
    text: Text
    seen: RankDigest | None = None
    began: Cause | None = None
    began_at: float = 0.0


OfGuard = CallBegan | CallEnded | RestartedInPlace | EndsHungRank
