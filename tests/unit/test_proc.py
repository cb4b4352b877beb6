"""Facts from /proc about real processes, and sweeping them away."""

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.host import proc
from holdfast.host.inotify import WriteWatch

BOUND_S = 20.0


def wait_until(condition: Callable[[], object]) -> None:
    """Bounded."""
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, "condition did not come true"
        time.sleep(0.002)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python code in a process of its own."""
    children = []

    def start(code: str, **env: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", code],
            env=os.environ | env,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()
        child.stdout.close()


SLEEP = "import signal; print('up', flush=True); signal.pause()"


def test_start_ticks_tell_processes_apart() -> None:
    """Ours is stable; a pid that does not exist has none."""
    assert proc.start_ticks(os.getpid()) == proc.start_ticks(os.getpid())
    assert proc.start_ticks(2**22 + 1) is None


def test_start_ticks_survive_a_hostile_name(start: Callable[..., subprocess.Popen[str]]) -> None:
    """A process may call itself ``) R 1 (``."""
    child = start("open('/proc/self/comm', 'w').write(') R 1 (');" + SLEEP)
    child.stdout.readline()

    ticks = proc.start_ticks(child.pid)

    assert ticks is not None
    assert ticks >= proc.start_ticks(os.getpid())


def test_the_memory_of_a_process_with_a_stuck_thread_is_not_looked_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel might make us wait for the lock that this thread holds."""
    assert proc.command_line(os.getpid()) == sys.orig_argv
    assert proc.command_line(2**22 + 1) == []
    looked_at = []

    def read(path: str) -> bytes:
        looked_at.append(path)
        return b"1 (python) D 7 " + b"0 " * 40

    monkeypatch.setattr(proc, "_read", read)
    assert proc.command_line(os.getpid()) == []
    assert [path for path in looked_at if not path.endswith("/stat")] == []


def test_process_state_shows_handlers_stops_and_the_end(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    """Whether a signal is caught or blocked decides whether it may be sent."""
    child = start(
        "import signal; signal.signal(signal.SIGUSR1, print);"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]);" + SLEEP
    )
    child.stdout.readline()
    wait_until(lambda: proc.process_state(child.pid).state == "S")
    state = proc.process_state(child.pid)

    assert state.catches(signal.SIGUSR1)
    assert not state.catches(signal.SIGUSR2)
    assert state.blocks(signal.SIGUSR2)
    assert not state.blocks(signal.SIGUSR1)
    assert state.threads == 1
    assert state.rss_kib > 1000
    assert not state.is_stopped

    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: proc.process_state(child.pid).is_stopped)

    child.kill()
    wait_until(lambda: proc.process_state(child.pid).state == "Z")
    assert proc.process_state(child.pid).rss_kib == 0
    child.wait()
    assert proc.process_state(child.pid) is None


def test_a_hold_on_a_process_outlives_it_harmlessly(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    """Readable at its end; later signals reach nobody."""
    child = start(SLEEP)
    held = proc.Process(child.pid)
    assert held.is_alive()

    assert held.send(signal.SIGKILL)
    assert select.select([held], [], [], BOUND_S)[0]
    wait_until(lambda: not held.is_alive())
    child.wait()

    assert not held.send(signal.SIGKILL)
    held.close()
    with pytest.raises(ProcessLookupError):
        proc.Process(child.pid)


def test_without_pidfds_the_start_time_guards(
    start: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older kernels: a pid whose start time differs is somebody else."""

    def absent(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", absent)
    child = start(SLEEP)
    held = proc.Process(child.pid)
    assert held.fileno() == -1

    assert held.send(signal.SIGCONT)
    held._ticks -= 1
    assert not held.send(signal.SIGKILL)
    assert not held.is_alive()
    assert child.poll() is None


def test_sweep_ends_the_whole_family_and_nobody_else(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    """K-1: children in sessions of their own that ignore SIGTERM included."""
    job = uuid.uuid4().hex
    family = start(
        "import os, signal\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.write(1, b'%d\\n' % os.getpid()); signal.pause()",
        HOLDFAST_MARKER=f"{job}.0.1",
    )
    pids = {int(family.stdout.readline()) for _ in range(2)}
    neighbour = start(SLEEP, HOLDFAST_MARKER=f"{job}1.0.1")
    neighbour.stdout.readline()

    assert set(proc.find_marked(f"{job}.")) == pids
    assert proc.sweep(f"{job}.") == 2

    assert proc.find_marked(f"{job}.") == []
    assert family.wait(BOUND_S) == -signal.SIGKILL
    assert neighbour.poll() is None
    assert proc.sweep(f"{job}.") == 0


def test_sweep_sleeps_while_nothing_ends(
    start: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set-user-id program refuses the kill: to ask it again and again would take a whole core."""
    job = uuid.uuid4().hex
    refuses = start(SLEEP, HOLDFAST_MARKER=f"{job}.0.1")
    refuses.stdout.readline()
    asked: list[int] = []
    passes: list[str] = []
    find_marked = proc.find_marked

    def look(prefix: str) -> list[int]:
        passes.append(prefix)
        if len(passes) == 5:
            refuses.kill()
        return find_marked(prefix)

    monkeypatch.setattr(proc, "find_marked", look)
    monkeypatch.setattr(proc.Process, "send", lambda held, _: bool(asked.append(held.pid)))

    assert proc.sweep(f"{job}.", bound_s=0.2) == 0
    assert (asked, len(passes)) == ([refuses.pid], 3), "told once; then one sleep to the bound"
    # No number of seconds is too large for poll(2), whether or not the dead is still listed.
    assert proc.sweep(f"{job}.", bound_s=1e9) == 0, "it is woken by the end"


def test_sweep_refuses_to_sweep_everything() -> None:
    """An empty prefix is a bug of the caller."""
    with pytest.raises(ValueError, match="empty prefix"):
        proc.sweep("")


def test_the_pid_namespace_is_a_number() -> None:
    """Part of every marker."""
    assert proc.pid_namespace() == Path("/proc/self/ns/pid").stat().st_ino


def test_a_write_wakes_the_watcher(tmp_path: Path) -> None:
    """And only a write after the last drain."""
    path = tmp_path / "stacks.txt"
    path.touch()
    watch = WriteWatch(str(path))
    assert select.select([watch], [], [], 0)[0] == []

    path.write_text("Thread 0x1")

    assert select.select([watch], [], [], BOUND_S)[0]
    watch.drain()
    assert select.select([watch], [], [], 0)[0] == []
    watch.close()


def test_a_file_that_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    """The caller says why there are no stacks."""
    with pytest.raises(FileNotFoundError):
        WriteWatch(str(tmp_path / "none"))
