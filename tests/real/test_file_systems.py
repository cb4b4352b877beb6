"""A log folder that is full or hangs costs what would be written there, and nothing else."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.real.harness import Launcher, marked
from tests.real.test_launcher import NOTE_PIDS, SLEEP_FOR_EVER, may_mount
from tests.waiting import until

FULL = 'mkdir logs && mount -t tmpfs -o size=64k none logs && exec "$@"'
"""Runs a command where the log folder has little space."""
HUNG = """
fallocate -l 16M image && mkfs.ext4 -q -F image && mkdir logs && mount -o loop image logs || exit 99
(for i in $(seq 1200); do
   [ -e thaw ] && break; [ -e image ] || break; sleep 0.05
 done; fsfreeze -u logs) >&- 2>&- &
"$@"
"""
"""Runs a command where the log folder is a file system of its own, and lets a frozen one go on."""


def why_no_frozen_folder() -> str | None:
    """Why no file system can be made to hang here; None: it can."""
    if not may_mount():
        return "needs the right to mount"
    if not all(shutil.which(program) for program in ("fsfreeze", "mkfs.ext4", "fallocate")):
        return "there is no fsfreeze or mkfs.ext4"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "thaw").touch()
        command = ["unshare", "--mount", "sh", "-c", HUNG, "sh", "true"]
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False, text=True)
    return None if done.returncode == 0 else f"no loop device: {done.stderr.strip()}"


@pytest.mark.skipif(not may_mount(), reason="needs the right to mount")
def test_ranks_and_restarts_do_without_a_log_folder_that_is_full(ft: Launcher) -> None:
    """A rank that wrote to a file there itself failed with ENOSPC, in each cycle."""
    script = ft.script(
        NOTE_PIDS
        + """
for number in range(1000):
    print("line", number, "x" * 100)
sys.stdout.flush()
note("ended", cycle)
sys.exit(cycle == "0")
"""
    )
    job = ft.start(
        *("--max-restarts=1", "--log-dir=logs", "-r=0:1", "-t=1:3", "--nproc-per-node=2", script),
        prefix=["unshare", "--mount", "sh", "-c", FULL, "sh"],
    )
    assert job.wait() == 0, job.stderr
    assert job.written("ended").count("1") == 2
    assert job.said(r"stdout.log cannot be written \(No space left on device\)")


def test_a_restart_and_a_signal_do_not_wait_for_a_log_folder_that_hangs(ft: Launcher) -> None:
    """The launcher was in state D until the file system went on, and so were its ranks."""
    if (why := why_no_frozen_folder()) is not None:
        pytest.skip(why)
    script = ft.script(
        NOTE_PIDS
        + """
import subprocess
if cycle == "0" and rank == "0":
    note("launcher", str(os.getppid()))
    subprocess.run(["fsfreeze", "-f", "logs"], check=True)
    note("frozen", "")
    sys.exit(3)
print("x" * 1000, flush=True)
note("lives", cycle)
"""
        + SLEEP_FOR_EVER
    )
    job = ft.start(
        *("--nproc-per-node=2", "--max-restarts=1", "--log-dir=logs", "-r=3", script),
        prefix=["unshare", "--mount", "sh", "-c", HUNG, "sh"],
    )
    try:
        until(lambda: job.written("lives").count("1") == 2, "a restart")
        launcher = int(job.written("launcher")[0])
        os.kill(launcher, signal.SIGTERM)
        until(lambda: job.said("was stopped by SIGTERM"), "the end")
        until(lambda: not marked(f"{launcher}-"), "nothing is left")
        assert job.process.poll() is None, "its process ends when the file system lets it"
    finally:
        (job.folder / "thaw").touch()
    assert job.wait() == 1
