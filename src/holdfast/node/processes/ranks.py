"""The ranks of one node in one cycle: their folders, output, environment and processes.

Folders are torchrun's: ``<run dir>/attempt_<cycle>/<local rank>/`` with ``stdout.log`` and
``stderr.log`` where output is redirected or teed, ``error.json``, and ``stacks.txt`` once a rank's
stacks have been dumped. Nothing here touches that folder: output goes through a thread that may
hang alone, and the rest is written to memory and delivered (``evidence/staging.py``).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from holdfast.base import clock, memory
from holdfast.base.file_writer import LineLog, LogFile, cycle_path
from holdfast.base.processes import child, proc
from holdfast.base.processes.run_delay import RunDelay
from holdfast.base.pure.numbering import Cycle, GlobalRank, GroupRank, LocalRank, Pid
from holdfast.evidence.pure.echoes import is_echo
from holdfast.evidence.pure.failure import RankEnd
from holdfast.evidence.pure.failure_kinds import Attribution
from holdfast.net.port import ReservedPort
from holdfast.node.console import LOGGER, STDERR, STDOUT, log_error
from holdfast.node.processes.output import OutputPump, Stream
from holdfast.node.processes.worker_env import RankPlace, rank_env
from holdfast.node.pure.rank_life import LifeState, RankLife
from holdfast.options.plan import LaunchPlan
from holdfast.watch.pure.rank_messages import ExitsNow, Uncaught
from holdfast.watch.rank.rank_end import EXITING_FILE

if TYPE_CHECKING:
    from holdfast.inplace.pure.job_calls import EndsHungRank
    from holdfast.job.pure.member_messages import StartRanks

_STDIN = 0
_FILES = {STDOUT: "stdout.log", STDERR: "stderr.log"}
_SETTLE_S = 0.2
"""How long a report waits, at most, for a console that does not take its output."""
_LAST_WORDS_S = 0.02
"""The same of the stop of the other ranks, for the last words of one that failed."""
_LISTENS_WITHIN_S = 0.1
"""For so long a rank 0 that does not listen, or not soon, holds up the others, and no longer."""
_ERROR_FILE_BYTES_MAX = 4 << 20
_MESSAGE_CHARS_MAX = 2000


@dataclass
class RankProcess:
    """One rank's process in one cycle."""

    place: RankPlace
    folder: Path
    error_file: Path
    """Where torch's ``@record`` writes an exception."""
    life: RankLife
    pid: Pid = Pid(0)  # noqa: RUF009 - an int
    is_warm: bool = False
    streams: dict[int, Stream] = field(default_factory=dict)
    oom_before: dict[str, int] = field(default_factory=dict)
    exit_code: int | None = None
    ended_at: float = 0.0
    peak_rss_kib: int = 0
    hung_in_place: str | None = None
    """How it hung, where the guard of restarts in place ends it for that."""
    began_restart: str | None = None
    """Why a restart in place began that is held up."""
    began_restart_at: float = 0.0
    raised: str = ""
    """The traceback of the exception that ends it, as it reported it."""
    parked: tuple[int, int] = (0, 0)
    """Interpreters that were parked on its node when it was killed, and their memory in KiB."""

    _error: tuple[str | None, str | None] | None = None
    _exiting_at: float | None = None
    _run_delay: RunDelay | None = None
    """Since it was asked to end."""

    @property
    def ids(self) -> dict[str, int]:
        """Its names in events."""
        return {"local_rank": self.place.local_rank, "rank": self.place.rank, "pid": self.pid}

    def signal(self, signum: int, *, group: bool) -> bool:
        """Signal its process, with ``group`` its process group; False: it ends by itself."""
        if self.exit_code is not None or not self.pid:
            return False
        if signum != signal.SIGKILL and (self.life.exits_now or proc.is_ending(self.pid)):
            return False  # its exit code is no answer to the signal
        if signum != signal.SIGKILL:  # a stopped process takes no other: see kill_ladder.py
            child.send_signal(self.pid, signal.SIGCONT, group=group)
            self._run_delay = self._run_delay or RunDelay(self.pid)
        child.send_signal(self.pid, signum, group=group)
        return True

    def waited_s(self) -> float:
        """How long it had no processor, since it was asked to end."""
        return self._run_delay.since_s() if self._run_delay is not None else 0.0

    def ended(self, reaped: child.Reaped) -> None:
        """Note how its process ended."""
        self.exit_code = reaped.exit_code
        self.peak_rss_kib = reaped.peak_rss_kib
        self.ended_at = clock.monotonic()
        self._error = read_error_file(self.error_file)  # delivered, and gone, when it is asked for
        self._exiting_at = read_exiting_at(self.error_file.parent, self.pid)

    def end(self) -> RankEnd:
        """How and why it ended, with lines of its stderr; or that it cannot be ended."""
        now, life = clock.monotonic(), self.life
        exit_code = self.exit_code
        if exit_code is None:
            exit_code = 1 if life.exits_now else -signal.SIGKILL
        error, traceback = self._error or read_error_file(self.error_file)
        lines, times = self.last_lines()
        stderr = self.streams.get(STDERR)
        return RankEnd(
            local_rank=self.place.local_rank,
            rank=self.place.rank,
            pid=self.pid,
            exit_code=exit_code,
            ended_at=now if self.exit_code is None else self.ended_at,
            asked=life.was_asked(exit_code),
            hang=life.hang,
            host_problem=life.host_problem,
            hung_in_place=self.hung_in_place,
            began_restart=self.began_restart,
            began_restart_at=self.began_restart_at,
            launcher_slept_s=life.launcher_slept_s,
            error=error,
            traceback=traceback,
            last_lines=lines,
            line_times=times,
            first_lines=list(stderr.head) if stderr is not None else (),
            n_lines=stderr.n_lines if stderr is not None else 0,
            asked_at=life.asked_at,
            oom_kills=memory.oom_since(self.oom_before) if exit_code else (),
            peak_rss_kib=self.peak_rss_kib,
            parked=self.parked,
            is_stuck=life.state(now) is LifeState.STUCK,
            is_condemned=life.is_condemned,
            raised=self.raised,
            raised_at=life.raised_at,
            exit_handlers_s=life.exit_handlers_s,
            exiting_at=self._exiting_at,
        )

    @property
    def keeps_stderr(self) -> bool:
        """Its stderr goes through the launcher."""
        return STDERR in self.streams

    def last_lines(self) -> tuple[list[str], list[float]]:
        """Of its stderr, as far as it goes through the launcher, and when they came."""
        stream = self.streams.get(STDERR)
        return ([], []) if stream is None else stream.last_lines()


