"""examples/deploy/slurm.sbatch under a real Slurm, with other sizes and paths only."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.slurm import BOUND_S, Cluster, Job

TRAINS = """
import json, os, pathlib, signal, sys, time
here = pathlib.Path(os.getcwd())
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
checkpoint = here / "checkpoints" / "latest_checkpointed_iteration.txt"
first = int(checkpoint.read_text()) if checkpoint.exists() else 0
def tell(name, **more):
    facts = {"rank": rank, "world": world, "pid": os.getpid(), "launcher": os.getppid()}
    facts["node"] = os.environ["SLURMD_NODENAME"]
    with open(here / name, "a") as file:
        file.write(json.dumps({**facts, "first": first, **more}) + "\\n")
def save(step):
    if rank == 0:
        (here / "checkpoint").write_text(str(step))
        (here / "checkpoint").rename(checkpoint)
def on_signal(signum, frame):
    signal.signal(signum, signal.SIG_IGN)  # Slurm and the launcher both send it
    save(step)
    tell("saved", step=step)
    sys.exit(1)
signal.signal(signal.SIGTERM, on_signal)
step = first
tell("lives")
while not (here / "end").exists():
    time.sleep(0.02)
    step += 1
    if step % 10 == 0:
        save(step)
"""
"""Counts steps, saves them, and goes on from the last that was saved."""

SMALL = {
    "--nodes=4": "--nodes=2",
    "--nnodes 3:4": "--nnodes 2:2",
    "--nproc-per-node 8": "--nproc-per-node 2",
}


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Submits jobs in folders of their own; none of them outlives the test."""
    jobs: list[Job] = []

    def submitted(source: str, *options: str, sizes: Mapping[str, str] = SMALL) -> Job:
        folder = tmp_path / f"job{len(jobs)}"
        jobs.append(cluster.submit(folder, source, {**SMALL, **sizes}, *options))
        return jobs[-1]

    yield submitted
    for job in jobs:
        job.close()


def lives(job: Job, n: int, bound_s: float = BOUND_S) -> list[dict[str, Any]]:
    """Wait until so many ranks have been started, in all cycles and lives together."""
    job.until(lambda: len(job.lines("lives")) >= n, f"{n} lives of ranks", bound_s)
    return [json.loads(line) for line in job.lines("lives")]


