"""Used by both halves: fault injection, health checks, waiting for a daemon."""

from nvidia_resiliency_ext._lazy import lazy

TYPE_CHECKING = False

if TYPE_CHECKING:
    from nvidia_resiliency_ext.shared_utils import (
        health_check as health_check,
        inject_fault as inject_fault,
        wait_daemon as wait_daemon,
    )

_SUBMODULES = frozenset({"health_check", "inject_fault", "wait_daemon"})

if not TYPE_CHECKING:  # so that a type checker finds a name that is not there
    __getattr__, __dir__ = lazy(__name__, _SUBMODULES)
