"""The Wrapper under what starts ranks: ft_launcher, torchrun; and both levels together."""

from __future__ import annotations

import json
import re
from pathlib import Path

from holdfast.net.port import ReservedPort
from tests.real.harness import Launcher
from tests.real.ranks import PREAMBLE

COLD = "--ft-warm-standby=false"
"""No parked interpreters, which import as much as ranks, where they show nothing."""
COMPAT = Path(__file__).parents[2] / "compat" / "src"

JOB = (
    PREAMBLE
    + """
CYCLE = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

@wrapper(**QUICK)
def train(call: CallWrapper):
    rank, world = now()
    note(cycle=CYCLE, iteration=call.iteration, world=world, pid=os.getpid())
    dist.init_process_group("gloo")
    assert all_reduce() == world
    if CYCLE == 0 and RANK == int(sys.argv[3] if len(sys.argv) > 3 else 1):
        if sys.argv[1] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if call.iteration < int(sys.argv[2]):
            raise SystemExit(3) if sys.argv[1] == "leave" else ValueError("boom")
    if CYCLE == 0 and call.iteration < int(sys.argv[2]):
        all_reduce()
    dist.destroy_process_group()

train()
"""
)


def notes(folder: Path, rank: int) -> list[dict[str, int]]:
    path = folder / f"rank{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_under_ft_launcher_a_rank_that_raises_costs_no_restart_of_processes(ft: Launcher) -> None:
    script = ft.script(JOB)
    job = ft.start("--nproc-per-node", "2", "--log-dir", "logs", COLD, script, "raise", "2")
    assert job.wait(60) == 0, job.stderr
    for rank in range(2):
        seen = notes(job.folder, rank)
        assert [(note["cycle"], note["iteration"]) for note in seen] == [(0, 0), (0, 1), (0, 2)]
        assert len({note["pid"] for note in seen}) == 1
    assert not job.leftovers(), "the guard has ended with its ranks"
    told = job.events("restarted_in_place")
    causes = [(each["call"], [cause["rank"] for cause in each["causes"]]) for each in told]
    assert causes == [(1, [1]), (2, [1])], "the launcher was told, and kept its folder for it"
    assert "succeeded after 0 restarts and 2 in place" in job.stderr


LAYERS = (
    PREAMBLE
    + f"""
sys.path.append({str(COMPAT)!r})
"""
    + """
from holdfast.fault_tolerance import RankMonitorClient
from nvidia_resiliency_ext.inprocess.nested_restarter import *

CYCLE = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
client = RankMonitorClient()
client.init_workload_monitoring()

WHO = 0 if RANK == 0 else -1  # rank 1 is called 0 when rank 0 has left, until it is ended, too

@wrapper(
    initialize=NestedRestarterHandlingCompleted(WHO),
    abort=Compose(NestedRestarterHandlingStarting(WHO), inprocess.abort.AbortTorchDistributed()),
    completion=NestedRestarterFinalized(WHO),
    terminate=NestedRestarterAborted(WHO),
    **QUICK,
)
def train(call: CallWrapper):
    client.send_heartbeat()
    dist.init_process_group("gloo")
    all_reduce()
    if CYCLE == 0 and call.iteration == 0 and RANK == 1:
        raise ValueError("boom")
    if CYCLE == 0 and call.iteration == 1 and RANK == 0:
        raise SystemExit(3)
    if CYCLE == 0:
        all_reduce()
    dist.destroy_process_group()

train()
client.shutdown_workload_monitoring()
"""
)


def test_each_layer_tells_an_outer_restarter_where_it_stands(ft: Launcher) -> None:
    """On stdout, in lines that it parses: a restart in place, then one of the processes."""
    options = "--nproc-per-node", "2", "--max-restarts", "1", "--ft-restarter-lines", COLD
    job = ft.start(*options, ft.script(LAYERS))
    assert job.wait(60) == 0, job.stderr
    lines = re.findall(r"\[NestedRestarter\] name=\[(\w+)\] state=(.*)", job.stdout)
    told = {layer: [state for who, state in lines if who == layer] for layer, _ in lines}
    start, goes_on, done = (
        f"handling stage={stage}" for stage in ("starting", "processing", "completed")
    )
    first_life = ["initialize", start, done, start, "aborted"]
    assert told["InProcess"] == [*first_life, "initialize", "finalized"]
    assert told["InJob"] == ["initialize", start, goes_on, done, "finalized"]
    assert "[NestedRestarter]" not in job.stderr


def test_what_cannot_be_restarted_in_place_is_restarted_by_ft_launcher(ft: Launcher) -> None:
    """A rank that leaves the call ends its process; the launcher starts all ranks again."""
    script = ft.script(JOB)
    job = ft.start("--nproc-per-node", "2", "--max-restarts", "1", script, "leave", "1")
    assert job.wait(60) == 0, job.stderr
    assert job.said("exit code 3|exitcode 3|code 3")
    cycles = [note["cycle"] for note in notes(job.folder, 1)]
    assert cycles == [0, 1]
    assert not job.leftovers()


