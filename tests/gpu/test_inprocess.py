"""Restart in place on a GPU: what is kept, what is freed, and what cannot be restarted."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import machine
from tests.gpu.report import Found
from tests.gpu.test_launcher import PLAIN, notes
from tests.real.harness import Launcher
from tests.real.ranks import Ranks, RankStarter

RESTARTS = int(os.environ.get("HOLDFAST_GPU_IN_PLACE") or 200)
_SETTLED = 0.15
"""Share of the restarts at the beginning that is not compared with: libraries fill their caches."""

BEGIN = """
import threading
from tests.gpu.device import gpu
from holdfast.inprocess.health_check import CudaHealthCheck

def calmly(soft=20, hard=40, **more):  # a first NCCL group takes its time
    limits = {"soft_timeout": seconds(soft), "hard_timeout": seconds(hard)}
    limits["termination_grace_time"] = seconds(0.5)
    # An error of a scenario must not restart it for ever.
    retry = inprocess.initialize.RetryController(max_iterations=int(os.environ.get("N", 0)) + 50)
    return wrapper(**{**QUICK, "max_start_faults": None, **limits, "initialize": retry, **more})

def grouped():
    dist.init_process_group(gpu.backend)
    ones = gpu.tensor(1.0)
    dist.all_reduce(ones)
    gpu.synchronize()
    return int(ones.item())

gpu.begin()
"""
MANY = """
weights = gpu.tensor(1.0, 2.0, 3.0)
kept = gpu.allocate(64 << 20)
place, reserved = weights.data_ptr(), gpu.reserved_bytes()
N, UNTIL = int(os.environ["N"]), time.monotonic() + 60.0
fault_at = 0.0

def rss_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

@calmly()
def train(call: CallWrapper):
    global fault_at
    entered = time.monotonic()
    assert grouped() == 1
    ready = time.monotonic()
    if call.iteration:
        note(
            entered_ms=(entered - fault_at) * 1e3,
            group_ms=(ready - fault_at) * 1e3,
            descriptors=len(os.listdir("/proc/self/fd")),
            threads=len(os.listdir("/proc/self/task")),
            rss_mib=rss_mib(),
            gpu_mib=gpu.used_mib(),
        )
    if call.iteration >= N or ready > UNTIL:
        dist.destroy_process_group()
        return call.iteration
    time.sleep(0.03)  # a step: groups are destroyed in the background meanwhile
    fault_at = time.monotonic()
    raise RuntimeError("a fault on order")

run(train)
note(weights=weights.tolist(), is_same=weights.data_ptr() == place,
     reserved=[reserved, gpu.reserved_bytes()])
"""
HUNG_KERNEL = """
state = {}
@calmly(soft=1, hard=20)
def train(call: CallWrapper):
    if call.iteration:
        note(again_s=time.monotonic() - state["at"])
        return call.iteration
    with call.disable_hang_protection():
        assert grouped() == 1
    state["at"] = time.monotonic()
    gpu.hang_kernel(4.0)
    gpu.synchronize()
    while True:
        time.sleep(0.05)

run(train)
"""
ENDLESS_KERNEL = """
@calmly(soft=2, hard=4, monitor_process_logfile=os.environ["OUT"] + "/guard.log")
def train(call: CallWrapper):
    with call.disable_hang_protection():
        assert grouped() == 1
    note(hangs_at=time.monotonic())
    gpu.hang_kernel(3600.0)
    gpu.synchronize()

run(train)
"""
LOST_CONTEXT = """
@calmly()
def train(call: CallWrapper):
    note(iteration=call.iteration)
    if os.environ["GROUP"]:
        assert grouped() == 1
    if call.iteration < 3:
        gpu.fail_assert()
    return call.iteration

run(train)
"""
LOST_UNDER_LAUNCHER = """
import os
import holdfast.inprocess as inprocess
from tests.gpu.device import gpu
from tests.gpu.rank import CYCLE, note

gpu.begin()

@inprocess.Wrapper(
    store_factory=inprocess.store.FileStore,
    store_kwargs={"file_name": f"{os.environ['OUT']}/store{CYCLE}"},
)
def train(call: inprocess.CallWrapper):
    note("called", iteration=call.iteration)
    if call.iteration == 0:
        raise RuntimeError("a fault on order: restarted in place")
    if CYCLE == 0:
        gpu.fail_assert()
    return gpu.tensor(2.0).item()

