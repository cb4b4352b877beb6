"""Snapshots under a real launcher: a restart goes on from the step that all ranks have."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("torch")

from holdfast.arena import taken
from holdfast.base.processes.job_name import PREFIX
from holdfast.events.run.run_links import runtime_parents
from holdfast.tools.report.report import story_of
from holdfast.tools.run.run_files import read_run
from tests.real.forked_ranks import Forks
from tests.real.harness import Job, Launcher, kill
from tests.real.nodes import Nodes
from tests.waiting import BOUND_S, until

pytestmark = pytest.mark.timeout(600)
LONG_S = 5 * BOUND_S
"""Of jobs whose ranks import torch, twice."""
COUNTING = Path(__file__).with_name("counting_rank.py").read_text()
"""A training without torch, in place of :data:`TRAINING` where ranks only save and load."""
COLD = "--ft-warm-standby=false"
"""No parked interpreters, which import as much as ranks, where they show nothing."""
HAS_MEMORY = """
def has_memory(snapshots):  # or it has none at all: no step is left out for want of it
    taking = snapshots._taking
    return taking is None or taking._ring.is_prepared(taking._granted, taking._n_slots)
"""
"""Of a script that trains faster than a busy machine gives memory to its ranks."""
TRAINING = (
    textwrap.indent(HAS_MEMORY, "    ")
    + """
    import hashlib, os, signal, sys, time
    import light_torch
    import torch
    import torch.distributed as dist
    from holdfast.arena.pure import layout
    from holdfast.snapshot import Snapshots

    torch.set_num_threads(1)  # the launcher does it for two ranks on a node, not for one
    dist.init_process_group("gloo")
    rank, cycle = dist.get_rank(), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    out, n_steps = os.environ["OUT"], int(os.environ.get("STEPS", "30"))
    faults = [it.split(":") for it in os.environ.get("FAULTS", "").split(",") if it]
    torch.manual_seed(1 + rank)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    done = {"batches": 0}

    def say(text):
        with open(f"{out}/said", "a") as file:
            file.write(f"{cycle} {rank} {text}\\n")

    def anew():
        say("anew")
        return 0

    every = None if "AGREE" in os.environ else 1
    snapshots = Snapshots(model=model, optimizer=optimizer, done=done, every=every)
    client = None
    if "hang" in os.environ.get("FAULTS", ""):
        from holdfast.fault_tolerance import RankMonitorClient
        client = RankMonitorClient()
        client.init_workload_monitoring()
    step = snapshots.restore(otherwise=anew)
    say(f"begins {step}")
    while not has_memory(snapshots):
        time.sleep(0.001)
    if snapshots._taking is not None:
        say(f"every {snapshots._taking._words[layout.EVERY]}")
    assert done["batches"] == step
    while step < n_steps:
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
        optimizer.step()
        step += 1
        done["batches"] += 1
        time.sleep(0.02)
        if client is not None:
            client.send_heartbeat()
        for what, when, at, who in faults:
            if (int(when), int(at), int(who)) == (cycle, step, rank):
                if what == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if what == "raise":
                    raise RuntimeError("as planned")
                if what == "hang":
                    time.sleep(1000)
        snapshots.take(step)
        if step == 10:
            say("step10")
        if ["flip", str(cycle), str(step + 1), str(rank)] in faults:
            time.sleep(0.1)  # the sum comes later
            words = snapshots._taking._words
            newest = max((0, 1), key=lambda slot: words[layout.slot(slot) + layout.COMMIT])
            memory = snapshots._taking._ring._slots[newest].memory
            memory[int(words[layout.slot(newest) + layout.BYTES]) - 8] += 1
    whole = b"".join(it.detach().numpy().tobytes() for it in model.state_dict().values())
    say(f"ends {hashlib.sha256(whole).hexdigest()[:16]} {torch.rand(1).item()}")
    snapshots.close()
    dist.barrier()
    dist.destroy_process_group()
