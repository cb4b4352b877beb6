"""The stores beside the coordinator: one for each iteration (``state.store``), one for the call."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from torch.distributed import DistStoreError

from holdfast.inplace.bootstrap import Meeting
from holdfast.inplace.pure.keyvalue import CALL_ROOM
from holdfast.inplace.pure.messages import Numbering
from holdfast.inplace.torch_edge.epoch_store import EpochStore
from holdfast.inprocess.exception import BarrierTimeout
from holdfast.inprocess.store import StoreMixin


class CallStore(StoreMixin, EpochStore):
    """A torch store, shared by all ranks for as long as the call lasts."""

    def __init__(self, meeting: Meeting, timeout_s: float) -> None:
        super().__init__(meeting.address, meeting.token, CALL_ROOM, timeout_s)


class IterationStore(StoreMixin, EpochStore):
    """A torch store, shared by the ranks of one iteration, empty at its beginning.

    Args:
        numbering: This rank's number before the assignment of this iteration.
        terminated: Places of that numbering whose ranks have gone.
        timeout_s: How long ranks wait for each other.
        base_store: Of the call.
    """

    def __init__(
        self,
        meeting: Meeting,
        iteration: int,
        numbering: Numbering,
        terminated: AbstractSet[int],
        timeout_s: float,
        base_store: CallStore,
    ) -> None:
        super().__init__(meeting.address, meeting.token, iteration, timeout_s)
        self.base_store = base_store
        self._timeout_of_barrier_s = timeout_s
        self._place = numbering.place - sum(place < numbering.place for place in terminated)
        self._living = numbering.world - len(terminated)

    def gather(self, name: str, value: Any, timeout_s: float | None = None) -> list[Any]:
        """Values of all living ranks; see :class:`holdfast.inprocess.rank_assignment.Gathers`."""
        wait_s = self._timeout_of_barrier_s if timeout_s is None else timeout_s
        try:
            return self.collect(name, self._place, self._living, value, wait_s)
        except DistStoreError as error:
            raise BarrierTimeout(f"{name}: {error}") from None
