"""A listening socket on an epoll loop: the one place where connections are accepted.

    connection ──identify──► unauthenticated ──on_message──► admit: its owner serves it
                    │              ├─ silence, garbage, an error ──► cut off, and logged
                    └─ refused     └─ too many ──► the oldest of the peer with the most goes first

:mod:`holdfast.net.pure.admission` decides how long an unauthenticated connection may stay, and
which goes first. Lines about peers that are cut off are logged at a bounded rate.
"""

from __future__ import annotations

import errno
import resource

from holdfast.base import clock
from holdfast.base.pure.deadlines import earliest
from holdfast.net.channel import Channel, RefusedError, is_trusted, peer_of
from holdfast.net.pure.admission import SILENT_S, AdmissionControl
from holdfast.net.pure.rate_limited_log import RateLimitedLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from typing import Any

    from holdfast.net.descriptors import Descriptors
    from holdfast.net.pure.frames import Message

    OnMessage = Callable[[Channel, Message], None]

UNAUTHENTICATED_MAX = 256
UNAUTHENTICATED_BYTES_MAX = 4096
_ACCEPTS_AT_ONCE = 64
_RETRY_S = 0.5
_NONE_FREE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def local_process(connected: socket.socket, _address: object) -> str:
    """Identify the process at the other end of a Unix socket: of this user, or of root.

    Raises:
        RefusedError: It belongs to another user.
    """
    pid, uid = peer_of(connected)
    if not is_trusted(uid):
        raise RefusedError(f"process {pid} belongs to user {uid}, who may not call here")
    return f"process {pid}"


class Server:
    """Accepts, identifies, and holds connections until they are admitted or cut off.

    Args:
        listener: Stays the caller's to close.
        on_message: Called with each message of an unauthenticated connection, until it is admitted
            (:meth:`admit`). An exception cuts it off; only an admitted one may be closed.
        log: Called with each line about a peer that was cut off, or about missing descriptors.
        identify: Called with a new socket and its address; returns the peer's name for log lines.
            Raises :class:`RefusedError` to hang up.
        greeting: Name of a peer's first messages, in log lines.
        frame_bytes_max: Longest message of an unauthenticated connection.
        refusal: Turns the reason of a cut-off into a message to the peer; None: it gets none.
        may_accept: Called before each connection is accepted; False: none is, now.
    """

    def __init__(
        self,
        listener: socket.socket,
        descriptors: Descriptors,
        on_message: OnMessage,
        log: Callable[[str], None],
        *,
        identify: Callable[[socket.socket, Any], str] = local_process,
        greeting: str = "handshake",
        unauthenticated_max: int = UNAUTHENTICATED_MAX,
        frame_bytes_max: int = UNAUTHENTICATED_BYTES_MAX,
        refusal: Callable[[str], Mapping[str, Any]] | None = None,
        may_accept: Callable[[], bool] = lambda: True,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._descriptors = descriptors
        self._on_message = on_message
        self._log = log
        self._identify = identify
        self._greeting = greeting
        self._unauthenticated_max = unauthenticated_max
        self._frame_bytes_max = frame_bytes_max
        self._refusal = refusal
        self._may_accept = may_accept
        self._unauthenticated: dict[int, Channel] = {}  # by descriptor
        self._admission = AdmissionControl()
        self._rate = RateLimitedLog()
        self._retry_at: float | None = None
        self._is_listening = False

    def open(self) -> None:
        """Accept connections from now on."""
        self._retry_at = None
        if not self._is_listening and self._listener.fileno() >= 0:
            self._descriptors.watch(self._listener.fileno(), self.accept)
            self._is_listening = True

    def close(self) -> None:
        """Accept no more, and hang up on all that are not admitted."""
        self._pause()
        self._retry_at = None
        self.dismiss()

    def dismiss(self, why: str | None = None) -> None:
        """Hang up on all that are not admitted, and tell them why; nothing is logged."""
        for channel in list(self._unauthenticated.values()):
            if why is not None and self._refusal is not None:
                channel.send(self._refusal(why))
            self._forget(channel)
            channel.close()

    def next_deadline(self) -> float | None:
        """When to call :meth:`tick`, at the latest."""
        return earliest(self._admission.next_deadline(), self._retry_at)

    def tick(self, now: float) -> None:
        """Cut off silent connections; accept again if there was no descriptor."""
        for fd in self._admission.overdue(now):
            self._unauthenticated[fd].cut_off(f"sent no {self._greeting} within {SILENT_S:g} s")
        if self._retry_at is not None and now >= self._retry_at:
            self.open()

    def admit(
        self,
        channel: Channel,
        on_message: OnMessage,
        on_closed: Callable[[Channel], None],
        frame_bytes_max: int,
    ) -> None:
        """Let ``channel`` in: its owner serves it from the next message on."""
        self._forget(channel)
        channel.on_message, channel.on_closed = on_message, on_closed
        channel.accept_frames(frame_bytes_max)

    def accept(self) -> None:
        """Accept connections that wait, some at once, so that a flood does not starve others."""
        for _ in range(_ACCEPTS_AT_ONCE):
            if not self._may_accept() or not self._accept_one():
                return

    def drain(self) -> None:
        """Accept connections that wait, and handle all that unauthenticated ones have sent."""
        if self._is_listening:
            self.accept()
        for channel in list(self._unauthenticated.values()):
            channel.receive()

    def report(self, peer: str, text: str) -> None:
        """Log "<peer> <text>", once per peer and minute."""
        if (line := self._rate.line(peer, text, clock.monotonic())) is not None:
            self._log(line)

    # ------------------------------------------------------------ inside

    def _accept_one(self) -> bool:
        """Whether there may be another one."""
        try:
            connected, address = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NONE_FREE:
                return True  # the peer is gone again
            # Connections wait in the kernel's queue, where they cost nothing. The listener is
            # readable all that time, so it is not waited for.
            self._pause()
            self._retry_at = clock.monotonic() + _RETRY_S
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            self.report(
                "this process",
                f"can accept no connection, so its callers wait: {error.strerror}. It may have "
                f"{most} descriptors open; allow more (ulimit -n; fs.file-max), or close some",
            )
            return False
        try:
            peer = self._identify(connected, address)
        except (RefusedError, OSError) as error:  # OSError: the peer is gone again
            connected.close()
            self.report("a caller", f"was cut off: {error}")
            return True
        if len(self._unauthenticated) >= self._unauthenticated_max:
            self._make_room()
        channel = Channel(
            connected, self._descriptors, self._on_message, self._forget, self._frame_bytes_max
        )
        channel.peer = peer
        channel.refusal = self._refusal
        channel.report = self._report_cut_off
        self._unauthenticated[channel.fileno()] = channel
        self._admission.came(channel.fileno(), peer, clock.monotonic())
        return True

    def _pause(self) -> None:
        if self._is_listening:
            self._descriptors.forget(self._listener.fileno())
            self._is_listening = False

    def _make_room(self) -> None:
        first = self._admission.first_to_go()
        assert first is not None, "all places are taken"
        fd, count = first
        oldest = self._unauthenticated[fd]
        oldest.receive()  # its handshake may be here by now
        if self._unauthenticated.get(fd) is oldest:
            oldest.cut_off(f"has too many connections without a {self._greeting}: {count}")

    def _forget(self, channel: Channel) -> None:
        for fd, each in self._unauthenticated.items():
            if each is channel:
                del self._unauthenticated[fd]
                self._admission.left(fd)
                return

    def _report_cut_off(self, channel: Channel, why: str) -> None:
        self.report(channel.peer, f"was cut off: {why}")
