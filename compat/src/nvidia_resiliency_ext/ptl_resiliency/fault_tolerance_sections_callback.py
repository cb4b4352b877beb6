"""The callback that marks sections."""

from holdfast.integrations.lightning import FaultToleranceSectionsCallback

__all__ = ["FaultToleranceSectionsCallback"]
