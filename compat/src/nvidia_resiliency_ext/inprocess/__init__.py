"""Restart in place: names and submodules of both generations, loaded when first used."""

from nvidia_resiliency_ext._lazy import lazy

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.inprocess.compose import Compose
    from holdfast.inprocess.state import FrozenState, Mode, State
    from holdfast.inprocess.wrap import CallWrapper, Wrapper
    from nvidia_resiliency_ext.inprocess import (
        abort as abort,
        attribution as attribution,
        completion as completion,
        compose as compose,
        exception as exception,
        finalize as finalize,
        health_check as health_check,
        initialize as initialize,
        logging as logging,
        monitor_process as monitor_process,
        monitor_thread as monitor_thread,
        nested_restarter as nested_restarter,
        param_utils as param_utils,
        progress_watchdog as progress_watchdog,
        rank_assignment as rank_assignment,
        rank_filter as rank_filter,
        sibling_monitor as sibling_monitor,
        state as state,
        store as store,
        terminate as terminate,
        tools as tools,
        utils as utils,
        wrap as wrap,
    )

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
        "utils",
        "wrap",
    }
)

if not TYPE_CHECKING:  # so that a type checker finds a name that is not there
    __getattr__, __dir__ = lazy(__name__, _SUBMODULES, _HOME)
