"""The node guard: a small process beside the ranks of a node, and outliving any of them.

The shell around ``inplace.pure.guard``: one epoll over the ranks' connections and pidfds, the
connection to the coordinator, and stack dumps on their way. It relays, reads the ranks' pages when
the machine asks, carries out kills, and decides nothing itself. In the guard of the first node the
coordinator's server runs in the same loop.

    rank k ──unix socket (listener: fd 3)──┐              ┌── TCP ── coordinator
           ──page, through /proc───────────┤  node guard ─┤
           ──pidfd─────────────────────────┘              └── coordinator_server.py, on one node

A caller has to prove that it knows the job's token, which this process was given through a pipe
(fd 4); see ``net/pure/handshake.py``. An error while one caller is served ends that caller's
connection, and is logged once per caller and minute.

A bare interpreter (``python -I -S``), no torch. It runs as a daemon in its own session, and ends
when the last of its ranks has.
"""

from __future__ import annotations

import os
import socket

from holdfast.base import clock
from holdfast.base.loopback import own_loopback
from holdfast.base.processes.bare_process import ignore_signals
from holdfast.base.processes.proc import Process
from holdfast.base.processes.process_defaults import raise_descriptor_limit
from holdfast.base.pure import codec
from holdfast.base.pure.common_events import TimePassed
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.never import assert_never
from holdfast.inplace.coordinator_server import CoordinatorServer
from holdfast.inplace.pure import guard as machine
from holdfast.inplace.pure import guard_snapshots as snapshots
from holdfast.inplace.pure.job_calls import OfGuard
from holdfast.inplace.pure.messages import (
    ATTACH,
    DOWN,
    UP,
    Attach,
    GuardLog,
    Hosting,
    JoinCall,
    RankRefused,
    Up,
)
from holdfast.net.channel import Channel, RefusedError
from holdfast.net.client import Client
from holdfast.net.descriptors import Descriptors
from holdfast.net.pure.address import Endpoint
from holdfast.net.pure.frames import MAX_FRAME_BYTES
from holdfast.net.pure.handshake import is_proof, nonce_in, proof
from holdfast.net.server import Server
from holdfast.net.tcp import tune
from holdfast.page.page import Page, map_page
from holdfast.page.pure import page as layout
from holdfast.page.pure.page_view import PageView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.evidence.collector import Collector
    from holdfast.evidence.pure.evidence import RankDigest
    from holdfast.evidence.sources import DumpedStacks, KeptSamples
    from holdfast.inplace.kept_arenas import KeptArenas
    from holdfast.net.pure.frames import Message

LISTENER_FD = 3
TOKEN_FD = 4
_TOKEN_BYTES_MAX = 1024
_ALONE_S = 60.0
"""A guard that no rank has attached to for so long was started by one that died."""
_CONNECT_S = 30.0
_STACKS_SHOWN = 4000
_TEXT_CHARS = 1000
_LOGGED_AS = "holdfast.inprocess.monitor_process"
"""What programs that read a monitor_process_logfile look for in its lines."""
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC


class _RankLink:
    """A connected rank."""

    def __init__(self, channel: Channel, process: Process) -> None:
        self.channel = channel
        self.process = process
        self.number: int | None = None
        self.page: Page | None = None
        self.samples: KeptSamples | None = None
        self.stacks: DumpedStacks | None = None
        self.collector: Collector | None = None
        self.dump_signal = 0
        self.dump_path: str | None = None
        self.launcher: str | None = None
        self.log: int | None = None
        self.why = ""


