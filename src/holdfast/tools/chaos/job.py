"""Run the command under test, follow its ranks, and inject faults into them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.base.processes import child, proc, reaper
from holdfast.events.pure.schema import LAUNCHER_FILE, Event, LauncherStarted, RankStarted
from holdfast.events.run.event_lines import first_event
from holdfast.testing.chaos_rank import FOLDER, ORDER_SIGNAL, STEPS, UNKNOWN
from holdfast.testing.inject import HOOK, SIGNALS, Fault
from holdfast.tools.chaos import explanation
from holdfast.tools.chaos.explanation import Explanation
from holdfast.tools.chaos.trial import JobSeen, Steps, Struck
from holdfast.tools.run.follower import Follower

if TYPE_CHECKING:
    from holdfast.base.pure.ownership import Identity

GRACE_S = 15.0
"""Between SIGTERM to a launcher and SIGKILL."""
_KILL_S = 30.0
"""How long processes may take to end after SIGKILL."""
_CHUNK_BYTES = 1 << 20


class RankFinder:
    """Finds the processes of a launcher's ranks, and reads its reports about them.

    Attributes:
        pids: By cycle and rank.
    """

    def __init__(self, folder: Path, pid: int) -> None:
        self.pids: dict[int, dict[int, int]] = {}
        self._folder = folder
        self._launcher = pid

    def look(self, lines: Sequence[tuple[float, str]]) -> None:
        """Read new reports; ``lines``: of the console, with their instants."""
        raise NotImplementedError

    def explain(self, cycle: int) -> Explanation:
        """Why a cycle ended."""
        raise NotImplementedError


class FtRanks(RankFinder):
    """Of ``ft_launcher``, which writes events; ``folder``: its log folder."""

    _follower: Follower | None = None

    def __init__(self, folder: Path, pid: int) -> None:
        super().__init__(folder, pid)
        self._run_dir = folder
        self._events: list[Event] = []

    def look(self, lines: Sequence[tuple[float, str]]) -> None:  # noqa: ARG002 - events say more
        """Read new events."""
        if self._follower is None:
            self._find_run_dir()
            return
        for event in self._follower.fresh():
            self._events.append(event)
            if isinstance(event.body, RankStarted):
                self.pids.setdefault(event.cycle, {})[event.body.rank] = event.body.pid

    def _find_run_dir(self) -> None:
        for path in self._folder.glob(f"*/{LAUNCHER_FILE}"):
            if path.parent.is_symlink():  # the latest run, which another one may become
                continue
            first = first_event(path.parent)
            start = first.body if first is not None else None
            if isinstance(start, LauncherStarted) and start.pid == self._launcher:
                self._run_dir, self._follower = path.parent, Follower(path.parent)

    def explain(self, cycle: int) -> Explanation:
        """From events and incidents."""
        return explanation.read(self._run_dir, self._events, cycle)


class TorchrunRanks(RankFinder):
    """Of torchrun: ranks leave their pids in ``folder``, and its log names the one that failed."""

    def __init__(self, folder: Path, pid: int) -> None:
        super().__init__(folder, pid)
        self._lines: list[tuple[float, str]] = []

    def look(self, lines: Sequence[tuple[float, str]]) -> None:
        """Look for new ranks."""
        self._lines += lines
        for path in self._folder.glob("hello.*[0-9]"):
            with contextlib.suppress(OSError, ValueError):
                rank, cycle, parent = map(int, path.read_text().split())
                if parent == self._launcher:
                    self.pids.setdefault(cycle, {})[rank] = int(path.suffix[1:])

    def explain(self, cycle: int) -> Explanation:
        """From torchrun's log."""
        ranks = {pid: rank for rank, pid in self.pids.get(cycle, {}).items()}
        return explanation.of_torchrun(self._lines, ranks)


@dataclass(frozen=True)
class Setup:
    """A command to start, and how its ranks are followed.

    Attributes:
        world: Ranks of the job.
        launchers: Processes of the command: nodes, and spares.
        folder: For the console and the files of ranks; empty.
        log_dir: Of ``ft_launcher``; ``None``: it is torchrun.
        step_pattern: A line of output that matches is a step, its first group the step's number;
            ``None``: ranks note their steps.
    """

    command: Sequence[str]
    folder: Path
    world: int
    log_dir: Path | None
    step_pattern: re.Pattern[str] | None = None
    launchers: int = 1


@dataclass
class _Printed:
    pattern: re.Pattern[str]
    cycles: dict[int, Steps] = field(default_factory=dict)

    def take(self, cycle: int, lines: Sequence[tuple[float, str]]) -> None:
        for at, line in lines:
            if match := self.pattern.search(line):
                number = int(match[1]) if match.groups() and match[1].isdigit() else None
                old = self.cycles.get(cycle, Steps(0, first_at=at, first=number))
                self.cycles[cycle] = replace(old, last_at=at, last=number)


