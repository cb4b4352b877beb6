"""The callback that sends heartbeats."""

from holdfast.integrations.lightning import FaultToleranceCallback

__all__ = ["FaultToleranceCallback"]
