"""Test what survives failures: a virtual clock and a seeded simulator, and faults on purpose.

Public. ``python -m holdfast.testing.simulate --help`` runs the simulator from a shell;
:mod:`holdfast.testing.inject` has faults for a running process. Names are imported when they are
first used: the simulator brings all machines along.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        Suspend,
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
    "Suspend",
    "Violation",
    "VirtualClock",
    "random_scenario",
]

_PLACES = {
    "VirtualClock": "clock",
    "Violation": "job_promises",
    "Result": "simulation",
    "Simulation": "simulation",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(f"{__name__}.{_PLACES.get(name, 'scenario')}"), name)
