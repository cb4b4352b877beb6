"""Small helpers under the names that programs import."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.core.infra_rank import infra_rank
from holdfast.host.clock import monotonic
from holdfast.host.proc import Process, await_any, process_state
from holdfast.wire.frames import Decoder, FrameError, encode

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from multiprocessing.synchronize import Event

    from holdfast.wire.frames import Message

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
        events: What to wait for.
        timeout: Seconds, for all of them together.

    Raises:
        TimeoutError: One was not set in time.
    """
    deadline = monotonic() + timeout
    for number, event in enumerate(events):
        if not event.wait(max(0.0, deadline - monotonic())):
            raise TimeoutError(f"event {number} was not set within {timeout:g} s")


async def read_obj_from_ipc_stream(stream: StreamReader) -> Message:
    """Next message of an asyncio stream; a JSON object, never code.

    Raises:
        asyncio.IncompleteReadError: The stream ended.
        FrameError: What came is no message.
    """
    header = await stream.readexactly(_HEADER_BYTES)
    decoder = Decoder()
    messages = decoder.feed(header)  # refuses a length that is too much
    if not messages:
        messages = decoder.feed(await stream.readexactly(int.from_bytes(header, "big")))
    if len(messages) != 1:
        raise FrameError("a frame without content")
    return messages[0]


async def write_obj_to_ipc_stream(obj: Mapping[str, Any], stream: StreamWriter) -> None:
    """Write a message, made of what JSON knows, to an asyncio stream.

    Raises:
        TypeError: JSON does not know something in it.
        FrameError: It is too long.
    """
    stream.write(encode(obj))
    await stream.drain()


def get_infrastructure_rank(environ: Mapping[str, str] | None = None) -> int:
    """Number of this node in the order of the infrastructure; -1 where no variable gives one.

    The rule is the launcher's own: :mod:`holdfast.core.infra_rank` lists the variables.

    Args:
        environ: Environment to read; ``None``: this process's.

    Raises:
        RuntimeError: A variable makes no sense, or a Slurm job does not say its process number.
    """
    number = infra_rank(os.environ if environ is None else environ)
    return -1 if number is None else number.rank
