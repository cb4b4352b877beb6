"""Start a node's health process, by exec (``host/bare_process.py``)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.host.controlled_process import ControlledProcess, start_controlled
from holdfast.host.descriptor_limit import give_limit_back
from holdfast.host.proc import MARKER

_BOOT = "from holdfast.health.host_health_main import main; main()"


def start_health_process(first: Mapping[str, object], job: str) -> ControlledProcess:
    """Start one; see ``health/host_health_main.py`` for what it takes and says.

    Args:
        first: The first message to it, encoded (``health/messages.py``).
        job: Marks its environment, so that it is found if it outlives us.

    Raises:
        OSError: The process cannot be started.
    """
    env = {**os.environ, MARKER: f"{job}.health.0"}
    process = start_controlled(_BOOT, (), env, first)
    give_limit_back(process.pid)  # it looks at its own, and means that of ranks
    return process
