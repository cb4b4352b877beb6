"""Rules of restarting in a job of several nodes, with real launchers."""

from __future__ import annotations

from pathlib import Path

from holdfast.net.port import ReservedPort
from tests.real.harness import Job, Launcher

FAILS = """
import os, pathlib, sys, time
cycle = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if os.environ["RANK"] == "1":
    pathlib.Path(os.environ["CHECKPOINT"]).write_text(str(100 * min(cycle + 1, 2)))
    sys.exit(3)
while True:
    time.sleep(1)
"""
"""Saves a checkpoint in the first two cycles, and fails in each, on one node."""


ASKS = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit(77)
while True:
    time.sleep(1)
"""
"""Knows, on one node, that another attempt is no use."""


def start_two(
    ft: Launcher, folder: Path, port: int, *options: str, source: str = FAILS
) -> list[Job]:
    script = ft.script(source)
    return [
        ft.start(
            *("--nnodes=2", "--nproc-per-node=1", "--rdzv-id=j1", "--max-restarts=9"),
            *(f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf", f"is_host={int(node == 0)}"),
            *("--ft-checkpoint-iteration-file", str(folder / "latest"), *options),
            script,
            env={"CHECKPOINT": str(folder / "latest"), "NVRX_DISABLE_RANK_MONITORS": "1"},
        )
        for node in range(2)
    ]


def test_a_job_of_two_nodes_that_does_not_advance_is_given_up(ft: Launcher, tmp_path: Path) -> None:
    """By both launchers, with the exit code that was asked for."""
    port = ReservedPort()
    jobs = start_two(
        ft, tmp_path, port.number, "--ft-no-restart-exit-code=77", "--ft-restart-backoff=0.1"
    )

    assert [job.wait() for job in jobs] == [77, 77]
    for job in jobs:
        assert job.said("after 3 restarts; exit code 77"), job.stderr
        assert job.said("no progress in 2 cycles in a row")
        assert not job.said("without effect")
    port.release()


def test_a_rank_of_one_node_may_ask_that_the_whole_job_is_not_started_again(
    ft: Launcher, tmp_path: Path
) -> None:
    """By its exit code, with nine restarts left; both launchers pass it on."""
    port = ReservedPort()
    jobs = start_two(ft, tmp_path, port.number, "--ft-no-restart-exit-code=77", source=ASKS)

    assert [job.wait() for job in jobs] == [77, 77]
    for job in jobs:
        assert job.said("after 0 restarts; exit code 77"), job.stderr
        assert job.said("exit code 77 asks for no restart")
    port.release()
