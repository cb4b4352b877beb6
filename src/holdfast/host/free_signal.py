"""Find a real-time signal that nobody in this process uses."""

from __future__ import annotations

import os
import signal

from holdfast.host.proc import process_state


def free_signal(above_first: int) -> int:
    """The first signal from SIGRTMIN + ``above_first`` on without a handler, and not ignored.

    Args:
        above_first: The lowest signals are used by libraries, the highest by valgrind and others.

    Returns:
        Its number; 0: none is free.
    """
    state = process_state(os.getpid())
    for number in range(signal.SIGRTMIN + above_first, signal.SIGRTMAX + 1):
        # The kernel also knows of handlers that were not installed through Python.
        is_caught = state is not None and state.catches(number)
        if not is_caught and signal.getsignal(number) == signal.SIG_DFL:
            return number
    return 0
