"""Planted hangs, in scripts that report nothing: cycle 0 hangs, cycle 1 trains to its end.

Most of the first half are proved by what ranks show, however long their group's timeout is. The
others end when that timeout is over, and so do those with gloo's receives, which no recorder has,
and ranks that are exiting, for a thread of theirs may still work. ``culprits`` are the ranks that
an incident may name; where both sides are as much at fault, it may name either one or none.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import multiprocessing
import os
import queue
import re
import select
import signal
import socket
import subprocess
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.harmless.scenario import AT, CYCLE, HANGS, Hang, hang

SHORT_S = 8.0
"""Timeout of the group, where only time ends a wait."""


def ones(size: int = 1) -> Any:
    import torch

    return torch.ones(size)


def dist() -> Any:
    import torch.distributed

    return torch.distributed


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


# ---------------------------------------------------------------- stopped or gone
@hang(1)
def stopped_in_a_step(rank: int) -> None:
    if rank == 1:
        stop()


@hang(0)
def rank_0_stopped(rank: int) -> None:
    if rank == 0:
        stop()


@hang(1, at=5)
def stopped_in_its_first_steps(rank: int) -> None:
    if rank == 1:
        stop()


@hang(1)
def stopped_before_a_barrier(rank: int) -> None:
    if rank == 1:
        stop()
    dist().barrier()


@hang(1)
def stopped_in_a_barrier(rank: int) -> None:
    """By its own timer, while rank 0 comes late, and then waits for it elsewhere."""
    if rank == 1:
        again = f"sleep 0.5; while kill -STOP {os.getpid()}; do sleep 0.1; done"
        subprocess.Popen(["sh", "-c", again])
    else:
        time.sleep(1.5)
    dist().barrier()


@hang(1)
def stopped_in_an_evaluation(rank: int) -> None:
    """Of collectives, without optimizer steps."""
    for number in range(40):
        dist().all_reduce(ones())
        time.sleep(0.05)
        if rank == 1 and number == 30:
            stop()


@hang(3, nproc=4)
def stopped_of_four(rank: int) -> None:
    if rank == 3:
        stop()


@hang(1, 2, nproc=4)
def two_stopped_of_four(rank: int) -> None:
    if rank in (1, 2):
        stop()


@hang(1)
def all_threads_stopped_by_a_child(rank: int) -> None:
    if rank == 1:
        subprocess.run(["sh", "-c", "kill -STOP $PPID"], check=False)


@hang(1)
def leaves_with_0(rank: int) -> None:
    """``sys.exit(0)`` in mid-job."""
    if rank == 1:
        raise SystemExit(0)


@hang(1)
def leaves_at_once_with_0(rank: int) -> None:
    if rank == 1:
        os._exit(0)


@hang(2, nproc=4)
def one_of_four_leaves_with_0(rank: int) -> None:
    if rank == 2:
        os._exit(0)


@hang(1, timeout_s=SHORT_S)
def main_returns_and_a_thread_stays(rank: int) -> None:
    """Python waits for the thread; the connections of the rank stay open."""
    if rank == 1:
        threading.Thread(target=time.sleep, args=(1000,)).start()
        raise SystemExit(0)


@hang(1, timeout_s=SHORT_S)
def exit_handler_never_ends(rank: int) -> None:
    if rank == 1:
        import atexit

        atexit.register(threading.Event().wait)
        raise SystemExit(0)


# ---------------------------------------------------------------- calls that do not match
@hang(0, 1)
def all_reduce_and_broadcast(rank: int) -> None:
    if rank == 1:
        dist().all_reduce(ones())
    else:
        dist().broadcast(ones(), src=1)
    dist().barrier()


@hang(0, 1)
def all_reduce_and_barrier(rank: int) -> None:
    if rank == 1:
        dist().barrier()
    else:
        dist().all_reduce(ones(1024))


@hang(0, 1)
def all_gather_and_all_reduce(rank: int) -> None:
    if rank == 1:
        dist().all_gather([ones(), ones()], ones())
    else:
        dist().all_reduce(ones())


@hang(0, 1)
def reduce_and_gather(rank: int) -> None:
    if rank == 1:
        dist().gather(ones(), dst=0)
    else:
        dist().reduce(ones(), dst=1)
    dist().barrier()


@hang(2, nproc=4)
def another_call_of_one_of_four(rank: int) -> None:
    if rank == 2:
        dist().broadcast(ones(), src=2)
        dist().barrier()
    else:
        dist().all_reduce(ones())
        dist().barrier()


@hang(1, nproc=4)
def one_of_four_calls_a_barrier(rank: int) -> None:
    if rank == 1:
        dist().barrier()
    else:
        dist().all_gather([ones() for _ in range(4)], ones())


@hang(0, 1)
def other_sizes(rank: int) -> None:
    """Of the same collective; gloo may see it by itself."""
    dist().all_reduce(ones(1 << 20 if rank else 4))
    dist().barrier()


@hang(3, nproc=4)
def another_size_of_one_of_four(rank: int) -> None:
    dist().all_gather([ones(8 if rank == 3 else 4) for _ in range(4)], ones(8 if rank == 3 else 4))
    dist().barrier()


class _Groups(Hang):
    """Two groups of all ranks."""

    culprits = (0, 1)

    def joined(self) -> None:
        self.groups = [dist().new_group(timeout=timedelta(seconds=self.timeout_s)) for _ in (0, 1)]


class GroupsInOtherOrder(_Groups):
    """Rank 1 enters the second group first."""

    def pause(self) -> None:
        for group in self.groups[:: -1 if self.rank else 1]:
            dist().all_reduce(ones(), group=group)


class GroupsInOtherOrderOfFour(GroupsInOtherOrder):
    """One of four ranks."""

    nproc = 4
    culprits = (1,)

    def pause(self) -> None:
        for group in self.groups[:: -1 if self.rank == 1 else 1]:
            dist().all_reduce(ones(), group=group)


class AnotherGroup(_Groups):
    """Each waits in a group of its own."""

    def pause(self) -> None:
        dist().barrier(self.groups[self.rank])


class SubgroupLeftOut(Hang):
    """Rank 3 of four leaves out a collective of a group of two."""

    nproc = 4
    culprits = (3,)

    def joined(self) -> None:
        pairs = [0, 1], [2, 3]
        self.group = [dist().new_group(pair, timeout=timedelta(hours=2)) for pair in pairs][
            self.rank // 2
        ]

    def pause(self) -> None:
        if self.rank != 3:
            dist().all_reduce(ones(), group=self.group)
        dist().barrier()


# ---------------------------------------------------------------- circles
@hang(0, 1, timeout_s=SHORT_S)
def both_receive(rank: int) -> None:
    dist().recv(ones(), 1 - rank)


@hang(0, 1, 2, 3, nproc=4, timeout_s=SHORT_S)
def a_ring_receives(rank: int) -> None:
    dist().recv(ones(), (rank + 1) % 4)


@hang(0, 1, timeout_s=SHORT_S)
def one_receives_one_reduces(rank: int) -> None:
    if rank == 0:
        dist().all_reduce(ones())
    else:
        dist().recv(ones(), 0)


@hang(0, 1, timeout_s=SHORT_S)
def both_receive_in_a_batch(rank: int) -> None:
    operation = dist().P2POp(dist().irecv, ones(), 1 - rank)
    for work in dist().batch_isend_irecv([operation]):
        work.wait()


@hang(2, nproc=4, timeout_s=SHORT_S)
def one_of_four_receives(rank: int) -> None:
    """It waits for a rank that waits for it, in a barrier with the others."""
    if rank == 2:
        dist().recv(ones(), 0)
    dist().barrier()


# ---------------------------------------------------------------- only time ends them
def for_ever(*culprits: int, **traits: Any) -> Any:
    """A function that one rank does not return from; the others wait until their timeout."""
    culprit = (culprits or (1,))[0]

    def made(function: Any) -> Any:
        def waits(rank: int) -> None:
            if rank == culprit:
                function()

        waits.__name__, waits.__doc__ = function.__name__, function.__doc__
        return hang(*(culprits or (1,)), timeout_s=SHORT_S, inner=function, **traits)(waits)

    return made


@for_ever()
def sleeps_for_ever() -> None:
    time.sleep(1000)


@for_ever(0)
def rank_0_sleeps_for_ever() -> None:
    time.sleep(1000)


@for_ever(2, nproc=4)
def one_of_four_sleeps_for_ever() -> None:
    time.sleep(1000)


@for_ever()
def takes_a_lock_twice() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@for_ever()
def locks_of_two_threads() -> None:
    """Each has one and wants the other."""
    locks = threading.Lock(), threading.Lock()

    def take(first: int) -> None:
        with locks[first]:
            time.sleep(0.2)
            with locks[1 - first]:
                pass

    threading.Thread(target=take, args=(1,), daemon=True).start()
    take(0)


@for_ever()
def waits_for_an_event() -> None:
    threading.Event().wait()


@for_ever()
def gets_from_an_empty_queue() -> None:
    queue.Queue().get()


@for_ever()
def joins_a_thread_that_sleeps() -> None:
    thread = threading.Thread(target=time.sleep, args=(1000,), daemon=True)
    thread.start()
    thread.join()


@for_ever()
def reads_a_silent_pipe() -> None:
    here, _there = os.pipe()
    os.read(here, 1)


@for_ever()
def runs_a_program_that_never_ends() -> None:
    subprocess.run(["sleep", "1000"], check=False)


@for_ever()
def receives_from_a_silent_peer() -> None:
    here, _there = socket.socketpair()
    here.recv(1)


@for_ever()
def selects_for_ever() -> None:
    here, _there = os.pipe()
    select.select([here], [], [])


@for_ever()
def locks_a_file_twice() -> None:
    path = Path(os.environ["OUT"]) / "lock"
    with path.open("w") as one, path.open("w") as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        fcntl.flock(two, fcntl.LOCK_EX)


@for_ever()
def loops_for_ever() -> None:
    while True:
        pass


@for_ever()
def holds_the_interpreter_for_ever() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")


@for_ever()
def holds_the_interpreter_asleep() -> None:
    ctypes.PyDLL(None).sleep(1000)


@for_ever()
def awaits_for_ever() -> None:
    asyncio.run(asyncio.Event().wait())  # type: ignore[arg-type]


@for_ever()
def waits_for_a_signal() -> None:
    signal.pause()


@for_ever()
def opens_a_fifo_for_ever() -> None:
    path = Path(os.environ["OUT"]) / "fifo"
    os.mkfifo(path)
    path.read_text()


@for_ever()
def waits_for_a_dead_process() -> None:
    """It was to put a result into the queue."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=os._exit, args=(1,))
    child.start()
    child.join()
    results.get()


