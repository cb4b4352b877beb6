"""Run something that may never end, without waiting for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.inprocess.exception import TimeoutError as RestartTimeoutError


def run_within(timeout_s: float, what: str, function: Callable[[], object]) -> None:
    """Call ``function`` in a daemon thread, and wait for it.

    Args:
        timeout_s: In seconds.
        what: For the message and the thread's name.
        function: Is left behind, running, when its time is up: no thread can be ended.

    Raises:
        RestartTimeoutError: It did not end in time.
        BaseException: Whatever it raised.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - it is raised again, in the waiting thread
            raised.append(error)

    thread = threading.Thread(target=run, name=f"holdfast {what}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise RestartTimeoutError(f"{what} did not end within its timeout of {timeout_s:g} s")
    if raised:
        raise raised.pop()  # what is left in this frame would keep itself alive
