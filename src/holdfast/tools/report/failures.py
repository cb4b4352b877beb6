"""The failures of a run, each once: culprit, line, cause, remedy, and how the job recovered.

Pure. A failure is known from up to three sides: its events, its incident, and the last lines of a
rank. Failures of one kind at one line of code are one that was repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.base.pure.value import Value
from holdfast.base.pure.wording import duration
from holdfast.events.pure import schema
from holdfast.events.run.run_words import named
from holdfast.evidence.pure.failure import describe_exit, signal_name
from holdfast.evidence.pure.last_words import is_own
from holdfast.tools.calls import why
from holdfast.tools.report.snapshot_facts import RestartSource
from holdfast.tools.report.thread_stacks import users_frame
from holdfast.tools.report.timeline import Recovery
from holdfast.tools.run.incident_files import Group, Incident
from holdfast.tools.run.run_files import Run

_LOST_IN = ("stalled", "stopping")
_LOST_AFTER = ("restarting", "waiting", "importing", "setup", "steps_again")
"""Accounts of the cycle that failed, and of the next one, that a failure costs."""
_MISMATCH = "mismatch"
_LINES = 5
"""Of a rank that hung: most of them are older than the hang."""


class Failure(Value):
    """One time that ranks failed or hung.

    Attributes:
        at_s: When it was detected, seconds since the run began.
        what: The culprit and its deed, in a few words.
        where: The user's line, and the rank; empty: not known.
        why: How that shows, and which ranks wait for it.
        advice: The remedy; empty: none is known.
        times: Later events, and their seconds after the detection.
        lost_s: Of each rank, on average.
        key: Equal for failures that look the same.
        stderr: First and last lines of the rank that failed; last ones of one that hung.
        incident: None: there is none.
        in_place: The ranks went on in the same processes.
        source: The state that they went on from, where the job uses snapshots; empty: not known.
    """

    cycle: int
    at_s: float
    what: str
    where: str
    why: str
    advice: str
    times: tuple[tuple[str, float], ...]
    lost_s: float
    key: tuple[str, ...]
    stderr: tuple[str, ...] = ()
    incident: Incident | None = None
    in_place: bool = False
    source: str = ""

    @property
    def groups(self) -> tuple[Group, ...]:
        """Ranks with equal stacks, culprits first."""
        return self.incident.groups if self.incident is not None else ()


class RepeatedFailure(Value):
    """Failures that look the same, in order of time."""

    failures: tuple[Failure, ...]

    @property
    def last(self) -> Failure:
        """The one that is shown."""
        return self.failures[-1]

    @property
    def lost_s(self) -> float:
        """Of each rank, on average, by all of them."""
        return sum(each.lost_s for each in self.failures)


class _RankFacts:
    """Facts of ranks, by cycle and rank."""

    def __init__(self, events: Iterable[schema.Event]) -> None:
        self.failed: dict[tuple[int, int], schema.RankFailed] = {}
        self.codes: dict[tuple[int, int], int] = {}
        self._place: dict[tuple[int, int], str] = {}
        for event in events:
            match event.body:
                case schema.RankFailed(rank=rank):
                    self.failed.setdefault((event.cycle, rank), event.body)
                case schema.RankExited(rank=rank, exit_code=code):
                    self.codes.setdefault((event.cycle, rank), code)
                case schema.RankStarted(rank=rank, pid=pid):
                    self._place[event.cycle, rank] = f"rank {rank}, pid {pid}, node {event.node}"

    def last_lines(self, cycle: int, rank: int | None) -> tuple[str, ...]:
        """Of the stderr of a rank that hung, without the lines that holdfast wrote there."""
        failed = self.failed.get((cycle, -1 if rank is None else rank))
        lines = failed.stderr if failed is not None else ()
        return tuple(line for line in lines if not is_own(line))[-_LINES:]

    def where(self, line: str, cycle: int, rank: int | None) -> str:
        """``/home/me/data.py:88, in load_batch (rank 5, pid 4711, node gpu-07)``."""
        place = "" if rank is None else self._place.get((cycle, rank), f"rank {rank}")
        return f"{line} ({place})" if line and place else line or place


def repeated_failures(
    run: Run,
    recoveries: Iterable[Recovery],
    cycles: Iterable[Mapping[str, Any]],
    in_place: Iterable[tuple[int, schema.InPlaceRestart]],
    sources: Mapping[int, RestartSource],
    *,
    n_ranks: int,
) -> list[RepeatedFailure]:
    """All failures of a run; the one with the earliest comes first.

    Args:
        run: Its incidents and events.
        recoveries: Cycles that failed.
        cycles: A row for each cycle (``Story.cycles``).
        in_place: Restarts in place, with their cycles.
        sources: By cycle, the state that it began from, where snapshots are used.
        n_ranks: Of the job, at least 1.
    """
    facts, incidents = _RankFacts(run.events), list(run.incidents)
    costs = _Costs(cycles, n_ranks)
    found = []
    for each in recoveries:
        incident = None
        if each.failed_rank is None:  # the last incident of a cycle has ended it
            incident = next((one for one in incidents[::-1] if one.cycle == each.cycle), None)
        if incident is not None:
            incidents.remove(incident)
        failure = _of_recovery(each, facts, incident, costs, run.began)
        source = sources.get(each.cycle + 1)
        found.append(failure if source is None else failure.but(source=source.words))
    found += [_of_incident(one, facts, run.began) for one in incidents]
    found += [_in_place(cycle, one, facts, run.began) for cycle, one in in_place]
    repeated: dict[tuple[str, ...], list[Failure]] = {}
    for failure in sorted(found, key=lambda each: each.at_s):
        repeated.setdefault(failure.key, []).append(failure)
    return [RepeatedFailure(tuple(each)) for each in repeated.values()]


class _Costs:
    """The cost of a cycle's failure, from the rows of all cycles."""

    def __init__(self, cycles: Iterable[Mapping[str, Any]], n_ranks: int) -> None:
        self._rows = {row["cycle"]: row for row in cycles}
        self._n_ranks = max(1, n_ranks)

    def lost_s(self, cycle: int) -> float:
        """Of each rank, on average."""
        here, after = (
            sum(row["rank_seconds"].get(account, 0.0) for account in accounts)
            for row, accounts in (
                (self._rows.get(cycle, {"rank_seconds": {}}), _LOST_IN),
                (self._rows.get(cycle + 1, {"rank_seconds": {}}), _LOST_AFTER),
            )
        )
        return float(here + after) / self._n_ranks

    def steps_after_s(self, cycle: int) -> float | None:
        """From the detection to the first step of the next cycle; None: not known."""
        failure = self._rows.get(cycle, {}).get("failure") or {}
        after_s: float | None = failure.get("steps_after_s")
        return after_s