@for_ever()
def polls_for_ever() -> None:
    while not Path("/nowhere").exists():
        time.sleep(0.1)


class _Loader(Hang):
    timeout_s = SHORT_S
    workers = 1

    def step(self, number: int) -> None:
        """Nothing."""

    def item(self, number: int) -> None:
        """Sample 4 * step + 2 is the first of rank 1's batch of that step."""
        if CYCLE == 0 and number == 4 * AT + 2:
            threading.Event().wait()


class LoaderHangs(_Loader):
    """A worker of rank 1."""


class LoaderWithoutWorkersHangs(_Loader):
    """Rank 1 reads by itself."""

    workers = 0


@hang(1, timeout_s=SHORT_S)
def misses_a_barrier(rank: int) -> None:
    """It trains on meanwhile, until the next collective: calls do not match any more."""
    if rank == 0:
        dist().barrier()
    else:
        time.sleep(1000)


@hang(1, timeout_s=SHORT_S)
def waits_for_a_key_that_no_rank_sets(rank: int) -> None:
    store = dist().distributed_c10d._get_default_store()
    if rank == 1:
        store.set_timeout(timedelta(seconds=SHORT_S))
        store.get("never")


@hang(0, 1, timeout_s=SHORT_S)
def all_wait_for_a_key(rank: int) -> None:
    store = dist().distributed_c10d._get_default_store()
    store.wait(["never"], timedelta(seconds=SHORT_S))


