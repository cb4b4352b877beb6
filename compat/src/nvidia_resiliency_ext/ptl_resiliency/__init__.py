"""Callbacks for Lightning, where this release of holdfast has them."""

try:
    from holdfast.integrations.lightning import (  # type: ignore[import-not-found,unused-ignore]
        FaultToleranceCallback,
        FaultToleranceSectionsCallback,
        SimulatedFaultParams,
    )
except ModuleNotFoundError as _missing:
    raise ImportError(
        f"nvidia_resiliency_ext.ptl_resiliency: FaultToleranceCallback, "
        f"FaultToleranceSectionsCallback and SimulatedFaultParams are not available, as there is "
        f"no module {_missing.name!r}. Where that is holdfast's, this release has no Lightning "
        f"callbacks: call holdfast.fault_tolerance.RankMonitorClient in a callback of your own; "
        f"otherwise install it (pip install lightning)",
        name=_missing.name,
    ) from _missing

__all__ = [
    "FaultToleranceCallback",
    "FaultToleranceSectionsCallback",
    "SimulatedFaultParams",
]