HUNG = """
import os, select, signal, socket
from holdfast.base.pure import codec
from holdfast.evidence.pure.evidence import RankDigest
from holdfast.inplace.pure.job_calls import EndsHungRank
from holdfast.net.pure.frames import encode

seen = RankDigest(0, "n", state="T")
launcher = os.getppid()
end = os.pidfd_open(os.getpid())
if os.fork() == 0:  # the launcher hears of the end and of the reason at once
    select.select([end], [], [])
    os.kill(launcher, signal.SIGCONT)
    os._exit(0)
os.kill(launcher, signal.SIGSTOP)
with socket.socket(socket.AF_UNIX) as guard:
    guard.connect(os.environ["FT_LAUNCHER_IPC_SOCKET"])
    guard.send(encode(codec.encode(EndsHungRank(int(os.environ["RANK"]), "for 9 s", seen))))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_launcher_says_why_a_rank_was_killed_that_the_guard_has_ended(ft: Launcher) -> None:
    """It would say "not by holdfast" of SIGKILL, and of SIGTERM that a scheduler has sent it."""
    job = ft.start("--max-restarts", "0", "--log-dir", "logs", ft.script(HUNG))
    assert job.wait(60) == 1, job.stderr
    hung = "hung: it is stopped (by SIGSTOP or a debugger); for 9 s"
    why = f"{hung}; killed by SIGKILL by the node guard of restarts in place"
    assert [each["why"] for each in job.events("first_cause")] == [why]
    assert job.said(f"rank 0 .*: {re.escape(why)}")


def test_under_torchrun_ranks_restart_in_place(ft: Launcher) -> None:
    script = ft.script(JOB)
    job = ft.start(
        "--standalone",
        "--nproc-per-node",
        "2",
        script,
        "raise",
        "1",
        module="torch.distributed.run",
    )
    assert job.wait(60) == 0, job.stderr
    for rank in range(2):
        assert [note["iteration"] for note in notes(job.folder, rank)] == [0, 1]


def test_with_min_healthy_the_other_node_goes_on_in_place(ft: Launcher, tmp_path: Path) -> None:
    """Two launchers of one rank each: the node whose rank left waits, the other trains on."""
    script = ft.script(JOB)
    port = ReservedPort()
    jobs = [
        ft.start(
            *("--nnodes", "1:2", "--nproc-per-node", "1", "--ft-restart-policy", "min-healthy"),
            *("--rdzv-id", "both", "--rdzv-endpoint", f"127.0.0.1:{port.number}"),
            *("--rdzv-conf", f"is_host={int(number == 0)},last_call_timeout=20"),
            *(COLD, script, "leave", "1"),
            env={"OUT": str(tmp_path)},
        )
        for number in range(2)
    ]
    try:
        assert jobs[0].wait(60) == 0, jobs[0].stderr
        jobs[1].wait()
    finally:
        port.release()
    first, second = notes(tmp_path, 0)
    assert (first["iteration"], first["world"]) == (0, 2)
    assert (second["iteration"], second["world"]) == (1, 1)
    assert first["pid"] == second["pid"]
    assert [note["cycle"] for note in notes(tmp_path, 1)] == [0], "its process is not started again"


def test_with_min_healthy_on_one_node_the_others_go_on_in_place(
    ft: Launcher, tmp_path: Path
) -> None:
    """Rank 0 is killed, which had started the guard and the store: the launcher lets both be."""
    script = ft.script(JOB)
    job = ft.start(
        *("--nproc-per-node", "3", "--max-restarts", "1", "--ft-restart-policy", "min-healthy"),
        *(COLD, script, "die", "1", "0"),
        env={"TMPDIR": str(tmp_path)},
    )
    assert job.wait(60) == 0, job.stderr
    assert [note["iteration"] for note in notes(job.folder, 0)] == [0]
    for rank in (1, 2):
        seen = notes(job.folder, rank)
        lives = [(note["cycle"], note["iteration"], note["world"]) for note in seen]
        assert lives == [(0, 0, 3), (0, 1, 2)]
        assert len({note["pid"] for note in seen}) == 1
    lines = job.stderr.splitlines()
    assert job.said(r"rank 0 \(pid \d+\): killed by SIGKILL")
    assert job.said(r"cycle 0 continues with 2 other ranks \(--ft-restart-policy min-healthy\)")
    assert "completed without rank 0, which failed" in lines[-3]
    end = "succeeded after 0 restarts and 1 in place; exit code 0; .* are in (.*)"
    kept = re.search(end, lines[-2])
    assert kept is not None, "somebody will look up why that rank was killed"
    assert Path(kept[1]).is_dir()
    assert not job.leftovers(), "the guard has ended with its ranks"


ALONE = """
import os, signal, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    sys.exit(0)
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


def test_with_min_healthy_on_one_node_ranks_that_are_in_no_call_start_again(ft: Launcher) -> None:
    """The only node is not healthy; nobody says that the others can do without the lost rank."""
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--restart-policy", "min-healthy")
    job = ft.start(*options, ft.script(ALONE))
    assert job.wait(60) == 0, job.stderr
    assert job.said("succeeded after 1 restart; exit code 0")
    assert not job.said("continues with")
    assert job.said("--restart-policy is an old spelling, write --ft-restart-policy")
