"""One node, real processes: start, fail, explain, restart, end, and leave nothing behind."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base.processes import proc
from tests.processes import command_line, is_alive
from tests.real.harness import Launcher, kill, read_json_lines
from tests.waiting import until

NOTE_PIDS = """
import os, sys, time, pathlib
out = pathlib.Path(os.environ["OUT"])
rank, cycle = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
def note(name, text):
    with open(out / name, "ab", buffering=0) as file:
        file.write((text + "\\n").encode())  # at once, be it long: others write, too
"""
"""First lines of a rank's script."""

SLEEP_FOR_EVER = "import signal\nwhile True: signal.pause()\n"


def test_a_job_that_ends_well_leaves_with_0_and_nothing_behind(
    ft: Launcher, tmp_path: Path
) -> None:
    """No output of our own that a user would have to read, no folder that nobody asked for."""
    script = ft.script('print("hello from", __import__("os").environ["RANK"])')
    folder = tmp_path / "tmp"
    folder.mkdir()

    job = ft.start(
        *("--nproc-per-node", "2", script),
        env={"OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
    )

    assert job.wait() == 0
    assert list(folder.iterdir()) == []
    assert not list(Path("/dev/shm").glob(f"holdfast_{job.process.pid}-*"))
    assert sorted(job.stdout.splitlines()) == ["hello from 0", "hello from 1"]
    assert not job.said("WARNING|ERROR")


def test_a_launcher_keeps_as_many_runs_as_it_was_asked_to(ft: Launcher, tmp_path: Path) -> None:
    """The short job's launcher waits for the removal of the older ones."""
    script, logs = ft.script("pass"), tmp_path / "logs"
    for _ in range(3):
        assert ft.start("--ft-keep-runs=2", f"--log-dir={logs}", script).wait() == 0
    runs = [each for each in logs.iterdir() if not each.is_symlink()]
    assert len(runs) == 2
    assert (logs / "latest").resolve() == max(runs)


def test_a_job_with_incidents_keeps_one_folder_and_names_it_at_the_end(
    ft: Launcher, tmp_path: Path
) -> None:
    """Which has no folders in which nothing is."""
    script = ft.script(NOTE_PIDS + "sys.exit(cycle == '0')")
    folder = tmp_path / "tmp"
    folder.mkdir()

    job = ft.start("--max-restarts=1", "-r=0:1", script, env={"TMPDIR": str(folder)})

    assert job.wait() == 0
    [latest] = folder.glob("holdfast_run_latest_*")
    [kept] = set(folder.iterdir()) - {latest}
    assert latest.resolve() == kept
    assert kept.name.startswith("holdfast_run_2")
    assert str(kept) in "".join(job.stderr.splitlines(keepends=True)[-3:])
    assert sorted(str(path.relative_to(kept)) for path in kept.rglob("*")) == [
        *("attempt_0", "attempt_0/0", "attempt_0/0/stdout.log"),
        *("attempt_1", "attempt_1/0", "attempt_1/0/stdout.log"),
        "events-launcher.jsonl",
    ]

    job = ft.start("--max-restarts=1", script, env={"TMPDIR": str(folder)})

    assert job.wait() == 0
    [kept] = set(folder.iterdir()) - {kept, latest}
    assert [path.name for path in kept.iterdir()] == ["events-launcher.jsonl"]


def test_every_worker_variable_is_exported(ft: Launcher) -> None:
    """Torchrun's and nvidia-resiliency-ext's, right in each rank and cycle."""
    script = ft.script(
        NOTE_PIDS
        + """
import json
note("env", json.dumps(dict(os.environ)))
sys.exit(1 if cycle == "0" else 0)
"""
    )

    job = ft.start(
        "--nproc-per-node=2", "--max-restarts=1", "--rdzv-id=job7", "--role=trainer", script
    )

    assert job.wait() == 0
    envs = read_json_lines(job.written("env"))
    last = {env["RANK"]: env for env in envs if env["TORCHELASTIC_RESTART_COUNT"] == "1"}
    assert set(last) == {"0", "1"}
    expected = {
        "LOCAL_RANK": "1",
        "RANK": "1",
        "GROUP_RANK": "0",
        "ROLE_RANK": "1",
        "ROLE_NAME": "trainer",
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_MAX_RESTARTS": "1",
        "TORCHELASTIC_RUN_ID": "job7",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
    }
    assert {key: last["1"].get(key) for key in expected} == expected
    assert last["1"]["TORCHELASTIC_ERROR_FILE"].endswith("attempt_1/1/error.json")
    assert Path(last["1"]["FT_LAUNCHER_IPC_SOCKET"]).name.startswith("_ft_launcher")
    assert Path(last["1"]["FT_RANK_MONITOR_IPC_SOCKET"]).name.endswith("_rmon1.socket")
    ports = {env["TORCHELASTIC_RESTART_COUNT"]: env["MASTER_PORT"] for env in envs}
    assert ports["0"] != ports["1"], "a fresh port per cycle"


def test_closed_standard_streams_are_nobody_elses(ft: Launcher, tmp_path: Path) -> None:
    """``ft_launcher ... >&-``: the next file that is opened would become the ranks' stdout."""
    script = ft.script(
        NOTE_PIDS
        + """
note("streams", " ".join(os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)))
print("out", flush=True)
print("err", file=sys.stderr, flush=True)
"""
    )
    command = 'exec "$0" -m holdfast.fault_tolerance.launcher "$@" <&- >&- 2>&-'

    done = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, "--nproc-per-node=1", str(script)],
        env={**os.environ, "OUT": str(tmp_path)},
        timeout=60,
        check=False,
    )

    assert done.returncode == 0
    stdin, stdout, stderr = (tmp_path / "streams").read_text().split()
    assert (stdin, stdout) == ("/dev/null", "/dev/null")
    assert stderr.startswith("pipe:")


