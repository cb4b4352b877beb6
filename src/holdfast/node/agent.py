"""The launcher of one node at work: carries out the effects of ``node/pure/launcher.py``.

One thread on one epoll waits for signals (SIGCHLD: a process has ended), monitors, requests of
ranks, and the machine's deadline. Output and event files have threads of their own, because
terminals and disks may be slow.
"""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.arena.pure.messages import OpenArena
from holdfast.arena.pure.snapshots import Holdings
from holdfast.base import clock, wait_for
from holdfast.base.processes import child, file_read
from holdfast.base.processes.descendants import Family
from holdfast.base.processes.job_name import new_job, node_id
from holdfast.base.processes.job_record import JobRecord
from holdfast.base.processes.proc import MARKER
from holdfast.base.processes.terminal import Terminal
from holdfast.base.pure.common_events import (
    Begin,
    ControlRequested,
    IterationRead,
    Note,
    SignalArrived,
    TimePassed,
)
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.never import assert_never
from holdfast.events.event_log import EventLog
from holdfast.events.pure import schema
from holdfast.fault_tolerance.data import WorkloadAction
from holdfast.inplace.pure.job_calls import (
    CallBegan,
    CallEnded,
    EndsHungRank,
    OfGuard,
    RestartedInPlace,
)
from holdfast.job.pure.exit_codes import Ending
from holdfast.job.pure.leader_messages import ReadIteration, StepDown, WitnessMoved
from holdfast.job.pure.member import MemberPhase
from holdfast.job.pure.member_messages import (
    CycleStopping,
    HoldingsRead,
    KeepStep,
    RanksFailed,
    SetCadence,
    StartRanks,
    StepKept,
    WaitAsSpare,
)
from holdfast.job.pure.membership import Decision, Join, Message
from holdfast.job.pure.succession_messages import Leads, ToShell
from holdfast.net.loop import Loop
from holdfast.node.console import LOGGER, STDERR, STDOUT, PumpHandler, log_note
from holdfast.node.control_endpoint import ControlEndpoint
from holdfast.node.job_part import iteration_file, make_launcher, open_lease, open_log
from holdfast.node.monitors import HangWatch, Monitors
from holdfast.node.part import Context, CycleStarted, RankKilled
from holdfast.node.processes.output import OutputPump
from holdfast.node.processes.ranks import Rank0Port, RankProcess, Ranks, RankSetup
from holdfast.node.processes.sweeper import Sweeper, end_orphans
from holdfast.node.processes.worker_env import unplaced
from holdfast.node.pure import launcher as machine
from holdfast.node.pure import node, rank_life
from holdfast.node.pure.cycle_events import CycleEnding, Waiting
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.node.records.incidents import IncidentFolders, IncidentRecords
from holdfast.node.records.progress_log import ProgressLog
from holdfast.node.records.run_dirs import RunFolders
from holdfast.node.reporter import JobReporter
from holdfast.options.plan import LaunchPlan
from holdfast.watch.pure import monitor_messages
from holdfast.watch.pure.rank_messages import Error, ExitsNow, Uncaught

if TYPE_CHECKING:
    from holdfast.node.arenas import Answer, Arenas
    from holdfast.node.control_endpoint import OfSnapshots
    from holdfast.node.health_process import HealthProcess
    from holdfast.node.kept_steps import KeptSteps
    from holdfast.node.observing import Observing
    from holdfast.node.part import Happening, MakePart, Part
    from holdfast.node.processes.controlled_process import ControlledProcess
    from holdfast.node.records.iteration_file import IterationReader
    from holdfast.node.snapshot_dir import SnapshotDir
    from holdfast.options.meeting_plan import MeetingPlan

_LAST_MESSAGES_S = 2.0
"""How long the end of a job waits for a monitor's last messages about a rank that it has just
ended; a busy host may have no CPU for it yet."""
_OUTPUT_DRAIN_S = 5.0
"""How long the launcher's exit waits for a console that does not take the last output."""
_AFTER_SIGNAL_S = 0.2
"""The same after a signal, which may have come before the output was passed on."""


