"""The cost of a run's snapshots, and the steps that its restarts lost with them. Pure.

From events: a node counts the snapshots of its ranks in each cycle; a cycle begins from one of
them, or from none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from holdfast.arena.pure.budget import shown
from holdfast.base.processes.job_name import host_of
from holdfast.base.pure.value import Value
from holdfast.base.pure.wording import count, duration
from holdfast.events.pure import schema
from holdfast.events.run.rank_spans import RankSpans
from holdfast.tools.report.timeline import Recovery


class RestartSource(Value):
    """The state that the ranks of a cycle began from: after a restart, or left by an earlier job.

    Attributes:
        cycle: That began.
        step: Of the snapshot; None: from none, and so from a checkpoint or anew.
        of_cycle: That had taken it.
        steps_lost: Steps that were done and are computed again; None: not known.
        steps_since_save: As many would be lost from the last checkpoint, about; None: not known.
        why: No snapshot, or no newer one, could be used; empty: it is the newest.
        is_from_peer: The node of some ranks was lost, and others had their parts.
        sources: Those nodes.
        file: Its name on disk; empty: it was in memory.
        offered_step: Of one on disk of another number of ranks, which the script could read.
    """

    cycle: int
    step: int | None = None
    of_cycle: int | None = None
    steps_lost: int | None = None
    steps_since_save: int | None = None
    why: str = ""
    is_from_peer: bool = False
    sources: tuple[str, ...] = ()
    file: str = ""
    offered_step: int | None = None

    @property
    def words(self) -> str:
        """``from the snapshot of step 41, 1 step again instead of about 34``."""
        instead = self.steps_since_save
        more = "" if instead is None or self.step is None else f" instead of about {instead}"
        again = "" if self.steps_lost is None else f", {count(self.steps_lost, 'step')} again{more}"
        return f"{self._from}{again}"

    @property
    def _from(self) -> str:
        if self.step is None:
            offered = (
                f" but the one of step {self.offered_step} on disk, of another number of ranks"
            )
            return "without a snapshot" + ("" if self.offered_step is None else offered)
        place = " on disk" if self.file else ""
        if self.is_from_peer:
            place = f", kept at another node ({', '.join(map(host_of, self.sources))})"
        return f"from the snapshot of step {self.step}{place}"


class KeptStepTotals(Value):
    """Steps of which each node had the snapshots copied to another one.

    Attributes:
        steps: How many.
        n_bytes: Of all copies of them.
        copy_s: For copies, of the node that took the longest.
        failures: Copies that failed, of all nodes.
        why: The last failure, with its node; empty: none.
    """

    steps: int
    n_bytes: int
    copy_s: float
    failures: int
    why: str


class WrittenSnapshot(Value):
    """The part of one node of the snapshot that the job has left on disk at its end.

    Attributes:
        why: Why it is not there; empty: it is.
    """

    node: str
    step: int
    file: str
    n_bytes: int
    seconds: float
    why: str


class RunSnapshots(Value):
    """Snapshots of a run. Counts and seconds are those of one rank, of the node with the most.

    Attributes:
        taken: In all cycles.
        skipped: No slot was free, or no memory.
        seconds: That they have added to the time of the training.
        share: Of the time of steps; None: that is not known.
        every: One of so many steps is taken; 0: not agreed.
        restarts: The source of each, but of those in place.
        in_place: Restarts in place from a snapshot.
        steps_lost: By all of them, and in place; None: of one it is not known.
        off: Why nodes took none, by node.
        kept: None: the job kept no steps at other nodes.
        written: At the end of the job.
    """

    taken: int
    skipped: int
    seconds: float
    share: float | None
    every: int
    restarts: tuple[RestartSource, ...]
    steps_lost: int | None
    off: dict[str, str]
    in_place: int = 0
    kept: KeptStepTotals | None = None
    written: tuple[WrittenSnapshot, ...] = ()


def snapshots_of(
    events: Sequence[schema.Event],
    recoveries: Iterable[Recovery],
    spans: Iterable[RankSpans],
    steps_s: float,
) -> RunSnapshots | None:
    """None: no rank has used snapshots.

    Args:
        events: Of all launchers, in any order.
        recoveries: Cycles that failed.
        spans: Of each launcher, with the time of steps since the last checkpoint.
        steps_s: Time of steps, of a rank on average.
    """
    taken: dict[tuple[int, int], schema.SnapshotsTaken] = {}
    restored: dict[int, schema.SnapshotRestored] = {}
    offered: dict[int, int] = {}
    written: list[WrittenSnapshot] = []
    refused: dict[int, str] = {}
    off: dict[str, str] = {}
    started: set[int] = set()
    in_place: dict[tuple[int, int], int | None] = {}
    is_used = False
    for event in sorted(events, key=lambda event: event.t):
        match event.body:
            case schema.SnapshotsOn():
                is_used = True
                off.pop(event.node, None)
            case schema.SnapshotsOff(why=why):
                is_used, off[event.node] = True, why
            case schema.SnapshotsTaken():
                is_used, taken[event.launcher, event.cycle] = True, event.body
            case schema.SnapshotRestored():
                is_used = True
                restored.setdefault(event.cycle, event.body)
            case schema.SnapshotOffered(step=step):
                is_used, offered[event.cycle] = True, step
            case schema.SnapshotWritten(step=step, file=file, seconds=s, why=why):
                written.append(WrittenSnapshot(event.node, step, file, event.body.n_bytes, s, why))
            case schema.SnapshotRefused(rank=rank, step=step, why=why):
                refused[event.cycle + 1] = f"rank {rank} could not use step {step}: {why}"
            case schema.InPlaceRestart(call=call, step=step, lost_steps=lost_steps):
                if step is not None and event.cycle is not None:
                    is_used, in_place[event.cycle, call] = True, lost_steps
            case schema.CycleJoined():
                started.add(event.cycle)
    if not is_used:
        return None
    sums = _Sums(taken)
    since_save: dict[int, float] = {}
    for made in spans:
        for cycle, s in made.since_save_s.items():
            since_save[cycle] = max(s, since_save.get(cycle, 0.0))
    reported = {recovery.cycle + 1: recovery.steps_lost for recovery in recoveries}
    restarts = tuple(
        _source(
            cycle,
            restored.get(cycle),
            reported.get(cycle),
            _steps(since_save.get(cycle - 1), sums.step_s.get(cycle - 1)),
            refused.get(cycle, ""),
            offered.get(cycle),
        )
        for cycle in sorted(started)
        if cycle > 0 or cycle in restored or cycle in offered
    )
    lost = [it.steps_lost for it in restarts if it.cycle > 0] + [*in_place.values()]
    known = [n for n in lost if n is not None]
    return RunSnapshots(
        taken=sum(sums.taken.values()),
        skipped=sum(sums.skipped.values()),
        seconds=round(sum(sums.seconds.values()), 6),
        share=round(sum(sums.seconds.values()) / steps_s, 6) if steps_s > 0.0 else None,
        every=max((it.every for it in taken.values()), default=0),
        restarts=restarts,
        steps_lost=sum(known) if len(known) == len(lost) else None,
        off=off,
        in_place=len(in_place),
        kept=_kept(events),
        written=tuple(written),
    )


def _kept(events: Iterable[schema.Event]) -> KeptStepTotals | None:
    kept: dict[tuple[int, int], int] = {}
    seconds: dict[int, float] = {}
    failures: list[tuple[float, str]] = []
    is_used = False
    for event in events:
        match event.body:
            case schema.SnapshotPeer(peer=peer):
                is_used |= bool(peer)
            case schema.SnapshotKept(step=step, n_bytes=n_bytes):
                kept[event.cycle, step] = n_bytes  # each node has it
            case schema.SnapshotCopied(seconds=s):
                seconds[event.launcher] = seconds.get(event.launcher, 0.0) + s
            case schema.SnapshotNotCopied(why=why):
                failures.append((event.t, f"node {event.node}: {why}"))
    if not is_used and not kept:
        return None
    longest = round(max(seconds.values(), default=0.0), 6)
    last = max(failures, default=(0.0, ""))[1]
    return KeptStepTotals(len(kept), sum(kept.values()), longest, len(failures), last)


class _Sums:
    """By cycle, of the node with the most."""

    def __init__(self, taken: Mapping[tuple[int, int], schema.SnapshotsTaken]) -> None:
        self.taken: dict[int, int] = {}
        self.skipped: dict[int, int] = {}
        self.seconds: dict[int, float] = {}
        self.step_s: dict[int, float] = {}
        for (_, cycle), it in taken.items():
            self.taken[cycle] = max(it.taken, self.taken.get(cycle, 0))
            self.skipped[cycle] = max(it.skipped, self.skipped.get(cycle, 0))
            self.seconds[cycle] = max(it.seconds, self.seconds.get(cycle, 0.0))
            self.step_s[cycle] = max(it.step_s or 0.0, self.step_s.get(cycle, 0.0))


def _source(
    cycle: int,
    restored: schema.SnapshotRestored | None,
    reported: int | None,
    since_save: int | None,
    refused: str,
    offered: int | None,
) -> RestartSource:
    if restored is not None:
        return RestartSource(
            cycle,
            restored.step,
            restored.of_cycle,
            restored.lost_steps,
            since_save,
            restored.why or refused,
            is_from_peer=bool(restored.sources),
            sources=restored.sources,
            file=restored.file,
        )
    lost = since_save if reported is None else reported
    return RestartSource(cycle, None, None, lost, since_save, refused, offered_step=offered)


def _steps(s: float | None, step_s: float | None) -> int | None:
    return round(s / step_s) if s is not None and step_s else None


def cost_words(found: RunSnapshots) -> str:
    """``1204 taken, one step of 4, in 3.1 s of each rank, 0.9 % of its steps``."""
    share = "" if found.share is None else f", {100 * found.share:.2g} % of its steps"
    cadence = f", one step of {found.every}" if found.every > 1 else ""
    skipped = f"; {found.skipped} left out for want of memory" if found.skipped else ""
    cost = f"{duration(found.seconds)} of each rank{share}"
    return f"{found.taken} taken{cadence}, which cost {cost}{skipped}"


def lines(found: RunSnapshots) -> Iterator[str]:
    """For people, a line for each fact, the newest restarts."""
    yield f"Snapshots: {cost_words(found)}"
    for it in found.restarts[-_RESTARTS_SHOWN:]:
        why = f"; {it.why}" if it.why else ""
        yield f"  cycle {it.cycle} began {it.words}{why}"
    if found.in_place:
        yield f"  {count(found.in_place, 'restart')} in place began from a snapshot"
    for node, why in found.off.items():
        yield f"  off on node {node}: {why}"
    if found.kept is not None:
        yield f"  {_kept_words(found.kept)}"
    yield from _written(found.written)


def _written(parts: Sequence[WrittenSnapshot]) -> Iterator[str]:
    """Each node writes those it has; the newest of the most nodes is of use."""
    there = [part for part in parts if not part.why]
    nodes = Counter(part.file for part in there)
    newest = max(there, key=lambda part: (nodes[part.file], part.step), default=None)
    if newest is not None:
        of = [part for part in there if part.file == newest.file]
        size = f"{shown(sum(part.n_bytes for part in of))} of {count(len(of), 'node')}"
        took = duration(max(part.seconds for part in of))
        yield (
            f"  at the end the snapshot of step {newest.step} is on disk, {size} in {took}: "
            f"{newest.file}"
        )
    for part in parts:
        if part.why:
            size = f"{shown(part.n_bytes)} of node {part.node}: {part.why}"
            yield f"  at the end the snapshot of step {part.step} is not on disk, {size}"


def _kept_words(kept: KeptStepTotals) -> str:
    """``12 steps kept at other nodes: 3.2 GiB, for which a node copied for 4.1 s at most``."""
    cost = ""
    if kept.steps:
        cost = (
            f": {shown(kept.n_bytes)}, for which a node copied for {duration(kept.copy_s)} at most"
        )
    failed = f"; {kept.failures} not copied, the last on {kept.why}" if kept.failures else ""
    return f"{count(kept.steps, 'step')} kept at other nodes{cost}{failed}"


_RESTARTS_SHOWN = 20
