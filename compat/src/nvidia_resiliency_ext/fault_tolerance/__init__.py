"""Between processes: launcher, rank monitors, client. Names are loaded when first used."""

from nvidia_resiliency_ext._lazy import lazy

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

__getattr__, __dir__ = lazy(__name__, _SUBMODULES, _HOME)
