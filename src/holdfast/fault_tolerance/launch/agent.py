"""The launcher of one node at work: feeds ``core/launch/launcher.py`` and does what it says.

One thread on one epoll waits for signals (SIGCHLD: a process has ended), for monitors, for requests
of ranks, and for the machine's deadline. Output and event files have threads of their own, because
terminals and disks may be slow. Decides nothing.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.core.common_events import (
    Begin,
    ControlRequested,
    IterationRead,
    Note,
    SignalArrived,
    TimePassed,
)
from holdfast.core.failure import Hang, explain, first_cause
from holdfast.core.job.leader import (
    Publish,
    ReadIteration,
)
from holdfast.core.job.member import CycleStopping, How, Phase, RanksFailed, Send, Standby
from holdfast.core.launch import launcher as machine
from holdfast.core.launch import node, rank_life
from holdfast.core.launch.exit_codes import Ending
from holdfast.core.monitor import monitor_messages as said
from holdfast.core.never import assert_never
from holdfast.core.numbering import Cycle, LocalRank
from holdfast.core.wording import count
from holdfast.fault_tolerance.data import WorkloadAction
from holdfast.fault_tolerance.launch import report
from holdfast.fault_tolerance.launch.console import LOGGER, PumpHandler
from holdfast.fault_tolerance.launch.control_endpoint import ControlEndpoint
from holdfast.fault_tolerance.launch.job_part import iteration_file, make_launcher, open_log
from holdfast.fault_tolerance.launch.monitors import Monitors, socket_path
from holdfast.fault_tolerance.launch.pages import Pages
from holdfast.fault_tolerance.launch.plan import LaunchPlan
from holdfast.fault_tolerance.launch.ranks import NodePlace, Rank, Ranks, rank_env, write_error_file
from holdfast.fault_tolerance.launch.restart_lines import RestartLines
from holdfast.fault_tolerance.launch.worker_env import unplaced
from holdfast.host import child, clock, leftovers, memory_read, run_dirs
from holdfast.host.bounded import call_within
from holdfast.host.family import Family
from holdfast.host.job_name import new_job
from holdfast.host.job_record import JobRecord
from holdfast.host.loop import Loop
from holdfast.host.output import OutputPump
from holdfast.host.port import ReservedPort
from holdfast.host.proc import MARKER
from holdfast.host.staging import Staging, reserve
from holdfast.host.terminal import Terminal
from holdfast.observe.event_log import LAUNCHER_FILE, EventLog

if TYPE_CHECKING:
    from holdfast.core.health import Finding
    from holdfast.core.ownership import Identity
    from holdfast.fault_tolerance.launch.host_care import HostCare
    from holdfast.fault_tolerance.launch.standbys import Standbys
    from holdfast.host.controlled_process import ControlledProcess
    from holdfast.host.iteration_file import IterationReader
    from holdfast.host.lease import Lease

_STDOUT, _STDERR = 1, 2
_LAST_SWEEP_S = 2.0
"""How long the launcher's exit waits for processes that do not die of SIGKILL."""
_REMOVAL_S = 5.0
"""How long the folder of a run in which nothing happened may take to be removed."""
_LAST_DELIVERY_S = 5.0
"""How long the launcher's exit waits for a slow disk to take the last evidence."""
_OUTPUT_DRAIN_S = 5.0
"""How long the launcher's exit waits for a console that does not take the last output."""


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
    ) -> None:
        """Make folders and files, start nothing.

        Args:
            plan: What to do.
            environ: The launcher's environment.
            job: Name of this launcher's life; None: a new one.
            health: A health process that was started for it; None: it starts its own.
            owns_process: This process is the launcher, no program that runs one: all its children
                are ours to reap.

        Raises:
            OSError: A folder or file cannot be made.
        """
        self._plan = plan
        # A marker that we inherited is of another job, and its launcher's alone to pass on.
        self._environ = {name: value for name, value in environ.items() if name != MARKER}
        self._owns_process = owns_process
        self._node_name = socket.gethostname()
        self._job = job or new_job()
        self._health = health
        self.run_dir = Path(run_dirs.make_run_dir(plan.log_dir, plan.run_id))
        self._runtime_dir = run_dirs.make_runtime_dir(self._job)
        self._staged = os.path.join(self._runtime_dir, "evidence")  # noqa: PTH118
        self._staging = Staging(
            self._staged, str(self.run_dir), lambda text: LOGGER.error("%s", text)
        )
        self._pages = Pages(
            self._runtime_dir,
            lambda: run_dirs.make_spare_dir(self._job),
            lambda text: LOGGER.error("%s", text),
        )
        self._events = EventLog(self.run_dir / LAUNCHER_FILE, self._node_name)
        self._port = ReservedPort() if self._fixed_port is None else None
        self._launcher = make_launcher(
            plan,
            f"{self._node_name}-{self._job}",
            self._port.number if self._port else self._fixed_port or 0,
        )
        self._log = open_log(plan, lambda: self._launcher.member.phase is Phase.DONE)
        self._inbox: deque[machine.Event] = deque()
        self._is_at_work = False
        self._defect: Exception | None = None
        self._failed_here: dict[int, int] = {}
        """The local rank that failed first, by cycle; of cycles that were stopped for it."""
        self._control: ControlEndpoint | None = None
        self._lease = self._open_lease()
        self._pump = OutputPump()
        self._loop = Loop()
        self._monitors = Monitors(self._loop, self._on_monitor_message)
        self._iterations: IterationReader | None = None
        self._ranks: Ranks | None = None
        self._past: dict[int, Ranks] = {}
        self._tie: list[str] = []
        self._restart_lines = RestartLines(
            lambda line: self._pump.write(_STDOUT, line.encode(errors="replace"))
        )
        self._terminal = Terminal(0) if plan.stdin_rank is not None else None
        self._standbys: Standbys | None = None
        self._care: HostCare | None = None
        self._family: Family | None = None
        self._helpers: set[int] = set()
        self._trackers = leftovers.Trackers(self._watch_sweep)
        self._sweeping = False
        self._sweep_again_at: float | None = None
        self._exit: int | None = None
        self._launcher_socket = os.path.join(  # noqa: PTH118
            self._runtime_dir, f"_ft_launcher{os.getpid()}.socket"
        )

    def run(self) -> int:
        """Start the ranks, restart them when they fail, and return the launcher's exit code.

        Signals are taken from the first to the last moment: while nothing runs yet they wait for
        their turn, and clean-up is not interrupted.
        """
        descriptor = _STDOUT if self._plan.log_to_stdout else _STDERR
        handler = PumpHandler(self._pump, descriptor, self._node_name)
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
                self._pump.close(_OUTPUT_DRAIN_S)
        return self._exit_code()

    def outcome(self) -> dict[str, object]:
        """How the job ended here, with the ranks of the last cycle; after :meth:`run`."""
        ranks = [] if self._ranks is None else list(self._ranks.ranks.values())
        ends = [(rank.end(), str(rank.folder / rank.error_file.name)) for rank in ranks]
        return {
            "exit_code": self._exit_code(),
            "end": self._launcher.finished.ended.name if self._launcher.finished else None,
            "cycle": self._ranks.cycle if self._ranks else None,
            "ranks": [
                {
                    "rank": end.rank,
                    "local_rank": end.local_rank,
                    "pid": end.pid,
                    "exit_code": end.exit_code,
                    "failed": not end.asked and (end.exit_code != 0 or end.is_condemned),
                    "why": explain(end),
                    "error_file": error_file,
                }
                for end, error_file in ends
            ],
        }

    def _exit_code(self) -> int:
        if self._exit is not None:
            return self._exit
        finished = self._launcher.finished
        return Ending.CANNOT_START.code() if finished is None else finished.exit_code

    def _prepare(self) -> None:
        plan = self._plan
        if plan.care:
            from holdfast.fault_tolerance.launch.host_care import HostCare  # noqa: PLC0415 - where used

            self._care = HostCare(
                plan.care,
                loop=self._loop,
                job=self._job,
                started=self._health,
                on_checked=self._on_host_checked,
                on_sick=self._on_host_sick,
                write_down=self._event,
            )
        for warning in plan.warnings:
            LOGGER.warning("%s", warning)
        for note in plan.notes:
            LOGGER.info("%s", note)
        if self._terminal and self._terminal.exists:
            LOGGER.info(
                "local rank %d reads this terminal%s",
                plan.stdin_rank,
                "; where it waits for input for longer than its timeouts it counts as hung, "
                "unless NVRX_DISABLE_RANK_MONITORS=1 is set"
                if plan.monitors_enabled
                else "",
            )
        self._end_orphans()
        started = self._care.pids() if self._care else ()
        self._record = JobRecord(self._runtime_dir, self._job)
        self._family = Family(self._record, owns_process=self._owns_process, started=started)
        self._tie = child.death_tie()
        if plan.why_cold:
            LOGGER.info("no warm standby: %s", plan.why_cold)
        if plan.warm:
            from holdfast.fault_tolerance.launch.standbys import Standbys  # noqa: PLC0415 - where used

            self._standbys = Standbys(
                plan.warm,
                plan.nproc_per_node,
                self._loop,
                self._tie,
                self._job,
                self._runtime_dir,
                self._what_a_rank_is,
            )
        self._event("launcher_started", pid=os.getpid(), run_id=plan.run_id, name=plan.name)

    def _end_orphans(self) -> None:
        ended, left = run_dirs.end_orphaned_processes()
        if ended:
            LOGGER.warning(
                "killed %s that a killed launcher had left on this node",
                count(ended, "process", "es"),
            )
        for pid, why in left.items():
            LOGGER.warning("process %d is left alone: %s", pid, why)
        run_dirs.remove_orphaned_runtime_dirs()

    def _serve(self, loop: Loop) -> None:
        """Until there is nothing more to do; whatever happens, nothing of it is left running."""
        warm = self._plan.warm
        self._control = ControlEndpoint(self._launcher_socket, loop, self._on_request)
        try:
            self._feed(Begin())
            self._reap()  # who ended before anybody listened for that
            self._log.begin(loop, self._work)
            if self._plan.meeting and self._standbys and warm and warm.at_start:
                self._standbys.waiting()
            loop.run(self._next_deadline, self._on_time)
            if self._defect is not None:
                raise self._defect
        finally:
            self._log.close()
            self._control.close()
            self._helpers |= self._own_pids()
            self._trackers.close()
            self._monitors.close()
            if self._standbys:
                self._standbys.close()
            if self._care:
                self._care.close()
            self._end_everything()

    def _next_deadline(self) -> float | None:
        parked = self._standbys.next_deadline() if self._standbys else None
        care = self._care.next_deadline() if self._care else None
        own = self._launcher.next_deadline()
        again = self._sweep_again_at if self._sweeping else None
        return min((at for at in (own, again, parked, care) if at is not None), default=None)

    def _on_time(self) -> None:
        self._work()  # who spoke meanwhile is not silent
        self._feed(TimePassed())
        again = self._sweep_again_at
        if self._sweeping and again is not None and clock.monotonic() >= again:
            self._sweep()
        if self._standbys:
            self._standbys.on_time()
        if self._care:
            self._care.on_time()

    def _on_signal(self, signum: int) -> None:
        self._feed(SignalArrived(signum))
        if self._standbys:
            self._standbys.job_ending()

    # ------------------------------------------------------------ events in
    def _feed(self, event: machine.Event) -> None:
        self._inbox.append(event)
        self._work()

    def _work(self) -> None:
        """Hand over what has come; what effects bring comes after all effects of one event.

        An effect that cannot be carried out ends the launcher, and not whatever has called us.
        """
        if self._is_at_work or self._defect is not None:
            return
        self._is_at_work = True
        try:
            while (event := self._next_event()) is not None:
                effects = self._launcher.handle(event, clock.monotonic())
                if self._lease:  # before there are ranks
                    self._lease.extend(self._launcher.ranks_may_live_until)
                for effect in effects:
                    self._do(effect)
        except Exception as error:  # noqa: BLE001 - raised by _serve
            self._defect = error
            self._loop.stop()
        finally:
            self._is_at_work = False

    def _next_event(self) -> machine.Event | None:
        """What the log has brought comes first: it may be what an effect has just said there."""
        event = self._log.take()
        return self._inbox.popleft() if event is None and self._inbox else event

    def _reap(self) -> None:
        assert self._family is not None
        for reaped in self._family.reap(self._own_pids()):
            if self._ranks and (rank := self._ranks.with_pid(reaped.pid)):
                rank.ended(reaped)
                local_rank = rank.place.local_rank
                if self._terminal and local_rank == self._plan.stdin_rank:
                    self._terminal.restore()
                self._event(
                    "worker_exited",
                    local_rank=local_rank,
                    rank=rank.place.rank,
                    pid=rank.pid,
                    exit_code=reaped.exit_code,
                    signal=-reaped.exit_code if reaped.exit_code < 0 else None,
                )
                self._monitors.hear_out(local_rank)  # why, if it was its monitor's signal
                self._feed(rank_life.Exited(local_rank, reaped.exit_code))
            elif self._was_a_helper(reaped):
                pass
            elif (watched := self._monitors.died(reaped.pid)) is not None:
                self._event("monitor_exited", local_rank=watched, exit_code=reaped.exit_code)
                self._feed(rank_life.MonitorGone(watched))
                self._feed(node.MonitorExited(watched))
        if self._sweeping:
            self._sweep()

    def _was_a_helper(self, reaped: child.Reaped) -> bool:
        """Whether it was neither a rank nor a monitor, but ours."""
        if memory_read.forget(reaped.pid):
            return True
        parked = self._standbys is not None and self._standbys.died(reaped)
        return parked or (self._care is not None and self._care.died(reaped))

    def _on_request(self, rank: int, action: WorkloadAction, description: str) -> None:
        self._event("control_request", rank=rank, action=action.name, description=description)
        self._feed(ControlRequested(rank, action.name, description))

    def _on_host_checked(self, problem: str | None) -> None:
        self._feed(node.HostChecked(problem))

    def _on_host_sick(self, finding: Finding) -> None:
        self._feed(node.HostBroke(str(finding), finding.device))

    def _on_monitor_message(self, local_rank: int, message: said.ToLauncher) -> None:
        match message:
            case said.Log(level, text):
                number = logging.getLevelName(level.upper())
                LOGGER.log(number if isinstance(number, int) else logging.INFO, text)
            case said.Hello():
                self._feed(node.RankReportedIn(local_rank))
                if self._standbys:
                    self._standbys.rank_reported_in()
            case said.Armed(cycle):
                if local_rank == 0 and cycle == self._cycle:
                    self._restart_lines.rank_works()
            case said.Overdue(cycle):
                hang = Hang(
                    clock=message.clock,
                    name=message.name,
                    age_s=message.age_s,
                    limit_s=message.limit_s,
                    found_at=message.detected_at,
                )
                self._feed(rank_life.HangFound(cycle, local_rank, hang))
                self._relay("rank_overdue", message)
                if message.learned:
                    self._monitors.limit_tripped(local_rank, message)
            case said.Evidence(cycle):
                self._relay("evidence", message)
                self._feed(rank_life.EvidenceTaken(cycle, local_rank))
            case said.Recovered(cycle):
                self._feed(rank_life.Recovered(cycle, local_rank))
            case said.Closed(cycle):
                self._feed(rank_life.Closed(cycle, local_rank))
            case said.Event(event):
                self._events.append(event)
            case said.Signalled(cycle):
                self._relay("kill_sent", message)
                self._feed(rank_life.Signalled(cycle, local_rank, message.signal))
            case said.Stuck(cycle):
                self._relay("rank_stuck", message)
                self._feed(rank_life.Outlived(cycle, local_rank, message.since_s))
            case said.Ready() | said.Bye():
                pass
            case _:
                assert_never(message)

    def _relay(self, kind: str, message: said.Verdict) -> None:
        fields = {name: value for name, value in vars(message).items() if name != "cycle"}
        self._events.write(kind, message.cycle, **fields)

    def _event(self, kind: str, **fields: object) -> None:
        self._events.write(kind, max(0, self._cycle), **fields)

    # ------------------------------------------------------------ effects out
    def _do(self, effect: machine.Effect) -> None:
        match effect:
            case Send(message):
                self._log.send(message)
            case Publish(decision):
                self._log.publish(decision)
            case node.StartCycle(cycle):
                self._start_cycle(cycle)
            case node.SignalRanks(local_ranks, signum):
                self._signal(local_ranks, signum, group=self._plan.signal_groups)
            case node.KillRanks(local_ranks):
                self._signal(local_ranks, signal.SIGKILL, group=True)
            case rank_life.Deliver(cycle, is_over):
                self._staging.deliver(cycle, over=is_over)
            case node.Sweep():
                self._begin_sweep()
            case ReadIteration(first):
                self._read_iteration(first=first)
            case node.StartMonitor(local_rank):
                self._replace_monitor(local_rank)
            case node.FailureSeen():
                self._on_failure_seen(effect)
            case CycleStopping():
                self._on_stopping(effect)
            case Standby(cycle):
                self._event("standing_by", without_us=cycle)
                LOGGER.info("cycle %d has started without this node, which waits as a spare", cycle)
            case node.Explain(cycle, will_restart):
                self._explain(cycle, will_restart=will_restart)
            case node.CheckHost(after_ranks):
                assert self._care is not None
                self._care.check(after_ranks=after_ranks)
            case node.EndRank(local_rank, problem):
                rank = self._rank(local_rank)
                LOGGER.error("ending rank %d: %s", rank.place.rank, problem)
                rank.signal(signal.SIGKILL, group=True)
            case Note(level, text):
                LOGGER.log(logging.getLevelName(level.upper()), "%s", text)
            case machine.Finish():
                self._on_finish(effect)
            case machine.Quit(exit_code):
                self._exit = exit_code
                self._loop.stop()
            case _:
                assert_never(effect)

    def _signal(self, local_ranks: tuple[int, ...], signum: int, *, group: bool) -> None:
        self._remember_family()
        sent = [k for k in local_ranks if self._rank(k).signal(signum, group=group)]
        self._feed(rank_life.Sent(tuple(sent), signum))

    @property
    def _cycle(self) -> int:
        """The one that this node has, or had, ranks in; -1: none yet."""
        return self._launcher.node.cycle

    def _open_lease(self) -> Lease | None:
        """Read by our monitors, where others go on without ranks of a launcher that is stopped."""
        if self._plan.meeting is None or not self._plan.monitors_enabled:
            return None
        from holdfast.host.lease import Lease  # noqa: PLC0415 - of no use to one node

        try:
            return Lease(f"{self._runtime_dir}/lease", writable=True)
        except OSError as error:
            LOGGER.warning("if this launcher is stopped, its ranks run on: %s", error)
            return None

    def _read_iteration(self, *, first: bool) -> None:
        path = iteration_file(self._plan)
        assert path is not None
        if self._iterations is None:
            from holdfast.host.iteration_file import IterationReader  # noqa: PLC0415 - seldom used

            self._iterations = IterationReader(
                path, self._loop, lambda found: self._feed(IterationRead(found))
            )
        self._iterations.ask(quiet=first)

    def _replace_monitor(self, local_rank: int) -> None:
        try:
            self._monitors.start(local_rank)
        except OSError as error:  # no process to be had: the rank trains on unwatched
            LOGGER.error("cannot start a monitor: %s", error)
            self._feed(node.MonitorExited(local_rank))

    @property
    def _fixed_port(self) -> int | None:
        """Of rank 0, where the user has chosen one; of one node only."""
        return self._plan.master_port if self._plan.meeting is None else None

    def _own_place(self) -> tuple[NodePlace, ReservedPort | None]:
        """Where this node stands in the decided cycle, and the port kept for its rank 0."""
        formed, place = self._launcher.formed, self._launcher.place
        assert formed is not None
        assert place is not None
        stands = NodePlace(
            master_addr=formed.master_addr,
            master_port=formed.master_port,
            group_rank=place.group_rank,
            group_world_size=len(formed.places),
            rank_offset=place.rank_offset,
            world_size=formed.world_size,
            gloo_interface=self._log.gloo_interface(),
        )
        if place.rank_offset > 0:
            return stands, None
        port, self._port = self._port, None
        return stands, port

    def _reserve_port(self) -> None:
        """For rank 0 of the next cycle, in case it will be here.

        There may be no next one: a host that has no port left must not cost a job its success.
        """
        if self._port is not None or self._fixed_port is not None:
            return
        try:
            self._port = ReservedPort()
        except OSError as error:
            LOGGER.warning("no port can be kept for the next cycle, which uses the last: %s", error)
        else:
            self._feed(machine.PortReserved(self._port.number))

    def _start_cycle(self, cycle: int) -> None:
        self._sweeping = False  # leftovers that took too long are not waited for any more
        self._trackers.close()
        plan = self._plan
        if self._control:
            self._control.retry()  # the descriptors of the last cycle are free
        if self._ranks:
            self._ranks.close(self._pump)
            self._past = {self._ranks.cycle: self._ranks}
        stands, port = self._own_place()
        lives, staged = self._launcher.rank_lives, Path(self._staging.folder(cycle))
        self._ranks = ranks = Ranks(
            plan, stands, self.run_dir, staged, cycle, self._job, port, lives
        )
        self._event("cycle_started", master_port=stands.master_port, group_rank=stands.group_rank)
        self._restart_lines.cycle_begins(has_rank_0=stands.rank_offset == 0)
        for local_rank in ranks.ranks:
            self._prepare_monitor(ranks, local_rank)
        for local_rank in ranks.ranks:
            rank = ranks.start(
                local_rank,
                self._tie,
                self._environ,
                self._launcher_socket,
                self._monitor_socket(local_rank),
                self._pump,
                self._standbys,
            )
            self._event(
                "worker_started",
                local_rank=local_rank,
                rank=rank.place.rank,
                pid=rank.pid,
                is_warm=rank.is_warm,
            )
            if local_rank == 0:
                ranks.let_rank_0_go_first()
        if plan.monitors_enabled:
            self._monitors.start_missing()  # after the ranks, which have more to do
        assert self._family is not None
        self._family.ranks_started([rank.pid for rank in ranks.ranks.values()])
        if self._standbys:
            self._standbys.cycle_started()
        warm = sum(rank.is_warm for rank in ranks.ranks.values())
        LOGGER.info(
            "cycle %d: started %s of %s, pids %s; node has joined round %d of the "
            "rendezvous %r as rank %d of %d%s",
            cycle,
            count(plan.nproc_per_node, "rank"),
            plan.name,
            ", ".join(str(rank.pid) for rank in ranks.ranks.values()),
            cycle,
            plan.run_id,
            stands.group_rank,
            stands.group_world_size,
            f"; {count(warm, 'rank')} from warm standby" if warm else "",
        )

    def _what_a_rank_is(self, local_rank: int) -> tuple[list[str], dict[str, str], int | None]:
        """Command, environment and pid of a rank, as far as no cycle has a part in them."""
        plan, rank = self._plan, self._ranks.ranks[local_rank] if self._ranks else None
        nproc = plan.nproc_per_node
        place = rank.place if rank else unplaced(local_rank, nproc)
        monitor_socket = self._monitor_socket(local_rank)
        env = rank_env(plan, place, self._environ, self._launcher_socket, monitor_socket)
        is_alive = rank is not None and rank.pid and rank.exit_code is None
        return plan.command_for(local_rank), env, rank.pid if rank and is_alive else None

    def _monitor_socket(self, local_rank: int) -> str | None:
        enabled = self._plan.monitors_enabled
        return socket_path(self._runtime_dir, local_rank) if enabled else None

    def _prepare_monitor(self, ranks: Ranks, local_rank: int) -> None:
        path = self._monitor_socket(local_rank)
        if path is None:
            return
        if not self._monitors.has(local_rank):
            self._monitors.open(
                local_rank,
                path,
                said.Configure(
                    self._plan.ft.to_wire(),
                    local_rank,
                    marker=self._job,
                    grace_s=self._plan.workers_stop_timeout_s,
                    node=self._node_name,
                    runtime_dir=self._runtime_dir,
                    lease=self._lease.path if self._lease else None,
                ),
            )
        page_path = self._pages.make(ranks.cycle, LocalRank(local_rank))
        staged = self._staging.folder(ranks.cycle)
        room = f"{self._runtime_dir}/r{local_rank}.room"
        try:
            os.makedirs(f"{staged}/attempt_{ranks.cycle}/{local_rank}", exist_ok=True)  # noqa: PTH103
            reserve(room)
        except OSError:
            staged = str(self.run_dir)
        if self._pages.is_spare(page_path):  # no space for evidence, either
            staged = str(self.run_dir)
        if staged == str(self.run_dir):
            with suppress(OSError):
                ranks.ranks[local_rank].folder.mkdir(parents=True, exist_ok=True)
        self._monitors.begin_cycle(
            local_rank,
            said.Cycle(
                ranks.cycle,
                page_path,
                dump=f"{staged}/attempt_{ranks.cycle}/{local_rank}/stacks.txt",
                incidents=f"{staged}/incidents",
                staged=staged,
                run_dir=str(self.run_dir),
                room=room,
            ),
        )
        for past in self._past:  # only now: its monitor has been told of the page that replaces it
            self._pages.remove(Cycle(past), LocalRank(local_rank))

    def _rank(self, local_rank: int) -> Rank:
        assert self._ranks is not None
        return self._ranks.ranks[local_rank]

    def _on_failure_seen(self, seen: node.FailureSeen) -> None:
        """Say in words what it was: to the log, and to the job."""
        goes_on = self._launcher.node.survives_ranks and not seen.every
        if self._standbys and not goes_on:
            self._standbys.cycle_ending()
        line = report.failure_line(self._rank(seen.local_rank).end())
        LOGGER.error("%s", line)
        self._failed_here.setdefault(seen.cycle, seen.local_rank)
        cause = f"{line} on {self._node_name}"
        self._feed(RanksFailed(seen.cycle, cause, seen.every, seen.may_restart))
        if not goes_on:
            self._restart_lines.cycle_failed()

    def _on_stopping(self, stopping: CycleStopping) -> None:
        is_polite = stopping.how is How.POLITE
        self._event(
            "cycle_stopping",
            cause=stopping.cause,
            cause_local_rank=self._failed_here.get(stopping.cycle) if stopping.here else None,
            restart=not stopping.no_restart,
            at_once=not is_polite,
        )
        if not stopping.here:
            self._failed_here.pop(stopping.cycle, None)
            if is_polite:  # else there is an error that says it
                cause, why = stopping.cause, stopping.no_restart
                text = f"{cause}; {why}" if why and why != cause else cause
                LOGGER.info("cycle %d is over for this node: %s", stopping.cycle, text)
        elif stopping.no_restart:
            LOGGER.error("Worker group FAILED, and is not started again: %s", stopping.no_restart)
        else:
            LOGGER.info(
                "Worker group FAILED. %d/%d attempts left; will restart worker group",
                stopping.restarts_left,
                self._plan.max_restarts,
            )
        if is_polite and (alive := len(self._launcher.node.alive)):
            LOGGER.info(
                "Stopping workers... Timeout = %g sec. (%d still running)",
                self._plan.workers_stop_timeout_s,
                alive,
            )

    def _explain(self, cycle: int, *, will_restart: bool) -> None:
        assert self._ranks is not None
        if will_restart and cycle not in self._failed_here:
            return  # the cause is elsewhere, and was said
        ends = self._past.get(cycle, self._ranks).ends(self._pump)
        cause = first_cause(ends)
        used, most = self._launcher.restarts_used, self._plan.max_restarts
        if will_restart:
            LOGGER.info(
                "restart %d of %d: cycle %d was ended by %s",
                used,
                most,
                cycle,
                report.cause_line(ends),
            )
            return
        verdict = "the job is over" if self._plan.meeting else f"{used} of {most} restarts used"
        summary = report.failure_summary(
            self._plan.name, self._node_name, cycle, ends, verdict, str(self.run_dir)
        )
        self._pump.write(_STDERR, f"{summary}\n".encode(errors="replace"))
        outer_error_file = self._environ.get("TORCHELASTIC_ERROR_FILE")
        if cause and outer_error_file:
            write_error_file(Path(outer_error_file), cause)

    def _on_finish(self, finish: machine.Finish) -> None:
        succeeded = finish.ended is machine.Ended.SUCCEEDED
        level = logging.INFO if finish.exit_code == 0 else logging.ERROR
        self._event(
            "job_succeeded" if succeeded else "job_failed",
            end=finish.how,
            exit_code=finish.exit_code,
        )
        if finish.text:
            LOGGER.log(level, "%s", finish.text)
        ranks = self._ranks.ranks.values() if succeeded and self._ranks else ()
        if failed := [f"rank {rank.place.rank}" for rank in ranks if rank.exit_code]:
            LOGGER.warning("the job was completed without %s, which failed", ", ".join(failed))
        LOGGER.log(
            level,
            "%s %s after %s; exit code %d%s",
            self._plan.name,
            f"was {finish.how}" if finish.signal else finish.how,
            count(max(0, self._cycle), "restart"),
            finish.exit_code,
            "" if self._is_uneventful() else f"; logs and evidence are in {self.run_dir}",
        )
        self._restart_lines.job_is_over(succeeded=succeeded)

    # ------------------------------------------------------------ nothing left behind
    def _spared(self) -> frozenset[int]:
        """Processes of ours that outlive a cycle."""
        parked = self._standbys.pids() if self._standbys else frozenset()
        caring = self._care.pids() if self._care else frozenset()
        return self._monitors.pids() | parked | caring | memory_read.readers()

    def _own_pids(self) -> frozenset[int]:
        """All that we have started and not reaped."""
        ranks = self._ranks.ranks.values() if self._ranks else ()
        living = {rank.pid for rank in ranks if rank.pid and rank.exit_code is None}
        return self._spared() | living | self._helpers

    def _remaining(self) -> dict[int, Identity]:
        """Processes that the ranks left; ours are none of them."""
        assert self._family is not None
        return self._family.below(self._own_pids(), self._spared())

    def _remember_family(self) -> None:
        if self._family:
            self._family.remember(self._own_pids())

    def _report_remaining(self) -> None:
        left = leftovers.running(self._remaining())
        if left:
            LOGGER.warning(
                "killing %s that outlived their ranks:", count(len(left), "process", "es")
            )
        for line in leftovers.describe_each(left):
            LOGGER.warning("  %s", line)

    def _begin_sweep(self) -> None:
        if self._standbys:
            self._standbys.cycle_ending()
        if self._plan.ft.check_remaining_processes:
            self._report_remaining()
        self._reserve_port()
        self._sweeping = True
        self._sweep()

    def _sweep(self) -> None:
        """End what the ranks left; report when nothing is left."""
        if not self._sweeping:
            return
        left = self._remaining()
        to_kill, self._sweep_again_at = self._trackers.sort(left.values(), clock.monotonic())
        for identity in to_kill:
            leftovers.kill(identity)
        if not left:
            self._sweeping = False
            self._trackers.close()
            self._report_left_alone()
            self._event("cycle_stopped")
            self._feed(node.Swept())

    def _watch_sweep(self, fd: int, wanted: bool) -> None:  # noqa: FBT001 - called by position
        if wanted:
            self._loop.watch(fd, self._sweep)
        else:
            self._loop.forget(fd)

    def _report_left_alone(self) -> None:
        assert self._family is not None
        for pid, why in self._family.left_alone().items():
            name = leftovers.describe([pid])
            LOGGER.warning("left alone below this launcher: %s: %s", name, why)

    def _end_everything(self) -> None:
        """Whatever way we leave: nothing that we started stays. Usually there is nothing."""
        family = self._family
        assert family is not None

        def reap() -> None:
            for reaped in family.reap(self._own_pids()):
                self._helpers.discard(reaped.pid)
                memory_read.forget(reaped.pid)

        if left := leftovers.end_all(_LAST_SWEEP_S, lambda: family.below(self._own_pids()), reap):
            LOGGER.error(
                "left behind, still there %g s after SIGKILL: %s",
                _LAST_SWEEP_S,
                leftovers.describe(left),
            )
        self._report_left_alone()
        family.close()

    def _keep_evidence(self) -> None:
        try:
            kept = run_dirs.keep(self._staged, self._job)
        except OSError as error:
            LOGGER.error("evidence that %s did not take is lost: %s", self.run_dir, error)
        else:
            LOGGER.error("evidence that %s did not take is kept in %s", self.run_dir, kept)

    def _clean_up(self) -> None:
        if self._ranks:
            self._ranks.close(self._pump)
        if self._port:
            self._port.release()
        last = {self._ranks.cycle} if self._ranks else set()
        for cycle in {*self._launcher.lives.undelivered(), *last}:  # their monitors are gone
            self._staging.deliver(cycle, over=True)
        if not self._staging.close(_LAST_DELIVERY_S):
            self._keep_evidence()
        for folder in (self._runtime_dir, self._pages.spare):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        self._events.close()
        if self._is_uneventful():
            with suppress(TimeoutError):
                call_within(_REMOVAL_S, lambda: shutil.rmtree(self.run_dir, ignore_errors=True))

    def _is_uneventful(self) -> bool:
        """Nothing happened that anybody would look up, and nobody asked for files."""
        finished = self._launcher.finished
        ended_well = finished is not None and finished.ended is machine.Ended.SUCCEEDED
        to_files = any(self._plan.redirects.values()) or any(self._plan.tee.values())
        asked = self._plan.log_dir is not None or to_files
        return ended_well and self._cycle == 0 and not (asked or self._failed_here)
