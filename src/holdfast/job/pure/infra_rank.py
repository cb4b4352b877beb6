"""The number (infra rank) and the domain of a node, from its cluster or its user.

Pure: an environment in. The first of these that is there counts as its number::

    variable                                                 infra rank              meant as
    NVRX_INFRA_RANK_FROM_NODENAME=1 and SLURMD_NODENAME      digits of the name      order
    CROSS_SLURM_PROCID                                       itself                  place
    SLURM_TOPOLOGY_ADDR, its pattern being block.node        block * 10^10 + node    order
    SLURM_ARRAY_TASK_ID, number of nodes and SLURM_PROCID    task * nodes + procid   place
    SLURM_PROCID                                             itself                  place
    GROUP_RANK                                               itself                  place

A *place* is meant as the node's group rank; an *order* only says which node comes first (node
names don't start at 0). Digits of a name are read as one number, so names need leading zeros where
a name has several numbers; so are those of each half of ``block.node`` (in any case).
``SLURM_TOPOLOGY_NODES_PER_BLOCK`` replaces the 10^10; a node whose number is greater would come
out among the nodes of the next block, and is refused.

The domain says which others it is close to, for ``--ft-segment``; the first of these counts::

    HOLDFAST_NODE_DOMAIN                                       itself: said by hand
    SLURM_TOPOLOGY_ADDR, its pattern having a block in it      the block, and the levels above it
    the NVLink fabric of the GPUs (node/processes/nvlink.py)             <cluster UUID>.<clique>

Only equality of domains counts, so all nodes of a job should find theirs in the same place. A
variable that is set to nothing is not set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.base.pure.switches import is_set
from holdfast.base.pure.value import Value
from holdfast.errors import ConfigError

BLOCK_STRIDE = 10**10
"""Distance of the infra ranks of two blocks: more than any number in a node's name."""
BY_NODE_NAME = "NVRX_INFRA_RANK_FROM_NODENAME"
DOMAIN_BY_HAND = "HOLDFAST_NODE_DOMAIN"
_DOMAIN_LONGEST = 200
"""More characters say nothing that fewer do not; every launcher's goes through the store."""


class InfraRankError(ConfigError, RuntimeError):
    """A variable that numbers nodes cannot be used; a RuntimeError for programs that ask."""


class InfraRank(Value):
    """A node's number from outside.

    Attributes:
        rank: At least 0.
        source: The variables it was read from.
        is_place: It is meant as group rank; False: it only orders nodes.
    """

    rank: int
    source: str
    is_place: bool = True


def infra_rank(environ: Mapping[str, str]) -> InfraRank | None:
    """Number of this node; ``None``: it has none.

    A job of one node does not need it and should not ask: a shell inside a Slurm allocation
    (``salloc``) has a job, but no number.

    Raises:
        InfraRankError: A variable has a value that cannot be used, or a Slurm job lacks its number.
    """
    if is_set(environ, BY_NODE_NAME):
        return _from_node_name(environ)
    if (cross := whole_number(environ, "CROSS_SLURM_PROCID")) is not None:
        return InfraRank(cross, "CROSS_SLURM_PROCID")
    if (by_topology := _from_topology(environ)) is not None:
        return by_topology
    if (procid := whole_number(environ, "SLURM_PROCID")) is not None:
        return _from_array(environ, procid) or InfraRank(procid, "SLURM_PROCID")
    if (group_rank := whole_number(environ, "GROUP_RANK")) is not None:
        return InfraRank(group_rank, "GROUP_RANK")
    if job := environ.get("SLURM_JOB_ID"):
        raise InfraRankError(
            f"SLURM_PROCID is not set although this is Slurm job {job}: the launcher was not "
            "started by srun. Start it with srun --ntasks-per-node=1, or number the nodes with "
            "GROUP_RANK, or let them be numbered by address: --ft-use-infra-group-rank false"
        )
    return None


def whole_number(environ: Mapping[str, str], name: str) -> int | None:
    """Value of a variable, or InfraRankError; ``None``: it is not set."""
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise InfraRankError(
            f"{name}: {text!r} cannot be used; it takes a whole number, at least 0"
        )
    return int(text)


def _from_node_name(environ: Mapping[str, str]) -> InfraRank:
    name = environ.get("SLURMD_NODENAME", "")
    digits = _digits(name)
    if not digits:
        why = f"{name!r} has no digits" if name else "it is not set"
        raise InfraRankError(f"SLURMD_NODENAME: {why}; {BY_NODE_NAME} asks for a number in it")
    return InfraRank(int(digits), "SLURMD_NODENAME", is_place=False)


def _from_topology(environ: Mapping[str, str]) -> InfraRank | None:
    """``None``: the cluster has another topology, or says none."""
    if environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").strip().lower() != "block.node":
        return None
    address = environ.get("SLURM_TOPOLOGY_ADDR", "").strip()
    if not address:
        return None
    block, *nodes = (_digits(name) for name in address.split("."))
    if not block or len(nodes) != 1 or not nodes[0]:
        raise InfraRankError(
            f"SLURM_TOPOLOGY_ADDR: {address!r} cannot be used, although "
            "SLURM_TOPOLOGY_ADDR_PATTERN is block.node; it takes a block and a node with a dot "
            "between them, and a digit in each. Unset SLURM_TOPOLOGY_ADDR_PATTERN to number the "
            "nodes by SLURM_PROCID"
        )
    stride = whole_number(environ, "SLURM_TOPOLOGY_NODES_PER_BLOCK") or BLOCK_STRIDE
    number = int(nodes[0])
    if number > stride:  # equal: nodes that are counted from 1
        raise InfraRankError(
            f"SLURM_TOPOLOGY_ADDR: the node of {address!r} has number {number}, which is "
            f"more than SLURM_TOPOLOGY_NODES_PER_BLOCK ({stride}), so that it would count to the "
            "next block. Set SLURM_TOPOLOGY_NODES_PER_BLOCK to the greatest number in a node's "
            f"name, or unset it for {BLOCK_STRIDE}"
        )
    return InfraRank(int(block) * stride + number, "SLURM_TOPOLOGY_ADDR", is_place=False)


def _digits(name: str) -> str:
    return "".join(re.findall("[0-9]", name))


def _from_array(environ: Mapping[str, str], procid: int) -> InfraRank | None:
    task = whole_number(environ, "SLURM_ARRAY_TASK_ID")
    if task is None:
        return None
    for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
        if (nodes := whole_number(environ, name)) is not None:
            return InfraRank(task * nodes + procid, f"SLURM_ARRAY_TASK_ID, {name}, SLURM_PROCID")
    raise InfraRankError(
        f"SLURM_ARRAY_TASK_ID is {task}, but neither SLURM_NNODES nor SLURM_JOB_NUM_NODES says how "
        "many nodes each task of the array has"
    )


def node_domain(environ: Mapping[str, str]) -> str | None:
    """Domain of this node, as far as its environment says; ``None``: ask its GPUs."""
    if by_hand := environ.get(DOMAIN_BY_HAND, "").strip():
        return by_hand[:_DOMAIN_LONGEST]
    levels = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").strip().lower().split(".")
    names = environ.get("SLURM_TOPOLOGY_ADDR", "").strip().split(".")
    if "block" not in levels or len(levels) != len(names):
        return None
    block = levels.index("block")
    if not names[block]:
        return None
    return ".".join(names[: block + 1])[:_DOMAIN_LONGEST]
