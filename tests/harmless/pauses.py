"""Healthy scenarios: one rank waits for something outside the job, and the others for it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import http.server
import multiprocessing
import os
import queue
import re
import select
import selectors
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zlib
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.harmless.scenario import AT, Scenario, healthy, on_rank, pause_s


def python(code: str, **options: object) -> subprocess.Popen[bytes]:
    """A child that runs ``code``; ``PAUSE`` in it is a number of seconds."""
    code = f"import os, sys, time\nPAUSE = {pause_s()}\n{code}"
    return subprocess.Popen([sys.executable, "-S", "-c", code], **options)  # type: ignore[call-overload]


def folder() -> Path:
    return Path(tempfile.mkdtemp(dir=os.environ["OUT"]))


@contextlib.contextmanager
def served(code: str, *, listening: bool = False):
    """A server in a child that is called ``peer`` there; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        os.set_inheritable(listener.fileno(), True)
        head = f"import socket\nlistener = socket.socket(fileno={listener.fileno()})\n"
        head += "" if listening else "peer = listener.accept()[0]\n"
        child = python(head + code, pass_fds=[listener.fileno()])
    try:
        yield "127.0.0.1", port
    finally:
        child.kill()
        child.wait()


def until_paused(act=lambda: None) -> None:
    """Do something again and again for the whole pause."""
    end = time.monotonic() + pause_s()
    while time.monotonic() < end:
        act()


# ---------------------------------------------------------------- children and their pipes
@on_rank(0, fast=True)
def reads_lines_of_a_child() -> None:
    """A preprocessing in a child writes a line now and then."""
    child = python("for _ in range(3):\n time.sleep(PAUSE / 3)\n print('x', flush=True)", stdout=-1)
    assert child.stdout is not None
    assert len(list(child.stdout)) == 3
    child.wait()


@on_rank(0)
def reads_popen() -> None:
    assert os.popen(f"sleep {pause_s()}; echo x").read() == "x\n"


@on_rank(0)
def runs_a_program() -> None:
    subprocess.run(["sleep", str(pause_s())], check=True)


@on_rank(0)
def runs_a_program_and_captures_it() -> None:
    subprocess.run(["sh", "-c", f"sleep {pause_s()}; echo x"], check=True, capture_output=True)


@on_rank(0)
def runs_a_shell() -> None:
    assert os.system(f"sleep {pause_s()} | cat") == 0


@on_rank(0)
def waits_for_a_fork() -> None:
    """A fork of the rank, which computes with torch's memory in it."""
    pid = os.fork()
    if pid == 0:
        until_paused(lambda: sum(range(1000)))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


@on_rank(0)
def waits_for_a_sleeping_fork() -> None:
    pid = os.fork()
    if pid == 0:
        time.sleep(pause_s())
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


@on_rank(0)
def polls_a_fork() -> None:
    pid = os.fork()
    if pid == 0:
        time.sleep(pause_s())
        os._exit(0)
    while not os.waitpid(pid, os.WNOHANG)[0]:
        time.sleep(0.1)


@on_rank(0)
def a_debugger_waits_in_a_child() -> None:
    """Its prompt waits for a command that comes late."""
    child = subprocess.Popen(
        [sys.executable, "-c", "breakpoint()\nprint('went on')"], stdin=-1, stdout=-1
    )
    typist = threading.Timer(pause_s(), child.communicate, (b"c\n",))
    typist.start()
    typist.join()
    assert child.returncode == 0


@on_rank(0)
def reads_a_terminal_of_a_child() -> None:
    here, there = os.openpty()
    child = python("time.sleep(PAUSE)\nprint('x', flush=True)", stdout=there, stdin=there)
    os.close(there)
    assert os.read(here, 10)
    child.wait()
    os.close(here)


@on_rank(0)
def writes_a_checkpoint_into_a_full_pipe() -> None:
    """The writer at its other end is slow."""
    child = python("time.sleep(PAUSE)\nsys.stdin.buffer.read()", stdin=-1)
    child.communicate(bytes(8 << 20))


@on_rank(0)
def writes_into_a_slow_pipe_by_itself() -> None:
    here, there = os.pipe()
    child = python("time.sleep(PAUSE)\nsys.stdin.buffer.read()", stdin=here)
    os.close(here)
    with os.fdopen(there, "wb") as file:
        file.write(bytes(8 << 20))
    child.wait()


@on_rank(0)
def opens_a_fifo() -> None:
    """Until another program opens its other end."""
    path = folder() / "fifo"
    os.mkfifo(path)
    child = python(f"time.sleep(PAUSE)\nopen({str(path)!r}, 'w').write('x')")
    assert path.read_text() == "x"
    child.wait()


