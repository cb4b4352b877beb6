"""The domain of a node: which others it is close to, for ``--ft-segment``.

Pure: an environment in, a name out. The first of these that is there counts::

    what the launcher finds                                    domain
    HOLDFAST_NODE_DOMAIN                                       itself: said by hand
    SLURM_TOPOLOGY_ADDR, its pattern having a block in it      the block, and what is above it
    the NVLink fabric of the GPUs (host/nvlink.py)             <cluster UUID>.<clique>

Only equality of domains counts, so all nodes of a job should find theirs in the same place. A
variable that is set to nothing is not set.
"""

from __future__ import annotations

from collections.abc import Mapping

BY_HAND = "HOLDFAST_NODE_DOMAIN"
_LONGEST = 200
"""More characters say nothing that fewer do not; every launcher's goes through the store."""


def node_domain(environ: Mapping[str, str]) -> str | None:
    """Domain of this node, as far as its environment says; ``None``: ask its GPUs."""
    if by_hand := environ.get(BY_HAND, "").strip():
        return by_hand[:_LONGEST]
    levels = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").strip().split(".")
    names = environ.get("SLURM_TOPOLOGY_ADDR", "").strip().split(".")
    if "block" not in levels or len(levels) != len(names):
        return None
    block = levels.index("block")
    if not names[block]:
        return None
    return ".".join(names[: block + 1])[:_LONGEST]