def test_restarts_are_counted_and_end(ft: Launcher) -> None:
    """B-1: three lives with two restarts, the failure explained, exit code 1."""
    script = ft.script(
        NOTE_PIDS
        + """
note("lives", cycle + " " + rank)
if rank == "1":
    print("the reactor is cold", file=sys.stderr)
    sys.exit(3)
"""
        + SLEEP_FOR_EVER
    )

    job = ft.start("--nproc-per-node=2", "--max-restarts=2", "--log-dir=logs", script)

    assert job.wait() == 1
    assert [life for life in job.written("lives") if life.endswith("1")] == ["0 1", "1 1", "2 1"]
    restart = [
        r"ERROR.*: rank 1 \(.*\): exit code 3 \(its last line: the reactor is cold\)",
        r"WARNING.*: stopped rank 0; restart 1 of 2 in \d+\.\d\d s: cycle 1, pids \d+,\d+",
    ]
    # The next rank may have written before its launcher has.
    assert job.said("\n(the reactor is cold\n)?.*".join(restart) + "\n"), job.stderr
    assert job.said(r"stopped rank 0; restart 2 of 2 \(the last\) in")
    assert job.stderr.count("exit code 3") == 3, "once for each failure"
    assert re.search(r"to read this run: holdfast report .*logs/\S+\n$", job.stderr)
    assert job.said(r"script.py FAILED in cycle 2 on .*: 2 of 2 restarts used")
    assert job.said(r"First cause: rank 1 \(pid \d+\): exit code 3")
    assert job.said(r"the reactor is cold")
    assert job.said(r"Also ended: +rank 0 \(pid \d+\) stopped by holdfast")
    kinds = [event["kind"] for event in job.events()]
    assert kinds.count("cycle_started") == 3
    assert kinds[-1] == "job_failed"


@pytest.mark.parametrize(
    ("how", "explained"),
    [
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL, not by holdfast"),
        ("os.kill(os.getpid(), 11)", "killed by SIGSEGV (segmentation fault"),
        ("raise MemoryError", "out of host memory: exit code 1 at script.py:2"),
        ("raise ValueError('loss is NaN')", "ValueError: loss is NaN"),
    ],
)
def test_a_failure_is_told_by_its_name(ft: Launcher, how: str, explained: str) -> None:
    """Signals by name, running out of memory apart, the last lines of stderr."""
    script = ft.script(f"import os\n{how}\n")

    job = ft.start("--nproc-per-node=1", script)

    assert job.wait() == 1
    assert explained in job.stderr


def test_a_job_that_fails_of_the_same_again_and_again_is_not_restarted(ft: Launcher) -> None:
    """``--ft-max-same-failures``; whichever rank is the first to fail of it."""
    script = ft.script("settings = {}\nsettings['lr']\n")
    limits = "--max-restarts=5", "--ft-max-same-failures=2", "--log-dir=logs"

    job = ft.start("--nproc-per-node=2", *limits, script)

    assert job.wait() == 93
    assert [event["cycle"] for event in job.events("cycle_started")] == [0, 1]
    assert job.said(r"the same failure in 2 cycles in a row .*: KeyError at \S+:2")
    assert {event["exception"] for event in job.events("rank_failed")} == {"KeyError"}


def test_an_error_file_is_read_and_handed_up(ft: Launcher, tmp_path: Path) -> None:
    """What ``@record`` wrote is in the summary; the first cause goes to the launcher's own file."""
    script = ft.script("""
        import json, os, sys
        message = {"message": "ValueError: bad batch 17",
                   "extraInfo": {"py_callstack": "Traceback\\n  in train_step", "timestamp": "1"}}
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump({"message": message}, file)
        sys.exit(1)
    """)
    outer = tmp_path / "termination-log"

    job = ft.start(script, env={"TORCHELASTIC_ERROR_FILE": str(outer)})

    assert job.wait() == 1
    assert "ValueError: bad batch 17" in job.stderr
    assert "in train_step" in job.stderr
    handed_up = json.loads(outer.read_text())["message"]
    assert handed_up["message"] == "ValueError: bad batch 17"
    assert handed_up["errorCode"] == 1


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--max-restats=3", "script.py"], "--max-restarts"),
        (["--nproc-per-node=two", "script.py"], "two"),
        (["nowhere.py"], "nowhere.py"),
        ([], "script"),
        (["--ft-rank-section-timeouts=step", "script.py"], "step"),
    ],
)
def test_a_bad_command_line_gets_one_line_and_starts_nothing(
    ft: Launcher, args: list[str], told: str
) -> None:
    """Exit code 2."""
    ft.script("open(__import__('os').environ['OUT'] + '/ran', 'w')")

    job = ft.start(*[arg.replace("script.py", "../script.py") for arg in args])

    assert job.wait() == 2
    assert told in job.stderr
    assert len(job.stderr.splitlines()) == 1
    assert not job.written("ran")


def test_the_scripts_arguments_are_the_scripts(ft: Launcher) -> None:
    """Whatever they look like."""
    script = ft.script("import sys; print(sys.argv[1:])")
    args = ["--max", "3", "--nproc-per-node", "9", "-m", "--", "--max-restarts=x", "${rank}"]

    job = ft.start("--nproc-per-node=1", script, *args)

    assert job.wait() == 0
    assert job.stdout.strip() == str(args)


