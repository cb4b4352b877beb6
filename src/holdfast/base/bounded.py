"""Make a call that may never return (a file system hangs), and wait no longer than asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def call_within(
    bound_s: float,
    call: Callable[[], _T],
    late: Exception | None = None,
    thread_name: str = "holdfast-bounded",
) -> _T:
    """What ``call`` returns or raises; it is made by a thread, which is left behind if it is late.

    Raises:
        TimeoutError: It has not come back within ``bound_s`` seconds; or ``late``, if given.
    """
    returned: list[_T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            returned.append(call())
        except BaseException as error:  # noqa: BLE001 - the caller's to handle
            raised.append(error)

    thread = threading.Thread(target=run, name=thread_name, daemon=True)
    thread.start()
    thread.join(bound_s)
    if raised:
        raise raised.pop()  # what is left in this frame would keep itself alive
    if not returned:
        raise late or TimeoutError(f"no answer within {bound_s:g} s")
    return returned[0]
