"""No behaviour depends on a text for people: with other words, everything else is the same."""

from __future__ import annotations

import enum
import json
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.pure.common_events import Begin, TimePassed
from holdfast.events.pure import schema
from holdfast.events.pure.schema import HangFound
from holdfast.events.run.run_words import done_in_short
from holdfast.evidence.pure import evidence as e
from holdfast.evidence.pure.evidence import Absence, GroupDigest, Missing, RankDigest, Verdict
from holdfast.evidence.pure.failure import RankEnd
from holdfast.job.pure import job_words
from holdfast.job.pure.assign import Policy
from holdfast.job.pure.incidents import Incidents, verdict_on
from holdfast.job.pure.leader import Leader
from holdfast.job.pure.leader_messages import Event
from holdfast.job.pure.member_messages import CycleStopping, RanksFailed
from holdfast.job.pure.membership import (
    CyclePlace,
    Descriptor,
    Digests,
    FailureReport,
    Join,
    Leave,
    LeaveWhy,
    Message,
    NodeState,
    Round,
    StateChanged,
    Suspect,
)
from holdfast.job.pure.rules import Rules
from holdfast.job.pure.timing import Pace
from holdfast.job.pure.workload import Workload
from holdfast.node.pure.incident_words import NodeIncident, to_json
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.page.pure.clocks import STEP
from holdfast.tools.report.timeline import recoveries
from holdfast.tools.run.incident_files import read_incidents
from holdfast.watch.pure.monitor_messages import Overdue, Signalled
from tests.overdue import overdue_section
from tests.simulation.call_scenario import random_call
from tests.simulation.inprocess import CallSimulation
from tests.simulation.random_scenario import random_scenario
from tests.simulation.simulation import Simulation
from tests.unit.node.test_reporter import OVER, announcer, rank_end, ranks_of
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
        absence = Absence.NO_ANSWER if chance.random() < 0.5 else Absence.NOT_ASKED
        missing["n1"] = Missing("2,3", absence, "did not answer")
        digests = {rank: digests[rank] for rank in (0, 1)}
    return digests, missing


def facts_of(verdict: Verdict, incident: dict[str, Any]) -> dict[str, Any]:
    """Without what is for people."""
    texts = {"reason", "proof", "why_alone", "short", "groups"}
    found = {key: value for key, value in vars(verdict).items() if key not in texts}
    found["groups"] = [(it.ranks, it.count, it.shows_nothing) for it in verdict.groups]
    found["is_proved"], found["is_alone"] = bool(verdict.proof), bool(verdict.why_alone)
    found["advice"] = len(incident["next"]) > 0
    return found


def judged(seed: int) -> dict[str, Any]:
    digests, missing = some_job(seed)
    verdict = verdict_on(digests, missing)
    incident = NodeIncident(IncidentOver(1, 0, (), verdict, digests, ""), "n0", "now", 0.0)
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

    def __init__(self, *args: Any) -> None:
        self.spoken: list[tuple[object, ...]] = []
        super().__init__(*args)

    def say(self, who: str, what: Any) -> None:
        self.spoken.append((round(self.clock.now, 6), who, type(what).__name__, *facts_in(what)))


class SpokenCall(CallSimulation):
    """The same of ranks, guards and the coordinator of a restart in place."""

    def __init__(self, *args: Any) -> None:
        self.spoken: list[tuple[object, ...]] = []
        super().__init__(*args)

    def say(self, who: str, what: Any) -> None:
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


def news_of_segments() -> list[object]:
    """The leader of a job in whole racks: the news of nodes that cannot fill one."""
    policy = Policy(2, 4, use_infra_group_rank=False, segment=2)
    leader, told = Leader(Rules(policy, first_last_call_s=0.0), Pace()), list[object]()

    def at(now: float, event: Event) -> None:
        for effect in leader.handle(event, now):
            told.append((now, type(effect).__name__, *facts_in(effect)))

    def join(now: float, node: str, rack: str) -> None:
        at(now, Join(node, Descriptor(node, node, 1, 7, domain=rack)))

    at(0.0, Begin())
    join(0.1, "n0", "a")
    join(0.2, "n1", "b")
    join(0.2, "n2", "c")
    for tenth in range(3, 30):
        at(tenth / 10, TimePassed())
    # One leaves and one comes: as many nodes as before wait, and for another reason.
    at(3.0, Leave("n2", LeaveWhy.SIGNALLED))
    join(3.0, "n3", "d")
    for tenth in range(31, 60):
        at(tenth / 10, TimePassed())
    return told


