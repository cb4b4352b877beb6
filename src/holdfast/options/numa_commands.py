"""Torch's own answer to ``--numa-binding``: the words before each rank's command.

Run in a process of its own (:func:`holdfast.base.facts.torchs_numa_prefixes`): torch asks CUDA
where each GPU is, and the launcher must neither import torch nor touch a GPU.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Print, for ``MODE NPROC``, one list of words for each local rank, as JSON."""
    mode, nproc = sys.argv[-2], int(sys.argv[-1])
    from holdfast.base.torch_private import cpus_near_device  # noqa: PLC0415 - imports torch

    prefixes = [
        ["numactl", f"--physcpubind={cpus_near_device(mode, local_rank)}"]
        for local_rank in range(nproc)
    ]
    sys.stdout.write(json.dumps(prefixes))