"""
)


def said(job: Job, what: str) -> dict[int, dict[int, list[str]]]:
    """By cycle and rank."""
    found: dict[int, dict[int, list[str]]] = defaultdict(dict)
    for line in job.written("said"):
        cycle, rank, word, *rest = line.split()
        if word == what:
            found[int(cycle)][int(rank)] = rest
    return found


def began(job: Job, cycle: int) -> int:
    """The step that all ranks of a cycle began with."""
    steps = {rank: int(rest[0]) for rank, rest in said(job, "begins")[cycle].items()}
    assert len({*steps.values()}) == 1, steps
    return next(iter(steps.values()))


def ends(job: Job) -> dict[int, list[str]]:
    found = said(job, "ends")
    return found[max(found)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> dict[int, list[str]]:
    """The weights that a job ends with that nothing disturbs."""
    from tests.real.harness import launcher

    with launcher(tmp_path_factory.mktemp("undisturbed"), forks) as jobs:
        job = jobs.start("--nproc-per-node=2", COLD, jobs.script(TRAINING))
        assert job.wait(LONG_S) == 0, job.stderr
        return ends(job)


@pytest.mark.parametrize(
    ("fault", "options"),
    [
        ("kill:0:20:1", []),
        ("hang:0:20:1", [COLD, "--ft-rank-heartbeat-timeout=12"]),
        ("raise:0:20:0,kill:1:25:1", [COLD]),
    ],
)
def test_a_restart_goes_on_as_if_nothing_had_happened(
    ft: Launcher, undisturbed: dict[int, list[str]], fault: str, options: list[str]
) -> None:
    """From the last step, or the one before, on all ranks; with the same weights at the end.

    The first one as users run it: with parked interpreters and with the compiler.
    """
    source = TRAINING if options else TRAINING.replace("import light_torch", "")
    n = len(fault.split(","))
    job = ft.start(
        "--nproc-per-node=2", f"--max-restarts={n}", "--log-dir=logs", *options,
        ft.script(source), env={"FAULTS": fault},
    )  # fmt: skip
    assert job.wait(LONG_S) == 0, job.stderr
    for number, each in enumerate(fault.split(","), 1):
        at = int(each.split(":")[2])
        assert began(job, number) in (at - 1, at - 2)
    assert ends(job) == undisturbed
    restored = job.events("snapshot_restored")
    assert [it["step"] for it in restored] == [began(job, it["cycle"]) for it in restored]
    assert len(restored) == n
    found = story_of(read_run([job.run_dir])).snapshots
    assert found is not None
    assert [it.step for it in found.restarts] == [it["step"] for it in restored]
    assert found.taken >= 20, "of each step, but for those before the memory was there"
    assert found.seconds > 0.0
    assert found.share is not None
    assert re.search(rf"restart 1 of {n}.* in [\d.]+ s: cycle 1 from step \d+", job.stderr), (
        job.stderr
    )
    assert job.stderr.count("snapshots in memory") == 1


def faulty(faults: str, endless: bool = False, source: str = COUNTING) -> str:
    """A training with these faults; ``endless``: the first cycle never comes to an end."""
    first = f"""
        import os
        is_endless = {endless} and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        os.environ.update(FAULTS={faults!r}, STEPS="1000000" if is_endless else "30")
    """
    return textwrap.dedent(first) + textwrap.dedent(source)


def seen_from_outside(job: Job) -> object:
    """Snapshots that another process of this host finds in the memory of rank 0; None: none yet."""
    [start] = job.events("launcher_started") or [{"job": ""}]
    name = start["job"]
    folders = [Path(parent, PREFIX + name) for parent in runtime_parents()]
    found = (taken.read(str(each), 0) for each in folders)
    return next((seen.held for seen in found if seen is not None), None)


def test_ranks_agree_how_often_snapshots_are_taken_and_the_next_cycle_knows(ft: Launcher) -> None:
    """What they cost is measured in the first steps."""
    job = ft.start(
        "--nproc-per-node=2", "--max-restarts=3", "--log-dir=logs", COLD, ft.script(TRAINING),
        env={"FAULTS": "kill:0:150:1", "AGREE": "1", "STEPS": "160"},
    )  # fmt: skip
    until(lambda: job.written("said"), "it begins", LONG_S)
    until(lambda: seen_from_outside(job), "a snapshot that live views see", LONG_S)
    assert job.wait(LONG_S) == 0, job.stderr
    agreed = said(job, "every")
    assert agreed[0] == {0: ["0"], 1: ["0"]}
    assert agreed[1][0] == agreed[1][1]
    every = int(agreed[1][0][0])
    assert every >= 1
    assert began(job, 1) % every == 0
    assert began(job, 1) >= 150 - 2 * every


def test_all_nodes_go_on_from_one_step(nodes: Nodes) -> None:
    a, b = (nodes.add(faulty("kill:0:20:1", source=TRAINING), "2", COLD) for _ in range(2))
    assert [job.wait(LONG_S) for job in (a, b)] == [0, 0], a.stderr + b.stderr
    first, second = (began(job, 1) for job in (a, b))
    assert first == second
    assert first in (18, 19)


def test_the_state_of_a_node_that_is_lost_is_lost_for_all(nodes: Nodes) -> None:
    """A spare takes its place, and all ranks begin from the checkpoint of their script."""
    jobs = [nodes.add(faulty("", endless=True), "2") for _ in range(3)]
    a = jobs[0]
    until(lambda: sum(bool(said(job, "step10")) for job in jobs) == 2, "both train", LONG_S)
    lost = next(job for job in reversed(jobs) if said(job, "step10"))  # a leads, perhaps as a spare
    left = [job for job in jobs if job is not lost]
    kill(lost.process.pid)
    assert [job.wait(LONG_S) for job in left] == [0, 0], "".join(job.stderr for job in left)
    assert [began(job, 1) for job in left] == [0, 0]
    assert [bool(said(job, "anew")[1]) for job in left] == [True, True]
    assert re.search(
        r"all ranks begin from no snapshot: from a checkpoint, if the script has one; step \d+ is "
        r"not there for rank [01]",
        a.stderr,
    ), a.stderr


def test_a_node_that_is_lost_costs_the_steps_since_the_kept_one(
    nodes: Nodes, undisturbed: dict[int, list[str]]
) -> None:
    """Its peer sends the state of its rank to the spare that takes its place."""
    source = faulty("", endless=True, source=TRAINING)
    jobs = [nodes.add(source, "2", "--ft-snapshot-keep=1000") for _ in range(3)]
    both = lambda: [it for job in jobs for it in job.events("snapshot_kept")]  # noqa: E731
    until(lambda: len(both()) == 2, "both nodes know that a step is kept", LONG_S)
    kept = both()[0]
    lost = next(job for job in reversed(jobs) if said(job, "begins"))
    left = [job for job in jobs if job is not lost]
    kill(lost.process.pid)
    assert [job.wait(LONG_S) for job in left] == [0, 0], "".join(job.stderr for job in left)
    assert [began(job, 1) for job in left] == [kept["step"]] * 2
    assert not any(said(job, "anew")[1] for job in left)
    assert {rank: end for job in left for rank, end in ends(job).items()} == undisturbed
    restored = next(it for job in left for it in job.events("snapshot_restored"))
    assert len(restored["sources"]) == 1
    assert kept["n_bytes"] > 0


def test_a_damaged_copy_of_a_kept_step_costs_a_restart_and_no_step(
    nodes: Nodes, tmp_path: Path
) -> None:
    """The other node sends its copy of the same step."""
    both = [nodes.add(faulty("", endless=True), "2", "--ft-snapshot-keep=1000") for _ in range(2)]
    until(lambda: all(job.events("snapshot_kept") for job in both), "a step is kept", LONG_S)
    (tmp_path / "damage").touch()
    assert [job.wait(LONG_S) for job in both] == [0, 0], "".join(job.stderr for job in both)
    kept = both[0].events("snapshot_kept")[0]["step"]
    assert [began(job, 2) for job in both] == [kept, kept]
    [refused] = [it for job in both for it in job.events("snapshot_refused")]
    assert (refused["rank"], refused["step"], refused["is_damaged"]) == (1, kept, True)
    restored = [it for it in both[0].events("snapshot_restored") if it["cycle"] in (1, 2)]
    assert [(it["step"], len(it.get("sources", ()))) for it in restored] == [(kept, 0), (kept, 1)]
    line = f"from step {kept}; rank 1 gets another copy, as its own is damaged: its bytes have "
    assert line in both[0].stderr


def test_when_the_leader_is_lost_the_next_one_goes_on_with_what_is_there(nodes: Nodes) -> None:
    """The others are fewer, so they begin anew; when a rank fails then, from its snapshots."""
    a, b, c = (nodes.add(faulty("raise:1:20:1", endless=True), "2:3") for _ in range(3))
    until(lambda: all(said(job, "step10") for job in (a, b, c)), "all train", LONG_S)
    kill(a.process.pid)
    assert [job.wait(LONG_S) for job in (b, c)] == [0, 0], b.stderr + c.stderr
    assert [began(job, 1) for job in (b, c)] == [0, 0]
    assert "is of 3 ranks, and there are 2" in b.stderr
    first, second = (began(job, 2) for job in (b, c))
    assert first == second
    assert first in (18, 19)


def test_a_damaged_copy_costs_a_restart_and_a_step(ft: Launcher) -> None:
    """The rank says what is wrong, and all ranks begin from the one before."""
    job = ft.start(
        "--nproc-per-node=2", "--max-restarts=3", "--log-dir=logs", COLD, ft.script(TRAINING),
        env={"FAULTS": "flip:0:20:1,kill:0:20:0"},
    )  # fmt: skip
    assert job.wait(LONG_S) == 0, job.stderr
    bad = next(it for it in job.events("snapshot_restored") if it["cycle"] == 1)["step"]
    [refused] = job.events("snapshot_refused")
    assert (refused["rank"], refused["step"]) == (1, bad)
    assert began(job, 2) < bad
    assert f"rank 1 could not use step {bad}: its bytes have changed" in job.stderr


@pytest.mark.parametrize(
    ("option", "source", "line"),
    [
        ("--ft-snapshot-memory=0", TRAINING, "snapshots are off: --ft-snapshot-memory is 0"),
        (
            "--ft-snapshot-memory=64k",
            COUNTING,
            r"snapshots are off: 2 ranks need \d+ KiB for two .*64 KiB",
        ),
    ],
    ids=["none", "too little"],
)
def test_without_memory_the_training_runs_without_snapshots(
    ft: Launcher, option: str, source: str, line: str
) -> None:
    job = ft.start(
        "--nproc-per-node=2", "--max-restarts=1", "--log-dir=logs", COLD, option,
        ft.script(source), env={"FAULTS": "raise:0:20:0", "STEPS": "30"},
    )  # fmt: skip
    assert job.wait(LONG_S) == 0, job.stderr
    assert began(job, 1) == 0
    assert len(re.findall(f"holdfast: {line}", job.stderr)) == 2, "once in a cycle"


def test_under_torchrun_nothing_happens(ft: Launcher) -> None:
    job = ft.start("--nproc-per-node=2", ft.script(TRAINING), module="torch.distributed.run")
    assert job.wait(LONG_S) == 0, job.stderr
    assert began(job, 0) == 0
    assert "snapshot" not in job.stderr


def test_a_job_without_snapshots_has_nothing_of_them(ft: Launcher) -> None:
    """No descriptor, no line, no event."""
    script = """
        import os, sys, time
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            sys.exit(1)
        launcher = os.getppid()
        links = []
        for fd in os.listdir(f"/proc/{launcher}/fd"):
            try:
                links.append(os.readlink(f"/proc/{launcher}/fd/{fd}"))
            except OSError:
                pass
        open(os.environ["OUT"] + "/links", "w").write("\\n".join(links))
    """
    job = ft.start("--max-restarts=1", "--log-dir=logs", ft.script(script))
    assert job.wait() == 0, job.stderr
    assert not any("memfd:holdfast-snapshots" in link for link in job.written("links"))
    assert job.written("links")
    assert "snapshot" not in re.sub(r"/\S+", "", job.stderr), "but in names of folders"
    assert not [it for it in job.events() if "snapshot" in it["kind"]]
