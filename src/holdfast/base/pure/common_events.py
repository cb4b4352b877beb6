"""Events and effects that mean the same to several machines. Each is defined here, once."""

from __future__ import annotations

from holdfast.base.pure.codec import Raw
from holdfast.base.pure.value import Value


# ---------------------------------------------------------------- events
class Begin(Value):
    """The process that feeds this machine is ready for its first work."""


class TimePassed(Value):
    """The instant that the machine named as its next deadline has come, or may have."""


class ControlRequested(Value):
    """A rank of this node asks something of its launcher; takes effect when its cycle is over.

    ``rank`` is global, -1: the launcher itself wants it; ``action`` names a ``WorkloadAction``.
    """

    rank: int
    action: str
    text: str = ""


class SignalArrived(Value):
    """The launcher itself was sent a signal that it handles."""

    signum: int


class IterationRead(Value):
    """The job's last checkpoint is of this iteration; fed before a failure is. None: unknown."""

    iteration: int | None


# ---------------------------------------------------------------- effects
class Note(Value):
    """A line of the log. ``level``: ``info``, ``warning`` or ``error``."""

    level: str
    text: Raw