@hang(0, 1, timeout_s=SHORT_S)
def a_receive_without_a_send(rank: int) -> None:
    """Rank 0 trains on: it waits in the gradients of the next step."""
    if rank == 1:
        dist().recv(ones(), 0)


@hang(0, 1, timeout_s=SHORT_S)
def leaves_out_an_all_reduce(rank: int) -> None:
    """Rank 1 goes on with the gradients."""
    if rank == 0:
        dist().all_reduce(ones())


@hang(1, timeout_s=SHORT_S)
def misses_a_monitored_barrier(rank: int) -> None:
    if rank == 0:
        dist().monitored_barrier(timeout=timedelta(seconds=SHORT_S))
    else:
        time.sleep(1000)


@hang(1, timeout_s=SHORT_S, at=5)
def sleeps_in_its_first_steps(rank: int) -> None:
    if rank == 1:
        time.sleep(1000)


@hang(1, timeout_s=SHORT_S)
def misses_an_object(rank: int) -> None:
    """Rank 0 gathers objects; rank 1 has caught an error and waits for a person."""
    if rank == 0:
        dist().all_gather_object([None, None], "x")
    else:
        threading.Event().wait()


for _each in (
    *(GroupsInOtherOrder, GroupsInOtherOrderOfFour, AnotherGroup, SubgroupLeftOut),
    *(LoaderHangs, LoaderWithoutWorkersHangs),
):
    HANGS[_each.__name__] = _each
