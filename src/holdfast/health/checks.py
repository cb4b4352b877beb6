"""Which probes a node's health process runs: before each join, and while ranks run."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from holdfast.health.bounded import BoundedProbe
from holdfast.health.host_probe import HostProbe
from holdfast.health.messages import PROBES_S, SERVICE_BOUND_S, SERVICE_S, HealthConfig
from holdfast.health.pure.health import Finding

if TYPE_CHECKING:
    from holdfast.health.nic import LinkDowns, LinkStates
    from holdfast.health.storage import Storage
    from holdfast.health.xid import Xids

_NODES = ("/dev/nvidiactl", "/dev/dxg")
"""Of NVIDIA's driver, and of its like in WSL."""


class Checks:
    """The probes of one node; they compare with their findings before.

    What only some nodes need is imported when it is needed.

    Attributes:
        has_gpus: There are GPUs here, or the job expects them. Elsewhere no driver is needed,
            and its library is not loaded: a start waits for that.
    """

    def __init__(self, wanted: HealthConfig) -> None:
        self._wanted = wanted
        self._gpus = wanted.visible_devices, wanted.nproc
        self.has_gpus = _names_any(wanted.visible_devices) or any(map(os.path.exists, _NODES))
        self._link_states, self._link_downs = _links(wanted)
        self._xids: Xids | None = None
        self._host = HostProbe(wanted.folders)
        self._storage = _storage(wanted)

    def before_join(self) -> list[BoundedProbe]:
        """Asked while no rank of this node is alive."""
        looks: dict[str, Callable[[], list[Finding]]] = {"host": self._host.look}
        if self.has_gpus:
            looks["gpu"] = self._look_at_gpus
            looks["nvlink"] = self._look_at_nvlinks
            looks["xid"] = self._look_for_xids
        if self._storage is not None:
            looks["storage"] = self._storage.look
        if self._link_states is not None:
            looks["nic"] = self._link_states.look
        if self._link_downs is not None:  # a link that was lost between two cycles ends neither
            looks["nic losses"] = self._forget_lost_links
        checks = [BoundedProbe(name, PROBES_S, look) for name, look in looks.items()]
        if self._wanted.endpoint:
            checks.append(BoundedProbe("service", SERVICE_BOUND_S, self._ask_service))
        return checks

    def while_running(self) -> list[BoundedProbe]:
        """Asked every ``interval_s`` seconds."""
        looks: dict[str, Callable[[], list[Finding]]] = {}
        if self.has_gpus:
            looks["gpu"] = functools.partial(self._look_at_gpus, ranks_run=True)
            looks["xid"] = self._look_for_xids
        if self._link_downs is not None:
            looks["nic losses"] = self._link_downs.look
        return [BoundedProbe(name, PROBES_S, look) for name, look in looks.items()]

    def used_mib(self) -> Mapping[str, float]:
        """Memory in use on each GPU of this node's ranks; nothing where there is no driver."""
        from holdfast.health.gpu_memory import used_mib  # noqa: PLC0415

        return used_mib(*self._gpus)

    def memory_holders(self) -> list[int]:
        """Processes that hold memory there, as far as the driver says."""
        from holdfast.health.gpu_memory import holders  # noqa: PLC0415

        return holders(*self._gpus)

    def _look_at_gpus(self, *, ranks_run: bool = False) -> list[Finding]:
        from holdfast.health import gpu  # noqa: PLC0415

        return gpu.look(*self._gpus, ranks_run=ranks_run)

    def _look_at_nvlinks(self) -> list[Finding]:
        from holdfast.health import nvlink  # noqa: PLC0415

        return nvlink.look(*self._gpus)

    def _look_for_xids(self) -> list[Finding]:
        if self._xids is None:
            from holdfast.health.xid import Xids  # noqa: PLC0415

            self._xids = Xids(*self._gpus)
        return self._xids.look()

    def _forget_lost_links(self) -> list[Finding]:
        if self._link_downs is not None:
            self._link_downs.look()
        return []

    def _ask_service(self) -> list[Finding]:
        from holdfast.health.node_service import ask  # noqa: PLC0415 - gRPC takes its time

        return ask(self._wanted.endpoint or "", deadline_s=SERVICE_S)


def _names_any(visible_devices: str | None) -> bool:
    """``CUDA_VISIBLE_DEVICES`` names a device; -1 is none."""
    entries = (visible_devices or "").split(",")
    return any(entry.strip() and not entry.strip().startswith("-") for entry in entries)


def _links(wanted: HealthConfig) -> tuple[LinkStates | None, LinkDowns | None]:
    if not (wanted.nic_state or wanted.nic_monitor):
        return None, None
    from holdfast.health.nic import Cards, LinkDowns, LinkStates  # noqa: PLC0415

    cards = Cards(
        wanted.visible_devices,
        wanted.nproc,
        wanted.pci_topo_file,
        wanted.link_state_path_template,
        wanted.link_down_path_template,
    )
    states = LinkStates(cards) if wanted.nic_state else None
    return states, LinkDowns(cards) if wanted.nic_monitor else None


def _storage(wanted: HealthConfig) -> Storage | None:
    if not (wanted.storage or wanted.storage_paths):
        return None
    from holdfast.health.storage import Places, Storage  # noqa: PLC0415

    if wanted.storage:
        return Storage(Places(wanted.storage_paths))
    return Storage(Places(wanted.storage_paths, mounts=os.devnull, lustre_health=()))