class GuardProcess:
    """One process's worth of guarding."""

    def __init__(self, listener: socket.socket, token: str) -> None:
        self._token = token
        self._descriptors = Descriptors()
        self._machine: machine.Guard | None = None
        self._ranks: dict[int, _RankLink] = {}
        self._server: CoordinatorServer | None = None
        self._coordinator: Channel | None = None
        self._unsent: list[Message] = []
        self._has_quit = False
        self._arenas: KeptArenas | None = None
        self._alone_until: float | None = clock.monotonic() + _ALONE_S
        # Pods of one host may have its name in common, and count their pids each for itself.
        self._node = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"
        self._ranks_server = Server(listener, self._descriptors, self._begin_handshake, self._warn)
        self._ranks_server.open()

    # ------------------------------------------------------------ the loop

    def run(self) -> None:
        """Serve until no rank is left, nor, where the coordinator is here, any guard."""
        try:
            self._serve()
        except BaseException:
            # Its stderr goes nowhere; its ranks are about to lose it, and should know.
            import traceback  # noqa: PLC0415 - slow to import, and not needed otherwise

            self._log(f"the node guard failed:\n{traceback.format_exc()}")
            raise

    def _serve(self) -> None:
        while not self._is_over():
            deadline = self._next_deadline()
            now = clock.monotonic()
            self._descriptors.wait(None if deadline is None else max(0.0, deadline - now))
            self._tick(clock.monotonic())

    def _is_over(self) -> bool:
        server_is_idle = self._server is None or not self._server.is_needed
        return (self._has_quit and server_is_idle) or (
            self._alone_until is not None and clock.monotonic() >= self._alone_until
        )

    def _next_deadline(self) -> float | None:
        return earliest(
            self._alone_until,
            self._ranks_server.next_deadline(),
            self._machine.next_deadline() if self._machine is not None else None,
            self._server.next_deadline() if self._server is not None else None,
            *(rank.collector.next_step_at for rank in self._ranks.values() if rank.collector),
        )

    def _tick(self, now: float) -> None:
        self._ranks_server.tick(now)
        for rank in list(self._ranks.values()):
            if rank.collector is not None and rank.collector.step(now):
                self._conclude(rank)
        if self._machine is not None:
            deadline = self._machine.next_deadline()
            if deadline is not None and now >= deadline:
                self._feed(TimePassed())
        if self._server is not None:
            self._server.tick(now)

    # ------------------------------------------------------------ ranks

    def _begin_handshake(self, channel: Channel, frame: Message) -> None:
        theirs = nonce_in(frame)
        if theirs is None:
            raise RefusedError("did not begin with the handshake of a rank")
        own = os.urandom(16).hex()
        channel.on_message = lambda channel, frame: self._end_handshake(channel, frame, own)
        channel.send({"proof": proof(self._token, "guard", theirs), "nonce": own})

    def _end_handshake(self, channel: Channel, frame: Message, nonce: str) -> None:
        """The last message of the handshake, of a rank of this job."""
        if not is_proof(frame.get("proof"), self._token, "rank", nonce):
            raise RefusedError("does not know the token of this job")
        if channel.pid == 0:
            raise RefusedError("runs in another pid namespace")
        try:
            rank = _RankLink(channel, Process(channel.pid))
        except OSError as error:
            raise RefusedError(f"cannot be watched: {error}") from None
        channel.refusal = lambda why: codec.encode(RankRefused(-1, why[:_TEXT_CHARS]))
        self._ranks_server.admit(
            channel,
            lambda _, frame: self._take(rank, frame),
            lambda _: self._lose(rank),
            MAX_FRAME_BYTES,
        )

    def _take(self, rank: _RankLink, frame: Message) -> None:
        try:
            if rank.number is None:
                self._attach(rank, codec.decode(ATTACH, frame))
            else:
                self._feed(machine.RankMessage(rank.number, codec.decode(UP, frame)))
        except (ValueError, OSError) as error:  # its text is own, and the rank shows it
            raise RefusedError(str(error)[:_TEXT_CHARS]) from None

    def _attach(self, rank: _RankLink, attach: Attach) -> None:
        """The first message of a rank; that of the first rank configures this guard."""
        number = attach.rank
        rank.page = map_page(f"/proc/{rank.process.pid}/fd/{attach.page_fd}", writable=True)
        rank.dump_signal, rank.dump_path = attach.dump_signal, attach.dump_path
        rank.launcher = attach.launcher
        if attach.log is not None:
            rank.log = os.open(attach.log, _LOG_FLAGS, 0o644)
        if attach.pidfile is not None:
            with open(attach.pidfile, "w", encoding="utf-8") as file:  # noqa: PTH123
                file.write(f"{os.getpid()}\n")
        if self._machine is None:
            self._configure(attach)
        assert self._machine is not None
        if self._server is not None and attach.hosts:
            rank.channel.send(codec.encode(Hosting(self._server.port)))
        if number in self._ranks:
            text = f"there are two processes with RANK {number} on this node"
            raise ValueError(text)
        rank.number = number
        self._ranks[number] = rank
        self._write(f"rank {number} is here, target_pid={rank.process.pid}")
        self._alone_until = None
        if rank.process.fileno() >= 0:
            self._descriptors.watch(rank.process.fileno(), lambda: self._end_of_process(rank))
        self._feed(JoinCall(number, attach.world))
        self._connect(attach)

    def _configure(self, attach: Attach) -> None:
        if attach.hosts:
            self._server = CoordinatorServer(
                attach.coordinator, self._token, self._descriptors, self._warn
            )
        # As the rank that started this process has it; no launcher but its own reads it.
        cycle = os.environ.get("NVRX_CYCLE", "")
        self._machine = machine.Guard(attach.timeouts, int(cycle) if cycle.isdecimal() else 0)

    def _connect(self, attach: Attach) -> None:
        """Connect to the coordinator, once; earlier messages wait in the connection."""
        if self._coordinator is not None:
            return
        if self._server is not None:
            address = (own_loopback(), self._server.port)
        else:
            address = (attach.host, attach.port)
        try:
            wait_s = min(_CONNECT_S, attach.timeouts.silence_s)
            connected = socket.create_connection(address, timeout=wait_s)
        except OSError as error:
            why = f"no connection to the coordinator at {Endpoint(*address)}: {error}"
            self._feed(machine.CoordinatorGone(why))
            return
        tune(connected, attach.timeouts.silence_s)
        self._coordinator = channel = Channel(
            connected,
            self._descriptors,
            lambda _, frame: self._feed(codec.decode(DOWN, frame)),
            lambda channel: self._feed(
                machine.CoordinatorGone(f"the coordinator is gone: {channel.gone}")
            ),
        )
        channel.send({"token": self._token, "role": "guard", "node": self._node})
        for message in self._unsent:
            channel.send(message)
        self._unsent.clear()

    def _end_of_process(self, rank: _RankLink) -> None:
        """Its last messages may still be in the connection."""
        rank.channel.drain()
        self._lose(rank)

    def _lose(self, rank: _RankLink) -> None:
        how = f"its process ({rank.process.pid}) ended without a shutdown message"
        rank.channel.close()
        if rank.process.fileno() >= 0:
            self._descriptors.forget(rank.process.fileno())
        if rank.number is not None and self._ranks.get(rank.number) is rank:
            self._write(f"rank {rank.number}: {how}")
            del self._ranks[rank.number]
            self._end_evidence(rank)
            self._feed(machine.RankEnded(rank.number, how))
        rank.process.close()
        if rank.log is not None:
            os.close(rank.log)
            rank.log = None
        if rank.page is not None:
            rank.page.close()
            rank.page = None

    # ------------------------------------------------------------ the machine

    def _feed(self, event: machine.Event) -> None:
        assert self._machine is not None
        for effect in self._machine.handle(event, clock.monotonic()):
            self._carry_out(effect)

    def _carry_out(self, effect: machine.Effect) -> None:
        if isinstance(effect, Up):
            frame = codec.encode(effect)
            if self._coordinator is None:
                self._unsent.append(frame)
            else:
                self._coordinator.send(frame)
            return
        if isinstance(effect, OfGuard):
            # On one host, as in a trial of two nodes, there may be several.
            for path in {it.launcher for it in self._ranks.values() if it.launcher}:
                _send_to_launcher(path, codec.encode(effect))
            return
        match effect:
            case machine.TellRank():
                if rank := self._ranks.get(effect.rank):
                    rank.channel.send(codec.encode(effect.message))
            case machine.ReadPage():
                if rank := self._ranks.get(effect.rank):
                    _sample(rank)
                    self._feed(machine.MarksRead(effect.rank, _view(rank).marks()))
            case machine.TakeRankEvidence():
                if rank := self._ranks.get(effect.rank):
                    self._take_evidence(rank, effect)
            case machine.Signal():
                if rank := self._ranks.get(effect.rank):
                    self._signal(rank, effect)
            case machine.Renew():
                for rank in self._ranks.values():
                    assert rank.page is not None
                    rank.page.words[layout.LEASE_UNTIL] = effect.until or 0.0
            case snapshots.HoldArena():
                self._hold_arena(effect)
            case snapshots.ReadSnapshots():
                read = snapshots.SnapshotsRead(()) if self._arenas is None else self._arenas.read()
                self._feed(read)
            case snapshots.VoidSnapshots():
                if self._arenas is not None:
                    self._arenas.void(effect.but_until)
            case machine.GuardQuits():
                self._has_quit = True
                if self._coordinator is not None:
                    self._coordinator.close()
            case _:
                assert_never(effect)

    def _hold_arena(self, effect: snapshots.HoldArena) -> None:
        from holdfast.inplace.kept_arenas import KeptArenas  # noqa: PLC0415 - for some calls

        rank = self._ranks.get(effect.rank)
        if rank is None:
            return
        self._arenas = self._arenas or KeptArenas()
        try:
            self._arenas.keep(rank.process.pid, effect.fd)
        except OSError as error:
            self._warn(f"snapshots of rank {effect.rank} are lost when it dies: {error}")

    def _take_evidence(self, rank: _RankLink, effect: machine.TakeRankEvidence) -> None:
        from holdfast.evidence.collector import Collector  # noqa: PLC0415 - when a rank is late
        from holdfast.evidence.sources import DumpedStacks  # noqa: PLC0415

        rank.why = effect.why
        self._write(
            f"rank {rank.number} (process {rank.process.pid}): {rank.why}; taking its stacks"
        )
        samples = _sample(rank)
        # Not `will_end`: a rank that was only stopped is taken back if it comes in time.
        rank.stacks = DumpedStacks(rank.process, rank.dump_signal, rank.dump_path, samples=samples)
        now = clock.monotonic()
        rank.collector = Collector([samples, rank.stacks], now, effect.until)
        if rank.collector.step(now):
            self._conclude(rank)

    def _conclude(self, rank: _RankLink) -> None:
        collector, stacks = rank.collector, rank.stacks
        assert collector is not None
        assert stacks is not None
        assert rank.number is not None
        self._end_evidence(rank)
        shown = stacks.text or f"no stacks: {stacks.why_not}"
        self._log(
            f"rank {rank.number} (process {rank.process.pid}): {rank.why}. "
            f"It will be killed unless it comes back now. {shown[:_STACKS_SHOWN].rstrip()}"
        )
        self._feed(machine.RankEvidenceTaken(rank.number, _digest(rank, collector)))

    def _end_evidence(self, rank: _RankLink) -> None:
        if rank.collector is not None:
            rank.collector.close()
            rank.collector = None

    def _signal(self, rank: _RankLink, effect: machine.Signal) -> None:
        for signum in effect.signals:
            rank.process.send(signum)
        names = ", ".join(str(signum) for signum in effect.signals)
        self._write(f"rank {rank.number} (process {rank.process.pid}): sent signals {names}")

    # ------------------------------------------------------------ words

    def _warn(self, line: str) -> None:
        self._log(f"node guard: {line}", "warning")

    def _log(self, text: str, level: str = "error") -> None:
        """In the guard's log, and through a rank of this node that can still speak.

        The last to be asked are those that hung.
        """
        self._write(text)
        for rank in sorted(self._ranks.values(), key=lambda rank: bool(rank.why)):
            if rank.collector is None and rank.channel.gone is None:
                rank.channel.send(codec.encode(GuardLog(text, level)))
                return

    def _write(self, text: str) -> None:
        """Into the log of every rank that asked for one."""
        prefix = f"{_LOGGED_AS} {os.getpid()}"
        line = f"{prefix} {clock.wall():.3f} {text}\n".encode(errors="backslashreplace")
        for rank in self._ranks.values():
            if rank.log is not None:
                try:
                    os.write(rank.log, line)
                except OSError:
                    rank.log = None


