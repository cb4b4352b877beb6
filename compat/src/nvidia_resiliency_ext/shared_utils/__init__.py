"""Used by both halves: fault injection, health checks, waiting for a daemon."""

from importlib import import_module

_SUBMODULES = frozenset({"health_check", "inject_fault", "wait_daemon"})


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES})