def _of_recovery(
    one: Recovery, facts: _RankFacts, incident: Incident | None, costs: _Costs, began: float
) -> Failure:
    cycle, rank = one.cycle, one.failed_rank
    cause = one.cause
    reason = "" if cause is None else cause.why
    what, advice, key = one.symptom, "", ("", one.symptom)
    line, stderr = "", tuple[str, ...]()
    if rank is None and incident is not None:
        rank = next(iter(one.culprits), None)
        what, line = one.ended_by, _line_of(incident)
        reason, advice = _meanwhile(one.symptom, incident), incident.next
        key = (incident.kind, line or one.ended_by)
        stderr = facts.last_lines(cycle, rank)
        if incident.kind == _MISMATCH and len(incident.groups) > 1:
            what, reason = _mismatch(incident), incident.reason
            rank = None  # the lines of both sides are named
    elif rank is not None:
        failed = facts.failed.get((cycle, rank), schema.RankFailed(0, rank))
        code = facts.codes.get((cycle, rank))
        did = _did(failed, code)
        what, line, stderr = f"rank {rank} {did}", failed.place or "", failed.stderr
        advice, key = failed.advice or _advice(failed, code), (did, line)
        if cause is not None and cause.left_how:
            what, reason, advice = cause.left_how, cause.then, cause.advice
            key = ("left", line)
    elif one.culprits:
        what, reason, key = one.ended_by, one.symptom, ("hang", one.ended_by)
        rank = next(iter(one.culprits), None)
    return Failure(
        cycle=cycle,
        at_s=one.detected_at - began,
        what=what,
        where=facts.where(line, cycle, rank),
        why=f"planted: {one.fault}; {reason}" if one.fault else reason,
        advice=advice,
        times=tuple(_times(one, costs)),
        lost_s=costs.lost_s(cycle),
        key=key,
        stderr=stderr,
        incident=incident,
    )


