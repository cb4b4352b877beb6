"""A rank that trains until one of its job hangs, in a way that its environment names.

``WHY_CASES`` has a case for each cycle; the cycle after them trains to its end. The culprit of a
cycle is :func:`culprit_of`.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEFORE = 4
"""Steps before the hang."""
STEPS = 12


def culprit_of(cycle: int, world: int) -> int:
    """Any rank, the next one in the next cycle."""
    return (3 * cycle + 1) % world


def read_fifo() -> None:
    """A file whose other end never comes."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(f"{folder}/data.fifo")
        os.read(os.open(f"{folder}/data.fifo", os.O_RDWR), 1)


def take_lock() -> None:
    """One that is taken."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def hold_interpreter() -> None:
    """In C, without a release."""
    re.match(r"(a+)+$", "a" * 64 + "b")


def hold_interpreter_asleep() -> None:
    """The same, asleep."""
    ctypes.PyDLL(None).sleep(1000)


def spin() -> None:
    """In Python."""
    while True:
        pass


def receive() -> None:
    """From a process that sends nothing; no method of torch's, though it has a name of one."""
    ours, theirs = multiprocessing.Pipe()
    ours.recv()
    theirs.close()


def wait_for_key() -> None:
    """That no rank sets."""
    _store().wait(["never"])


def await_event() -> None:
    """In a task of asyncio."""

    async def event() -> None:
        await asyncio.Event().wait()

    asyncio.run(event())


def hold_interpreter_elsewhere() -> None:
    """In another thread than the main one."""
    threading.Thread(target=hold_interpreter, daemon=True).start()
    time.sleep(1000)


def _store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def stop() -> None:
    """As a debugger does."""
    while True:
        os.kill(os.getpid(), signal.SIGSTOP)


CASES: dict[str, Callable[[], object]] = {
    "lock": take_lock,
    "interpreter": hold_interpreter,
    "interpreter asleep": hold_interpreter_asleep,
    "stopped": stop,
    "fifo": read_fifo,
    "busy": spin,
    "sleep": lambda: time.sleep(1000),
    "input": lambda: os.read(os.openpty()[1], 1),
    "receive": receive,
    "key": wait_for_key,
    "task": await_event,
    "interpreter elsewhere": hold_interpreter_elsewhere,
}
BY_TRAINING = ("loader", "skip", "native", "slow", "ring", "keys")
"""Faults of the training itself."""
STOPPED_NODES = {"stopped node": 1, "stopped leader": 0, "stopped launcher": 1}
"""Which node of two is stopped, from outside, when a file says that all ranks train."""


def main() -> None:
    """Train."""
    cases = os.environ["WHY_CASES"].split(",")
    cycle = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    case = cases[cycle] if cycle < len(cases) else ""

    from holdfast.fault_tolerance import RankMonitorClient

    client = RankMonitorClient()
    client.init_workload_monitoring()
    train(
        case,
        is_culprit=rank == culprit_of(cycle, world),
        begins=lambda: client.start_section("step"),
        ends=lambda: client.end_section("step"),
        is_there=lambda: Path(f"trains{rank}").touch() if case in STOPPED_NODES else None,
    )
    client.shutdown_workload_monitoring()


def train(
    case: str,
    *,
    is_culprit: bool,
    begins: Callable[[], object],
    ends: Callable[[], object],
    is_there: Callable[[], object],
) -> None:
    """All steps.

    Args:
        case: How the culprit hangs; "": it does not.
        is_culprit: This rank is.
        begins: Called at the begin of each step.
        ends: Called before the ranks meet at the end of each.
        is_there: Called at the begin of the step of the hang.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hangs_in_loader = case == "loader" and is_culprit

    class Data(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 2 * STEPS

        def __getitem__(self, index: int) -> Any:
            if hangs_in_loader and index >= 2 * BEFORE:
                time.sleep(1000)
            return torch.ones(16)

    workers = 1 if case == "loader" else 0
    context = "fork" if workers else None  # Python 3.14 would start interpreters of their own
    loader = torch.utils.data.DataLoader
    batches = iter(loader(Data(), 2, num_workers=workers, multiprocessing_context=context))
    dist.barrier()
    trains_on = case in STOPPED_NODES
    for step in itertools.count() if trains_on else range(STEPS):
        if step == BEFORE:
            is_there()
        hangs = is_culprit and step == BEFORE
        begins()
        batch = torch.ones(2, 16) if trains_on else next(batches)
        if hangs and case in CASES:
            CASES[case]()
        if is_culprit and step >= BEFORE and case == "slow":
            time.sleep(4.0)  # twice as long as it may take
        if case == "ring":
            exchange(sends=not hangs)
        if case == "keys" and step == BEFORE:  # all others wait for one
            time.sleep(1000) if hangs else wait_for_key()
        loss = model(batch).sum()
        if hangs and case == "native":
            (
                loss + torch.linalg.svdvals(torch.rand(5000, 5000, requires_grad=True)).sum()
            ).backward()
        else:
            loss.backward()
        optimizer.step()
        if not (hangs and case == "skip"):
            dist.all_reduce(loss.detach().reshape(1))
        ends()
        if not trains_on:  # else a node may be stopped while the others wait here, in no section
            dist.barrier()


def exchange(*, sends: bool) -> None:
    """Send to the next rank and receive from the one before; gloo's recorder has neither."""
    import torch
    import torch.distributed as dist

    if not sends:
        time.sleep(1000)
    rank, world = dist.get_rank(), dist.get_world_size()
    to_next = dist.P2POp(dist.isend, torch.ones(4), (rank + 1) % world)
    from_last = dist.P2POp(dist.irecv, torch.ones(4), (rank - 1) % world)
    for request in dist.batch_isend_irecv([to_next, from_last]):
        request.wait()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
