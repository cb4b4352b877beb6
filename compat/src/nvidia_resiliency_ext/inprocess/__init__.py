"""Restart in place: names and submodules of both generations, loaded when first used."""

from nvidia_resiliency_ext._lazy import lazy

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

__getattr__, __dir__ = lazy(__name__, _SUBMODULES, _HOME)
