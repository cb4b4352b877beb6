"""Break connections that other code of this process owns, without taking them away.

A socket is named by descriptor *and* inode: descriptors are given out again, so a number that was
right when it was noted may be another file when it is used. ``dup`` first, then look at the inode
of the copy, and the answer cannot change any more.
"""

from __future__ import annotations

import fcntl
import os
import socket
from typing import NamedTuple


class Watched(NamedTuple):
    """One descriptor that an epoll waits for: its number when it was registered, and its file.

    ``data`` was registered with it by its owner: a pointer, or again the number.
    """

    fd: int
    inode: int
    data: int

    @property
    def is_by_number(self) -> bool:
        """Its owner registered the number, as Python and libuv do; half of the word is anything."""
        return self.data & 0xFFFFFFFF == self.fd


def open_epolls() -> set[int]:
    """Descriptors of this process that are epolls."""
    return {fd for fd, target in _links() if target == "anon_inode:[eventpoll]"}


def open_sockets() -> set[tuple[int, int]]:
    """Descriptor and inode of every socket of this process."""
    return {
        (fd, int(target[len("socket:[") : -1]))
        for fd, target in _links()
        if target.startswith("socket:[")
    }


def _links() -> list[tuple[int, str]]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append((int(name), os.readlink(f"/proc/self/fd/{name}")))
        except OSError:  # closed since, or the descriptor of this very listing
            continue
    return found


def watched_by(epoll_fd: int) -> list[Watched]:
    """Descriptors that an epoll waits for; empty if it is none (any more)."""
    found = []
    try:
        with open(f"/proc/self/fdinfo/{epoll_fd}", encoding="ascii") as lines:
            for line in lines:
                if not line.startswith("tfd:"):
                    continue
                # tfd:   6 events:   19 data:   560e26b35150  pos:0 ino:60a28 sdev:9
                words = line.replace(":", " ").split()
                fact = dict(zip(words[::2], words[1::2], strict=True))
                found.append(Watched(int(fact["tfd"]), int(fact["ino"], 16), int(fact["data"], 16)))
    except (OSError, ValueError, KeyError):
        return []
    return found


def copy_of(fd: int, inode: int) -> socket.socket | None:
    """Another descriptor of a socket; ``None``: ``fd`` is not that socket (any more)."""
    try:
        copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)
    except OSError:
        return None
    try:
        if os.fstat(copy).st_ino == inode:
            return socket.socket(fileno=copy)
    except OSError:
        pass
    os.close(copy)
    return None


def is_listening(sock: socket.socket) -> bool:
    """It accepts connections."""
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def half_close(sock: socket.socket) -> bool:
    """Give end of file, now, to code that waits for bytes; the other end sees nothing.

    False: the connection was not there yet, or is gone already.
    """
    try:
        sock.shutdown(socket.SHUT_RD)
    except OSError:
        return False
    return True
