"""Every exception holdfast raises on purpose.

    HoldfastError
    ├── ConfigError (ValueError)             a configuration value or file, named
    ├── LaunchError                          this machine cannot run the launcher's part of a job
    ├── RankMonitorClientError               the client was misused or cannot reach its monitor
    ├── TimeoutsCalcError                    limits cannot be learned (no process group, ...)
    ├── InvalidStateTransitionException      the layered-restart state machine was misused
    ├── UnhealthyNodeException               this node leaves the job
    ├── SnapshotError                        a snapshot cannot be taken of this state, or restored
    └── RestartError                         of in-process restart: holdfast.inprocess.exception

``holdfast.net.pure.frames.FrameError`` (bytes that are no frame) never reaches a user.
"""


class HoldfastError(Exception):
    """Base class of all of holdfast's exceptions."""


class ConfigError(HoldfastError, ValueError):
    """A configuration value that cannot be used; names its source, its key and its value."""


class LaunchError(HoldfastError):
    """Something that a launcher needs does not work on this machine; the text has the remedy."""


class RankMonitorClientError(HoldfastError):
    """A call of the rank monitor client that cannot be carried out."""


class TimeoutsCalcError(HoldfastError):
    """Limits cannot be calculated from measured intervals."""


class InvalidStateTransitionException(HoldfastError):  # noqa: N818 - the name is public API
    """A transition that the layered-restart state machine does not allow."""


class UnhealthyNodeException(HoldfastError):  # noqa: N818 - the name is public API
    """This node must not take part in the job any more."""


class SnapshotError(HoldfastError):
    """A snapshot cannot be taken of this state, or put back into it; the text says why."""