def test_modules_binaries_and_run_path_start_too(ft: Launcher) -> None:
    """-m, --no-python, --run-path: as under torchrun."""
    script = ft.script("import sys; print(__name__, sys.argv[1:])", "job_mod.py")
    shell = ft.script('#!/bin/sh\necho "sh $RANK $1"\n', "job.sh")
    shell.chmod(0o755)

    module = ft.start("-m", "job_mod", "a", env={"PYTHONPATH": str(script.parent)})
    binary = ft.start("--no-python", shell, "b")
    path = ft.start("--run-path", script, "c")

    assert (module.wait(), module.stdout.strip()) == (0, "__main__ ['a']")
    assert (binary.wait(), binary.stdout.strip()) == (0, "sh 0 b")
    assert (path.wait(), path.stdout.strip()) == (0, "__main__ ['c']")


def test_output_goes_to_files_and_is_prefixed(ft: Launcher) -> None:
    """--redirects keeps it off the console, --tee shows it with its rank; per rank and cycle."""
    script = ft.script(
        NOTE_PIDS
        + """
print("out", rank, cycle, flush=True)
print("err", rank, cycle, file=sys.stderr, flush=True)
sys.exit(1 if (cycle, rank) == ("0", "0") else 0)
"""
    )

    job = ft.start(
        "--nproc-per-node=2", "--max-restarts=1", "--log-dir=logs",
        "--redirects=0:3", "--tee=1:3", script,
    )  # fmt: skip

    assert job.wait() == 0
    attempt = job.run_dir / "attempt_1"
    assert (attempt / "0" / "stdout.log").read_text() == "out 0 1\n"
    assert (attempt / "0" / "stderr.log").read_text() == "err 0 1\n"
    assert (attempt / "1" / "stdout.log").read_text() == "out 1 1\n"
    assert "[default1]:out 1 1" in job.stdout
    assert "[default1]:err 1 1" in job.stderr
    assert "out 0" not in job.stdout
    assert (job.run_dir / "attempt_0" / "0" / "stdout.log").read_text() == "out 0 0\n"


def test_only_the_ranks_asked_for_are_shown(ft: Launcher) -> None:
    """--local-ranks-filter; and each line begins as --log-line-prefix-template says."""
    script = ft.script('import os; print("rank", os.environ["RANK"])')
    prefix = "--tee=1", "--log-line-prefix-template=${hostname}:${rank}: "

    job = ft.start("--nproc-per-node=3", "--local-ranks-filter=0,2", *prefix, script)

    assert job.wait() == 0
    host = os.uname().nodename
    assert sorted(job.stdout.splitlines()) == [f"{host}:0: rank 0", f"{host}:2: rank 2"]


def test_a_signal_reaches_the_ranks_and_they_get_their_time(ft: Launcher) -> None:
    """They save their work and exit with 0. The job is not done, and a scheduler is told so: 1."""
    script = ft.script(
        NOTE_PIDS
        + """
import signal
def save(signum, frame):
    note("saved", rank)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
note("ready", rank)
"""
        + SLEEP_FOR_EVER
    )
    job = ft.start("--nproc-per-node=2", script)
    until(lambda: len(job.written("ready")) == 2, "both ranks are ready")

    job.signal(signal.SIGTERM)

    assert job.wait() == 1
    assert sorted(job.written("saved")) == ["0", "1"]
    assert job.said("was stopped by SIGTERM")


def test_an_impatient_user_is_told_what_happens_and_sees_no_traceback(ft: Launcher) -> None:
    """Ctrl-C again and again, to the very end; the second kills the ranks."""
    script = ft.script(
        NOTE_PIDS
        + "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); note('ready', rank)\n"
        + SLEEP_FOR_EVER
    )
    job = ft.start("--nproc-per-node=2", script)
    until(lambda: len(job.written("ready")) == 2, "both ranks are ready")

    job.signal(signal.SIGINT)
    until(lambda: job.said("SIGINT: passed on to 2 ranks, .* Press Ctrl-C again"), "what it does")

    def pressed_once_more() -> bool:
        job.signal(signal.SIGINT)
        return job.process.poll() is not None

    until(pressed_once_more, "the end")
    assert job.wait() == 1
    assert job.said("interrupted twice: killing the ranks without grace")
    assert "Traceback" not in job.stderr
    assert "KeyboardInterrupt" not in job.stderr


