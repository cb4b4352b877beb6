"""Helpers: processes, events of ``multiprocessing``, objects over asyncio streams."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.base.clock import monotonic
from holdfast.base.processes.proc import Process, await_any, process_state
from holdfast.fault_tolerance.data import RankInfo
from holdfast.job.pure.exit_codes import NO_RESTART
from holdfast.job.pure.infra_rank import BY_NODE_NAME, infra_rank
from holdfast.net.pure.frames import Decoder, FrameError, encode
from nvidia_resiliency_ext.fault_tolerance._plain import from_plain, to_plain

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from multiprocessing.synchronize import Event

__all__ = [
    "DEFAULT_NO_RESTART_EXIT_CODE",
    "get_infrastructure_rank",
    "get_rank",
    "is_process_alive",
    "is_slurm_job_array",
    "read_obj_from_ipc_stream",
    "wait_for_mp_events",
    "wait_until_process_terminated",
    "write_obj_to_ipc_stream",
]

DEFAULT_NO_RESTART_EXIT_CODE = NO_RESTART
"""A rank that ends with it asks its launcher for no restart."""
_HEADER_BYTES = 4


def is_process_alive(pid: int) -> bool:
    """There is a process ``pid`` that has not ended; a zombie has."""
    state = process_state(pid)
    return state is not None and state.state not in ("Z", "X")


def wait_until_process_terminated(pid: int, timeout: float = 0.0) -> None:
    """Wait until ``pid`` has ended, reaped or not.

    Args:
        pid: Any process, not only a child.
        timeout: Seconds to wait at most; 0 only looks.

    Raises:
        TimeoutError: It has not ended in time.
    """
    try:
        process = Process(pid)
    except ProcessLookupError:
        return
    try:
        await_any([process], timeout)
        if process.is_alive():
            raise TimeoutError(f"process {pid} has not ended within {timeout:g} s")
    finally:
        process.close()


def wait_for_mp_events(events: Iterable[Event], timeout: float = 60.0) -> None:
    """Wait until all ``multiprocessing`` events are set.

    Args:
        events: To wait for.
        timeout: Seconds, for all of them together.

    Raises:
        TimeoutError: One was not set in time.
    """
    deadline = monotonic() + timeout
    for number, event in enumerate(events):
        if not event.wait(max(0.0, deadline - monotonic())):
            raise TimeoutError(f"event {number} was not set within {timeout:g} s")


async def write_obj_to_ipc_stream(obj: Any, stream: StreamWriter) -> None:
    """Write a plain value, or an object of a class of ``data``, to an asyncio stream.

    Raises:
        TypeError: ``obj`` holds an object that is not sent.
        FrameError: It is too long.
    """
    stream.write(encode({"message": to_plain(obj)}))
    await stream.drain()


async def read_obj_from_ipc_stream(stream: StreamReader) -> Any:
    """Next object of an asyncio stream.

    Raises:
        asyncio.IncompleteReadError: The stream ended.
        FrameError: The bytes are not such an object.
    """
    header = await stream.readexactly(_HEADER_BYTES)
    decoder = Decoder()
    messages = decoder.feed(header)  # refuses a length that is too much
    if not messages:
        messages = decoder.feed(await stream.readexactly(int.from_bytes(header, "big")))
    if len(messages) != 1:
        raise FrameError("a frame without content")
    return from_plain(messages[0].get("message"))


def get_infrastructure_rank(
    environ: Mapping[str, str] | None = None, *, skip_nodename_logic: bool = False
) -> int:
    """Number of this node in the order of the infrastructure; -1 where no variable gives one.

    The rule is the launcher's own: :mod:`holdfast.job.pure.infra_rank` lists the variables.

    Args:
        environ: Environment to read; ``None``: this process's.
        skip_nodename_logic: Number no node by its name, also where
            ``NVRX_INFRA_RANK_FROM_NODENAME`` asks for that.

    Raises:
        RuntimeError: A variable cannot be used, or a Slurm job lacks its process number.
    """
    variables = dict(os.environ if environ is None else environ)
    if skip_nodename_logic:
        variables.pop(BY_NODE_NAME, None)
    number = infra_rank(variables)
    return -1 if number is None else number.rank


def get_rank() -> int:
    """Rank of this process, by its default process group, else by ``RANK``.

    Raises:
        RankMonitorClientError: Neither says it; it is a ``RuntimeError``, too.
    """
    return RankInfo.get_for_current_rank().global_rank


def is_slurm_job_array() -> bool:
    """This process belongs to a task of a Slurm job array."""
    return bool(os.environ.get("SLURM_ARRAY_TASK_ID", "").strip())
