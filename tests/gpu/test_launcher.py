"""CUDA ranks under ``ft_launcher``: killed, hung, failed; found, explained, restarted."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.health import nvml
from holdfast.health.nvml import NothingHappenedError, NvmlError
from holdfast.health.xid import Xids
from tests.gpu import machine
from tests.gpu.machine import listed_by_smi
from tests.gpu.report import Found
from tests.real.harness import Job, Launcher, kill
from tests.waiting import until

PLAIN = "--nproc-per-node=1", "--log-dir=logs", "--ft-warm-standby=false"
HELD_BY_OTHER_MIB = 2048
_START_S = 60.0
"""Of a CUDA rank: the import of torch from a cold disk, the context, NCCL."""

HOLDER = f"""
from tests.gpu.device import gpu
from tests.gpu.rank import note, wait_for_ever
gpu.begin()
held = gpu.allocate({HELD_BY_OTHER_MIB} << 20)
note("held")
wait_for_ever()
"""
WAITS = """
from tests.gpu.rank import note, wait_for_ever
note("up")
wait_for_ever()
"""
BIG = """
from tests.gpu.device import gpu
from tests.gpu.rank import CYCLE, note, wait_for_ever
gpu.begin()
n_bytes = min(100 << 30, gpu.free_bytes() * 8 // 10)
held = gpu.allocate(n_bytes)
note("allocated", gib=n_bytes / (1 << 30))
if CYCLE == 0:
    wait_for_ever()
"""
FAULTY = """
import os
import torch
import torch.distributed as dist
from holdfast.fault_tolerance import RankMonitorClient
from tests.gpu.device import gpu
from tests.gpu.rank import CYCLE, RANK, note, wait_for_ever

FAULTS = {
    "hung kernel": lambda: (gpu.hang_kernel(3600.0), gpu.synchronize()),
    "device-side assert": gpu.fail_assert,
    "illegal address": gpu.access_illegally,
    "out of memory": gpu.run_out_of_memory,
    "hung collective": lambda: reduce(),
}

def reduce():
    # Rank 0 waits for rank 1: in a collective; where both have one GPU, while NCCL connects.
    dist.init_process_group(gpu.backend)
    ones = gpu.tensor(1.0)
    if gpu.backend == "gloo" or torch.cuda.device_count() > 1:
        dist.all_reduce(ones)
        gpu.synchronize()
    if RANK == 0:
        dist.all_reduce(ones)
        gpu.synchronize()

client = RankMonitorClient()
client.init_workload_monitoring()
gpu.begin()
gpu.tensor(1.0).sum()
note("ready")
if CYCLE == 0 and RANK:
    reduce()
elif CYCLE == 0:
    with client.section("step"):
        note("fault")
        FAULTS[os.environ["FAULT"]]()
if CYCLE == 0:
    wait_for_ever()
client.shutdown_workload_monitoring()
"""


def notes(job: Job, what: str, cycle: int | None = None) -> list[dict[str, Any]]:
    """What ranks wrote down."""
    lines = [json.loads(line) for line in job.written("notes")]
    return [line for line in lines if line["what"] == what and cycle in (None, line["cycle"])]


def first(job: Job, what: str, cycle: int = 0, bound_s: float = _START_S) -> dict[str, Any]:
    """The first such note, waited for."""

    def look() -> list[dict[str, Any]]:
        assert job.process.poll() is None or notes(job, what, cycle), job.stderr[-3000:]
        return notes(job, what, cycle)

    try:
        found: dict[str, Any] = until(look, f"{what!r} in cycle {cycle}", bound_s)[0]
    except AssertionError as error:
        raise AssertionError(f"{error}\n{job.stderr[-3000:]}") from None
    return found


def health_process(job: Job) -> int:
    """Pid of the launcher's."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"host_health_main" not in entry.read_bytes():
                continue
            status = (entry.parent / "stat").read_text()
        except OSError:
            continue
        if int(status.rpartition(")")[2].split()[1]) == job.process.pid:
            return int(entry.parent.name)
    raise AssertionError("the launcher has no health process")


@pytest.mark.gpu(1, 120)
def test_memory_of_a_killed_rank_is_waited_for(
    ft: Launcher, start: Callable[..., Any], tmp_path: Path, found: Found
) -> None:
    """A restart waits until the memory of a killed rank is free, and not for that of others."""
    before_mib = machine.used_mib()
    holder = start(HOLDER)
    until((tmp_path / "notes").exists, "another process's memory", _START_S)
    job = ft.start("--max-restarts=1", *PLAIN, ft.script(BIG))
    rank = first(job, "allocated")
    found.figure("allocated, GiB", rank["gib"])
    found.figure("used before all, MiB", before_mib)
    full_mib = machine.used_mib()
    found.figure("used before the kill, MiB", full_mib)
    found.figure("pids are listed", rank["pid"] in machine.holders())
    watched = health_process(job)

    killed_at = time.monotonic()
    kill(rank["pid"])
    free_mib = full_mib - rank["gib"] * 1024 * 0.9
    until(lambda: machine.used_mib() < free_mib, "the memory to be free", _START_S)
    found.figure("SIGKILL to memory free, s", time.monotonic() - killed_at)

    again = first(job, "allocated", 1)
    found.figure("SIGKILL to memory allocated again, s", again["at"] - killed_at)
    assert job.wait(_START_S) == 0, job.stderr[-3000:]
    assert holder.poll() is None, "the other process still holds its memory"
    (event,) = [e for e in job.events("gpu_memory") if "is free after" in e["text"]]
    found.note(event["text"])
    found.figure("waited for, s", float(event["text"].partition("after ")[2].split()[0]))
    assert watched not in machine.holders()


@pytest.mark.gpu(2, 60)
def test_the_health_process_keeps_no_context(ft: Launcher, found: Found) -> None:
    """The health process holds no CUDA context and no GPU memory; its open files are printed."""
    before_mib = machine.used_mib()
    script = ft.script(WAITS)
    arguments = "--ft-node-health-check-interval=0.2", "--max-restarts=0"
    job = ft.start(*arguments, *PLAIN, script)
    first(job, "up")
    pid = health_process(job)
    time.sleep(1.0)  # some looks
    files = machine.device_files(pid)
    found.figure("GPU memory with it, MiB more", machine.used_mib() - before_mib)
    status = Path(f"/proc/{pid}/status").read_text()
    found.figure("resident, MiB", int(status.partition("VmRSS:")[2].split()[0]) / 1024)
    blocks = [file for file in files if re.fullmatch(r"/dev/nvidia\d+", file)]
    found.note(f"device files of pid {pid}: {files or 'none'}; by nvidia-smi: {listed_by_smi()}")
    found.note(
        f"keeps {', '.join(blocks)} open: nvidia-smi --gpu-reset may refuse while the job runs"
        if blocks
        else "keeps no GPU's device file open: it does not stand in the way of a reset"
    )
    # NVML of driver 580 opens /dev/nvidia-uvm as well, so that file proves no context here.
    assert pid not in machine.holders()
    assert machine.used_mib() - before_mib < 64


@pytest.mark.gpu(10, 75)
@pytest.mark.parametrize(
    ("fault", "explained"),
    [
        ("hung kernel", r"section 'step'|hung"),
        ("device-side assert", r"device-side assert"),
        ("illegal address", r"illegal memory access"),
        ("out of memory", r"out of GPU memory"),
        ("hung collective", r"section 'step'|hung"),
    ],
    ids=["hung kernel", "assert", "illegal address", "out of memory", "hung collective"],
)
def test_a_cuda_rank_is_found_explained_and_restarted(
    ft: Launcher, tmp_path: Path, fault: str, explained: str, found: Found
) -> None:
    """A CUDA rank that fails is found, with its cause, and a new process uses the GPU again."""
    xids = _Xids()
    before_mib = machine.used_mib()
    n_ranks = 2 if fault == "hung collective" else 1
    job = ft.start(
        *("--max-restarts=1", *PLAIN, f"--nproc-per-node={n_ranks}"),
        *("--ft-rank-section-timeouts=step:3", "--workers-stop-timeout=2"),
        ft.script(FAULTY),
        env={"FAULT": fault, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", **_recorder(tmp_path)},
    )
    at = first(job, "fault")["at"]
    if fault == "hung collective":
        found.note(_ask_for_record(tmp_path, job))
    again = first(job, "ready", 1)
    found.figure("fault to a new context, s", again["at"] - at)
    assert job.wait(_START_S) == 0, job.stderr[-3000:]
    said = job.said(explained)
    assert said, job.stderr[-3000:]
    cause = job.said(r"rank 0 \(pid \d+\): .*")
    found.note(" ".join(cause[0].split()) if cause else job.stderr[:300])
    found.note(f"Xids: {xids.heard()}")
    texts = [e["text"] for e in job.events("gpu_memory")]
    found.note(texts[-1] if texts else "the wait for GPU memory was not told")
    if "hung" in fault:
        (record,) = job.hung_ranks()
        stacks = record["stacks_text"]
        assert "synchronize" in stacks or "all_reduce" in stacks or "init_" in stacks, stacks
        found.note("stack: " + " | ".join(re.findall(r'File "[^"]*", line \d+ in \w+', stacks)[:3]))
    until(lambda: machine.used_mib() < before_mib + 300, "the GPU's memory is free", 20.0)


def _recorder(folder: Path) -> dict[str, str]:
    """Has torch's NCCL write the flight record of a rank when its pipe is written to."""
    return {
        "TORCH_FR_BUFFER_SIZE": "200",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "200",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/pipe_",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{folder}/trace_",
        "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/trace_",
    }


def _ask_for_record(folder: Path, job: Job) -> str:
    """Whether a rank that is blocked in NCCL still writes its record, before it is killed."""
    asked_at = time.monotonic()
    is_asked = False
    while time.monotonic() < asked_at + 20.0 and not notes(job, "ready", 1):
        if not is_asked:
            with contextlib.suppress(OSError):  # no pipe yet, or nobody reads it
                pipe = os.open(f"{folder}/pipe_0.pipe", os.O_WRONLY | os.O_NONBLOCK)
                os.write(pipe, b"1")
                os.close(pipe)
                is_asked = True
        records = [path for path in folder.glob("trace_*0") if path.stat().st_size]
        if records:
            size, took_s = records[0].stat().st_size, time.monotonic() - asked_at
            return f"flight record of the blocked rank: {size} bytes, after {took_s:.1f} s"
        time.sleep(0.02)
    how = "was" if is_asked else "could not be"
    return f"no flight record of the blocked rank: its pipe {how} written to"


class _Xids:
    """Every Xid from now on, as the driver tells them, and as holdfast finds whose they are."""

    def __init__(self) -> None:
        self._why = ""
        self._ours = Xids(os.environ.get("CUDA_VISIBLE_DEVICES"), 1)
        self._ours.look()
        try:
            self._library = nvml.load()
            self._events = self._library.ask("nvmlEventSetCreate")
            gpu = self._library.visible(os.environ.get("CUDA_VISIBLE_DEVICES"), 1)[0]
            self._library.ask("nvmlDeviceRegisterEvents", gpu.handle, 0x8, self._events)
        except NvmlError as error:
            self._why = f"not told: {error}"

    def heard(self) -> str:
        """Their numbers, and what holdfast makes of them."""
        numbers: list[int] = []
        while not self._why and len(numbers) < 100:
            try:
                event = self._library.ask("nvmlEventSetWait_v2", self._events, 50)
                numbers.append(int(event.eventData))
            except NothingHappenedError:
                break
            except NvmlError as error:
                self._why = f"not told: {error}"
        if self._why:
            return self._why
        by_gpu = self._ours._count_events(self._library)
        return f"{', '.join(map(str, numbers)) or 'none'}; times of each, by GPU: {by_gpu}"
