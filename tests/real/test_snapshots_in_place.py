"""Snapshots in a function that restarts in place: it goes on from the step that all ranks have."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.real.forked_ranks import Forks
from tests.real.harness import Launcher
from tests.real.ranks import PREAMBLE, RankStarter
from tests.real.test_snapshots import COLD, HAS_MEMORY
from tests.waiting import BOUND_S

pytestmark = pytest.mark.timeout(600)
LONG_S = 5 * BOUND_S
STEPS = 30

JOB = (
    PREAMBLE
    + HAS_MEMORY
    + f"STEPS = {STEPS}\n"
    + """
import hashlib
from holdfast.inprocess.rank_assignment import MaxActiveWorldSize, ShiftRanks
from holdfast.inplace import session
from holdfast.snapshot import Snapshots

torch.set_num_threads(1)
HAS_LAUNCHER, BORN = "FT_LAUNCHER_IPC_SOCKET" in os.environ, int(os.environ["WORLD_SIZE"])
CYCLE = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
FAULTS = [it.split(":") for it in os.environ.get("FAULTS", "").split(",") if it]
ACTIVE = int(os.environ.get("ACTIVE", "64"))
BESIDE = os.environ.get("BESIDE") == "1"
AT_ONCE = os.environ.get("AT_ONCE", "").split(",")

def weights(model):
    whole = b"".join(it.detach().numpy().tobytes() for it in model.state_dict().values())
    return hashlib.sha256(whole).hexdigest()[:16]

