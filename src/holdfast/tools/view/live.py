"""A job as it is now: ranks, their open sections, incidents.

Reads the run folders of the job's nodes and, for nodes on this host, the pages of their ranks. Only
:meth:`LiveJob.stacks` acts on ranks: it asks them for their stacks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from holdfast.arena.taken import TakenByNode
from holdfast.base import clock, wait_for
from holdfast.base.processes import proc
from holdfast.base.processes.job_name import clock_of, host_of
from holdfast.base.pure.wording import count
from holdfast.events.pure import schema
from holdfast.events.pure.schema import Event
from holdfast.events.run.run_links import runtime_dir_of
from holdfast.evidence.pure.failure import describe_exit, signal_name
from holdfast.evidence.stack_dump import StackDump
from holdfast.page import stall_file
from holdfast.page.page import PageError, map_page
from holdfast.page.pure.page_view import PageView
from holdfast.tools.calls import why
from holdfast.tools.node_copies import CopiedStep, NodeCopies
from holdfast.tools.node_snapshots import NodeSnapshots
from holdfast.tools.outages import Outages, RankStatus
from holdfast.tools.report.stragglers import Slow, Stragglers
from holdfast.tools.run.follower import Follower
from holdfast.tools.run.incident_files import Incident, keep, of_event, of_file
from holdfast.tools.run.node_clocks import Axis, ClockMarks, on_one_axis
from holdfast.tools.view.history import History, Rates
from holdfast.tools.view.job_view import JobView, NodeView, RankView
from holdfast.tools.view.verdict import Failed, Failures, verdict_of
from holdfast.watch.pure import hang
from holdfast.watch.pure.monitor_messages import Overdue

_RATE_S = 10.0
"""Iterations per second are taken over this time."""
_EVENTS_MAX = 200
_STACKS_S = 1.0


class _FollowedNode:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start: schema.LauncherStarted | None = None
        self.name = "?"
        self.outages = Outages(nproc=1 << 30)
        self.pids: dict[int, int] = {}
        self.incidents: list[Incident] = []
        self.in_place: set[tuple[int, int]] = set()
        self.failures = Failures()
        self.snapshots = NodeSnapshots()
        self.copies = NodeCopies()
        self.rates: list[tuple[float, float]] = []
        self._rates = Rates()
        self.marks = ClockMarks(str(folder))
        self.axis = Axis()
        self.last_at = 0.0
        self._follower = Follower(folder)
        self._runtime_dir: str | None = None

    def follow(self) -> Iterator[tuple[float, str]]:
        """Fresh events, in words for people, with their instants."""
        for event in self._follower.fresh():
            match event.body:
                case schema.LauncherStarted(job=job) as start:
                    self.start, self.name = start, event.node
                    self._runtime_dir = runtime_dir_of(job)
                    self.marks = ClockMarks(clock_of(job) or str(self.folder))
                case schema.RankStarted(local_rank=local_rank, pid=pid):
                    self.pids[local_rank] = pid
                case schema.HangFound() as judged:
                    self.incidents.append(of_event(event, judged, self.folder))
                case schema.InPlaceRestart(call=call):
                    self.in_place.add((event.cycle, call))
            self.failures.take(event)
            self.snapshots.take(event)
            self.copies.take(event)
            if (rate := self._rates.take(event)) is not None:
                self.rates.append(rate)
            self.marks.take(event)
            self.last_at = max(self.last_at, event.t)
            list(self.outages.take(event))
            if (text := _in_words(event, self.outages)) is not None:
                yield event.t, text

    @property
    def is_here(self) -> bool:
        return self._runtime_dir is not None and Path(self._runtime_dir).is_dir()

    @property
    def has_left(self) -> bool:
        """Its launcher was on this host, and is gone."""
        return self._runtime_dir is not None and not self.is_here

    def began(self) -> float:
        """When its launcher started, on the axis of the job."""
        return self.axis.at(self.marks.began_at or 0.0)

    def now(self) -> float | None:
        """The present on that axis; None: it runs on another host."""
        return None if self._runtime_dir is None else self.axis.at(clock.monotonic())

    def view(self) -> NodeView:
        """How it stands."""
        outages = self.outages
        if outages.end is not None:
            state = "succeeded" if isinstance(outages.end, schema.JobSucceeded) else "failed"
        elif self.has_left:
            # It removes its folder where nothing went wrong, with the event that says so.
            state = "gone" if self.folder.exists() else "succeeded"
        elif outages.is_spare:
            state = "spare"
        else:
            running = [rank.state in ("running", "completed") for rank in outages.ranks.values()]
            state = "running" if running and all(running) else "restarting"
        return NodeView(self.name, state, outages.cycle, self.is_here, str(self.folder))

    def newest_snapshot(self) -> tuple[TakenByNode | None, float | None]:
        """With its age in seconds, if that is known."""
        folder = self._runtime_dir if self.is_here else None
        seen, now = self.snapshots.now(folder, self.outages.ranks), self.now()
        at = None if seen is None or now is None else seen.at
        return seen, None if at is None or now is None else max(0.0, now - self.axis.at(at))

    def age_s(self, copied: CopiedStep | None) -> float | None:
        """Of a copy, or of the kept step."""
        now = self.now()
        if copied is None or now is None:
            return None
        return max(0.0, now - self.axis.at(copied.at))

    def page_path(self, local_rank: int) -> str:
        """Of a rank of the latest cycle."""
        return f"{self._runtime_dir}/c{self.outages.cycle}_r{local_rank}.page"

    def stall(self, local_rank: int) -> tuple[float, float] | None:
        """Of a rank of the latest cycle, see ``page/stall_file.py``."""
        path = stall_file.path_beside(self.page_path(local_rank), local_rank)
        return stall_file.read(path, self.outages.cycle)

    def dump_path(self, local_rank: int) -> str:
        """Where the rank writes its stacks."""
        cycle = self.outages.cycle
        return f"{self._runtime_dir}/evidence/{cycle}/attempt_{cycle}/{local_rank}/stacks.txt"


_Fresh = tuple[_FollowedNode, float, str]
"""An event in words, with its instant on the clock of its node."""


def _instant(event: _Fresh) -> float:
    node, at, _ = event
    return node.axis.at(at)


class LiveJob:
    """Follows the folders of one job's nodes.

    Args:
        folders: Run folders.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._nodes = [_FollowedNode(folder) for folder in folders]
        self._stragglers = Stragglers()
        self._iterations: dict[tuple[int, int], deque[tuple[float, int]]] = {}
        self._events: deque[_Fresh] = deque(maxlen=_EVENTS_MAX)
        self._incidents: dict[str, Incident] = {}
        self._incidents_read: dict[Path, int] = {}
        self._where: dict[int, tuple[_FollowedNode, int]] = {}
        self._history = History()

    @property
    def folders(self) -> list[Path]:
        """Of its nodes."""
        return [node.folder for node in self._nodes]

    def add(self, folder: Path) -> None:
        """Follow one more node of the job, which has joined it later."""
        self._nodes.append(_FollowedNode(folder))

    def look(self) -> JobView:
        """How it stands now."""
        fresh = [(node, *event) for node in self._nodes for event in node.follow()]
        axes, offset_s = on_one_axis([node.marks for node in self._nodes])
        for node, axis in zip(self._nodes, axes, strict=True):
            node.axis = axis
        self._events.extend(sorted(fresh, key=_instant))
        for node in self._nodes:
            self._read_incidents(node)
        view = JobView(wall=clock.wall(), nodes=[node.view() for node in self._nodes])
        self._say_which(view, offset_s)
        view.restarts = max((0, *(node.cycle for node in view.nodes)))
        view.restarts_in_place = len(set().union(*(node.in_place for node in self._nodes)))
        left = [node.outages.restarts_left for node in self._nodes]
        view.restarts_left = min((n for n in left if n is not None), default=None)
        self._look_at_all(view)
        view.snapshots = _snapshots(self._nodes)
        hangs = [one for one in self._incidents.values() if not one.stall]
        hangs.sort(key=lambda one: (one.cycle, one.name))
        view.incidents = [_shown(one) for one in hangs]
        view.verdict = verdict_of(hangs[-1] if hangs else None, self._last_failure(offset_s))
        self._add_rates(view, offset_s)
        view.history = self._history.points()
        view.events = [
            {"wall": _instant(event) + offset_s, "node": event[0].name, "text": event[2]}
            for event in sorted(self._events, key=_instant)
        ]
        return view

    def _say_which(self, view: JobView, offset_s: float) -> None:
        """Which job it is, and how old."""
        if not (begun := [node for node in self._nodes if node.start is not None]):
            return
        first = min(begun, key=_FollowedNode.began)
        assert first.start is not None
        view.name, view.run_id = first.start.name, first.start.run_id
        is_over = all(node.state in ("succeeded", "failed", "gone") for node in view.nodes)
        ends = [node.axis.at(node.last_at) for node in begun]
        nows = (now for node in begun if (now := node.now()) is not None)
        until = max(ends) if is_over else next(nows, view.wall - offset_s)
        view.age_s = max(0.0, until - first.began())

    def _add_rates(self, view: JobView, offset_s: float) -> None:
        """Those of the past, of fresh events, and that of now."""
        past = [(node.axis.at(at), rate) for node in self._nodes for at, rate in node.rates]
        for node in self._nodes:
            node.rates.clear()
        for at, rate in sorted(past):
            self._history.add(at + offset_s, rate)
        if rates := [one.per_s for one in view.ranks if one.per_s is not None]:
            self._history.add(view.wall, median(rates))

    def _last_failure(self, offset_s: float) -> tuple[Failed, float] | None:
        """The first one, of all nodes, in the last cycle that had one."""
        found = [(node.failures.last, node.axis) for node in self._nodes]
        known = [(one, axis.at(one.at) + offset_s) for one, axis in found if one is not None]
        return min(known, key=lambda one: (-one[0].cycle, one[1]), default=None)

    def _look_at_all(self, view: JobView) -> None:
        """All ranks, and which of them are slower than their peers."""
        totals: dict[int, dict[str, tuple[int, float]]] = {}
        self._where.clear()
        for node, seen in zip(self._nodes, view.nodes, strict=True):
            for local_rank, rank in sorted(node.outages.ranks.items()):
                self._where[rank.rank] = node, local_rank
                one, sections = self._look_at(node, local_rank, rank)
                is_over = node.outages.end is not None or one.state not in ("running", "overdue")
                if node.has_left and not is_over:  # or its folder is gone
                    one.state = "gone" if seen.state == "gone" else "completed"
                view.ranks.append(one)
                totals[rank.rank] = sections
        by_rank: dict[int, Slow] = {}
        for slow in self._stragglers.look(totals, clock.monotonic()):
            by_rank.setdefault(slow.rank, slow)
        for one in view.ranks:
            if found := by_rank.get(one.rank):
                one.slow = found.section, round(found.factor, 2)
        view.ranks.sort(key=lambda one: one.rank)

    def stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """The stacks of these ranks now, as text; of one that gives none, the reason in brackets.

        Each writes them from a signal handler of its own, as for its monitor; it takes a second at
        most, and its training goes on.
        """
        self.look()
        dumps: dict[int, StackDump | str] = {rank: self._ask(rank) for rank in ranks}
        give_up_at = clock.monotonic() + _STACKS_S
        waiting = [dump for dump in dumps.values() if isinstance(dump, StackDump)]
        while waiting := [dump for dump in waiting if not dump.step(clock.monotonic())]:
            now = clock.monotonic()
            if now >= give_up_at:
                break
            next_at = min(dump.next_step_at or now for dump in waiting)
            wait_for.any_readable((), max(0.0, min(next_at, give_up_at) - now))
        texts = {}
        for rank, dump in dumps.items():
            if isinstance(dump, str):
                texts[rank] = f"({dump})"
                continue
            texts[rank] = dump.text() or f"({dump.why_not})"
            dump.close()
            dump.process.close()
        return texts

    def _ask(self, rank: int) -> StackDump | str:
        if rank not in self._where:
            return f"there is no rank {rank}"
        node, local_rank = self._where[rank]
        pid = node.pids.get(local_rank, 0)
        if node.has_left:
            return f"rank {rank} has ended: its launcher is gone"
        if not node.is_here:
            return f"rank {rank} does not run on this host"
        try:
            page = map_page(node.page_path(local_rank), writable=False)
        except PageError as error:
            return str(error)
        view = PageView(page.words, page.names)
        signum, is_same = view.dump_signal, view.pid == pid
        del view
        page.close()
        if not is_same:
            return f"rank {rank} is not monitored"
        try:
            process = proc.Process(pid)
        except ProcessLookupError:
            return f"rank {rank} has ended"
        state = proc.process_state(pid)
        if state is not None and state.is_stopped:  # to ask it would wake it
            process.close()
            return f"rank {rank} is stopped (SIGSTOP, or a debugger)"
        path = node.dump_path(local_rank)
        return StackDump(process, signum, path, clock.monotonic())

    # ------------------------------------------------------------ one rank
    def _look_at(
        self, node: _FollowedNode, local_rank: int, rank: RankStatus
    ) -> tuple[RankView, dict[str, tuple[int, float]]]:
        one = RankView(rank.rank, node.name, local_rank, node.pids.get(local_rank), rank.state)
        if not node.is_here or rank.state not in ("running", "overdue"):
            return one, {}
        try:
            page = map_page(node.page_path(local_rank), writable=False)
        except PageError:
            return one, {}
        view = PageView(page.words, page.names)
        now, shown, limits = clock.monotonic(), view.snapshot(), view.limits()
        if shown is not None and shown.left_at is None:
            _fill(one, shown.sections, limits.sections, now)
            one.steps = view.steps or None
            if hang.is_by_steps(shown, limits.but(steps=math.inf)):
                _fill_steps(one, shown.last_sign_at, node.stall(local_rank), now)
            if shown.heartbeat_at is not None:
                one.heartbeat_age_s = max(0.0, now - shown.heartbeat_at)
                one.heartbeat_limit_s = limits.subsequent
                one.used = max(one.used or 0.0, _share(one.heartbeat_age_s, limits.subsequent))
        one.iteration = view.iteration
        ended = {name: (each.times, each.total_s) for name, each in view.ended_sections().items()}
        times = max((each[0] for each in ended.values()), default=None)
        del view
        page.close()
        counts = (one.iteration, one.steps, times)
        progress = next((count for count in counts if count is not None), None)
        one.per_s = self._rate((node.outages.cycle, rank.rank), now, progress)
        return one, ended

    def _rate(self, key: tuple[int, int], now: float, progress: int | None) -> float | None:
        if progress is None:
            return None
        past = self._iterations.setdefault(key, deque())
        while len(past) > 1 and past[1][0] <= now - _RATE_S:
            past.popleft()
        past.append((now, progress))
        (then, before), took_s = past[0], now - past[0][0]
        return (progress - before) / took_s if took_s > 0 and then else None

    def _read_incidents(self, node: _FollowedNode) -> None:
        while node.incidents:  # the event comes before the file, which a full disk may prevent
            keep(self._incidents, node.incidents.pop())
        for path in node.folder.glob("incidents/*/incident.json"):
            with suppress(OSError):
                version = path.stat().st_mtime_ns  # it is written again when more is known
                if self._incidents_read.get(path) != version and (
                    found := of_file(path, node.name)
                ):
                    self._incidents_read[path] = version
                    keep(self._incidents, found)


