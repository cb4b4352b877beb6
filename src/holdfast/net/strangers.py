"""Callers that have not proved who they are: few bytes, little time, a limited number.

    connection ──► stranger ──proof──► admitted: its owner serves it
                      └─ garbage, silence, too many ──► cut off

A stranger costs one descriptor and at most 4 KiB. How long it may stay, and who goes first beyond
``STRANGERS_MAX``, :mod:`holdfast.net.pure.admission` decides. With no descriptor left, callers
wait in the kernel's queue; listening goes on when one is free.
"""

from __future__ import annotations

import errno

from holdfast.base import clock
from holdfast.base.pure.deadlines import earliest
from holdfast.net.channel import Channel
from holdfast.net.pure.admission import SILENT_S, Admission

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from holdfast.net.descriptors import Descriptors
    from holdfast.net.pure.frames import Message

STRANGERS_MAX = 256
_ACCEPTS_AT_ONCE = 64
_NO_DESCRIPTOR_S = 0.5
"""How long to wait for a free descriptor where nobody says that there is one."""
_NONE_FREE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class StrangerError(ValueError):
    """This caller is not let in; the text completes "<caller> ..."."""


class Stranger:
    """One connection that is not trusted yet.

    Attributes:
        channel: To it.
        fd: Its descriptor, also once it is closed.
        who: For people: where it comes from.
        step: Of its owner's handshake; what it has shown so far.
    """

    __slots__ = ("channel", "fd", "step", "who")

    def __init__(self, channel: Channel, who: str) -> None:
        self.channel = channel
        self.fd = channel.fileno()
        self.who = who
        self.step: Any = None


class Strangers:
    """Accepts from ``listener``, and holds who came until it is admitted or cut off.

    Args:
        listener: Stays the caller's to close.
        descriptors: Of the loop.
        greet: Called with each new connection and its address: who that is, for people.
        hear: Called with each message of a stranger: True once it is trusted, and its owner has
            registered itself for the channel's descriptor. Both may raise
            :class:`StrangerError` to turn it away; any other exception turns it away as well.
        complain: Called with who was turned away, and why.
    """

    def __init__(
        self,
        listener: socket.socket,
        descriptors: Descriptors,
        *,
        greet: Callable[[socket.socket, Any], str],
        hear: Callable[[Stranger, Message], bool],
        complain: Callable[[str, str], None],
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._descriptors = descriptors
        self._greet = greet
        self._hear = hear
        self._complain = complain
        self._strangers: dict[int, Stranger] = {}  # by descriptor
        self._admission = Admission()
        self._retry_at: float | None = None
        self._is_listening = False
        self._listen()

    def next_deadline(self) -> float | None:
        """When to call :meth:`tick`, at the latest."""
        return earliest(self._admission.next_deadline(), self._retry_at)

    def tick(self, now: float) -> None:
        """Cut off who said nothing; listen again if that had to be given up."""
        for fd in self._admission.overdue(now):
            self._turn_away(self._strangers[fd], f"sent no handshake within {SILENT_S:g} s")
        if self._retry_at is not None and now >= self._retry_at:
            self._listen()

    def descriptor_is_free(self) -> None:
        """Somebody has hung up: listen again if that had to be given up."""
        if not self._is_listening:
            self._listen()

    def close(self) -> None:
        """Listen no more, and hang up on all strangers."""
        self._pause()
        self._retry_at = None
        for stranger in list(self._strangers.values()):
            self._forget(stranger)
            self._descriptors.hang_up(stranger.channel)

    # ------------------------------------------------------------ inside

    def _listen(self) -> None:
        self._retry_at = None
        if not self._is_listening and self._listener.fileno() >= 0:
            self._descriptors.watch(self._listener.fileno(), self._accept)
            self._is_listening = True

    def _pause(self) -> None:
        """Leave callers in the kernel's queue: the listener is readable all the time."""
        if self._is_listening:
            self._descriptors.forget(self._listener.fileno())
            self._is_listening = False

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                connected, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NONE_FREE:
                    self._pause()
                    self._retry_at = clock.monotonic() + _NO_DESCRIPTOR_S
                    self._complain("this process", f"can accept no connection: {error.strerror}")
                    return
                continue  # whoever called is gone again
            self._take_in(connected, address)

    def _take_in(self, connected: socket.socket, address: object) -> None:
        try:
            who = self._greet(connected, address)
            channel = Channel(connected, self._descriptors.epoll)
        except StrangerError as error:
            connected.close()
            self._complain("a caller", str(error))
            return
        except OSError as error:
            connected.close()
            self._complain("a caller", f"cannot be served: {error.strerror or error}")
            return
        if len(self._strangers) >= STRANGERS_MAX:
            self._make_room()
        stranger = Stranger(channel, who)
        self._strangers[stranger.fd] = stranger
        self._admission.came(stranger.fd, who, clock.monotonic())
        self._descriptors.call(stranger.fd, lambda: self._receive(stranger))

    def _make_room(self) -> None:
        first = self._admission.first_to_go()
        assert first is not None, "all places are taken"
        fd, count = first
        oldest = self._strangers[fd]
        self._receive(oldest)  # it may have spoken by now
        if self._strangers.get(fd) is oldest:
            self._turn_away(oldest, f"has too many connections without a handshake: {count}")

    def _receive(self, stranger: Stranger) -> None:
        channel = stranger.channel
        try:
            channel.flush()
            message = channel.receive_first()
            while message is not None:
                if self._hear(stranger, message):
                    self._forget(stranger)
                    return
                message = channel.next_of_stranger()
            if channel.gone is not None:
                raise StrangerError(_how_it_ended(channel.gone))  # noqa: TRY301
        except StrangerError as error:
            self._turn_away(stranger, str(error))
        except Exception as error:  # noqa: BLE001 - what a stranger says ends its connection alone
            self._turn_away(stranger, f"sent a message that cannot be handled: {error!r:.200}")

    def _turn_away(self, stranger: Stranger, why: str) -> None:
        self._forget(stranger)
        self._descriptors.hang_up(stranger.channel)
        self._complain(stranger.who, why)
        self.descriptor_is_free()

    def _forget(self, stranger: Stranger) -> None:
        if self._strangers.get(stranger.fd) is stranger:
            del self._strangers[stranger.fd]
            self._admission.left(stranger.fd)


def _how_it_ended(gone: str) -> str:
    if gone == "closed":
        return "closed its connection without a handshake"
    return f"sent no handshake: {gone}"
