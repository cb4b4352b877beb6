"""``ft_launcher``: start the ranks of a node, watch them, and start them again when they fail.

The command line is torchrun's, and more (``ft_launcher --help``). Exit codes:

    0    all ranks ended well, or this node was excluded on a rank's request
    1    ranks failed and no restart is left, the job was shut down by a rank or by a signal, or the
         configuration file cannot be used
    2    the command line cannot be used; nothing was started
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError, UnhealthyNodeException
from holdfast.fault_tolerance.arguments import UsageError, get_args_parser, parse_args
from holdfast.fault_tolerance.plan import LaunchPlan, make_plan

if TYPE_CHECKING:
    from holdfast.fault_tolerance.agent import LocalElasticAgent

__all__ = [
    "LaunchConfig",
    "LocalElasticAgent",
    "UnhealthyNodeException",
    "elastic_launch",
    "get_args_parser",
    "main",
    "parse_args",
]

LaunchConfig = LaunchPlan
"""What a job looks like; the name under which programs import it."""


def __getattr__(name: str) -> object:
    """Load the agent when it is needed: not for ``--help`` or a usage error."""
    if name == "LocalElasticAgent":
        from holdfast.fault_tolerance.agent import LocalElasticAgent  # noqa: PLC0415

        return LocalElasticAgent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def run(plan: LaunchPlan) -> int:
    """Carry out a plan; returns the exit code. Main thread only."""
    from holdfast.fault_tolerance.agent import LocalElasticAgent  # noqa: PLC0415

    return LocalElasticAgent(plan, os.environ).run()