def _snapshots(nodes: Sequence[_FollowedNode]) -> dict[str, Any] | None:
    """Of the node that has the oldest of all newest ones: a restart would begin from that."""
    using = [node for node in nodes if node.snapshots.is_used and not node.outages.is_spare]
    if not using:
        return None
    off = [f"node {node.name}: {node.snapshots.off}" for node in using if node.snapshots.off]
    found = [node.newest_snapshot() for node in using]
    known = [(seen, age_s) for seen, age_s in found if seen is not None]
    steps = [seen.step for seen, _ in known]
    ages = [age_s for _, age_s in known if age_s is not None]
    is_known = len(known) == len(using)
    return {
        "step": min((n for n in steps if n is not None), default=None) if is_known else None,
        "age_s": max(ages) if ages else None,
        "every": max((seen.every for seen, _ in known), default=0),
        "taken": max(node.snapshots.taken for node in using),
        "seconds": round(max(node.snapshots.seconds for node in using), 6),
        "off": "; ".join(off),
        **_kept(using),
    }


def _kept(nodes: Sequence[_FollowedNode]) -> dict[str, Any]:
    """The oldest kept step that a node knows of, and the copies of each."""
    keeping = [node for node in nodes if node.copies.is_used]
    found = [(kept.step, node.age_s(kept)) for node in keeping if (kept := node.copies.kept)]
    # Of launchers that know one step, the last to join may not know its age.
    step, age_s = min(found, key=lambda one: (one[0], -(one[1] or 0.0)), default=(None, None))
    return {
        "kept_step": step,
        "kept_age_s": age_s,
        "copies": [
            {
                "node": node.name,
                "peer": host_of(node.copies.peer),
                "step": None if node.copies.copied is None else node.copies.copied.step,
                "age_s": node.age_s(node.copies.copied),
                "why": node.copies.why,
            }
            for node in keeping
        ],
    }


