"""Wait until the GPUs of a node are free of the memory of ranks that have ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping

from holdfast.core.reclaim import Over, Reclaim
from holdfast.host import clock
from holdfast.host.proc import Process, await_any

UsedMib = Callable[[], Mapping[str, float]]
"""Memory in use on each GPU of the job, MiB; nothing where there is no driver."""
Holders = Callable[[], Iterable[int]]
"""Processes that hold memory there, as far as the driver says."""


def wait(
    reclaim: Reclaim, used_mib: UsedMib, holders: Holders, tell: Callable[[str], None]
) -> Over:
    """Until all is free or the time is over; a holder's end is not slept through.

    ``tell``: called with what a person who waits wants to know.
    """
    while True:
        step = reclaim.look(used_mib(), clock.monotonic())
        if isinstance(step, Over):
            return step
        if step.text:
            tell(step.text)
        with contextlib.ExitStack() as stack:
            living = []
            for pid in holders():
                with contextlib.suppress(OSError):
                    process = Process(pid)
                    stack.callback(process.close)
                    if not process.has_ended():  # the end of others is no news
                        living.append(process)
            await_any(living, step.seconds)