class NodeAgent:
    """Runs the ranks of this node to their end. Use once, from the main thread."""

    def __init__(
        self,
        plan: LaunchPlan,
        environ: Mapping[str, str],
        job: str | None = None,
        health: ControlledProcess | None = None,
        *,
        owns_process: bool = False,
        loop: Loop | None = None,
        family: Callable[..., Family] = Family,
        parts: Iterable[MakePart] = (),
    ) -> None:
        """Make folders and files, start nothing; raises OSError where one cannot be made.

        ``job`` marks all processes of this launcher; None: a new name. ``health`` is a health
        process that was started for it. ``owns_process``: this process is the launcher, no program
        that runs one, and may reap all its children. ``parts`` make those that only some jobs have.
        """
        self._plan = plan
        # An inherited marker is of another job: only that job's launcher passes it on.
        self._environ = {name: value for name, value in environ.items() if name != MARKER}
        self._owns_process = owns_process
        self._make_family = family
        self._make_parts = tuple(parts)
        self._node_name = socket.gethostname()
        self._job = job or new_job()
        self._health = health
        self._folders = folders = RunFolders(plan.log_dir, plan.run_id, self._job)
        folders.keep_newest(plan.keep_runs, self._node_name)
        self.run_dir = folders.run_dir
        self._events = EventLog(self.run_dir / schema.LAUNCHER_FILE, self._node_name)
        self._progress = ProgressLog(self._events, folders.pages)
        self._port = Rank0Port(plan.master_port if plan.meeting is None else None)
        own = node_id(self._node_name, self._job)
        self._launcher = make_launcher(plan, own, self._port.number)
        self._log = open_log(plan, own, lambda: self._launcher.member.phase is MemberPhase.DONE)
        self._inbox: deque[machine.Event] = deque()
        self._is_at_work = False
        self._defect: Exception | None = None
        self._control: ControlEndpoint | None = None
        self._lease = open_lease(plan, folders.runtime_dir)
        self._pump = OutputPump()
        self._loop = Loop() if loop is None else loop
        self._monitors = Monitors(self._loop, self._on_monitor_message)
        lease = self._lease.path if self._lease else None
        self._watch = HangWatch(plan, self._job, self._node_name, folders, lease, self._monitors)
        self._iterations: IterationReader | None = None
        self._ranks: Ranks | None = None
        self._past: Ranks | None = None
        self._tie: list[str] = []
        self._reporter = JobReporter(
            plan,
            self._node_name,
            self.run_dir,
            self._launcher,
            self._pump,
            self._write_event,
            self._environ.get("TORCHELASTIC_ERROR_FILE"),
        )
        kept = IncidentFolders(self._node_name, str(self.run_dir), folders.staging)
        self._incidents = incidents = IncidentRecords(
            self._events, kept, self._reporter.incident_over
        )
        self._terminal = Terminal(0)
        self._care: HealthProcess | None = None
        self._observing: Observing | None = None
        self._arenas: Arenas | None = None
        """None: no rank has asked for memory for snapshots."""
        self._snapshot_dir: SnapshotDir | None = None
        self._kept_steps: KeptSteps | None = None
        """None: no step is kept at another node."""
        self._sweeper = Sweeper(self._loop, self._spared, self._living_ranks, self._on_swept)
        lines = self._reporter.restart_lines
        self._parts: list[Part] = [self._sweeper, lines, self._reporter, self._progress, incidents]
        self._exit: int | None = None
        self._is_signalled = False
        self._launcher_socket = f"{folders.runtime_dir}/_ft_launcher{os.getpid()}.socket"
        self._setup = RankSetup(
            plan,
            self._job,
            self.run_dir,
            self._environ,
            self._launcher_socket,
            self._watch.socket,
            self._pump,
            self._take,
        )

    def run(self) -> int:
        """Start the ranks, restart them when they fail, and return the launcher's exit code.

        Signals are taken from the first to the last moment: while nothing runs yet they wait for
        their turn, and clean-up is not interrupted.
        """
        descriptor = STDOUT if self._plan.log_to_stdout else STDERR
        handler = PumpHandler(
            self._pump, descriptor, self._node_name, self._plan.log_format, lambda: self._cycle
        )
        self._pump.log_as(handler.warning)
        with self._loop as loop:
            loop.on_signals([signal.SIGCHLD], lambda _: self._reap())
            loop.on_signals(self._plan.signals_to_handle, self._on_signal)
            LOGGER.addHandler(handler)
            LOGGER.setLevel(self._plan.log_level)
            LOGGER.propagate = False
            try:
                self._prepare()
                self._serve(loop)
            finally:
                self._clean_up()
                LOGGER.removeHandler(handler)
                self._pump.close(_OUTPUT_DRAIN_S, self._has_output_ended)
            # As a plain program does: its beginning may be read now, and its end later.
            is_awaited = not self._is_signalled and self._pump.waits_for_reader
            if is_awaited and self._has_output_ended(self._pump.ended):
                self._pump.release()
        return self._exit_code()

    def _has_output_ended(self, descriptor: int, within_s: float = math.inf) -> bool:
        """Wait until all output is passed on. A signal ends that: a console's reader may pause."""
        signums = self._plan.signals_to_handle
        if self._loop.signalled_before(descriptor, signums, within_s):
            self._is_signalled = True
            return wait_for.readable(descriptor, _AFTER_SIGNAL_S)
        return wait_for.readable(descriptor, 0.0)

    def outcome(self) -> dict[str, object]:
        """How the job ended here, with the ranks of the last cycle; after :meth:`run`."""
        return self._reporter.outcome(self._ranks, self._exit_code())

    def _exit_code(self) -> int:
        if self._exit is not None:
            return self._exit
        finished = self._launcher.finished
        return Ending.CANNOT_START.code() if finished is None else finished.exit_code

    def _prepare(self) -> None:
        plan = self._plan
        if plan.care:
            from holdfast.node.health_process import HealthProcess  # noqa: PLC0415 - where used

            self._care = HealthProcess(
                plan.care,
                loop=self._loop,
                job=self._job,
                started=self._health,
                on_checked=lambda problem: self._feed(node.HostChecked(problem)),
                on_unhealthy=lambda it: self._feed(node.HostBroke(str(it), it.device)),
                write_down=self._write_event,
            )
            self._parts.append(self._care)
        self._reporter.job_begins(self._job, has_terminal=self._terminal.exists)
        end_orphans()
        started = self._care.pids() if self._care else ()
        record = JobRecord(self._folders.runtime_dir, self._job)
        self._sweeper.family = self._make_family(
            record, owns_process=self._owns_process, started=started
        )
        self._tie = child.death_tie()
        context = Context(
            self._loop, self._tie, self._job, self._folders.runtime_dir, self._rank_template
        )
        self._parts += [make(context) for make in self._make_parts]
        if plan.snapshot_dir is not None:
            from holdfast.node.snapshot_dir import SnapshotDir  # noqa: PLC0415 - where used

            limits = plan.snapshot_dir_timeout_s, plan.snapshot_progress
            self._snapshot_dir = SnapshotDir(plan.snapshot_dir, *limits, self._write_event)
            self._snapshot_dir.look()
            self._report_holdings()
        if plan.snapshot_keep_s and plan.meeting is not None:
            self._begin_keeping(plan.meeting)

    def _serve(self, loop: Loop) -> None:
        """Run until the job is over here; then, or after an error, end all its processes."""
        self._control = ControlEndpoint(
            self._launcher_socket,
            loop,
            self._on_request,
            self._on_guard_message,
            self._on_exception,
            self._on_snapshots,
        )
        self._parts.append(self._control)
        try:
            self._feed(Begin())
            self._reap()  # processes that ended before SIGCHLD was handled
            self._begin_observing()
            self._write_facts()
            self._log.begin(loop, self._work)
            if self._plan.meeting:
                self._notify(Waiting())
            loop.run(self._next_deadline, self._on_time)
            if self._defect is not None:
                raise self._defect
        finally:
            self._log.close()
            self._control.close()
            self._sweeper.keep_helpers()
            lives = self._launcher.node.lives.ranks.items()
            explained = [k for k, life in lives if life.is_written_about]
            self._monitors.drain_until_closed(explained, _LAST_MESSAGES_S)
            self._monitors.close()
            for part in reversed(self._parts):
                part.end()
            self._sweeper.end_everything(self._observing.pids() if self._observing else ())
            self._end_snapshots()

    def _end_snapshots(self) -> None:
        """The ranks are gone: what outlives the job is written, and the memory given back."""
        finished, arenas = self._launcher.finished, self._arenas
        if self._snapshot_dir is not None:
            if finished is not None and finished.ended is machine.LauncherEnd.SUCCEEDED:
                self._snapshot_dir.succeeded()
            else:
                is_signalled = bool(finished and finished.signal)
                sources, refused = (
                    ((), ()) if arenas is None else (arenas.sources(), arenas.refused())
                )
                is_over = self._launcher.is_job_over
                self._snapshot_dir.failed(
                    sources, refused, is_signalled=is_signalled, is_over=is_over
                )
        if arenas is not None:
            arenas.close()

    def _begin_observing(self) -> None:
        """After the ranks, which have more to do."""
        plan = self._plan
        if plan.observing is not None:
            from holdfast.events.observer_messages import Orders  # noqa: PLC0415 - where used
            from holdfast.node.observing import Observing  # noqa: PLC0415 - where used

            orders = Orders(
                plan.observing,
                str(self.run_dir),
                self._folders.runtime_dir,
                plan.nproc_per_node,
                self._node_name,
                plan.run_id,
                tuple(sys.path),
            )
            self._observing = Observing(orders, self._loop, self._job)
            self._parts.append(self._observing)

    def _write_facts(self) -> None:
        """After the ranks, too; all of it in the thread that writes."""
        environ, path = self._environ, [*sys.path]

        def make() -> schema.Body:
            from holdfast.node.records.launch_facts import launch_facts  # noqa: PLC0415 - see above

            return launch_facts(sys.argv, environ, path)

        self._events.write_late(schema.LaunchFacts, make, 0)

    def _next_deadline(self) -> float | None:
        parts = (part.next_deadline() for part in self._parts)
        return earliest(self._launcher.next_deadline(), self._log.next_deadline(), *parts)

    def _on_time(self) -> None:
        self._log.on_time()
        self._work()  # a node whose message has arrived meanwhile is not silent
        self._feed(TimePassed())
        for part in self._parts:
            part.on_time()

    def _notify(self, happening: Happening) -> None:
        for part in self._parts:
            part.on_event(happening)

    def _take(
        self,
        local_rank: int,
        command: Sequence[str],
        env: Mapping[str, str],
        streams: Sequence[int],
    ) -> int | None:
        taken = (part.take(local_rank, command, env, streams) for part in self._parts)
        return next((pid for pid in taken if pid is not None), None)

    # ------------------------------------------------------------ events in
    def _on_signal(self, signum: int) -> None:
        self._is_signalled = True
        self._write_event(schema.SignalReceived(signum))
        arrived = SignalArrived(signum)
        self._feed(arrived)
        self._notify(arrived)

    def _feed(self, event: machine.Event) -> None:
        self._inbox.append(event)
        self._work()

    def _work(self) -> None:
        """Handle all waiting events; those that effects cause come after all effects of one event.

        An effect that cannot be carried out ends the launcher, and not the loop's callback.
        """
        if self._is_at_work or self._defect is not None:
            return
        self._is_at_work = True
        try:
            while (event := self._next_event()) is not None:
                now = clock.monotonic()
                effects = self._launcher.handle(event, now)
                if self._lease:  # before there are ranks
                    self._lease.extend(self._launcher.member.ranks_may_live_until, now)
                for effect in effects:
                    self._do(effect)
        except Exception as error:  # noqa: BLE001 - raised by _serve
            self._defect = error
            self._loop.stop()
        finally:
            self._is_at_work = False

    def _next_event(self) -> machine.Event | None:
        """The log's events come first: an effect may have just put them there."""
        event = self._log.take()
        return self._inbox.popleft() if event is None and self._inbox else event

    def _reap(self) -> None:
        for reaped in self._sweeper.reap():
            if self._ranks and (rank := self._ranks.with_pid(reaped.pid)):
                code = reaped.exit_code
                if code == -signal.SIGKILL:
                    self._notify(RankKilled(rank))
                rank.ended(reaped)
                local_rank = rank.place.local_rank
                if local_rank == self._plan.stdin_rank:
                    self._terminal.restore()
                signum = -code if code < 0 else None
                self._write_event(schema.RankExited(**rank.ids, exit_code=code, signal=signum))
                self._monitors.drain(local_rank)  # why, if it was its monitor's signal
                if self._control:  # or that of the guard of restarts in place
                    self._control.drain()
                self._feed(rank_life.Exited(local_rank, code))
            elif file_read.forget(reaped.pid) or any(part.died(reaped) for part in self._parts):
                pass
            elif (watched := self._monitors.died(reaped.pid)) is not None:
                self._write_event(schema.MonitorExited(watched, reaped.exit_code))
                self._feed(rank_life.MonitorGone(watched))
        self._sweeper.go_on()

    def _on_request(self, rank: int, action: WorkloadAction, description: str) -> None:
        self._write_event(schema.ControlRequest(rank, action.name, description))
        self._feed(ControlRequested(rank, action.name, description))

    def _on_guard_message(self, message: OfGuard) -> None:
        match message:
            case CallBegan() | CallEnded():
                self._feed(message)
            case RestartedInPlace():
                self._reporter.restarted_in_place(message)
            case EndsHungRank():
                if self._ranks:
                    self._ranks.note_hung_in_place(message)
            case _:
                assert_never(message)

    def _on_exception(self, pid: int, message: Uncaught | ExitsNow | None) -> bool:
        """A process reports the exception that ends it; whether it is a rank of this launcher."""
        if self._ranks is None or self._plan.ft.exception_grace_in_force is None:
            return False
        if (rank := self._ranks.note_exception(pid, message)) is None:
            return False
        if isinstance(message, ExitsNow) and rank.life.raised_at is not None:
            self._write_event(schema.RankRaised(**rank.ids, exit_code=1))
        self._feed(rank_life.RankSaid(rank.place.local_rank, message))
        return True

    def _on_snapshots(self, request: OfSnapshots, reply: Callable[[Answer], None]) -> None:
        """A rank asks for memory for its snapshots, or reports about them."""
        if self._ranks is None:
            reply((Error("no ranks run under this launcher"), ()))
            return
        if self._arenas is None:
            self._arenas = self._make_arenas()
            self._arenas.begin(self._ranks.formed, self._ranks.place)
        if self._kept_steps is not None and isinstance(request, OpenArena):
            self._kept_steps.answer(request, reply)
        else:
            reply(self._arenas.answer(request))

    def _make_arenas(self) -> Arenas:
        from holdfast.node.arenas import Arenas  # noqa: PLC0415 - where used

        plan, folder = self._plan, self._snapshot_dir
        arenas = Arenas(
            plan.nproc_per_node,
            plan.snapshot_memory,
            self._feed,
            self._write_event,
            self._folders.runtime_dir,
            plan.snapshot_progress,
            *(() if folder is None else (folder.file_of, folder.path_of)),
            keeps=plan.snapshot_keep_s > 0.0 and plan.meeting is not None,
        )
        self._parts.append(arenas)
        return arenas

    def _begin_keeping(self, meeting: MeetingPlan) -> None:
        """Have this node take the snapshots of another one, and send its own."""
        from holdfast.arena.pure.peer_messages import ConfigureCopies  # noqa: PLC0415 - where used
        from holdfast.node.kept_steps import KeptSteps  # noqa: PLC0415 - where used
        from holdfast.node.peer_copies import PeerCopies  # noqa: PLC0415 - where used

        config = ConfigureCopies(ascii(meeting.place.run_id), meeting.place.secret)
        self._arenas = self._make_arenas()
        try:
            self._kept_steps = kept_steps = KeptSteps(
                self._arenas,
                lambda on_outcome: PeerCopies(config, self._loop, self._job, on_outcome),
                self._feed,
                self._report_holdings,
                self._write_event,
            )
        except OSError as error:
            LOGGER.warning("no step is kept at another node: %s", error)
            return
        self._parts.append(kept_steps)
        member = self._launcher.member
        member.desc = dataclasses.replace(member.desc, keeps=kept_steps.port)

    def _on_monitor_message(self, local_rank: int, message: monitor_messages.ToLauncher) -> None:
        if isinstance(message, monitor_messages.MonitorLog):
            log_note(message)
        message = self._incidents.with_exception(local_rank, message)
        monitor_said = rank_life.MonitorSaid(local_rank, message)
        self._notify(monitor_said)
        self._feed(monitor_said)

    def _write_event(self, body: schema.Body, cycle: int | None = None) -> None:
        self._events.write(body, max(0, self._cycle) if cycle is None else cycle)

    # ------------------------------------------------------------ effects out
    def _do(self, effect: machine.Effect) -> None:
        if isinstance(effect, Message):
            self._log.send(effect)
            if isinstance(effect, Join) and self._plan.meeting is not None:
                self._write_event(schema.Joining())
            return
        if isinstance(effect, Decision):
            self._log.publish(effect)
            return
        if isinstance(effect, ToShell | machine.SendOn | StepDown):
            self._log.move(effect)
            if isinstance(effect, Leads):
                about = effect.round.leader, len(effect.offers), effect.text
                self._write_event(schema.LeaderMoved(effect.term, *about))
            return
        match effect:
            case StartRanks():
                self._start_ranks(effect)
            case node.SignalRanks(local_ranks, signum):
                self._signal(local_ranks, signum)
            case node.MeasureWaits(local_ranks):
                waits = (self._rank(local_rank).waited_s() for local_rank in local_ranks)
                self._feed(node.RanksWaited(max(waits, default=0.0)))
            case rank_life.Deliver(cycle, is_over):
                self._folders.staging.deliver(cycle, over=is_over)
            case node.Sweep():
                self._begin_sweep()
            case ReadIteration(first):
                self._read_iteration(first=first)
            case rank_life.StartMonitor(local_rank):
                self._watch.start(local_rank)
            case rank_life.EndHandlers(local_rank, after_s):
                rank = self._rank(local_rank)
                self._write_event(schema.RankRaised(**rank.ids, exit_code=1))
                LOGGER.warning(
                    "rank %d: its exit handlers have not ended %g s after its exception "
                    "(--ft-exception-grace): killing it",
                    rank.place.rank,
                    after_s,
                )
                rank.signal(signal.SIGKILL, group=True)
            case rank_life.ToMonitors(messages):
                for local_rank, message_to in messages.items():
                    self._monitors.send(local_rank, message_to)
            case IncidentOver():
                self._notify(effect)
            case RanksFailed():
                self._on_failure(effect)
            case CycleStopping():
                self._reporter.stopping(effect)
            case WitnessMoved(name, ""):
                self._write_event(schema.WitnessJoined(name))
            case WitnessMoved(name, why_gone):
                self._write_event(schema.WitnessLeft(name, why_gone))
            case WaitAsSpare(cycle):
                self._reporter.standing_by(cycle)
            case KeepStep():
                if self._kept_steps is not None:
                    self._kept_steps.keep(effect)
            case StepKept():
                if self._kept_steps is not None:
                    self._kept_steps.step_kept(effect)
            case SetCadence():
                if self._arenas is not None:
                    self._arenas.set_cadence(effect)
            case node.Explain(cycle, will_restart):
                past = self._past
                ranks = past if past is not None and past.cycle == cycle else self._ranks
                assert ranks is not None
                self._reporter.explain(cycle, ranks, will_restart=will_restart)
            case node.CheckHost(after_ranks):
                assert self._care is not None
                self._care.check(after_ranks=after_ranks)
            case node.EndRank(local_rank, problem):
                rank = self._rank(local_rank)
                LOGGER.error("ending rank %d: %s", rank.place.rank, problem)
                rank.signal(signal.SIGKILL, group=True)
            case Note():
                log_note(effect)
            case machine.LeaveProcess():
                self._progress.last_look()
                self._reporter.finish(effect, self._ranks, self._progress.two_lines)
            case machine.QuitProcess(exit_code):
                self._exit = exit_code
                self._loop.stop()
            case _:
                assert_never(effect)

    def _signal(self, local_ranks: tuple[int, ...], signum: int) -> None:
        group = self._plan.signal_groups or signum == signal.SIGKILL
        self._sweeper.remember()
        at = clock.monotonic()
        sent = [k for k in local_ranks if self._rank(k).signal(signum, group=group)]
        self._feed(rank_life.Sent(tuple(sent), signum, at))

    @property
    def _cycle(self) -> int:
        """The one that this node has, or had, ranks in; -1: none yet."""
        return self._launcher.node.cycle

    def _read_iteration(self, *, first: bool) -> None:
        path = iteration_file(self._plan)
        assert path is not None
        if self._iterations is None:
            from holdfast.node.records.iteration_file import (  # noqa: PLC0415 - seldom used
                IterationReader,
            )

            self._iterations = IterationReader(
                path, self._loop, lambda found: self._feed(IterationRead(found))
            )
        self._iterations.ask(quiet=first)

    def _start_ranks(self, start: StartRanks) -> None:
        self._sweeper.stop()
        plan = self._plan
        if self._ranks:
            self._ranks.close()
            self._past = self._ranks
        port = None if start.place.rank_offset > 0 else self._port.hand_over()
        lives = self._launcher.node.lives.ranks
        staged = Path(self._folders.staging.folder(start.round.cycle))
        interface = self._log.gloo_interface()
        self._ranks = ranks = Ranks(self._setup, start, interface, staged, port, lives)
        if self._snapshot_dir is not None:
            self._snapshot_dir.begin(ranks.formed, ranks.place)
        if self._arenas is not None:
            self._arenas.begin(ranks.formed, ranks.place)
        if self._kept_steps is not None:
            self._kept_steps.begin(ranks.formed, ranks.place)
        joined = schema.CycleJoined(start.round.master_port, start.place.group_rank)
        self._write_event(joined)
        has_rank_0 = ranks.place.rank_offset == 0
        self._reporter.restart_lines.cycle_begins(ranks.cycle, has_rank_0=has_rank_0)
        self._watch.begin(ranks, self._past.cycle if self._past else None)
        for local_rank in ranks.ranks:
            rank = ranks.start(local_rank, self._tie)
            self._write_event(schema.RankStarted(**rank.ids, is_warm=rank.is_warm))
        if plan.monitors_enabled:
            for local_rank in self._monitors.missing():  # after the ranks, which have more to do
                self._watch.start(local_rank)
        pids = {local_rank: rank.pid for local_rank, rank in ranks.ranks.items()}
        self._launcher.node.ranks_started(pids)
        assert self._sweeper.family is not None
        self._sweeper.family.ranks_started([*pids.values()])
        ranks.let_rank_0_go_first()
        self._notify(CycleStarted(ranks))
        self._reporter.cycle_started(ranks)

    def _rank_template(self, local_rank: int) -> tuple[list[str], dict[str, str], int | None]:
        """Command, environment and pid of a rank, without what differs from cycle to cycle."""
        plan, rank = self._plan, self._ranks.ranks[local_rank] if self._ranks else None
        env = self._setup.env(rank.place if rank else unplaced(local_rank, plan.nproc_per_node))
        is_alive = rank is not None and rank.pid and rank.exit_code is None
        return plan.command_for(local_rank), env, rank.pid if rank and is_alive else None

    def _rank(self, local_rank: int) -> RankProcess:
        assert self._ranks is not None
        return self._ranks.ranks[local_rank]

    def _on_failure(self, failed: RanksFailed) -> None:
        if failed.every or not self._launcher.node.survives_ranks:
            self._notify(CycleEnding())
        assert self._ranks is not None
        end = self._ranks.end(failed.local_rank)
        failure = self._reporter.ranks_failed(failed, end)
        self._feed(RanksFailed(**{**vars(failed), "failure": failure}))

    # ------------------------------------------------------------ nothing left behind
    def _spared(self) -> frozenset[int]:
        """Processes of the launcher that outlive a cycle."""
        helpers = (part.pids() for part in self._parts)
        return self._monitors.pids().union(file_read.readers(), *helpers)

    def _living_ranks(self) -> frozenset[int]:
        ranks = self._ranks.ranks.values() if self._ranks else ()
        return frozenset(rank.pid for rank in ranks if rank.pid and rank.exit_code is None)

    def _begin_sweep(self) -> None:
        self._notify(CycleEnding())
        if self._port.reserve():
            self._feed(machine.PortReserved(self._port.number))
        asks = self._plan.meeting is not None or self._plan.max_same_failures
        if asks and self._launcher.node.has_failed and self._ranks:
            cause = self._reporter.cause_found(self._ranks)
            if cause is not None:
                self._feed(cause)
        self._sweeper.begin(logs_leftovers=self._plan.ft.check_remaining_processes)

    def _on_swept(self) -> None:
        self._write_event(schema.CycleStopped())
        if self._kept_steps is not None:
            self._kept_steps.end_ranks()
        self._report_holdings()
        self._feed(node.Swept())

    def _report_holdings(self) -> None:
        """The snapshots of this node, for the leader: it has no ranks now."""
        held = None if self._arenas is None else self._arenas.holdings()
        if (folder := self._snapshot_dir) is not None:
            held = Holdings() if held is None else held
            folder.note_steps(held)
            held = held.but(files=folder.files())
        if held is not None and self._kept_steps is not None:
            held = self._kept_steps.holdings(held)
        if held is not None:
            self._feed(HoldingsRead(self._cycle, held))

    def _clean_up(self) -> None:
        self._terminal.restore()
        if self._ranks:
            self._ranks.close()
        self._port.release()
        last = {self._ranks.cycle} if self._ranks else set()
        undelivered = self._launcher.node.lives.undelivered()
        self._folders.close({*undelivered, *last})  # their monitors are gone
        self._events.close()
        if self._observing:
            self._observing.close()
        if self._reporter.is_uneventful():
            self._folders.remove_run()
