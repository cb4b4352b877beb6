"""Between processes: launcher, rank monitors, client. Names are loaded when first used."""

from nvidia_resiliency_ext._lazy import lazy

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.errors import InvalidStateTransitionException, RankMonitorClientError
    from holdfast.fault_tolerance.config import FaultToleranceConfig
    from holdfast.fault_tolerance.data import WorkloadAction, WorkloadControlRequest
    from holdfast.fault_tolerance.rank_monitor_client import RankMonitorClient
    from nvidia_resiliency_ext.fault_tolerance import (
        config as config,
        data as data,
        dict_utils as dict_utils,
        ipc_connector as ipc_connector,
        launcher as launcher,
        per_cycle_logs as per_cycle_logs,
        progress_tracker as progress_tracker,
        rank_monitor_client as rank_monitor_client,
        rank_monitor_server as rank_monitor_server,
        rank_monitor_state_machine as rank_monitor_state_machine,
        timeouts_calc as timeouts_calc,
        utils as utils,
    )
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

if not TYPE_CHECKING:  # so that a type checker finds a name that is not there
    __getattr__, __dir__ = lazy(__name__, _SUBMODULES, _HOME)
