"""Snapshots on disk: a job ends, and another one goes on from where it was."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")

from holdfast.arena import snapshot_files
from holdfast.arena.pure.tensors_head import parse
from tests.real.harness import Job, Launcher
from tests.real.nodes import Nodes
from tests.real.test_launcher import may_mount
from tests.real.test_snapshots import (
    COUNTING,
    HAS_MEMORY,
    LONG_S,
    TRAINING,
    began,
    ends,
    faulty,
    said,
)
from tests.waiting import until

pytestmark = pytest.mark.timeout(900)


def snapshots(folder: Path) -> dict[int, Path]:
    """By step."""
    return {int(it.name.split("-")[1]): it for it in folder.iterdir()}


def start(
    ft: Launcher,
    folder: Path,
    faults: str = "",
    *more: str,
    source: str = COUNTING,
    steps: int = 30,
    prefix: Sequence[str] = (),
) -> Job:
    return ft.start(
        "--nproc-per-node=2", "--max-restarts=0", "--log-dir=logs", "--ft-warm-standby=false",
        f"--ft-snapshot-dir={folder}", *more, ft.script(source),
        env={"FAULTS": faults, "STEPS": str(steps), "KEPT": str(folder)}, prefix=prefix,
    )  # fmt: skip


def failed_at(ft: Launcher, folder: Path, step: int, source: str = COUNTING) -> int:
    """A job that fails after so many steps; the step of the snapshot that it leaves."""
    before = set(snapshots(folder))
    job = start(ft, folder, f"raise:0:{step}:0", source=source)
    assert job.wait(LONG_S) == 1, job.stderr
    [left] = set(snapshots(folder)) - before
    assert f"the snapshot of step {left}, ranks 0,1 of 2, is in {folder}/" in job.stderr
    return left


def test_a_job_that_ends_in_failure_is_continued_by_the_next_one(
    ft: Launcher, tmp_path: Path
) -> None:
    """From the last step or the one before, with the weights of a job that nothing disturbed."""
    folder = tmp_path / "kept"
    folder.mkdir()
    step = failed_at(ft, folder, 20, TRAINING)
    assert step in (18, 19)
    [snapshot] = folder.iterdir()
    assert {it.name for it in snapshot.iterdir()} == {
        "rank-0.safetensors", "rank-1.safetensors", "ranks-0.json",
    }  # fmt: skip
    for file in snapshot.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600

    second = start(ft, folder, source=TRAINING)
    assert second.wait(LONG_S) == 0, second.stderr
    assert began(second, 0) == step
    [restored] = second.events("snapshot_restored")
    assert (restored["step"], restored["file"]) == (step, snapshot.name)
    assert list(folder.iterdir()) == [], "the same command begins anew after a success"

    undisturbed = start(ft, folder, source=TRAINING)
    assert undisturbed.wait(LONG_S) == 0, undisturbed.stderr
    assert began(undisturbed, 0) == 0
    assert ends(second) == ends(undisturbed)


def rescue(job: Job, to: Path) -> int:
    """``holdfast rescue`` writes a snapshot of the job; its step."""
    to.mkdir()
    run = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "rescue", str(job.run_dir), "--to", str(to)],
        capture_output=True, text=True, check=False, timeout=LONG_S,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    [(step, path)] = snapshots(to).items()
    found = snapshot_files.read_one(str(path))
    assert ({*found.files}, found.problems) == ({0, 1}, ())
    for rank in found.files:
        assert parse(memoryview((path / f"rank-{rank}.safetensors").read_bytes())).placed
    return step


def test_a_job_that_is_preempted_leaves_its_newest_snapshot_and_only_that(
    ft: Launcher, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    old = failed_at(ft, folder, 5)
    job = start(ft, folder, steps=1_000_000)
    until(lambda: said(job, "step10"), "it trains", LONG_S)
    rescued = rescue(job, tmp_path / "newest")
    names = (tmp_path / f"later{n}" for n in itertools.count())
    later = until(lambda: (step := rescue(job, next(names))) > rescued and step, "it goes on")
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.wait(LONG_S) == 1, job.stderr
    [step] = snapshots(folder)
    assert step >= later > rescued >= 9 > old


def damaged(file: Path) -> None:
    """One byte of its tensors is another one."""
    content = bytearray(file.read_bytes())
    content[-8] ^= 1
    file.write_bytes(content)


def two_steps(ft: Launcher, folder: Path, source: str = COUNTING) -> tuple[int, int]:
    """A folder with two whole snapshots of one training; their steps."""
    aside = folder.with_name("aside")
    for it in (folder, aside):
        it.mkdir()
    older = failed_at(ft, aside, 10, source)
    newer = failed_at(ft, folder, 20, source)
    shutil.move(snapshots(aside)[older], folder)
    return older, newer


def test_a_file_that_was_altered_is_refused_by_all_and_an_older_snapshot_is_used(
    ft: Launcher, tmp_path: Path
) -> None:
    """It costs one restart, and no later job begins from it."""
    folder = tmp_path / "kept"
    older, newer = two_steps(ft, folder, TRAINING)
    damaged(snapshots(folder)[newer] / "rank-1.safetensors")
    job = start(ft, folder, "raise:1:15:0", "--max-restarts=1", source=TRAINING)
    assert job.wait(LONG_S) == 1, job.stderr
    [refused] = job.events("snapshot_refused")
    assert (refused["rank"], refused["step"]) == (1, newer)
    assert "its bytes have changed" in refused["why"]
    assert began(job, 1) == older
    assert re.search(
        rf"all ranks begin from step {older} on disk; rank 1 could not use step {newer} on disk: "
        "its bytes have changed",
        job.stderr,
    ), job.stderr
    [left] = snapshots(folder)
    assert left in (13, 14)


def test_a_file_that_was_truncated_costs_no_restart(ft: Launcher, tmp_path: Path) -> None:
    """The launcher finds it before it starts ranks."""
    folder = tmp_path / "kept"
    older, newer = two_steps(ft, folder)
    os.truncate(snapshots(folder)[newer] / "rank-1.safetensors", 1000)
    job = start(ft, folder)
    assert job.wait(LONG_S) == 0, job.stderr
    assert began(job, 0) == older
    assert "the file of rank 1 has 1000 bytes, its list says" in job.stderr
    assert f"step {newer} on disk is not there for rank 1" in job.stderr


def test_a_bad_snapshot_is_not_used_for_ever(ft: Launcher, tmp_path: Path) -> None:
    """Not by the next job, although the first has no restart to learn from."""
    folder = tmp_path / "kept"
    folder.mkdir()
    step = failed_at(ft, folder, 20)
    for _ in range(2):
        job = start(ft, folder, f"raise:0:{step + 1}:0")  # before it takes a snapshot
        assert job.wait(LONG_S) == 1, job.stderr
        assert began(job, 0) == step
        assert set(snapshots(folder)) == {step}
    job = start(ft, folder)
    assert job.wait(LONG_S) == 0, job.stderr
    assert began(job, 0) == 0
    assert "is not used: 2 jobs have begun from it and got no further" in job.stderr


def test_a_job_that_is_killed_leaves_the_next_one_to_its_checkpoints(
    ft: Launcher, tmp_path: Path
) -> None:
    """They may be days newer than the snapshot that it began from."""
    folder = tmp_path / "kept"
    folder.mkdir()
    failed_at(ft, folder, 5)
    job = start(ft, folder, steps=1_000_000)
    until(lambda: said(job, "step10"), "it trains", LONG_S)
    os.kill(job.process.pid, signal.SIGKILL)
    job.wait(LONG_S)
    job = start(ft, folder)
    assert job.wait(LONG_S) == 0, job.stderr
    assert began(job, 0) == 0
    assert "a job has begun from it, and still runs or was killed" in job.stderr


SHARDED = (
    textwrap.indent(HAS_MEMORY, "    ")
    + """
    import hashlib, os, time
    import light_torch
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from holdfast.snapshot import Snapshots

    dist.init_process_group("gloo")
    rank, cycle = dist.get_rank(), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.Linear(5, 8), torch.nn.Linear(8, 1))
    model[1].weight = torch.nn.Parameter(torch.randn(8, 5))
    for layer in (model[0], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(os.environ["RATE"]))

    def say(text):
        with open(os.environ["OUT"] + "/said", "a") as file:
            file.write(f"{cycle} {rank} {text}\\n")

    def state_of_all():
        digest = hashlib.sha256()
        for each in model.parameters():
            own = optimizer.state.get(each, {})
            for part in (each, *(x for _, x in sorted(own.items()))):
                whole = part.full_tensor() if hasattr(part, "full_tensor") else part
                digest.update(whole.detach().numpy().tobytes())
        for group in optimizer.param_groups:
            digest.update(repr((group["lr"], group["betas"])).encode())
        return digest.hexdigest()[:16]

    def load():
        if not snapshots.world_changed:
            say("anew")
            return 0
        reader = snapshots.reader()
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, storage_reader=reader)
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        say(f"read {reader.world_size}")
        return reader.step

    snapshots = Snapshots(model=model, optimizer=optimizer, every=1)
    step = snapshots.restore(otherwise=load)
    say(f"begins {step}")
    say(f"state {step} {state_of_all()}")
    while not has_memory(snapshots):
        time.sleep(0.001)
    while step < 12:
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        say(f"state {step} {state_of_all()}")
        if step == int(os.environ["FAILS_AT"]) and rank == 0:
            raise RuntimeError("as planned")
        snapshots.take(step)
    say("ends")
    snapshots.close()
    dist.barrier()
    dist.destroy_process_group()