@on_rank(0)
def reads_a_fifo() -> None:
    path = folder() / "fifo"
    os.mkfifo(path)
    child = python(f"f = open({str(path)!r}, 'w')\ntime.sleep(PAUSE)\nf.write('x')")
    assert path.read_text() == "x"
    child.wait()


# ---------------------------------------------------------------- processes of multiprocessing
def slow_square(number: int) -> int:
    time.sleep(pause_s())
    return number * number


def slow_put(into, number: int) -> None:
    time.sleep(pause_s())
    into.put(number)


def slow_get(out_of) -> None:
    time.sleep(pause_s())
    while out_of.get() is not None:
        pass


def slow_set(event) -> None:
    time.sleep(pause_s())
    event.set()


def slow_send(connection) -> None:
    time.sleep(pause_s())
    connection.send("x")


FORK = multiprocessing.get_context("fork")


@on_rank(0)
def maps_over_a_pool() -> None:
    with FORK.Pool(2) as pool:
        assert pool.map(slow_square, [1, 2]) == [1, 4]


@on_rank(0)
def waits_for_a_process_pool() -> None:
    with ProcessPoolExecutor(1, mp_context=FORK) as pool:
        assert pool.submit(slow_square, 3).result() == 9


@on_rank(0)
def waits_for_a_queue_of_processes() -> None:
    from_child = FORK.Queue()
    child = FORK.Process(target=slow_put, args=(from_child, 1))
    child.start()
    assert from_child.get() == 1
    child.join()


@on_rank(0)
def waits_for_room_in_a_checkpoint_queue() -> None:
    """A writer process takes one state at a time."""
    to_writer = FORK.Queue(maxsize=1)
    writer = FORK.Process(target=slow_get, args=(to_writer,))
    writer.start()
    for state in (bytes(1 << 20), bytes(1 << 20), None):
        to_writer.put(state)
    writer.join()


@on_rank(0)
def waits_for_an_event_of_a_process() -> None:
    event = FORK.Event()
    child = FORK.Process(target=slow_set, args=(event,))
    child.start()
    event.wait()
    child.join()


@on_rank(0)
def receives_from_a_connection() -> None:
    here, there = FORK.Pipe()
    child = FORK.Process(target=slow_send, args=(there,))
    child.start()
    assert here.recv() == "x"
    child.join()


@on_rank(0)
def joins_a_process() -> None:
    child = FORK.Process(target=time.sleep, args=(pause_s(),))
    child.start()
    child.join()


# ---------------------------------------------------------------- threads that wait outside
def received(address: tuple[str, int]) -> bytes:
    with socket.create_connection(address) as peer:
        return b"".join(iter(partial(peer.recv, 1 << 20), b""))


SAYS_LATE = "time.sleep(PAUSE)\npeer.sendall(b'x')\npeer.close()"


@on_rank(0, fast=True)
def queue_of_a_thread_that_receives() -> None:
    """A download in a thread puts its result into a queue (``queue.get``)."""
    got: queue.Queue[bytes] = queue.Queue()
    with served(SAYS_LATE) as address:
        threading.Thread(target=lambda: got.put(received(address))).start()
        assert got.get() == b"x"


@on_rank(0)
def queue_of_a_thread_with_a_timeout() -> None:
    """The same, asked again each second."""
    got: queue.Queue[bytes] = queue.Queue()
    with served(SAYS_LATE) as address:
        threading.Thread(target=lambda: got.put(received(address))).start()
        while True:
            with contextlib.suppress(queue.Empty):
                assert got.get(timeout=1) == b"x"
                return


@on_rank(0)
def event_of_a_thread_that_runs_a_program() -> None:
    """An upload by a program (``Event.wait``)."""
    is_done = threading.Event()

    def upload() -> None:
        subprocess.run(["sleep", str(pause_s())], check=True)
        is_done.set()

    threading.Thread(target=upload).start()
    is_done.wait()


@on_rank(0)
def joins_a_thread_that_receives() -> None:
    with served(SAYS_LATE) as address:
        thread = threading.Thread(target=received, args=(address,))
        thread.start()
        thread.join()


@on_rank(0)
def joins_a_thread_that_runs_a_program() -> None:
    thread = threading.Thread(target=subprocess.run, args=(["sleep", str(pause_s())],))
    thread.start()
    thread.join()


@on_rank(0)
def waits_for_a_future() -> None:
    with served(SAYS_LATE) as address, ThreadPoolExecutor(1) as pool:
        assert pool.submit(received, address).result() == b"x"


