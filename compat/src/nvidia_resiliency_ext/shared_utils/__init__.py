"""Used by both halves: fault injection, health checks, waiting for a daemon."""

from nvidia_resiliency_ext._lazy import lazy

_SUBMODULES = frozenset({"health_check", "inject_fault", "wait_daemon"})

__getattr__, __dir__ = lazy(__name__, _SUBMODULES)
