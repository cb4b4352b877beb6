"""Which probes a node's health process runs: before each join, and while ranks run."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from holdfast.core.health import Finding
from holdfast.health import gpu, gpu_memory, nvlink, nvml
from holdfast.health.bounded import Check
from holdfast.health.host_probe import HostProbe
from holdfast.health.wanted import PROBES_S, SERVICE_BOUND_S, SERVICE_S, Wanted

if TYPE_CHECKING:
    from holdfast.health.nic import LinkDowns, LinkStates
    from holdfast.health.storage import Storage
    from holdfast.health.xid import Xids

Look = Callable[[], list[Finding]]
_DEVICE_NODES = ("/dev/nvidiactl", "/dev/dxg")


class Checks:
    """The probes of one node; they remember what they saw before.

    Args:
        wanted: What is looked at, and where.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._link_states, self._link_downs = _links(wanted)
        self._xids: Xids | None = None
        self._has_looked_for_gpus = False
        self._host = HostProbe(wanted.folders)
        self._storage = _storage(wanted)

    def before_join(self) -> list[Check]:
        """Asked while no rank of this node is alive."""
        wanted = self._wanted
        checks = [
            Check("host", PROBES_S, self._host.look),
            Check("gpu", PROBES_S, self._of_driver(gpu.look)),
            Check("nvlink", PROBES_S, self._of_driver(nvlink.look)),
            Check("xid", PROBES_S, self._if_there_are_gpus(self._look_for_xids)),
        ]
        if self._storage is not None:
            checks.append(Check("storage", PROBES_S, self._storage.look))
        if self._link_states is not None:
            checks.append(Check("nic", PROBES_S, self._link_states.look))
        if self._link_downs is not None:  # a link that was lost between two cycles ends neither
            checks.append(Check("nic losses", PROBES_S, self._forget_lost_links))
        if wanted.endpoint:
            look = functools.partial(_service, wanted.endpoint)
            checks.append(Check("service", SERVICE_BOUND_S, look))
        return checks

    def while_running(self) -> list[Check]:
        """Asked every ``interval_s`` seconds.

        GPUs also where nobody has looked yet: before a join another process did, and died since.
        """
        checks: list[Check] = []
        if nvml.is_loaded() or not self._has_looked_for_gpus:
            look = functools.partial(gpu.look, ranks_run=True)
            checks.append(Check("gpu", PROBES_S, self._of_driver(look)))
            checks.append(Check("xid", PROBES_S, self._if_there_are_gpus(self._look_for_xids)))
        if self._link_downs is not None:
            checks.append(Check("nic losses", PROBES_S, self._link_downs.look))
        return checks

    def used_mib(self) -> Mapping[str, float]:
        """Memory in use on each GPU of this node's ranks; nothing where there is no driver."""
        return gpu_memory.used_mib(self._wanted.visible_devices, self._wanted.nproc)

    def memory_holders(self) -> list[int]:
        """Processes that hold memory there, as far as the driver says."""
        return gpu_memory.holders(self._wanted.visible_devices, self._wanted.nproc)

    def _of_driver(self, look: Callable[[str | None, int | None], list[Finding]]) -> Look:
        wanted = self._wanted
        return self._if_there_are_gpus(
            functools.partial(look, wanted.visible_devices, wanted.nproc)
        )

    def _if_there_are_gpus(self, look: Look) -> Look:
        """On a host without GPUs nobody misses their driver."""

        def look_and_see() -> list[Finding]:
            findings = look()
            self._has_looked_for_gpus = True
            has_gpus = nvml.is_loaded() or any(map(os.path.exists, _DEVICE_NODES))
            return findings if has_gpus else []

        return look_and_see

    def _look_for_xids(self) -> list[Finding]:
        if self._xids is None:
            from holdfast.health.xid import Xids  # noqa: PLC0415 - imports ctypes

            self._xids = Xids(self._wanted.visible_devices, self._wanted.nproc)
        return self._xids.look()

    def _forget_lost_links(self) -> list[Finding]:
        if self._link_downs is not None:
            self._link_downs.look()
        return []


def _links(wanted: Wanted) -> tuple[LinkStates | None, LinkDowns | None]:
    if not (wanted.nic_state or wanted.nic_monitor):
        return None, None
    from holdfast.health.nic import Cards, LinkDowns, LinkStates  # noqa: PLC0415 - seldom wanted

    cards = Cards(
        visible_devices=wanted.visible_devices,
        limit=wanted.nproc,
        pci_topo_file=wanted.pci_topo_file,
        link_state_path_template=wanted.link_state_path_template,
        link_down_path_template=wanted.link_down_path_template,
    )
    states = LinkStates(cards) if wanted.nic_state else None
    return states, LinkDowns(cards) if wanted.nic_monitor else None


def _storage(wanted: Wanted) -> Storage | None:
    if not (wanted.storage or wanted.storage_paths):
        return None
    from holdfast.health.storage import Places, Storage  # noqa: PLC0415 - seldom wanted

    if wanted.storage:
        return Storage(Places(wanted.storage_paths))
    return Storage(Places(wanted.storage_paths, mounts=os.devnull, lustre_health=()))


def _service(endpoint: str) -> list[Finding]:
    from holdfast.health.node_service import ask  # noqa: PLC0415 - gRPC takes its time

    return ask(endpoint, deadline_s=SERVICE_S)
