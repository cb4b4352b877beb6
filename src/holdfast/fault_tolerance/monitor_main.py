"""The rank monitor: a small process beside one rank, asleep until something can be wrong.

The shell around ``core.monitor``: one epoll over the launcher's control connection, the rank's
connections, the rank's pidfd and, during a verdict, the file its stacks are dumped into. It reads
the rank's page, feeds the machine, carries out effects, and decides nothing itself.

    launcher ──control (fd 4)──┐                    ┌── page, read twice before a verdict
                               ├── rank monitor ────┼── pidfd: its death, and signals to it alone
    rank ──listener (fd 3)─────┘                    └── dump file: its stacks

What it survives: a launcher that does not read (nothing here waits for it), a rank that floods its
socket or sends garbage (that connection ends, nothing else), its own replacement (a successor
adopts an armed page). When the launcher is gone it ends everything that carries the job's marker,
and itself. Lean: a bare interpreter (``python -I -S``) must run it within milliseconds.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time

from holdfast.core import hang, incident, monitor
from holdfast.core.hang import Limits, Overdue
from holdfast.core.learned import TrippedLimits
from holdfast.host import clock, proc
from holdfast.host.channel import Channel, is_trusted
from holdfast.host.page import Page, PageError, create_page, map_page
from holdfast.host.stack_dump import StackDump
from holdfast.wire.page_view import PageView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from holdfast.core.hang import ClockKey
    from holdfast.fault_tolerance.rank_monitor_state_machine import RankMonitorStateMachine
    from holdfast.wire.frames import Message

LISTENER_FD = 3
CONTROL_FD = 4
WAIT_FOR_SEAT_S = 180.0
"""How long a second rank waits until the first one has left."""
_VISITORS_MAX = 64
_IGNORED = ("SIGINT", "SIGHUP", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")
_ENDING = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")
_HEARTBEATS = {(hang.INITIAL_HEARTBEAT, None), (hang.HEARTBEAT, None)}
_OUTSIDE = {(hang.OUTSIDE_SECTIONS, None)}
_TIME_FORMAT = "%Y-%m-%d %H:%M:%S %z"
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_SLEEP_S_MAX = 86400.0
_SLACK_FROM_S = 1.0
_SLACK_SHARE = 0.005
_SLACK_S_MAX = 0.1


def sleep_s(deadline: float | None, now: float) -> float | None:
    """How long epoll may sleep; ``None``: until something happens.

    Linux lets a sleep of an unprivileged process run over by 0.1 % (0.5 % if nice), at most 0.1 s.
    So a long sleep aims that much early, and the rest is slept exactly; a healthy rank has moved
    its deadline by then, so this costs no wake-up.
    """
    if deadline is None:
        return None
    left_s = max(0.0, deadline - now)
    if left_s > _SLACK_FROM_S:
        left_s -= min(_SLACK_S_MAX, _SLACK_SHARE * left_s)
    return min(left_s, _SLEEP_S_MAX)


def signal_name(signum: int) -> str:
    """``SIGKILL``, or ``signal 70``."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


class Visitor:
    """A connection to the listener: asks for the seat by its hello, has it, or is turned away."""

    __slots__ = ("channel", "give_up_at", "hello", "pid")

    def __init__(self, channel: Channel, pid: int, give_up_at: float) -> None:
        self.channel = channel
        self.pid = pid
        self.give_up_at = give_up_at
        self.hello: Message | None = None


class Seat:
    """The one rank that is served. ``visitor`` is ``None`` while an adopted rank has not called."""

    __slots__ = ("process", "rank", "visitor")

    def __init__(self, rank: int, process: proc.Process, visitor: Visitor | None) -> None:
        self.rank = rank
        self.process = process
        self.visitor = visitor


class Case:
    """One verdict on its way: what was found, and what was done about it."""

    __slots__ = ("dump", "found_at", "overdue", "path", "record", "stacks")

    def __init__(self, overdue: Overdue, found_at: float, dump: StackDump) -> None:
        self.overdue = overdue
        self.found_at = found_at
        self.dump = dump
        self.record: dict[str, Any] = {}
        self.stacks = ""
        self.path: str | None = None


