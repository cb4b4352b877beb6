"""One rank of the job that ``bench/inprocess.py`` measures: it fails on order, again and again.

    python inprocess_rank.py <file of stamps> <fault> <restarts>

Each line of the file is ``<what> <iteration> <born as> <instant>``.
"""

import datetime as dt
import os
import signal
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from holdfast.inprocess import CallWrapper, Wrapper
from holdfast.inprocess.store import FileStore

FILE, FAULT, RESTARTS = sys.argv[1], sys.argv[2], int(sys.argv[3])
BORN = int(os.environ["RANK"])
SOFT_S = 1.0
CALLS = 20_000
HANGS: dict[str, Any] = {
    "soft_timeout": dt.timedelta(seconds=SOFT_S),
    "progress_watchdog_interval": dt.timedelta(seconds=SOFT_S / 20),
    "monitor_process_interval": dt.timedelta(seconds=SOFT_S / 20),
    "monitor_thread_interval": dt.timedelta(seconds=SOFT_S / 20),
}
file = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def stamp(what: str, iteration: int, at: float | None = None) -> None:
    at = time.monotonic() if at is None else at
    os.write(file, f"{what} {iteration} {BORN} {at!r}\n".encode())


def costs(call: CallWrapper) -> None:
    """Of what user code calls, in microseconds, where the instant stands otherwise."""
    began = time.perf_counter()
    for _ in range(CALLS):
        call.ping()
    stamp("ping_us", 0, (time.perf_counter() - began) / CALLS * 1e6)
    began = time.perf_counter()
    for _ in range(CALLS):
        with call.atomic():
            pass
    stamp("atomic_us", 0, (time.perf_counter() - began) / CALLS * 1e6)


@Wrapper(
    store_factory=FileStore,
    store_kwargs={"file_name": f"{FILE}.store"},
    max_start_faults=None,  # and no wait after an iteration of 30 ms
    **(HANGS if FAULT == "hang" else {}),
)
def job(call: CallWrapper) -> None:
    stamp("entered", call.iteration)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if call.iteration == 0 and FAULT == "exception":
        costs(call)
    dist.init_process_group("gloo")
    stamp("group", call.iteration)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == world
    stamp("reduced", call.iteration)
    if call.iteration < RESTARTS:
        if rank == call.iteration % world:
            time.sleep(0.03)  # the others are blocked in the collective by now
            stamp("fault", call.iteration)
            if FAULT == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if FAULT == "hang":
                time.sleep(1000)
            raise RuntimeError("a fault on order")
        dist.all_reduce(ones)
    dist.destroy_process_group()


@Wrapper(store_factory=FileStore, store_kwargs={"file_name": f"{FILE}.store2"})
def nothing() -> None:
    pass


job()
if FAULT == "exception":
    began = time.monotonic()
    nothing()
    stamp("empty_call_ms", 0, (time.monotonic() - began) * 1e3)
