"""What a restart in the process costs a rank: an atomic section, a stamp, an interrupt, an abort.

The groups of gloo are two ranks in this process, one of which never joins the collective.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any

from bench.figures import Bar, Report
from holdfast.inplace.interrupt import MainThreadInterrupt
from holdfast.page.stamps import Stamps

CALLS = 20_000
ROUNDS = 50
_TIMEOUT = dt.timedelta(seconds=60)


class _Restart(BaseException):
    pass


def measure() -> Report:
    """See the module."""
    report = Report("mechanisms of a restart within one rank; 1 process, gloo with 2 ranks in it")
    interrupt = MainThreadInterrupt()
    try:
        report.add("atomic section", "us", [_atomic_us(interrupt) for _ in range(10)], Bar(1.0))
        report.add("stamp of both threads", "us", [_stamp_us() for _ in range(10)], Bar(5.0))
        report.add("interrupt of a loop", "ms", _interrupts_ms(interrupt, _spin), Bar(10.0))
        sleeps = _interrupts_ms(interrupt, lambda: time.sleep(60))
        report.add("interrupt of a sleep", "ms", sleeps, Bar(5.0))
    finally:
        interrupt.close()
    waits, calls = _aborts_ms()
    report.add("gloo: abort to back in Python", "ms", waits, Bar(5.0))
    report.add("gloo: the abort itself", "ms", calls)
    report.add("gloo: abort of a receive from any source", "ms", _receives_ms(), Bar(5.0))
    report.notes.append("NCCL is not measured here")
    return report


def _atomic_us(interrupt: MainThreadInterrupt) -> float:
    atomic = interrupt.atomic
    began_ns = time.perf_counter_ns()
    for _ in repeat(None, CALLS):
        with atomic:
            pass
    return (time.perf_counter_ns() - began_ns) / CALLS / 1e3


def _stamp_us() -> float:
    stamps = Stamps(memoryview(bytearray(16)).cast("d"), 0, 1)
    stamps.begin()
    began_ns = time.perf_counter_ns()
    for _ in repeat(None, CALLS):
        stamps.beat()
    stamps.end()
    return (time.perf_counter_ns() - began_ns) / CALLS / 1e3


def _spin() -> None:
    while True:
        pass


def _interrupts_ms(interrupt: MainThreadInterrupt, function: Callable[[], None]) -> list[float]:
    found = []
    for _ in range(ROUNDS):
        asked_at: list[float] = []

        def ask(asked_at: list[float] = asked_at) -> None:
            asked_at.append(time.perf_counter())
            interrupt.request()

        timer = threading.Timer(0.02, ask)
        timer.start()
        try:
            interrupt.run(function, _Restart)
        except _Restart:
            found.append((time.perf_counter() - asked_at[0]) * 1e3)
        timer.join()
    return found


def _receives_ms() -> list[float]:
    import torch
    from torch.distributed import ProcessGroupGloo

    from holdfast.base.torch_private import HashStore
    from holdfast.inplace.torch_edge.work_abort import work_aborter

    found: list[float] = []
    main = threading.get_ident()
    work_aborter.prepare()
    if not work_aborter.wait_prepared(_TIMEOUT.total_seconds()):
        raise RuntimeError("this torch has no abort of a receive; a warning says why")
    with work_aborter.installed():
        group: Any = ProcessGroupGloo(HashStore(), 0, 1, timeout=_TIMEOUT)
        for _ in range(ROUNDS):
            aborted: list[float] = []

            def abort(aborted: list[float] = aborted) -> None:
                aborted.append(time.perf_counter())
                work_aborter.abort(main)

            work = group.recv_anysource([torch.ones(1000)], 0)
            timer = threading.Timer(0.02, abort)
            timer.start()
            work.wait()
            found.append((time.perf_counter() - aborted[0]) * 1e3)
            timer.join()
    return found


def _aborts_ms() -> tuple[list[float], list[float]]:
    import torch
    from torch.distributed import ProcessGroupGloo

    from holdfast.base.torch_private import HashStore
    from holdfast.inplace.torch_edge.gloo_abort import gloo_aborter

    waits, calls = [], []
    with gloo_aborter.installed():
        for _ in range(ROUNDS):
            groups: dict[int, Any] = {}
            store = HashStore()

            def make(rank: int, groups: dict[int, Any] = groups, store: Any = store) -> None:
                groups[rank] = ProcessGroupGloo(store, rank, 2, timeout=_TIMEOUT)

            makers = [threading.Thread(target=make, args=(rank,)) for rank in (0, 1)]
            for maker in makers:
                maker.start()
            for maker in makers:
                maker.join()
            aborted: list[float] = []

            def abort(aborted: list[float] = aborted) -> None:
                aborted.append(time.perf_counter())
                gloo_aborter.abort()
                aborted.append(time.perf_counter())

            work = groups[0].allreduce([torch.ones(1000)])
            timer = threading.Timer(0.02, abort)
            timer.start()
            try:
                work.wait()
            except RuntimeError:
                waits.append((time.perf_counter() - aborted[0]) * 1e3)
            timer.join()
            calls.append((aborted[1] - aborted[0]) * 1e3)
            gloo_aborter.release()
            del work
            groups.clear()
    return waits, calls
