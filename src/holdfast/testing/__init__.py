"""Test what survives failures without waiting for them: a virtual clock and a seeded simulator.

Public. ``python -m holdfast.testing.simulate --help`` runs the simulator from a shell.
"""

from holdfast.testing.clock import VirtualClock
from holdfast.testing.job_promises import Violation
from holdfast.testing.scenario import (
    Ask,
    Breaks,
    Crash,
    Cut,
    Fault,
    Forgery,
    Hangs,
    HealthDies,
    MonitorDies,
    Network,
    Pause,
    RankFails,
    Return,
    Scenario,
    Sick,
    Signal,
    Stranger,
    Stuck,
    random_scenario,
)
from holdfast.testing.simulation import Result, Simulation

__all__ = [
    "Ask",
    "Breaks",
    "Crash",
    "Cut",
    "Fault",
    "Forgery",
    "Hangs",
    "HealthDies",
    "MonitorDies",
    "Network",
    "Pause",
    "RankFails",
    "Result",
    "Return",
    "Scenario",
    "Sick",
    "Signal",
    "Simulation",
    "Stranger",
    "Stuck",
    "Violation",
    "VirtualClock",
    "random_scenario",
]
