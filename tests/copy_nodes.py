"""The process of a node for copies of snapshots, real, with a launcher that is played by a test."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from typing_extensions import Self

from holdfast.arena.arena import ArenaMemory, create
from holdfast.arena.pure.peer_messages import (
    FROM_COPIES,
    ConfigureCopies,
    DropCopies,
    HoldCopies,
    PushCopy,
)
from holdfast.arena.pure.snapshots import Held
from holdfast.arena.sums import checksum
from holdfast.base.processes import child
from holdfast.base.pure.codec import decode, encode
from holdfast.net.client import Client
from holdfast.net.pure.frames import encode as frame
from holdfast.net.tcp import bound_socket
from holdfast.node.processes.controlled_process import ControlledProcess, start_controlled
from tests.waiting import BOUND_S

MIB = 1 << 20
CODE = "from holdfast.arena.peer_copies_main import main; main()"


class CopyNode:
    """One process; ``before``: code that it runs first."""

    def __init__(
        self, secret: str | None = "secret", *, job: str = "job", before: str = ""
    ) -> None:
        self.listener = bound_socket(0)
        self.listener.listen(128)
        self.port = int(self.listener.getsockname()[1])
        self.process: ControlledProcess = start_controlled(
            f"{before}{CODE}",
            (self.listener.fileno(),),
            os.environ,
            encode(ConfigureCopies(job, secret)),
        )
        self.process.control.settimeout(None)
        self.control = Client(self.process.control)
        self.fds: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.control.close()
        self.listener.close()
        child.kill(self.process.pid)
        os.waitpid(self.process.pid, 0)
        for fd in self.fds:
            os.close(fd)

    def has_ended(self) -> bool:
        """It has died, and is not reaped yet."""
        flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
        return os.waitid(os.P_PID, self.process.pid, flags) is not None

    def arena(self, n_slots: int = 4) -> ArenaMemory:
        self.fds.append(create("test", n_slots))
        return ArenaMemory(self.fds[-1])

    def tell(self, message: object, *fds: int) -> None:
        socket.send_fds(self.process.control, [frame(encode(message))], fds)

    def hold(self, rank: int, *, bytes_max: int = 64 * MIB) -> ArenaMemory:
        memory = self.arena(2)
        self.tell(HoldCopies(rank, bytes_max), memory.fd)
        return memory

    def drop(self, rank: int) -> None:
        self.tell(DropCopies(rank))

    def push(self, memory: ArenaMemory, held: Held, to: CopyNode | int, *, kept: int = 0) -> None:
        port = to if isinstance(to, int) else to.port
        self.tell(PushCopy(held.step, held, kept, "127.0.0.1", port), memory.fd)

    def outcome(self, timeout_s: float = BOUND_S) -> Any:
        return decode(FROM_COPIES, self.control.receive(timeout_s))


def taken(
    memory: ArenaMemory,
    slot: int,
    step: int,
    n_bytes: int = MIB,
    *,
    rank: int = 0,
    summed: bool = True,
) -> Held:
    """Have the rank commit a snapshot with bytes that follow from its step."""
    held = Held(rank, 8, 0, 0, step)
    memory.reserve(slot, n_bytes)
    memory.begin(slot)
    with memory.map_slot(slot) as mapped:
        mapped[:n_bytes] = content(step, n_bytes)
    memory.commit(slot, held, n_bytes)
    if summed:
        memory.store_sum(slot, step + 1, checksum(memoryview(content(step, n_bytes))))
    return held


def content(step: int, n_bytes: int) -> bytes:
    unit = step.to_bytes(8, "little") + bytes(range(256)) * 3
    return (unit * (n_bytes // len(unit) + 1))[:n_bytes]


def steps(memory: ArenaMemory) -> Mapping[int, bool]:
    """Committed steps, and whether their bytes are right."""
    found = {}
    for it in memory.all_held():
        with memory.map_slot(it.slot) as mapped:
            is_right = mapped[: it.n_bytes] == content(it.held.step, it.n_bytes)
        total = memory.sum_of(it.slot)
        if total is not None:
            is_right &= total == checksum(memoryview(content(it.held.step, it.n_bytes)))
        found[it.held.step] = is_right
    return found
