"""Launcher, monitors, warm standby and Wrapper where interpreter, kernel or sandbox lack calls."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.older_hosts import old_glibc_python, why_no_filter
from tests.real.harness import Job, Launcher
from tests.real.ranks import SIGKILLED, RankStarter
from tests.real.test_inprocess import train
from tests.real.test_warm_standby import LIBRARY, is_ready
from tests.waiting import until

HOSTS = {
    "old glibc": "--old-glibc",
    "old glibc, no pidfds": "--old-glibc --no-pidfd",
    "no signals through pidfds": "--no-pidfd-signal",
}
SCRIPT = """
import atexit, os, pathlib, signal, subprocess, sys, time
import lib1
from holdfast.fault_tolerance import RankMonitorClient

def uploads_for_ever():
    time.sleep(1000)

out, rank, cycle = pathlib.Path(os.environ["OUT"]), os.environ["RANK"], os.environ["NVRX_CYCLE"]
with open(out / "lives", "a") as file:
    file.write(f"{cycle} {rank} {lib1.imported_by}\\n")
if cycle == "2":
    sys.exit(0)
client = RankMonitorClient()
client.init_workload_monitoring()
if cycle == "0":
    subprocess.Popen(["setsid", "sleep", "1000"])
    while not (out / "go").exists():
        time.sleep(0.01)
    if rank == "1":
        client.start_section("step")
        time.sleep(1000)
elif rank == "0":
    atexit.register(uploads_for_ever)
    client.shutdown_workload_monitoring()
    sys.exit(0)
signal.pause()
"""
"""Whoever does not hang makes no step, and does not leave: a slow one would be a hang."""


@pytest.fixture(scope="module")
def old_interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an interpreter that was built for an old glibc."""
    folder = tmp_path_factory.mktemp("old_glibc")
    old_glibc_python(folder)
    return folder


def interpreter(host: str, old: Path, folder: Path) -> str:
    """A program that is called like an interpreter, and runs one on such a host."""
    if "pidfd" in HOSTS[host] and (why := why_no_filter()) is not None:
        pytest.skip(why)
    options = HOSTS[host].replace("--old-glibc", f"--old-glibc {old}")
    program = folder / "_".join(["python", *host.replace(",", "").split()])
    module = Path(__file__).parent.parent / "older_hosts.py"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {module} {options} "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_a_launcher_and_its_monitors_do_without_what_the_host_lacks(
    ft: Launcher, tmp_path: Path, old_interpreter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hang, a restart from parked processes, a hang at the exit; and nothing is left."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "lib1.py").write_text(LIBRARY)
    script = ft.script(SCRIPT)
    jobs: dict[str, Job] = {}
    for host in HOSTS:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", interpreter(host, old_interpreter, tmp_path))
            jobs[host] = ft.start(
                *("--nproc-per-node=2", "--max-restarts=2", "--log-dir=logs"),
                *("--ft-warm-standby=true", "--ft-warm-standby-delay=0", "--ft-warm-preload=lib1"),
                *("--ft-rank-section-timeouts=step:0.3", "--ft-exit-timeout=0.3"),
                script,
                env={"PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"},
            )
    for host, job in jobs.items():
        until(lambda job=job: is_ready(job) or job.process.poll(), f"parked processes: {host}")
        (job.folder / "go").touch()
    for host, job in jobs.items():
        assert job.wait() == 0, host
        expected = ["0 0 plain", "0 1 plain", "1 0 parked", "1 1 parked"]
        assert sorted(job.written("lives"))[:4] == expected, host
        assert job.said(r"killed .*\(section 'step': .* timeout 0.3 s\)"), host
        assert job.said(r"killed .*\(process exit: .* timeout 0.3 s\)"), host
        assert job.leftovers() == [], host


def test_a_function_is_called_again_where_the_host_lacks_calls(
    ranks: RankStarter,
    tmp_path: Path,
    old_interpreter: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guard learns of a killed rank from its connection, and has its page without memfd."""
    program = interpreter("old glibc, no pidfds", old_interpreter, tmp_path)
    monkeypatch.setattr(sys, "executable", program)
    job = ranks(2, train(1, "os.kill(os.getpid(), signal.SIGKILL)"))
    assert job.wait() == [0, SIGKILLED]
    assert job.notes(0, "returned") == [[0, 1]]
    assert job.said(0, "restarted after TERMINATED of rank 1")
