"""What is put before the command of each rank to bind it to CPUs and memory."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from holdfast.base.facts import NoBindingError, numa_nodes, torchs_numa_prefixes, why_not_bound
from holdfast.options import numa_commands
from holdfast.options.arguments import UsageError
from holdfast.options.numa import by_count
from tests.unit.options.test_plan import plan

NUMACTL = {"train.py", "numactl", "./tool"}


def bound_to(node: int) -> tuple[str, ...]:
    return ("numactl", "--cpunodebind", str(node), "--membind", str(node))


@pytest.mark.parametrize(
    ("text", "nproc", "expected"),
    [
        ("1", 2, [0, 1]),
        ("2", 4, [0, 0, 1, 1]),
        ("4", 8, [0, 0, 0, 0, 1, 1, 1, 1]),
        ("4", 6, [0, 0, 0, 0, 1, 1]),
        ("8", 2, [0, 0]),
    ],
)
def test_ranks_in_a_row_share_a_numa_node(text: str, nproc: int, expected: list[int]) -> None:
    """Specification 10: local rank // G."""
    assert by_count(text, nproc, None) == tuple(map(bound_to, expected))


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "²"])
def test_only_a_number_of_gpus_is_taken(text: str) -> None:
    with pytest.raises(UsageError, match=r"NVRX_GPUS_PER_NUMA='.*' cannot be used"):
        by_count(text, 2, None)


def test_a_numa_node_that_does_not_exist_is_named_before_anything_starts() -> None:
    text = r"local rank 4, 5 on NUMA node 2, which this host does not have \(it has 0, 1\)"
    with pytest.raises(UsageError, match=text):
        by_count("2", 6, frozenset({0, 1}))


def test_the_command_of_a_rank_begins_with_its_binding() -> None:
    env = {"NVRX_GPUS_PER_NUMA": "1", "PYTHON_EXEC": ""}
    two = plan("--nproc-per-node 2 --no-python ./tool ${local_rank}", env, programs=NUMACTL)
    assert two.command_for(1) == [*bound_to(1), "./tool", "1"]


def test_a_function_is_not_bound() -> None:
    """--run-path stands for one, as specified."""
    env = {"NVRX_GPUS_PER_NUMA": "1"}
    assert plan("--run-path train.py", env, programs=NUMACTL).numa == ()


def test_without_numactl_nothing_is_started() -> None:
    with pytest.raises(UsageError, match="needs the program numactl, which is not on PATH"):
        plan(environ={"NVRX_GPUS_PER_NUMA": "1"})
    with pytest.raises(UsageError, match="--numa-binding=node needs the program numactl"):
        plan("--numa-binding node train.py")


def test_a_number_that_is_none_is_told_before_a_program_that_is_missing() -> None:
    """Whoever installed it would get the next error."""
    with pytest.raises(UsageError, match="NVRX_GPUS_PER_NUMA='two' cannot be used"):
        plan(environ={"NVRX_GPUS_PER_NUMA": "two"})


def test_ranks_are_bound_one_way() -> None:
    with pytest.raises(UsageError, match="both bind ranks; take one of them"):
        plan("--numa-binding node train.py", {"NVRX_GPUS_PER_NUMA": "1"}, programs=NUMACTL)


def test_torch_says_which_cpus_are_near_a_gpu() -> None:
    """Its words are taken as they are."""
    told = [["numactl", "--physcpubind=0-7"], ["numactl", "--physcpubind=8-15"]]
    both = plan(
        "--numa-binding exclusive --nproc-per-node 2 train.py", programs=NUMACTL, prefixes=told
    )
    assert both.command_for(1)[:2] == told[1]


def test_a_host_that_torch_cannot_bind_on_is_one_clear_error() -> None:
    """There is no GPU whose place it could look up, for example."""
    text = r"--numa-binding=node: torch cannot bind ranks .*: no GPU"
    with pytest.raises(UsageError, match=text):
        plan("--numa-binding node train.py", programs=NUMACTL, prefixes=NoBindingError("no GPU"))


def test_what_numactl_refuses_is_one_clear_error() -> None:
    """A container may see nodes that it must not use; found out by a trial."""
    text = (
        r"NVRX_GPUS_PER_NUMA=4: local rank 0 would be started with `numactl --cpunodebind 0 "
        r"--membind 0`, which fails on this host: set_mempolicy: not permitted"
    )
    with pytest.raises(UsageError, match=text):
        plan(
            environ={"NVRX_GPUS_PER_NUMA": "4"},
            programs=NUMACTL,
            unbound="set_mempolicy: not permitted",
        )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("exec " + '"$@"', None),
        ("echo one >&2; echo '<7> is out of range' >&2; exit 1", "<7> is out of range"),
        ("exit 3", "exit code 3"),
    ],
)
def test_a_binding_is_tried_before_anything_starts(words: str, problem: str | None) -> None:
    prefix = ["/bin/sh", "-c", words, "numactl"]
    assert why_not_bound(prefix, os.environ) == problem
    assert why_not_bound(["/nowhere/numactl"], {}) == "No such file or directory"


@pytest.mark.parametrize(
    ("text", "expected"), [("0", {0}), ("0-1", {0, 1}), ("0,2-3\n", {0, 2, 3}), ("x", None)]
)
def test_numa_nodes_are_read_from_the_kernel(
    tmp_path: Path, text: str, expected: set[int] | None
) -> None:
    path = tmp_path / "online"
    path.write_text(text)
    assert numa_nodes(str(path)) == expected
    assert numa_nodes(str(tmp_path / "none")) is None


def test_torch_is_asked_for_each_rank(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its own implementation; here it is told where the GPUs are."""
    binding = pytest.importorskip("torch.numa.binding")
    name = "_get_numa_node_index_for_gpu_index"
    if not hasattr(binding, name):
        name = "_get_numa_node_index_for_device_index"  # torch 2.14
    monkeypatch.setattr(binding, name, lambda **index: next(iter(index.values())))
    near = {0: {0, 1}, 1: {2, 3, 7}}
    monkeypatch.setattr(
        binding,
        "_get_allowed_logical_cpu_indices_for_numa_node",
        lambda *, numa_node_index: near[numa_node_index],
    )
    monkeypatch.setattr(sys, "argv", ["-c", "node", "2"])
    numa_commands.main()
    told = json.loads(capsys.readouterr().out)
    assert told == [["numactl", "--physcpubind=0-1"], ["numactl", "--physcpubind=2-3,7"]]


@pytest.mark.parametrize(
    "choose",
    [
        lambda *, gpu_index, numa_options: {gpu_index},
        lambda *, device_index, numa_options: {device_index},
    ],
    ids=["torch 2.13", "torch 2.15"],
)
def test_torch_may_call_a_gpu_a_device(choose: object, monkeypatch: pytest.MonkeyPatch) -> None:
    binding = pytest.importorskip("torch.numa.binding")
    torch_private = pytest.importorskip("holdfast.base.torch_private")
    monkeypatch.setattr(binding, "_get_logical_cpus_to_bind_to", choose)
    assert torch_private.cpus_near_device("node", 5) == "5"


def test_torchs_own_error_is_passed_on() -> None:
    """The last line of it; here there is no such mode."""
    pytest.importorskip("torch")
    with pytest.raises(NoBindingError, match="ValueError: 'nearby' is not a valid AffinityMode"):
        torchs_numa_prefixes("nearby", 1)