@contextmanager
def standing_still(launcher: int) -> Iterator[None]:
    """A launcher and all that it started; slurmd and srun of its node go on."""
    pids = [launcher]
    for pid in pids:  # it grows meanwhile
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        pids += [int(child) for child in children.split()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def last_step(job: Job) -> int:
    """The last step that the training has saved."""
    return max(map(int, job.lines("checkpoints/latest_checkpointed_iteration.txt")), default=-1)


def end(job: Job) -> None:
    (job.folder / "end").touch()


def test_a_killed_rank_restarts_the_ranks_of_all_nodes(submit: Callable[..., Job]) -> None:
    """And the job completes, in its first life."""
    job = submit(TRAINS)
    first = lives(job, 4)
    assert sorted(life["rank"] for life in first) == [0, 1, 2, 3]
    assert {life["node"] for life in first} == {"n0", "n1"}
    assert "TresPerStep=cpu:128" in job.shown_step(), "the launchers have all CPUs of the job"

    os.kill(first[0]["pid"], signal.SIGKILL)

    lives(job, 8)
    end(job)
    shown = job.until_state("COMPLETED")
    assert (shown["ExitCode"], shown["Restarts"]) == ("0:0", "0")
    assert not job.processes()


HANGS = TRAINS.replace(
    "step = first\n",
    """
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
if rank == 3 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    with client.section("step"):
        tell("hangs")
        while True:  # a signal that asks for its stacks ends one pause
            signal.pause()
step = first
""",
)


def test_a_hang_is_found_and_all_ranks_restart(submit: Callable[..., Job]) -> None:
    """On whichever node it is; the incident is in the job's folder."""
    limit = "--max-restarts 10 --ft-rank-section-timeouts step:2"
    job = submit(HANGS, sizes={"--max-restarts 10": limit})

    lives(job, 3 + 4)  # the one that hangs has not begun to train
    end(job)
    job.until_state("COMPLETED")
    assert "section 'step'" in job.said
    assert job.said.count("incident 1 of cycle 0, evidence of") == 1, "once per job"
    assert list(job.folder.glob("logs/**/incidents/*/rank*.json"))


@pytest.mark.parametrize("code", [93, 2])
def test_a_job_whose_code_is_final_is_not_queued_again(
    submit: Callable[..., Job], code: int
) -> None:
    """And scontrol shows the code."""
    wrong = {"--max-restarts 10": "--max-restarts ten"} if code == 2 else {}
    job = submit("import sys; sys.exit(93)", sizes=wrong)

    shown = job.until_state("FAILED")
    assert (shown["ExitCode"], shown["Restarts"]) == (f"{code}:0", "0")


FAILS_IN_ITS_FIRST_LIFE = TRAINS.replace(
    "step = first\n",
    'step = first\nif os.environ.get("SLURM_RESTART_COUNT", "0") == "0": sys.exit(7)\n',
)


def test_a_job_without_restarts_left_is_queued_again(submit: Callable[..., Job]) -> None:
    """With a secret of its own; and it completes in its second life."""
    job = submit(FAILS_IN_ITS_FIRST_LIFE, sizes={"--max-restarts 10": "--max-restarts 1"})

    lives(job, 4)
    end(job)
    shown = job.until_state("COMPLETED")
    assert (shown["ExitCode"], shown["Restarts"]) == ("0:0", "1")


def saved(job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in job.lines("saved")]


def saved_ranks(job: Job) -> set[int]:
    return {entry["rank"] for entry in saved(job)}


def test_scancel_lets_the_ranks_save_and_leaves_nothing(submit: Callable[..., Job]) -> None:
    """Within KillWait; the job is not queued again."""
    job = submit(TRAINS, sizes={"    --term-timeout 90": "    --term-timeout 10"})
    lives(job, 4)

    job.scancel()

    job.until_state("CANCELLED")
    job.until(lambda: not job.processes(), "all processes of the job are gone")
    assert saved_ranks(job) == {0, 1, 2, 3}
    assert job.shown()["Restarts"] == "0"


SAVES_SLOWLY = TRAINS.replace(
    "    save(step)\n    tell", "    time.sleep(5)\n    save(step)\n    tell"
)


def test_scancel_leaves_ranks_that_save_slowly_their_time(submit: Callable[..., Job]) -> None:
    """Srun passes the signal on that slurmd has sent already: that is one wish, not two."""
    job = submit(SAVES_SLOWLY, sizes={"    --term-timeout 90": "    --term-timeout 15"})
    lives(job, 4)

    job.scancel()

    job.until_state("CANCELLED")
    job.until(lambda: not job.processes(), "all processes of the job are gone")
    assert saved_ranks(job) == {0, 1, 2, 3}, job.said


def no_noise(job: Job) -> None:
    """Nothing that sounds like a fault, where a signal was passed on."""
    for word in ("the parked process", "monitor of local rank", "trying again", "Traceback"):
        assert word not in job.said, job.said


def test_a_job_continues_from_its_checkpoint_after_its_time_limit(
    submit: Callable[..., Job],
) -> None:
    """The signal comes before the limit; ranks save, the job is queued again and goes on."""
    sizes = {
        "--time=24:00:00": "--time=2",
        "--signal=TERM@150": "--signal=TERM@60",  # sent up to 30 s earlier than that
        "    --term-timeout 90": "    --term-timeout 15",
    }
    job = submit(f"import torch\n{TRAINS}", sizes=sizes)  # torch: so that interpreters are parked

    first = lives(job, 8, BOUND_S * 4)
    # Rank 0 alone saves; another one that starts late may find its first checkpoint.
    assert [life["first"] for life in first[:4] if life["rank"] == 0] == [0]
    assert saved_ranks(job) == {0, 1, 2, 3}
    steps = {entry["step"] for entry in saved(job) if entry["rank"] == 0}
    (again,) = [life["first"] for life in first[4:] if life["rank"] == 0]
    assert again in steps
    assert job.shown()["Restarts"] == "1"
    assert "ranks can restart without importing" in job.said
    no_noise(job)
    end(job)
    assert job.until_state("COMPLETED")["ExitCode"] == "0:0"


def test_a_preempted_job_continues_when_the_other_is_done(
    submit: Callable[..., Job],
) -> None:
    """It is queued again by Slurm itself, whatever its launchers exit with."""
    job = submit(TRAINS, sizes={"    --term-timeout 90": "    --term-timeout 10"})
    lives(job, 4)
    urgent = submit(TRAINS, "--partition=high", "--nodes=3", sizes={"--nnodes 2:2": "--nnodes 3:3"})

    lives(urgent, 6)
    assert saved_ranks(job) == {0, 1, 2, 3}
    end(urgent)
    urgent.until_state("COMPLETED")

    again = lives(job, 8)
    steps = {entry["step"] for entry in saved(job) if entry["rank"] == 0}
    (continued,) = [life["first"] for life in again[4:] if life["rank"] == 0]
    assert continued in steps
    end(job)
    shown = job.until_state("COMPLETED")
    assert (shown["ExitCode"], shown["Restarts"]) == ("0:0", "1")


def test_a_spare_in_the_allocation_replaces_a_node_that_is_lost(
    cluster: Cluster, submit: Callable[..., Job]
) -> None:
    """Its slurmd and launcher die at once; the others go on, and the job completes."""
    job = submit(TRAINS, sizes={"--nodes=4": "--nodes=3"})
    first = lives(job, 4)
    lost = next(life["node"] for life in first if life["node"] != "n0")

    cluster.lose(lost)
    try:
        second = lives(job, 8)[4:]
        assert lost not in {life["node"] for life in second}
        assert sorted(life["rank"] for life in second) == [0, 1, 2, 3]
        end(job)
        shown = job.until_state("COMPLETED")
        assert (shown["ExitCode"], shown["Restarts"]) == ("0:0", "0")
    finally:
        cluster.bring_back(lost)


def test_a_launcher_that_is_killed_leaves_its_code_to_srun(submit: Callable[..., Job]) -> None:
    """A spare takes its place and the training ends well; srun says 137, and the job runs again.

    Its second life finds everything done, or nearly.
    """
    lasts = TRAINS.replace('"end").exists():', '"end").exists() or step < first + 200:')
    assert lasts != TRAINS
    job = submit(lasts, sizes={"--nodes=4": "--nodes=3"})
    first = lives(job, 4)
    launcher = next(life["launcher"] for life in first if life["node"] != "n0")

    os.kill(launcher, signal.SIGKILL)

    lives(job, 8)
    end(job)
    shown = job.until_state("COMPLETED")
    assert "Exited with exit code" not in job.said
    assert re.search("srun: error: n[12]: task [12]: Killed", job.said)
    assert (shown["ExitCode"], shown["Restarts"]) == ("0:0", "1")


def test_the_job_goes_on_when_the_launcher_of_node_0_is_killed(submit: Callable[..., Job]) -> None:
    """It led: another leads, and the spare has its place. srun says 137, so the job runs again."""
    lasts = TRAINS.replace('"end").exists():', '"end").exists() or step < first + 200:')
    job = submit(lasts, sizes={"--nodes=4": "--nodes=3"})
    first = lives(job, 4)
    nodes = {life["node"] for life in first}
    if "n0" not in nodes:
        pytest.skip("the launcher of node 0 is the spare")
    launcher = next(life["launcher"] for life in first if life["node"] == "n0")
    job.until(lambda: "waits as a spare" in job.said, "the spare has a vote")

    os.kill(launcher, signal.SIGKILL)

    second = lives(job, 8)[4:]
    assert {life["node"] for life in second} == {"n1", "n2"}
    end(job)
    shown = job.until_state("COMPLETED")
    assert re.search("srun: error: n0: task 0: Killed", job.said)
    assert (shown["ExitCode"], shown["Restarts"]) == ("0:0", "1")


def test_the_job_goes_on_when_node_0_is_silent(submit: Callable[..., Job]) -> None:
    """Its launcher, monitors and ranks stand still: another leads. When they wake they join it."""
    job = submit(TRAINS, sizes={"--nodes=4": "--nodes=3"})
    first = lives(job, 4)
    nodes = {life["node"] for life in first}
    if "n0" not in nodes:
        pytest.skip("the launcher of node 0 is the spare")
    launcher = next(life["launcher"] for life in first if life["node"] == "n0")
    job.until(lambda: "waits as a spare" in job.said, "the spare has joined")
    job.until(lambda: last_step(job) >= 500, "some beats later all know that it has a vote")

    with standing_still(launcher):
        second = lives(job, 8)[4:]
        assert {life["node"] for life in second} == {"n1", "n2"}

    next_leader = re.compile(r"\[n0\] holdfast: the launcher at \S+ leads the job now")
    job.until(lambda: next_leader.search(job.said), "node 0 has found the next leader")
    end(job)
    shown = job.until_state("COMPLETED")
    assert (shown["ExitCode"], shown["Restarts"]) == ("0:0", "0")
    assert not job.processes()
