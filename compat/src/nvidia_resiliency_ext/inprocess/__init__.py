"""Restart in place: names and submodules of both generations, loaded when first used."""

from importlib import import_module

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.inprocess.compose import Compose
    from holdfast.inprocess.state import FrozenState, Mode, State
    from holdfast.inprocess.wrap import CallWrapper, Wrapper

__all__ = ["CallWrapper", "Compose", "FrozenState", "Mode", "State", "Wrapper"]

_HOME = {
    "CallWrapper": "wrap",
    "Compose": "compose",
    "FrozenState": "state",
    "Mode": "state",
    "State": "state",
    "Status": "state",
    "Wrapper": "wrap",
}
_SUBMODULES = frozenset(
    {
        "abort",
        "attribution",
        "completion",
        "compose",
        "exception",
        "finalize",
        "health_check",
        "initialize",
        "logging",
        "monitor_process",
        "monitor_thread",
        "nested_restarter",
        "param_utils",
        "progress_watchdog",
        "rank_assignment",
        "rank_filter",
        "sibling_monitor",
        "state",
        "store",
        "terminate",
        "tools",
        "wrap",
    }
)


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_SUBMODULES})
