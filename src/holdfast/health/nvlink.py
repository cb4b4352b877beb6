"""Do the NVLinks of GPUs work? A fact for people: nothing here keeps a node out.

How many links a GPU has in use depends on the machine it is built into; a GPU with fewer than
others of its kind in the same machine has lost some.

Unhealthy: never.

Suspect: fewer active links than another GPU of its kind here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.health import nvml
from holdfast.health.nvml import Gpu, GpuBrokenError, Nvml, NvmlError
from holdfast.health.pure.health import Finding, Fitness

PROBE = "nvlink"
_MAX_LINKS = 36
"""``NVML_NVLINK_MAX_LINKS``"""


@dataclass(frozen=True)
class Links:
    """NVLinks of one GPU; ``n_active`` None: it does not say, because of ``error``."""

    position: int
    name: str
    kind: str
    n_active: int | None
    n_links: int = 0
    error: str = ""


def look(visible_devices: str | None, limit: int | None = None) -> list[Finding]:
    """One finding for each GPU that ranks use; see :meth:`.Nvml.visible`."""
    try:
        library, gpus = nvml.visible(visible_devices)  # all are compared
    except NvmlError as error:
        return [Finding(PROBE, "driver", Fitness.UNKNOWN, f"cannot inspect NVLinks: {error}")]
    findings = judge([_links(library, gpu) for gpu in gpus])
    return findings if limit is None else findings[:limit]


def judge(gpus: Sequence[Links]) -> list[Finding]:
    """A GPU with fewer active links than the best of its kind is suspect."""
    most: dict[str, int] = {}
    for gpu in gpus:
        most[gpu.kind] = max(most.get(gpu.kind, 0), gpu.n_active or 0)
    return [_verdict(gpu, most[gpu.kind]) for gpu in gpus]


def _verdict(gpu: Links, most: int) -> Finding:
    verdict, text = Fitness.HEALTHY, ""
    if gpu.n_active is None:
        verdict, text = Fitness.UNKNOWN, gpu.error
    elif gpu.n_active < most:
        verdict = Fitness.SUSPECT
        text = (
            f"{gpu.n_active} of {gpu.n_links} links are active, {most} on others of this node; "
            "see nvidia-smi nvlink --status"
        )
    return Finding(PROBE, gpu.name, verdict, text, gpu.position)


def _links(library: Nvml, gpu: Gpu) -> Links:
    if gpu.error is not None:
        return Links(gpu.position, gpu.name, "", None, error=str(gpu.error))
    kind = ""
    with contextlib.suppress(NvmlError):
        kind = str(library.ask("nvmlDeviceGetName", gpu.handle))
    states: list[int] = []
    for link in range(_MAX_LINKS):
        try:
            states.append(int(library.ask("nvmlDeviceGetNvLinkState", gpu.handle, link)))
        except GpuBrokenError as error:
            return Links(gpu.position, gpu.name, kind, None, error=str(error))
        except NvmlError:  # it has no such link
            continue
    return Links(gpu.position, gpu.name, kind, sum(states), len(states))
