"""Events of a node's cycles, for parts that decide something themselves. Pure."""

from __future__ import annotations

from holdfast.base.pure.value import Value


class Waiting(Value):
    """The node waits for a cycle to take part in."""


class CycleEnding(Value):
    """The ranks are being stopped, or have ended."""
