"""The longest intervals of all ranks, over the job's own process group."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from holdfast.errors import TimeoutsCalcError


def max_over_ranks(values: Sequence[float]) -> list[float]:
    """Element-wise maximum of ``values`` over all ranks of the default process group.

    A collective: every rank calls it, with equally many values. Carried out in float32, on the CPU
    where the group has gloo, else on the current CUDA device where it has nccl.

    Raises:
        TimeoutsCalcError: There is no default process group.
        RuntimeError: The process group has neither gloo nor nccl, or the collective failed.
    """
    # A program with a process group has imported this; others need not wait for torch.
    if "torch.distributed" not in sys.modules:
        raise TimeoutsCalcError(_NO_GROUP)
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    if not (dist.is_available() and dist.is_initialized()):
        raise TimeoutsCalcError(_NO_GROUP)
    tensor = torch.tensor(values, dtype=torch.float32, device=_device(dist.get_backend_config()))
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    maxima: list[float] = tensor.tolist()
    return maxima


_NO_GROUP = (
    "timeouts are calculated from the durations on all ranks, which needs the default process "
    "group; "
    "call torch.distributed.init_process_group() first"
)


def _device(backend_config: str) -> str:
    """Where tensors for a group have to be; ``backend_config`` is like ``cpu:gloo,cuda:nccl``."""
    backends = {}
    for part in backend_config.split(","):
        device, _, backend = part.rpartition(":")
        backends[device or backend] = backend
    if "gloo" in (backends.get("cpu"), backends.get("gloo")):
        return "cpu"
    if "nccl" in (backends.get("cuda"), backends.get("nccl")):
        return "cuda"
    raise RuntimeError(
        f"timeouts can be calculated over gloo or nccl, the default process group has "
        f"{backend_config!r}"
    )
