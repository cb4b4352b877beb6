"""Messages between the launcher of a node and its health process.

Pure: plain values; their JSON form follows from their fields (``base/pure/codec.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.base.pure.codec import Count, Raw, family
from holdfast.base.pure.common_events import Note
from holdfast.health.pure.gate import Answered, Ask, Found, Noticed

PROBES_S = 30.0
"""How long all probes of a check may take together, a health service not counted."""
SERVICE_S = 60.0
"""How long a health service may take; the client's deadline of nvidia-resiliency-ext."""
SERVICE_BOUND_S = SERVICE_S + 2.0
"""Until its client, which keeps to that, is taken to hang."""
MEMORY_SLACK_S = 10.0
"""How much longer than its limit a wait for GPU memory may take: the driver is slow to answer."""
_SLACK_S = 5.0


@dataclass(frozen=True)
class HealthConfig:
    """Times are seconds.

    Attributes:
        nproc: Ranks of this node; each uses one GPU, if there are GPUs.
        visible_devices: ``CUDA_VISIBLE_DEVICES`` of the ranks; None: all.
        folders: Whose disks must have room.
        endpoint: Of the node health service; None: there is none.
        nic_state, storage: Check network links, network file systems before a start.
        nic_monitor: Watch link-down counters while ranks run.
        storage_paths: Must be reachable before a start.
        pci_topo_file, link_down_path_template, link_state_path_template: See :class:`.Cards`.
        interval_s: Period of the watch.
        reclaim_timeout_s: How long a start waits for GPU memory; 0: not at all.
        reclaim_tolerance_mib: In use on a GPU that counts as free.
        reclaim_poll_s: Longest time between two looks.
    """

    nproc: Count = 1
    visible_devices: Raw | None = None
    folders: tuple[Raw, ...] = ()
    endpoint: Raw | None = None
    nic_state: bool = False
    nic_monitor: bool = False
    storage: bool = False
    storage_paths: tuple[Raw, ...] = ()
    pci_topo_file: Raw | None = None
    link_down_path_template: Raw | None = None
    link_state_path_template: Raw | None = None
    interval_s: float = 5.0
    reclaim_timeout_s: float = 50.0
    reclaim_tolerance_mib: float = 512.0
    reclaim_poll_s: float = 2.0

    @property
    def limit_s(self) -> float:
        """How long a check may take: a look at the memory, then all probes side by side."""
        longest_s = SERVICE_BOUND_S if self.endpoint else PROBES_S
        return PROBES_S + longest_s + _SLACK_S

    @property
    def memory_limit_s(self) -> float:
        """How much longer a check may take after ranks have ended."""
        return self.reclaim_timeout_s + MEMORY_SLACK_S if self.reclaim_timeout_s else 0.0


# ---------------------------------------------------------------- to the health process
@dataclass(frozen=True)
class ConfigureHealth:
    """The first message. ``path``: folders that the launcher imports from."""

    wanted: HealthConfig
    path: tuple[Raw, ...]


ToHealth = ConfigureHealth | Ask  # effects and events of the gate are the messages
FromHealth = Found | Answered | Noticed | Note

TO_HEALTH: Mapping[str, type[ToHealth]] = family(ToHealth)
FROM_HEALTH: Mapping[str, type[FromHealth]] = family(FromHealth)
