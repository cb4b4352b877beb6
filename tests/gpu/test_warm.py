"""Warm standby with a torch that has CUDA: what a parked process holds, and what it saves."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.gpu import machine
from tests.gpu.machine import listed_by_smi
from tests.gpu.report import Found
from tests.gpu.test_launcher import first, notes
from tests.real.harness import Job, Launcher, kill
from tests.waiting import until

RESTARTS = int(os.environ.get("HOLDFAST_GPU_RESTARTS") or 3)
TORCHRUN = "torch.distributed.run"
SCRIPT = """
import os
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # as training scripts do, before torch
import torch
import torch.distributed as dist
from tests.gpu.device import gpu
from tests.gpu.rank import note, wait_for_ever
note("imported")
gpu.begin()
note("context")
dist.init_process_group(gpu.backend)
dist.all_reduce(gpu.tensor(1.0))
gpu.synchronize()
note("group")
wait_for_ever()
"""


def parked(job: Job) -> list[int]:
    """Processes that the job has parked."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/comm"):
        try:
            if entry.read_text().strip() != "holdfast-parked":
                continue
            environ = (entry.parent / "environ").read_bytes()
        except OSError:
            continue
        if f"HOLDFAST_MARKER={job.process.pid}-".encode() in environ and b".parked." in environ:
            found.append(int(entry.parent.name))
    return found


def is_of(pid: int, job: Job) -> bool:
    """A living process was started by this job: no recycled pid is taken for it."""
    try:
        return f"OUT={job.folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def pss_mib(pid: int) -> float:
    """Memory with shared pages counted in part."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    match = re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)
    assert match
    return int(match[1]) / 1024


def ready(job: Job, times: int) -> None:
    """Wait until a process was parked so often."""
    words = "ranks can restart without importing"

    def look() -> bool:
        assert not job.said("no more warm standby|no warm standby"), job.stderr[-3000:]
        return job.stderr.count(words) >= times

    until(look, f"{times} times: {words}", 60.0)


def restarts(job: Job, n: int, found: Found, *, is_warm: bool) -> None:
    """Kill the rank so often; from the kill to each mark of the next cycle, medians."""
    taken: dict[str, list[float]] = {"imported": [], "context": [], "group": []}
    for cycle in range(n):
        rank = first(job, "group", cycle)
        if is_warm:
            ready(job, cycle + 1)
        killed_at = time.monotonic()
        kill(rank["pid"])
        first(job, "group", cycle + 1)
        for what, times in taken.items():
            times.append(notes(job, what, cycle + 1)[0]["at"] - killed_at)
    for what, times in taken.items():
        name = {"imported": "torch imported", "context": "CUDA context", "group": "NCCL group"}
        found.figure(f"SIGKILL to {name[what]}, s", sorted(times)[len(times) // 2])


@pytest.mark.gpu(20, 90)
def test_a_rank_restarts_from_a_parked_process(ft: Launcher, found: Found) -> None:
    """A parked process holds no CUDA context and no GPU memory, and restarts a CUDA rank."""
    arguments = "--nproc-per-node=1", f"--max-restarts={RESTARTS}", "--log-dir=logs"
    job = ft.start(
        *(*arguments, "--ft-warm-standby=true", "--ft-warm-standby-delay=0.2"),
        *("--ft-log-level=debug", ft.script(SCRIPT)),  # it says in each cycle when it is ready
    )
    rank = first(job, "group")
    ready(job, 1)
    used_mib = machine.used_mib()
    (pid,) = parked(job)
    found.figure("parked process, MiB (shared pages in part)", pss_mib(pid))
    found.figure("rank, MiB (shared pages in part)", pss_mib(rank["pid"]))
    found.figure("GPU memory in use with both, MiB", used_mib)
    found.note(f"device files of the parked process: {machine.device_files(pid) or 'none'}")
    found.note(f"of the rank: {machine.device_files(rank['pid']) or 'none'}")
    found.note(f"parked: pid {pid}; rank: pid {rank['pid']}; by nvidia-smi: {listed_by_smi()}")
    if not machine.is_stand_in():
        assert machine.has_context(rank["pid"]), "this test can tell a process with a context"
    assert not machine.has_context(pid)
    assert not machine.device_files(pid)
    restarts(job, RESTARTS, found, is_warm=True)
    started = job.events("worker_started")
    assert [event["is_warm"] for event in started] == [False] + [True] * RESTARTS


@pytest.mark.gpu(21, 75)
def test_a_rank_restarts_from_a_plain_start(ft: Launcher, found: Found) -> None:
    """The same without a parked process, to compare with."""
    arguments = "--nproc-per-node=1", f"--max-restarts={RESTARTS}", "--ft-warm-standby=false"
    job = ft.start(*arguments, ft.script(SCRIPT))
    restarts(job, RESTARTS, found, is_warm=False)


@pytest.mark.gpu(70, 90)
def test_a_rank_restarts_under_torchrun(ft: Launcher, found: Found) -> None:
    """The same under torchrun, to compare with; its ranks share no store between cycles."""
    n = min(2, RESTARTS)
    job = ft.start(
        *("--standalone", "--nproc-per-node=1", f"--max-restarts={n}", "--monitor-interval=0.1"),
        ft.script(SCRIPT),
        module=TORCHRUN,
        env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )
    try:
        restarts(job, n, found, is_warm=False)
    finally:
        job.signal(signal.SIGTERM)
        job.wait(30.0)
        outlived = [rank["pid"] for rank in notes(job, "imported") if is_of(rank["pid"], job)]
        found.note(f"ranks that outlived it: {outlived or 'none'}")
        for pid in outlived:
            kill(pid)
