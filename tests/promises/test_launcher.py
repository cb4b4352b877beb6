"""``ft_launcher``: its options, when a rank counts as hung, where a node is, and its exit codes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nvidia_resiliency_ext
from holdfast.page.pure.clocks import Snapshot, Timeouts
from holdfast.watch.pure.hang import overdue
from nvidia_resiliency_ext.fault_tolerance.launcher import parse_args, parse_min_max_nnodes
from nvidia_resiliency_ext.fault_tolerance.utils import get_infrastructure_rank
from tests.promises.rows import promise, promises
from tests.real.harness import Job, Launcher, launcher
from tests.waiting import until

HERE = "fault-tolerance"


# ---------------------------------------------------------------- the command line
@promises(
    f"{HERE} 5.1",
    "words, name, value",
    {
        f"`{words}`": (words, name, value)
        for words, name, value in (
            ("--nnodes=1:2", "nnodes", "1:2"),
            ("--nproc-per-node 4", "nproc_per_node", "4"),
            ("--nproc_per_node 4", "nproc_per_node", "4"),
            ("--max_restarts=3", "max_restarts", 3),
            ("--rdzv_backend c10d", "rdzv_backend", "c10d"),
            ("--rdzv-conf=is_host=1,timeout=60", "rdzv_conf", "is_host=1,timeout=60"),
            ("--log-dir logs", "log_dir", "logs"),
            ("-r 3", "redirects", "3"),
            ("--tee 0:3,7:3", "tee", "0:3,7:3"),
            ("--no-python", "no_python", True),
            ("-m", "module", True),
            ("--workers-stop-timeout=30", "workers_stop_timeout", 30.0),
            ("--term-timeout=60", "term_timeout", 60.0),
            ("--ft-restart-policy=min-healthy", "ft_restart_policy", "min-healthy"),
            ("--ft-rdzv-impl=legacy", "ft_rdzv_impl", "legacy"),
        )
    },
)
def test_options(words: str, name: str, value: Any) -> None:
    args = parse_args([*words.split(), "train.py", "--lr", "1"])
    assert getattr(args, name) == value
    assert (args.training_script, args.training_script_args) == ("train.py", ["--lr", "1"])


@promises(
    f"{HERE} 5.1",
    "name, value",
    {
        f"`{name}` is {value!r} by default": (name, value)
        for name, value in {
            "rdzv_backend": "c10d",
            "monitor_interval": 0.3,
            "max_restarts": 0,
            "term_timeout": 1800.0,
            "workers_stop_timeout": 15.0,
            "rdzv_id": "none",
            "role": "default",
            "ft_restart_policy": "any-failed",
        }.items()
    },
)
def test_defaults(name: str, value: Any) -> None:
    assert getattr(parse_args(["train.py"]), name) == value


@promise(f"{HERE} 5.1", "An option's default comes from `PET_<NAME>`")
def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "7")
    monkeypatch.setenv("PET_FT_CFG_PATH", "/ft.yaml")
    args = parse_args(["train.py"])
    assert (args.nproc_per_node, args.ft_cfg_path) == ("7", "/ft.yaml")


@promise(f"{HERE} 5.1", "`--nnodes` is `N` or `MIN:MAX`")
def test_nnodes() -> None:
    assert [parse_min_max_nnodes(text) for text in ("2", "1:4")] == [(2, 2), (1, 4)]


# ---------------------------------------------------------------- when a rank counts as hung
SILENT = Snapshot(armed_at=0.0, outside_since=0.0)
BEATING = Snapshot(armed_at=0.0, outside_since=0.0, heartbeat_at=50.0)
IN_A = Snapshot(armed_at=0.0, sections={"a": 10.0})
IN_A_AND_B = Snapshot(armed_at=0.0, sections={"a": 10.0, "b": 90.0})


@promises(
    f"{HERE} 3.3",
    "shown, limits, now, hung",
    {
        "Before the first heartbeat, the initial timeout runs from init": (
            *(SILENT, Timeouts(initial=20.0, subsequent=1.0), 20.5, True),
        ),
        "... and only strictly above it a rank is hung": (
            *(SILENT, Timeouts(initial=20.0), 20.0, False),
        ),
        "After it, the timeout runs from the last heartbeat": (
            *(BEATING, Timeouts(initial=20.0, subsequent=10.0), 59.0, False),
        ),
        "... and then the rank is hung": (BEATING, Timeouts(subsequent=10.0), 60.5, True),
        "Sections do not feed the heartbeat clock": (
            *(IN_A_AND_B, Timeouts(initial=20.0, sections={"a": None, "b": None}), 91.0, True),
        ),
        "Heartbeats do not feed the clocks of sections": (
            *(BEATING, Timeouts(out_of_section=40.0), 51.0, True),
        ),
        "Each open section is timed from its own opening": (
            *(IN_A_AND_B, Timeouts(sections={"a": 100.0, "b": 5.0}), 94.0, False),
        ),
        "Any single one of them above its timeout is enough": (
            *(IN_A_AND_B, Timeouts(sections={"a": 50.0, "b": 50.0}), 91.0, True),
        ),
        "The time outside sections runs from init where none was opened": (
            *(SILENT, Timeouts(out_of_section=10.0), 10.5, True),
        ),
        "... and not while one is open": (IN_A, Timeouts(out_of_section=10.0), 1000.0, False),
        "No timeout never runs out": (IN_A, Timeouts(sections={"a": None}), 1e9, False),
        "A section without configuration is not timed": (IN_A, Timeouts(), 1e9, False),
    },
)
def test_hung(shown: Snapshot, limits: Timeouts, now: float, hung: bool) -> None:
    assert (overdue(shown, limits, now) is not None) is hung


# ---------------------------------------------------------------- where a node is
@promises(
    f"{HERE} 8",
    "environ, number",
    {
        "`SLURM_PROCID` is the node's number": ({"SLURM_PROCID": "5", "GROUP_RANK": "2"}, 5),
        "... else `GROUP_RANK`": ({"GROUP_RANK": "2"}, 2),
        "... else there is none": ({}, -1),
        "`CROSS_SLURM_PROCID` comes before": ({"CROSS_SLURM_PROCID": "7", "SLURM_PROCID": "5"}, 7),
        "In an array, tasks of n nodes follow each other": (
            {"SLURM_PROCID": "1", "SLURM_ARRAY_TASK_ID": "3", "SLURM_NNODES": "4"},
            13,
        ),
        "The digits of the node's name, if asked for": (
            {
                "NVRX_INFRA_RANK_FROM_NODENAME": "1",
                "SLURMD_NODENAME": "r02-n013",
                "SLURM_PROCID": "1",
            },
            2013,
        ),
    },
)
def test_places(environ: dict[str, str], number: int) -> None:
    assert get_infrastructure_rank(environ) == number


@promise(f"{HERE} 8", "A Slurm job without the process's number: RuntimeError")
def test_no_place() -> None:
    with pytest.raises(RuntimeError):
        get_infrastructure_rank({"SLURM_JOB_ID": "42"})


# ---------------------------------------------------------------- how a launcher ends
@pytest.fixture(scope="module")
def ft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    with launcher(tmp_path_factory.mktemp("launchers")) as jobs:
        yield jobs


def start(ft: Launcher, source: str, *options: str) -> Job:
    script = ft.script("import os, signal, sys, time\n" + source)
    return ft.start(
        *options,
        script,
        module="nvidia_resiliency_ext.fault_tolerance.launcher",
        env={"PYTHONPATH": str(Path(nvidia_resiliency_ext.__file__).parents[1])},
    )


ASKS = """
from nvidia_resiliency_ext.fault_tolerance import *
client = RankMonitorClient()
client.init_workload_monitoring()
client.send_workload_control_request(WorkloadControlRequest(WorkloadAction.{action}, "why not"))
sys.exit(1)
"""


@promises(
    f"{HERE} 7.6",
    "code, source, options",
    {
        "All ranks succeed: 0": (0, "", ()),
        "Ranks failed, and no restart is left: 1": (1, "sys.exit(3)", ()),
        "A configuration file that does not exist: 1, whatever else is given": (
            *(1, "", ("--ft-cfg-path=/none.yaml", "--ft-rank-heartbeat-timeout=9")),
        ),
        "ExcludeThisNode: the node leaves with 0": (
            *(0, ASKS.format(action="ExcludeThisNode"), ("--max-restarts=3",)),
        ),
        "ShutdownWorkload: 1, and no restart": (
            *(1, ASKS.format(action="ShutdownWorkload"), ("--max-restarts=3",)),
        ),
    },
)
def test_exit_codes(ft: Launcher, code: int, source: str, options: tuple[str, ...]) -> None:
    job = start(ft, source, *options)
    assert job.wait() == code, job.stderr
    assert "cycle 1" not in job.stderr


ENDS = """
def told(*_):
    open(os.environ["OUT"] + "/told", "w").close()
    sys.exit(3)

signal.signal(signal.SIGTERM, told)
open(os.environ["OUT"] + "/ready", "w").close()
time.sleep(1000)
"""


@promise(f"{HERE} 7.5", "SIGTERM is passed on to the ranks; one of them ends with another code: 1")
def test_signalled(ft: Launcher) -> None:
    job = start(ft, ENDS)
    until((job.folder / "ready").exists, "the rank is ready")
    job.signal(signal.SIGTERM)
    assert job.wait() == 1, job.stderr
    assert (job.folder / "told").exists()


HANGS = """
from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.send_heartbeat()
    time.sleep(1000)
"""


@promise(f"{HERE} 4.4", "A hung rank is ended, in words that programs look for; the job goes on")
def test_hang(ft: Launcher) -> None:
    options = "--max-restarts=1", "--ft-rank-heartbeat-timeout=0.5", "--ft-log-level=debug"
    job = start(ft, HANGS, *options)
    assert job.wait() == 0, job.stderr
    assert job.said("Did not get subsequent heartbeat")
    assert job.said("Worker group FAILED. 0/1 attempts left; will restart worker group")
    assert job.said("has joined round 1 of the rendezvous")
