"""The rank monitor: a small process beside one rank, asleep until something can be wrong.

The shell around ``watch.pure.monitor``: it reads the rank's page, feeds the machine, carries out
effects, and decides nothing itself.

    launcher ──control (fd 4)──┐                    ┌── page, read twice before a verdict
                               ├── rank monitor ────┼── pidfd: its death, and signals to it alone
    rank ──listener (fd 3)─────┘                    └── dump file: its stacks

It survives a launcher that does not read (nothing here waits for it), a rank that floods its socket
or sends garbage (that connection ends, nothing else), and its own replacement (a successor adopts
an armed page). When the launcher is gone it ends all processes of that launcher's ranks
(``base/processes/orphans.py``), and itself. A bare interpreter (``python -I -S``) runs it,
within milliseconds.
"""

from __future__ import annotations

import math
import os
import signal
import socket

from holdfast.base import clock
from holdfast.base.processes.bare_process import ignore_signals
from holdfast.base.processes.process_defaults import raise_descriptor_limit
from holdfast.base.processes.run_delay import RunDelay
from holdfast.base.pure.codec import MessageError, decode
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.kill_ladder import SIGCONT, SIGKILL
from holdfast.evidence.pure.evidence import Operations
from holdfast.evidence.pure.stall_rules import belongs_to
from holdfast.net.channel import Channel
from holdfast.net.descriptors import Descriptors
from holdfast.page import stall_file
from holdfast.page.page import Page, PageError, create_page, map_page
from holdfast.page.pure.clocks import Snapshot, Timeouts
from holdfast.page.pure.page_view import PageView
from holdfast.watch.monitor.looks import WAKE_SHARE, Looks, StoppedTime
from holdfast.watch.monitor.monitor_reports import Reports
from holdfast.watch.monitor.rank_sessions import Caller, RankSession, RankSessions
from holdfast.watch.pure import monitor
from holdfast.watch.pure import monitor_messages as messages
from holdfast.watch.pure.learned import LimitsInForce, TrippedLimits
from holdfast.watch.pure.rank_messages import (
    Alive,
    Armed,
    CountCollectives,
    Counted,
    Dumped,
    Hello,
    LeaveMonitor,
    Ok,
    Welcome,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast.base.own_file import OwnFile
    from holdfast.base.processes.orphans import RankProcesses
    from holdfast.evidence.pure.evidence import Verdict
    from holdfast.net.pure.frames import Message
    from holdfast.page.lease import Lease
    from holdfast.page.pure.clocks import RunningClock
    from holdfast.watch.monitor.hang_response import HangResponse
    from holdfast.watch.monitor.step_source import StepSource
    from holdfast.watch.pure.layered_restart import RestartLineWriter

LISTENER_FD = 3
CONTROL_FD = 4
_ENDING = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")
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


class Monitor:
    """Watches one rank at a time."""

    def __init__(self, listener: socket.socket, control: socket.socket) -> None:
        self._descriptors = Descriptors()
        self._listener = listener
        self._from_launcher: list[Message] = []  # messages that are not carried out yet
        self._control = Channel(
            control,
            self._descriptors,
            lambda _, message: self._from_launcher.append(message),
            lambda _: None,
        )
        self._descriptors.call(self._control.fileno(), self.catch_up)
        self._reports = Reports(self._control)
        self._sessions = RankSessions(listener, self._descriptors, self)
        self._over = False
        # From "configure"
        self._config = messages.ConfigureMonitor({}, 0, None, 0.0, "")
        self._socket_file: OwnFile | None = None
        self._tripped = TrippedLimits()
        self._limits = LimitsInForce(self._tripped)
        self._watch = monitor.Watch(SIGKILL, 0.0, self._tripped)
        self._restarter: RestartLineWriter | None = None
        self._lease: Lease | None = None
        self._lease_over: float | None = None
        self._descendants: RankProcesses | None = None
        # From "cycle"
        self._cycle: messages.Cycle | None = None
        self._page: Page | None = None
        self._view: PageView | None = None
        self._stall_shown: tuple[int, float, float] | None = None
        # The rank
        self._is_watching = False
        self._has_armed = False  # once in this cycle
        self._awaited: messages.Await | None = None  # it has not been armed, and should be
        self._left_at: float | None = None  # as seen here; the page may know it better
        self._case: HangResponse | None = None
        self._run_delay: RunDelay | None = None  # since its first signal
        self._is_asked = False  # how many collectives it has been in
        self._step_source: StepSource | None = None
        self._looks = Looks(self._reports)

    # ------------------------------------------------------------ the loop

    def run(self) -> None:
        """Serve until the launcher is gone, or a signal ends this."""
        while not self._over:
            self._descriptors.wait(sleep_s(self._next_deadline(), clock.monotonic()))
            self._tick(clock.monotonic())

    def close(self) -> None:
        """Remove the files that no other process removes."""
        if self._socket_file is not None:
            self._socket_file.remove()
        if folder := self._config.private_dir:
            import shutil  # noqa: PLC0415 - slow to import, and needed once

            shutil.rmtree(folder, ignore_errors=True)  # its maker may have been killed

    def _next_deadline(self) -> float | None:
        return earliest(
            self._sessions.next_deadline(),
            self._looks.next_step_at,
            self._watch.next_deadline() if self._is_watching else None,
            self._lease_until(clock.monotonic()),
            self._descendants.next_look_at if self._descendants is not None else None,
            self._restarter.next_deadline() if self._restarter is not None else None,
        )

    def _tick(self, now: float) -> None:
        self._step_evidence(now)
        if self._is_watching:
            self._look(now)
        self._sessions.on_time(now)
        if self._restarter is not None:
            self._restarter.on_time(now)
        until = self._lease_until(now)
        if until is not None and now >= until:
            self._launcher_stopped(until, now)
        if self._descendants is not None and now >= self._descendants.next_look_at:
            self._descendants.look(now)

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
            waited_s = self._run_delay.since_s() if self._run_delay is not None else 0.0
            if not self._feed(monitor.PageRead(snapshot, limits, waited_s), now):
                break
        if view is not None and self._watch.is_by_steps(view.snapshot(), view.limits()):
            self._show_stall_timeout(view)

    def _show_stall_timeout(self, view: PageView) -> None:
        """To live views, where it has changed."""
        cycle, progress = self._cycle, self._watch.progress
        if cycle is None or cycle.page is None:
            return
        stall_s = progress.stall_s(view.limits().subsequent)
        shown = cycle.cycle, progress.sign_at or 0.0, stall_s
        if shown != self._stall_shown:
            self._stall_shown = shown
            path = stall_file.path_beside(cycle.page, self._config.local_rank)
            stall_file.write(path, *shown)

    def _snapshot(self, view: PageView) -> Snapshot | None:
        """The page's; of a rank that left without a bye, that it has left.

        A rank that has made progress since then has lost its connection, and nothing else.
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
            except Exception as error:  # noqa: BLE001 - K-2: no failure here saves a hung rank
                self._reports.log(
                    "error",
                    f"local rank {self._config.local_rank} is hung, and its monitor failed "
                    f"to {type(effect).__name__}: {error!r}; the verdict continues",
                )
        return again

    def _carry_out(self, effect: monitor.Effect, now: float) -> None:
        if isinstance(effect, monitor.TakeEvidence):
            self._open_case(effect.overdue, now, effect.until)
        elif isinstance(effect, monitor.LookAtState):
            self._look_at_state(now, asks=effect.asks)
        elif isinstance(effect, monitor.SendSignal):
            self._send(effect)
        elif (case := self._case) is None:
            return
        elif isinstance(effect, monitor.Conclude):
            case.conclude(now)
        elif isinstance(effect, monitor.ReportStuck):
            case.report_stuck()
        elif isinstance(effect, monitor.Abandon):
            case.abandon(effect.why, now)
            self._case = None

    def _look_at_state(self, now: float, *, asks: bool) -> None:
        session = self._sessions.session
        if session is None:
            return
        self._looks.stopped.look(session.process.pid, now)
        if asks and session.helper is not None and not self._is_asked:
            self._is_asked = True
            session.helper.send(CountCollectives())

    def _send(self, effect: monitor.SendSignal) -> None:
        """The signal first: nothing that is said about it may keep it from being sent."""
        session = self._sessions.session
        was_sent = session is not None and session.process.send(effect.signal)
        is_grace_next = effect.signal not in (SIGCONT, SIGKILL)
        self._run_delay = RunDelay(session.process.pid) if session and is_grace_next else None
        if self._case is not None:
            self._case.note_signal(effect, was_sent=was_sent)

    # ------------------------------------------------------------ a verdict

    def _open_case(self, overdue: RunningClock, now: float, until: float) -> None:
        session, view, cycle = self._sessions.session, self._view, self._cycle
        if session is None or view is None or cycle is None:
            return
        self._looks.pause_s = self._pause_s(now)
        judged = self._looks.verdict
        if judged is not None and not belongs_to(overdue.clock, judged.verdict):
            self._looks.forget()
        from holdfast.watch.monitor.hang_response import HangResponse  # noqa: PLC0415 - in memory by now

        self._case = HangResponse(
            overdue,
            session,
            view,
            self._config,
            cycle,
            self._watch,
            self._reports,
            self._looks,
            now,
            until,
        )
        self._step_evidence(now)

    def _pause_s(self, now: float) -> float:
        view, watch = self._view, self._watch
        is_by_steps = view is not None and watch.is_by_steps(view.snapshot(), view.limits())
        return watch.progress.pause_s(now) if is_by_steps else 0.0

    def _is_of_case(self, verdict: Verdict) -> bool:
        case = self._case
        return case is None or belongs_to(case.overdue.clock, verdict)

    def _step_evidence(self, now: float) -> None:
        """Go on with the evidence; the end of the rank waits for the launcher."""
        case, cycle = self._case, self._cycle
        try:
            if case is None:
                self._looks.step(now)
            else:
                case.step(now)
            if cycle is not None:
                overdue = case.overdue if case is not None else None
                self._looks.report(self._identity(), self._view, overdue, cycle, now)
        except Exception as error:  # noqa: BLE001 - K-2: missing evidence saves no rank
            self._looks.end(error)
        if case is not None and case.has_all_evidence:
            judged = self._looks.verdict
            self._feed(monitor.EvidenceTaken(judged is not None and judged.verdict.is_hang), now)

    def _identity(self) -> dict[str, Any]:
        session = self._sessions.session
        return {
            "node": self._config.node,
            "local_rank": self._config.local_rank,
            "pid": session.process.pid if session is not None else 0,
        }

    # ------------------------------------------------------------ from the launcher

    def catch_up(self) -> None:
        """Carry out the launcher's messages."""
        self._control.receive()
        while self._from_launcher:
            self._handle_messages()
        if self._control.gone is not None and not self._over:
            self._over = True
            self._end_all()

    def _handle_messages(self) -> None:
        frames, self._from_launcher = self._from_launcher, []
        received = []
        for frame in frames:
            try:
                received.append(decode(messages.TO_MONITOR, frame))
            except MessageError as error:  # another version was installed since the launcher began
                self._reports.log("error", f"the launcher sent a malformed message: {error}")
        cycles = [message for message in received if isinstance(message, messages.Cycle)]
        for message in received:
            match message:
                case messages.ConfigureMonitor():
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
                case messages.CollectEvidence():
                    self._look_now(message)
                case messages.Proceed(verdict=verdict):
                    now = clock.monotonic()
                    if not self._is_of_case(verdict):
                        # A timeout that was chosen has run out since: the next incident is its own.
                        self._looks.asked = None
                        continue
                    if not self._watch.is_late(verdict):
                        self._looks.go_on(message, now)
                    self._feed(verdict, now)

    def _configure(self, config: messages.ConfigureMonitor) -> None:
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
            from holdfast.base.own_file import OwnFile  # noqa: PLC0415 - where used

            self._socket_file = OwnFile(self._listener.getsockname())
            self._end_on_signals()
        if config.restarter:
            from holdfast.watch.pure.layered_restart import RestartLineWriter  # noqa: PLC0415 - where used

            every_s = float(cfg["restart_check_interval"])
            write = self._reports.log_restarter_event
            self._restarter = RestartLineWriter(write, every_s, clock.monotonic)
        if path := config.lease:
            from holdfast.page.lease import Lease  # noqa: PLC0415 - in jobs of several nodes only

            try:
                self._lease = Lease(path, writable=False)
            except OSError as error:
                self._reports.log("warning", f"{path} cannot be read: {error}")
        self._reports.send(messages.MonitorReady())
        if config.marker is not None:
            from holdfast.base.processes.orphans import RankProcesses  # noqa: PLC0415 - after Ready

            self._descendants = RankProcesses(config.marker, config.runtime_dir, config.local_rank)
        # Only a verdict needs these, so they come after Ready. A verdict itself must not import: a
        # hung file system may be the reason for it.
        import holdfast.evidence.collector  # noqa: PLC0415
        import holdfast.watch.monitor.hang_response  # noqa: F401, PLC0415

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
        self._sessions.dismiss_all(f"cycle {cycle.cycle} has begun")
        self._sessions.release("its cycle is over")
        if self._cycle is None:
            self._sessions.open()
        self._cycle, self._has_armed = cycle, False
        self._watch.stopping_at = None
        self._looks.forget()
        self._looks.stopped = StoppedTime()
        self._is_asked = False
        if self._descendants is not None:
            self._descendants.cycle_began(clock.monotonic())
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
            self._control.drain()  # the launcher removes it when it has begun the next cycle
            kinds = [messages.TO_MONITOR.get(frame.get("op", "")) for frame in self._from_launcher]
            if messages.Cycle not in kinds:
                local_rank = self._config.local_rank
                self._reports.log("error", f"cannot watch local rank {local_rank}: {error}")
        else:
            self._view = PageView(self._page.words, self._page.names)

    def _adopt(self, view: PageView) -> None:
        snapshot = view.snapshot()
        if snapshot is None:
            return
        session = RankSession.of_pid(view.global_rank, view.pid)
        if session is None:
            return
        if session.process.start_ticks != view.start_ticks:  # another process has its pid now
            session.process.close()
            return
        self._limits.limits = view.limits()
        self._sessions.take(session)
        self._reports.log("info", f"rank {session.rank} (pid {view.pid}) is watched again")
        if snapshot.left_at is None:
            self._arm()
        else:
            self._has_armed = self._is_watching = True
            self._left_at = snapshot.left_at

    def _await(self, message: messages.Await) -> None:
        """Watch a rank that may hang before its first call. It need not have said hello.

        The session is that of the process that the launcher has started. Where that is a shell, the
        rank is another process, which gets the session when it connects.
        """
        cycle = self._cycle
        if cycle is None or message.cycle != cycle.cycle or self._has_armed:
            return  # the message may have crossed with the rank's
        if self._sessions.session is None:
            session = RankSession.of_pid(message.rank, message.pid)
            if session is None:
                return
            self._sessions.take(session)
        self._is_watching, self._awaited = True, message

    def _look_now(self, message: messages.CollectEvidence) -> None:
        cycle = self._cycle
        if cycle is not None and cycle.cycle == message.cycle:
            session, now = self._sessions.session, clock.monotonic()
            self._looks.pause_s = self._pause_s(now)
            try:
                self._looks.ask(message, session, self._view, cycle.dump, now)
            except Exception as error:  # noqa: BLE001 - as in _step_evidence
                self._looks.end(error)

    def _launcher_stopped(self, until: float, now: float) -> None:
        """It would have ended its ranks itself: the others go on without this node now."""
        lease = self._lease
        assert lease is not None
        ended_at = lease.until
        if ended_at is None or ended_at > now:
            return  # it has just gone on
        self._lease_over = until
        slept_s = now - lease.moved_at
        if self._cycle is not None:  # before they end: their launcher asks for the reason then
            self._reports.send(messages.LeaseOver(self._cycle.cycle, slept_s))
        if self._end_all(lambda: lease.until == ended_at):
            self._reports.log(
                "error",
                f"this launcher was stopped, or got no processor, for {slept_s:.1f} s; the other "
                "nodes may continue without it, so its monitors have killed its ranks",
            )

    def _end_all(self, is_stopped: Callable[[], bool] = lambda: True) -> int:
        """End all that the launcher's ranks are, while it is stopped; how many that were."""
        if self._descendants is None:
            return 0  # this monitor may not end them
        if self._sessions.session is not None:
            self._sessions.session.process.send(SIGKILL)
        ended = self._descendants.end_all(is_stopped)
        for pid, why in ended.left.items():
            self._reports.log("warning", f"process {pid} is left alone: {why}")
        return ended.killed

    # ------------------------------------------------------------ from the rank: rank_sessions.Host

    def may_accept(self) -> bool:
        """Whether a rank is let in, after all that the launcher has sent."""
        self.catch_up()
        return not self._over

    def warns(self, line: str) -> None:
        """Log a line about a caller that does not belong here, or about missing descriptors."""
        local_rank = self._config.local_rank
        self._reports.log("warning", f"monitor of local rank {local_rank}: {line}")

    def rejects(self, pid: int, hello: Hello) -> str | None:
        """Refuse steps of a process that is not the rank."""
        if not hello.by_steps:
            return None
        from holdfast.watch.monitor.step_source import StepSource  # noqa: PLC0415 - where used

        self._step_source = self._step_source or StepSource(self._reports.log)
        return self._step_source.rejects(pid, hello)

    def accept(self, caller: Caller, session: RankSession, *, is_new: bool) -> None:
        """Send a rank its timeouts, and the paths that it writes to."""
        if is_new:
            self._is_asked = False
            self._give_own_page(session.process.pid)
        cycle, view = self._cycle, self._view
        if cycle is None:
            self._sessions.refuse(caller, "no cycle has begun")
            return
        # None: no space for a page, or it cannot be read. The rank runs unwatched.
        page = cycle.page if view is not None else None
        cfg, learned = self._limits.welcome(self._config.cfg)
        takes_helper = page is not None
        caller.send(Welcome(page, cfg, cycle.dump, cycle.cycle, learned, takes_helper))
        self._reports.send(messages.RankConnected(session.rank, session.process.pid))
        is_writer = view is not None and view.pid == session.process.pid
        is_unwatched = not self._is_watching or self._left_at is not None
        if caller.hello.resume and is_writer and is_unwatched:
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

    def answer(self, session: RankSession, message: Armed | Timeouts | LeaveMonitor) -> Ok:
        """Carry out a request of the rank."""
        match message:
            case Armed():
                self._arm()
            case Timeouts():
                return Ok(self._update_limits(message))
            case LeaveMonitor():
                self._warn_of_open_sections(session)
                if not self._watches_exit(session, "said bye"):
                    self.left(session, "said bye")
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
            self._reports.send(messages.WatchBegan(self._cycle.cycle, by_steps))
        if self._restarter is not None:
            self._restarter.handle_message()

    def _watches_exit(self, session: RankSession, why: str) -> bool:
        """The rank leaves; whether its process is watched on. It may hang on its way out.

        Not if it was not watched before, and not the process that started this monitor: a notebook
        or a test goes on. A verdict that is on its way is dropped, for the rank has disarmed.
        """
        if self._left_at is not None:
            return True
        if self._awaited is not None:
            return False
        has_end = session.process.pid != os.getppid() and self._view is not None
        if not has_end or not self._is_watching or self._watch.exit_s is None:
            return False
        now = clock.monotonic()
        self._drop(why, now)
        self._left_at = now
        self._say_bye(session)
        return True

    def _update_limits(self, asked: Timeouts) -> Timeouts | None:
        raised = self._limits.update(asked)
        new = self._limits.limits
        for line in (
            f"Updated heartbeat timeouts: initial {new.initial}, subsequent {new.subsequent}",
            f"Updated section timeouts: {new.sections}, out of section {new.out_of_section}",
        ):
            self._reports.log("debug", line)
        return raised

    def _warn_of_open_sections(self, session: RankSession) -> None:
        still_open = sorted(self._view.open_sections()) if self._view is not None else []
        # All ranks of a job leave alike: one warning is enough.
        if still_open and session.rank == 0:
            self._reports.log(
                "warning",
                f"rank {session.rank} (pid {session.process.pid}) stopped its monitoring while "
                f"sections {still_open} are open; call end_all_sections() before "
                "shutdown_workload_monitoring()",
            )

    def holds(self, session: RankSession) -> bool:
        """The rank has closed its connection; whether its session is kept.

        It is during a verdict, which the rank's death or disarming ends; where its end is watched,
        for destructors of collectives may hang; and where it has to be armed yet.
        """
        if self._case is not None or self._awaited is not None:
            return self._view is not None
        return self._watches_exit(session, "closed its connection")

    def can_be_replaced(self, session: RankSession) -> bool:
        """Whether its rank has left, or never came."""
        is_free = self._left_at is not None or self._awaited is not None
        return session.caller is None and is_free and self._case is None

    def left(self, session: RankSession, why: str) -> None:
        """Watch the rank no more."""
        self._looks.end()
        if not self._is_watching:
            return
        self._drop(why, clock.monotonic())
        self._is_watching = False
        if self._left_at is None and self._awaited is None:
            self._say_bye(session)
        self._left_at = self._awaited = None

    def _drop(self, why: str, now: float) -> None:
        """End the verdict on the rank, if there is one."""
        self._feed(monitor.RankGone(), now)
        self._run_delay = None
        if self._case is not None:
            self._case.close(why, now)
            self._case = None

    def _say_bye(self, session: RankSession) -> None:
        self._reports.send(messages.RankLeft(session.rank, session.process.pid))
        if self._restarter is not None:
            self._restarter.handle_disconnect()


def _close_inherited() -> None:
    """A monitor that outlives its launcher must not hold its pipes open."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > CONTROL_FD:
            os.closerange(fd, fd + 1)  # unlike close, silent about the one that listed the others


def main() -> None:
    """Be a rank monitor; descriptors 3 and 4 are given by node/processes/controlled_process.py."""
    ignore_signals()
    _close_inherited()
    raise_descriptor_limit()
    if os.access("/proc/self/comm", os.W_OK):  # for ps(1), to tell it from other interpreters
        with open("/proc/self/comm", "w", encoding="ascii") as name:
            name.write("holdfast-rmon")
    listener = socket.socket(fileno=LISTENER_FD)
    monitor_of_a_rank = Monitor(listener, socket.socket(fileno=CONTROL_FD))
    monitor_of_a_rank.run()
    monitor_of_a_rank.close()
