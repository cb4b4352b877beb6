"""holdfast's module of the same name; its stores get the methods that only these programs know."""

import sys

import holdfast.inprocess.store as _original
from nvidia_resiliency_ext.inprocess._store_records import StoreRecords, add_to_stores

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.inprocess.store import BarrierError, BarrierOverflow, BarrierTimeout

    StoreMixin = StoreRecords

    class TCPStore(StoreRecords, _original.TCPStore):
        """With the methods that are added."""

    class FileStore(StoreRecords, _original.FileStore):
        """With the methods that are added."""

    class PrefixStore(StoreRecords, _original.PrefixStore):
        """With the methods that are added."""


__all__ = [
    "BarrierError",
    "BarrierOverflow",
    "BarrierTimeout",
    "FileStore",
    "PrefixStore",
    "StoreMixin",
    "TCPStore",
]

add_to_stores()
sys.modules[__name__] = _original
