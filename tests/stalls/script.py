"""A training of two or more ranks in which one does what MODE says, once, after 30 steps.

It imports nothing of holdfast. Its group has two hours, as torchrun would give it.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

MODE = os.environ["MODE"]
PAUSE_S = float(os.environ.get("PAUSE_S", "8"))
AT_STEP = int(os.environ.get("AT_STEP", "30"))
TIMEOUT = dt.timedelta(seconds=float(os.environ.get("GROUP_TIMEOUT_S", "7200")))
PAIR = 2
SLEEPS = f"import time; time.sleep({PAUSE_S})"


def until(condition: Callable[[], bool], every_s: float = 0.2) -> None:
    """Poll, as scripts do."""
    while not condition():
        time.sleep(every_s)


def server(sends: Callable[[socket.socket], None]) -> socket.socket:
    """A connection to a process of this host that is not the job's: it sends what it likes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connected, _ = listener.accept()
        with connected:
            sends(connected)

    threading.Thread(target=serve, daemon=True).start()
    return socket.create_connection(listener.getsockname())


def late(connected: socket.socket) -> None:
    """It answers when it does."""
    time.sleep(PAUSE_S)
    connected.sendall(b"done")


def streams(connected: socket.socket) -> None:
    """50 MB/s over plain TCP."""
    until_at = time.monotonic() + PAUSE_S
    block = bytes(500_000)
    while time.monotonic() < until_at:
        connected.sendall(block)
        time.sleep(0.01)


def on_a_thread(work: Callable[[], object]) -> threading.Thread:
    """Started."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def receive_all(connected: socket.socket) -> None:
    """Until it ends."""
    while connected.recv(1 << 20):
        pass


def lines_of_a_child() -> None:
    """An evaluation in another program, whose lines are read."""
    child = subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE)
    assert child.stdout is not None
    for _ in child.stdout:
        pass
    child.wait()


def popen_read() -> None:
    """os.popen().read()."""
    os.popen(f"sleep {PAUSE_S}").read()


def queue_of_a_thread_in_recv() -> None:
    """A rollout or an upload on a thread."""
    results: queue.Queue[bytes] = queue.Queue()
    connected = server(late)
    on_a_thread(lambda: results.put(connected.recv(10)))
    results.get()


def event_of_a_thread_in_a_child() -> None:
    """Event.wait for a thread in subprocess.run."""
    done = threading.Event()

    def work() -> None:
        subprocess.run(["sleep", str(PAUSE_S)], check=True)
        done.set()

    on_a_thread(work)
    done.wait()


def join_of_a_download() -> None:
    """50 MB/s, of which /proc/PID/io counts nothing."""
    connected = server(streams)
    on_a_thread(lambda: receive_all(connected)).join()


class _Late(torch.utils.data.IterableDataset[int]):
    def __init__(self, wait: Callable[[], object]) -> None:
        self.wait = wait

    def __iter__(self) -> Iterator[int]:
        self.wait()
        yield 1


def loader_worker_in_recv() -> None:
    """Its worker waits for a server."""
    connected = server(late)
    data = _Late(lambda: connected.recv(10))
    list(torch.utils.data.DataLoader(data, num_workers=1, multiprocessing_context="fork"))


def loader_worker_behind_a_file_lock() -> None:
    """Another job has the lock."""
    path = Path(f"lock.{os.getpid()}")
    code = (
        f"import fcntl, time; f = open({str(path)!r}, 'w'); fcntl.flock(f, 2); print(flush=True); "
    )
    child = subprocess.Popen([sys.executable, "-c", code + SLEEPS], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()

    def wait() -> None:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    list(torch.utils.data.DataLoader(_Late(wait), num_workers=1, multiprocessing_context="fork"))
    child.wait()


def retry_back_off() -> None:
    """A server that is down for a while."""
    until_at, wait_s = time.monotonic() + PAUSE_S, 0.1
    while time.monotonic() < until_at:
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, PAUSE_S / 4)


def poll_for_a_file() -> None:
    """Another job writes it."""
    path = Path(f"file.{os.getpid()}")
    subprocess.Popen(["sh", "-c", f"sleep {PAUSE_S}; touch {path}"])
    until(path.exists)


def debugger_in_a_child() -> None:
    """A child that is stopped for a while, and waited for."""
    child = subprocess.Popen(["sleep", "0"])
    child.wait()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.2)"])
    child.send_signal(signal.SIGSTOP)
    threading.Timer(PAUSE_S, child.send_signal, (signal.SIGCONT,)).start()
    child.wait()


def pipe_to_a_writer() -> None:
    """A checkpoint goes through a pipe to a process that is slow."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"{SLEEPS}; import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    child.communicate(bytes(1 << 22))


def one_long_sleep() -> None:
    """Nothing but time."""
    time.sleep(PAUSE_S)


def computes() -> None:
    """In Python."""
    until_at = time.monotonic() + PAUSE_S
    while time.monotonic() < until_at:
        sum(range(1000))


HEALTHY: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        lines_of_a_child,
        popen_read,
        queue_of_a_thread_in_recv,
        event_of_a_thread_in_a_child,
        join_of_a_download,
        loader_worker_in_recv,
        loader_worker_behind_a_file_lock,
        retry_back_off,
        poll_for_a_file,
        debugger_in_a_child,
        pipe_to_a_writer,
        one_long_sleep,
        computes,
    )
}


# ---------------------------------------------------------------- what no time can help
def mismatch(rank: int) -> None:
    """The two ranks call different operations: a tie."""
    tensor = torch.ones(4)
    if rank:
        dist.broadcast(tensor, 1)
        dist.barrier()
    else:
        dist.all_reduce(tensor)
        dist.barrier()


def stopped(rank: int) -> None:
    """By SIGSTOP."""
    if rank:
        os.kill(os.getpid(), signal.SIGSTOP)


def leaves(rank: int) -> None:
    """With 0, in mid-job, and with no word to its peers."""
    if rank:
        # Its sockets stay open in a child, or the others would fail at once.
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)


def circle(rank: int) -> None:
    """Two groups, in another order on each rank."""
    first, second = GROUPS if rank else reversed(GROUPS)
    dist.all_reduce(torch.ones(1), group=first)
    dist.all_reduce(torch.ones(1), group=second)


HANGS: dict[str, Callable[[int], None]] = {
    each.__name__: each for each in (mismatch, stopped, leaves, circle)
}
GROUPS: list[dist.ProcessGroup] = []


def main() -> None:
    """Train."""
    dist.init_process_group("gloo", timeout=TIMEOUT)
    rank, cycle = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    GROUPS.extend(dist.new_group(timeout=TIMEOUT) for _ in range(PAIR))
    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(AT_STEP + 10):
        weight.grad = torch.ones(4)
        dist.all_reduce(weight.grad)
        optimizer.step()
        time.sleep(0.02)
        if step == AT_STEP and cycle == "0":
            if MODE in HEALTHY and rank == 0:
                HEALTHY[MODE]()
            elif MODE in HANGS:
                HANGS[MODE](rank)
            dist.barrier()
    print("done", rank, float(weight[0].detach()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