class Job:
    """One start of the command. Its processes end with :meth:`close` at the latest.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._console = setup.folder / "console.log"
        self._printed = _Printed(setup.step_pattern) if setup.step_pattern else None
        self._rest = b""
        self._struck_pid = 0
        self._struck_cycle = -1
        self._struck: Struck | None = None
        self._exit_code: int | None = None
        self._exit_codes: list[int] = []
        child.become_subreaper()  # or ranks of a torchrun that was killed would stay
        self._console.touch()
        self._read_to = self._console.stat().st_size
        self._ranks: dict[int, RankFinder] = {}
        """By the pid of their launcher."""
        self._running: set[int] = set()
        """Launchers."""
        self._killed: set[int] = set()
        """Launchers that a fault has ended."""
        for _ in range(setup.launchers):
            self._start()

    def _start(self) -> None:
        setup = self._setup
        with self._console.open("ab") as console:
            streams = {1: console.fileno(), 2: console.fileno()}
            command = [*child.death_tie(), *setup.command]
            pid = child.spawn(command, self._environ(), streams)
        self._running.add(pid)
        self._ranks[pid] = (
            TorchrunRanks(setup.folder, pid)
            if setup.log_dir is None
            else FtRanks(setup.log_dir, pid)
        )

    def _environ(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(HOOK), os.environ.get("PYTHONPATH"))))
        return {**os.environ, "PYTHONPATH": path, FOLDER: str(self._setup.folder)}

    # ------------------------------------------------------------ see
    def look(self) -> JobSeen:
        """The job now."""
        lines = list(self._fresh_lines())
        if self._printed is not None:
            self._printed.take(max(self._complete(), default=-1), lines)
        for ranks in self._ranks.values():
            ranks.look(lines)
        self._reap()
        complete = self._complete()
        cycles = {
            cycle: {rank: self._steps(cycle, pid) for rank, pid in complete[cycle].items()}
            for cycle in {self._struck_cycle, max(complete, default=-1)} & {*complete}
        }
        return JobSeen(cycles, self._answer(), self._exit_code)

    def explain(self, cycle: int) -> Explanation:
        """The launcher's report about a cycle that failed."""
        lines = list(self._fresh_lines())
        for ranks in self._ranks.values():
            ranks.look(lines)
        found = [ranks.explain(cycle) for ranks in self._ranks.values()]
        return found[0] if len(found) == 1 else explanation.of_nodes(found)

    def _fresh_lines(self) -> Iterator[tuple[float, str]]:
        now = clock.monotonic()
        with self._console.open("rb") as file:
            file.seek(self._read_to)
            data = file.read(_CHUNK_BYTES)
        self._read_to += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield now, line.decode(errors="replace")

    def _complete(self) -> dict[int, Mapping[int, int]]:
        pids: dict[int, dict[int, int]] = {}
        for ranks in self._ranks.values():
            for cycle, of_node in ranks.pids.items():
                pids.setdefault(cycle, {}).update(of_node)
        return {cycle: ranks for cycle, ranks in pids.items() if len(ranks) == self._setup.world}

    def _steps(self, cycle: int, pid: int) -> Steps:
        if self._printed is not None:
            return replace(self._printed.cycles.get(cycle, Steps(0)), pid=pid)
        try:
            data = (self._setup.folder / f"steps.{pid}").read_bytes()
        except OSError:
            return Steps(pid)
        if len(data) != STEPS.size:
            return Steps(pid)
        first_at, first, last_at, last, _ = STEPS.unpack(data)
        return Steps(pid, first_at, _number(first), last_at, _number(last))

    # ------------------------------------------------------------ inject
    def strike(self, fault: Fault, pid: int) -> None:
        """Have a rank get a fault; :attr:`.Seen.struck` says when it has it."""
        self._struck_pid, self._struck = pid, None
        self._struck_cycle = max(self._complete(), default=-1)
        state, stat = proc.process_state(pid), proc.stat(pid)
        if state is None or stat is None or stat.parent not in self._running:
            return  # its cycle is about to end
        if fault is Fault.NODE:
            self._struck = Struck(clock.monotonic())
            self._killed.add(stat.parent)
            os.kill(stat.parent, signal.SIGKILL)
        elif fault in SIGNALS:
            self._struck = Struck(clock.monotonic())
            os.kill(pid, SIGNALS[fault])
        elif not state.catches(ORDER_SIGNAL):
            why = "the rank has no hook: is it Python, without -E, -I and -S?"
            self._struck = Struck(clock.monotonic(), why)
        else:
            order = self._setup.folder / f"order.{pid}"
            new = order.with_name(f"{order.name}.new")
            new.write_text(fault.value)
            new.replace(order)
            os.kill(pid, ORDER_SIGNAL)

    def withdraw(self) -> None:
        """Forget the last order, if it was not carried out."""
        (self._setup.folder / f"order.{self._struck_pid}").unlink(missing_ok=True)
        self._struck_pid, self._struck = 0, None

    def _answer(self) -> Struck | None:
        path = self._setup.folder / f"struck.{self._struck_pid}"
        if self._struck is None and self._struck_pid and path.exists():
            at, _, refusal = path.read_text().partition(" ")
            self._struck = Struck(float(at), refusal)
            path.unlink()
        return self._struck

    # ------------------------------------------------------------ end
    def ask_to_end(self) -> None:
        """SIGTERM to the launchers."""
        for pid in self._running:
            child.send_signal(pid, signal.SIGTERM)

    def kill(self) -> list[int]:
        """SIGKILL to all processes of the job; pids of those that do not end."""
        return reaper.end_all(_KILL_S, self._below, self._reap)

    def _reap(self) -> None:
        for reaped in child.reap():
            if reaped.pid not in self._running:
                continue
            self._running.discard(reaped.pid)
            if reaped.pid not in self._killed:
                self._exit_codes.append(reaped.exit_code)
            elif self._setup.launchers > 1:
                self._start()  # the next spare
        if not self._running and self._exit_code is None:
            self._exit_code = next(filter(None, self._exit_codes), 0)

    def _below(self) -> dict[int, Identity]:
        found = proc.subtree(os.getpid())
        return {pid: (pid, facts.started) for pid, facts in found.items() if pid != os.getpid()}


def _number(value: float) -> int | None:
    return None if value == UNKNOWN else int(value)