@dataclass(frozen=True)
class RankSetup:
    """The part of a rank's start that is the same in all cycles of a launcher.

    ``environ`` is the launcher's own; ``monitor_socket``: see :meth:`.HangWatch.socket`; ``take``:
    see :meth:`.Part.take`.
    """

    plan: LaunchPlan
    job: str
    run_dir: Path
    environ: Mapping[str, str]
    launcher_socket: str
    monitor_socket: Callable[[int], str | None]
    pump: OutputPump
    take: Callable[..., int | None]

    def env(self, place: RankPlace, *, error_file: str = "", marker: str = "") -> dict[str, str]:
        """The environment of a rank; without keywords, as far as the cycle has no part in it."""
        return rank_env(
            self.plan,
            place,
            self.environ,
            self.launcher_socket,
            self.monitor_socket(place.local_rank),
            error_file=error_file,
            marker=marker,
        )


class Ranks:
    """The ranks of one cycle.

    Raises OSError where a folder can be made neither in ``staged`` nor in the run folder.
    ``staged`` is in memory: files of ranks are delivered from there to the run folder, which only
    the pump touches. ``port`` is kept free for rank 0, where that is on this node.
    """

    def __init__(
        self,
        setup: RankSetup,
        start: StartRanks,
        gloo_interface: str | None,
        staged: Path,
        port: ReservedPort | None,
        lives: Mapping[int, RankLife],
    ) -> None:
        self.formed, self.place = start.round, start.place
        self.cycle = Cycle(self.formed.cycle)
        self.folder = setup.run_dir / f"attempt_{self.cycle}"
        self._gloo_interface = gloo_interface
        self._setup, self._plan, self._pump = setup, setup.plan, setup.pump
        self._port = port
        self._log: LineLog | None = None
        self._oom_before = memory.oom_kills()  # once: a restart waits for it
        self.ranks = {}
        for local_rank, life in lives.items():
            folder = self.folder / str(local_rank)
            in_memory = staged / f"attempt_{self.cycle}" / str(local_rank)
            try:
                in_memory.mkdir(parents=True)
            except OSError:  # memory is full
                in_memory = folder
                folder.mkdir(parents=True)
            error_file = in_memory / "error.json"
            self.ranks[local_rank] = RankProcess(self._place(local_rank), folder, error_file, life)

    def start(self, local_rank: int, tie: Sequence[str]) -> RankProcess:
        """Start one rank, from its parked process if it has one; see :func:`.child.death_tie`.

        Raises OSError where a file or pipe for its output, or its process, cannot be made.
        """
        rank = self.ranks[local_rank]
        setup, plan = self._setup, self._plan
        command = plan.command_for(local_rank)
        marker = f"{setup.job}.{self.cycle}.{local_rank}"
        env = setup.env(rank.place, error_file=str(rank.error_file), marker=marker)
        rank.oom_before = self._oom_before
        if plan.applog is not None and self._log is None:
            path = cycle_path(plan.applog, self.cycle)
            writer = self._pump.writer(os.path.dirname(path), log_error)  # noqa: PTH120
            self._log = LineLog(path, log_error, writer)
        with contextlib.ExitStack() as stack:
            outputs = {number: self._output(rank, number, stack) for number in (STDOUT, STDERR)}
            inputs = {_STDIN: _STDIN} if local_rank == plan.stdin_rank else {}
            streams = [*outputs.values(), *inputs.values()]
            parked = setup.take(local_rank, command, env, streams)
            rank.is_warm = bool(parked)
            changed = {number: fd for number, fd in outputs.items() if fd != number}
            pid = parked or child.spawn_rank(
                tie,
                command,
                plan.start_hook.added_to(env) if plan.start_hook else env,
                {**inputs, **changed},
            )
            rank.pid = Pid(pid)
        for stream in rank.streams.values():
            self._pump.add(stream)
        return rank

    def let_rank_0_go_first(self) -> None:
        """Give a warm rank 0 a moment to listen, before the others begin, which connect to it.

        Parked processes are held before their scripts until then. They would reach that point
        within a few hundredths of a second, all at the same time,
        and torch's client that comes a moment too early tries again only after 0.3 to 0.7 s.
        """
        first = self.ranks[0]
        if self._port is not None and first.is_warm and len(self.ranks) > 1:
            self._port.wait_until_listened_on(_LISTENS_WITHIN_S)

    def with_pid(self, pid: int) -> RankProcess | None:
        """The living rank whose process this is."""
        return next((r for r in self.ranks.values() if r.pid == pid and r.exit_code is None), None)

    def note_exception(self, pid: int, message: Uncaught | ExitsNow | None) -> RankProcess | None:
        """Note that an exception ends a process, which reports it; the rank, if it is one."""
        if not isinstance(message, Uncaught):  # it may have been reaped since
            return next((r for r in self.ranks.values() if r.pid == pid and r.raised), None)
        if (rank := self.with_pid(pid)) is not None:
            rank.raised = message.traceback
        return rank

    def note_hung_in_place(self, ended: EndsHungRank) -> None:
        """Note why the guard of restarts in place ends a rank, and which one began the restart."""
        by_rank = {it.place.rank: it for it in self.ranks.values()}
        if (rank := by_rank.get(GlobalRank(ended.rank))) is None:
            return
        from holdfast.evidence.pure.evidence_words import how  # noqa: PLC0415 - rarely needed

        shows = f"it {how(ended.seen)}; " if ended.seen is not None else ""
        rank.hung_in_place = f"{shows}{ended.text}"
        if (began := ended.began) is None:
            return
        text = f"{began.kind.value} of rank {began.rank}: {began.text}"
        rank.hung_in_place += f"; the restart began with {text}"
        first = by_rank.get(GlobalRank(began.rank))
        if first is not None and not is_echo(began.text):
            first.began_restart, first.began_restart_at = began.text, ended.began_at

    def end(self, local_rank: int) -> RankEnd:
        """How and why a rank has failed, while others may still run."""
        rank = self.ranks[local_rank]
        if rank.life.exits_now or rank.exit_code not in (None, -signal.SIGKILL):
            self._pump.settle(list(rank.streams.values()), _LAST_WORDS_S)
        return rank.end()

    def ends(self) -> list[RankEnd]:
        """How and why the ranks ended, when they have; all they wrote has been passed on.

        A rank that has not ended by then cannot be ended.
        """
        ranks = self.ranks.values()
        self._pump.settle([it for rank in ranks for it in rank.streams.values()], _SETTLE_S)
        return [rank.end() for rank in ranks]

    def close(self) -> None:
        """Let go of the port and the log."""
        if self._port is not None:
            self._port.release()
        if self._log is not None:
            self._pump.call(self._log.close)

    def _place(self, local_rank: int) -> RankPlace:
        formed, node = self.formed, self.place
        return RankPlace(
            local_rank=LocalRank(local_rank),
            rank=GlobalRank(node.rank_offset + local_rank),
            group_rank=GroupRank(node.group_rank),
            local_world_size=self._plan.nproc_per_node,
            world_size=formed.world_size,
            group_world_size=len(formed.places),
            cycle=self.cycle,
            master_addr=formed.master_addr,
            master_port=formed.master_port,
            gloo_interface=self._gloo_interface,
        )

    def _output(self, rank: RankProcess, number: int, stack: contextlib.ExitStack) -> int:
        """Descriptor that the rank gets as its stdout or stderr.

        The console itself if possible; through the pump where something has to be done with it:
        written to files, which may hang, prefixed, filtered, or its last lines kept for the failure
        report. A terminal stays a terminal, for progress bars and colours.
        """
        plan = self._plan
        local_rank = rank.place.local_rank
        if local_rank >= plan.n_carried:
            return number
        tee = bool(plan.tee.get(local_rank, 0) & number)  # of output, the descriptor is its bit
        to_file = tee or bool(plan.redirects.get(local_rank, 0) & number)
        shown = plan.local_ranks_filter is None or local_rank in plan.local_ranks_filter
        filters = {
            STDOUT: plan.duplicate_stdout_filters,
            STDERR: plan.duplicate_stderr_filters,
        }[number]
        console = number if shown and (tee or not to_file) else None

        if not filters and not to_file and self._log is None:
            if console is None and number == STDOUT:
                null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
                stack.callback(os.close, null)
                return null
            if console is not None and (number == STDOUT or os.isatty(number)):
                return number

        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, write_end)
        os.set_blocking(read_end, False)
        rank.streams[number] = Stream(
            source=read_end,
            console=console,
            prefix=self._prefix(rank.place) if tee else b"",
            shows_prompts=local_rank == plan.stdin_rank,
            file=self._file(rank.folder / _FILES[number]) if to_file else None,
            matches=[text.encode() for text in filters],
            matched_file=(
                self._file(self.folder / f"filtered_{_FILES[number]}") if filters else None
            ),
            log=self._log,
            log_prefix=self._log_prefix(rank.place),
        )
        return write_end

    def _file(self, path: Path) -> LogFile:
        writer = self._pump.writer(str(self._setup.run_dir), log_error)
        return LogFile(str(path), writer, log_error)

    def _log_prefix(self, place: RankPlace) -> bytes:
        """Specification 11: the global rank, aligned to the right."""
        return f"{place.rank:>{len(str(place.world_size - 1))}}: ".encode()

    def _prefix(self, place: RankPlace) -> bytes:
        template = Template(self._plan.log_line_prefix_template)
        return template.safe_substitute(
            role_name=self._plan.role,
            rank=place.rank,
            local_rank=place.local_rank,
            hostname=os.uname().nodename,
        ).encode()