def test_signals_that_are_blocked_at_its_start_reach_the_launcher(ft: Launcher) -> None:
    """Blocked signals are inherited: a service's thread may have started it."""
    script = ft.script(
        NOTE_PIDS + "if cycle == '0': sys.exit(3)\nnote('up', rank)\n" + SLEEP_FOR_EVER
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    try:
        job = ft.start("--nproc-per-node=1", "--max-restarts=1", script)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    until(lambda: job.written("up"), "it heard of the failure, and started the rank again")

    job.signal(signal.SIGTERM)
    assert job.wait() == 1
    assert job.said("was stopped by SIGTERM")


def test_ranks_that_do_not_listen_are_killed_after_the_grace(ft: Launcher) -> None:
    """--shutdown-timeout; exit code 1."""
    script = ft.script(
        NOTE_PIDS
        + "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); note('ready', rank)\n"
        + SLEEP_FOR_EVER
    )
    job = ft.start("--nproc-per-node=2", "--shutdown-timeout=1", script)
    until(lambda: len(job.written("ready")) == 2, "both ranks are ready")

    job.signal(signal.SIGTERM)

    assert job.wait() == 1


def test_a_job_that_is_told_to_end_does_not_wait_for_ranks_that_hang(ft: Launcher) -> None:
    """Limits count on, also for one that hangs in its handler; one that was stopped is woken."""
    script = ft.script(
        NOTE_PIDS
        + """
import signal, time
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
def hangs_in_here(signum, frame):
    client.start_section("step")  # by now its time cannot be over before the signal has come
    while True: time.sleep(1)
def save(signum, frame):
    note("saved", rank)
    os._exit(0)
signal.signal(signal.SIGTERM, hangs_in_here if rank == "0" else save)
note("ready", f"{rank} {os.getpid()}")
"""
        + SLEEP_FOR_EVER
    )
    job = ft.start(
        "--nproc-per-node=2", "--log-dir=logs", "--ft-rank-section-timeouts=step:0.5", script
    )
    ready = until(lambda: len(job.written("ready")) == 2 and job.written("ready"), "both ranks")
    pid_of = {line.split()[0]: int(line.split()[1]) for line in ready}
    os.kill(pid_of["1"], signal.SIGSTOP)

    job.signal(signal.SIGTERM)
    job.signal(signal.SIGTERM)

    assert job.wait() == 1
    assert job.said(r"SIGTERM: passed on to 2 ranks, .* SIGKILL after 1800 s \(--term-timeout\)")
    assert not job.said("SIGTERM again")
    assert job.written("saved") == ["1"]
    assert "hangs_in_here" in (job.run_dir / "attempt_0" / "0" / "stacks.txt").read_text()
    assert [record["name"] for record in job.hung_ranks()] == ["step"]
    assert job.said("was stopped by SIGTERM")


def test_a_sibling_that_does_not_listen_does_not_hold_up_the_restart_for_ever(
    ft: Launcher,
) -> None:
    """--workers-stop-timeout."""
    script = ft.script(
        NOTE_PIDS
        + """
import signal
if cycle == "1": sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
note("ready", rank)
if rank == "0":
    while not (out / "ready").read_text().count("\\n") == 2: pass
    sys.exit(1)
"""
        + SLEEP_FOR_EVER
    )

    job = ft.start("--nproc-per-node=2", "--max-restarts=1", "--workers-stop-timeout=1", script)

    assert job.wait() == 0


def test_a_rank_that_was_stopped_gets_the_signal_that_is_to_end_it(ft: Launcher) -> None:
    """By a debugger, or a person: it may save its work, and the restart waits for no timeout."""
    script = ft.script(
        NOTE_PIDS
        + """
import signal, time
if cycle == "1": sys.exit(0)
if rank == "1":
    signal.signal(signal.SIGTERM, lambda *_: (note("saved", rank), sys.exit(1)))
    note("stopped", str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(3600)
while True:
    pid = (out / "stopped").read_text().strip() if (out / "stopped").exists() else ""
    if pid and " T " in pathlib.Path(f"/proc/{pid}/stat").read_text(): sys.exit(1)
"""
    )

    job = ft.start("--nproc-per-node=2", "--max-restarts=1", "--workers-stop-timeout=10", script)

    assert job.wait() == 0
    assert job.written("saved") == ["1"]


FAMILY = (
    NOTE_PIDS
    + """
import subprocess
child = subprocess.Popen(
    [sys.executable, "-c", "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"],
    start_new_session=True,
)
note("pids", f"{os.getpid()} {child.pid}")
"""
)
"""A rank with a child in a session of its own that does not listen to SIGTERM."""


def family(job_lines: list[str]) -> list[int]:
    return [int(pid) for line in job_lines for pid in line.split()]


def test_shared_memory_of_a_killed_rank_is_removed(ft: Launcher) -> None:
    """By the tracker that Python starts for it, which must live long enough to do so."""
    script = ft.script(
        NOTE_PIDS
        + """
from multiprocessing.shared_memory import SharedMemory
note("shm", SharedMemory(create=True, size=64).name)
os.kill(os.getpid(), 9)
"""
    )

    job = ft.start("--max-restarts=1", script)

    assert job.wait() == 1
    names = job.written("shm")
    assert len(names) == 2
    assert not [name for name in names if Path("/dev/shm", name.strip("/")).exists()]


@pytest.mark.parametrize("how", ["a rank dies", "the launcher is killed", "the job ends well"])
def test_nothing_outlives_its_cycle(ft: Launcher, how: str) -> None:
    """K-1: grandchildren in sessions of their own included."""
    ending = "sys.exit(0)" if how == "the job ends well" else SLEEP_FOR_EVER
    script = ft.script(FAMILY + ending)
    job = ft.start("--nproc-per-node=2", script)
    until(lambda: len(job.written("pids")) == 2, "both ranks run")
    pids = family(job.written("pids"))

    if how == "a rank dies":
        kill(pids[0])
    elif how == "the launcher is killed":
        kill(job.process.pid)
    job.wait()

    until(lambda: not any(map(is_alive, pids)), "the whole family is gone")


@pytest.fixture
def private_tmpfs() -> Iterator[Path]:
    """A folder beside those of launchers, into which only launchers of this test look."""
    with tempfile.TemporaryDirectory(prefix="test_", dir="/dev/shm") as folder:
        yield Path(folder)


def test_what_a_killed_launcher_and_its_monitors_left_is_ended_by_the_next(
    ft: Launcher, private_tmpfs: Path
) -> None:
    """Launcher and all monitors killed at once: what has its own session stays, until then.

    The next launcher may be any of this user's on the host, as that of a test beside this one. So
    the folder that shows the death moves to where only the next launcher of this test looks.
    """
    script = ft.script(FAMILY + SLEEP_FOR_EVER)
    quick = ft.script("print('next')", "quick.py")
    job = ft.start("--nproc-per-node=1", script)
    pids = family(until(lambda: job.written("pids"), "the rank"))
    monitors = until(lambda: monitors_of(job.process.pid), "the monitor")
    [folder] = Path("/dev/shm").glob(f"holdfast_{job.process.pid}-*")

    for pid in [*monitors, job.process.pid]:
        os.kill(pid, signal.SIGSTOP)
    folder.rename(private_tmpfs / folder.name)  # the launcher lives: no other minds its folder
    for pid in [job.process.pid, *monitors]:
        kill(pid)
    job.wait()
    until(lambda: not is_alive(pids[0]), "the rank dies with its launcher")
    assert is_alive(pids[1])

    following = ft.start("--nproc-per-node=1", quick, env={"TMPDIR": str(private_tmpfs)})

    assert following.wait() == 0
    until(lambda: not is_alive(pids[1]), "the leftover is gone")
    assert following.said("a killed launcher had left"), following.stderr
    assert not (private_tmpfs / folder.name).exists()


def monitors_of(launcher_pid: int) -> list[int]:
    """Rank monitors of a launcher."""
    return [pid for pid in proc.children(launcher_pid) if b"monitor_main" in command_line(pid)]


def test_a_shutdown_request_ends_the_job_at_the_next_failure(ft: Launcher) -> None:
    """ShutdownWorkload: no restart although the budget has room; the reason is in the log."""
    script = ft.script(
        NOTE_PIDS
        + """
from holdfast.fault_tolerance import RankMonitorClient, WorkloadAction, WorkloadControlRequest
client = RankMonitorClient()
client.init_workload_monitoring()
request = WorkloadControlRequest(WorkloadAction.ShutdownWorkload, "loss is NaN")
client.send_workload_control_request(request)
note("lives", cycle)
sys.exit(1)
"""
    )

    job = ft.start("--max-restarts=5", script)

    assert job.wait() == 1
    assert job.written("lives") == ["0"]
    assert job.said("rank 0 asks for ShutdownWorkload .*loss is NaN")
    assert job.said("0 of 5 restarts used; a rank has asked for ShutdownWorkload")
    assert not job.said("restart 1")


def test_a_hang_is_explained_before_the_kill_and_the_job_goes_on(ft: Launcher) -> None:
    """K-2: the stack of the hung rank shows the function it hangs in; then it is restarted."""
    script = ft.script(
        NOTE_PIDS
        + """
from holdfast.fault_tolerance import RankMonitorClient
def stuck_in_here():
    import ctypes
    while True:  # the dump's signal ends one sleep
        ctypes.PyDLL(None).sleep(1000)  # holds the interpreter lock
client = RankMonitorClient()
client.init_workload_monitoring()
if cycle == "0" and rank == "1":  # a rank that is well makes no step: a slow one would be a hang
    client.start_section("step")
    stuck_in_here()
client.shutdown_workload_monitoring()
"""
    )

    job = ft.start(
        "--nproc-per-node=2", "--max-restarts=1", "--log-dir=logs",
        "--ft-rank-section-timeouts=step:0.5", script,
    )  # fmt: skip

    assert job.wait() == 0
    stacks = (job.run_dir / "attempt_0" / "1" / "stacks.txt").read_text()
    assert "stuck_in_here" in stacks
    [record] = job.hung_ranks()
    assert record["rank"] == 1
    [overdue] = job.events("rank_overdue")
    assert (overdue["rank"], overdue["clock"], overdue["name"]) == (1, "section", "step")
    assert overdue["age_s"] > overdue["limit_s"] == 0.5
    assert job.said(r"killed rank 1 \(section 'step': .* timeout 0.5 s\)")


def test_a_rank_that_hangs_at_its_exit_is_explained_and_the_job_goes_on(ft: Launcher) -> None:
    """After shutdown_workload_monitoring(); nobody noticed."""
    script = ft.script(
        """
import atexit, os, time
from holdfast.fault_tolerance import RankMonitorClient
def uploads_for_ever():
    time.sleep(1000)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    client = RankMonitorClient()
    client.init_workload_monitoring()
    atexit.register(uploads_for_ever)
    client.shutdown_workload_monitoring()
"""
    )

    job = ft.start(
        "--max-restarts=1", "--log-dir=logs", "--ft-exit-timeout=0.5", script,
    )  # fmt: skip

    assert job.wait() == 0
    assert "uploads_for_ever" in (job.run_dir / "attempt_0" / "0" / "stacks.txt").read_text()
    assert job.said(r"killed rank 0 \(process exit: .* timeout 0.5 s\); restart 1 of 1")
    [text] = (job.run_dir / "incidents").glob("*/incident.txt")
    assert "--ft-exit-timeout 1" in text.read_text()


def test_a_section_that_is_not_utf8_hangs_like_any_other(ft: Launcher) -> None:
    """Its name came as bytes on the command line; the monitor died of it, six times."""
    script = ft.script(
        """
import os, time
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
client.start_section(os.fsdecode(b"st\\xffep"))
time.sleep(1000)
"""
    )
    job = ft.start(
        "--log-dir=logs", "--ft-rank-section-timeouts", os.fsdecode(b"st\xffep:0.5"), script
    )

    assert job.wait() == 1
    [record] = job.hung_ranks()
    assert record["name"] == os.fsdecode(b"st\xffep")
    assert not job.events("monitor_exited")
    assert not job.said("cannot write")


def test_a_hung_rank_that_ends_well_when_told_to_end_has_failed(ft: Launcher) -> None:
    """A handler of SIGTERM that saves and exits with 0 does not make a hang a success."""
    script = ft.script(
        NOTE_PIDS
        + """
import signal
from holdfast.fault_tolerance import RankMonitorClient
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
client = RankMonitorClient()
client.init_workload_monitoring()
if cycle == "0":
    client.start_section("step")
while cycle == "0":
    signal.pause()
client.shutdown_workload_monitoring()
"""
    )

    job = ft.start(
        "--nproc-per-node=1", "--max-restarts=1", "--log-dir=logs",
        "--ft-rank-section-timeouts=step:0.5", "--ft-rank-termination-signal=SIGTERM", script,
    )  # fmt: skip

    assert job.wait() == 0
    assert job.said(r"stopped rank 0 \(section 'step': .*\); restart 1 of 1")
    assert job.said("succeeded after 1 restart;")


def test_a_monitor_that_dies_is_replaced_and_goes_on_watching(ft: Launcher) -> None:
    """The rank trains on meanwhile; a hang after that is still found."""
    script = ft.script(
        NOTE_PIDS
        + """
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
client.send_heartbeat()
note("ready", str(os.getpid()))
while not (out / "go").exists():
    client.send_heartbeat()
    time.sleep(0.01)
if cycle == "0":
    time.sleep(1000)
"""
    )
    job = ft.start("--max-restarts=1", "--log-dir=logs", "--ft-rank-heartbeat-timeout=1", script)
    until(lambda: job.written("ready"), "the rank is monitored")
    [first] = monitors_of(job.process.pid)

    kill(first)
    until(lambda: [pid for pid in monitors_of(job.process.pid) if pid != first], "a new monitor")
    (job.folder / "go").touch()

    assert job.wait() == 0
    assert len(job.written("ready")) == 2
    assert job.events("rank_overdue")
    assert job.said("died; starting another")


IN_SMALL_SHM = (
    'mount -t tmpfs -o size=4k none /dev/shm && mkdir "$TMPDIR" && '
    '{ [ -z "$FULL" ] || mount -t tmpfs -o size=4k none "$TMPDIR"; } && exec "$@"'
)
"""Runs a command where /dev/shm, and with FULL the temp folder, have space for nothing."""


def may_mount() -> bool:
    """In a mount namespace of its own: as root, usually."""
    unshare = shutil.which("unshare")
    command = [unshare or "false", "--mount", "mount", "-t", "tmpfs", "none", "/dev/shm"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="needs the right to mount")
@pytest.mark.parametrize("full", ["", "temp folder, too"])
def test_a_full_shared_memory_ends_no_job(ft: Launcher, tmp_path: Path, full: str) -> None:
    """Pages go to the temp folder, and hangs are found; failing that the rank runs unwatched."""
    script = ft.script(
        NOTE_PIDS
        + """
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
if cycle == "0":
    client.start_section("step")
    if not os.environ["FULL"]:
        time.sleep(1000)
    client.end_section("step")
client.shutdown_workload_monitoring()
"""
    )
    launcher = [sys.executable, "-m", "holdfast.fault_tolerance.launcher"]
    args = ["--max-restarts=1", "--log-dir=logs", "--ft-rank-section-timeouts=step:0.5", script]
    variables = {"OUT": str(tmp_path), "TMPDIR": str(tmp_path / "tmp"), "FULL": full}

    done = subprocess.run(
        ["unshare", "--mount", "/bin/sh", "-c", IN_SMALL_SHM, "sh", *launcher, *args],
        env={**os.environ, **variables},
        cwd=tmp_path,
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    if full:
        assert "runs unwatched" in done.stderr
    else:
        assert re.search(r"killed rank \d \(section 'step'", done.stderr)
        assert list(tmp_path.glob("logs/*_*/incidents/*/rank*.json"))
        assert not [each for each in (tmp_path / "tmp").iterdir() if not each.is_symlink()]


def test_a_rank_that_hangs_before_its_first_call_is_found(ft: Launcher) -> None:
    """Its peer has called, so it is expected to; the restart succeeds."""
    script = ft.script(
        NOTE_PIDS
        + """
from holdfast.fault_tolerance import RankMonitorClient
if cycle == "1":
    sys.exit(0)  # unwatched: one rank may start much later than the other
if rank == "1":
    time.sleep(1000)
client = RankMonitorClient()
client.init_workload_monitoring()
while True:
    client.send_heartbeat()
    time.sleep(0.01)
"""
    )
    limit = "--ft-first-call-timeout=0.5"
    job = ft.start("--nproc-per-node=2", "--max-restarts=1", "--log-dir=logs", limit, script)

    assert job.wait() == 0
    assert job.said(r"killed rank 1 \(first report: .*\).*; restart 1 of 1"), job.stderr
    assert not job.said("is hung"), "the incident has said it"
    [record] = job.hung_ranks()
    assert record["clock"] == "first report"


def test_a_rank_that_saves_its_work_when_the_job_is_told_to_end_is_not_ended_for_its_timeouts(
    ft: Launcher,
) -> None:
    """Neither one that has never called, nor one whose section is open meanwhile."""
    script = ft.script(
        NOTE_PIDS
        + """
import signal
def save(*_):
    time.sleep(3)  # longer than each timeout
    note("saved", rank)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
if rank == "0":
    from holdfast.fault_tolerance import RankMonitorClient
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.start_section("step")
note("ready", rank)
time.sleep(1000)
"""
    )
    limits = ("--ft-first-call-timeout=2", "--ft-rank-section-timeouts=step:2")
    job = ft.start("--nproc-per-node=2", "--log-dir=logs", *limits, script)
    until(lambda: len(job.written("ready")) == 2, "both ranks are ready")
    job.signal(signal.SIGTERM)
    job.wait()

    assert job.said("SIGTERM: passed on to 2 ranks")
    assert sorted(job.written("saved")) == ["0", "1"]
    assert not job.hung_ranks()


IN_TIGHT_SHM = 'mount -t tmpfs -o size=2m none /dev/shm && exec "$@"'


@pytest.mark.skipif(not may_mount(), reason="needs the right to mount")
def test_a_shared_memory_that_fills_later_costs_no_evidence(ft: Launcher, tmp_path: Path) -> None:
    """Room for it was kept when the cycle began."""
    script = ft.script(
        NOTE_PIDS
        + """
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
try:
    with open("/dev/shm/data", "wb", buffering=0) as file:
        while cycle == "0":
            file.write(bytes(4096))
except OSError as error:
    note("full", str(error.errno))
if cycle == "0":
    client.start_section("step")
    time.sleep(1000)
client.shutdown_workload_monitoring()
"""
    )
    launcher = [sys.executable, "-m", "holdfast.fault_tolerance.launcher"]
    args = ["--max-restarts=1", "--log-dir=logs", "--ft-rank-section-timeouts=step:0.5", script]

    done = subprocess.run(
        ["unshare", "--mount", "/bin/sh", "-c", IN_TIGHT_SHM, "sh", *launcher, *args],
        env={**os.environ, "OUT": str(tmp_path)},
        cwd=tmp_path,
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "full").read_text().split() == [str(errno.ENOSPC)]
    [incident] = tmp_path.glob("logs/*_*/incidents/*/rank*.json")
    assert "script.py" in json.loads(incident.read_text())["stacks_text"]
    assert list(tmp_path.glob("logs/*_*/attempt_0/0/stacks.txt"))


def test_the_rank_that_exits_is_named_and_not_those_that_lose_it(ft: Launcher) -> None:
    """The launcher sees all of them end at the same time, as on a busy host, rank 0 first."""
    script = ft.script(
        NOTE_PIDS
        + """
import socket
if cycle == "1": sys.exit(0)
server = out / "server"
if rank == "1":
    listener = socket.create_server(("127.0.0.1", 0))
    server.with_suffix(".new").write_text(str(listener.getsockname()[1]))
    server.with_suffix(".new").rename(server)
    peers = [listener.accept()[0] for _ in range(3)]
    note("ready", "1")
    open(os.environ["GO"]).read()
    os._exit(3)
while not server.exists(): pass
peer = socket.create_connection(("127.0.0.1", int(server.read_text())))
peer.recv(1)
raise RuntimeError("[../third_party/gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:1")
"""
    )
    go = ft.folder / "go"
    os.mkfifo(go)
    options = "--nproc-per-node=4", "--max-restarts=1", "--log-dir=logs"
    job = ft.start(*options, script, env={"GO": str(go)})
    until(lambda: job.written("ready"), "all ranks")
    until(lambda: len(job.events("worker_started")) == 4, "the events of all")
    pids = [event["pid"] for event in job.events("worker_started")]

    job.signal(signal.SIGSTOP)
    go.open("w").close()
    until(lambda: all(proc.process_state(pid).state == "Z" for pid in pids), "all have ended")
    job.signal(signal.SIGCONT)

    assert job.wait() == 0
    assert job.said(r"cycle 0 ended: rank 1 .*: exit code 3\n")
    assert not job.said("holdfast: rank 0 "), "it is a victim"
    assert job.said(r"ranks 0,2,3 failed because of it; restart 1 of 1")


@pytest.mark.slow
def test_gloo_comes_up_again_in_every_cycle(ft: Launcher) -> None:
    """Two restarts in a row of a real process group: no stale keys, no stale ports."""
    script = ft.script(
        NOTE_PIDS
        + """
import light_torch
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
note("sums", f"{cycle} {int(total)}")
if cycle != "2":
    if rank == "1": os.kill(os.getpid(), 9)
    dist.barrier()
dist.destroy_process_group()
"""
    )

    job = ft.start("--nproc-per-node=2", "--max-restarts=2", script)

    assert job.wait(90) == 0
    assert sorted(job.written("sums")) == ["0 2", "0 2", "1 2", "1 2", "2 2", "2 2"]
    assert job.said(r"rank 1 \(pid \d+\): killed by SIGKILL")


def test_a_launcher_needs_no_torch(ft: Launcher) -> None:
    """Nothing on the path of one node imports it: a second of start-up, 200 MiB."""
    script = ft.script("pass")

    job = ft.start(script, env={"PYTHONPROFILEIMPORTTIME": "1"})

    assert job.wait() == 0
    imported = {line.rpartition("|")[2].strip() for line in job.stderr.splitlines() if "|" in line}
    assert "holdfast.node.agent" in imported
    assert not {"torch", "asyncio", "numpy", "yaml"} & imported


DOES_NOT_ADVANCE = """
import pathlib, os, sys
cycle = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
pathlib.Path(os.environ["CHECKPOINT"]).write_text(str(100 * min(cycle + 1, 2)))
sys.exit(3)
"""
"""Saves a checkpoint in the first two cycles, and fails in each."""


def test_a_job_that_does_not_advance_is_given_up(ft: Launcher, tmp_path: Path) -> None:
    """Two failed cycles without a newer checkpoint, and the exit code that says so."""
    latest = tmp_path / "latest"
    job = ft.start(
        *("--max-restarts", "9", "--ft-max-no-progress-cycles", "2"),
        *("--ft-checkpoint-iteration-file", latest, ft.script(DOES_NOT_ADVANCE)),
        env={"CHECKPOINT": str(latest)},
    )

    assert job.wait() == 93
    assert job.said("not started again: no progress in 2 cycles in a row")
    assert job.said("after 3 restarts")
    assert not job.said("accepted, but without effect")


def test_the_output_of_all_ranks_is_kept_in_one_file_for_each_cycle(
    ft: Launcher, tmp_path: Path
) -> None:
    """Both streams, each line after its rank, however long; the console is as without."""
    script = ft.script(
        """
        import os, sys
        rank, cycle = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
        print(f"out of {rank} in {cycle}: \\u00fc" + "x" * 70000)
        print(f"err of {rank} in {cycle}, unfinished", end="", file=sys.stderr)
        if cycle == "0":
            os.kill(os.getpid(), 9) if rank == "1" else __import__("signal").pause()
        """
    )
    job = ft.start(
        *("--nproc-per-node=2", "--max-restarts=1", "--workers-stop-timeout=5"),
        *(f"--ft-per-cycle-applog-prefix={tmp_path}/new/run.txt", script),
    )
    assert job.wait() == 0
    logs = {path.name: path.read_text("utf-8") for path in (tmp_path / "new").iterdir()}
    assert sorted(logs) == ["run_cycle0.txt", "run_cycle1.txt"]
    wide = "\u00fc" + "x" * 70000
    last = [f"{rank}: out of {rank} in 1: {wide}" for rank in (0, 1)]
    last += [f"{rank}: err of {rank} in 1, unfinished" for rank in (0, 1)]
    assert sorted(logs["run_cycle1.txt"].splitlines()) == sorted(last)
    assert f"1: out of 1 in 0: {wide}\n" in logs["run_cycle0.txt"]
    # There the ranks' writes may mix, as without: Python writes a line and its end one by one.
    assert "out of 0 in 1: " in job.stdout
    assert job.stdout.count("x") >= 2 * 70000
    assert "0: out" not in job.stdout


@pytest.mark.parametrize("asked", ["true", "false"])
def test_what_outlives_its_rank_is_listed_where_that_is_wanted(ft: Launcher, asked: str) -> None:
    """It is ended in any case."""
    script = ft.script(
        """
        import subprocess, sys
        words = [sys.executable, "-c", "print(flush=True); import time; time.sleep(987)"]
        left = subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE)
        left.stdout.readline()  # its program is loaded
        while " S " not in open(f"/proc/{left.pid}/stat").read():
            pass
        """
    )
    job = ft.start(f"--ft-check-remaining-processes={asked}", script)
    assert job.wait() == 0
    said = job.said(
        r"killing 1 process that the ranks left behind:\n"
        r".* pid \d+, child of \d+, state S, \d+ s old: .*sleep\(987\)"
    )
    assert bool(said) == (asked == "true")
    assert not job.leftovers()


def test_torchs_manager_of_shared_memory_ends_by_itself_and_holds_up_no_restart(
    ft: Launcher,
) -> None:
    """Killed, it would leak the memory of dead processes; it ends 2 s after its last user."""
    script = ft.script(
        """
        import os, pathlib, subprocess, sys
        MANAGER = '''
        import os, pathlib, sys, time
        os.setsid()
        open("/proc/self/comm", "w").write("torch_shm_manager")
        parent = os.getppid()
        print(flush=True)  # from here on its rank may end
        while os.getppid() == parent or not pathlib.Path("again").exists():
            time.sleep(0.01)
        time.sleep(0.2)
        pathlib.Path(sys.argv[1]).touch()
        '''
        import textwrap
        cycle = os.environ["TORCHELASTIC_RESTART_COUNT"]
        words = [sys.executable, "-c", textwrap.dedent(MANAGER), "removed" + cycle]
        subprocess.Popen(words, stdout=subprocess.PIPE).stdout.readline()
        if cycle == "0":
            sys.exit(3)
        pathlib.Path("again").touch()
        """
    )
    job = ft.start("--max-restarts=1", "--ft-check-remaining-processes=true", script)

    assert job.wait() == 0
    assert {it.name for it in job.folder.glob("removed*")} == {"removed0", "removed1"}
    assert not job.leftovers()
    assert not job.said("left behind")


def test_variables_of_the_log_have_their_effect_or_are_named(ft: Launcher) -> None:
    """The launcher's lines are on stdout, one of them with what is set in vain."""
    env = {"NVRX_LOG_TO_STDOUT": "1", "NVRX_LOG_DEBUG": "1", "NVRX_TELEMETRY_FILE": "/tmp/x"}
    job = ft.start("--monitor-interval=2", ft.script("pass"), env=env)

    assert job.wait() == 0
    assert "[INFO]" not in job.stderr
    assert "without effect here: --monitor-interval (" in job.stdout
    assert job.stdout.count("NVRX_TELEMETRY_FILE: without effect here; events are") == 1
