"""Which probes a node's health process runs: before each join, and while ranks run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.core.health import Finding
from holdfast.health import gpu, gpu_memory, nvlink, nvml
from holdfast.health.bounded import Check
from holdfast.health.wanted import PROBES_S, SERVICE_S, Wanted

_GPU_S = PROBES_S
"""A driver without its persistence daemon wakes the GPUs before it answers."""
_DEVICE_NODES = ("/dev/nvidiactl", "/dev/dxg")


def before_join(wanted: Wanted) -> list[Check]:
    """Asked while no rank of this node is alive."""
    checks = [
        Check("gpu", _GPU_S, functools.partial(_of_driver, gpu.look, wanted)),
        Check("nvlink", _GPU_S, functools.partial(_of_driver, nvlink.look, wanted)),
    ]
    if wanted.endpoint:
        look = functools.partial(_service, wanted.endpoint)
        checks.append(Check("service", SERVICE_S + 2.0, look))
    return checks


def while_running(wanted: Wanted) -> list[Check]:
    """Asked every ``interval_s`` seconds."""
    checks: list[Check] = []
    if nvml.is_loaded():  # by the check before the first join
        look = functools.partial(gpu.look, ranks_run=True)
        checks.append(Check("gpu", _GPU_S, functools.partial(_of_driver, look, wanted)))
    return checks


def used_mib(wanted: Wanted) -> Mapping[str, float]:
    """Memory in use on each GPU of this node's ranks; nothing where there is no driver."""
    return gpu_memory.used_mib(wanted.visible_devices, wanted.nproc)


def memory_holders(wanted: Wanted) -> list[int]:
    """Processes that hold memory there, as far as the driver says."""
    return gpu_memory.holders(wanted.visible_devices, wanted.nproc)


def _of_driver(
    look: Callable[[str | None, int | None], list[Finding]], wanted: Wanted
) -> list[Finding]:
    """On a host without GPUs nobody misses their driver."""
    findings = look(wanted.visible_devices, wanted.nproc)
    has_gpus = nvml.is_loaded() or any(Path(node).exists() for node in _DEVICE_NODES)
    return findings if has_gpus else []


def _service(endpoint: str) -> list[Finding]:
    from holdfast.health.node_service import ask  # noqa: PLC0415 - gRPC takes its time

    return ask(endpoint, deadline_s=SERVICE_S)
