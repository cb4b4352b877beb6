"""The course of each failure: detection, restart of the ranks, resumption of the training.

Pure: events in (see :mod:`holdfast.events.pure.schema`), values and text out; no file, no clock.
Instants are seconds of the monotonic clock of the node that the events come from.

    fault ......... detected ......... restarted ......... resumed
    (if recorded)   first symptom      every rank of the   (if the training says so)
                                       next cycle started

The launcher and the monitors record detection and restart. A training may append events of the
kinds ``fault`` and ``resumed`` to a file of the same form; without, these instants are ``None``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from holdfast.base.pure.wording import count
from holdfast.events.pure import schema
from holdfast.events.run.run_words import named
from holdfast.evidence.pure.failure import describe_exit
from holdfast.watch.pure.monitor_messages import Evidence, Overdue

_T = TypeVar("_T")
_UNSURE_S = 0.02
"""Instants of two nodes that are nearer than that may be in either order."""


@dataclass(frozen=True)
class Recovery:
    """One cycle that failed, and how the job went on.

    Attributes:
        symptom: The first one, in words; of crashes the first cause.
        failed_rank: That failed first; None: it was a hang, or no rank did.
        cause: The first cause, of crashes; None: not known.
        stacks: Files with the stacks of ranks, by rank, taken before the ranks were ended.
        short: Those ranks and how they hang, in a few words; empty: not known.
        fault_step: Steps done when it struck: the step it struck in, counted from 0.
        restarted_at: When the last rank of the next cycle had been started.
        resumed_step: Steps done according to the checkpoint it went on from.
    """

    cycle: int
    symptom: str
    detected_at: float
    failed_rank: int | None = None
    cause: schema.FirstCause | None = None
    stacks: Mapping[int, str] = field(default_factory=dict)
    evidence_at: float | None = None
    verdict: str | None = None
    verdict_at: float | None = None
    culprits: tuple[int, ...] = ()
    short: str = ""
    fault: str | None = None
    fault_at: float | None = None
    fault_step: int | None = None
    restarted_at: float | None = None
    resumed_at: float | None = None
    resumed_step: int | None = None

    @property
    def ended_by(self) -> str:
        """The cause in few words: where ranks hung, the one they waited for."""
        if not self.verdict or not self.culprits:
            return self.symptom
        return self.short or self.verdict

    @property
    def began_at(self) -> float:
        """The fault, or its detection where the fault was not recorded."""
        return self.detected_at if self.fault_at is None else self.fault_at

    @property
    def steps_lost(self) -> int | None:
        """Steps that were done and had to be done again."""
        if self.fault_step is None or self.resumed_step is None:
            return None
        return self.fault_step - self.resumed_step


def recoveries(events: Iterable[schema.Event]) -> list[Recovery]:
    """Every cycle in which a rank failed or hung, in order; events may come in any order."""
    by_cycle: dict[int, list[schema.Event]] = {}
    for event in sorted(events, key=lambda event: event.t):
        by_cycle.setdefault(event.cycle, []).append(event)
    found = []
    for cycle, here in sorted(by_cycle.items()):
        if symptoms := _symptoms(here):
            found.append(_recovery(cycle, here, symptoms, by_cycle.get(cycle + 1, ())))
    return found


def _symptoms(here: Sequence[schema.Event]) -> list[schema.Event]:
    """Failed and hung ranks of a cycle in order of time, without those that its launcher stopped.

    Without one, the end of a cycle that is followed by another: an unhealthy host, a lost node.
    """
    stops = [
        event for event in here if isinstance(event.body, (schema.CycleOver, schema.SignalReceived))
    ]
    stopped_at: dict[int, float] = {}
    for event in stops:
        stopped_at.setdefault(event.launcher, event.t)
    found = [
        event
        for event in here
        if isinstance(event.body, Overdue)
        or (
            isinstance(event.body, (schema.RankExited, schema.RankRaised))
            and event.body.exit_code != 0
            and event.t <= stopped_at.get(event.launcher, float("inf"))
        )
    ]
    other = [e for e in stops if isinstance(e.body, schema.CycleOver) and e.body.restart]
    return sorted(found, key=_noticed_at) or other[:1]


def _noticed_at(symptom: schema.Event) -> float:
    return symptom.body.detected_at if isinstance(symptom.body, Overdue) else symptom.t


def _recovery(
    cycle: int,
    here: Sequence[schema.Event],
    symptoms: Sequence[schema.Event],
    following: Sequence[schema.Event],
) -> Recovery:
    stacks = [(at, one.rank, one.stacks) for at, one in _of(Evidence, here) if one.stacks]
    recovery = Recovery(
        cycle=cycle,
        symptom=_words(symptoms, here),
        detected_at=_noticed_at(symptoms[0]),
        stacks={rank: path for _, rank, path in stacks},
        evidence_at=max((at for at, _, _ in stacks), default=None),
        restarted_at=max((at for at, _ in _of(schema.RankStarted, following)), default=None),
    )
    if not _of(Overdue, symptoms):
        first, body = _first_cause(here), symptoms[0].body
        if first is not None:
            recovery = replace(recovery, failed_rank=first.rank, cause=first)
        elif isinstance(body, (schema.RankExited, schema.RankRaised)):
            recovery = replace(recovery, failed_rank=body.rank)
    for at, incident in _of(schema.HangFound, here)[:1]:
        recovery = replace(recovery, verdict=incident.reason, verdict_at=at)
        recovery = replace(recovery, culprits=incident.culprits, short=incident.short)
    for at, fault in _of(schema.FaultInjected, here)[:1]:
        text = f"{fault.what} of rank {fault.rank} at step {fault.step}"
        recovery = replace(recovery, fault=text, fault_at=at, fault_step=fault.step)
    for at, resumed in _of(schema.TrainingResumed, following)[:1]:
        recovery = replace(recovery, resumed_at=at, resumed_step=resumed.step)
    return recovery


def _of(kind: type[_T], events: Iterable[schema.Event]) -> list[tuple[float, _T]]:
    """The records of a kind, with their instants."""
    return [(event.t, event.body) for event in events if isinstance(event.body, kind)]


def _words(symptoms: Sequence[schema.Event], here: Sequence[schema.Event]) -> str:
    hung = [(one.clock, one.name, one) for _, one in _of(Overdue, symptoms)]
    match symptoms[0].body:
        case schema.CycleOver(cause=text):
            return text or "not known"
        case _ if not hung and (cause := _first_cause(here)) is not None:
            return cause.sentence
        case (
            schema.RankExited(rank=rank, exit_code=code)
            | schema.RankRaised(rank=rank, exit_code=code)
        ):
            return f"rank {rank}: {describe_exit(code)}"
    clock, name, first = hung[0]
    # One hung rank makes the others wait for it, so most hangs are several, found at once.
    alike = {one.rank for of_clock, of_name, one in hung if (of_clock, of_name) == (clock, name)}
    culprits = {rank for _, one in _of(schema.HangFound, here)[:1] for rank in one.culprits}
    if culprits and culprits.isdisjoint(alike):
        return f"{named(alike)} waited for {named(culprits)} ({first})"
    return f"{named(alike & culprits or alike)} hung ({first})"


def _first_cause(here: Sequence[schema.Event]) -> schema.FirstCause | None:
    """The first of all nodes; of a tie, that of the node for which the leader stopped the cycle.

    Only that node names a local rank as the cause.
    """
    found = [
        (event.launcher, event.body) for event in here if isinstance(event.body, schema.FirstCause)
    ]
    causes = [it for it in found if not it[1].names_a_peer]
    causes = causes or [it for it in found if it[1].left_how] or found
    if not causes:
        return None
    first = min((it for _, it in causes), key=lambda it: it.began_at)
    stopping = {
        event.launcher
        for event in here
        if isinstance(event.body, schema.CycleOver) and event.body.cause_local_rank is not None
    }
    ties = (it for it in causes if it[1].began_at - first.began_at <= _UNSURE_S)
    return next((it for launcher, it in ties if launcher in stopping), first)


def lines(found: Iterable[Recovery], start: float) -> list[str]:
    """The recoveries as text for people, at most 80 columns for short names.

    Args:
        found: What :func:`recoveries` returned.
        start: The instant to count from, seconds.
    """
    text = []
    for recovery in found:
        rows: list[tuple[float, str, str]] = []
        if recovery.fault_at is not None:
            rows.append((recovery.fault_at, "fault", recovery.fault or ""))
        rows.append((recovery.detected_at, "detected", recovery.symptom))
        if recovery.evidence_at is not None:
            ranks = named(recovery.stacks.keys())
            rows.append((recovery.evidence_at, "evidence", f"stacks of {ranks} written"))
        if recovery.verdict_at is not None:
            rows.append((recovery.verdict_at, "verdict", recovery.verdict or ""))
        if recovery.restarted_at is not None:
            began = f"all ranks of cycle {recovery.cycle + 1} started"
            rows.append((recovery.restarted_at, "restarted", began))
        if recovery.resumed_at is not None:
            words, lost = f"at step {recovery.resumed_step}", recovery.steps_lost
            if lost is not None:
                words += f", {count(lost, 'step')} lost"
            rows.append((recovery.resumed_at, "resumed", words))
        for at, kind, words in sorted(rows, key=lambda row: row[0]):
            since = at - recovery.began_at
            when = f"at {at - start:7.2f} s" if at == recovery.began_at else f"+{since:9.3f} s"
            text.append(f"  {when}   {kind:<10} {words}")
    return text