class Monitor:
    """One process's worth of watching."""

    def __init__(self, listener: socket.socket, control: socket.socket) -> None:
        self._epoll = select.epoll()
        self._ready: dict[int, Callable[[], None]] = {}
        self._listener = listener
        self._control = Channel(control, self._epoll)
        self._ready[self._control.fileno()] = self._on_control
        self._over = False
        # From "configure"
        self._cfg: dict[str, Any] = {}
        self._config: Message = {}
        self._limits = Limits()
        self._tripped = TrippedLimits()
        self._watch = monitor.Watch(monitor.SIGKILL, 0.0, self._tripped)
        self._events_fd = -1
        self._restarter: RankMonitorStateMachine | None = None
        # From "cycle"
        self._cycle: Message | None = None
        self._page: Page | None = None
        self._view: PageView | None = None
        # The rank
        self._visitors: list[Visitor] = []
        self._seat: Seat | None = None
        self._is_watching = False
        self._case: Case | None = None

    # ------------------------------------------------------------ the loop
    def run(self) -> None:
        """Serve until told to stop, or nobody is left to serve."""
        while not self._over:
            for fd, _ in self._epoll.poll(sleep_s(self._next_deadline(), clock.monotonic())):
                on_ready = self._ready.get(fd)
                # None: closed by what came before in this batch, or a dump that has grown.
                if on_ready is not None:
                    on_ready()
            self._tick(clock.monotonic())

    def close(self) -> None:
        """Leave nothing in the file system that nobody else removes."""
        if self._config.get("standalone"):
            path = self._listener.getsockname()
            if os.path.exists(path):
                os.unlink(path)

    def _next_deadline(self) -> float | None:
        deadlines = [visitor.give_up_at for visitor in self._visitors]
        if self._case is not None and self._case.dump.next_step_at is not None:
            deadlines.append(self._case.dump.next_step_at)
        if self._is_watching:
            wake_at = self._watch.next_deadline()
            if wake_at is not None:
                deadlines.append(wake_at)
        return min(deadlines, default=None)

    def _tick(self, now: float) -> None:
        case = self._case
        if case is not None and not case.dump.is_done and case.dump.step(now):
            self._feed(monitor.EvidenceTaken(), now)
        if self._is_watching:
            self._look(now)
        for visitor in [v for v in self._visitors if now >= v.give_up_at]:
            self._turn_away(visitor, f"no seat within {WAIT_FOR_SEAT_S:g} s")

    def _look(self, now: float) -> None:
        """Read the page and feed it to the machine, again while it asks for that."""
        view = self._view
        while view is not None and self._is_watching:
            looked = monitor.Looked(view.snapshot(), view.limits())
            if not self._feed(looked, now):
                break

    def _feed(self, event: monitor.Event, now: float) -> bool:
        """Whether the machine wants to look again."""
        again = False
        for effect in self._watch.handle(event, now):
            if isinstance(effect, monitor.LookAgain):
                again = True
            else:
                self._do(effect, now)
        return again

    # ------------------------------------------------------------ from the launcher
    def _on_control(self) -> None:
        messages = self._control.receive()
        cycles = [message for message in messages if message.get("op") == "cycle"]
        for message in messages:
            operation = message.get("op")
            if operation == "configure":
                self._configure(message)
            elif operation == "cycle":
                # Of several, all but the last are over, and their pages are gone: ranks can fail
                # faster than a monitor starts.
                if message is cycles[-1]:
                    self._begin_cycle(message)
            elif operation == "tripped":
                self._tripped.tripped(message["clock"], message["name"], message["limit_s"])
            elif operation == "stop":
                self._over = True
        if self._control.gone is not None and not self._over:
            self._over = True
            self._launcher_gone()
        elif not self._over:
            self._control.flush()

    def _configure(self, message: Message) -> None:
        self._config = message
        self._cfg = message["cfg"]
        self._limits = Limits(
            self._cfg["initial_rank_heartbeat_timeout"],
            self._cfg["rank_heartbeat_timeout"],
            self._cfg["rank_out_of_section_timeout"],
            self._cfg["rank_section_timeouts"],
        )
        self._watch = monitor.Watch(
            self._cfg["rank_termination_signal"], message["grace_s"], self._tripped
        )
        if message.get("standalone"):
            self._end_on_signals()
        if message.get("restarter"):
            # Written for people who watch layered restarts; nobody else pays for its imports.
            from holdfast.fault_tolerance import rank_monitor_state_machine  # noqa: PLC0415

            self._restarter = rank_monitor_state_machine.RankMonitorStateMachine(RestarterLog(self))
        self._tell({"op": "ready"})

    def _end_on_signals(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for name in _ENDING:
            signal.signal(getattr(signal, name), lambda *_: None)
        self._epoll.register(reader, select.EPOLLIN)
        self._ready[reader] = self._on_ending_signal

    def _on_ending_signal(self) -> None:
        self._over = True
        if self._restarter is not None:
            self._restarter.handle_signal()

    def _begin_cycle(self, message: Message) -> None:
        """Forget the last cycle's rank; adopt this cycle's, if a predecessor watched it already."""
        for visitor in list(self._visitors):
            self._turn_away(visitor, f"cycle {message['cycle']} has begun")
        self._vacate("its cycle is over")
        if self._cycle is None:
            self._listener.settimeout(0.0)
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)
            self._ready[self._listener.fileno()] = self._on_listener
        self._cycle = message
        self._map(message["page"])
        if self._view is not None:
            self._adopt(self._view)

    def _map(self, path: str) -> None:
        if self._page is not None:
            self._page.close()
            self._page = self._view = None
        try:
            self._page = map_page(path, writable=False)
        except PageError as error:
            self.log("error", f"cannot watch local rank {self._config['local_rank']}: {error}")
        else:
            self._view = PageView(self._page.words, self._page.names)

    def _adopt(self, view: PageView) -> None:
        if view.snapshot() is None:
            return
        try:
            process = proc.Process(view.pid)
        except (ProcessLookupError, OverflowError):
            return
        if process.start_ticks != view.start_ticks:  # somebody else has its pid now
            process.close()
            return
        self._limits = view.limits()
        self._take_seat(Seat(view.global_rank, process, None))
        self._event("monitor_adopted", pid=process.pid)
        self.log("info", f"rank {view.global_rank} (pid {process.pid}) is watched again")
        self._arm()

    def _launcher_gone(self) -> None:
        marker = self._config.get("marker")
        if marker is None:
            return
        if self._seat is not None:
            self._seat.process.send(monitor.SIGKILL)
        ended = proc.sweep(f"{marker}.")
        self._event("monitor_swept", ended=ended)

    # ------------------------------------------------------------ from ranks
    def _on_listener(self) -> None:
        # A rank is started after "cycle" was sent to us, so whoever is accepted now must not be
        # judged by an older one.
        self._on_control()
        try:
            connected, _ = self._listener.accept()
        except OSError:  # gone again
            return
        if self._over:
            connected.close()
            return
        if len(self._visitors) >= _VISITORS_MAX:
            silent = [visitor for visitor in self._visitors if visitor.hello is None]
            self._turn_away((silent or self._visitors)[0], "too many connections wait here")
        channel = Channel(connected, self._epoll)
        pid, uid = channel.peer()
        visitor = Visitor(channel, pid, clock.monotonic() + WAIT_FOR_SEAT_S)
        self._visitors.append(visitor)
        self._ready[channel.fileno()] = lambda: self._on_visitor(visitor)
        if not is_trusted(uid):
            self._turn_away(visitor, f"user {uid} may not talk to this monitor")

    def _on_visitor(self, visitor: Visitor) -> None:
        for message in visitor.channel.receive():
            try:
                self._on_message(visitor, message)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                self._turn_away(visitor, f"{message.get('op')!r} makes no sense: {error!r}")
            if visitor.channel.gone is not None:
                break
        if visitor.channel.gone is None:
            visitor.channel.flush()
        if visitor.channel.gone is not None:
            self._end_visit(visitor)

    def _on_message(self, visitor: Visitor, message: Message) -> None:
        operation = message.get("op")
        is_seated = self._seat is not None and self._seat.visitor is visitor
        if operation == "hello" and (is_seated or visitor.hello is None):
            int(message["rank"]), int(message["pid"])  # senseless ones are turned away at once
            visitor.hello = message
            self._welcome_next(visitor)
        elif not is_seated:
            self._turn_away(visitor, "say hello first, then wait for the welcome")
        elif operation == "armed":
            self._arm()
            visitor.channel.send({"op": "ok"})
        elif operation == "limits":
            visitor.channel.send({"op": "ok", "raised": self._update_limits(message)})
        elif operation == "bye":
            self._warn_of_open_sections()
            self._stop_watching("said bye")
            visitor.channel.send({"op": "ok"})
        else:
            visitor.channel.send({"op": "error", "text": f"unknown operation {operation!r}"})

    def _welcome_next(self, candidate: Visitor) -> None:
        """Give the seat to a visitor if it is free, or held for the very same process."""
        hello = candidate.hello
        if hello is None:
            return
        pid = candidate.pid or int(hello["pid"])  # 0: from a pid namespace that we don't see
        seat = self._seat
        if seat is not None and seat.visitor is not candidate:
            if seat.visitor is not None or seat.process.pid != pid:
                return
            seat.visitor = candidate
        elif seat is None:
            try:
                process = proc.Process(pid)
            except (ProcessLookupError, OverflowError):
                self._turn_away(candidate, f"there is no process {pid}")
                return
            seat = Seat(int(hello["rank"]), process, candidate)
            self._take_seat(seat)
            self._give_own_page(pid)
        if candidate in self._visitors:
            self._visitors.remove(candidate)
        if self._cycle is None or self._view is None:
            self._turn_away(candidate, "there is no page for this cycle")
            return
        limits = monitor.raise_learned(self._limits, self._tripped)
        candidate.channel.send(
            {
                "op": "welcome",
                "cfg": {**self._cfg, **_cfg_fields(limits)},
                "page": self._cycle["page"],
                "dump": self._cycle.get("dump"),
                "cycle": self._cycle["cycle"],
                "learned": _learned_fields(limits.learned),
            }
        )
        self._tell({"op": "hello", "rank": seat.rank, "pid": seat.process.pid})
        if hello.get("resume") and not self._is_watching and self._view.pid == pid:
            self._arm()

    def _give_own_page(self, pid: int) -> None:
        """A page has one writer; the one before may have left, and still be storing."""
        view, cycle = self._view, self._cycle
        if view is None or cycle is None or view.pid in (0, pid):
            return
        try:
            create_page(cycle["page"], cycle["cycle"])
        except PageError as error:
            self.log("error", str(error))
        self._map(cycle["page"])

    def _take_seat(self, seat: Seat) -> None:
        self._seat = seat
        fd = seat.process.fileno()
        if fd >= 0:
            self._epoll.register(fd, select.EPOLLIN)
            self._ready[fd] = lambda: self._on_rank_ended(seat)

    def _arm(self) -> None:
        self._is_watching = True
        if self._restarter is not None:
            self._restarter.handle_message()

    def _update_limits(self, message: Message) -> dict[str, Any]:
        """Take over the limits a rank has set; return those that must be longer."""
        old = self._limits
        heartbeat = message.get("heartbeat")
        section = message.get("section")
        learned = set(old.learned)
        initial, subsequent = old.initial, old.subsequent
        outside, sections = old.out_of_section, old.sections
        if heartbeat is not None:
            initial = _limit(heartbeat["initial"])
            subsequent = _limit(heartbeat["subsequent"])
            learned = {key for key in learned if key not in _HEARTBEATS}
            learned.update(_HEARTBEATS if heartbeat.get("learned") else ())
        if section is not None:
            outside = _limit(section["out_of_section"])
            sections = {str(name): _limit(value) for name, value in section["section"].items()}
            learned = {key for key in learned if key in _HEARTBEATS}
            learned.update((hang.SECTION, str(name)) for name in section.get("learned", ()))
            learned.update(_OUTSIDE if section.get("out_of_section_learned") else ())
        asked = Limits(initial, subsequent, outside, sections, learned)
        self._limits = new = monitor.raise_learned(asked, self._tripped)
        if heartbeat is not None:
            self.log(
                "debug",
                f"Updated heartbeat timeouts: initial {new.initial}, subsequent {new.subsequent}",
            )
        if section is not None:
            self.log(
                "debug",
                f"Updated section timeouts: {new.sections}, out of section {new.out_of_section}",
            )
        beats_raised = (new.initial, new.subsequent) != (asked.initial, asked.subsequent)
        return {
            "heartbeat": (
                {"initial": new.initial, "subsequent": new.subsequent} if beats_raised else None
            ),
            "section": {
                name: limit for name, limit in new.sections.items() if limit != asked.sections[name]
            },
            "out_of_section": (
                new.out_of_section if new.out_of_section != asked.out_of_section else None
            ),
        }

    # ------------------------------------------------------------ the rank leaves
    def _turn_away(self, visitor: Visitor, why: str) -> None:
        visitor.channel.send({"op": "error", "text": why})
        self._end_visit(visitor)

    def _end_visit(self, visitor: Visitor) -> None:
        """Close a connection; if it was the rank's, the rank is forgotten."""
        if visitor.channel.fileno() >= 0:
            del self._ready[visitor.channel.fileno()]
        visitor.channel.close()
        if visitor in self._visitors:
            self._visitors.remove(visitor)
        seat = self._seat
        if seat is None or seat.visitor is not visitor:
            return
        if self._case is not None and self._view is not None and seat.process.fileno() >= 0:
            # On its way out, maybe for ever (destructors of collectives hang, too): what was begun
            # is ended by its death, or by disarming.
            seat.visitor = None
        else:
            self._vacate("closed its connection")

    def _on_rank_ended(self, seat: Seat) -> None:
        if self._seat is seat and not seat.process.is_alive():
            self._vacate("died")

    def _vacate(self, why: str) -> None:
        """Forget the rank and call the next one."""
        seat = self._seat
        if seat is None:
            return
        self._stop_watching(why)
        self._seat = None
        if seat.process.fileno() >= 0:
            self._epoll.unregister(seat.process.fileno())
            del self._ready[seat.process.fileno()]
        seat.process.close()
        if seat.visitor is not None:
            self._end_visit(seat.visitor)
        for visitor in list(self._visitors):
            if self._seat is None:
                self._welcome_next(visitor)

    def _warn_of_open_sections(self) -> None:
        still_open = sorted(self._view.open_sections()) if self._view is not None else []
        # Every rank of a job leaves alike; once is enough to be told.
        if self._seat is not None and still_open and self._seat.rank == 0:
            self.log(
                "warning",
                f"rank {self._seat.rank} (pid {self._seat.process.pid}) leaves while sections "
                f"{still_open} are open; call end_all_sections() before "
                "shutdown_workload_monitoring()",
            )

    def _stop_watching(self, why: str) -> None:
        seat = self._seat
        if seat is None or not self._is_watching:
            return
        now = clock.monotonic()
        self._feed(monitor.RankGone(), now)
        self._is_watching = False
        if self._case is not None:
            self._close_case(f"the rank {why}", now)
        self._tell({"op": "bye", "rank": seat.rank, "pid": seat.process.pid})
        if self._restarter is not None:
            self._restarter.handle_disconnect()

    # ------------------------------------------------------------ effects
    def _do(self, effect: monitor.Effect, now: float) -> None:
        seat = self._seat
        if seat is None:
            return
        if isinstance(effect, monitor.TakeEvidence):
            self._take_evidence(seat, effect.overdue, now)
        elif self._case is None:
            return
        elif isinstance(effect, monitor.Conclude):
            self._conclude(seat, self._case, now)
        elif isinstance(effect, monitor.Send):
            self._send(seat, self._case, effect)
        elif isinstance(effect, monitor.Abandon):
            self._event("monitor_abandoned", pid=seat.process.pid, why=f"the rank {effect.why}")
            self.log("warning", f"{incident.who(self._case.record)} {effect.why}; it is let go")
            self._close_case(f"the rank {effect.why}", now)
        elif isinstance(effect, monitor.ReportStuck):
            state = proc.process_state(seat.process.pid)
            place = f"state {state.state} in {state.wchan or '?'}" if state else "state unknown"
            self._act(f"still there {monitor.UNKILLABLE_S:g} s after SIGKILL, {place}")
            self.log(
                "error",
                f"{incident.who(self._case.record)} does not die of SIGKILL: {place}; "
                "the node needs attention",
            )

    def _take_evidence(self, seat: Seat, overdue: Overdue, now: float) -> None:
        view, cycle = self._view, self._cycle
        if view is None or cycle is None:
            return
        snapshot = view.snapshot()
        sections = snapshot.sections if snapshot is not None else {}
        dump = StackDump(seat.process, view.dump_signal, cycle.get("dump"), now)
        self._case = case = Case(overdue, now, dump)
        if dump.fileno() >= 0:
            self._epoll.register(dump.fileno(), select.EPOLLIN)
        case.record = {
            "rank": seat.rank,
            "local_rank": self._config["local_rank"],
            "pid": seat.process.pid,
            "node": self._config["node"],
            "cycle": cycle["cycle"],
            "clock": overdue.clock,
            "name": overdue.name,
            "age_s": overdue.age_s(now),
            "limit_s": overdue.limit_s,
            "learned": (overdue.clock, overdue.name) in view.limits().learned,
            "at": overdue.deadline,
            "detected_at": now,
            "wall": clock.wall(),
            "time": time.strftime(_TIME_FORMAT, time.localtime(clock.wall())),
            "open_sections": {name: now - opened_at for name, opened_at in sections.items()},
            "iteration": view.iteration,
            "actions": [],
        }
        report = ("rank", "local_rank", "pid", "clock", "name", "age_s", "limit_s", "learned")
        numbers = {key: case.record[key] for key in (*report, "at", "detected_at")}
        self._tell({"op": "overdue", **numbers})
        self._event("monitor_verdict", **numbers)
        if dump.is_done:
            self._feed(monitor.EvidenceTaken(), now)

    def _conclude(self, seat: Seat, case: Case, now: float) -> None:
        dump = case.dump
        self._end_dump(case)
        case.stacks = dump.text()
        case.record.update(
            process=dump.state.to_json() if dump.state is not None else None,
            was_stopped=dump.was_stopped,
            stacks=dump.path if case.stacks else None,
            why_not=None if case.stacks else dump.why_not,
            took_s=now - case.found_at,
        )
        self._write_incident(case)
        self._tell(
            {
                "op": "evidence",
                "rank": seat.rank,
                "pid": seat.process.pid,
                "stacks": case.record["stacks"],
                "incident": case.path,
                "took_s": case.record["took_s"],
                "why_not": case.record["why_not"],
            }
        )

    def _send(self, seat: Seat, case: Case, effect: monitor.Send) -> None:
        name = signal_name(effect.signal)
        if not seat.process.send(effect.signal):
            self._act(f"{name} not sent: the process is gone")
            return
        grace = f", {self._watch.grace_s:g} s after {signal_name(self._watch.signal)}"
        self._act(f"{name} sent{grace if effect.why == monitor.GRACE_OVER else ''}")
        if effect.signal == monitor.SIGCONT:
            return
        self._tell(
            {
                "op": "signalled",
                "rank": seat.rank,
                "pid": seat.process.pid,
                "signal": effect.signal,
                "why": effect.why,
            }
        )
        self._event("monitor_signal", pid=seat.process.pid, signal=effect.signal, why=effect.why)
        self.log("warning", self._announcement(case, effect))

    def _announcement(self, case: Case, effect: monitor.Send) -> str:
        record = case.record
        name = signal_name(effect.signal)
        if effect.why == monitor.GRACE_OVER:
            return (
                f"{incident.who(record)} is still there {self._watch.grace_s:g} s after "
                f"{signal_name(self._watch.signal)}. Sent {name}"
            )
        follows = ""
        if effect.signal != monitor.SIGKILL:
            follows = f"; SIGKILL follows in {self._watch.grace_s:g} s"
        evidence = f"Its stacks are in {record['stacks']}"
        if record["why_not"] is not None:
            evidence = f"No stacks: {record['why_not']}"
        elif case.path is None:
            evidence = f"Its stacks:\n{case.stacks.rstrip()}\n"
        was_stopped = " It was stopped (SIGSTOP?)." if record["was_stopped"] else ""
        return (
            f"{incident.who(record)} is hung: {incident.what(case.overdue, record['detected_at'])}."
            f"{was_stopped} {evidence}. Sent SIGCONT, {name}{follows}. "
            f"{incident.advice(case.overdue, learned=record['learned'])}"
        )

    def _close_case(self, why: str, now: float) -> None:
        if self._case is not None:
            self._act(f"over {now - self._case.found_at:.3f} s after the verdict: {why}")
            self._end_dump(self._case)
            self._case = None

    def _end_dump(self, case: Case) -> None:
        fd = case.dump.fileno()
        if fd >= 0:
            self._epoll.unregister(fd)
        case.dump.close()

    # ------------------------------------------------------------ writing down
    def _act(self, text: str) -> None:
        case = self._case
        if case is not None and case.record:
            case.record["actions"].append(text)
            if "process" in case.record:
                self._write_incident(case)

    def _write_incident(self, case: Case) -> None:
        folder = self._cycle.get("incidents") if self._cycle is not None else None
        if folder is None:
            return
        record = case.record
        try:
            if case.path is None:
                os.makedirs(folder, exist_ok=True)
                stem = f"{folder}/cycle{record['cycle']}_rank{record['rank']}"
                path, number = f"{stem}.json", 1
                while os.path.exists(path):
                    number += 1
                    path = f"{stem}_{number}.json"
                case.path = path
            text = incident.report(record, case.overdue, record["detected_at"], case.stacks)
            body = json.dumps({**record, "stacks_text": case.stacks}, indent=1)
            _replace(case.path.removesuffix(".json") + ".txt", text)
            _replace(case.path, body + "\n")
        except OSError as error:  # a full disk does not keep a hung rank alive
            self.log("error", f"cannot write the incident to {folder}: {error.strerror}")

    def _event(self, kind: str, **fields: Any) -> None:
        path = self._config.get("events")
        if path is None:
            return
        event = {
            "t": clock.monotonic(),
            "wall": clock.wall(),
            "kind": kind,
            "node": self._config["node"],
            "cycle": self._cycle["cycle"] if self._cycle is not None else None,
            "rank": self._seat.rank if self._seat is not None else None,
            **fields,
        }
        try:
            if self._events_fd < 0:  # most monitors never have anything to write
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._events_fd = os.open(path, flags, 0o644)
            os.write(self._events_fd, json.dumps(event, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            self.log("error", f"cannot write to {path}: {error.strerror}")

    def _tell(self, message: Mapping[str, Any]) -> None:
        """To the launcher; a process that stands alone has none, but waits for "ready"."""
        if not self._config.get("standalone") or message["op"] == "ready":
            self._control.send(message)

    def log(self, level: str, text: str) -> None:
        """Say something at a level, where that is wanted."""
        if _LEVELS[level] < self._cfg.get("log_level", 20):
            return
        if self._config.get("standalone"):
            try:
                sys.stderr.write(f"holdfast rank monitor: {level.upper()}: {text}\n")
                sys.stderr.flush()
            except OSError:  # nobody reads any more
                pass
        else:
            self._control.send({"op": "log", "level": level, "text": text})


class RestarterLog:
    """Where the lines about layered restarts go."""

    def __init__(self, owner: Monitor) -> None:
        self._owner = owner

    def log_restarter_event(self, msg: str, /) -> None:
        """Take one line."""
        self._owner.log("info", msg)


def _limit(value: Any) -> float | None:
    return None if value is None else float(value)


def _cfg_fields(limits: Limits) -> dict[str, Any]:
    return {
        "initial_rank_heartbeat_timeout": limits.initial,
        "rank_heartbeat_timeout": limits.subsequent,
        "rank_section_timeouts": limits.sections,
        "rank_out_of_section_timeout": limits.out_of_section,
    }


def _learned_fields(learned: Iterable[ClockKey]) -> dict[str, Any]:
    keys = set(learned)
    return {
        "heartbeat": keys >= _HEARTBEATS,
        "out_of_section": keys >= _OUTSIDE,
        "sections": sorted(name for _, name in keys if name is not None),
    }


def _replace(path: str, text: str) -> None:
    """Write a file that is complete whenever somebody looks."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def _close_inherited() -> None:
    """A monitor that outlives its launcher must not hold its pipes open."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > CONTROL_FD:
            os.closerange(fd, fd + 1)  # unlike close, silent about the one that listed the others


def _name_process(name: str) -> None:
    """For ps(1), which would show one interpreter like another."""
    if os.access("/proc/self/comm", os.W_OK):
        with open("/proc/self/comm", "w", encoding="ascii") as file:
            file.write(name)


def main() -> None:
    """Be a rank monitor; descriptors 3 and 4 are given by host/monitor_process.py."""
    for name in _IGNORED:  # whoever signals the job's processes: the launcher decides when to end
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    _close_inherited()
    _name_process("holdfast-rmon")
    listener = socket.socket(fileno=LISTENER_FD)
    monitor_of_a_rank = Monitor(listener, socket.socket(fileno=CONTROL_FD))
    monitor_of_a_rank.run()
    monitor_of_a_rank.close()
