"""``holdfast chaos``: the schedule, what is decided, what is read, how it is counted."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.options.arguments import parse_args, torchrun_words
from holdfast.options.plan import make_plan
from holdfast.testing.inject import ON_GPU, Fault
from holdfast.tools.chaos import command, explanation, scorecard
from holdfast.tools.chaos.explanation import Explanation
from holdfast.tools.chaos.schedule import DEFAULT, SYMPTOMS, ScheduledFault, draw
from holdfast.tools.chaos.scorecard import Score
from holdfast.tools.chaos.trial import (
    NO_EFFECT_S,
    STRIKE_LIMIT_S,
    Effect,
    FaultOutcome,
    JobSeen,
    Launch,
    Result,
    Steps,
    StopJob,
    Strike,
    Struck,
    Trial,
    TrialOver,
)
from tests.unit.made_events import event, typed


# ---------------------------------------------------------------- schedule
@given(
    st.integers(),
    st.integers(1, 60),
    st.lists(st.sampled_from(DEFAULT), min_size=1, unique=True),
    st.lists(st.integers(0, 7), min_size=1, unique=True),
)
def test_a_schedule_follows_from_its_seed_and_has_each_kind_equally_often(
    seed: int, count: int, kinds: list[Fault], ranks: list[int]
) -> None:
    """And a shorter one is the beginning of a longer one."""
    plan = draw(seed, count, kinds, ranks, 3.0)

    assert plan == draw(seed, count, kinds, ranks, 3.0)
    assert plan[: count // 2] == draw(seed, count // 2, kinds, ranks, 3.0)
    often = Counter(planned.fault for planned in plan)
    assert {often[kind] for kind in kinds} <= {count // len(kinds), -(-count // len(kinds))}
    assert all(planned.rank in ranks and 0 <= planned.pause_s <= 3.0 for planned in plan)


def test_every_fault_can_be_drawn_but_those_that_need_the_training_or_a_gpu() -> None:
    assert {*Fault} - {*SYMPTOMS} == {Fault.WORKLOAD_EXC}
    assert {*SYMPTOMS} - {*DEFAULT} == ON_GPU | {Fault.NODE}


# ---------------------------------------------------------------- decisions
WORLD = 2
SECOND = 1.0
BEHAVIOURS = (
    "recovers",
    "recovers at the second try",
    "trains on",
    "hangs",
    "ends",
    "completes",
    "refuses",
    "does not answer",
    "ends before the fault",
    "restarts before the fault",
)


@dataclass
class PretendedJob:
    """A job that does what it is told to, and checks what is done to it.

    ``now`` counts seconds; every rank makes a step in each, unless the job hangs.
    """

    behaviours: list[str]
    launches: int = 0
    strikes: int = 0
    cycle: int = -1
    began_at: float = 0.0
    struck: Struck | None = None
    exit_code: int | None = 0
    stuck_since: float | None = None
    old: dict[int, dict[int, Steps]] = field(default_factory=dict)

    def do(self, effect: Effect, now: float) -> None:
        match effect:
            case Launch():
                assert self.exit_code is not None, "one job at a time"
                self.launches, self.exit_code, self.cycle = self.launches + 1, None, -1
                self.old = {}
                self._start_cycle(now)
            case Strike(planned, pid):
                seen = self.look(now)
                assert self.exit_code is None
                assert seen.trains_since is not None, "only a job that trains gets a fault"
                assert pid == seen.cycles[seen.cycle][planned.rank].pid
                self._strike(self.behaviours[self.strikes], now)
                self.strikes += 1
            case StopJob():
                self.exit_code = 1
            case TrialOver():
                assert self.exit_code is not None, "the job has ended"

    def _start_cycle(self, now: float) -> None:
        if self.cycle >= 0:
            self.old = {self.cycle: self._ranks(now)}
        self.cycle, self.began_at, self.stuck_since = self.cycle + 1, now, None

    def _strike(self, behaviour: str, now: float) -> None:
        self.struck = Struck(now)
        match behaviour:
            case "recovers":
                self._start_cycle(now)
            case "recovers at the second try":
                self._start_cycle(now)
                self._start_cycle(now)
            case "hangs":
                self.stuck_since = now
            case "ends" | "ends before the fault":
                self.exit_code = 1
            case "completes":
                self.exit_code = 0
            case "refuses":
                self.struck = Struck(now, "no GPU")
        if behaviour in ("does not answer", "ends before the fault", "restarts before the fault"):
            self.struck = None
        if behaviour == "restarts before the fault":
            self._start_cycle(now)

    def _ranks(self, now: float) -> dict[int, Steps]:
        until = now if self.stuck_since is None else self.stuck_since
        count = int(until - self.began_at)
        base, resumed_at = 1000 * self.launches + 10 * self.cycle, self.began_at + SECOND
        if count < 1:
            return {rank: Steps(base + rank) for rank in range(WORLD)}
        return {
            rank: Steps(base + rank, resumed_at, base + 1, until, base + count)
            for rank in range(WORLD)
        }

    def look(self, now: float) -> JobSeen:
        return JobSeen({**self.old, self.cycle: self._ranks(now)}, self.struck, self.exit_code)


EXPECTED = {
    "recovers": Result.RECOVERED,
    "recovers at the second try": Result.RECOVERED,
    "trains on": Result.NO_EFFECT,
    "hangs": Result.NOT_RECOVERED,
    "ends": Result.NOT_RECOVERED,
    "completes": Result.NOT_RECOVERED,
    "refuses": Result.NOT_INJECTED,
    "does not answer": Result.NOT_INJECTED,
    "ends before the fault": Result.NOT_INJECTED,
    "restarts before the fault": Result.NOT_INJECTED,
}


def go(behaviours: list[str]) -> tuple[Trial, PretendedJob]:
    """A whole trial on a virtual clock."""
    plan = draw(0, len(behaviours), DEFAULT, range(WORLD), 5.0)
    trial, job, now = Trial(plan, 100.0, 60.0), PretendedJob(behaviours), 0.0
    effects = trial.begin(now)
    for _ in range(1000 + 200 * len(behaviours)):
        for effect in effects:
            job.do(effect, now)
            if isinstance(effect, Strike):
                effects = []
            if isinstance(effect, TrialOver):
                return trial, job
        seen = job.look(now)
        effects = trial.look(seen, now)
        if any(isinstance(effect, Strike) for effect in effects):
            job.struck = None
        now += SECOND
    raise AssertionError(f"the trial does not end: {trial}")


@given(st.lists(st.sampled_from(BEHAVIOURS), min_size=1, max_size=8))
def test_each_fault_gets_one_outcome_whatever_the_job_does(behaviours: list[str]) -> None:
    """In order; the job ends with the trial, which goes on after a job that did not recover."""
    trial, job = go(behaviours)

    last = behaviours.index("completes") + 1 if "completes" in behaviours else len(behaviours)
    results = [outcome.result for outcome in trial.outcomes]
    assert results == [EXPECTED[each] for each in behaviours[:last]]
    assert [outcome.number for outcome in trial.outcomes] == list(range(1, last + 1))
    assert job.exit_code is not None
    gone = sum(each in ("hangs", "ends", "ends before the fault") for each in behaviours[:last])
    is_last_gone = behaviours[last - 1] in ("hangs", "ends", "ends before the fault")
    assert job.launches == 1 + gone - is_last_gone
    assert ("complete" in trial.trouble) == ("completes" in behaviours)


def test_an_outcome_has_the_time_to_the_next_step_and_the_steps_lost() -> None:
    """Lost: those done when the fault came, without those that the training resumed with."""
    trial = Trial([ScheduledFault(Fault.SIGKILL, 1, 2.0)], 100.0, 60.0)
    running = {0: Steps(10, 1.0, 1, 8.0, 8), 1: Steps(11, 1.5, 1, 8.0, 8)}
    assert trial.begin(0.0) == [Launch()]
    assert trial.look(JobSeen({0: {0: running[0], 1: Steps(11)}}), 1.2) == []
    assert trial.look(JobSeen({0: running}), 5.0) == []
    assert trial.look(JobSeen({0: running}), 6.9) == []
    assert trial.look(JobSeen({0: running}), 7.0) == [Strike(trial.plan[0], 11)]
    assert trial.look(JobSeen({0: running}, Struck(8.0)), 8.1) == []
    new = {0: Steps(20, 9.5, 6, 9.5, 6), 1: Steps(21)}
    assert trial.look(JobSeen({0: running, 1: new}, Struck(8.0)), 9.6) == []
    new[1] = Steps(21, 9.75, 6, 9.75, 6)
    assert trial.look(JobSeen({0: running, 1: new}, Struck(8.0)), 9.8) == [StopJob()]

    [outcome] = trial.outcomes
    assert (outcome.result, outcome.recovered_after_s) == (Result.RECOVERED, 1.75)
    assert (outcome.step, outcome.steps_lost) == (8, 3)
    assert trial.look(JobSeen({}, exit_code=1), 10.0) == [TrialOver()]
    assert trial.trouble == ""


@pytest.mark.parametrize(
    ("seen", "now", "trouble"),
    [
        (JobSeen({0: {0: Steps(1), 1: Steps(2)}}), 100.1, "not all ranks have made a step within"),
        (JobSeen({}, exit_code=2), 1.0, "the launcher exited with code 2 before all of its ranks"),
    ],
)
def test_a_job_that_never_trains_ends_the_trial(seen: JobSeen, now: float, trouble: str) -> None:
    trial = Trial([ScheduledFault(Fault.SIGKILL, 0, 0.0)], 100.0, 60.0)
    trial.begin(0.0)

    trial.look(seen, now)

    assert trial.trouble.startswith(trouble)
    assert trial.look(JobSeen({}, exit_code=2), now) in ([TrialOver()], [])
    assert trial.outcomes == []


def test_a_restart_without_a_fault_is_counted_and_waited_for() -> None:
    trial = Trial([ScheduledFault(Fault.SIGKILL, 0, 5.0)], 100.0, 60.0)
    trial.begin(0.0)
    trial.look(JobSeen({0: {0: Steps(1, 1.0, 1, 1.0, 1)}}), 1.0)
    trial.look(JobSeen({1: {0: Steps(2)}}), 2.0)
    assert trial.unplanned == 1
    assert trial.look(JobSeen({1: {0: Steps(2)}}), 9.0) == []
    trial.look(JobSeen({1: {0: Steps(2, 9.5, 1, 9.5, 1)}}), 9.5)
    assert trial.look(JobSeen({1: {0: Steps(2, 9.5, 1, 14.0, 9)}}), 14.5) == [
        Strike(trial.plan[0], 2)
    ]


def test_the_limits_leave_room_for_a_slow_rank() -> None:
    assert STRIKE_LIMIT_S >= NO_EFFECT_S >= 5


# ---------------------------------------------------------------- explanations
STARTED = {"t": 1.0, "kind": "worker_started", "cycle": 3, "local_rank": 1, "rank": 1, "pid": 9}
STOPPING = {"t": 5.0, "kind": "cycle_stopping", "cycle": 3, "cause": "rank 1: ..."}


def overdue(rank: int, at: float) -> dict[str, object]:
    named = {"rank": rank, "local_rank": rank, "age_s": 2.0, "limit_s": 2.0}
    return event(at + 0.1, "rank_overdue", 3, detected_at=at, **named)


def exited(rank: int, at: float, code: int, cycle: int = 3) -> dict[str, object]:
    named = {"rank": rank, "local_rank": rank}
    return {"t": at, "kind": "worker_exited", "cycle": cycle, "exit_code": code, **named}


@pytest.mark.parametrize(
    ("events", "cause", "found"),
    [
        ([exited(1, 4.0, 0)], None, (STOPPING["t"], (), "")),
        ([exited(1, 4.0, -11), exited(0, 4.5, -15)], 1, (4.0, (1,), "SIGSEGV")),
        ([exited(0, 4.0, 1), exited(1, 4.2, 3)], 1, (4.0, (1,), "exit")),
        ([overdue(0, 3.0), overdue(1, 3.5), exited(0, 4.0, -9)], 0, (3.0, (0,), "hang")),
        ([exited(1, 2.0, -9, cycle=2), exited(1, 4.0, -9)], 1, (4.0, (1,), "SIGKILL")),
        ([exited(0, 4.0, -9)], None, (4.0, (), "")),
        ([], None, (STOPPING["t"], (), "")),
    ],
)
def test_events_say_who_was_the_cause(events, cause, found) -> None:
    stopping = [{**STOPPING, "cause_local_rank": cause}]
    seen = explanation.of_events(typed([STARTED, *events, *stopping]), 3)
    assert (seen.detected_at, seen.ranks, seen.symptom) == found


@pytest.mark.parametrize(
    ("cause", "found"),
    [
        ({"local_rank": 0, "rank": 0}, ((0,), "exit")),
        ({"local_rank": 1, "rank": 1}, ((1,), "SIGABRT")),
        ({"local_rank": 0, "rank": 0, "hung": True}, ((0,), "hang")),
    ],
    ids=["another", "the same", "hung in place"],
)
def test_what_was_found_when_all_ranks_had_ended_corrects_the_first_cause(cause, found) -> None:
    ends = [exited(1, 4.0, -6), exited(0, 4.1, 3)]
    later = event(5.5, "first_cause", 3, began_at=3.9, why="ValueError: x", **cause)
    events = [STARTED, *ends, {**STOPPING, "cause_local_rank": 1}, later]
    seen = explanation.of_events(typed(events), 3)
    assert (seen.detected_at, seen.ranks, seen.symptom) == (4.0, *found)
    assert seen.text == ("rank 1: ..." if found[0] == (1,) else "rank 0: ValueError: x")


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"names_a_peer": True, "left": [1, 2], "left_how": "..."}, ((1,), "exit")),
        ({"names_a_peer": True}, ((0,), "SIGTERM")),
        ({"was_exiting": True}, ((0,), "exit")),
    ],
    ids=["others had left", "a lost peer", "it was exiting itself"],
)
def test_a_rank_that_leaves_by_itself_is_the_cause_though_the_launcher_stops_it(
    facts: dict[str, object], found: tuple[tuple[int, ...], str]
) -> None:
    ends = [exited(0, 4.0, -15), exited(1, 4.1, -15)]
    cause = event(5.5, "first_cause", 3, began_at=3.9, why="...", local_rank=0, rank=0, **facts)
    events = [STARTED, *ends, {**STOPPING, "cause_local_rank": 0}, cause]
    seen = explanation.of_events(typed(events), 3)
    assert (seen.ranks, seen.symptom) == found


def test_an_incident_of_the_cycle_goes_before_events(tmp_path: Path) -> None:
    """One that says that the rank was dead has no more to say; broken ones are passed over."""
    events = [overdue(0, 3.0), {**STOPPING, "cause_local_rank": 0}]
    records: list[object] = [
        {"cycle": 2, "culprits": [0], "kind": "waiting"},
        {"cycle": 3, "culprits": [1], "kind": "stopped", "reason": "rank 1 is stopped"},
        {"cycle": 4, "culprits": [1], "kind": "dead"},
    ]
    for number, text in enumerate(["not json", *map(json.dumps, records)]):
        folder = tmp_path / "incidents" / f"{number:04}"
        folder.mkdir(parents=True)
        (folder / "incident.json").write_text(text)

    found = explanation.read(tmp_path, typed(events), 3)
    assert (found.detected_at, found.ranks, found.symptom) == (3.0, (1,), "stopped")
    assert found.text == "rank 1 is stopped"
    events = [{**exited(1, 4.0, -9), "cycle": 4}, {**STOPPING, "cycle": 4, "cause_local_rank": 1}]
    assert explanation.read(tmp_path, typed(events), 4).symptom == "SIGKILL"
    assert explanation.read(tmp_path / "none", typed(events), 4).symptom == "SIGKILL"


@pytest.mark.parametrize(
    ("found", "right"),
    [
        ([Explanation(4.1, (), "", "node b left"), Explanation()], (4.1, (), "lost")),
        ([Explanation(4.0, (), "", "rank 1: ..."), Explanation(4.2, (1,), "exit", "...")], None),
        ([Explanation(3.0, (), "waiting", "..."), Explanation(4.0, (), "", "...")], None),
        ([Explanation(), Explanation(2.0)], (None, (), "")),
    ],
)
def test_of_several_launchers_the_one_whose_rank_is_the_cause_explains_the_end(
    found: list[Explanation], right: tuple[float | None, tuple[int, ...], str] | None
) -> None:
    """Without one a node was lost: its own launcher has written nothing of that."""
    one = explanation.of_nodes(found)
    best = next((it for it in found if it.ranks or it.symptom), Explanation())
    expected = right or (best.detected_at, best.ranks, best.symptom)
    assert (one.detected_at, one.ranks, one.symptom) == expected


def test_torchruns_log_names_the_process_that_failed() -> None:
    lines = [
        (1.0, "W1122 06:30:05.420000 7 api.py:1001] Sending process 8 closing signal SIGTERM"),
        (1.1, "E1122 api.py:984] failed (exitcode: -9) local_rank: 0 (pid: 7) of binary: /py"),
        (2.0, "E1122 api.py:984] failed (exitcode: 1) local_rank: 1 (pid: 9) of binary: /py"),
    ]
    found = explanation.of_torchrun(lines, {8: 0, 9: 1})
    assert (found.detected_at, found.ranks, found.symptom) == (2.0, (1,), "exit")
    assert explanation.of_torchrun(lines, {}) == Explanation()


@pytest.mark.parametrize(
    ("fault", "ranks", "symptom", "right"),
    [
        (Fault.SIGSTOP, (1,), "hang", (True, True)),
        (Fault.SIGSTOP, (1,), "stopped", (True, True)),
        (Fault.SIGSTOP, (1,), "waiting", (True, False)),
        (Fault.LOCK_GIL, (0, 1), "interpreter", (False, True)),
        (Fault.SEGFAULT, (0,), "SIGSEGV", (False, True)),
        (Fault.EXIT, (), "", (False, False)),
        (Fault.NODE, (), "lost", (True, True)),
        (Fault.NODE, (1,), "exit", (False, False)),
    ],
)
def test_an_explanation_is_right_if_it_names_the_rank_alone_and_a_symptom_of_the_fault(
    fault: Fault, ranks: tuple[int, ...], symptom: str, right: tuple[bool, bool]
) -> None:
    planned = ScheduledFault(fault, 1, 0.0)
    found = Explanation(1.0, ranks, symptom)
    assert (found.names_rank(planned), found.names_kind(planned)) == right


# ---------------------------------------------------------------- scorecard
def score(fault: Fault, result: Result, after_s: float = 2.0, symptom: str = "hang") -> Score:
    outcome = FaultOutcome(
        1, ScheduledFault(fault, 1, 0.0), 1, 0, 7, struck_at=10.0, result=result, why="why"
    )
    if result is Result.RECOVERED:
        outcome = FaultOutcome(
            **{**vars(outcome), "step": 9, "recovered_at": 10.0 + after_s, "steps_lost": 4}
        )
    return Score(outcome, Explanation(10.5, (1,), symptom, "rank 1 hung"))


SCORES = [
    score(Fault.LOCK, Result.RECOVERED, 2.0),
    score(Fault.LOCK, Result.RECOVERED, 6.0, symptom="computing"),
    score(Fault.LOCK, Result.NOT_INJECTED),
    score(Fault.EXIT, Result.NOT_RECOVERED, symptom="exit"),
]


def test_a_scorecard_counts_by_kind_what_had_an_effect() -> None:
    """A fault that was not injected, or that the rank survived, says nothing about recovery."""
    rows = {row["kind"]: row for row in scorecard.as_json(SCORES)["rows"]}

    assert [*rows] == ["exit", "lock", "all"]
    lock = rows["lock"]
    assert (lock["faults"], lock["with_effect"], lock["recovered"], lock["explained"]) == (
        *(3, 2),
        *(2, 1),
    )
    assert lock["recovered_after_s"] == {"median": 4.0, "worst": 6.0}
    assert lock["detected_after_s"] == {"median": 0.5, "worst": 0.5}
    assert lock["steps_lost"] == {"median": 4, "worst": 4}
    assert rows["exit"]["recovered_after_s"] is None
    assert (rows["all"]["with_effect"], rows["all"]["recovered"]) == (3, 2)


def test_the_table_shows_the_same_and_names_each_fault_that_did_not_end_well() -> None:
    text = scorecard.as_text("title", SCORES, ["2 restarts without a fault of the schedule"])

    [lock] = [line.split() for line in text.splitlines() if line.startswith("lock ")]
    assert lock == ["lock", "3", "2/2", "0.50,", "0.50", "4.00,", "6.00", "4,", "4", "1/2"]
    assert "lock in rank 1, cycle 0: not injected: why" in text
    assert "exit in rank 1, cycle 0: not recovered: why, detected after 0.50 s" in text
    assert "explanation wrong (rank 1 hung)" in text
    assert text.endswith("2 restarts without a fault of the schedule\n")
    assert max(map(len, text.splitlines())) <= 140


def test_a_scorecard_of_no_fault_is_one_too() -> None:
    assert scorecard.as_json([])["rows"][0]["faults"] == 0
    assert "all" in scorecard.as_text("title", [], [])


def test_steps_lost_of_the_same_faults_stand_side_by_side() -> None:
    """Of a run that was interrupted, kinds may be missing."""
    runs = {
        "holdfast": [
            {"kind": "sigkill", "steps_lost": {"median": 1, "worst": 1}},
            {"kind": "all", "steps_lost": {"median": 1, "worst": 2}},
        ],
        "no-snapshots": [
            {"kind": "lock", "steps_lost": None},
            {"kind": "sigkill", "steps_lost": {"median": 12, "worst": 19}},
            {"kind": "all", "steps_lost": {"median": 12, "worst": 19}},
        ],
    }
    (text,) = scorecard.compared(runs)
    assert [line.split() for line in text.splitlines()] == [
        ["steps", "lost:", "median,", "worst", "holdfast", "no-snapshots"],
        ["sigkill", "1,", "1", "12,", "19"],
        ["lock", "-", "-"],
        ["all", "1,", "2", "12,", "19"],
    ]
    assert scorecard.compared({"holdfast": []}) == []


def test_a_run_without_snapshots_loses_the_option_that_gives_them_memory() -> None:
    words = "--nproc-per-node 2 --ft_snapshot_memory 1GB --ft-snapshot-memory=2GB train.py --x 1"
    found = command._without(words.split(), "--ft-snapshot-memory")
    assert found == ["--nproc-per-node", "2", "train.py", "--x", "1"]


@pytest.mark.parametrize(
    ("words", "has_it"),
    [("--launchers 3", True), ("--launchers 2", False), ("--launchers 3 --kinds sigkill", False)],
)
def test_a_node_is_lost_where_a_spare_can_take_its_place(
    words: str, has_it: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("")
    job = f"--nnodes 2 --nproc-per-node 2 --rdzv-endpoint a:1 {tmp_path}/train.py"
    options, line = command._parse([*words.split(), "--faults", "40", "--", *job.split()])
    faults = command._draw(options, make_plan(parse_args(line, {}), {}))
    assert (Fault.NODE in {it.fault for it in faults}) is has_it
    assert {it.rank for it in faults} == {0, 1, 2, 3}


# ---------------------------------------------------------------- command line
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "no command to test; usage: holdfast chaos"),
        ("train.py", "unrecognized arguments: train.py"),
        ("--faults 3 --", "no command to test"),
        ("--faults 0 -- {s}", "argument --faults: '0' is not a positive number"),
        ("--pause inf -- {s}", "argument --pause: 'inf' is not a positive number"),
        ("--kinds lock,meteor -- {s}", "unknown kind 'meteor'; known are sigkill"),
        ("--ranks 0;1 -- {s}", "'0;1' is not a list of ranks"),
        ("--ranks 0,2 -- --nproc-per-node 2 {s}", "there is no rank 2: the command starts 2 ranks"),
        ("--step-pattern ( -- {s}", "'(' is not a pattern"),
        ("-- --nproc-per-knot 2 {s}", "did you mean --nproc-per-node"),
        ("-- --nnodes 2 --rdzv-endpoint a:1 {s}", "is for 2 nodes, and chaos starts 1 launcher"),
        ("--launchers 3 -- --nnodes 1:2 {s}", "in a job of one number of nodes, not MIN:MAX"),
        ("--launchers 2 --kinds node -- --nnodes 2 {s}", "--kinds node needs a job of several"),
        ("--launchers 2 -- --nnodes 2 --rdzv-id prod {s}", "name a job that may be running"),
        ("--launchers 2 -- --nnodes 2 --rdzv-endpoint a:1 {s}", "name a job that may be running"),
        ("--compare no-kept-steps -- {s}", "keeps no steps to compare with"),
        ("--launchers 3 --compare torchrun -- --nnodes 2 {s}", "several launchers are compared"),
        ("--output {here} -- {s}", "exists; --output names a new folder"),
        ("--compare no-snapshots -- --ft-snapshot-memory 0 {s}", "no snapshots to compare with"),
        ("-- nothing.py", "no such script: 'nothing.py'"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_started(
    words: str, said: str, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    given_ = words.format(s=tmp_path / "train.py", here=tmp_path).split()

    assert command.main(given_) == 2

    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("holdfast chaos: error: ")
    assert said in line
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_torchrun_gets_the_options_that_it_knows() -> None:
    words = "--nproc_per_node 2 --ft-rank-heartbeat-timeout 9 --nnodes=1 -m --ft-warm-standby false"
    assert torchrun_words([*words.split(), "train", "--ft-x", "3"]) == [
        *("--nproc-per-node=2", "--nnodes=1", "--module"),
        *("train", "--ft-x", "3"),
    ]