def _shown(one: Incident) -> dict[str, Any]:
    return {
        "path": str(one.path),
        "node": one.node,
        "cycle": one.cycle,
        "wall": one.wall,
        "kind": one.kind,
        "culprits": list(one.culprits),
        "reason": one.reason,
    }


def _fill(
    one: RankView,
    sections: Mapping[str, float],
    limits: Mapping[str, float | None],
    now: float,
) -> None:
    """The open section that is nearest to its timeout, else the youngest."""
    ages = {name: max(0.0, now - at) for name, at in sections.items()}
    shares = {name: _share(age_s, limits.get(name)) for name, age_s in ages.items()}
    if ages:
        one.section = max(ages, key=lambda name: (shares[name], -ages[name]))
        one.section_age_s = ages[one.section]
        one.section_limit_s = limits.get(one.section)
        one.used = shares[one.section]


def _fill_steps(
    one: RankView, sign_at: float, stall: tuple[float, float] | None, now: float
) -> None:
    """Of a rank that is watched by its optimizer's steps; ``stall``: as its monitor knows it."""
    known_at, one.step_limit_s = (0.0, None) if stall is None else stall
    one.step_age_s = max(0.0, now - max(sign_at, known_at))
    one.used = max(one.used or 0.0, _share(one.step_age_s, one.step_limit_s))


