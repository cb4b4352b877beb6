"""No behaviour depends on a text for people: with other words, everything else is the same."""

from __future__ import annotations

import enum
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.evidence.pure import evidence as e
from holdfast.evidence.pure.evidence import GroupDigest, Missing, RankDigest, Verdict
from holdfast.evidence.pure.failure import Hang, RankEnd
from holdfast.job.pure.incidents import verdict_on
from holdfast.job.pure.member import CycleStopping
from holdfast.job.pure.workload import Workload
from holdfast.node.pure.incident_words import Incident, to_json
from holdfast.node.pure.node import FailureSeen
from holdfast.page.pure.clocks import STEP
from tests.simulation.call_scenario import random_call
from tests.simulation.inprocess import CallSimulation
from tests.simulation.scenario import random_scenario
from tests.simulation.simulation import Simulation
from tests.unit.node.test_announcer import OVER, announcer, rank_end, ranks_of
from tests.unit.other_words import NONSENSE, other_words

N = 4
SHOWS: tuple[dict[str, Any], ...] = (
    {"waits_for": e.LOCK, "place": "load data.py:8"},
    {"waits_for": e.STORE, "call": "store.wait", "place": "meet train.py:30"},
    {"waits_for": e.SLEEP, "place": "nap train.py:3"},
    {"waits_for": e.FILE, "file": "/data/x.fifo", "place": "read train.py:4"},
    {"state": "T", "stopped_s": 700.0},
    {"state": "D", "waits_for": e.THAW},
    {"state": "D", "wchan": "nfs_wait"},
    {"state": "R", "cpu": 0.9, "place": "spin train.py:7"},
    {"helper": e.SILENT, "state": "R", "place": "", "stack": ""},
    {"helper": e.SILENT, "place": "", "stack": "", "has_handler": False, "lacks": "no stacks"},
    {"helper": e.SILENT, "place": "", "stack": "", "lacks": "no stacks: there was no time"},
    {"is_in_loader": True, "worker": "pid 9", "place": "next data.py:2"},
    {"is_in_loader": True, "worker": "pid 9", "is_worker_hidden": True},
    {"exception": "ValueError: bad sample", "state": "R"},
    {"exception": "RuntimeError: Connection closed by peer", "state": "R"},
    {"is_in_collective": True, "call": "all_reduce", "place": "step train.py:9"},
    {"is_transfer": True, "call": "recv", "place": "ring train.py:5"},
)
ENDS: tuple[dict[str, Any], ...] = (
    {"end": e.GONE},
    {"end": e.ENDED, "exit_code": -9, "stopped_s": 700.0},
    {"end": e.ENDED_BEFORE, "exit_code": 1, "ended_before_s": 9.0},
    {"end": e.ENDED_WELL, "exit_code": 0, "ended_before_s": 1.0, "stopped_s": 700.0},
    {"end": e.BEING_STOPPED},
    {"lacks": "its monitor died"},
)
GROUPS = (
    (),
    (GroupDigest("0 gloo", f"0-{N - 1}", 20, 20, last="all_reduce Float[8]"),),
    (GroupDigest("0 gloo", f"0-{N - 1}", 21, 20, "all_reduce Float[8]", 21),),
    (GroupDigest("0 gloo", f"0-{N - 1}", 21, 20, "broadcast Float[8]", 21, is_unusual=True),),
)


def some_job(seed: int) -> tuple[dict[int, RankDigest], dict[str, Missing]]:
    """What the ranks of one job show, most of them alike."""
    chance = random.Random(seed)
    usual = chance.choice(SHOWS), chance.choice(GROUPS)
    digests = {}
    for rank in range(N):
        shows, groups = usual
        if chance.random() < 0.4:
            shows, groups = chance.choice((*SHOWS, *ENDS)), chance.choice(GROUPS)
        told: dict[str, Any] = {"state": "S", "helper": e.ANSWERED, "stack": "c0de"}
        told.update(place="train train.py:9", groups=groups, pid=100 + rank)
        if "end" in shows or shows.keys() == {"lacks"}:
            told = {}
        told["overdue"] = chance.choice(("", "heartbeat", STEP))
        digests[rank] = RankDigest(rank, f"n{rank // 2}", rank % 2, **{**told, **shows})
    missing = {}
    if chance.random() < 0.2:
        is_asked = chance.random() < 0.5
        missing["n1"] = Missing("2,3", "did not answer", is_asked)
        digests = {rank: digests[rank] for rank in (0, 1)}
    return digests, missing


def facts_of(verdict: Verdict, incident: dict[str, Any]) -> dict[str, Any]:
    """Without what is for people."""
    texts = {"reason", "proof", "why_alone", "groups"}
    found = {key: value for key, value in vars(verdict).items() if key not in texts}
    found["groups"] = [(it.ranks, it.count, it.shows_nothing) for it in verdict.groups]
    found["is_proved"], found["is_alone"] = bool(verdict.proof), bool(verdict.why_alone)
    found["advice"] = len(incident["next"]) > 0
    return found


def judged(seed: int) -> dict[str, Any]:
    digests, missing = some_job(seed)
    verdict = verdict_on(digests, missing)
    incident = Incident(1, 0, "n0", "now", 0.0, verdict, digests)
    return facts_of(verdict, to_json(incident))


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_a_verdict_is_the_same_in_other_words(first: int) -> None:
    """Culprits, kind, confidence, which ranks show the same, whether any is ended."""
    seeds = range(first, first + 500)
    usual = [judged(seed) for seed in seeds]
    with other_words():
        verdict = verdict_on(*some_job(first))
        assert verdict.reason == NONSENSE
        assert {it.doing for it in verdict.groups} == {NONSENSE}
        for seed, facts in zip(seeds, usual, strict=True):
            assert judged(seed) == facts, f"seed {seed}"
    kinds = {facts["kind"] for facts in usual}
    assert {e.DEAD, e.STOPPED, e.WAITING, e.MISMATCH, e.MISSING} <= kinds


