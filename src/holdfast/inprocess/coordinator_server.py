"""The coordinator at work: a TCP server in the guard of the first node.

Guards and stores of ranks call, say the job's token in their first frame, and are served by two
pure machines: ``core.inprocess.coordinator`` and ``core.inprocess.keyvalue``. Decides nothing.

A stranger's connection, garbage or a flood ends that connection and nothing else: frames have a
limit, are JSON, and nothing is done for who did not say the token. Who connects and says nothing is
cut off when the next one comes after ``SILENT_S``. No name is looked up anywhere: addresses only.
"""

from __future__ import annotations

import errno
import hmac
import socket

from holdfast.core.inprocess import coordinator as machine
from holdfast.core.inprocess.keyvalue import KeyValues, Reply, RequestError
from holdfast.core.inprocess.messages import Commit, Leave, MessageError, up_from_wire
from holdfast.core.never import assert_never
from holdfast.host import clock
from holdfast.host.channel import Channel
from holdfast.host.descriptors import Descriptors
from holdfast.host.tcp import tune

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.wire.frames import Message

_BACKLOG = 4096
_ACCEPTS_AT_ONCE = 256
SILENT_S = 10.0
"""Who does not say the token for so long is a stranger."""
_STRANGERS_MAX = 256
_KEPT_ROOMS = 1
"""Rooms of epochs before the current one: a slow rank may still read what it came for."""


class _Caller:
    """One connection: a stranger, then a guard or a store."""

    __slots__ = ("came_at", "channel", "node", "role")

    def __init__(self, channel: Channel, now: float) -> None:
        self.channel = channel
        self.came_at = now
        self.role = "stranger"
        self.node = ""


class CoordinatorServer:
    """Serves until it is closed.

    Attributes:
        port: Where it listens, on every address of this host.
    """

    def __init__(self, patience: machine.Patience, token: str, descriptors: Descriptors) -> None:
        """Listen.

        Raises:
            OSError: No port can be had.
        """
        self._machine = machine.Coordinator(patience)
        self._values = KeyValues()
        self._token = token.encode()
        self._descriptors = descriptors
        self._callers: dict[int, _Caller] = {}
        self._guards: dict[str, _Caller] = {}
        self._silence_s = patience.silence_s
        self._listener = socket.create_server(
            ("", 0), family=socket.AF_INET, backlog=_BACKLOG, reuse_port=False
        )
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._is_accepting = False
        self._listen(True)

    @property
    def is_needed(self) -> bool:
        """Whether a guard is connected: the call is not over for everybody."""
        return bool(self._guards)

    def next_deadline(self) -> float | None:
        """When to call :meth:`tick`, at the latest."""
        return self._machine.next_deadline()

    def tick(self, now: float) -> None:
        """The deadline may have come."""
        deadline = self._machine.next_deadline()
        if deadline is not None and now >= deadline:
            self._feed(machine.TimePassed())

    def close(self) -> None:
        """Hang up on everybody."""
        self._listen(False)
        self._listener.close()
        for caller in list(self._callers.values()):
            self._descriptors.hang_up(caller.channel)
        self._callers.clear()
        self._guards.clear()

    # ------------------------------------------------------------ connections

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                connected, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    continue  # whoever called is gone again
                self._cut_off_strangers(0.0)
                self._listen(False)  # until somebody leaves
                return
            tune(connected, self._silence_s)
            caller = _Caller(Channel(connected, self._descriptors.epoll), clock.monotonic())
            fd = caller.channel.fileno()
            self._callers[fd] = caller
            self._descriptors.call(fd, lambda caller=caller: self._receive(caller))  # type: ignore[misc]
            self._cut_off_strangers(SILENT_S)

    def _listen(self, accepts: bool) -> None:  # noqa: FBT001
        """Accept callers, or leave them in the queue: with no descriptor left we would spin."""
        fd = self._listener.fileno()
        if accepts and not self._is_accepting:
            self._descriptors.watch(fd, self._accept)
        elif not accepts:
            self._descriptors.forget(fd)
        self._is_accepting = accepts

    def _cut_off_strangers(self, after_s: float) -> None:
        strangers = [c for c in self._callers.values() if c.role == "stranger"]
        if len(strangers) < _STRANGERS_MAX and after_s:
            return
        now = clock.monotonic()
        for caller in strangers:
            if now >= caller.came_at + after_s:
                self._hang_up(caller)

    def _receive(self, caller: _Caller) -> None:
        channel = caller.channel
        channel.flush()
        for frame in channel.receive():
            if channel.gone is None:
                self._take(caller, frame)
        if channel.gone is not None:
            self._lose(caller, channel.gone)

    def _take(self, caller: _Caller, frame: Message) -> None:
        if caller.role == "guard":
            try:
                message = up_from_wire(frame)
            except MessageError as error:
                caller.channel.gone = str(error)
                return
            self._feed(machine.Heard(caller.node, message))
            if isinstance(message, Leave) and not message.fault:
                self._answer(self._values.leave(message.epoch, message.rank))
        elif caller.role == "store":
            try:
                replies = self._values.request(caller, frame)
            except RequestError as error:
                replies = [(caller, {"id": frame.get("id"), "error": str(error)})]
            self._answer(replies)
        else:
            self._admit(caller, frame)

    def _answer(self, replies: list[Reply]) -> None:
        for client, reply in replies:
            assert isinstance(client, _Caller)
            client.channel.send(reply)

    def _admit(self, caller: _Caller, frame: Message) -> None:
        token, role, node = frame.get("token"), frame.get("role"), frame.get("node")
        if (
            not isinstance(token, str)
            or not hmac.compare_digest(token.encode(), self._token)
            or role not in ("guard", "store")
            or not isinstance(node, str)
        ):
            caller.channel.gone = "does not know the token of this job"
            return
        caller.role = role
        caller.node = node
        if role == "guard":
            self._guards[node] = caller

    def _lose(self, caller: _Caller, how: str) -> None:
        self._hang_up(caller)
        if caller.role == "store":
            self._values.forget(caller)
        elif caller.role == "guard" and self._guards.get(caller.node) is caller:
            del self._guards[caller.node]
            self._feed(machine.NodeGone(caller.node, how))

    def _hang_up(self, caller: _Caller) -> None:
        self._callers.pop(caller.channel.fileno(), None)
        self._descriptors.hang_up(caller.channel)
        if self._listener.fileno() >= 0:
            self._listen(True)

    # ------------------------------------------------------------ the machine

    def _feed(self, event: machine.Event) -> None:
        for effect in self._machine.handle(event, clock.monotonic()):
            match effect:
                case machine.TellAll():
                    if isinstance(effect.message, Commit):
                        self._values.drop_before(effect.message.epoch - _KEPT_ROOMS)
                    frame = effect.message.to_wire()
                    for guard in self._guards.values():
                        guard.channel.send(frame)
                case machine.Tell():
                    addressee = self._guards.get(effect.node)
                    if addressee is not None:
                        addressee.channel.send(effect.message.to_wire())
                case machine.HangUp():
                    lost = self._guards.pop(effect.node, None)
                    if lost is not None:
                        self._hang_up(lost)
                case _:
                    assert_never(effect)