def _share(age_s: float, limit_s: float | None) -> float:
    return age_s / limit_s if limit_s else 0.0


def _in_words(event: Event, outages: Outages) -> str | None:
    """A line for people; None: the event is not for them."""
    match event.body:
        case schema.CycleJoined():
            return f"cycle {event.cycle} started"
        case schema.RankRaised(rank=rank) if not outages.is_stopping:
            return f"rank {rank}: an exception ended its program"
        case schema.RankExited(rank=rank, exit_code=code) if code and not outages.is_stopping:
            return f"rank {rank}: {describe_exit(code)}"
        case Overdue(rank=rank, name=name, clock=of_clock, age_s=age_s, limit_s=limit_s):
            where = f"{name or of_clock}: {age_s:.1f} s, timeout {limit_s:.4g} s"
            return f"rank {rank} timed out in {where}"
        case schema.CycleOver(cause=cause):
            return f"cycle {event.cycle} is over: {cause}"
        case schema.JobOver(end=end, exit_code=code):
            return f"the job {end}, exit code {code}"
        case schema.PauseFound(reason=reason):
            return f"optimizer steps have paused: {reason}"
        case schema.StallFound(reason=reason):
            return f"a stall, no rank is killed: {reason}"
        case schema.InPlaceRestart() as restart:
            return f"restarted in place: {why(restart)}"
        case schema.SnapshotRestored(step=step, lost_steps=lost):
            again = "" if lost is None else f", {count(lost, 'step')} again"
            return f"all ranks begin from the snapshot of step {step}{again}"
        case schema.SnapshotNotCopied(why=why_not):
            return f"its snapshots are not copied to another node: {why_not}"
        case schema.SnapshotWritten(step=step, file=file, why=why_not):
            there = f"is not on disk: {why_not}" if why_not else f"is on disk: {file}"
            return f"the snapshot of step {step} {there}"
        case schema.SignalReceived(signal=number):
            return f"{signal_name(number)}: the job is to end"
        case schema.StandingBy():
            return "waits as a spare"
    return None
