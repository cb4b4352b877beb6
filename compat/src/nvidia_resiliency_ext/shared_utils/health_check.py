"""Is this host fit to run a rank? Each check is an object that is called, and returns a bool.

Where it cannot be determined (no driver, no card, no service), the host is healthy. The checks use
``holdfast.health``; a failure is logged, and kept in ``failure``.
"""

from __future__ import annotations

import abc
import asyncio
import os
from collections.abc import Callable, Iterable
from importlib import import_module

from holdfast.base.rank_log import rank_logger
from holdfast.health.pure.health import Finding, why_unfit

__all__ = [
    "DistributedStorageHealthCheck",
    "GPUHealthCheck",
    "HealthCheck",
    "NVLHealthCheck",
    "NicHealthCheck",
    "NodeHealthCheck",
    "StoragePathHealthCheck",
]

_LOGGER = rank_logger("holdfast.compat")
_INTERVAL_S = 60.0


class HealthCheck(abc.ABC):
    """Base of all checks.

    Args:
        interval: Seconds between two looks of :meth:`async_check`.
        on_failure: Called by :meth:`async_check` when the check fails.

    Attributes:
        failure: Of the last check; ``None``: there was none.
    """

    def __init__(
        self, interval: float = _INTERVAL_S, on_failure: Callable[[], object] | None = None
    ) -> None:
        self.interval = interval
        self.on_failure = on_failure
        self.failure: str | None = None

    def __call__(self) -> bool:
        """Look once. True: healthy, or not to be determined."""
        self.failure = self._look()
        if self.failure is not None:
            _LOGGER.warning("%s: %s", type(self).__name__, self.failure)
        return self.failure is None

    def check(self) -> bool:
        """Look once; the same as calling the object."""
        return self()

    async def async_check(self) -> None:
        """Look every ``interval`` seconds, until a look fails; then call ``on_failure``."""
        while await asyncio.to_thread(self):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(self.interval)
        if self.on_failure is not None:
            self.on_failure()

    @abc.abstractmethod
    def _look(self) -> str | None:
        """The failure; ``None``: there is none."""


class _DeviceCheck(HealthCheck):
    """A check of one GPU, or what belongs to it; of all where ``device_index`` is ``None``."""

    def __init__(
        self,
        device_index: int | None = None,
        interval: float = _INTERVAL_S,
        on_failure: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(interval, on_failure)
        self.device_index = device_index
        self._begin()

    def _begin(self) -> None:
        """Note what later looks are compared with."""


class GPUHealthCheck(_DeviceCheck):
    """The driver asks for no recovery action on the GPU."""

    def _look(self) -> str | None:
        problem = import_module("holdfast.health").gpu_problem(self.device_index)
        return None if problem is None else str(problem)


class NVLHealthCheck(_DeviceCheck):
    """The NVLinks of the GPU are up."""

    def _look(self) -> str | None:
        problem = import_module("holdfast.health").nvlink_problem(self.device_index)
        return None if problem is None else str(problem)


class NicHealthCheck(_DeviceCheck):
    """The network cards of the GPU have not lost a link since the look before.

    Args:
        device_index: Of the GPU; ``None``: all cards of this node, until :meth:`set_nic_device`.
        interval: See :class:`HealthCheck`.
        pci_topo_file: XML that says which card is near which GPU; ``None``: sysfs says it.
        link_down_path_template: Path of the file with a card's counter of lost links, with
            ``{nic}`` for the card; ``None``: sysfs's.
        on_failure: See :class:`HealthCheck`.
    """

    def __init__(
        self,
        device_index: int | None = None,
        interval: float = _INTERVAL_S,
        pci_topo_file: str | None = None,
        link_down_path_template: str | None = None,
        on_failure: Callable[[], object] | None = None,
    ) -> None:
        self.pci_topo_file = pci_topo_file
        self.link_down_path_template = link_down_path_template
        super().__init__(device_index, interval, on_failure)

    def _begin(self) -> None:
        self._before = self._counts()

    def set_nic_device(self, local_rank: int | None) -> None:
        """Watch the cards of another GPU from now on: the one of this local rank."""
        self.device_index = local_rank
        self._begin()

    def _look(self) -> str | None:
        before, self._before = self._before, self._counts()
        lost = [
            f"{card} has lost its link: {count} losses in all, {before[card]} at the previous check"
            for card, count in sorted(self._before.items())
            if count > before.get(card, count)
        ]
        return ", ".join(lost) or None

    def _counts(self) -> dict[str, int]:
        counts = import_module("holdfast.health").link_downed_counts(
            self.device_index,
            pci_topo_file=self.pci_topo_file,
            link_down_path_template=self.link_down_path_template,
        )
        return dict(counts)


class NodeHealthCheck(HealthCheck):
    """The answer of the node's own health service (gRPC over a Unix socket).

    Args:
        endpoint: ``/path``, ``./path`` or ``unix://...``; another form, or ``None``: healthy.
        request_timeout_sec: Seconds that the service may take.
        interval: See :class:`HealthCheck`.
        on_failure: See :class:`HealthCheck`.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        request_timeout_sec: float = 60.0,
        interval: float = _INTERVAL_S,
        on_failure: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(interval, on_failure)
        self.endpoint = endpoint
        self.request_timeout_sec = request_timeout_sec

    def _look(self) -> str | None:
        path = self.endpoint
        if not path or not path.startswith(("/", "./", "unix:")):
            return None
        findings = import_module("holdfast.health.node_service").ask(
            path, deadline_s=self.request_timeout_sec
        )
        return why_unfit(findings)


class StoragePathHealthCheck(HealthCheck):
    """Paths can be reached.

    Args:
        paths: Several, or one text with commas between them.
        interval: See :class:`HealthCheck`.
        on_failure: See :class:`HealthCheck`.
    """

    def __init__(
        self,
        paths: str | Iterable[str],
        interval: float = _INTERVAL_S,
        on_failure: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(interval, on_failure)
        texts = paths.split(",") if isinstance(paths, str) else map(os.fspath, paths)
        self.paths = tuple(text.strip() for text in texts if text.strip())

    def _look(self) -> str | None:
        storage = import_module("holdfast.health.storage")
        places = storage.Places(self.paths, mounts=os.devnull, lustre_health=())
        return _unfit(storage.Storage(places).look())


class DistributedStorageHealthCheck(HealthCheck):
    """Lustre says that it is healthy, and every Lustre and NFS mount of this host answers."""

    def _look(self) -> str | None:
        storage = import_module("holdfast.health.storage")
        return _unfit(storage.Storage(storage.Places()).look())


def _unfit(findings: Iterable[Finding]) -> str | None:
    return why_unfit(findings)
