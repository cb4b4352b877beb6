"""Between processes: launcher, rank monitors, client. Names are loaded when first used."""

from importlib import import_module

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.errors import InvalidStateTransitionException, RankMonitorClientError
    from holdfast.fault_tolerance.config import FaultToleranceConfig
    from holdfast.fault_tolerance.data import WorkloadAction, WorkloadControlRequest
    from holdfast.fault_tolerance.rank_monitor_client import RankMonitorClient
    from nvidia_resiliency_ext.fault_tolerance.rank_monitor_server import RankMonitorServer
    from nvidia_resiliency_ext.fault_tolerance.rank_monitor_state_machine import (
        RankMonitorState,
        RankMonitorStateMachine,
    )

__all__ = [
    "FaultToleranceConfig",
    "InvalidStateTransitionException",
    "RankMonitorClient",
    "RankMonitorClientError",
    "RankMonitorServer",
    "RankMonitorState",
    "RankMonitorStateMachine",
    "WorkloadAction",
    "WorkloadControlRequest",
]

_HOME = {
    "FaultToleranceConfig": "config",
    "InvalidStateTransitionException": "rank_monitor_state_machine",
    "RankMonitorClient": "rank_monitor_client",
    "RankMonitorClientError": "rank_monitor_client",
    "RankMonitorServer": "rank_monitor_server",
    "RankMonitorState": "rank_monitor_state_machine",
    "RankMonitorStateMachine": "rank_monitor_state_machine",
    "WorkloadAction": "data",
    "WorkloadControlRequest": "data",
}
_SUBMODULES = frozenset(
    {
        "config",
        "data",
        "dict_utils",
        "ipc_connector",
        "launcher",
        "per_cycle_logs",
        "progress_tracker",
        "rank_monitor_client",
        "rank_monitor_server",
        "rank_monitor_state_machine",
        "timeouts_calc",
        "utils",
    }
)


def __getattr__(name: str) -> object:
    if name in _HOME:
        value: object = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_SUBMODULES})
