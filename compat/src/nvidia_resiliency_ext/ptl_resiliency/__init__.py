"""Callbacks for Lightning; importing this imports Lightning."""

from nvidia_resiliency_ext.ptl_resiliency._utils import SimulatedFaultParams
from nvidia_resiliency_ext.ptl_resiliency.fault_tolerance_callback import FaultToleranceCallback
from nvidia_resiliency_ext.ptl_resiliency.fault_tolerance_sections_callback import (
    FaultToleranceSectionsCallback,
)

__all__ = [
    "FaultToleranceCallback",
    "FaultToleranceSectionsCallback",
    "SimulatedFaultParams",
]
