"""An exception restarts the job when its exit handlers have run, not when its process has ended."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from tests.real.harness import Launcher
from tests.waiting import BOUND_S

RAISES = """
import atexit, os, threading, time
cycle, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
mode = os.environ["MODE"]
if cycle == "0" and rank == "0":
    threading.Event().wait()
if cycle == "0":
    atexit.register(lambda: open("handlers", "a").write("ran\\n"))
    if mode == "thread":
        threading.Thread(target=threading.Event().wait).start()
    if mode == "handler":
        atexit.register(threading.Event().wait)
    raise ValueError("bad sample")
print("done", rank, flush=True)
"""


@pytest.mark.parametrize("mode", ["thread", "handler"])
def test_an_exception_restarts_the_job_though_its_process_would_not_end(
    ft: Launcher, mode: str
) -> None:
    """A thread is not waited for; an exit handler is, for its grace. The exception is the cause."""
    job = ft.start(
        *("--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", "logs"),
        *("--ft-exception-grace", "0.5", "--ft-warm-standby", "false", "--redirects", "3"),
        ft.script(RAISES, "train.py"),
        env={"MODE": mode},
    )
    assert job.wait() == 0, job.stderr
    assert [event["rank"] for event in job.events("rank_raised")] == [1]
    assert job.said(r"rank 1 \(.*\): ValueError \(bad sample\): .* at train.py:13")
    [failed] = job.events("rank_failed")
    assert (failed["exception"], failed["rank"]) == ("ValueError", 1)
    [first, *_] = [each for each in job.events("worker_exited") if each["rank"] == 1]
    killed = mode == "handler"
    assert bool(job.said("exit handlers have not ended 0.5 s after its exception")) == killed
    assert first["exit_code"] == (-9 if killed else 1)
    assert job.written("handlers") == ([] if killed else ["ran"])


LEAVES = """
import atexit, os, sys, threading, time
exits = "exits" + os.environ["TORCHELASTIC_RESTART_COUNT"]
if os.environ["RANK"] == "1":
    atexit.register(threading.Event().wait)
    atexit.register(lambda: open(exits, "w").close())
    sys.exit(3)
while not os.path.exists(exits):
    time.sleep(0.01)
raise ConnectionResetError("Connection reset by peer")
"""


def test_a_rank_that_exits_by_itself_is_named_though_it_is_stopped_meanwhile(ft: Launcher) -> None:
    """It has printed nothing, and the signal of its launcher ends it."""
    job = ft.start(
        *("--nproc-per-node", "2", "--log-dir", "logs", "--max-restarts", "1"),
        *("--ft-warm-standby", "false", ft.script(LEAVES, "train.py")),
    )
    assert job.wait() == 1, job.stderr
    first, _ = job.events("first_cause")
    left = r"rank 1 \(pid \d+\) began to exit \(sys.exit, or the end of its script\) while rank 0"
    assert first["rank"] == 0
    assert re.match(left, first["left_how"]), first
    assert job.said(f"First cause: {left}")
    line = r"holdfast: cycle 0 ended: (.*)"
    cause = job.said(line)
    assert cause is not None
    assert re.match(left, cause[1]), "the end of a line may be cut, and not its culprit"


LOADER = """
import os, light_torch, torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from holdfast.fault_tolerance import RankMonitorClient

class Samples(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, at):
        if at == 40 and os.environ["RANK"] == "1" and os.environ["NVRX_CYCLE"] == "0":
            read_sample()
        return torch.ones(4)

def read_sample():
    import threading
    threading.Event().wait()

if __name__ == "__main__":
    dist.init_process_group("gloo")
    batches = iter(DataLoader(Samples(), num_workers=1, multiprocessing_context="fork"))
    next(batches)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    with client.section("step"):
        for batch in batches:
            dist.all_reduce(batch)
    dist.destroy_process_group()
"""


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_a_loaders_worker_that_was_forked_before_the_client_began_is_named_with_its_line(
    ft: Launcher,
) -> None:
    """As in a script that knows nothing of holdfast: its workers are older than its third step."""
    job = ft.start(
        *("--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", "logs"),
        *("--ft-warm-standby", "false", "--ft-rank-section-timeouts", "step:4"),
        ft.script(LOADER, "train.py"),
    )
    assert job.wait(3 * BOUND_S) == 0, job.stderr
    assert "read_sample train.py:" in job.culprit()["worker"], job.stderr
    assert job.said(r"worker pid \d+, state S, read_sample train.py:\d+")
