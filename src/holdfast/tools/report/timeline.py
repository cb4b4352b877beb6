"""What became of each failure: when it was found, when the ranks ran again, where they went on.

Pure: events in (see :mod:`holdfast.events.pure.schema`), values and text out; no file, no clock.
Instants are seconds of the monotonic clock of the node that the events come from.

    fault ......... detected ......... restarted ......... resumed
    (if recorded)   first symptom      every rank of the   (if the training says so)
                                       next cycle started

The launcher and the monitors know of detection and restart. The other two are the training's: it
may append events of the kinds ``fault`` and ``resumed`` to a file of the same form. What was not
recorded is ``None``, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from holdfast.events.pure.schema import (
    CycleOver,
    Event,
    FaultInjected,
    FirstCause,
    HangFound,
    RankExited,
    RankRaised,
    RankStarted,
    SignalReceived,
    TrainingResumed,
)
from holdfast.events.run.rank_words import named
from holdfast.evidence.pure.failure import Hang, describe_exit
from holdfast.watch.pure.monitor_messages import Evidence, Overdue

_T = TypeVar("_T")
_UNSURE_S = 0.02
"""Instants of two nodes that are nearer than that may be in either order."""
_PLACE = re.compile(r" \(pid \d+(?:, node [^)]*)?\)")
"""Where a rank is, in a verdict."""


@dataclass(frozen=True)
class Recovery:
    """One cycle that failed, and how the job went on.

    Attributes:
        cycle: The cycle that failed.
        symptom: What was seen first, in words; of crashes the first cause.
        detected_at: When.
        stacks: Files with the stacks of ranks, by rank, taken before the ranks were ended.
        evidence_at: When the last of them was.
        verdict: Which ranks are to blame, in words.
        verdict_at: When that was known.
        culprits: Global ranks that it names.
        fault: What was injected, in words.
        fault_at: When.
        fault_step: Steps done when it struck: the step it struck in, counted from 0.
        restarted_at: When the last rank of the next cycle had been started.
        resumed_at: When the training went on.
        resumed_step: Steps done according to the checkpoint it went on from.
    """

    cycle: int
    symptom: str
    detected_at: float
    stacks: Mapping[int, str] = field(default_factory=dict)
    evidence_at: float | None = None
    verdict: str | None = None
    verdict_at: float | None = None
    culprits: tuple[int, ...] = ()
    fault: str | None = None
    fault_at: float | None = None
    fault_step: int | None = None
    restarted_at: float | None = None
    resumed_at: float | None = None
    resumed_step: int | None = None

    @property
    def ended_by(self) -> str:
        """What the cycle ended of, in few words: where ranks hung, the one they waited for."""
        if not self.verdict or not self.culprits:
            return self.symptom
        return _PLACE.sub("", self.verdict.partition("; ")[0])

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


def recoveries(events: Iterable[Event]) -> list[Recovery]:
    """Every cycle in which a rank failed or hung, in order; events may come in any order."""
    by_cycle: dict[int, list[Event]] = {}
    for event in sorted(events, key=lambda event: event.t):
        by_cycle.setdefault(event.cycle, []).append(event)
    found = []
    for cycle, here in sorted(by_cycle.items()):
        if symptoms := _symptoms(here):
            found.append(_recovery(cycle, here, symptoms, by_cycle.get(cycle + 1, ())))
    return found


def _symptoms(here: Sequence[Event]) -> list[Event]:
    """What went wrong in a cycle, first things first; not ranks that a launcher has then ended.

    Where nothing went wrong with a rank, something else did, of which a launcher has said why the
    others go on without that cycle: a host that is not healthy, a node that is gone.
    """
    stops = [event for event in here if isinstance(event.body, (CycleOver, SignalReceived))]
    stopped_at: dict[int, float] = {}
    for event in stops:
        stopped_at.setdefault(event.launcher, event.t)
    found = [
        event
        for event in here
        if isinstance(event.body, Overdue)
        or (
            isinstance(event.body, (RankExited, RankRaised))
            and event.body.exit_code != 0
            and event.t <= stopped_at.get(event.launcher, float("inf"))
        )
    ]
    other = [e for e in stops if isinstance(e.body, CycleOver) and e.body.restart]
    return sorted(found, key=_noticed_at) or other[:1]


def _noticed_at(symptom: Event) -> float:
    return symptom.body.detected_at if isinstance(symptom.body, Overdue) else symptom.t


def _recovery(
    cycle: int, here: Sequence[Event], symptoms: Sequence[Event], following: Sequence[Event]
) -> Recovery:
    stacks = [(at, one.rank, one.stacks) for at, one in _of(Evidence, here) if one.stacks]
    recovery = Recovery(
        cycle=cycle,
        symptom=_words(symptoms, here),
        detected_at=_noticed_at(symptoms[0]),
        stacks={rank: path for _, rank, path in stacks},
        evidence_at=max((at for at, _, _ in stacks), default=None),
        restarted_at=max((at for at, _ in _of(RankStarted, following)), default=None),
    )
    for at, incident in _of(HangFound, here)[:1]:
        reason, culprits = incident.reason, incident.culprits
        recovery = replace(recovery, verdict=reason, verdict_at=at, culprits=culprits)
    for at, fault in _of(FaultInjected, here)[:1]:
        text = f"{fault.what} of rank {fault.rank} at step {fault.step}"
        recovery = replace(recovery, fault=text, fault_at=at, fault_step=fault.step)
    for at, resumed in _of(TrainingResumed, following)[:1]:
        recovery = replace(recovery, resumed_at=at, resumed_step=resumed.step)
    return recovery


def _of(kind: type[_T], events: Iterable[Event]) -> list[tuple[float, _T]]:
    """The records of a kind, with their instants."""
    return [(event.t, event.body) for event in events if isinstance(event.body, kind)]


def _words(symptoms: Sequence[Event], here: Sequence[Event]) -> str:
    hung = [(one.clock, one.name, one) for _, one in _of(Overdue, symptoms)]
    match symptoms[0].body:
        case CycleOver(cause=text):
            return text or "not known"
        case _ if not hung and (cause := _first_cause(here)) is not None:
            return f"rank {cause.rank}: {cause.why}"
        case RankExited(rank=rank, exit_code=code) | RankRaised(rank=rank, exit_code=code):
            return f"rank {rank}: {describe_exit(code)}"
    clock, name, first = hung[0]
    hang = Hang(clock, name, age_s=first.age_s, limit_s=first.limit_s)
    # One hung rank makes the others wait for it, so most hangs are several, found at once.
    alike = {one.rank for of_clock, of_name, one in hung if (of_clock, of_name) == (clock, name)}
    culprits = {rank for _, one in _of(HangFound, here)[:1] for rank in one.culprits}
    if culprits and culprits.isdisjoint(alike):
        return f"{named(alike)} waited for {named(culprits)} ({hang})"
    return f"{named(alike & culprits or alike)} hung ({hang})"


def _first_cause(here: Sequence[Event]) -> FirstCause | None:
    """Of what each node found out when its ranks had ended; of a tie, what the leader heard first.

    For that node it has stopped the cycle, and only that one says which local rank was the cause.
    """
    found = [(event.launcher, event.body) for event in here if isinstance(event.body, FirstCause)]
    causes = [it for it in found if not it[1].names_a_peer] or found
    if not causes:
        return None
    first = min((it for _, it in causes), key=lambda it: it.began_at)
    heard = {
        event.launcher
        for event in here
        if isinstance(event.body, CycleOver) and event.body.cause_local_rank is not None
    }
    ties = (it for it in causes if it[1].began_at - first.began_at <= _UNSURE_S)
    return next((it for launcher, it in ties if launcher in heard), first)


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
            whose = named(recovery.stacks.keys())
            rows.append((recovery.evidence_at, "evidence", f"stacks of {whose} written"))
        if recovery.verdict_at is not None:
            rows.append((recovery.verdict_at, "verdict", recovery.verdict or ""))
        if recovery.restarted_at is not None:
            began = f"all ranks of cycle {recovery.cycle + 1} started"
            rows.append((recovery.restarted_at, "restarted", began))
        if recovery.resumed_at is not None:
            lost = "" if recovery.steps_lost is None else f", {recovery.steps_lost} steps lost"
            rows.append((recovery.resumed_at, "resumed", f"at step {recovery.resumed_step}{lost}"))
        for at, what, words in sorted(rows, key=lambda row: row[0]):
            since = at - recovery.began_at
            when = f"at {at - start:7.2f} s" if at == recovery.began_at else f"+{since:9.3f} s"
            text.append(f"  {when}   {what:<10} {words}")
    return text
