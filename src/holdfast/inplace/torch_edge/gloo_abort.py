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
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch.distributed import ProcessGroupGloo

from holdfast.base.rank_log import rank_logger
from holdfast.base.torch_private import TCPStore
from holdfast.net.half_close import (
    copy_of,
    half_close,
    is_listening,
    open_epolls,
    open_sockets,
    watched_by,
)

if TYPE_CHECKING:
    from typing_extensions import Self

log = rank_logger(__name__)

_NOT_PAIRS = 2
"""A loop also waits for a pipe and for the listening socket."""
_CONNECT_S = 1.0


class RestartPendingError(RuntimeError):
    """A process group was to be made while the process is about to restart."""


@dataclass
class _Making:
    """A constructor that is running, in whatever thread."""

    listeners: set[int] = field(default_factory=set)
    """Inodes of the listening sockets of epolls that were there before; the *number* of an epoll
    says nothing, since one that is being destroyed gives its number to the new one."""
    sockets: set[tuple[int, int]] = field(default_factory=set)
    size: int = 0
    port: int = 0


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

    One per process, :func:`gloo_aborter`. All methods may be called from any thread, while the main
    thread is blocked; :meth:`abort` again and again.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users = 0
        self._originals: list[tuple[type, str, Any]] = []
        self._making: list[_Making] = []
        self._making_stores: list[_Making] = []
        self._devices: dict[int, _Device] = {}
        self._stores: set[tuple[int, int]] = set()
        self._held: dict[int, socket.socket] = {}
        self._seen: dict[int, set[int]] = {}
        self._answered: set[int] = set()
        self._is_aborting = False

    def __enter__(self) -> Self:
        """Take note of groups from now on. May be nested."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._wrap(ProcessGroupGloo, "__init__", self._group_init)
                self._wrap(ProcessGroupGloo, "create_device", self._device_init)
                self._wrap(ProcessGroupGloo, "create_default_device", self._device_init)
                self._wrap(TCPStore, "__init__", self._store_init)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Undo it: torch is as it was, nothing is held."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            while self._originals:
                owner, name, original = self._originals.pop()
                setattr(owner, name, original)
            self.release()
            self._devices.clear()

    @property
    def is_watching(self) -> bool:
        """Whether it is installed."""
        return self._users > 0

    def abort(self) -> None:
        """Break every connection that was not broken yet; see the module.

        Until :meth:`release`, making another group raises :class:`RestartPendingError`. If the main
        thread does not come back at once, call it again: it may wait for another connection now.
        """
        with self._lock:
            self._is_aborting = self._users > 0
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

    def _wrap(self, owner: type, name: str, around: Callable[..., Any]) -> None:
        # The class itself stays: torch asks isinstance(..., ProcessGroupGloo).
        original = owner.__dict__[name]
        call = getattr(owner, name)
        if name == "__init__":

            def wrapped(this: Any, *args: Any, **kwargs: Any) -> None:
                around(call, this, *args, **kwargs)

            setattr(owner, name, wrapped)
        else:

            def made(*args: Any, **kwargs: Any) -> Any:
                return around(call, *args, **kwargs)

            setattr(owner, name, staticmethod(made))
        self._originals.append((owner, name, original))

    def _group_init(self, call: Callable[..., None], this: Any, *args: Any, **kwargs: Any) -> None:
        size = kwargs.get("size", args[2] if len(args) > 2 else 0)
        with self._noting_devices(size if isinstance(size, int) else 0):
            call(this, *args, **kwargs)

    def _device_init(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._noting_devices(0):
            return call(*args, **kwargs)

    @contextlib.contextmanager
    def _noting_devices(self, size: int) -> Iterator[None]:
        # The lock is not held meanwhile: two threads may make two groups, in different orders on
        # different ranks, and each waits for its peers. Both then find both devices, which is fine.
        making = _Making(listeners={device.listener for device in _devices(size)}, size=size)
        with self._lock:
            if self._is_aborting:
                raise RestartPendingError(
                    "no process group can be made now: a restart of this process is under way"
                )
            self._making.append(making)
        try:
            yield
        finally:
            with self._lock:
                self._making.remove(making)
                for device in _new_devices(making):
                    self._devices[device.listener] = device
                self._forget_closed_devices()

    def _forget_closed_devices(self) -> None:
        for device in list(self._devices.values()):
            if not _is_device(device):
                del self._devices[device.listener]

    def _store_init(self, call: Callable[..., None], this: Any, *args: Any, **kwargs: Any) -> None:
        port = kwargs.get("port", args[1] if len(args) > 1 else 0)
        making = _Making(sockets=open_sockets(), port=port if isinstance(port, int) else 0)
        with self._lock:
            self._making_stores.append(making)
        try:
            call(this, *args, **kwargs)
            making.port = this.port
        finally:
            with self._lock:
                self._making_stores.remove(making)
                self._stores |= _clients(making)

    # ------------------------------------------------------------------ what there is

    def _devices_now(self) -> list[_Device]:
        """Every loop of gloo, those of groups under construction included."""
        self._forget_closed_devices()
        now = dict(self._devices)
        for making in self._making:
            now.update((device.listener, device) for device in _new_devices(making))
        return list(now.values())

    def _store_sockets(self) -> set[tuple[int, int]]:
        return self._stores.union(*(_clients(making) for making in self._making_stores))

    def _hold(self, fd: int, inode: int) -> None:
        if inode in self._held or (sock := copy_of(fd, inode)) is None:
            return
        # A connection that is not there yet is broken by the next abort().
        if is_listening(sock) or not half_close(sock):
            sock.close()
        else:
            self._held[inode] = sock


_aborter = GlooAborter()


def gloo_aborter() -> GlooAborter:
    """The one of this process."""
    return _aborter


def _new_devices(making: _Making) -> list[_Device]:
    return [device for device in _devices(making.size) if device.listener not in making.listeners]


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


def _clients(making: _Making) -> set[tuple[int, int]]:
    """Sockets opened since then that are connected to the store's port."""
    fresh = open_sockets() - making.sockets
    ports = {making.port} if making.port else {_port(s, socket.socket.getsockname) for s in fresh}
    return {s for s in fresh if _port(s, socket.socket.getpeername) in ports - {None}}


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
