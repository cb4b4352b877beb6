"""The rank monitor: a small process beside one rank, asleep until something can be wrong.

The shell around ``watch.pure.monitor``: one epoll over the launcher's control connection, the
rank's connections, the rank's pidfd and, during a verdict, the file its stacks are dumped into. It
reads the rank's page, feeds the machine, carries out effects, and decides nothing itself.

    launcher ──control (fd 4)──┐                    ┌── page, read twice before a verdict
                               ├── rank monitor ────┼── pidfd: its death, and signals to it alone
    rank ──listener (fd 3)─────┘                    └── dump file: its stacks

    visitors.py        who is served            incident_case.py    one verdict, carried out
    limits_in_force.py what it watches for      monitor_reports.py  what it says

What it survives: a launcher that does not read (nothing here waits for it), a rank that floods its
socket or sends garbage (that connection ends, nothing else), its own replacement (a successor
adopts an armed page). When the launcher is gone it ends what that launcher's ranks have started
(``base/processes/kin.py``), and itself. A bare interpreter (``python -I -S``) runs it, within
milliseconds.
"""

from __future__ import annotations

import math
import os
import signal
import socket

from holdfast.base import clock
from holdfast.base.own_file import OwnFile
from holdfast.base.processes import proc
from holdfast.base.processes.bare_process import ignore_signals
from holdfast.base.processes.inheritance import raise_descriptor_limit
from holdfast.base.processes.run_delay import RunDelay
from holdfast.base.pure.codec import MessageError, decode
from holdfast.base.pure.kill_ladder import SIGCONT, SIGKILL
from holdfast.evidence.pure.evidence import Operations
from holdfast.evidence.pure.stall_rules import belongs_to
from holdfast.net.channel import Channel
from holdfast.net.descriptors import Descriptors
from holdfast.page.page import Page, PageError, create_page, map_page
from holdfast.page.pure import clocks
from holdfast.page.pure.clocks import Limits as Timeouts
from holdfast.page.pure.clocks import Snapshot
from holdfast.page.pure.page_view import PageView
from holdfast.watch.monitor.limits_in_force import LimitsInForce
from holdfast.watch.monitor.looks import WAKE_SHARE, Looks
from holdfast.watch.monitor.monitor_reports import Reports
from holdfast.watch.monitor.step_source import StepSource
from holdfast.watch.monitor.visitors import Seat, Visitor, Visitors
from holdfast.watch.pure import monitor
from holdfast.watch.pure import monitor_messages as messages
from holdfast.watch.pure.learned import TrippedLimits
from holdfast.watch.pure.rank_messages import (
    Alive,
    Armed,
    Bye,
    CountCollectives,
    Counted,
    Dumped,
    Hello,
    Limits,
    Ok,
    Welcome,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.base.processes.kin import Kin
    from holdfast.net.pure.frames import Message
    from holdfast.page.lease import Lease
    from holdfast.page.pure.clocks import Overdue
    from holdfast.watch.monitor.incident_case import Case
    from holdfast.watch.monitor.restarter import Restarter
    from holdfast.watch.pure.rank_messages import Raised

LISTENER_FD = 3
CONTROL_FD = 4
_ENDING = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")
_SLEEP_S_MAX = 86400.0
_SLACK_FROM_S = 1.0
_LONG_SHARE = 0.5
"""Of the floor: a rank that has made no step for so long is one of a stall, not of a pause."""
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


class Monitor:
    """One process's worth of watching."""

    def __init__(self, listener: socket.socket, control: socket.socket) -> None:
        self._descriptors = Descriptors()
        self._listener = listener
        self._told: list[Message] = []  # by the launcher, and not done yet
        self._control = Channel(
            control,
            self._descriptors,
            lambda _, message: self._told.append(message),
            lambda _: None,
        )
        self._descriptors.call(self._control.fileno(), self.catch_up)
        self._reports = Reports(self._control)
        self._visitors = Visitors(listener, self._descriptors, self)
        self._over = False
        # From "configure"
        self._config = messages.Configure({}, 0, None, 0.0, "")
        self._socket_file: OwnFile | None = None
        self._tripped = TrippedLimits()
        self._limits = LimitsInForce(self._tripped)
        self._watch = monitor.Watch(SIGKILL, 0.0, self._tripped)
        self._restarter: Restarter | None = None
        self._lease: Lease | None = None
        self._lease_over: float | None = None
        self._kin: Kin | None = None
        # From "cycle"
        self._cycle: messages.Cycle | None = None
        self._page: Page | None = None
        self._view: PageView | None = None
        # The rank
        self._is_watching = False
        self._has_armed = False  # once in this cycle
        self._awaited: messages.Await | None = None  # it has not been armed, and should be
        self._left_at: float | None = None  # seen by us; the page may know it better
        self._case: Case | None = None
        self._run_delay: RunDelay | None = None  # since its first signal
        self._is_asked = False  # how many collectives it has been in
        self._step_source = StepSource(self._reports)
        self._looks = Looks(self._reports, self._descriptors.epoll)

    # ------------------------------------------------------------ the loop

    def run(self) -> None:
        """Serve until told to stop, or nobody is left to serve."""
        while not self._over:
            self._descriptors.wait(sleep_s(self._next_deadline(), clock.monotonic()))
            self._tick(clock.monotonic())

    def close(self) -> None:
        """Leave nothing in the file system that nobody else removes."""
        if self._socket_file is not None:
            self._socket_file.remove()
        if folder := self._config.private_dir:
            import shutil  # noqa: PLC0415 - slow to import, and needed once

            shutil.rmtree(folder, ignore_errors=True)  # its maker may have been killed

    def _next_deadline(self) -> float | None:
        deadlines = (
            self._visitors.next_deadline(),
            self._looks.next_step_at,
            self._watch.next_deadline() if self._is_watching else None,
            self._lease_until(clock.monotonic()),
            self._kin.next_look_at if self._kin is not None else None,
            self._restarter.next_deadline() if self._restarter is not None else None,
        )
        return min((at for at in deadlines if at is not None), default=None)

    def _tick(self, now: float) -> None:
        self._step_evidence(now)
        if self._is_watching:
            self._look(now)
        self._visitors.dismiss_late(now)
        self._visitors.look_for_end(now)
        if self._restarter is not None:
            self._restarter.on_time(now)
        until = self._lease_until(now)
        if until is not None and now >= until:
            self._launcher_stopped(until, now)
        if self._kin is not None and now >= self._kin.next_look_at:
            self._kin.look(now)

    def _lease_until(self, now: float) -> float | None:
        """None also if it is over, and the ranks are ended."""
        until = self._lease.end(now) if self._lease is not None else None
        return until if until != self._lease_over else None

    def _look(self, now: float) -> None:
        """Read the page and feed it to the machine, again while it asks for that."""
        view = self._view
        while view is not None and self._is_watching:
            snapshot, limits = self._snapshot(view), view.limits()
            if snapshot is not None and snapshot.is_awaited:
                cfg: dict[str, Any] = self._config.cfg
                limits = Timeouts(initial=cfg["first_call_timeout"])
            delay = self._run_delay
            waited_s = delay.since_s() if delay is not None else 0.0
            if not self._feed(monitor.Looked(snapshot, limits, waited_s), now):
                break

    def _snapshot(self, view: PageView) -> Snapshot | None:
        """What the page shows; of a rank that left without a word, that it has left.

        One that has shown progress since then has lost its connection, and nothing else.
        """
        shown, left_at = view.snapshot(), self._left_at
        if shown is None and self._awaited is not None:
            return Snapshot(self._awaited.since, is_awaited=True)
        if left_at is None or (shown is not None and shown.left_at is not None):
            return shown
        if shown is not None and shown.last_sign_at > left_at:
            self._left_at = None
            return shown
        return Snapshot(left_at, left_at=left_at)

    def _feed(self, event: monitor.Event, now: float) -> bool:
        """Whether the machine wants to look again."""
        again = False
        for effect in self._watch.handle(event, now):
            if isinstance(effect, monitor.LookAgain):
                again = True
                continue
            try:
                self._carry_out(effect, now)
            except Exception as error:  # noqa: BLE001 - K-2: no hung rank lives on because of us
                self._reports.log(
                    "error",
                    f"local rank {self._config.local_rank} is hung, and its monitor failed "
                    f"to {type(effect).__name__}: {error!r}; the verdict goes on",
                )
        return again

    def _carry_out(self, effect: monitor.Effect, now: float) -> None:
        if isinstance(effect, monitor.TakeEvidence):
            self._open_case(effect.overdue, now, effect.until)
        elif isinstance(effect, monitor.LookAtState):
            self._look_at_state(now, asks=effect.asks)
        elif isinstance(effect, monitor.Send):
            self._send(effect)
        elif self._case is not None:
            self._go_on(self._case, effect, now)

    def _look_at_state(self, now: float, *, asks: bool) -> None:
        seat = self._visitors.seat
        if seat is None:
            return
        self._looks.stopped.look(seat.process.pid, now)
        if asks and seat.helper is not None and not self._is_asked:
            self._is_asked = True
            seat.helper.send(CountCollectives())

    def _send(self, effect: monitor.Send) -> None:
        """The signal first: nothing that is said about it may keep it from being sent."""
        seat = self._visitors.seat
        was_sent = seat is not None and seat.process.send(effect.signal)
        is_grace_next = effect.signal not in (SIGCONT, SIGKILL)
        self._run_delay = RunDelay(seat.process.pid) if seat and is_grace_next else None
        if self._case is not None:
            self._case.note_signal(effect, was_sent=was_sent)

    # ------------------------------------------------------------ a verdict

    def _open_case(self, overdue: Overdue, now: float, until: float) -> None:
        seat, view, cycle = self._visitors.seat, self._view, self._cycle
        if seat is None or view is None or cycle is None:
            return
        self._choose_looks(overdue, now)
        judged = self._looks.verdict
        if judged is not None and not belongs_to(overdue.clock, judged.verdict):
            self._looks.forget()
        from holdfast.watch.monitor.incident_case import Case  # noqa: PLC0415 - in memory by now

        self._case = Case(
            overdue,
            seat,
            view,
            {"rank": seat.rank, **self._identity()},
            cycle,
            self._watch,
            self._reports,
            self._looks,
            now,
            until,
            awaits_verdict=self._config.awaits_verdict,
        )
        self._step_evidence(now)

    def _choose_looks(self, overdue: Overdue | None, now: float) -> None:
        """A rank that merely pauses is not disturbed for a line of the log."""
        progress, view = self._watch.progress, self._view
        by_steps = view is not None and view.is_by_steps
        self._looks.pause_s = progress.pause_s(now) if by_steps else 0.0
        self._looks.is_gentle = (
            overdue.clock == clocks.PAUSE
            if overdue is not None
            else by_steps and self._looks.pause_s < _LONG_SHARE * progress.floor_s
        )

    def _step_evidence(self, now: float) -> None:
        """Go on with the look at the rank; what is done about it waits for the launcher."""
        case, cycle = self._case, self._cycle
        try:
            if case is None:
                self._looks.step(now)
            else:
                case.step(now)
            if cycle is not None:
                overdue = case.overdue if case is not None else None
                self._looks.report(self._identity(), self._view, overdue, cycle, now)
        except Exception as error:  # noqa: BLE001 - K-2: what is missing is missing, no more than that
            self._looks.failed(error)
        if case is not None and case.has_all_evidence:
            verdict = self._looks.verdict
            is_hang = verdict is not None and verdict.verdict.is_hang
            self._feed(monitor.EvidenceTaken(is_hang), now)

    def _identity(self) -> dict[str, Any]:
        seat = self._visitors.seat
        return {
            "node": self._config.node,
            "local_rank": self._config.local_rank,
            "pid": seat.process.pid if seat is not None else 0,
        }

    def _go_on(self, case: Case, effect: monitor.Effect, now: float) -> None:
        if isinstance(effect, monitor.Conclude):
            case.conclude(now)
        elif isinstance(effect, monitor.ReportStuck):
            case.report_stuck()
        elif isinstance(effect, monitor.Abandon):
            case.abandon(effect.why, now)
            self._case = None

    # ------------------------------------------------------------ from the launcher

    def catch_up(self) -> None:
        """Do what the launcher has said."""
        self._control.receive()
        frames, self._told = self._told, []
        told = []
        for frame in frames:
            try:
                told.append(decode(messages.TO_MONITOR, frame))
            except MessageError as error:  # the launcher is older than what is installed now
                self._reports.log("error", f"the launcher sent a malformed message: {error}")
        cycles = [message for message in told if isinstance(message, messages.Cycle)]
        for message in told:
            match message:
                case messages.Configure():
                    self._configure(message)
                case messages.Cycle():
                    # Of several, all but the last are over, and their pages are gone: ranks can
                    # fail faster than a monitor starts.
                    if message is cycles[-1]:
                        self._begin_cycle(message)
                case messages.Tripped(clock_name, name, limit_s):
                    self._tripped.tripped(clock_name, name, limit_s)
                case messages.Await():
                    self._await(message)
                case messages.Stopping(cycle, at):
                    is_news = self._watch.stopping_at is None
                    if is_news and self._cycle is not None and cycle == self._cycle.cycle:
                        self._watch.stopping_at = at
                case messages.LookNow():
                    self._look_now(message)
                case messages.GoOn(verdict=verdict):
                    now = clock.monotonic()
                    self._looks.go_on(message, now)
                    if verdict.is_stall or verdict.is_pause:
                        judged = monitor.StallJudged(verdict.is_pause, verdict.again_s)
                        self._feed(judged, now)
        if self._control.gone is not None and not self._over:
            self._over = True
            self._launcher_gone()

    def _configure(self, config: messages.Configure) -> None:
        self._config = config
        cfg: dict[str, Any] = config.cfg
        self._reports.configure(config)
        self._limits.configure(cfg)
        self._watch = monitor.Watch(
            cfg["rank_termination_signal"],
            math.inf if config.grace_s is None else config.grace_s,
            self._tripped,
            cfg.get("exit_timeout"),
            cfg.get("evidence_timeout", 0.0),
            cfg.get("auto_heartbeat_floor", 0.0),
        )
        self._looks.wake_s = WAKE_SHARE * self._watch.evidence_s
        if config.standalone:
            self._socket_file = OwnFile(self._listener.getsockname())
            self._end_on_signals()
        if config.restarter:
            from holdfast.watch.monitor.restarter import Restarter  # noqa: PLC0415 - where used

            every_s = float(cfg["restart_check_interval"])
            self._restarter = Restarter(self._reports.log_restarter_event, every_s)
        if path := config.lease:
            from holdfast.page.lease import Lease  # noqa: PLC0415 - in jobs of several nodes only

            try:
                self._lease = Lease(path, writable=False)
            except OSError as error:
                self._reports.log("warning", f"{path} cannot be read: {error}")
        self._reports.tell(messages.Ready())
        if config.marker is not None:
            from holdfast.base.processes.kin import Kin  # noqa: PLC0415 - nobody has to wait for it

            self._kin = Kin(config.marker, config.runtime_dir, config.local_rank)
        # Only a verdict needs it, so nobody has to wait for it. But a verdict must not: what hangs
        # then may be the file system.
        import holdfast.watch.monitor.incident_case  # noqa: PLC0415
        import holdfast.watch.monitor.rank_look  # noqa: F401, PLC0415

    def _end_on_signals(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for name in _ENDING:
            signal.signal(getattr(signal, name), lambda *_: None)
        self._descriptors.watch(reader, self._on_ending_signal)

    def _on_ending_signal(self) -> None:
        self._over = True
        if self._restarter is not None:
            self._restarter.handle_signal()

    def _begin_cycle(self, cycle: messages.Cycle) -> None:
        """Forget the last cycle's rank; adopt this cycle's, if a predecessor watched it already."""
        self._visitors.dismiss_all(f"cycle {cycle.cycle} has begun")
        self._visitors.vacate("its cycle is over")
        if self._cycle is None:
            self._visitors.open()
        self._cycle, self._has_armed = cycle, False
        self._watch.stopping_at = None
        self._looks.forget()
        self._looks.stopped.forget()
        self._is_asked = False
        if self._kin is not None:
            self._kin.cycle_began(clock.monotonic())
        self._map(cycle.page)
        if self._view is not None:
            self._adopt(self._view)

    def _map(self, path: str | None) -> None:
        if self._page is not None:
            self._page.close()
            self._page = self._view = None
        if path is None:  # there was no space for one
            return
        try:
            self._page = map_page(path, writable=False)
        except PageError as error:
            local_rank = self._config.local_rank
            self._reports.log("error", f"cannot watch local rank {local_rank}: {error}")
        else:
            self._view = PageView(self._page.words, self._page.names)

    def _adopt(self, view: PageView) -> None:
        snapshot = view.snapshot()
        if snapshot is None:
            return
        try:
            process = proc.Process(view.pid)
        except (ProcessLookupError, OverflowError):
            return
        if process.start_ticks != view.start_ticks:  # somebody else has its pid now
            process.close()
            return
        self._limits.limits = view.limits()
        self._visitors.take(Seat(view.global_rank, process, None))
        self._reports.log("info", f"rank {view.global_rank} (pid {process.pid}) is watched again")
        if snapshot.left_at is None:
            self._arm()
        else:
            self._has_armed = self._is_watching = True
            self._left_at = snapshot.left_at

    def _await(self, message: messages.Await) -> None:
        """Watch a rank that may hang before its first call. It need not have said hello.

        The seat is held for the process that the launcher has started. Where that is a shell, the
        rank is another process, which takes the seat when it calls.
        """
        cycle = self._cycle
        if cycle is None or message.cycle != cycle.cycle or self._has_armed:
            return  # the launcher may not have heard of it yet
        if self._visitors.seat is None:
            try:
                process = proc.Process(message.pid)
            except (ProcessLookupError, OverflowError):
                return
            self._visitors.take(Seat(message.rank, process, None))
        self._is_watching, self._awaited = True, message

    def _look_now(self, message: messages.LookNow) -> None:
        cycle = self._cycle
        if cycle is not None and cycle.cycle == message.cycle:
            seat, now = self._visitors.seat, clock.monotonic()
            if self._case is None:
                self._choose_looks(None, now)
            try:
                self._looks.ask(message, seat, self._view, cycle.dump, now)
            except Exception as error:  # noqa: BLE001 - as in _step_evidence
                self._looks.failed(error)

    def _launcher_gone(self) -> None:
        self._end_all()

    def _launcher_stopped(self, until: float, now: float) -> None:
        """It would have ended its ranks itself: the others go on without this node now."""
        assert self._lease is not None
        self._lease_over = until
        slept_s = now - self._lease.moved_at
        if self._cycle is not None:  # before they end: their launcher asks for the reason then
            self._reports.tell(messages.LeaseOver(self._cycle.cycle, slept_s))
        if self._end_all():
            self._reports.log(
                "error",
                f"this launcher was stopped, or got no processor, for {slept_s:.1f} s; the other "
                "nodes may go on without it, so its monitors have ended its ranks",
            )

    def _end_all(self) -> int:
        """End all that the launcher's ranks are; how many that were."""
        if self._kin is None:
            return 0  # they are not ours
        if self._visitors.seat is not None:
            self._visitors.seat.process.send(SIGKILL)
        ended = self._kin.end_all()
        for pid, why in ended.left.items():
            self._reports.log("warning", f"process {pid} is left alone: {why}")
        return ended.killed

    # ------------------------------------------------------------ from the rank (visitors.Host)

    def is_closing(self) -> bool:
        """No rank is let in any more."""
        return self._over

    def warns(self, line: str) -> None:
        """Log a line about a caller that does not belong here, or about missing descriptors."""
        local_rank = self._config.local_rank
        self._reports.log("warning", f"monitor of local rank {local_rank}: {line}")

    def rejects(self, pid: int, hello: Hello) -> str | None:
        """Refuse steps of a process that is not the rank."""
        return self._step_source.rejects(pid, hello)

    def greet(self, visitor: Visitor, seat: Seat, *, is_new: bool) -> None:
        """Tell a rank what it is measured by, and where it writes."""
        if is_new:
            self._is_asked = False
            self._give_own_page(seat.process.pid)
        cycle, view = self._cycle, self._view
        if cycle is None:
            self._visitors.turn_away(visitor, "no cycle has begun")
            return
        # None: no space for a page, or it cannot be read. The rank runs unwatched.
        page = cycle.page if view is not None else None
        cfg, learned = self._limits.welcome(self._config.cfg)
        takes_helper = page is not None
        visitor.send(Welcome(page, cfg, cycle.dump, cycle.cycle, learned, takes_helper))
        self._reports.tell(messages.Hello(seat.rank, seat.process.pid))
        wants_on = visitor.hello.resume
        is_writer = view is not None and view.pid == seat.process.pid
        if wants_on and is_writer and (not self._is_watching or self._left_at is not None):
            self._arm()

    def _give_own_page(self, pid: int) -> None:
        """A page has one writer; the one before may have left, and still be storing."""
        view, cycle = self._view, self._cycle
        if view is None or cycle is None or cycle.page is None or view.pid in (0, pid):
            return
        try:
            create_page(cycle.page, cycle.cycle)
        except PageError as error:
            self._reports.log("error", str(error))
        self._map(cycle.page)

    def answer(self, seat: Seat, message: Armed | Limits | Bye) -> Ok:
        """Do what the rank asks for."""
        match message:
            case Armed():
                self._arm()
            case Limits():
                return Ok(self._update_limits(message))
            case Bye():
                self._warn_of_open_sections(seat)
                if not self._watches_exit(seat, "said bye"):
                    self.left(seat, "said bye")
        return Ok()

    def helper_said(self, message: Alive | Operations | Dumped | Counted) -> None:
        """The rank's helper thread has answered."""
        if isinstance(message, Counted):
            self._is_asked = False
            self._feed(monitor.CollectivesCounted(message.total), clock.monotonic())
            return
        self._looks.helper_said(message)

    def _arm(self) -> None:
        if self._view is None:
            return
        self._has_armed = self._is_watching = True
        self._left_at = self._awaited = None
        if self._cycle is not None:
            by_steps = self._view.is_by_steps
            self._reports.tell(messages.Armed(self._cycle.cycle, by_steps))
        if self._restarter is not None:
            self._restarter.handle_message()

    def _watches_exit(self, seat: Seat, why: str) -> bool:
        """The rank leaves; whether its process is watched on. It may hang on its way out.

        Not if it was not watched before. Nor the process that started
        this monitor, a notebook or a test: nobody said that it would end. A verdict that is on its
        way is dropped, for the rank has disarmed.
        """
        if self._left_at is not None:
            return True
        if self._awaited is not None:
            return False
        has_end = seat.process.pid != os.getppid() and self._view is not None
        if not has_end or not self._is_watching or self._watch.exit_s is None:
            return False
        now = clock.monotonic()
        self._drop(why, now)
        self._left_at = now
        self._say_bye(seat)
        return True

    def _update_limits(self, message: Limits) -> Raised:
        raised = self._limits.update(message)
        new = self._limits.limits
        if message.heartbeat is not None:
            self._reports.log(
                "debug",
                f"Updated heartbeat timeouts: initial {new.initial}, subsequent {new.subsequent}",
            )
        if message.section is not None:
            self._reports.log(
                "debug",
                f"Updated section timeouts: {new.sections}, out of section {new.out_of_section}",
            )
        return raised

    def _warn_of_open_sections(self, seat: Seat) -> None:
        still_open = sorted(self._view.open_sections()) if self._view is not None else []
        # Every rank of a job leaves alike; once is enough to be told.
        if still_open and seat.rank == 0:
            self._reports.log(
                "warning",
                f"rank {seat.rank} (pid {seat.process.pid}) leaves while sections "
                f"{still_open} are open; call end_all_sections() before "
                "shutdown_workload_monitoring()",
            )

    def holds(self, seat: Seat) -> bool:
        """The rank has closed its connection; whether its seat is kept for it.

        So during a verdict: what was begun is ended by the rank's death, or by disarming. And where
        its end is watched: it may be on its way out for ever, for destructors of collectives hang.
        And where it has to be armed yet.
        """
        if self._case is not None or self._awaited is not None:
            return self._view is not None
        return self._watches_exit(seat, "closed its connection")

    def yields(self, seat: Seat) -> bool:
        """Whether a rank that has left, or never came, makes room for another process."""
        is_free = self._left_at is not None or self._awaited is not None
        return seat.visitor is None and is_free and self._case is None

    def left(self, seat: Seat, why: str) -> None:
        """Watch the rank no more."""
        self._looks.left()
        if not self._is_watching:
            return
        self._drop(why, clock.monotonic())
        self._is_watching = False
        if self._left_at is None and self._awaited is None:
            self._say_bye(seat)
        self._left_at = self._awaited = None

    def _drop(self, why: str, now: float) -> None:
        """End the verdict on the rank, if there is one."""
        self._feed(monitor.RankGone(), now)
        self._run_delay = None
        if self._case is not None:
            self._case.close(why, now)
            self._case = None

    def _say_bye(self, seat: Seat) -> None:
        self._reports.tell(messages.Bye(seat.rank, seat.process.pid))
        if self._restarter is not None:
            self._restarter.handle_disconnect()


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
    """Be a rank monitor; descriptors 3 and 4 are given by node/processes/controlled_process.py."""
    ignore_signals()
    _close_inherited()
    raise_descriptor_limit()
    _name_process("holdfast-rmon")
    listener = socket.socket(fileno=LISTENER_FD)
    monitor_of_a_rank = Monitor(listener, socket.socket(fileno=CONTROL_FD))
    monitor_of_a_rank.run()
    monitor_of_a_rank.close()