note("returned", value=train())
"""
SILENT_DEVICE = """
@calmly(health_check=CudaHealthCheck(seconds(1)))
def train(call: CallWrapper):
    note(iteration=call.iteration)
    if call.iteration == 0:
        gpu.hang_kernel(8.0)
        raise RuntimeError("a fault on order")
    return call.iteration

run(train)
"""
STREAMS = """
total = gpu.tensor(0.0)
stream = gpu.side_stream()
state = {}
@calmly()
def train(call: CallWrapper):
    if call.iteration:
        note(again_s=time.monotonic() - state["at"])
    with stream:
        gpu.hang_kernel(0.5)
        total.add_(1)
    state["at"] = time.monotonic()
    if call.iteration < 3:
        raise RuntimeError("a fault on order")
    gpu.synchronize()
    return total.item()

run(train)
"""
GROUPS = """
state = {}
@calmly(abort=inprocess.abort.AbortTorchDistributed(os.environ["OUT"] + "/trace"))
def train(call: CallWrapper):
    if call.iteration:
        note(again_ms=(time.monotonic() - state["at"]) * 1e3)
    assert grouped() == 1
    groups = [dist.group.WORLD, *(dist.new_group() for _ in range(3))]
    other = dist.new_group(backend="gloo")
    ones = [gpu.tensor(1.0) for _ in groups]
    if call.iteration < 3:
        gpu.hang_kernel(0.5)  # operations of all groups wait behind it
    for group, one in zip(groups, ones):
        dist.all_reduce(one, group=group, async_op=True)
    state["at"] = time.monotonic()
    if call.iteration < 3:
        raise RuntimeError("a fault on order")
    gpu.synchronize()
    return call.iteration

run(train)
"""
TWO = """
state = {}
@calmly()
def train(call: CallWrapper):
    if call.iteration:
        note(again_s=time.monotonic() - state["at"])
    if now()[1] != 2:
        os._exit(8)  # the other rank was refused, and has left
    try:
        dist.init_process_group(os.environ["BACKEND"] or gpu.backend)
        ones = gpu.tensor(1.0)
        dist.all_reduce(ones)
        gpu.synchronize()
    except dist.DistBackendError as error:
        note(refused=str(error))
        os._exit(7)
    assert ones.item() == 2
    if call.iteration == 0:
        state["at"] = time.monotonic()
        if RANK == 1:
            time.sleep(0.5)
            raise RuntimeError("a fault on order")
        dist.all_reduce(ones)  # blocked: in it, or where its result is wanted
        gpu.synchronize()
    dist.destroy_process_group()
    return call.iteration

run(train)
"""

CREATION = """
state = {}
@calmly(soft=6, hard=12)
def train(call: CallWrapper):
    if call.iteration:
        if state:
            note(again_s=time.monotonic() - state["at"])
        return call.iteration
    dist.init_process_group(gpu.backend)
    if RANK == int(os.environ["FAILS"]):
        time.sleep(1.0)
        raise RuntimeError("a fault on order")
    state["at"] = time.monotonic()
    dist.all_reduce(gpu.tensor(1.0))  # makes the communicator, for which it takes two
    gpu.synchronize()

