"""The alternative to a page: a pickled message per heartbeat, over a Unix socket, to a reader.

Length and body are two sends, as such protocols commonly do it. Run as ``python -m bench.classic
FD`` this module is the reader.
"""

from __future__ import annotations

import enum
import pickle
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

_LENGTH = struct.Struct("!I")


class Action(enum.Enum):
    """What happens to a section."""

    OPEN = enum.auto()
    CLOSE = enum.auto()


@dataclass
class Heartbeat:
    """A rank is alive."""

    rank: int
    at: float
    wants_reply: bool = False
    state: dict[str, Any] = field(default_factory=dict)


@dataclass
class SectionChange:
    """A rank opens or closes a section."""

    rank: int
    section: str
    action: Action
    at: float
    wants_reply: bool = False


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (chunk := connection.recv(size - len(data))):
            raise EOFError
        data += chunk
    return data


def read(connection: socket.socket) -> Any:
    """One message; blocks."""
    return pickle.loads(_read(connection, _LENGTH.unpack(_read(connection, _LENGTH.size))[0]))


def send(connection: socket.socket, message: object) -> None:
    """One message, in two sends."""
    body = pickle.dumps(message)
    connection.sendall(_LENGTH.pack(len(body)))
    connection.sendall(body)


class Reader:
    """A process that reads messages, and this process's connection to it."""

    def __enter__(self) -> socket.socket:
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        return self._ours

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        self._process.wait(10)


def main(connection: socket.socket) -> None:
    """Read until the sender has gone."""
    while True:
        try:
            message = read(connection)
        except EOFError:
            return
        if message.wants_reply:
            send(connection, "ok")


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
