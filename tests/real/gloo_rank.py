"""A rank that is told what to block in, and to abort it: ``python gloo_rank.py RANK SIZE FOLDER``.

Commands come as lines of JSON, answers go back likewise. The thread that reads them is the watcher:
what it does at "abort" is what a wrapper's watcher does.
"""

import datetime as dt
import faulthandler
import gc
import json
import os
import queue
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import light_torch  # noqa: F401 - beside this script
import torch
import torch.distributed as dist

from holdfast.inplace.interrupt import MainThreadInterrupt
from holdfast.inplace.torch_edge import abort_distributed
from holdfast.inplace.torch_edge.abort_distributed import group_reaper
from holdfast.inplace.torch_edge.gloo_abort import gloo_aborter
from holdfast.inplace.torch_edge.work_abort import work_aborter

RANK, SIZE = int(sys.argv[1]), int(sys.argv[2])
FOLDER = Path(sys.argv[3])
TIMEOUT = dt.timedelta(seconds=60)


class Restart(BaseException):
    pass


def say(**fact: Any) -> None:
    os.write(1, json.dumps(fact).encode() + b"\n")  # in one piece: two threads speak


class HalfStore(dist.Store):
    """Tells the others where we are, and never looks where they are."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def set(self, key: str, value: Any) -> None:
        self.inner.set(key, value)

    def add(self, key: str, value: int) -> int:
        return self.inner.add(key, value)

    def get(self, key: str) -> Any:
        threading.Event().wait()

    def wait(self, *_: Any) -> None:
        threading.Event().wait()

    def set_timeout(self, timeout: Any) -> None: ...


def tcp_store(epoch: int) -> dist.Store:
    meeting = dist.FileStore(str(FOLDER / f"tcp{epoch}"), SIZE)
    if RANK == 0:
        store = dist.TCPStore("127.0.0.1", 0, None, True, TIMEOUT, wait_for_workers=False)
        meeting.set("port", str(store.port))
        return store
    return dist.TCPStore("127.0.0.1", int(meeting.get("port")), None, False, TIMEOUT)


def go(op: str, epoch: int) -> None:
    """Make a group, see that it works, block."""
    is_stuck = RANK == SIZE - 1
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1" if op.startswith("lazy") else "0"
    store: Any
    if "tcp" in op:
        store = tcp_store(epoch)
        if op == "tcp_rendezvous" and is_stuck:
            block()
    else:
        store = dist.FileStore(str(FOLDER / f"store{epoch}"), SIZE)
        if op == "mesh" and is_stuck:
            store = HalfStore(store)
    ranks = {"store": store, "rank": RANK, "world_size": SIZE, "timeout": TIMEOUT}
    dist.init_process_group("gloo", **ranks)
    tensor = torch.ones(1000)
    if op == "groups":
        groups = [dist.new_group(timeout=TIMEOUT) for _ in range(3)]
    if op != "lazy_unconnected":
        dist.all_reduce(tensor)
        assert tensor[0] == SIZE, tensor[0]
    if op == "storm":
        say(entered=epoch)
        while True:
            dist.all_reduce(tensor)
    if is_stuck:
        block()
    say(entered=epoch)
    if op in ("all_reduce", "lazy", "lazy_unconnected", "kill"):
        dist.all_reduce(tensor)
    elif op == "barrier":
        dist.barrier()
    elif op == "groups":
        dist.all_reduce(tensor, group=groups[1])
    elif op == "send":
        dist.send(torch.ones(32 << 20), SIZE - 1)
    elif op == "recv":
        dist.recv(tensor, SIZE - 1)
    elif op == "transfer":
        large = torch.ones(16 << 20)
        while True:
            dist.send(large, 1) if RANK == 0 else dist.recv(large, 0)
    elif op == "any_source":
        dist.recv(tensor)
    elif op == "monitored":
        dist.monitored_barrier(timeout=TIMEOUT)
    elif op == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
        model(torch.ones(8)).sum().backward()
    elif op == "tcp_wait":
        store.wait(["never"], TIMEOUT)
    block()


def block() -> None:
    threading.Event().wait()


def main() -> None:
    faulthandler.enable()
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    interrupt = MainThreadInterrupt()
    aborted, is_back = threading.Event(), threading.Event()

    def watch() -> None:
        for line in sys.stdin:
            command = json.loads(line)
            if command.get("do") == "abort":
                aborted_at = time.perf_counter()
                is_back.clear()
                abort_distributed.abort_collectives()
                interrupt.request()
                aborted.set()
                while not is_back.wait(0.005):
                    abort_distributed.abort_again()
                    interrupt.deliver_again()
                say(back_s=time.perf_counter() - aborted_at)
            elif command.get("do") == "release":
                abort_distributed.release()
                say(released=True)
            else:
                tasks.put(command)
        tasks.put(None)

    hook = sys.excepthook
    with abort_distributed.watching():
        threading.Thread(target=watch, daemon=True).start()
        say(ready=True)
        while (command := tasks.get()) is not None:
            what = command["do"]
            if what == "prepare":
                work_aborter.prepare()
                until = time.perf_counter() + 60.0
                while not work_aborter.wait_prepared(0.0) and time.perf_counter() < until:
                    time.sleep(0.01)  # as the watcher of a wrapper does
                say(is_safe=work_aborter.wait_prepared(0.0))
            elif what == "facts":
                group_reaper.join(60.0)
                gc.collect()  # tracebacks of what was interrupted hold groups in cycles
                say(
                    fds=len(list(Path("/proc/self/fd").iterdir())),
                    threads=threading.active_count(),
                    native_threads=len(list(Path("/proc/self/task").iterdir())),
                    is_hook_ours=sys.excepthook is hook,
                    held=len(gloo_aborter._held),
                )
            else:
                error = ""
                try:
                    interrupt.run(partial(go, what, command["epoch"]), Restart)
                except (Restart, Exception) as caught:  # noqa: BLE001 - told to the test
                    error = f"{type(caught).__name__}: {caught}"[:300]
                aborted.wait()
                aborted.clear()
                interrupt.acknowledge()  # it may have been asked for after the function's own error
                is_back.set()
                abort_distributed.discard_process_groups()
                say(out=error)
    interrupt.close()
    # The groups of the last command may still be with the reaper: the interpreter waits for it.


main()