class Rank0Port:
    """The port of rank 0 in the next cycle, kept free in case that is on this node.

    ``fixed``, the one that the user has chosen, is not kept. Raises OSError where none is free.
    """

    def __init__(self, fixed: int | None) -> None:
        self._fixed = fixed
        self._kept = ReservedPort() if fixed is None else None

    @property
    def number(self) -> int:
        """The port."""
        return self._kept.number if self._kept else self._fixed or 0

    def hand_over(self) -> ReservedPort | None:
        """The next cycle has it now."""
        kept, self._kept = self._kept, None
        return kept

    def reserve(self) -> bool:
        """Keep another if none is kept; whether :attr:`number` has changed.

        There may be no next cycle: a host without a free port must not cost a job its success.
        """
        if self._kept is not None or self._fixed is not None:
            return False
        try:
            self._kept = ReservedPort()
        except OSError as error:
            LOGGER.warning("no port can be kept for the next cycle, which uses the last: %s", error)
            return False
        return True

    def release(self) -> None:
        """There is no next cycle."""
        if self._kept:
            self._kept.release()


def read_error_file(path: Path) -> tuple[str | None, str | None]:
    """Message and traceback from a file of torch's ``@record`` format; None where there is none.

    The rank has written it, and may have written anything.
    """
    try:
        with path.open("rb") as file:
            return _message_in(json.loads(file.read(_ERROR_FILE_BYTES_MAX)))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None, None


