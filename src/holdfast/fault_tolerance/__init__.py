"""Between processes: the launcher, the rank monitors, and the client that a rank talks through.

Names are loaded when first used (PEP 562), so that importing the client never pays for the
launcher, and neither pays for torch.

Public: the path of its names is in pickles and tracebacks. Read first: ``launcher.py``,
``elastic.py``, ``config.py``, ``rank_monitor_client.py``.
"""

TYPE_CHECKING = False  # the rank monitor imports this package, and ``typing`` costs it 4 ms

if TYPE_CHECKING:
    from holdfast.watch.pure.layered_restart import RankMonitorState, RankMonitorStateMachine
    from holdfast.errors import InvalidStateTransitionException, RankMonitorClientError
    from holdfast.fault_tolerance.config import FaultToleranceConfig
    from holdfast.fault_tolerance.data import WorkloadAction, WorkloadControlRequest
    from holdfast.fault_tolerance._own_client import client
    from holdfast.fault_tolerance.rank_monitor_client import RankMonitorClient

__all__ = [
    "FaultToleranceConfig",
    "InvalidStateTransitionException",
    "RankMonitorClient",
    "RankMonitorClientError",
    "RankMonitorState",
    "RankMonitorStateMachine",
    "WorkloadAction",
    "WorkloadControlRequest",
    "client",
]

_HOME = {
    "FaultToleranceConfig": "holdfast.fault_tolerance.config",
    "InvalidStateTransitionException": "holdfast.errors",
    "RankMonitorClient": "holdfast.fault_tolerance.rank_monitor_client",
    "RankMonitorClientError": "holdfast.errors",
    "RankMonitorState": "holdfast.watch.pure.layered_restart",
    "RankMonitorStateMachine": "holdfast.watch.pure.layered_restart",
    "WorkloadAction": "holdfast.fault_tolerance.data",
    "WorkloadControlRequest": "holdfast.fault_tolerance.data",
    "client": "holdfast.fault_tolerance._own_client",
}


if not TYPE_CHECKING:  # so that a type checker finds a name that is not there

    def __getattr__(name: str) -> object:
        """Load a public name when it is first asked for."""
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib  # noqa: PLC0415 - the same 4 ms

        value: object = getattr(importlib.import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