run(train)
"""
NCCL = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # its watchdog leaves errors to the Wrapper
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
}


def job_of(ranks: RankStarter, n: int, source: str, **env: str) -> Ranks:
    """Start ranks, each with a GPU of its own where there are as many."""
    if n == 1 or machine.n_gpus() < n:
        env.setdefault("LOCAL_RANK", "0")
    return ranks(n, BEGIN + source, **env)


def ended(job: Ranks, *codes: int, bound_s: float = 90.0) -> None:
    """All ranks have ended, with these exit codes."""
    got = job.wait(bound_s)
    tails = "\n".join(job.output(rank)[-2000:] for rank in range(len(got)))
    assert got == list(codes), f"exit codes {got}\n{tails}\n{job.notes(0)[-3:]}"


@pytest.mark.gpu(30, 110)
def test_nothing_grows_over_many_restarts(ranks: RankStarter, found: Found) -> None:
    """Restarts in place with NCCL keep context, allocator and weights, and leave nothing behind."""
    job = job_of(ranks, 1, MANY, N=str(RESTARTS))
    ended(job, 0)
    lives = [note for note in job.notes(0) if "entered_ms" in note]
    found.figure("restarts", len(lives))
    for key, name in (("entered_ms", "function again"), ("group_ms", "NCCL group again")):
        times = sorted(life[key] for life in lives)
        found.figure(f"fault to {name}, ms, median", times[len(times) // 2])
        found.figure(f"fault to {name}, ms, max", times[-1])
    settled = lives[int(len(lives) * _SETTLED) :]
    quarter = max(1, len(settled) // 4)
    for key, most in (("descriptors", 2), ("threads", 2), ("gpu_mib", 64), ("rss_mib", 40)):
        early = statistics.median(life[key] for life in settled[:quarter])
        late = statistics.median(life[key] for life in settled[-quarter:])
        found.figure(f"{key}, early", early)
        found.figure(f"{key}, late", late)
        assert late - early <= most, f"{key} grows: {early} to {late}"
    (last,) = [note for note in job.notes(0) if "weights" in note]
    assert last["weights"] == [1.0, 2.0, 3.0]
    assert last["is_same"], "the memory is where it was"
    found.note(f"bytes held by the allocator before and after: {last['reserved']}")
    assert last["reserved"][1] <= last["reserved"][0] + (64 << 20)


@pytest.mark.gpu(31, 60)
def test_a_rank_comes_back_from_a_kernel_that_ends(ranks: RankStarter, found: Found) -> None:
    """A rank that waits for a kernel 3 s longer than it may is restarted in place after it."""
    job = job_of(ranks, 1, HUNG_KERNEL)
    ended(job, 0)
    (again_s,) = job.notes(0, "again_s")
    found.figure("hang to function again, s", again_s)
    assert 3.5 < again_s < 15.0, "not before the kernel has ended"


@pytest.mark.gpu(32, 60)
def test_a_rank_in_an_endless_kernel_is_ended(ranks: RankStarter, found: Found) -> None:
    """A rank in a kernel that never ends is killed after hard_timeout, with its stacks."""
    before_mib = machine.used_mib()
    job = job_of(ranks, 1, ENDLESS_KERNEL)
    code = job.processes[0].wait(60.0)
    at = time.monotonic()
    assert code < 0, job.output(0)[-2000:]
    found.figure("hang to end of the process, s (hard_timeout 4)", at - job.notes(0, "hangs_at")[0])
    said = (job.folder / "guard.log").read_text()
    assert "synchronize" in said, f"the stack says where\n{said[-2000:]}"
    found.note(f"ended with {code}")
    while machine.used_mib() > before_mib + 300:
        assert time.monotonic() < at + 30.0, "its GPU memory is not given back"
        time.sleep(0.01)
    found.figure("end of the process to memory free, s", time.monotonic() - at)


@pytest.mark.gpu(33, 60)
@pytest.mark.parametrize("group", ["", "1"], ids=["without a group", "with an NCCL group"])
def test_a_rank_with_a_lost_context_leaves(ranks: RankStarter, group: str, found: Found) -> None:
    """After a device-side assert a rank leaves at once, as no call to the GPU works any more."""
    job = job_of(ranks, 1, LOST_CONTEXT, GROUP=group)
    code = job.wait(60.0)[0]
    found.note(f"ended with {code}: {[*job.notes(0, 'text'), 'no last words'][0][:200]}")
    assert job.notes(0, "iteration") == [0], "it is not called again"
    if group and code == -6:
        found.note("NCCL's watchdog ended the process before the Wrapper could")
        return
    assert job.notes(0, "raised") == ["HealthCheckError"], job.output(0)[-2000:]
    assert "CUDA context is lost" in job.notes(0, "text")[0]


@pytest.mark.gpu(33, 60)
def test_a_launcher_replaces_a_rank_with_a_lost_context(ft: Launcher, found: Found) -> None:
    """A rank whose context is lost leaves its Wrapper; the launcher's next process continues."""
    job = ft.start("--max-restarts=1", *PLAIN, ft.script(LOST_UNDER_LAUNCHER))
    assert job.wait(55.0) == 0, job.stderr[-3000:]
    called = [(note["cycle"], note["iteration"]) for note in notes(job, "called")]
    assert called == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [note["value"] for note in notes(job, "returned")] == [2.0]
    cause = job.said(r"rank 0 \(pid \d+\): .*")
    found.note(cause[0] if cause else "no cause is reported")
    second = notes(job, "called", 1)[0]["at"] - notes(job, "called", 0)[1]["at"]
    found.figure("assert to function again, in a new process, s", second)