def lost_nodes_in_a_verdict() -> list[object]:
    """Two nodes are lost during an incident, and two do not answer: the groups of their ranks."""
    formed = Round(0, tuple(CyclePlace(f"n{k}", k, 1, k, "") for k in range(5)), world_size=5)
    incidents = Incidents()
    incidents.cycle_began(formed)
    hosts = {f"n{k}": f"host{k}" for k in range(5)}
    incidents.open(Suspect("n0", 0, 0), hosts, 0.0)
    incidents.answered(Digests("n0", 0, 1, (RankDigest(0, "host0", 0, place="step t.py:1"),)))
    for node in ("n1", "n2"):
        incidents.lost(node, job_words.lost(node, "silent", 15.0))
    found = incidents.judged(1.0)
    assert found is not None
    return [(it.ranks, it.count, it.shows_nothing) for it in found.verdict.groups]


def notes_on_ranks() -> list[object]:
    """A leader's notes on two assignments of one job: each cause is reported once."""
    policy = Policy(1, 3, use_infra_group_rank=True)
    rules = Rules(policy, max_restarts=2, first_last_call_s=0.0, grow_cooldown_s=0.0)
    leader, told = Leader(rules, Pace()), list[object]()

    def at(now: float, message: Message) -> None:
        found = leader.handle(message, now)
        told.append([type(effect).__name__ for effect in found])

    leader.handle(Begin(), 0.0)
    at(0.1, Join("n0", Descriptor("n0", "n0", 1, 7)))  # no node has an infra rank
    at(0.2, Join("n1", Descriptor("n1", "n1", 1, 7, infra_rank=1)))  # one has none
    at(0.3, Join("n0", Descriptor("n0", "n0", 1, 7), 0))
    at(0.4, StateChanged("n0", 1, NodeState.FAILED, FailureReport("x")))
    for node in ("n0", "n1"):
        at(0.5, Join(node, Descriptor(node, node, 1, 7), 1))
    return told


@pytest.mark.parametrize("of_a_leader", [news_of_segments, lost_nodes_in_a_verdict, notes_on_ranks])
def test_a_leader_does_the_same_in_other_words(of_a_leader: Callable[[], list[object]]) -> None:
    """Which news launchers get and when, which ranks a verdict groups, how often it notes."""
    usual = of_a_leader()
    with other_words():
        assert of_a_leader() == usual


def shown_by_a_report(folder: Path) -> dict[str, Any]:
    """Of a job whose rank 1 sleeps while ranks 0 to 999 wait; its incident is in two files."""
    digests = {
        rank: RankDigest(
            rank, f"n{rank % 2}", rank, state="S", waits_for=e.SLEEP if rank == 1 else ""
        )
        for rank in range(4)
    }
    verdict = Verdict((1,), e.WAITING, NONSENSE, e.HIGH)
    for node, ranks in (("a", range(0, 1000, 2)), ("b", range(1, 1000, 2))):
        signals = [Signalled(0, rank, 100 + rank, 9, "hung") for rank in ranks]
        over = IncidentOver(1, 0, (), verdict, digests, "")
        about = NodeIncident(over, node, "now", 0.0, signals=signals, next_cycle=1)
        path = folder / node / "incidents" / "0001-cycle0" / "incident.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({**to_json(about), "done": [NONSENSE] * 501}))
    (one,) = read_incidents([("a", folder / "a"), ("b", folder / "b")])
    short = done_in_short(one.signals, one.next_cycle)
    return {"culprits": one.culprits, "kind": one.kind, "lines": (len(one.done), len(short))}


def test_an_incident_is_read_by_its_facts(tmp_path: Path) -> None:
    """Signals of all nodes are one line, and the restart comes last, whatever their texts say."""
    usual = shown_by_a_report(tmp_path / "usual")
    assert usual == {"culprits": (1,), "kind": e.WAITING, "lines": (1001, 2)}
    with other_words():
        assert shown_by_a_report(tmp_path / "other") == usual


@pytest.mark.parametrize("reason", ["rank 1 (pid 7, node a) sleeps; 3 others wait", NONSENSE])
def test_a_cycle_is_said_to_end_of_its_culprit_whatever_the_verdict_says(reason: str) -> None:
    """The event has the few words beside the sentence: none are cut out of it."""
    overdue = Overdue(0, 0, 0, 100, "section", "step", 4.1, 4.0, False, 1.0, 1.1)
    judged = HangFound(
        1, (1,), e.WAITING, e.HIGH, reason, (0,), short="rank 1 sleeps in `f` x.py:8"
    )
    (found,) = recoveries([schema.Event(1.1, 0, overdue), schema.Event(1.2, 0, judged)])
    assert found.ended_by == "rank 1 sleeps in `f` x.py:8"


HANG = overdue_section(6.0, 5.0)
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
    says, _ = announcer(path)
    events: list[object] = []
    says._event = lambda *told, **fields: events.append([*facts_in([*told, *fields.values()])])
    if has_incident:
        says.incident_over(OVER)
    report = says.ranks_failed(RanksFailed(0, 0, every=True), ends[0])
    says.stopping(CycleStopping(0, report.cause, here=True, failure=report))
    found = says.cause_found(ranks_of(*ends))
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
