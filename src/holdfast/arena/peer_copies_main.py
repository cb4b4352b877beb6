"""The process of a node that copies snapshots to other nodes, and holds theirs.

    launcher ──orders, with memory──► this process ──a connection for each copy──► other nodes
             ◄──────────── outcomes──              ◄───────────────────────────────

A process of its own, at low priority: the launcher's loop carries no bytes. It is killed with its
launcher, as it writes the memory of that. Copies are sent and received by threads, one each; the
main thread admits senders by the job's secret (``arena/pure/peer_messages.py``). It decides
nothing.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from typing import TYPE_CHECKING, Any

from holdfast.arena.arena import ArenaMemory
from holdfast.arena.copy_transfer import CopyMemory, NotCopiedError, Receiving, push
from holdfast.arena.pure.peer_messages import (
    FRAME_BYTES_MAX,
    GREETINGS,
    NONCE_BYTES,
    PROOFS,
    SILENT_S,
    TO_COPIES,
    UNDER_WAY_S,
    ConfigureCopies,
    CopiesDropped,
    CopyNotPushed,
    CopyPushed,
    CopyReceived,
    CopyRefused,
    CopySecret,
    CopyTurnedDown,
    CopyUnderWay,
    DropCopies,
    GreetReceiver,
    HoldCopies,
    Order,
    Outcome,
    PushCopy,
    ReceiverProof,
    SenderAdmitted,
    is_nonce,
)
from holdfast.arena.slot_stream import LinkError, SlotStream
from holdfast.base import clock
from holdfast.base.processes.bare_process import ignore_signals
from holdfast.base.processes.rank_boot import die_with_parent
from holdfast.base.pure.codec import decode, encode
from holdfast.base.pure.common_events import Note
from holdfast.base.pure.never import assert_never
from holdfast.net.channel import Channel, RefusedError
from holdfast.net.client import Client
from holdfast.net.descriptors import Descriptors
from holdfast.net.pure.frames import FrameError
from holdfast.net.server import Server
from holdfast.net.tcp import tune

if TYPE_CHECKING:
    from holdfast.net.pure.frames import Message

LISTENER_FD, CONTROL_FD = 3, 4
STREAMS = 2
"""Copies that are sent at a time: one has 2 GB/s."""
RECEIVED_MAX = 16
"""And received."""
_NICE = 10
"""Ranks go first, and this gets a tenth of a core that all want."""
_UNAUTHENTICATED_MAX = 64


class CopyProcess:
    """Serves one launcher until it hangs up."""

    def __init__(self, listener: socket.socket, control: Client, config: ConfigureCopies) -> None:
        self._control = control
        self._speaking = threading.Lock()
        self._secret = CopySecret(config)
        self._copies: dict[int, CopyMemory] = {}
        self._to_push: queue.SimpleQueue[tuple[PushCopy, ArenaMemory]] = queue.SimpleQueue()
        self._pushers = 0
        self._receptions = 0
        self._lock = threading.Lock()
        self._under_way: dict[int, float] = {}
        self._descriptors = Descriptors()
        self._server = Server(
            listener,
            self._descriptors,
            self._on_greeting,
            lambda line: self._say(Note("warning", f"copies of snapshots: {line}")),
            identify=_host,
            unauthenticated_max=_UNAUTHENTICATED_MAX,
            frame_bytes_max=FRAME_BYTES_MAX,
            refusal=lambda why: encode(CopyTurnedDown(why)),
        )
        self._is_over = False

    def run(self) -> None:
        """Until the launcher is gone."""
        self._descriptors.watch(self._control.fileno(), self._obey_all)
        self._server.open()
        self._obey_all()  # those that came with the first one
        while not self._is_over:
            deadline = self._server.next_deadline()
            self._descriptors.wait(
                None if deadline is None else max(0.0, deadline - clock.monotonic())
            )
            self._server.tick(clock.monotonic())

    def _say(self, message: Outcome | Note) -> None:
        with self._speaking:
            try:
                self._control.send(encode(message))
            except OSError:  # the launcher is gone; the main thread sees that, too
                self._is_over = True

    # ------------------------------------------------------------ the launcher
    def _obey_all(self) -> None:
        try:
            for message in self._control.received():
                self._obey(decode(TO_COPIES, message))
        except (OSError, FrameError):
            self._is_over = True

    def _obey(self, order: Order) -> None:
        match order:
            case HoldCopies(rank, bytes_max):
                self._drop(rank)
                self._copies[rank] = CopyMemory(self._memory(), bytes_max)
            case DropCopies(rank):
                self._drop(rank)
                self._say(CopiesDropped(rank))
            case PushCopy():
                self._to_push.put((order, ArenaMemory(self._memory())))
                if self._pushers < STREAMS:
                    self._pushers += 1
                    self._start(self._push_all)
            case ConfigureCopies():
                pass
            case _:
                assert_never(order)

    def _memory(self) -> int:
        """The descriptor that has come with an order."""
        assert self._control.descriptors
        return self._control.descriptors.pop(0)

    def _drop(self, rank: int) -> None:
        copies = self._copies.pop(rank, None)
        if copies is not None:
            copies.close()

    @staticmethod
    def _start(target: Any, *args: Any) -> None:
        threading.Thread(target=target, args=args, daemon=True).start()

    # ------------------------------------------------------------ sent
    def _push_all(self) -> None:
        while True:
            order, memory = self._to_push.get()
            try:
                push(memory, order, self._secret)
            except NotCopiedError as error:
                self._say(CopyNotPushed(order.number, str(error)))
            except Exception as error:  # noqa: BLE001 - the next ones go out nevertheless
                self._say(CopyNotPushed(order.number, f"it failed: {error!r:.200}"))
            else:
                self._say(CopyPushed(order.number))
            finally:
                os.close(memory.fd)

    # ------------------------------------------------------------ received
    def _on_greeting(self, channel: Channel, message: Message) -> None:
        greeting = decode(GREETINGS, message)
        if greeting.job != self._secret.job:
            raise RefusedError(f"calls a process of job {greeting.job}, and this is another job")
        if not is_nonce(greeting.nonce):
            raise RefusedError("has sent a nonce of another form")
        own = os.urandom(NONCE_BYTES).hex()
        channel.on_message = lambda again, proof: self._on_proof(again, proof, greeting, own)
        channel.send(
            encode(ReceiverProof(own, self._secret.proof("receiver", greeting.nonce, own)))
        )

    def _on_proof(
        self, channel: Channel, message: Message, greeting: GreetReceiver, own: str
    ) -> None:
        proof = decode(PROOFS, message).proof
        if not self._secret.is_proof(proof, "sender", greeting.nonce, own):
            raise RefusedError("does not have the secret of this job")
        with self._lock:
            if self._receptions >= RECEIVED_MAX:
                raise RefusedError(f"would send one more copy than {RECEIVED_MAX} at a time")
            self._receptions += 1
        try:
            self._server.admit(channel, lambda *_: None, lambda _: None, FRAME_BYTES_MAX)
            connected = channel.release()
            tune(connected, SILENT_S)
        except BaseException:
            with self._lock:
                self._receptions -= 1
            raise
        self._start(self._receive, SlotStream(connected), channel.peer)

    def _receive(self, stream: SlotStream, peer: str) -> None:
        receiving = Receiving(stream, self._copies.get, self._note_under_way)
        try:
            with stream:
                stream.say(SenderAdmitted())
                self._say(CopyReceived(receiving.run()))
        except (LinkError, OSError) as error:
            if receiving.held is not None:
                self._say(CopyRefused(receiving.held, f"from {peer}: {error}"))
        finally:
            with self._lock:
                self._receptions -= 1

    def _note_under_way(self, rank: int) -> None:
        now = clock.monotonic()
        if now >= self._under_way.get(rank, 0.0):
            self._under_way[rank] = now + UNDER_WAY_S
            self._say(CopyUnderWay(rank))


def _host(_connected: socket.socket, address: Any) -> str:
    return f"host {str(address[0]).removeprefix('::ffff:')}"


def _lower_priority() -> None:
    os.nice(_NICE)
    # Where the kernel groups processes by session, nice counts within the session alone.
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:  # noqa: PTH123
            file.write(str(_NICE))


def main() -> None:
    """Be that process; descriptors are given by ``node/processes/controlled_process.py``."""
    die_with_parent()
    ignore_signals()
    _lower_priority()
    control = Client(socket.socket(fileno=CONTROL_FD))
    control.descriptors = []
    try:
        config = decode(TO_COPIES, control.receive(None))
        assert isinstance(config, ConfigureCopies)
        CopyProcess(socket.socket(fileno=LISTENER_FD), control, config).run()
    except (OSError, FrameError):  # the launcher is gone
        pass
    os._exit(0)
