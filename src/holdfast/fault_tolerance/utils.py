"""Small helpers under the names that programs import."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.host import wait_for
from holdfast.host.clock import monotonic
from holdfast.host.proc import Process, process_state
from holdfast.wire.frames import Decoder, FrameError, encode

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from multiprocessing.synchronize import Event

    from holdfast.wire.frames import Message

_BLOCK = 10**10
"""In an order made of blocks and nodes, blocks are this far apart."""
_HEADER_BYTES = 4


def is_process_alive(pid: int) -> bool:
    """There is a process ``pid`` that has not ended; a zombie has."""
    state = process_state(pid)
    return state is not None and state.state not in ("Z", "X")


def wait_until_process_terminated(pid: int, timeout: float = 0.0) -> bool:
    """Wait until ``pid`` has ended, reaped or not.

    Args:
        pid: Any process, not only a child.
        timeout: Seconds to wait at most; 0 only looks.

    Returns:
        Whether it has ended.
    """
    try:
        process = Process(pid)
    except ProcessLookupError:
        return True
    try:
        if process.fileno() >= 0:
            wait_for.readable(process.fileno(), timeout)
        return not process.is_alive()
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
    """Number of this node in the order of the infrastructure; -1 where nothing says it.

    The first of these that is set: digits of ``SLURMD_NODENAME`` (where
    ``NVRX_INFRA_RANK_FROM_NODENAME`` asks for it), ``CROSS_SLURM_PROCID``, block and node of
    ``SLURM_TOPOLOGY_ADDR``, ``SLURM_PROCID`` (counted through the tasks of a job array),
    ``GROUP_RANK``.

    Args:
        environ: Environment to read; ``None``: this process's.

    Raises:
        RuntimeError: A variable makes no sense, or a Slurm job does not say its process number.
    """
    env = os.environ if environ is None else environ
    if env.get("NVRX_INFRA_RANK_FROM_NODENAME", "").lower() in ("1", "true", "yes", "on"):
        return _digits("SLURMD_NODENAME", env.get("SLURMD_NODENAME", ""))
    if "CROSS_SLURM_PROCID" in env:
        return _number(env, "CROSS_SLURM_PROCID")
    blocks = env.get("SLURM_TOPOLOGY_ADDR", "")
    if blocks and env.get("SLURM_TOPOLOGY_ADDR_PATTERN") == "block.node":
        block, _, node = blocks.rpartition(".")
        apart = _number(env, "SLURM_TOPOLOGY_NODES_PER_BLOCK", _BLOCK)
        return _digits("SLURM_TOPOLOGY_ADDR", block) * apart + _digits("SLURM_TOPOLOGY_ADDR", node)
    if "SLURM_PROCID" in env:
        procid = _number(env, "SLURM_PROCID")
        if "SLURM_ARRAY_TASK_ID" not in env:
            return procid
        name = "SLURM_NNODES" if "SLURM_NNODES" in env else "SLURM_JOB_NUM_NODES"
        return _number(env, "SLURM_ARRAY_TASK_ID") * _number(env, name) + procid
    if "SLURM_JOB_ID" in env:
        raise RuntimeError(
            f"this is Slurm job {env['SLURM_JOB_ID']} but SLURM_PROCID is not set: start one "
            "ft_launcher per node with srun"
        )
    return _number(env, "GROUP_RANK", -1)


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise RuntimeError(f"environment variable {name} is {text!r}, not a number") from None


def _digits(name: str, text: str) -> int:
    digits = "".join(re.findall(r"\d", text))
    if not digits:
        raise RuntimeError(f"environment variable {name} holds {text!r}: no digits to order by")
    return int(digits)