def _send_to_launcher(path: str, frame: Message) -> None:
    """It listens for requests of ranks there. A message that it can't take at once is lost."""
    try:
        with socket.socket(socket.AF_UNIX) as launcher:
            launcher.setblocking(False)
            launcher.connect(path)
            Client(launcher).send(frame, timeout_s=0.0)
    except OSError:
        pass


def _view(rank: _RankLink) -> PageView:
    assert rank.page is not None
    return PageView(rank.page.words, rank.page.names)


def _sample(rank: _RankLink) -> KeptSamples:
    """Sample its main thread in /proc: a rank that hangs may be ended before it says anything."""
    if rank.samples is None:
        from holdfast.evidence.sources import KeptSamples  # noqa: PLC0415 - when a rank is late

        rank.samples = KeptSamples(rank.process.pid)
    rank.samples.sample(clock.monotonic(), _view(rank).marks().thread)
    return rank.samples


def _digest(rank: _RankLink, collector: Collector) -> RankDigest | None:
    """The evidence of the rank; None: torch does not know it now."""
    from holdfast.evidence.pure.rank_digest import digest  # noqa: PLC0415 - in memory by now

    number = _view(rank).torch_rank
    if number is None:
        return None
    node = os.uname().nodename
    identity = {"rank": number, "node": node, "local_rank": 0, "pid": rank.process.pid}
    return digest(identity, collector.seen(), None, None, None, 0.0)


def main() -> None:
    """Be a node guard; started by ``guard_process.py``."""
    ignore_signals()
    raise_descriptor_limit()
    token = os.read(TOKEN_FD, _TOKEN_BYTES_MAX).decode()
    os.close(TOKEN_FD)
    GuardProcess(socket.socket(fileno=LISTENER_FD), token).run()
