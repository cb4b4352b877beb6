"""Start a rank monitor, by exec (``host/bare_process.py``)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.core.codec import encode
from holdfast.core.monitor.monitor_messages import Configure
from holdfast.host.controlled_process import ControlledProcess, start_controlled

LISTENER_FD = 3
CONTROL_FD = 4
_BOOT = "from holdfast.fault_tolerance.monitor.monitor_main import main; main()"


def start_monitor(
    listener_fd: int, config: Configure, env: Mapping[str, str] | None = None
) -> ControlledProcess:
    """Start a monitor in a session of its own; it says ``Ready`` when it is.

    Args:
        listener_fd: Listening Unix socket on which its rank will call. It stays ours as well, so
            that a successor can be given the same one.
        config: The first message to it.
        env: Environment of the process; ours by default.

    Raises:
        OSError: The process cannot be started.
    """
    return start_controlled(
        _BOOT, (listener_fd,), os.environ if env is None else env, encode(config)
    )