def train_from_start(call):
    rank, world = now()
    note(cycle=CYCLE, called=call.iteration, rank=rank, world=world)
    is_left = HAS_LAUNCHER and world < BORN
    if is_left and "hold" in os.environ["FAULTS"]:
        begins = session.current().begin_from()
        note(cycle=CYCLE, began_anew=begins is not None and begins.restore is None)
        os.kill(os.getppid(), signal.SIGCONT)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    inner = torch.nn.Sequential(
        torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.2),
        torch.nn.Linear(64, 1))
    # With one set of buckets from the first step on, more than two ranks add in one order.
    model = torch.nn.parallel.DistributedDataParallel(inner, find_unused_parameters=True)
    torch.manual_seed(100 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    done = {"batches": 0}
    snapshots = Snapshots(model=model, optimizer=optimizer, done=done, every=1, beside=BESIDE)
    step = snapshots.restore(otherwise=lambda: 0)
    assert done["batches"] == step
    note(cycle=CYCLE, began=call.iteration, rank=rank, world=world, step=step)
    while not has_memory(snapshots):
        time.sleep(0.001)
    if f"{CYCLE}:{call.iteration}" in AT_ONCE:
        dist.barrier()  # all have noted it
        raise ValueError("the loss is not finite")
    while step < STEPS:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        step += 1
        done["batches"] += 1
        call.ping()
        time.sleep(2.0 if is_left else 0.01)  # so that the launcher is faster than its progress
        for what, cycle, iteration, at, who in FAULTS:
            now_is = CYCLE, call.iteration, step, rank
            if (int(cycle), int(iteration), int(at), int(who)) != now_is:
                continue
            if what == "raise":
                raise ValueError("boom")
            if what == "hold":  # the launcher, until others have begun without this rank
                os.kill(os.getppid(), signal.SIGSTOP)
            if what in ("kill", "hold"):
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "leave":
                raise SystemExit(3)
            if what == "hang":
                while True:
                    time.sleep(0.01)
            if what == "flip":  # after the sum: only a later restart sees it
                take = snapshots.take
                def flipped(step):
                    take(step)
                    taking = snapshots._taking
                    time.sleep(0.2)
                    from holdfast.arena.pure import layout
                    words = taking._words
                    newest = max((0, 1), key=lambda i: words[layout.slot(i) + layout.COMMIT])
                    memory = taking._ring._slots[newest].memory
                    memory[int(words[layout.slot(newest) + layout.BYTES]) - 8] += 1
                flipped(step)
        snapshots.take(step)
    snapshots.close()
    note(ended=weights(model), random=torch.rand(1).item(), rank=rank)
    dist.barrier()
    dist.destroy_process_group()

MORE = {"rank_assignment": Compose(MaxActiveWorldSize(ACTIVE), ShiftRanks())}

@wrapper(**(IMPATIENT if "hang" in os.environ.get("FAULTS", "") else QUICK), **MORE)
def train(call: CallWrapper):
    train_from_start(call)

train()
"""
)


def all_notes(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("rank*.jsonl"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def began(notes: Iterable[dict[str, Any]], iteration: int, cycle: int = 0) -> int:
    """The step that all ranks of an iteration began from."""
    these = [it for it in notes if it.get("began") == iteration and it["cycle"] == cycle]
    steps = {it["step"] for it in these}
    assert len(steps) == 1, these
    assert len(these) == these[0]["world"], these
    return int(steps.pop())


def ends(notes: Iterable[dict[str, Any]]) -> dict[int, tuple[str, float]]:
    """Weights and a random number, by the rank that the function had."""
    return {it["rank"]: (it["ended"], it["random"]) for it in notes if "ended" in it}


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, forks: Forks
) -> dict[int, dict[int, Any]]:
    """Weights at the end of two ranks, and of three, that nothing disturbs."""
    from tests.real.ranks import rank_starter

    found = {}
    for n in (2, 3):
        with rank_starter(tmp_path_factory.mktemp("undisturbed"), forks) as starter:
            job = starter(n, JOB)
            assert job.wait(LONG_S) == [0] * n, job.output(0)
            found[n] = ends(all_notes(job.folder))
            assert sorted(found[n]) == [*range(n)]
    return found


@pytest.mark.parametrize("beside", ["0", "1"])
@pytest.mark.parametrize(
    ("n", "faults"),
    [(2, "raise:0:0:20:1"), (2, "raise:0:0:20:0,raise:0:1:25:1"), (3, "raise:0:0:20:2")],
)
def test_after_an_exception_all_ranks_go_on_from_their_last_step(
    ranks: RankStarter, undisturbed: dict[int, Any], n: int, faults: str, beside: str
) -> None:
    """Without a launcher; the weights at the end are those of a run that nothing disturbs."""
    job = ranks(n, JOB, FAULTS=faults, BESIDE=beside)
    assert job.wait(LONG_S) == [0] * n, job.output(0)
    notes = all_notes(job.folder)
    assert began(notes, 0) == 0
    for number, fault in enumerate(faults.split(","), 1):
        at = int(fault.split(":")[3])
        assert at - 2 - int(beside) <= began(notes, number) < at
    assert ends(notes) == undisturbed[n]
    assert job.said(0, r"iteration 1: all ranks begin from the snapshot of step \d+")


def test_after_a_hang_they_do_so_too(ranks: RankStarter, undisturbed: dict[int, Any]) -> None:
    job = ranks(2, JOB, FAULTS="hang:0:0:20:1")
    assert job.wait(LONG_S) == [0, 0], job.output(0)
    notes = all_notes(job.folder)
    assert began(notes, 1) in (18, 19)
    assert ends(notes) == undisturbed[2]


@pytest.mark.parametrize("who", [0, 1])
def test_a_spare_takes_over_the_state_of_a_rank_that_was_killed(
    ranks: RankStarter, undisturbed: dict[int, Any], who: int
) -> None:
    """The guard has kept its memory. The other rank gets another number, and so another state."""
    job = ranks(3, JOB, FAULTS=f"kill:0:0:20:{who}", ACTIVE="2")
    codes = job.wait(LONG_S)
    assert codes == [-9 if rank == who else 0 for rank in range(3)], job.output(2)
    notes = all_notes(job.folder)
    assert began(notes, 1) in (18, 19)
    assert ends(notes) == undisturbed[2]


def test_fewer_ranks_begin_from_the_checkpoint(ranks: RankStarter) -> None:
    job = ranks(3, JOB, FAULTS="kill:0:0:20:1,raise:0:1:10:0")
    assert job.wait(LONG_S) == [0, -9, 0], job.output(0)
    notes = all_notes(job.folder)
    assert began(notes, 1) == 0
    assert job.said(0, r"begin from no snapshot: .*; step \d+ is of 3 ranks, and there are 2")
    assert began(notes, 2) in (8, 9)


def test_a_damaged_copy_is_used_by_no_rank(ranks: RankStarter) -> None:
    job = ranks(2, JOB, FAULTS="flip:0:0:20:1,raise:0:0:21:1")
    assert job.wait(LONG_S) == [0, 0], job.output(0)
    notes = all_notes(job.folder)
    last = max(it["began"] for it in notes if "began" in it)
    assert began(notes, last) < 20
    assert job.said(0, "could not use step")


def test_with_a_launcher_its_memory_is_used(ft: Launcher, undisturbed: dict[int, Any]) -> None:
    faults = "raise:0:0:10:1,raise:0:1:20:0"
    job = ft.start(
        "--nproc-per-node=2", "--log-dir=logs", COLD, ft.script(JOB), env={"FAULTS": faults}
    )
    assert job.wait(LONG_S) == 0, job.stderr
    notes = all_notes(job.folder)
    for number, fault in enumerate(faults.split(","), 1):
        at = int(fault.split(":")[3])
        assert began(notes, number) in (at - 1, at - 2)
    assert ends(notes) == undisturbed[2]
    assert "snapshots in memory" in job.stderr
    assert "2 in place" in job.stderr


def test_a_restart_of_the_processes_goes_on_from_snapshots_of_any_iteration(
    ft: Launcher, undisturbed: dict[int, Any]
) -> None:
    """In place, then with new processes, then in place again."""
    faults = "raise:0:0:10:1,kill:0:1:18:0,raise:1:0:24:1"
    job = ft.start(
        "--nproc-per-node=2", "--max-restarts=1", "--log-dir=logs", COLD, ft.script(JOB),
        env={"FAULTS": faults},
    )  # fmt: skip
    assert job.wait(LONG_S) == 0, job.stderr
    notes = all_notes(job.folder)
    assert began(notes, 1) in (8, 9)
    assert began(notes, 0, cycle=1) in (16, 17), job.stderr
    assert began(notes, 1, cycle=1) in (22, 23)
    assert ends(notes) == undisturbed[2]


def test_ranks_that_begin_anew_before_their_launcher_ends_them_cost_no_snapshot(
    ft: Launcher, undisturbed: dict[int, Any]
) -> None:
    """The launcher is stopped until two of three ranks have begun from none, in place."""
    job = ft.start(
        "--nproc-per-node=3", "--max-restarts=1", "--log-dir=logs", COLD, ft.script(JOB),
        env={"FAULTS": "hold:0:0:20:1"},
    )  # fmt: skip
    assert job.wait(LONG_S) == 0, job.stderr
    notes = all_notes(job.folder)
    assert {it["began_anew"] for it in notes if "began_anew" in it} == {True}
    assert began(notes, 0, cycle=1) in (18, 19), job.stderr
    assert ends(notes) == undisturbed[3]


def test_a_snapshot_of_the_cycle_that_leads_nowhere_twice_is_given_up(
    ft: Launcher, undisturbed: dict[int, Any]
) -> None:
    """Before one snapshot of the new cycle is taken; the option of the launcher holds in place."""
    job = ft.start(
        "--nproc-per-node=2", "--max-restarts=1", "--ft-snapshot-progress=3", "--log-dir=logs",
        COLD, ft.script(JOB), env={"FAULTS": "kill:0:0:10:0", "AT_ONCE": "1:0,1:1"},
    )  # fmt: skip
    assert job.wait(LONG_S) == 0, job.stderr
    notes = all_notes(job.folder)
    first = began(notes, 0, cycle=1)
    assert first in (8, 9), job.stderr
    assert began(notes, 1, cycle=1) == first
    assert began(notes, 2, cycle=1) < first
    assert ends(notes) == undisturbed[2]
    logs = "".join(file.read_text() for file in job.folder.rglob("*.log"))
    assert "two restarts from it made fewer than 3 new steps each" in logs + job.stderr
