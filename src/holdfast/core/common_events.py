"""Events and effects that mean the same to several machines. Each is defined here, once."""

from __future__ import annotations

from dataclasses import dataclass


# ---------------------------------------------------------------- events
@dataclass(frozen=True)
class Begin:
    """The process that feeds this machine is ready for its first work."""


@dataclass(frozen=True)
class TimePassed:
    """The instant that the machine named as its next deadline has come, or may have."""


@dataclass(frozen=True)
class ControlRequested:
    """A rank of this node asks something of its launcher; takes effect when its cycle is over.

    Attributes:
        rank: Global rank, -1: the launcher itself wants it.
        action: Name of a ``WorkloadAction``.
        text: Why, for people.
    """

    rank: int
    action: str
    text: str = ""


@dataclass(frozen=True)
class SignalArrived:
    """The launcher itself was sent a signal that it handles."""

    signum: int


@dataclass(frozen=True)
class IterationRead:
    """The job's last checkpoint is of this iteration; fed before a failure is. None: unknown."""

    iteration: int | None


# ---------------------------------------------------------------- effects
@dataclass(frozen=True)
class Note:
    """A line of the log. ``level``: ``info``, ``warning`` or ``error``."""

    level: str
    text: str
