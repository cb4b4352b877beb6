"""Break gloo's collectives from another thread, so that a blocked rank comes back.

torch cannot (2.13: ``abort`` and ``shutdown`` of a gloo backend do nothing, a signal or an
asynchronous exception is seen when the group's timeout is over, 30 minutes by default). But gloo
fails an operation whose connection ends, and any thread of its process can half close that.
Measured: 0.3 to 1.2 ms until the blocked thread is back in Python.

Each device of gloo has one thread on one epoll, and ``/proc/self/fdinfo`` lists the sockets in an
epoll. So only the *epolls* have to be known: those that appear while a group (or a device) is
constructed and have the shape of gloo's. Connections made lazily, and those of a group under
construction, are in there like all others; a socket that other code opens meanwhile is not.

* Only connected sockets are broken: without its listening socket gloo ends the process
  (``std::terminate``).
* By ``SHUT_RD``, with copies that stay open until :meth:`release`: nothing reaches a peer before it
  has aborted by itself. With a full shutdown, or if a peer's socket closed first, gloo can lose the
  error of a send that was queued already, and the waiter sleeps on until its timeout: measured in
  up to 3 % of the restarts of 8 ranks; this way in 0 of 10,000.

Where a group is still being made, the main thread may wait

* for a key of its store: connections of ``TCPStore`` clients made since the last :meth:`release`
  are broken likewise (signals do not wake that wait), but not those of a store that was there
  before the group: the next iteration needs it;
* for a peer to connect, which gloo bounds by five times its timeout: this process connects in the
  peer's place, sends the number of each pair, and closes. Likewise for connections made lazily.

Sends and receives that are half done or have no peer: :mod:`.work_abort`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.distributed import ProcessGroupGloo

from holdfast.base.rank_log import rank_logger
from holdfast.base.torch_private import TCPStore
from holdfast.inplace.torch_edge.replaced import replaced
from holdfast.net.half_close import (
    copy_of,
    half_close,
    is_listening,
    open_epolls,
    open_sockets,
    watched_by,
)

log = rank_logger(__name__)

_NOT_PAIRS = 2
"""A loop also waits for a pipe and for the listening socket."""
_CONNECT_S = 1.0
_During = contextlib.AbstractContextManager[None]


class RestartPendingError(RuntimeError):
    """A process group was to be made while the process is about to restart."""


@dataclass(frozen=True)
class _Device:
    """One loop of gloo: an epoll, known by the listening socket in it."""

    epoll: int
    listener: int
    """Inode of its listening socket."""
    address: Any
    """Where it listens."""
    size: int
    """How many ranks its group has; 0: not known (a device made by itself)."""


class GlooAborter:
    """Knows the gloo groups and store clients made while it is installed, and breaks them.

    One per process, :data:`gloo_aborter`. All methods may be called from any thread, while the main
    thread is blocked; :meth:`abort` again and again.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_installed = False
        self._making: list[Callable[[], list[_Device]]] = []
        """Of each constructor that is running, in whatever thread: its loops so far."""
        self._devices: dict[int, _Device] = {}
        self._making_stores: list[Callable[[], set[tuple[int, int]]]] = []
        self._stores: set[tuple[int, int]] = set()
        self._held: dict[int, socket.socket] = {}
        self._seen: dict[int, set[int]] = {}
        self._answered: set[int] = set()
        self._is_aborting = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Take note of groups inside; then torch is as it was, and nothing is held."""
        with (
            replaced(ProcessGroupGloo, "__init__", _made_during(self._group_made)),
            replaced(ProcessGroupGloo, "create_device", _made_during(self._device_made)),
            replaced(ProcessGroupGloo, "create_default_device", _made_during(self._device_made)),
            replaced(TCPStore, "__init__", _made_during(self._store_made)),
        ):
            self._is_installed = True
            try:
                yield
            finally:
                with self._lock:
                    self._is_installed = False
                    self.release()
                    self._devices.clear()

    def abort(self) -> None:
        """Break every connection that was not broken yet; see the module.

        Until :meth:`release`, making another group raises :class:`RestartPendingError`. If the main
        thread does not come back at once, call it again: it may wait for another connection now.
        """
        with self._lock:
            self._is_aborting = self._is_installed
            for device in self._devices_now():
                watched = watched_by(device.epoll)
                for fd, inode, _ in watched:
                    self._hold(fd, inode)
                seen = self._seen.setdefault(device.listener, set())
                seen.update(inode for _, inode, _ in watched)
                is_whole = len(seen) - _NOT_PAIRS >= device.size - 1
                if not is_whole and device.listener not in self._answered:
                    self._answered.add(device.listener)
                    _answer(device)
            for fd, inode in self._store_sockets():
                self._hold(fd, inode)

    def release(self) -> None:
        """Every rank has aborted (the restart is committed): close the copies of sockets."""
        with self._lock:
            self._is_aborting = False
            self._stores.clear()
            self._answered.clear()
            self._seen.clear()
            while self._held:
                self._held.popitem()[1].close()

    # ------------------------------------------------------------------ taking note

    def _group_made(self, _group: Any, *args: Any, **kwargs: Any) -> _During:
        size = kwargs.get("size", args[2] if len(args) > 2 else 0)
        return self._noting_devices(size if isinstance(size, int) else 0)

    def _device_made(self, *_args: Any, **_kwargs: Any) -> _During:
        return self._noting_devices(0)

    @contextlib.contextmanager
    def _noting_devices(self, size: int) -> Iterator[None]:
        # The lock is not held meanwhile: two threads may make two groups, in different orders on
        # different ranks, and each waits for its peers. Both then find both devices, which is fine.
        # The *number* of an epoll says nothing: one that is being destroyed gives its number to the
        # new one.
        before = {device.listener for device in _devices(size)}

        def made() -> list[_Device]:
            return [device for device in _devices(size) if device.listener not in before]

        with self._lock:
            if self._is_aborting:
                raise RestartPendingError(
                    "no process group can be made now: a restart of this process is under way"
                )
            self._making.append(made)
        try:
            yield
        finally:
            with self._lock:
                self._making.remove(made)
                self._devices.update((device.listener, device) for device in made())
                self._forget_closed_devices()

    def _forget_closed_devices(self) -> None:
        self._devices = {at: device for at, device in self._devices.items() if _is_device(device)}

    @contextlib.contextmanager
    def _store_made(self, store: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        port = kwargs.get("port", args[1] if len(args) > 1 else 0)
        before = open_sockets()

        def made() -> set[tuple[int, int]]:
            return _clients(open_sockets() - before, port)

        with self._lock:
            self._making_stores.append(made)
        try:
            yield
            port = store.port
        finally:
            with self._lock:
                self._making_stores.remove(made)
                self._stores |= made()

    # ------------------------------------------------------------------ what there is

    def _devices_now(self) -> list[_Device]:
        """Every loop of gloo, those of groups under construction included."""
        self._forget_closed_devices()
        now = dict(self._devices)
        for made in self._making:
            now.update((device.listener, device) for device in made())
        return list(now.values())

    def _store_sockets(self) -> set[tuple[int, int]]:
        return self._stores.union(*(made() for made in self._making_stores))

    def _hold(self, fd: int, inode: int) -> None:
        if inode in self._held or (sock := copy_of(fd, inode)) is None:
            return
        # A connection that is not there yet is broken by the next abort().
        if is_listening(sock) or not half_close(sock):
            sock.close()
        else:
            self._held[inode] = sock


gloo_aborter = GlooAborter()


def _made_during(
    noting: Callable[..., _During],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def around(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            with noting(*args, **kwargs):
                return make(*args, **kwargs)

        return made

    return around


def _devices(size: int) -> list[_Device]:
    """Every epoll of this process that looks like a loop of gloo."""
    return [found for epoll in open_epolls() if (found := _device(epoll, size)) is not None]


def _device(epoll: int, size: int) -> _Device | None:
    """The loop of gloo behind an epoll, if that is one: pointers, and a socket that listens."""
    watched = watched_by(epoll)
    # gloo registers pointers. Their size says nothing: they are small where the interpreter is
    # linked to a fixed address, as Debian's is.
    if any(one.is_by_number for one in watched):
        return None
    for fd, inode, _ in watched:
        sock = copy_of(fd, inode)
        if sock is None:
            continue
        with sock:
            if is_listening(sock):
                return _Device(epoll, inode, sock.getsockname(), size)
    return None


def _is_device(device: _Device) -> bool:
    """It still is: the descriptor of a group that was destroyed may be another epoll now."""
    return any(inode == device.listener for _, inode, _ in watched_by(device.epoll))


def _clients(fresh: set[tuple[int, int]], port: object) -> set[tuple[int, int]]:
    """Those of some sockets that are connected to the port of a store; 0: to one of themselves."""
    ports = {port} if port else {_port(one, socket.socket.getsockname) for one in fresh}
    return {one for one in fresh if _port(one, socket.socket.getpeername) in ports - {None}}


def _port(name: tuple[int, int], end: Callable[[socket.socket], Any]) -> int | None:
    sock = copy_of(*name)
    if sock is None:
        return None
    with sock:
        try:
            address = end(sock)
        except OSError:  # not connected
            return None
    return address[1] if isinstance(address, tuple) else None


def _answer(device: _Device) -> None:
    """Connect to this process's gloo in place of its peers; each sends the number of its pair.

    The device counts them, from 0 or 1 on, and keeps those that no thread waits for yet, so once is
    enough.
    """
    for number in range(device.size + 1):
        try:
            with socket.create_connection(device.address[:2], timeout=_CONNECT_S) as sock:
                sock.sendall(struct.pack("=q", number))
        except OSError as error:
            log.debug("gloo at %s does not take a connection: %s", device.address, error)
            return
