"""The parked interpreters of a node at work: feeds :mod:`.pure.parked_interpreters`.

Decides nothing, and waits for nothing: a rank whose process is not ready is started plainly.
"""

from __future__ import annotations

import logging
import os
import resource
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.base import clock, memory
from holdfast.base.processes import child, file_read, proc
from holdfast.base.processes.file_read import FileRead
from holdfast.base.processes.rank_boot import SIGKILL
from holdfast.base.pure.codec import decode
from holdfast.base.pure.common_events import Note, SignalArrived, TimePassed
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.never import assert_never
from holdfast.net.channel import Channel
from holdfast.net.loop import Loop
from holdfast.node.part import CycleStarted, Happening, Part, RankKilled
from holdfast.node.processes.worker_env import LASTING, PER_CYCLE
from holdfast.node.pure.cycle_events import CycleEnding, Waiting
from holdfast.node.pure.rank_life import MonitorSaid
from holdfast.standby import idle_priority, memory_left
from holdfast.standby.pure import parked_interpreters as machine
from holdfast.standby.pure.libraries import LATE, TORCH, imported_libraries
from holdfast.standby.pure.parked_messages import FROM_PARKED, ParkedReady, ParkedUnfit
from holdfast.standby.standby_process import OomScoreRefusedError, StandbyProcess, begin, park
from holdfast.watch.pure.monitor_messages import RankConnected

if TYPE_CHECKING:
    from holdfast.net.pure.frames import Message
    from holdfast.node.part import MakePart
    from holdfast.options.plan import LaunchPlan, WarmStandby
    from holdfast.watch.rank.auto_start import StartHook

LOGGER = logging.getLogger("holdfast")
_LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
_OF_DRIVER = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
)
"""Read when the first CUDA context is made; scripts set them in their first lines."""
_HARMLESS = (
    *sorted(PER_CYCLE),
    *_OF_DRIVER,
    *("NCCL_", "TORCH_NCCL_", "GLOO_", "HF_", "TOKENIZERS_", "WANDB_"),
)
"""Variables, or their beginnings, that torch and numpy do not read while they are imported. Not
``PYTORCH_CUDA_ALLOC_CONF``: torch's library reads it while it is loaded."""


def part_of(warm: WarmStandby, plan: LaunchPlan) -> MakePart:
    """The maker of a launcher's parked interpreters."""
    return lambda launcher: Standbys(
        warm,
        plan.nproc_per_node,
        launcher.loop,
        launcher.tie,
        launcher.job,
        launcher.folder,
        launcher.like,
        start_hook=plan.start_hook,
        gets_restarts_back=plan.restart_window_s is not None,
    )


@dataclass
class _ParkedProcess:
    process: StandbyProcess
    peer: Channel
    is_idle: bool
    is_reaped: bool = False
    """Its pid may be another process's."""


@dataclass
class _Reading:
    """A look at the imports of a rank, before its parked process is started."""

    read: FileRead
    step: Callable[[], None]


