"""Fault tolerance for distributed PyTorch training.

Importing this package costs microseconds: no torch, no asyncio, nothing of the launcher.
The two halves are :mod:`holdfast.fault_tolerance` (between processes: ``ft_launcher``, rank
monitors, :class:`~holdfast.fault_tolerance.RankMonitorClient`) and :mod:`holdfast.inprocess`
(within them: a function that all ranks call again).
"""

__version__ = "0.7.0.dev0"