def _times(one: Recovery, costs: _Costs) -> Iterable[tuple[str, float]]:
    for name, at in (
        ("culprit named", one.verdict_at),
        ("stacks written", one.evidence_at),
        (f"ranks of cycle {one.cycle + 1} started", one.restarted_at),
    ):
        if at is not None:
            yield name, at - one.detected_at
    if (steps_s := costs.steps_after_s(one.cycle)) is not None:
        yield "steps again", steps_s
    if one.resumed_at is not None:
        yield f"resumed at step {one.resumed_step}", one.resumed_at - one.detected_at


def _did(failed: schema.RankFailed, code: int | None) -> str:
    if failed.exception:
        kind = f" ({failed.failure})" if failed.failure else ""
        return f"raised {failed.exception}{kind}"
    if code is not None and code < 0:
        return f"was killed by {signal_name(-code)}"
    how = "failed" if code is None else f"ended with {describe_exit(code)}"
    return f"{how} ({failed.failure})" if failed.failure else how


def _advice(failed: schema.RankFailed, code: int | None) -> str:
    """For a failure that no rule knows."""
    if failed.exception and failed.place:
        return f"See {failed.place}: the exception was raised there, or in a call of that line"
    if code is not None and code < 0:
        return (
            f"Find the sender of {signal_name(-code)}: the log of the scheduler on that node, dmesg"
        )
    if not failed.stderr:
        return "Keep the output of ranks in the run folder: --tee 3"
    return ""


def _of_incident(one: Incident, facts: _RankFacts, began: float) -> Failure:
    """An incident whose cycle did not fail for it: its job was cut off, or the ranks recovered."""
    line, rank = _line_of(one), next(iter(one.culprits), None)
    return Failure(
        cycle=one.cycle,
        at_s=0.0 if one.at is None else one.at - began,
        what=one.reason or one.kind,
        where=facts.where(line, one.cycle, rank),
        why="",
        advice=one.next,
        times=(),
        lost_s=0.0,
        key=(one.kind, line or one.reason),
        incident=one,
    )


def _in_place(cycle: int, one: schema.InPlaceRestart, facts: _RankFacts, began: float) -> Failure:
    words = why(one)
    source = ""
    if one.step is not None:
        source = RestartSource(cycle, one.step, steps_lost=one.lost_steps).words
    rank = next(iter(one.culprits), one.causes[0].rank if one.causes else None)
    return Failure(
        cycle=cycle,
        at_s=one.noticed_at - began,
        what=words,
        where=facts.where("", cycle, rank),
        why="",
        advice="",
        times=((f"all ranks in call {one.call}", one.entered_at - one.noticed_at),),
        lost_s=one.entered_at - min(one.progress_at, one.noticed_at),
        key=("in place", *(cause.kind.value for cause in one.causes[:1]), words.partition(" ")[2]),
        in_place=True,
        source=source,
    )


def _line_of(incident: Incident) -> str:
    """The culprit's line; after a mismatch those of both sides."""
    groups = incident.groups
    culprits = [each for each in groups if set(each.ranks) & {*incident.culprits}]
    sides = groups[:2] if incident.kind == _MISMATCH else culprits[:1] or groups[:1]
    lines = []
    for group in sides:
        if (frame := users_frame(group.stack)) is not None:
            ranks = f"{named(group.ranks)}: " if len(sides) > 1 else ""
            lines.append(f"{ranks}{frame.file}:{frame.line}, in {frame.function}")
    return "; ".join(lines)


def _mismatch(incident: Incident) -> str:
    sides = [named(group.ranks) for group in incident.groups[:2]]
    if incident.culprits:
        return f"{sides[0]} called another collective than {sides[1]}"
    return f"{sides[0]} and {sides[1]} called different collectives"


def _meanwhile(symptom: str, incident: Incident) -> str:
    """The clock that ran out, and where the others are."""
    others = [each for each in incident.groups if not set(each.ranks) & {*incident.culprits}]
    shown = [f"{named(each.ranks)} {each.text}" for each in others[:3] if each.text]
    return "; meanwhile ".join(filter(None, [symptom, ", ".join(shown)]))


def in_words(times: Sequence[tuple[str, float]]) -> str:
    """``culprit named +0.096 s, ranks of cycle 1 started +0.14 s``."""
    return ", ".join(f"{name} +{duration(s)}" for name, s in times)
