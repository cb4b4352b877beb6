"""Real launchers whose ranks restart from parked interpreters."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from holdfast.base.processes import proc
from holdfast.net.port import ReservedPort
from holdfast.standby import idle_priority
from tests.processes import environ
from tests.real.harness import Job, Launcher, kill, marked
from tests.waiting import BOUND_S, until

WARM = "--ft-warm-standby=true", "--ft-warm-standby-delay=0", "--ft-warm-preload=lib1"
SCRIPT = """
import json, os, signal, sys
import lib1
line = json.dumps([os.environ["NVRX_CYCLE"], os.environ["RANK"], os.getpid(), lib1.imported_by])
with open(os.environ["OUT"] + "/lives", "a") as file:
    file.write(line + "\\n")
print("hello from", os.environ["RANK"], os.environ["NVRX_CYCLE"])
if os.environ["NVRX_CYCLE"] == os.environ["LAST"]:
    sys.exit(0)
while True:
    signal.pause()
"""
LIBRARY = """
import os
imported_by = "parked" if open("/proc/self/comm").read().startswith("holdfast") else "plain"
"""

PATIENT = """
from holdfast.standby.pure import parked_interpreters
from holdfast.fault_tolerance.launcher import command
parked_interpreters.LOOK_S = 3600.0
command()
"""
"""A launcher that does not look whether other programs leave its parked processes no processor."""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "lib1.py").write_text(LIBRARY)
    return {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "LAST": "1"}


def parked(job: Job) -> list[int]:
    """Processes that the job has parked, or is preparing."""
    return [
        pid
        for pid in marked(f"{job.process.pid}-")
        if ".parked." in environ(pid).get(proc.MARKER, "")
    ]


def is_ready(job: Job) -> bool:
    return bool(job.said("ranks can restart without importing"))


def lives(job: Job) -> list[list[str | int]]:
    return [eval(line) for line in job.written("lives")]


def test_ranks_restart_from_parked_processes(
    ft: Launcher, env: dict[str, str], tmp_path: Path
) -> None:
    """Same pid, no import, output and files where they belong; and nothing is left."""
    script = ft.script(SCRIPT)
    arguments = "--nproc-per-node=2", "--max-restarts=1", "--log-dir=logs", "--tee=3", *WARM
    applog = f"--ft-per-cycle-applog-prefix={tmp_path}/all.log"
    job = ft.start(*arguments, applog, script, env=env)
    until(lambda: is_ready(job) and len(lives(job)) == 2, "two parked processes beside two ranks")
    waiting = parked(job)
    assert len(waiting) == 2

    kill(int(lives(job)[0][2]))

    assert job.wait() == 0
    second = {life[1]: life for life in lives(job) if life[0] == "1"}
    assert {int(life[2]) for life in second.values()} == set(waiting)
    assert [life[3] for life in second.values()] == ["parked", "parked"]
    started = job.events("worker_started")
    assert [event["is_warm"] for event in started] == [False, False, True, True]
    assert job.said("2 ranks from warm standby")
    assert "[default1]:hello from 1 1" in job.stdout
    assert (job.run_dir / "attempt_1" / "1" / "stdout.log").read_text() == "hello from 1 1\n"
    together = (tmp_path / "all_cycle1.log").read_text()
    assert sorted(together.splitlines()) == ["0: hello from 0 1", "1: hello from 1 1"]
    assert job.leftovers() == []


def test_a_parked_process_that_died_costs_a_plain_start(ft: Launcher, env: dict[str, str]) -> None:
    """Said once, and replaced."""
    job = ft.start("--max-restarts=2", *WARM, ft.script(SCRIPT), env={**env, "LAST": "2"})
    until(lambda: is_ready(job) and lives(job), "a parked process beside its rank")
    first = parked(job)[0]

    kill(first)

    until(lambda: job.said("parked process of local rank 0 ended unexpectedly"), "word of it")
    until(lambda: parked(job) not in ([], [first]), "another one")
    kill(int(lives(job)[0][2]))
    until(lambda: len(lives(job)) == 2, "a restart")
    os.kill(int(lives(job)[1][2]), signal.SIGKILL)
    assert job.wait() == 0
    assert len(lives(job)) == 3


def test_preparing_takes_no_time_from_the_ranks(
    ft: Launcher, env: dict[str, str], tmp_path: Path
) -> None:
    """All have the lowest priority, also while they wait for a disk; ready, they are as ranks are.

    Where ranks use all processors, see ``tests/unit/standby/test_parked_interpreters.py``.
    """
    if not idle_priority.can_return():
        pytest.skip("this user may not raise a priority")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    library = tmp_path / "site-packages" / "lib1.py"
    wait = f"if imported_by == 'parked': open({str(gate)!r}).read()"
    library.write_text(f"{LIBRARY}\n{wait}\n")
    ft.script(PATIENT, "patient.py")
    job = ft.start(
        *("--nproc-per-node=3", "--max-restarts=1", *WARM, ft.script(SCRIPT)),
        module="patient",
        env={**env, "PYTHONPATH": f"{env['PYTHONPATH']}{os.pathsep}{ft.folder}"},
    )

    def policies() -> list[int]:
        found = []
        for pid in parked(job):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                found.append(os.sched_getscheduler(pid))
        return found

    until(lambda: os.SCHED_IDLE in policies(), "one is prepared")

    def ready_once_they_may() -> bool:
        with contextlib.suppress(OSError):  # nobody reads any more
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
        return is_ready(job)

    until(ready_once_they_may, "three parked processes", 2 * BOUND_S)
    assert policies() == [os.SCHED_OTHER] * 3
    kill(job.process.pid)
    job.wait()


def test_parked_processes_die_with_the_launcher(ft: Launcher, env: dict[str, str]) -> None:
    """K-1, however it ends."""
    job = ft.start("--max-restarts=1", *WARM, ft.script(SCRIPT), env=env)
    until(lambda: is_ready(job), "a parked process")

    kill(job.process.pid)

    job.wait()
    until(lambda: not job.leftovers(), "everything is gone")


def test_a_node_that_waits_for_others_starts_warm(ft: Launcher, env: dict[str, str]) -> None:
    """``--ft-warm-start``: torch has been imported before the first cycle begins."""
    port = ReservedPort()
    script = ft.script(SCRIPT)

    def start(is_host: int) -> Job:
        return ft.start(
            *("--nnodes=2", "--nproc-per-node=1", "--max-restarts=1", "--rdzv-id=j1"),
            *("--log-dir=logs", "--rdzv-conf", f"is_host={is_host}", "--ft-warm-start=true"),
            f"--rdzv-endpoint=127.0.0.1:{port.number}",
            script,
            env={**env, "LAST": "0"},
        )

    waits = start(1)
    until(lambda: is_ready(waits), "a parked process")
    follows = start(0)

    assert [job.wait() for job in (waits, follows)] == [0, 0]
    assert [event["is_warm"] for event in waits.events("worker_started")] == [True]
    port.release()


def test_where_it_is_not_safe_it_says_so(ft: Launcher) -> None:
    """A program may be anything."""
    job = ft.start("--max-restarts=1", "--no-python", "true")

    assert job.wait() == 0
    assert job.said("no warm standby: with --no-python")