class Standbys(Part):
    """One parked interpreter for each local rank, or fewer. Main thread only.

    Args:
        plan: From the command line.
        loop: Where their messages arrive.
        tie: See :func:`.child.death_tie`.
        job: Marks their environment.
        folder: Private, for notes of processes that started over.
        like: Command, environment and pid of a rank as it would be started now; no pid where none
            runs.
        start_hook: See ``watch/rank/auto_start.py``.
        gets_restarts_back: Used restarts count no more after some time.

    Attributes:
        machine: Decides; to be read.
    """

    def __init__(
        self,
        plan: WarmStandby,
        nproc: int,
        loop: Loop,
        tie: Sequence[str],
        job: str,
        folder: str,
        like: Callable[[int], tuple[list[str], dict[str, str], int | None]],
        *,
        start_hook: StartHook | None,
        gets_restarts_back: bool = False,
    ) -> None:
        self._plan = plan
        self._gets_restarts_back = gets_restarts_back
        self._loop = loop
        self._tie = tie
        self._job = job
        self._folder = folder
        self._like = like
        self._start_hook = start_hook
        why_reserve = memory_left.why_score_decides_nothing()
        self.machine = machine.ParkedInterpreters(
            nproc,
            plan.delay_s,
            plan.memory_mib_max << 10,
            is_idle=idle_priority.can_return(),
            reserve_kib=machine.SAFE_KIB if why_reserve else 0,
            why_reserve=why_reserve,
        )
        self._has_said_parked = False
        self._parked: dict[int, _ParkedProcess] = {}
        self._dying: set[int] = set()
        self._readings: dict[int, _Reading] = {}
        self._oom_before = memory.oom_kills()
        self._triggers: list[int] | None = None
        self._is_watching_pressure = False
        self._held: list[socket.socket] = []
        self._inherited: dict[str, str] | None = None
        """State that the ranks of the next cycle would inherit; read once for all of them."""

    def next_deadline(self) -> float | None:
        """When :meth:`on_time` is due."""
        readings = (each.read.next_deadline() for each in self._readings.values())
        return earliest(self.machine.next_deadline(), *readings)

    def on_time(self) -> None:
        """Time has passed."""
        for reading in list(self._readings.values()):
            reading.step()
        self._read_notes()
        self._feed(TimePassed())

    def begin(self) -> None:
        """Prepare parked processes before the first cycle."""
        self._feed(Waiting())

    def on_event(self, happening: Happening) -> None:
        """Prepare parked processes, or give them up."""
        match happening:
            case Waiting() if self._plan.at_start:
                self.begin()
            case CycleStarted(ranks):
                self._let_begin()
                self._inherited = None
                self._oom_before = memory.oom_kills()
                is_last = not ranks.formed.restarts_left and not self._gets_restarts_back
                self._feed(machine.RanksStarted(is_last))
            case MonitorSaid(_, RankConnected() as connected):
                self._feed(connected)
            case CycleEnding():
                self._read_notes()
                if memory.CGROUP in memory.oom_since(self._oom_before):
                    self._feed(machine.OutOfMemory())
                self._feed(happening)
            case RankKilled(rank):
                rank.parked = self._memory_of_parked()
                if self._is_out_of_memory():
                    self._feed(machine.OutOfMemory())
            case SignalArrived():
                self._feed(happening)

    def take(
        self,
        local_rank: int,
        command: Sequence[str],
        env: Mapping[str, str],
        streams: Sequence[int],
    ) -> int | None:
        """Have the parked process of a rank become it; its pid, or None: start it plainly.

        ``streams`` are descriptors for its stdout and stderr, and for its stdin if it has one.
        """
        if local_rank not in self._parked:
            return None
        self._inherited = self._inherited or _inherited()
        shape = _shape(command, env, self._inherited)
        for effect in self.machine.handle(machine.RankWanted(local_rank, shape), clock.monotonic()):
            if isinstance(effect, machine.BecomeRank):
                return self._go_on(local_rank, env, streams)
            self._do(effect)
        return None

    def pids(self) -> frozenset[int]:
        """Parked processes, and those that were killed and have not ended yet."""
        return frozenset(self._dying | {parked.process.pid for parked in self._parked.values()})

    def died(self, reaped: child.Reaped) -> bool:
        """Note that a process was reaped; whether it was parked."""
        pid = reaped.pid
        if pid in self._dying:
            self._dying.discard(pid)
            return True
        for local_rank, parked in list(self._parked.items()):
            if parked.process.pid == pid:
                parked.is_reaped = True
                parked.peer.drain()  # its last words may say why
                if self._parked.get(local_rank) is parked:
                    self._forget(local_rank)
                    signum = -reaped.exit_code if reaped.exit_code < 0 else None
                    if signum == SIGKILL and self._is_out_of_memory():
                        self._feed(machine.OutOfMemory())
                    self._feed(machine.ParkedDied(local_rank, signum))
                return True
        return False

    def end(self) -> None:
        """End them all."""
        for local_rank in [*self._parked, *self._readings]:
            self._discard(local_rank)
        self._let_begin()
        for descriptor in self._triggers or ():
            os.close(descriptor)
        self._triggers = []

    # ------------------------------------------------------------ inside
    def _memory_of_parked(self) -> tuple[int, int]:
        """How many interpreters are parked, or being prepared, and how many KiB they have."""
        held = [memory_left.unshared_kib(each.process.pid) for each in self._parked.values()]
        held = [kib for kib in held if kib > 0]
        return len(held), sum(held)

    def _feed(self, event: machine.Event) -> None:
        for effect in self.machine.handle(event, clock.monotonic()):
            self._do(effect)

    def _is_out_of_memory(self) -> bool:
        """The kernel ended a process for lack of memory: of this control group, where it counts."""
        return memory.ran_out(self._oom_before)

    def _watch_pressure(self) -> None:
        """Notice memory pressure while something is parked, and only then."""
        if self._is_watching_pressure == bool(self._parked):
            return
        self._is_watching_pressure = bool(self._parked)
        # They stay open: closing one takes the kernel 11 to 16 ms (it waits for an RCU period), and
        # the last process of a cycle is taken in the middle of a restart.
        if self._triggers is None:
            self._triggers = memory_left.pressure_triggers()
        for descriptor in self._triggers:
            if self._is_watching_pressure:
                self._loop.epoll.register(descriptor, select.EPOLLPRI)
                self._loop.call(descriptor, lambda: self._feed(machine.MemoryPressure()))
            else:
                self._loop.forget(descriptor)

    def _read_notes(self) -> None:
        for local_rank in range(self.machine.nproc):
            if reason := _taken(self._note(local_rank)):
                self._feed(machine.StartedOver(local_rank, reason))

    def _do(self, effect: machine.Effect) -> None:
        match effect:
            case machine.Prepare(local_rank, least, without):
                if self.machine.is_preparing(local_rank):
                    self._prepare(local_rank, without, least=least)
            case machine.Discard(local_rank):
                self._discard(local_rank)
            case Note(level, text):
                LOGGER.log(logging.getLevelName(level.upper()), "%s", text)
            case machine.AllParked(ranks, memory_kib):
                self.log_all_parked(ranks, memory_kib)
            case machine.Hurry(local_rank):
                if local_rank in self._parked:
                    self._restore(local_rank)
            case machine.MeasureShare(local_rank):
                if local_rank in self._parked:
                    self._measure_share(local_rank)
            case machine.MeasureMemory():
                self._feed(machine.MemoryLeft(memory.available_kib()))
            case machine.BecomeRank():
                raise AssertionError("only a rank that is wanted continues")
            case _:
                assert_never(effect)

    def log_all_parked(self, ranks: int, memory_kib: int) -> None:
        """Log that ``ranks`` can restart without importing; a trial reports that in other words."""
        level = logging.DEBUG if self._has_said_parked else logging.INFO  # once for the job
        self._has_said_parked = True
        LOGGER.log(
            level,
            "warm standby: %d of %d ranks can restart without importing; "
            "their parked processes take %d MiB",
            *(ranks, self.machine.nproc, memory_kib >> 10),
        )

    def _prepare(self, local_rank: int, without: Sequence[str], *, least: bool) -> None:
        _, _, pid = self._like(local_rank)
        if pid is None:
            self._park(local_rank, [TORCH], without, least=least)
            return
        # The rank may be stuck with the lock of its memory: the launcher does not wait for that.
        path = file_read.maps_path(pid)

        def watch(fd: int, wanted: bool) -> None:  # noqa: FBT001 - called by position
            if wanted:
                self._loop.watch(fd, step)
            else:
                self._loop.forget(fd)

        def step() -> None:
            reading.step()
            if reading.is_done and self._readings.pop(local_rank, None) is not None:
                found = imported_libraries(file_read.mapped_files(reading.found.get(path)))
                self._park(local_rank, found, without, least=least)

        reading = FileRead([path], watch)
        self._readings[local_rank] = _Reading(reading, step)
        if reading.is_done:
            step()

    def _park(
        self, local_rank: int, found: list[str], without: Sequence[str], *, least: bool
    ) -> None:
        names = [TORCH] if least and TORCH in found else found
        if not least:
            names += [name for name in self._plan.preload if name not in names]
        if not names:
            self._feed(machine.Nothing(local_rank))
            return
        command, env, _ = self._like(local_rank)
        available_kib = memory.available_kib()
        if available_kib is not None and not self.machine.has_room(available_kib):
            self._feed(machine.NoRoom(local_rank, available_kib))
            return
        shape = _shape(command, env, _inherited())
        start_env = self._start_hook.added_to(shape.env) if self._start_hook else shape.env
        is_idle = not self.machine.is_hurried(local_rank)
        try:
            process = park(
                self._tie,
                command,
                {**start_env, proc.MARKER: f"{self._job}.parked.{local_rank}"},
                preload=names,
                follow=not least,
                late=() if least else LATE,
                without=without,
                per_cycle=sorted(PER_CYCLE),
                likely={name: env[name] for name in LASTING if name in env},
                harmless=_HARMLESS,
                note=self._note(local_rank),
                is_idle=is_idle,
            )
        except OomScoreRefusedError as error:
            self._dying.add(error.pid)
            child.kill(error.pid)
            self._feed(machine.KeepsOomScore(local_rank, str(error)))
            return
        except OSError as error:
            LOGGER.warning("cannot start a process for warm standby: %s", error)
            self._feed(machine.ParkedDied(local_rank))
            return
        self._parked[local_rank] = _ParkedProcess(
            process, self._channel(local_rank, process), is_idle
        )
        self._watch_pressure()
        self._feed(machine.Started(local_rank, shape))
        if is_idle and not idle_priority.does_return(process.pid):
            self._feed(machine.StaysIdle(local_rank))

    def _channel(self, local_rank: int, process: StandbyProcess) -> Channel:
        def take(_: Channel, frame: Message) -> None:
            self._take(local_rank, decode(FROM_PARKED, frame))

        def give_up(_: Channel, why: str) -> None:
            # The user's own modules are imported there; it may send anything.
            LOGGER.error("a process for warm standby %s", why, exc_info=True)  # noqa: LOG014
            self._discard(local_rank)
            self._feed(machine.ParkedSaid(local_rank, ParkedUnfit(why)))

        # Where it hangs up, its end is reported when it is reaped.
        channel = Channel(process.control, self._loop, take, lambda _: None)
        channel.report = give_up
        return channel

    def _take(self, local_rank: int, message: ParkedReady | ParkedUnfit) -> None:
        if isinstance(message, ParkedUnfit):
            self._discard(local_rank)
        elif not self._restore(local_rank):
            return
        self._feed(machine.ParkedSaid(local_rank, message))

    def _measure_share(self, local_rank: int) -> None:
        share = idle_priority.share(self._parked[local_rank].process.pid)
        if share is not None:
            self._feed(machine.Share(local_rank, *share))

    def _restore(self, local_rank: int) -> bool:
        """Give it the priority of a rank; False: it has not got it."""
        parked = self._parked[local_rank]
        if not parked.is_idle:
            return True
        if parked.is_reaped:
            return False
        try:
            idle_priority.restore(parked.process.pid)
            parked.is_idle = False
        except ProcessLookupError:
            return False  # its end is reported when it is reaped
        except OSError as error:
            LOGGER.debug("a parked process keeps the lowest priority: %s", error)
            self._feed(machine.StaysIdle(local_rank))
            return False
        return True

    def _go_on(self, local_rank: int, env: Mapping[str, str], streams: Sequence[int]) -> int | None:
        process = self._parked[local_rank].process
        # All check and prepare at once; the scripts of the others begin when rank 0's listens
        # (Ranks.let_rank_0_go_first).
        is_held = local_rank > 0
        if not process.go_on(env, streams, is_held=is_held):
            LOGGER.info("local rank %d starts plainly: its parked process is gone", local_rank)
            self._discard(local_rank)
            return None
        if is_held:
            self._held.append(process.control.dup())
        self._forget(local_rank)
        return process.pid

    def _let_begin(self) -> None:
        for control in self._held:
            begin(control)
        self._held.clear()

    def _discard(self, local_rank: int) -> None:
        if reading := self._readings.pop(local_rank, None):
            reading.read.close()
        if parked := self._parked.get(local_rank):
            self._forget(local_rank)
            if not parked.is_reaped:
                self._dying.add(parked.process.pid)
                child.kill(parked.process.pid)

    def _forget(self, local_rank: int) -> None:
        self._parked.pop(local_rank).peer.close()
        self._watch_pressure()

    def _note(self, local_rank: int) -> str:
        return os.path.join(self._folder, f"started_over_{local_rank}")


def _shape(
    command: Sequence[str], env: Mapping[str, str], inherited: dict[str, str]
) -> machine.Shape:
    lasting = {name: value for name, value in env.items() if name not in PER_CYCLE}
    cycle = {name: value for name, value in env.items() if name in PER_CYCLE}
    return machine.Shape(list(command), lasting, inherited, cycle)


def _taken(path: str) -> str:
    """The text of a file, which is removed; empty where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        os.unlink(path)
    except OSError:
        return ""
    return text


def _inherited() -> dict[str, str]:
    """By name, the state that a process started now would inherit."""
    found = {name: str(resource.getrlimit(number)) for name, number in _LIMITS.items()}
    status = proc.status("self")
    for name in ("Umask", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Mems_allowed"):
        found[name] = status.get(name.encode(), b"").decode()
    place = os.stat(".")
    found["working directory"] = f"{os.getcwd()} {place.st_dev} {place.st_ino}"
    found["CPUs"] = str(sorted(os.sched_getaffinity(0)))
    found["priority"] = str(os.getpriority(os.PRIO_PROCESS, 0))
    for name in ("oom_score_adj", "cgroup"):
        try:
            with open(f"/proc/self/{name}") as file:
                found[name] = file.read()
        except OSError:
            continue
    return found
