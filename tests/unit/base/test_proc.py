"""Facts from /proc about real processes, and sweeping them away."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.base.processes import proc, system_calls
from holdfast.evidence import proc_sample
from tests.waiting import BOUND_S, until


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


def test_where_processes_cannot_be_looked_at_the_reason_names_the_mount(tmp_path: Path) -> None:
    """No /proc, or that of another pid namespace: both show no process of this number."""
    assert proc.why_unusable() is None
    assert f"pid {os.getpid()}" in (proc.why_unusable(str(tmp_path)) or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts over /proc, in a namespace of its own")
def test_a_launcher_without_proc_says_so_in_one_line(tmp_path: Path) -> None:
    """It gave a traceback."""
    script = tmp_path / "script.py"
    script.write_text("")
    command = f"mount -t tmpfs none /proc && exec {sys.executable} -m holdfast.ft_launcher {script}"
    try:
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", command],
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr}")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "/proc does not show this process" in done.stderr


def test_start_ticks_tell_processes_apart() -> None:
    """Ours is stable; a pid that does not exist has none."""
    assert proc.start_ticks(os.getpid()) == proc.start_ticks(os.getpid())
    assert proc.start_ticks(2**22 + 1) is None


def test_a_fork_is_told_from_a_program(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """By the kernel's own note; a kernel that keeps none is believed to have forks."""
    fork = "import os, time; pid = os.fork(); pid and print(pid, flush=True); time.sleep(1000)"
    program = start(fork)
    child = int(program.stdout.readline())
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a) b) S 1 7 7 0 -1" + " 0" * 14)

    assert [proc.is_fork(pid) for pid in (program.pid, child)] == [False, True]
    assert [proc.is_fork(pid, str(tmp_path)) for pid in (7, 8)] == [True, True]

    os.kill(child, signal.SIGKILL)


def test_a_thread_that_ends_meanwhile_hides_no_children_of_the_others(tmp_path: Path) -> None:
    for thread, line in ((7, "70 71"), (8, None), (9, "90 ")):
        (tmp_path / "7" / "task" / str(thread)).mkdir(parents=True)
        if line is not None:
            (tmp_path / "7" / "task" / str(thread) / "children").write_text(line)

    assert sorted(proc.children(7, str(tmp_path))) == [70, 71, 90]
    assert proc.children(8, str(tmp_path)) == []


def test_start_ticks_survive_a_hostile_name(start: Callable[..., subprocess.Popen[str]]) -> None:
    """A process may call itself ``) R 1 (``."""
    child = start("open('/proc/self/comm', 'w').write(') R 1 (');" + SLEEP)
    child.stdout.readline()

    ticks = proc.start_ticks(child.pid)

    assert ticks is not None
    assert ticks >= proc.start_ticks(os.getpid())


def test_process_state_shows_handlers_stops_and_the_end(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    """Whether a signal is caught or blocked decides whether it may be sent."""
    child = start(
        "import signal; signal.signal(signal.SIGUSR1, print);"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]);" + SLEEP
    )
    child.stdout.readline()
    until(lambda: proc.process_state(child.pid).state == "S")
    state = proc.process_state(child.pid)

    assert state.catches(signal.SIGUSR1)
    assert not state.catches(signal.SIGUSR2)
    assert state.blocks(signal.SIGUSR2)
    assert not state.blocks(signal.SIGUSR1)
    assert state.threads == 1
    assert state.rss_kib > 1000
    assert not state.is_stopped

    child.send_signal(signal.SIGSTOP)
    until(lambda: proc.process_state(child.pid).is_stopped)

    child.kill()
    until(lambda: proc.process_state(child.pid).state == "Z")
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
    assert proc.await_any([held], BOUND_S)
    until(lambda: not held.is_alive())
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

    monkeypatch.setattr(system_calls, "pidfd_open", absent)
    child = start(SLEEP)
    held = proc.Process(child.pid)
    assert held.fileno() == -1

    assert held.send(signal.SIGCONT)
    held.start_ticks -= 1
    assert not held.send(signal.SIGKILL)
    assert not held.is_alive()
    assert child.poll() is None


@pytest.mark.parametrize(
    ("groups", "file", "holds", "is_frozen"),
    [
        ("6:freezer:/job\n0::/\n", "freezer/job/freezer.state", "FROZEN\n", True),
        ("6:freezer:/job\n0::/\n", "freezer/job/freezer.state", "THAWED\n", False),
        ("0::/slurm/job:1\n", "slurm/job:1/cgroup.events", "populated 1\nfrozen 1\n", True),
        ("0::/slurm/job:1\n", "slurm/job:1/cgroup.events", "populated 1\nfrozen 0\n", False),
        ("0::/\n", "other/cgroup.events", "frozen 1\n", False),
        ("", "freezer/freezer.state", "FROZEN\n", False),
    ],
)
def test_a_frozen_control_group_is_told_from_a_disk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
    file: str,
    holds: str,
    is_frozen: bool,
) -> None:
    """Both versions of control groups; the kernel shows state D, and where it slept before."""
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(groups)
    (tmp_path / "cgroup" / file).parent.mkdir(parents=True)
    (tmp_path / "cgroup" / file).write_text(holds)
    monkeypatch.setattr(proc, "ROOT", str(tmp_path / "proc"))
    monkeypatch.setattr(proc_sample, "_CGROUPS", str(tmp_path / "cgroup"))

    assert proc_sample.is_frozen(7) == is_frozen


def test_a_thread_that_runs_beside_the_main_one_is_seen(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    """Not the one that is left out by its name."""
    runs = start(
        "import _thread, signal\n"
        "def run():\n"
        "    open('/proc/thread-self/comm', 'w').write('busy')\n"
        "    while True: pass\n"
        "_thread.start_new_thread(run, ())\n" + SLEEP
    )
    sleeps = start(SLEEP)
    for each in (runs, sleeps):
        each.stdout.readline()
    until(lambda: proc_sample.thread_of(runs.pid, "busy"))
    before = proc_sample.sleeps_of_others(runs.pid)
    until(lambda: proc_sample.others_run(runs.pid, "other", before, 3))

    assert not proc_sample.others_run(runs.pid, "busy", before, 3)
    assert not proc_sample.others_run(sleeps.pid, "other", {}, 3)


@pytest.mark.parametrize(("sleeps", "runs"), [(40, True), (42, True), (43, False)])
def test_a_thread_that_wakes_for_the_interpreters_lock_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeps: int, *, runs: bool
) -> None:
    """On a busy machine it is often about to: the demo's freeze was put down to such a thread."""
    task = tmp_path / "7" / "task"
    for thread in ("7", "8"):
        (task / thread).mkdir(parents=True)
    (task / "8" / "stat").write_bytes(Path("/proc/self/stat").read_bytes().replace(b") S", b") R"))
    (task / "8" / "status").write_text("voluntary_ctxt_switches:\t40\n")
    for module in (proc, proc_sample):
        monkeypatch.setattr(module, "ROOT", str(tmp_path))
    before = proc_sample.sleeps_of_others(7)
    (task / "8" / "status").write_text(f"voluntary_ctxt_switches:\t{sleeps}\n")

    assert before == {"8": 40}
    assert proc_sample.others_run(7, "other", before, 3) == runs
