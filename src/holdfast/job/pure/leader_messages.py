"""Messages between a leader and the launcher that it lives in; none of them leaves the process."""

from __future__ import annotations

from holdfast.base.pure.common_events import Begin, IterationRead, Note, TimePassed
from holdfast.base.pure.value import Value
from holdfast.job.pure import membership as msg


# ---------------------------------------------------------------- events
class Abdicate(Value):
    """The launcher that the leader lives in must go.

    ``can_move``: another one leads then; else the job ends, unless the leader has no lease. Its own
    ranks are gone.
    """

    why: str
    can_move: bool = False


class LauncherEnded(Value):
    """The launcher of a node, or a witness, has ended without a last message, says its kernel."""

    node: str


class Superseded(Value):
    """The launcher of a node leads in this later term, as it has proved."""

    term: int
    node: str


JobEvent = Begin | msg.Message | IterationRead | Abdicate | LauncherEnded
"""Concerns the job."""
Event = JobEvent | Superseded | TimePassed


# ---------------------------------------------------------------- effects
class ReadIteration(Value):
    """Find out how far the job's checkpoints are, then report :class:`IterationRead`."""

    first: bool
    """Nothing has been trained yet: there may be none."""


class Close(Value):
    """The job is over and no launcher needs the store; ``missing`` have not acknowledged that."""

    missing: tuple[str, ...] = ()


class StepDown(Value):
    """Another launcher may lead: this one does not any more, and looks for that."""

    text: str
    ranks_s: float = 0.0
    """As in :class:`.Resigned`."""


class WitnessMoved(Value):
    """A witness is there; ``why_gone``: it is not any more, and why."""

    node: str
    why_gone: str = ""


Effect = msg.Decision | ReadIteration | Note | Close | StepDown | WitnessMoved
"""A decision is appended to the log that every launcher reads."""