@pytest.mark.gpu(34, 45)
def test_a_device_that_does_not_answer_ends_its_rank(ranks: RankStarter, found: Found) -> None:
    """``CudaHealthCheck`` finds a device that is busy for longer than its timeout."""
    job = job_of(ranks, 1, SILENT_DEVICE)
    ended(job, 5)
    (text,) = job.notes(0, "text")
    found.note(text)
    assert "did not end within" in text
    assert job.notes(0, "iteration") == [0]


@pytest.mark.gpu(35, 45)
def test_pending_work_of_a_stream_survives(ranks: RankStarter, found: Found) -> None:
    """Work that a side stream has not done at a restart is done once, and not waited for."""
    job = job_of(ranks, 1, STREAMS)
    ended(job, 0)
    assert job.notes(0, "returned") == [4.0]
    found.figure("fault to function again, s, max", max(job.notes(0, "again_s")))


@pytest.mark.gpu(36, 60)
def test_several_groups_are_aborted_and_recorded(
    ranks: RankStarter, tmp_path: Path, found: Found
) -> None:
    """Groups with pending operations are aborted together, after the flight record was written."""
    job = job_of(ranks, 1, GROUPS, TORCH_FR_BUFFER_SIZE="200", TORCH_NCCL_TRACE_BUFFER_SIZE="200")
    ended(job, 0)
    for number, again_ms in enumerate(job.notes(0, "again_ms"), 1):
        found.figure(f"fault to function again, ms, restart {number}", again_ms)
    records = sorted(job.folder.glob("trace/iter_*/rank_0"))
    found.note(f"flight records: {[record.stat().st_size for record in records]} bytes")
    assert len(records) == 3
    if not machine.is_stand_in():  # torch records no group of one rank of gloo
        assert all(b"all_reduce" in record.read_bytes() for record in records)


@pytest.mark.gpu(40, 60)
def test_two_ranks_of_one_gpu_restart_with_gloo(ranks: RankStarter, found: Found) -> None:
    """Two ranks with CUDA tensors and gloo: the one that waits is freed and both continue."""
    job = job_of(ranks, 2, TWO, BACKEND="gloo")
    ended(job, 0, 0)
    found.figure("fault to function again, s, of the rank that waited", job.notes(0, "again_s")[0])


@pytest.mark.gpu(41, 75)
def test_two_ranks_restart_with_nccl(ranks: RankStarter, found: Found) -> None:
    """Two ranks in an NCCL collective: the one that waits is freed, and both continue."""
    job = job_of(ranks, 2, TWO, BACKEND="", **NCCL)
    codes = job.wait(70.0)
    refused: list[Any] = [*job.notes(0, "refused"), *job.notes(1, "refused")]
    if refused:
        pytest.skip(f"NCCL refuses two ranks on one GPU: {refused[0].splitlines()[-1][:150]}")
    assert codes == [0, 0], job.output(0)[-2000:] + job.output(1)[-2000:]
    found.figure("fault to function again, s, of the rank that waited", job.notes(0, "again_s")[0])


def _waits_for_a_communicator(job: Ranks, rank: int, found: Found) -> None:
    codes = job.wait(55.0)
    for again_s in job.notes(rank, "again_s"):
        found.figure("wait to function again, s (the fault comes after 1)", again_s)
    found.note(f"exit codes {codes}; rank {rank}: {job.output(rank).strip()[-200:]}")
    assert codes == [0, 0], "the rank that waited was killed after hard_timeout"


@pytest.mark.gpu(42, 60)
def test_a_rank_that_waits_for_the_identifier_of_a_communicator_is_freed(
    ranks: RankStarter, found: Found
) -> None:
    """A rank that waits for NCCL's identifier, which a rank that failed was to make, is freed."""
    _waits_for_a_communicator(job_of(ranks, 2, CREATION, **NCCL, FAILS="0"), 1, found)


@pytest.mark.gpu(43, 60)
@pytest.mark.parametrize("nonblocking", ["0", "1"], ids=["blocking", "nonblocking"])
def test_a_rank_whose_nccl_waits_for_peers_is_freed(
    ranks: RankStarter, nonblocking: str, found: Found
) -> None:
    """A rank that waits in NCCL's start-up for a rank that failed is freed, and not killed."""
    env = {**NCCL, "TORCH_NCCL_USE_COMM_NONBLOCKING": nonblocking, "FAILS": "1"}
    _waits_for_a_communicator(job_of(ranks, 2, CREATION, **env), 0, found)
