"""Which of a node's numbers counts."""

from __future__ import annotations

import pytest

from holdfast.errors import ConfigError
from holdfast.job.pure.infra_rank import InfraRank, infra_rank

BLOCK = {"SLURM_TOPOLOGY_ADDR_PATTERN": "block.node", "SLURM_TOPOLOGY_ADDR": "b2.gpu-07"}
ARRAY = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_NNODES": "4"}
BY_NAME = {"NVRX_INFRA_RANK_FROM_NODENAME": "1", "SLURMD_NODENAME": "rack02-node013"}
IN_ARRAY = "SLURM_ARRAY_TASK_ID, SLURM_NNODES, SLURM_PROCID"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, None, id="a workstation"),
        pytest.param({"GROUP_RANK": "2"}, InfraRank(2, "GROUP_RANK"), id="by hand"),
        pytest.param({"GROUP_RANK": " 2 "}, InfraRank(2, "GROUP_RANK"), id="with blanks"),
        pytest.param({"GROUP_RANK": ""}, None, id="set to nothing"),
        pytest.param(
            {"SLURM_PROCID": "5", "GROUP_RANK": "2"}, InfraRank(5, "SLURM_PROCID"), id="S"
        ),
        pytest.param(
            {"SLURM_JOB_ID": "9", "GROUP_RANK": "2"}, InfraRank(2, "GROUP_RANK"), id="no procid"
        ),
        pytest.param({"SLURM_PROCID": "1", **ARRAY}, InfraRank(13, IN_ARRAY), id="array"),
        pytest.param(
            {"SLURM_PROCID": "1", "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_NUM_NODES": "2"},
            InfraRank(7, "SLURM_ARRAY_TASK_ID, SLURM_JOB_NUM_NODES, SLURM_PROCID"),
            id="array, other name",
        ),
        pytest.param(
            {"SLURM_PROCID": "1", **ARRAY, **BLOCK},
            InfraRank(2 * 10**10 + 7, "SLURM_TOPOLOGY_ADDR", is_place=False),
            id="block and node",
        ),
        pytest.param(
            {**BLOCK, "SLURM_TOPOLOGY_NODES_PER_BLOCK": "18"},
            InfraRank(2 * 18 + 7, "SLURM_TOPOLOGY_ADDR", is_place=False),
            id="nodes per block",
        ),
        pytest.param(
            {"SLURM_PROCID": "1", **BLOCK, "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node"},
            InfraRank(1, "SLURM_PROCID"),
            id="another topology",
        ),
        pytest.param(
            {"SLURM_PROCID": "1", **BLOCK, "SLURM_TOPOLOGY_ADDR": ""},
            InfraRank(1, "SLURM_PROCID"),
            id="a topology without an address",
        ),
        pytest.param(
            {"CROSS_SLURM_PROCID": "6", "SLURM_PROCID": "1", **ARRAY, **BLOCK},
            InfraRank(6, "CROSS_SLURM_PROCID"),
            id="across jobs",
        ),
        pytest.param(
            {"CROSS_SLURM_PROCID": "6", "SLURM_PROCID": "1", **BY_NAME, **BLOCK},
            InfraRank(2013, "SLURMD_NODENAME", is_place=False),
            id="node name",
        ),
        pytest.param(
            {"SLURM_PROCID": "1", **BY_NAME, "NVRX_INFRA_RANK_FROM_NODENAME": "0"},
            InfraRank(1, "SLURM_PROCID"),
            id="node name not asked for",
        ),
    ],
)
def test_the_first_number_in_the_order_of_precedence_counts(
    environ: dict[str, str], expected: InfraRank | None
) -> None:
    """Specification §8; whether it is a place or only an order goes with it."""
    assert infra_rank(environ) == expected


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        pytest.param({"SLURM_JOB_ID": "42"}, "this is Slurm job 42", id="not through srun"),
        pytest.param({"SLURM_PROCID": "-1"}, "SLURM_PROCID: '-1' cannot be used", id="negative"),
        pytest.param({"GROUP_RANK": "one"}, "GROUP_RANK: 'one' cannot be used", id="a word"),
        pytest.param({"GROUP_RANK": "²"}, "GROUP_RANK: '²' cannot be used", id="no digit"),
        pytest.param(
            {"SLURM_PROCID": "0", "SLURM_ARRAY_TASK_ID": "3"},
            "SLURM_ARRAY_TASK_ID is 3, but neither",
            id="array of unknown size",
        ),
        pytest.param(
            {**BY_NAME, "SLURMD_NODENAME": "login"}, "'login' has no digits", id="no digits"
        ),
        pytest.param(
            {"NVRX_INFRA_RANK_FROM_NODENAME": "1"}, "SLURMD_NODENAME: it is not set", id="no name"
        ),
    ],
)
def test_a_number_that_cannot_be_used_is_named(environ: dict[str, str], text: str) -> None:
    """A wrong number ends in two nodes with one rank; better to say it here."""
    with pytest.raises(ConfigError) as e:
        infra_rank(environ)

    assert text in str(e.value)


def in_block(address: str, **more: str) -> int:
    pattern = {"SLURM_TOPOLOGY_ADDR_PATTERN": "block.node", "SLURM_PROCID": "1"}
    found = infra_rank({**pattern, "SLURM_TOPOLOGY_ADDR": address, **more})
    assert found is not None
    assert (found.source, found.is_place) == ("SLURM_TOPOLOGY_ADDR", False)
    return found.rank


@pytest.mark.parametrize(
    ("address", "block", "node"),
    [
        ("b2.gpu-07", 2, 7),
        ("block03.node012", 3, 12),
        ("BLOCK03.Node012", 3, 12),
        ("rack1-b2.n3", 12, 3),
        ("b2.rack1-node03", 2, 103),
        ("b2.rack2-node03", 2, 203),
        ("b2.gpu07-ib0", 2, 70),
        ("7.9", 7, 9),
        (" b0.n0 ", 0, 0),
    ],
)
def test_all_digits_of_each_half_of_a_topology_address_count(
    address: str, block: int, node: int
) -> None:
    """Two nodes of one block, in racks 1 and 2, once had the number of their last digits, both."""
    assert in_block(address) == block * 10**10 + node


@pytest.mark.parametrize("pattern", ["Block.Node", " BLOCK.NODE "])
def test_the_case_of_the_topology_s_pattern_does_not_matter(pattern: str) -> None:
    assert in_block("b2.n7", SLURM_TOPOLOGY_ADDR_PATTERN=pattern) == 2 * 10**10 + 7


@pytest.mark.parametrize(
    "address", ["rack.node-a", "b.n3", "b2.n", "b2", "b2.", ".n3", "s1.b2.n3", "b².n3"]
)
def test_a_topology_address_that_cannot_be_read_is_refused(address: str) -> None:
    """Beside nodes that are numbered by theirs, SLURM_PROCID could give this one their number."""
    with pytest.raises(ConfigError, match="a block and a node with a dot between") as error:
        in_block(address)
    assert repr(address) in str(error.value)
    assert "SLURM_TOPOLOGY_ADDR_PATTERN" in str(error.value)