@on_rank(0)
def waits_for_programs_in_threads() -> None:
    with ThreadPoolExecutor(4) as pool:
        commands = [["sleep", str(pause_s() * part)] for part in (0.3, 0.6, 1)]
        list(pool.map(subprocess.run, commands))


@on_rank(0)
def rollouts_come_from_a_thread() -> None:
    """Their server answers in three parts; the main thread waits under a condition."""
    parts: list[bytes] = []
    changed = threading.Condition()

    def collect() -> None:
        code = "for _ in range(3):\n time.sleep(PAUSE / 3)\n peer.sendall(b'x')"
        with served(code) as address, socket.create_connection(address) as peer:
            for _ in range(3):
                part = peer.recv(1)
                with changed:
                    parts.append(part)
                    changed.notify()

    thread = threading.Thread(target=collect)
    thread.start()
    with changed:
        changed.wait_for(lambda: len(parts) == 3)
    thread.join()


@on_rank(0)
def meets_a_thread_at_a_barrier() -> None:
    meeting = threading.Barrier(2)
    thread = threading.Thread(target=lambda: (time.sleep(pause_s()), meeting.wait()))
    thread.start()
    meeting.wait()
    thread.join()


@on_rank(0)
def a_lock_is_held_by_a_download() -> None:
    lock = threading.Lock()
    with served(SAYS_LATE) as address:
        holds = threading.Event()

        def download() -> None:
            with lock:
                holds.set()
                received(address)

        thread = threading.Thread(target=download)
        thread.start()
        holds.wait()
        with lock:
            thread.join()


# ---------------------------------------------------------------- the network
@on_rank(0)
def receives_50_mb_per_second_in_a_thread() -> None:
    """Over plain TCP: /proc/PID/io does not count it."""
    code = "end = time.monotonic() + PAUSE\nwhile time.monotonic() < end:\n"
    code += " peer.sendall(bytes(1 << 20))\n time.sleep(0.02)\npeer.close()"
    with served(code) as address:
        thread = threading.Thread(target=received, args=(address,))
        thread.start()
        thread.join()


@on_rank(0)
def sends_to_a_slow_receiver() -> None:
    code = "time.sleep(PAUSE)\nwhile peer.recv(1 << 20): pass"
    with served(code) as address, socket.create_connection(address) as peer:
        peer.sendall(bytes(32 << 20))


@on_rank(0)
def waits_for_a_reward_server() -> None:
    """An HTTP request that is answered late."""

    class Late(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(pause_s())
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"1.0")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Late)
    pid = os.fork()
    if pid == 0:
        server.handle_request()
        os._exit(0)
    server.server_close()
    url = f"http://127.0.0.1:{server.server_port}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    assert opener.open(url).read() == b"1.0"
    os.waitpid(pid, 0)


@on_rank(0)
def reads_a_trickle() -> None:
    """A few bytes a second."""
    code = "for _ in range(10):\n time.sleep(PAUSE / 10)\n peer.sendall(b'x')"
    with served(code) as address:
        assert received(address) == b"x" * 10


