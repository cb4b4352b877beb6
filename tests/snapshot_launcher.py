"""The launcher's side of snapshots for tests of the rank's: a real socket, real memory files.

It keeps one arena per rank for as long as it lives. :meth:`SnapshotLauncher.next_cycle` chooses the
newest snapshot that all ranks have committed, as the launchers of a job do in their own way.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typing_extensions import Self

from holdfast.arena import arena
from holdfast.arena.arena import ArenaMemory
from holdfast.arena.pure import layout
from holdfast.arena.pure.messages import Arena, OpenArena, SnapshotCost, SnapshotUnusable
from holdfast.arena.pure.snapshots import SnapshotId
from holdfast.base.pure.codec import decode, encode, family
from holdfast.net import endpoint
from holdfast.net.pure.frames import Decoder
from holdfast.net.pure.frames import encode as frame

Request = OpenArena | SnapshotCost | SnapshotUnusable
_REQUESTS: Any = family(Request)


class SnapshotLauncher:
    """Serves ``path`` from a thread, until :meth:`close`.

    Attributes:
        requests: All that ranks have sent, in order.
        chosen: What the ranks of this cycle begin from.
        refuses: A text: no arena is given, for this reason.
        answers: Called with the connection in place of an answer to a request for an arena.
        n_slots: The most that are given.
        kept: Slots that are given beyond those, for kept steps.
        bytes_max: The most that one slot is given.
    """

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "launcher.sock")
        self.requests: list[Request] = []
        self.chosen: SnapshotId | None = None
        self.cycle = 0
        self.refuses = ""
        self.answers: Callable[[socket.socket], object] | None = None
        self.n_slots = layout.MAX_SLOTS
        self.kept = 0
        self.bytes_max = 1 << 40
        self._fds: dict[int, int] = {}
        self._arenas: dict[int, ArenaMemory] = {}
        self._slots: dict[int, int] = {}
        self._refused: set[SnapshotId] = set()
        self._listener = endpoint.listen(self.path)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def env(self, rank: int, world_size: int) -> dict[str, str]:
        """What a launcher gives a rank."""
        return {
            "FT_LAUNCHER_IPC_SOCKET": self.path,
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
        }

    def arena(self, rank: int) -> ArenaMemory:
        """The memory of a rank; made where there is none yet."""
        if rank not in self._fds:
            self._fds[rank] = arena.create(f"snapshots of rank {rank}")
            self._arenas[rank] = ArenaMemory(self._fds[rank])
        return self._arenas[rank]

    def common(self, ranks: int) -> list[SnapshotId]:
        """Snapshots that all of these ranks have committed, newest first."""
        held = [{each.held.id for each in self.arena(rank).all_held()} for rank in range(ranks)]
        return sorted(set.intersection(*held) - self._refused, reverse=True)

    def next_cycle(self, ranks: int) -> SnapshotId | None:
        """All ranks are gone: choose, void the rest; returns the choice."""
        self.chosen = next(iter(self.common(ranks)), None)
        self._slots.clear()
        for rank in range(ranks):
            self.arena(rank).void_others(self.chosen)
            for found in self.arena(rank).all_held():
                if found.held.id == self.chosen:
                    self._slots[rank] = found.slot
        self.cycle += 1
        return self.chosen

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for fd in self._fds.values():
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ in the thread
    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with caller:
                caller.settimeout(10.0)
                with contextlib.suppress(OSError):
                    self._answer(caller)

    def _answer(self, caller: socket.socket) -> None:
        decoder = Decoder()
        message = None
        while message is None:
            data = caller.recv(1 << 16)
            if not data:
                return
            message = decoder.first(data)
        request = decode(_REQUESTS, message)
        self.requests.append(request)
        match request:
            case OpenArena() if self.answers is not None:
                self.answers(caller)
            case OpenArena() if self.refuses or request.slot_bytes > self.bytes_max:
                text = self.refuses or f"{request.slot_bytes} bytes are too many"
                caller.sendall(frame({"op": "error", "text": text}))
            case OpenArena():
                memory = self.arena(request.rank)
                given = min(request.n_slots, self.n_slots) + self.kept
                memory.words[layout.N_SLOTS] = given
                slot = self._slots.get(request.rank, 0)
                answer = frame(encode(Arena(given, self.cycle, self.chosen, slot, kept=self.kept)))
                socket.send_fds(caller, [answer], [memory.fd])
            case SnapshotUnusable():
                self._refused.add(request.snapshot)
                caller.sendall(frame({"op": "ok"}))
            case SnapshotCost():
                caller.sendall(frame({"op": "ok"}))
