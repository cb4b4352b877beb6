"""Stores: holdfast's, with the methods and the class that only these programs know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.base import torch_private
from holdfast.inprocess.store import BarrierError, BarrierOverflow, BarrierTimeout
from nvidia_resiliency_ext.inprocess._store_records import StoreRecords, add_to_stores

__all__ = [
    "BarrierError",
    "BarrierOverflow",
    "BarrierTimeout",
    "FileStore",
    "PrefixStore",
    "StoreMixin",
    "TCPStore",
]

if TYPE_CHECKING:
    from holdfast.inprocess import store as _holdfasts

    StoreMixin = StoreRecords

    class TCPStore(StoreRecords, _holdfasts.TCPStore):
        """With the methods that are added."""

    class FileStore(StoreRecords, _holdfasts.FileStore):
        """With the methods that are added."""

else:
    from holdfast.inprocess.store import FileStore, StoreMixin, TCPStore

add_to_stores()


class PrefixStore(StoreMixin, torch_private.PrefixStore):
    """A room of its own in another store, for one iteration.

    Args:
        iteration: Names the room.
        store: The other store.

    Attributes:
        base_store: The other store.
    """

    def __init__(self, iteration: int, store: Any) -> None:
        torch_private.PrefixStore.__init__(self, str(iteration), store)
        self.base_store = store

    @property
    def critical_ranks(self) -> tuple[int, ...]:
        """Those of the other store."""
        return tuple(getattr(self.base_store, "critical_ranks", ()))