def read_exiting_at(folder: Path, pid: int) -> float | None:
    """When a rank began to exit without an exception, as it has marked it; None: it has not."""
    try:
        return (folder / f"{EXITING_FILE}.{pid}").stat().st_mtime_ns / 1e9
    except OSError:
        return None


def _message_in(error: Any) -> tuple[str | None, str | None]:
    message = error["message"]
    if not isinstance(message, dict):
        return str(message)[:_MESSAGE_CHARS_MAX], None
    extra = message.get("extraInfo")
    traceback = extra.get("py_callstack") if isinstance(extra, dict) else None
    text = str(message.get("message", ""))[:_MESSAGE_CHARS_MAX]
    return text, traceback if isinstance(traceback, str) else None


def write_error_file(path: Path, text: str, exit_code: int, cause: RankEnd | None = None) -> None:
    """Write the first cause in torch's format, to the error file that the launcher was given.

    Kubernetes reads ``/dev/termination-log`` this way. A file that can't be written is passed over.
    ``exit_code`` is the rank's, or this launcher's where the cause is on another node.
    """
    found = Attribution() if cause is None else cause.attribution
    message = {
        "message": text,
        "errorCode": exit_code,
        "extraInfo": {
            "py_callstack": None if cause is None else cause.traceback,
            "timestamp": str(int(clock.wall())),
            "failure": str(found),
            "advice": found.advice,
            "place": found.place,
        },
    }
    with contextlib.suppress(OSError):
        path.write_text(json.dumps({"message": message}), encoding="utf-8")
