"""Helpers: processes, events of ``multiprocessing``, objects over asyncio streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.fault_tolerance.utils import (
    get_infrastructure_rank,
    is_process_alive,
    wait_for_mp_events,
    wait_until_process_terminated,
)
from holdfast.fault_tolerance.utils import read_obj_from_ipc_stream as _read
from holdfast.fault_tolerance.utils import write_obj_to_ipc_stream as _write
from nvidia_resiliency_ext.fault_tolerance._plain import from_plain, to_plain

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

__all__ = [
    "get_infrastructure_rank",
    "is_process_alive",
    "read_obj_from_ipc_stream",
    "wait_for_mp_events",
    "wait_until_process_terminated",
    "write_obj_to_ipc_stream",
]


async def write_obj_to_ipc_stream(obj: Any, stream: StreamWriter) -> None:
    """Write a plain value, or an object of a class of ``data``, to an asyncio stream.

    Raises:
        TypeError: ``obj`` holds an object that is not sent.
        FrameError: It is too long.
    """
    await _write({"message": to_plain(obj)}, stream)


async def read_obj_from_ipc_stream(stream: StreamReader) -> Any:
    """Next object of an asyncio stream.

    Raises:
        asyncio.IncompleteReadError: The stream ended.
        FrameError: What came is no such object.
    """
    return from_plain((await _read(stream)).get("message"))