class Spoken(Simulation):
    """Keeps what launchers do and say, without what is for people."""

    def __post_init__(self) -> None:
        self.spoken: list[tuple[object, ...]] = []
        super().__post_init__()

    def _say(self, who: str, what: Any) -> None:
        self.spoken.append((round(self.clock.now, 6), who, type(what).__name__, *facts_in(what)))


class SpokenCall(CallSimulation):
    """The same of ranks, guards and the coordinator of a restart in place."""

    def __init__(self, *args: Any) -> None:
        self.spoken: list[tuple[object, ...]] = []
        super().__init__(*args)

    def _say(self, who: str, what: Any) -> None:
        self.spoken.append((round(self.clock.now, 6), who, type(what).__name__, *facts_in(what)))


def facts_in(record: Any) -> Iterator[object]:
    """Numbers, names of members of enums, and so on down; no text."""
    if isinstance(record, (tuple, list)):
        for each in record:
            yield from facts_in(each)
    elif isinstance(record, enum.Enum):
        yield record.name
    elif isinstance(record, (bool, int, float, type(None))):
        yield record
    elif not isinstance(record, (str, Workload)) and hasattr(record, "__dict__"):
        yield from facts_in([value for _, value in sorted(vars(record).items())])


def story(seed: int) -> tuple[list[tuple[object, ...]], list[object]]:
    """Of one job with all its faults; its messages travel as JSON."""
    job = Spoken(replace(random_scenario(seed, 3), codec=True), seed)
    return job.spoken, [*facts_in(job.run())]


def story_in_place(seed: int) -> tuple[list[tuple[object, ...]], list[object]]:
    """Of one call of a wrapped function, whose messages always do."""
    call = SpokenCall(random_call(seed, 6), seed)
    call.run()
    return call.spoken, [process.outcome for process in call.processes]


@pytest.mark.parametrize("tell", [story, story_in_place])
def test_processes_do_the_same_in_other_words(tell: Callable[[int], Any]) -> None:
    """Who stops, joins, leaves and when; every exit code; how often people are told something."""
    seeds = range(40)
    usual = [tell(seed) for seed in seeds]
    with other_words():
        for seed, (spoken, result) in zip(seeds, usual, strict=True):
            other, its_result = tell(seed)
            different = next((pair for pair in zip(other, spoken) if pair[0] != pair[1]), None)  # noqa: B905
            assert different is None, f"seed {seed}"
            assert (its_result, len(other)) == (result, len(spoken)), f"seed {seed}"


HANG = Hang("section", "step", 6.0, 5.0)
ECHO = "RuntimeError: Connection closed by peer"
ENDS_OF_A_CYCLE: dict[str, tuple[RankEnd, ...]] = {
    "one": (rank_end(0, 3, 1.0), rank_end(1, -15, 0.5, asked=True)),
    "the cause is another": (rank_end(0, 1, 2.0, error=ECHO), rank_end(1, 3, 1.0)),
    "hung": (
        rank_end(0, -9, 1.0, hang=HANG, is_condemned=True),
        rank_end(1, -15, 0.5, asked=True),
    ),
    "one had gone": (rank_end(0, 1, 1.0, error=ECHO), rank_end(1, 0, 2.0)),
}


def told_of(
    ends: tuple[RankEnd, ...], path: Path, caplog: pytest.LogCaptureFixture, *, has_incident: bool
) -> tuple[object, ...]:
    """Lines by their level, events without their texts, and what is reported to the job."""
    caplog.clear()
    says, launcher = announcer(path)
    events: list[object] = []
    says._event = lambda *told, **fields: events.append([*facts_in([*told, *fields.values()])])
    if has_incident:
        says.incident_over(OVER)
    report = says.failure_seen(FailureSeen(0, 0, every=True), ends[0])
    says.stopping(CycleStopping(0, report.cause, here=True, failure=report))
    found = says.cause_found(ranks_of(*ends))
    launcher.restarts_used = 1
    says.cycle_started(ranks_of(*ends, cycle=1))
    says.explain(0, ranks_of(*ends), will_restart=True)
    elsewhere, _ = announcer(path)
    elsewhere.incident_over(OVER)
    elsewhere.stopping(CycleStopping(0, report.cause, failure=report))
    there = elsewhere.cause_found(ranks_of(*ends))
    levels = [record.levelname for record in caplog.records]
    return (
        levels,
        events,
        report.facts,
        found and found.failure.facts,
        there and there.failure.facts,
    )


@pytest.mark.parametrize("has_incident", [False, True])
@pytest.mark.parametrize("ends", ENDS_OF_A_CYCLE.values(), ids=ENDS_OF_A_CYCLE)
def test_a_launcher_says_and_reports_the_same_in_other_words(
    ends: tuple[RankEnd, ...],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    has_incident: bool,
) -> None:
    """As many lines, of as high levels: none is left out because it looks like another one."""
    caplog.set_level(logging.INFO, "holdfast")
    usual = told_of(ends, tmp_path, caplog, has_incident=has_incident)
    with other_words():
        assert told_of(ends, tmp_path, caplog, has_incident=has_incident) == usual
