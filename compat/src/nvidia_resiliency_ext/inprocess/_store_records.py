"""Methods of a store that only nvidia-resiliency-ext's programs know: barriers, records.

The Wrapper writes faults, deaths and the end of an iteration into no store (decision 22): these
lists hold only entries of the program.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.base.clock import wall
from holdfast.inprocess.store import StoreMixin
from nvidia_resiliency_ext.inprocess.attribution import InterruptionRecord

_WAIT = dt.timedelta(seconds=300)
_NOW = dt.timedelta(0)


class StoreRecords(StoreMixin):
    """Barriers, heartbeats and records, on a torch store's ``add``, ``set``, ``get`` and ``wait``.

    None of these names is one of torch's: the mixin may stand before the torch store or after it.
    """

    def meet_again(
        self, name: str, ranks: int | Iterable[int], n_ranks: int, timeout: dt.timedelta = _WAIT
    ) -> None:
        """As :meth:`meet`, for ranks that may arrive repeatedly: each counts once.

        Args:
            name: Of the barrier, used once.
            ranks: The ranks that arrive with this call, one or several: this one, and others.
            n_ranks: How many different ones have to arrive.
            timeout: How long to wait for the others; zero: arrive, and do not wait.

        Raises:
            BarrierOverflow: More than ``n_ranks`` different ones arrived.
            BarrierTimeout: Fewer did, within ``timeout``.
        """
        store: Any = self
        for rank in _several(ranks):
            if store.add(f"{name}/rank/{rank}", 1) == 1:
                self.meet(name, n_ranks, _NOW)
        self.meet(name, n_ranks, timeout, n_arrivals=0)

    # ------------------------------------------------------------ the barriers of a call, by name

    def initial_barrier(
        self, ranks: int | Iterable[int], n_ranks: int, timeout: dt.timedelta = _WAIT
    ) -> None:
        """:meth:`meet_again` by this name, once per store: at the beginning of a call."""
        self.meet_again("holdfast/barrier/initial", ranks, n_ranks, timeout)

    def completion_barrier(
        self, ranks: int | Iterable[int], n_ranks: int, timeout: dt.timedelta = _WAIT
    ) -> None:
        """:meth:`meet_again` by this name, once per store: the function has returned."""
        self.meet_again("holdfast/barrier/completion", ranks, n_ranks, timeout)

    def iteration_barrier(
        self, ranks: int | Iterable[int], n_ranks: int, timeout: dt.timedelta = _WAIT
    ) -> None:
        """:meth:`meet_again` by this name, once per store: between iterations."""
        self.meet_again("holdfast/barrier/iteration", ranks, n_ranks, timeout)

    def termination_barrier(
        self, ranks: int | Iterable[int], n_ranks: int, timeout: dt.timedelta = _WAIT
    ) -> None:
        """:meth:`meet_again` by this name, once per store: at the end of a call."""
        self.meet_again("holdfast/barrier/termination", ranks, n_ranks, timeout)

    # ------------------------------------------------------------ heartbeats and records

    def send_heartbeat(self, rank: int) -> None:
        """``rank`` is alive now, by this host's wall clock."""
        store: Any = self
        store.set(f"holdfast/heartbeat/{rank}", repr(wall()))

    def get_heartbeat(self, rank: int) -> float | None:
        """When ``rank`` sent its last heartbeat, seconds since 1970; ``None``: never."""
        store: Any = self
        key = f"holdfast/heartbeat/{rank}"
        return float(store.get(key)) if store.check([key]) else None

    def get_all_heartbeats(self, world_size: int) -> list[float | None]:
        """:meth:`get_heartbeat` of the ranks 0 to ``world_size - 1``."""
        return [self.get_heartbeat(rank) for rank in range(world_size)]

    def record_interrupted(
        self, records: InterruptionRecord | Iterable[InterruptionRecord]
    ) -> None:
        """Add to the records of this iteration. It interrupts no rank; raise for it.

        Records made after :meth:`lock_interruption_records` do not count.

        Args:
            records: Several, or one.
        """
        several = [records] if isinstance(records, InterruptionRecord) else records
        self._append("interrupted", map(str, several))

    def lock_interruption_records(self) -> None:
        """Close the list, on all ranks."""
        store: Any = self
        if store.add("holdfast/interrupted/locks", 1) == 1:
            store.set("holdfast/interrupted/locked", str(self._length("interrupted")))
        store.wait(["holdfast/interrupted/locked"], _WAIT)

    def get_interruption_records(self) -> list[InterruptionRecord]:
        """The list, in the order in which records were made."""
        store: Any = self
        locked = "holdfast/interrupted/locked"
        length = int(store.get(locked)) if store.check([locked]) else self._length("interrupted")
        return [InterruptionRecord.from_str(text) for text in self._listed("interrupted", length)]

    def is_interrupted(self) -> bool:
        """Whether there is a record."""
        return self._length("interrupted") > 0

    def wait_for_interruption(self, timeout: dt.timedelta = _WAIT) -> None:
        """Wait for the first record.

        Raises:
            RuntimeError: There was none within ``timeout``; torch's, ``DistStoreError``.
        """
        store: Any = self
        store.wait(["holdfast/interrupted/1"], timeout)

    def record_terminated_ranks(self, ranks: int | Iterable[int]) -> None:
        """These ranks have left or are lost; several, or one."""
        self._append("terminated", map(str, _several(ranks)))

    def get_terminated_ranks(self) -> set[int]:
        """All that were recorded."""
        return {int(text) for text in self._listed("terminated", self._length("terminated"))}

    def record_completed(self) -> None:
        """A rank has completed this iteration."""
        store: Any = self
        store.set("holdfast/completed", "1")

    def is_any_rank_completed(self) -> bool:
        """Whether one has."""
        store: Any = self
        return bool(store.check(["holdfast/completed"]))

    def set_initial_rank(self, rank: int, initial_rank: int) -> None:
        """``rank`` was ``initial_rank`` at the start of the job."""
        store: Any = self
        store.set(f"holdfast/initial_rank/{rank}", str(initial_rank))

    def get_initial_rank(self, rank: int) -> int:
        """The number of ``rank`` at the start of the job; waits until it is set."""
        store: Any = self
        return int(store.get(f"holdfast/initial_rank/{rank}"))

    def get_initial_ranks(self, ranks: Sequence[int]) -> list[int]:
        """The number of each of ``ranks`` at the start of the job."""
        return [self.get_initial_rank(rank) for rank in ranks]

    # ------------------------------------------------------------ lists that only grow

    def _append(self, name: str, texts: Iterable[str]) -> None:
        store: Any = self
        for text in texts:
            number = store.add(f"holdfast/{name}/length", 1)
            store.set(f"holdfast/{name}/{number}", text)

    def _length(self, name: str) -> int:
        store: Any = self
        return int(store.add(f"holdfast/{name}/length", 0))

    def _listed(self, name: str, length: int) -> list[str]:
        """Waits for a text whose number is taken already."""
        store: Any = self
        return [store.get(f"holdfast/{name}/{number}").decode() for number in range(1, length + 1)]


def _several(ranks: int | Iterable[int]) -> Iterable[int]:
    return [ranks] if isinstance(ranks, int) else ranks


def add_to_stores() -> None:
    """Give these methods to all stores of holdfast, those of a call included.

    A subclass would not do: a program gives stores of its own, derived from the mixin under either
    module's name, to the Wrapper, and reads the stores that the Wrapper made.
    """
    for name, method in vars(StoreRecords).items():
        if not name.startswith("__"):
            setattr(StoreMixin, name, method)