@on_rank(0)
def accepts_a_late_caller() -> None:
    path = str(folder() / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        child = python(
            f"import socket\ntime.sleep(PAUSE)\nsocket.socket(socket.AF_UNIX).connect({path!r})"
        )
        listener.accept()[0].close()
        child.wait()


@on_rank(0)
def receives_a_datagram() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.bind(("127.0.0.1", 0))
        where = here.getsockname()
        child = python(
            "import socket\ntime.sleep(PAUSE)\n"
            f"socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', {where!r})"
        )
        assert here.recv(9) == b"x"
        child.wait()


def waits_on(selector: selectors.BaseSelector) -> None:
    here, there = os.pipe()
    child = python("time.sleep(PAUSE)\nprint('x')", stdout=there)
    os.close(there)
    selector.register(here, selectors.EVENT_READ)
    while not selector.select(0.3):
        pass
    selector.close()
    os.close(here)
    child.wait()


@on_rank(0)
def loops_in_select() -> None:
    waits_on(selectors.SelectSelector())


@on_rank(0)
def loops_in_poll() -> None:
    waits_on(selectors.PollSelector())


@on_rank(0)
def waits_in_epoll() -> None:
    with served(SAYS_LATE) as address, socket.create_connection(address) as peer:
        poll = select.epoll()
        poll.register(peer, select.EPOLLIN)
        assert poll.poll()
        poll.close()


@on_rank(0)
def runs_a_loop_of_asyncio() -> None:
    async def upload() -> None:
        child = await asyncio.create_subprocess_exec("sleep", str(pause_s()))
        assert await child.wait() == 0

    asyncio.run(upload())


@on_rank(0)
def sleeps_in_asyncio() -> None:
    asyncio.run(asyncio.sleep(pause_s()))


@on_rank(0)
def waits_for_another_jobs_store() -> None:
    """A key of a store that a program outside the job sets."""
    from datetime import timedelta

    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pid = os.fork()
    if pid == 0:
        time.sleep(pause_s())
        dist.TCPStore("127.0.0.1", store.port).set("late", "x")
        os._exit(0)
    store.set_timeout(timedelta(hours=2))
    assert store.get("late") == b"x"
    os.waitpid(pid, 0)


# ---------------------------------------------------------------- files and locks
@on_rank(0)
def polls_for_a_file() -> None:
    path = folder() / "ready"
    child = python(f"time.sleep(PAUSE)\nopen({str(path)!r}, 'w').close()")
    while not path.exists():
        time.sleep(0.1)
    child.wait()


def holder(path: Path, call: str) -> subprocess.Popen[bytes]:
    """Another job, which has locked the file."""
    code = f"import fcntl\nf = open({str(path)!r}, 'w')\nfcntl.{call}(f, fcntl.LOCK_EX)\n"
    child = python(code + "print('x', flush=True)\ntime.sleep(PAUSE)", stdout=-1)
    assert child.stdout is not None
    child.stdout.read(1)
    return child


@on_rank(0)
def polls_for_another_jobs_lock() -> None:
    path = folder() / "lock"
    child = holder(path, "flock")
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
    child.wait()


@on_rank(0, fast=True)
def waits_for_another_jobs_lock() -> None:
    path = folder() / "lock"
    child = holder(path, "flock")
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    child.wait()


@on_rank(0)
def waits_for_a_record_lock() -> None:
    path = folder() / "lock"
    child = holder(path, "lockf")
    with path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
    child.wait()


@on_rank(0)
def waits_for_a_database() -> None:
    """It polls with pauses of its own."""
    path = str(folder() / "db")
    child = python(
        f"import sqlite3\nd = sqlite3.connect({path!r}, isolation_level=None)\n"
        "d.execute('create table t (x)')\nd.execute('begin exclusive')\n"
        "print('x', flush=True)\ntime.sleep(PAUSE)\nd.execute('commit')",
        stdout=-1,
    )
    assert child.stdout is not None
    child.stdout.read(1)
    with contextlib.closing(sqlite3.connect(path, timeout=600)) as database:
        database.execute("insert into t values (1)")
        database.commit()
    child.wait()


@on_rank(0)
def waits_for_inotify() -> None:
    import ctypes

    libc = ctypes.CDLL(None)
    watched = folder()
    descriptor = libc.inotify_init()
    libc.inotify_add_watch(descriptor, str(watched).encode(), 0x100)
    child = python(f"time.sleep(PAUSE)\nopen({str(watched / 'new')!r}, 'w').close()")
    assert os.read(descriptor, 4096)
    os.close(descriptor)
    child.wait()


@on_rank(0)
def writes_with_fsync() -> None:
    path = folder() / "data"
    with path.open("wb") as file:

        def write() -> None:
            file.seek(0)
            file.write(bytes(1 << 20))
            file.flush()
            os.fsync(file.fileno())

        until_paused(write)
    path.unlink()


@on_rank(0)
def copies_files() -> None:
    here = folder()
    (here / "a").write_bytes(bytes(16 << 20))
    until_paused(lambda: shutil.copyfile(here / "a", here / "b"))
    shutil.rmtree(here)


@on_rank(0)
def touches_mapped_pages() -> None:
    import mmap

    def touch() -> None:
        with mmap.mmap(-1, 16 << 20) as memory:
            for at in range(0, len(memory), 4096):
                memory[at] = 1

    until_paused(touch)


# ---------------------------------------------------------------- computing
@on_rank(0)
def evaluates_alone() -> None:
    import torch

    model = torch.nn.Linear(64, 64)
    until_paused(lambda: model(torch.randn(256, 64)))


@on_rank(0)
def compiles_in_c() -> None:
    """Without the interpreter's lock."""
    data = bytes(8 << 20)
    until_paused(lambda: hashlib.sha256(zlib.compress(data)))


@on_rank(0)
def holds_the_interpreter() -> None:
    """One regular expression, in C, without a byte code for seconds."""
    until_paused(lambda: re.match(r"(a|a)*$", "a" * 23 + "b"))


@on_rank(0)
def loops_in_python() -> None:
    until_paused(lambda: sum(range(1000)))


@on_rank(0)
def spins_with_sched_yield() -> None:
    until_paused(os.sched_yield)


@on_rank(0)
def compiles_in_a_child() -> None:
    child = python("end = time.monotonic() + PAUSE\nwhile time.monotonic() < end: pass")
    assert child.wait() == 0


# ---------------------------------------------------------------- sleeps, signals, time
@on_rank(0, fast=True)
def sleeps_once() -> None:
    time.sleep(pause_s())


@on_rank(None)
def all_sleep() -> None:
    time.sleep(pause_s())


@on_rank(1)
def the_other_rank_sleeps() -> None:
    time.sleep(pause_s())


@on_rank(0)
def backs_off_and_tries_again() -> None:
    """0.1 s, 0.2 s, 0.4 s and so on, until a service is there."""
    wait_s, end = 0.1, time.monotonic() + pause_s()
    while time.monotonic() < end:
        with contextlib.suppress(ConnectionError):
            socket.create_connection(("127.0.0.1", 1), timeout=1)
        time.sleep(wait_s)
        wait_s *= 2


@on_rank(0)
def sleeps_a_little_again_and_again() -> None:
    until_paused(lambda: time.sleep(0.01))


@on_rank(0)
def sleeps_while_it_cleans_up() -> None:
    """In ``finally``, after an exception that it catches."""
    with contextlib.suppress(ZeroDivisionError):
        try:
            1 / 0  # noqa: B018
        finally:
            time.sleep(pause_s())


@on_rank(0)
def waits_for_its_alarm() -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, pause_s())
    signal.pause()
    signal.signal(signal.SIGALRM, before)