"""
)


_IMPORTS, _INIT, _TRAINING = SHARDED.partition('    dist.init_process_group("gloo")')
_ITERATION = _TRAINING.replace(
    'int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))', "call.iteration"
).replace("and rank == 0:", "and cycle == 0:")
SHARDED_IN_PLACE = (
    _IMPORTS
    + """
    from holdfast import inprocess

    @inprocess.Wrapper()
    def train(call: inprocess.CallWrapper):
"""
    + textwrap.indent(_INIT + _ITERATION, "    ")
    + """
    train()
"""
)
"""Its numbers are iterations, and all ranks fail in the first one."""


def sharded(
    ft: Launcher,
    folder: Path,
    n_ranks: int,
    fails_at: int,
    restarts: int = 0,
    script: str = SHARDED,
) -> Job:
    return ft.start(
        f"--nproc-per-node={n_ranks}", f"--max-restarts={restarts}", "--log-dir=logs",
        "--ft-warm-standby=false", f"--ft-snapshot-dir={folder}", ft.script(script),
        env={"FAILS_AT": str(fails_at), "RATE": "0.25" if fails_at else "0.5"},
    )  # fmt: skip


def states(job: Job) -> dict[int, str]:
    """By step, of all ranks."""
    found: dict[int, str] = {}
    for line in job.written("said"):
        _, _, word, *rest = line.split()
        if word == "state":
            assert found.setdefault(int(rest[0]), rest[1]) == rest[1]
    return found


def test_a_job_of_fewer_ranks_goes_on_from_the_shards_of_more(ft: Launcher, tmp_path: Path) -> None:
    """Weights, moments and options, bit by bit; when all is well, the folder is empty."""
    folder = tmp_path / "kept"
    folder.mkdir()
    first = sharded(ft, folder, 3, 8)
    assert first.wait(LONG_S) == 1, first.stderr
    assert len(snapshots(folder)) == 1, first.stderr
    [step] = snapshots(folder)
    assert step in (6, 7)
    second = sharded(ft, folder, 2, 0)
    assert second.wait(LONG_S) == 0, second.stderr
    assert began(second, 0) == step
    assert said(second, "read")[0] == {0: ["3"], 1: ["3"]}
    assert states(second)[step] == states(first)[step]
    assert f"all ranks begin from step {step} on disk, of 3 ranks, if the script" in second.stderr
    assert list(folder.iterdir()) == []


def test_each_iteration_reads_the_shards_of_more_ranks_until_it_has_a_step_of_its_own(
    ft: Launcher, tmp_path: Path
) -> None:
    """In a function that restarts in place: the first one fails before it takes a snapshot."""
    folder = tmp_path / "kept"
    folder.mkdir()
    first = sharded(ft, folder, 3, 8)
    assert first.wait(LONG_S) == 1, first.stderr
    [step] = snapshots(folder)
    second = sharded(ft, folder, 2, step + 1, script=SHARDED_IN_PLACE)
    assert second.wait(LONG_S) == 0, second.stderr
    read = said(second, "read")
    assert read == {0: {0: ["3"], 1: ["3"]}, 1: {0: ["3"], 1: ["3"]}}
    assert states(second)[step] == states(first)[step]


def test_shards_that_were_altered_are_not_read_again(ft: Launcher, tmp_path: Path) -> None:
    """It costs one restart; then all ranks begin from the checkpoint."""
    folder = tmp_path / "kept"
    folder.mkdir()
    first = sharded(ft, folder, 2, 8)
    assert first.wait(LONG_S) == 1, first.stderr
    [step] = snapshots(folder)
    damaged(snapshots(folder)[step] / "rank-1.safetensors")
    second = sharded(ft, folder, 1, 0, restarts=1)
    assert second.wait(LONG_S) == 0, second.stderr
    assert set(said(second, "anew")[1]) == {0}
    [refused, *_] = second.events("snapshot_refused")
    assert "the file of rank 1 of 2: its bytes have changed" in refused["why"]


FULL_FOLDER = 'mount -t tmpfs -o size=32k none "$KEPT" && exec "$@"'


@pytest.mark.skipif(not may_mount(), reason="needs the right to mount")
def test_a_full_disk_costs_a_line_and_the_exit_code_is_that_of_the_job(
    ft: Launcher, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    prefix = ["unshare", "--mount", "sh", "-c", FULL_FOLDER, "sh"]
    job = start(ft, folder, "raise:0:20:0", prefix=prefix)
    assert job.wait(LONG_S) == 1, job.stderr
    assert re.search(
        r"the snapshot of step \d+ \(\d+ KiB\) is not written to \S+/kept: it needs "
        r"\d+ bytes, and \d+ are free",
        job.stderr,
    ), job.stderr


def test_a_folder_that_is_not_there_costs_two_lines(ft: Launcher, tmp_path: Path) -> None:
    folder = tmp_path / "none"
    job = start(ft, folder, "raise:0:20:0")
    assert job.wait(LONG_S) == 1, job.stderr
    assert f"--ft-snapshot-dir {folder}: No such file or directory" in job.stderr
    assert re.search(r"the snapshot of step \d+ .* is not written to .*/none: ", job.stderr)
    assert "Traceback" not in job.stderr.split("exit code 1")[-1]


@pytest.mark.parametrize("is_shared", [True, False])
def test_all_nodes_of_the_next_job_begin_from_one_step(
    ft: Launcher, nodes: Nodes, tmp_path: Path, is_shared: bool
) -> None:
    """They share a folder, or each has its own."""
    folders = [tmp_path / "kept" / ("0" if is_shared else str(n)) for n in range(2)]
    for it in folders:
        it.mkdir(parents=True, exist_ok=True)

    def job(of: Nodes, faults: str) -> list[Job]:
        options = "--max-restarts=0", "--ft-snapshot-dir"
        return [of.add(faulty(faults), "2", *options, str(it)) for it in folders]

    a, b = job(nodes, "kill:0:20:1")
    assert [it.wait(LONG_S) for it in (a, b)] == [1, 1], a.stderr + b.stderr
    with contextlib.closing(Nodes(ft, tmp_path)) as later:
        a, b = job(later, "")
        assert [it.wait(LONG_S) for it in (a, b)] == [0, 0], a.stderr + b.stderr
    first, second = began(a, 0), began(b, 0)
    assert first == second
    assert first in (18, 19)
    assert not any(list(it.iterdir()) for it in folders)
