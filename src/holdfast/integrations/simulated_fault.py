"""A fault on purpose, some time after a callback was set up: a rank is killed or stopped.

To try out a job's recovery before a fault does. It is armed again after each restart.
"""

from __future__ import annotations

import random
import sys
import threading
from dataclasses import dataclass
from typing import Any

from holdfast.integrations._learned_file import has_process_group
from holdfast.testing import inject

_FAULTS = {"rank_killed": inject.Fault.SIGKILL, "rank_hung": inject.Fault.SIGSTOP}
_RANDOM = "random"
_CHANCE = random.SystemRandom()  # a trainer seeds the other one, for a training that repeats


@dataclass
class SimulatedFaultParams:
    """Which fault, and when.

    Attributes:
        fault_type: ``rank_killed`` (SIGKILL), ``rank_hung`` (SIGSTOP), or ``random``: one of them.
        base_delay: Seconds from the setup of the callback ...
        rand_delay: ... and a random part of so many more.
        rank_to_fail: Global rank; ``None``: a random one.

    Raises:
        ValueError: Another fault type.
    """

    fault_type: str
    base_delay: float
    rand_delay: float = 0.0
    rank_to_fail: int | None = None

    def __post_init__(self) -> None:
        if self.fault_type not in (*_FAULTS, _RANDOM):
            raise ValueError(
                f"fault_type is {self.fault_type!r}; accepted are {', '.join(_FAULTS)}, {_RANDOM}"
            )


def parse_fault(params: Any) -> SimulatedFaultParams | None:
    """The fault of a callback's argument: an instance, a mapping, or ``None``.

    Raises:
        ValueError: None of these, or an unknown fault type or field.
    """
    if params is None or isinstance(params, SimulatedFaultParams):
        return params
    try:
        return SimulatedFaultParams(**params)
    except TypeError as error:
        raise ValueError(
            f"simulated_fault_params is {params!r}, expected SimulatedFaultParams or a mapping of "
            f"its fields: {error}"
        ) from error


def arm_fault(params: SimulatedFaultParams) -> None:
    """Every rank calls this; one of them fails later. A collective where there is a group."""
    rank, target = 0, params.rank_to_fail or 0
    if has_process_group():
        import torch.distributed as dist  # noqa: PLC0415 - the caller has imported it

        rank = dist.get_rank()
        chosen = params.rank_to_fail
        if chosen is None:
            chosen = _CHANCE.randrange(dist.get_world_size())
        shared = [chosen]
        dist.broadcast_object_list(shared, src=0)  # on the device of the group, gloo's or nccl's
        target = shared[0]
    kind = params.fault_type if params.fault_type in _FAULTS else _CHANCE.choice([*_FAULTS])
    delay_s = params.base_delay + _CHANCE.random() * params.rand_delay
    if rank == 0:
        _print(f"Fault to simulate: {params}", sys.stdout)
    if rank != target:
        return
    if rank == 0:
        _print(f"Selected fault: {kind}; rank to fail: {target}", sys.stdout)
    timer = threading.Timer(delay_s, _fail, (kind, target))
    timer.daemon = True
    timer.start()


def _fail(kind: str, rank: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        _print(f"Simulating fault: {kind}; rank to fail: {rank}", stream)
    inject.strike(_FAULTS[kind])


def _print(line: str, stream: Any) -> None:
    if stream is not None:  # a program may have closed it
        stream.write(f"{line}\n")
        stream.flush()
