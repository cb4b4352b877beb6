"""What a launcher says of what it runs: from its command line, its script and its scheduler."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

import pytest

from holdfast.base import facts
from holdfast.fault_tolerance import elastic
from holdfast.job.pure.workload import Workload, difference
from holdfast.options.arguments import parse_args
from holdfast.options.cluster_env import slurm_ids
from holdfast.options.plan import make_plan

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}


def workload(line: str, **environ: str) -> Workload:
    """Of a launcher with this command line, in the current folder."""
    words = f"--rdzv-endpoint here:4000 --nnodes 2 {line}".split()
    found = make_plan(parse_args(words, environ), environ).workload
    assert found is not None
    return found


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders ``a`` and ``b`` with one train.py, and an eval.py in ``a``, below the current one."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text("print('trains')")
    (tmp_path / "a" / "eval.py").write_text("print('evaluates')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_script_is_what_it_contains_wherever_it_lies(folders: Path) -> None:
    """Each node may have it at a path of its own."""
    here = workload("a/train.py --lr 1")
    assert (here.kind, here.name, here.n_arguments) == ("script", "train.py", 2)
    assert here.contents == hashlib.sha256((folders / "a/train.py").read_bytes()).hexdigest()
    assert difference(here, workload("b/train.py --lr 1")) is None
    assert difference(here, workload(f"--run-path {folders}/b/train.py --lr 1")) is None
    found = difference(here, workload("a/eval.py --lr 1"))
    assert found is not None
    assert found.is_another_job


def test_a_script_that_is_edited_while_its_job_runs_is_the_same_script(folders: Path) -> None:
    """A launcher that comes back runs the new text, as the others do after their next restart."""
    before = workload("a/train.py")
    (folders / "a" / "train.py").write_text("print('trains better')")
    found = difference(before, workload("a/train.py"))
    assert found is not None
    assert not found.is_another_job


@pytest.mark.usefixtures("folders")
def test_numbers_and_names_come_from_the_command_line() -> None:
    given = workload("--nnodes 1:3 --max-restarts 5 --rdzv-id j1 a/train.py")
    assert (given.min_nodes, given.max_nodes, given.max_restarts) == (1, 3, 5)
    assert given.is_named
    assert not given.is_mixed
    for line in ("a/train.py", "--rdzv-id none a/train.py"):
        assert not workload(line).is_named
    assert workload("--rdzv-conf mixed_workloads=1 a/train.py").is_mixed
    module = workload("-m json.tool --sort-keys")
    assert (module.kind, module.name, module.contents, module.path) == (
        "module",
        "json.tool",
        "",
        "",
    )
    assert workload("--no-python bash a.sh").name == "bash"


def test_a_job_of_one_node_says_nothing(folders: Path) -> None:
    """Nor is its script read."""
    assert make_plan(parse_args([str(folders / "a/train.py")], {}), {}).workload is None


@pytest.mark.parametrize(
    ("environ", "ids"),
    [
        ({}, ("", "")),
        (STEP, ("7", "0.0")),
        ({**STEP, "SLURM_RESTART_COUNT": "2"}, ("7", "0.2")),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, ("7", "")),
        ({"SLURM_JOB_ID": "7"}, ("7", "")),
        ({**STEP, "SLURM_HET_SIZE": "2"}, ("", "")),
        ({**STEP, "SLURM_ARRAY_TASK_ID": "0"}, ("", "")),
        ({**STEP, "CROSS_SLURM_PROCID": "0"}, ("", "")),
    ],
)
def test_slurm_tells_who_was_started_together(environ: dict[str, str], ids: object) -> None:
    """Not where one task was: in an allocation's shell, two jobs may be started in one step."""
    assert slurm_ids(environ) == ids


def test_only_text_at_rest_is_read(tmp_path: Path) -> None:
    """A pipe would be empty for the rank; a binary differs from node to node; nothing fails."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    wrapper, binary = tmp_path / "run.sh", tmp_path / "run"
    wrapper.write_text("#!/bin/sh\n")
    binary.write_bytes(b"\x7fELF")
    assert facts.script_digest(str(pipe), program=False) is None
    assert facts.script_digest(str(tmp_path), program=False) is None
    assert facts.script_digest(str(tmp_path / "none"), program=False) is None
    assert facts.script_digest(str(binary), program=True) is None
    assert facts.script_digest(str(wrapper), program=True)
    assert facts.script_digest(str(binary), program=False)


def train() -> None:
    """A function that a program launches."""


@pytest.mark.usefixtures("folders")
def test_a_function_is_known_by_its_name() -> None:
    """And not by the folder that it was handed over in, nor by where an object lies in memory."""
    words = ["--rdzv-endpoint=here:4000", "--nnodes=2", "a/train.py", "/tmp/xyz"]
    plan = make_plan(parse_args(words, {}), {})
    named = elastic._of_function(plan, train).workload
    assert named is not None
    assert (named.kind, named.name, named.arguments) == ("function", f"{__name__}.train", "")
    partials = [elastic._of_function(plan, functools.partial(train)).workload for _ in range(2)]
    assert partials[0] == partials[1]
