"""Test what survives failures: a virtual clock, and faults on purpose.

Public. :mod:`holdfast.testing.inject` has faults for a running process.
"""

from holdfast.testing.clock import VirtualClock

__all__ = ["VirtualClock"]
