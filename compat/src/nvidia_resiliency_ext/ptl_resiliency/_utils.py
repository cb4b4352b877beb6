"""Parts that the callbacks share, under the names that programs import."""

from holdfast.integrations.lightning import is_module_available
from holdfast.integrations.simulated_fault import SimulatedFaultParams

__all__ = ["SimulatedFaultParams", "is_module_available"]