@on_rank(0)
def waits_for_a_signal_of_a_child() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    child = python("import signal\ntime.sleep(PAUSE)\nos.kill(os.getppid(), signal.SIGUSR1)")
    assert signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    child.wait()


@on_rank(0)
def a_thread_fails_meanwhile() -> None:
    """Its exception ends that thread alone."""

    def fail() -> None:
        raise ValueError("of a thread alone")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    time.sleep(pause_s())


@on_rank(0)
def an_operator_stops_a_child() -> None:
    """A child is stopped for a while; the rank waits for it."""
    child = subprocess.Popen(["sleep", "0.5"])
    child.send_signal(signal.SIGSTOP)
    time.sleep(pause_s())
    child.send_signal(signal.SIGCONT)
    child.wait()


@healthy
class PausesGrow(Scenario):
    """Three pauses in a row, each twice as long as the one before."""

    def step(self, number: int) -> None:
        if self.rank == 0 and number >= AT - 2 and number <= AT:
            time.sleep(pause_s() / 2 ** (AT - number))


@healthy
class TheFirstBatchIsLong(Scenario):
    """A cold cache: the first batch of rank 0 comes late."""

    def step(self, number: int) -> None:
        if self.rank == 0 and number == 0:
            time.sleep(pause_s())


@healthy
class AnEarlyStepIsLong(Scenario):
    """A compilation in step 10, before the length of steps is known."""

    def step(self, number: int) -> None:
        if self.rank == 0 and number == 10:
            subprocess.run(["sleep", str(pause_s())], check=True)


# ---------------------------------------------------------------- loaders
class _Loader(Scenario):
    workers = 1

    def item(self, number: int) -> None:
        """Sample 4 * step is the first of rank 0's batch of that step."""
        if number == 4 * AT:
            self.wait()

    def wait(self) -> None:
        raise NotImplementedError


@healthy
class LoaderReceives(_Loader):
    """A worker reads a sample from a server that is slow."""

    def wait(self) -> None:
        with served(SAYS_LATE) as address:
            received(address)


@healthy
class LoaderWaitsForALock(_Loader):
    """A worker waits for the lock of another job on a cache."""

    def wait(self) -> None:
        path = folder() / "lock"
        child = holder(path, "flock")
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
        child.wait()


@healthy
class LoaderComputes(_Loader):
    """A worker decodes for seconds."""

    def wait(self) -> None:
        until_paused(lambda: sum(range(1000)))


@healthy
class LoaderSleeps(_Loader):
    """A worker sleeps, as in a back-off."""

    def wait(self) -> None:
        time.sleep(pause_s())


@healthy
class LoaderOfTheRankSleeps(_Loader):
    """There are no workers: the rank reads by itself."""

    workers = 0

    def wait(self) -> None:
        time.sleep(pause_s())


@healthy
class LoaderRunsAProgram(_Loader):
    """A worker unpacks with a program."""

    workers = 2

    def wait(self) -> None:
        subprocess.run(["sleep", str(pause_s())], check=True)
