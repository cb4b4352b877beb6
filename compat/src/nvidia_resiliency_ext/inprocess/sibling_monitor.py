"""A thread that watches the heartbeats of another rank, for those whose own monitor is gone."""

from __future__ import annotations

import datetime as dt
import threading
from typing import Any

from holdfast.base.clock import monotonic, wall
from holdfast.base.rank_log import rank_logger
from nvidia_resiliency_ext._former import ignore
from nvidia_resiliency_ext.inprocess.attribution import Interruption, InterruptionRecord

__all__ = ["SiblingMonitor"]

_LOGGER = rank_logger("holdfast.compat")
_NOW = dt.timedelta(0)


class SiblingMonitor(threading.Thread):
    """Looks at the heartbeat of the next rank; once that is stale, at those of all ranks.

    Each rank that is stale then, this one excepted, is recorded as ``UNRESPONSIVE`` and as
    terminated, and arrives at the iteration barrier, so that no rank waits for it.

    Args:
        store: With :class:`~nvidia_resiliency_ext.inprocess.store.StoreMixin`; has the heartbeats.
        rank: Of this process.
        world_size: The rank that is watched is ``(rank + 1) % world_size``.
        heartbeat_timeout: A heartbeat older than this is stale. Ranks that never sent one have as
            long from the start of the thread.
        interval: Between two looks.

    Attributes:
        unresponsive: Ranks that were found stale.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        heartbeat_timeout: dt.timedelta = dt.timedelta(seconds=30),
        interval: dt.timedelta = dt.timedelta(seconds=1),
        **others: object,
    ) -> None:
        ignore(others, "SiblingMonitor")
        super().__init__(name="SiblingMonitor", daemon=True)
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self.heartbeat_timeout = heartbeat_timeout
        self.interval = interval
        self.should_stop = threading.Event()
        self.unresponsive: set[int] = set()
        self._began = monotonic()

    @property
    def sibling(self) -> int:
        """The rank that is watched: the next one that was not found stale before."""
        for step in range(1, self.world_size):
            other = (self.rank + step) % self.world_size
            if other not in self.unresponsive:
                return other
        return self.rank

    def run(self) -> None:
        """The body of the thread; see the class."""
        self._began = monotonic()
        while not self.should_stop.wait(self.interval.total_seconds()):
            try:
                self.check()
            except RuntimeError as error:  # torch's: the store is gone, and with it the job
                _LOGGER.warning("rank %d no longer watches its sibling: %s", self.rank, error)
                return

    def check(self) -> set[int]:
        """Look once; returns the ranks that were found stale just now."""
        if self.sibling == self.rank or not self._stale([self.sibling]):
            return set()
        others = [
            rank
            for rank in range(self.world_size)
            if rank != self.rank and rank not in self.unresponsive
        ]
        stale = self._stale(others)
        self.unresponsive |= stale
        ranks = sorted(stale)
        _LOGGER.warning(
            "ranks %s have sent no heartbeat for %g s: they are taken for lost",
            ranks,
            self.heartbeat_timeout.total_seconds(),
        )
        kind = Interruption["UNRESPONSIVE"]
        self.store.record_terminated_ranks(ranks)
        self.store.record_interrupted([InterruptionRecord(rank, kind) for rank in ranks])
        self.store.iteration_barrier(ranks, self.world_size, _NOW)
        return stale

    def _stale(self, ranks: list[int]) -> set[int]:
        limit_s = self.heartbeat_timeout.total_seconds()
        heartbeats = {rank: self.store.get_heartbeat(rank) for rank in ranks}
        return {
            rank
            for rank, sent in heartbeats.items()
            if (monotonic() - self._began if sent is None else wall() - sent) > limit_s
        }

    def shutdown(self) -> None:
        """End the thread."""
        self.should_stop.set()
        if threading.current_thread() is not self and self.is_alive():
            self.join()
