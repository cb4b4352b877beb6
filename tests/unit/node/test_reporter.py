"""What a launcher says of failures: only the one that ended a cycle is where its restart begins."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base import clock
from holdfast.base.pure.numbering import GlobalRank, LocalRank, Pid
from holdfast.events.pure import schema
from holdfast.evidence.pure.evidence import Verdict
from holdfast.evidence.pure.failure import RankEnd
from holdfast.job.pure.member_messages import CycleStopping, RanksFailed
from holdfast.job.pure.membership import FailureReport
from holdfast.node.pure.launcher import LauncherEnd, LeaveProcess
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.node.reporter import JobReporter
from tests.overdue import overdue_section


def rank_end(rank: int, exit_code: int, ago_s: float, **known: Any) -> RankEnd:
    """How a rank of pid 1000 + ``rank`` ended some seconds ago."""
    at = clock.monotonic() - ago_s
    return RankEnd(LocalRank(rank), GlobalRank(rank), Pid(1000 + rank), exit_code, at, **known)


def ranks_of(*ends: RankEnd, cycle: int = 0) -> Any:
    """The ranks of a cycle that ended so; each one before it had failed."""
    ranks = {
        end.local_rank: SimpleNamespace(pid=end.pid, is_warm=False, end=lambda end=end: end)
        for end in ends
    }
    place = SimpleNamespace(group_rank=0)
    formed = SimpleNamespace(places=[place], ended_by=None, restarts_used=cycle, beginning=None)
    return SimpleNamespace(
        cycle=cycle, place=place, formed=formed, ranks=ranks, ends=lambda: list(ends)
    )


def announcer(tmp_path: Path, name: str = "n0") -> tuple[JobReporter, Any]:
    """One of a job of one node under min-healthy, and its launcher."""
    plan = SimpleNamespace(
        name="train.py",
        run_id="j",
        nproc_per_node=2,
        max_restarts=1,
        restart_window_s=None,
        restarter_lines=False,
        meeting=None,
        workers_stop_timeout_s=15.0,
        log_dir=None,
        redirects={},
        tee={},
        ft=SimpleNamespace(restart_check_interval=60.0),
    )
    node = SimpleNamespace(survives_ranks=True, alive=set(), cycle=0, formed=None)
    launcher = SimpleNamespace(node=node, finished=None)
    pump = SimpleNamespace(write=lambda *_: None)
    says: Any = JobReporter
    return says(plan, name, tmp_path, launcher, pump, lambda *_, **__: None, None), launcher


def test_under_min_healthy_a_restart_is_timed_from_the_failure_that_ended_the_cycle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 had failed an hour before, and the cycle went on: it did not end it."""
    monkeypatch.setattr(clock, "monotonic", lambda: 5000.0)
    caplog.set_level(logging.INFO, "holdfast")
    says, _ = announcer(tmp_path)
    first, last = rank_end(0, 3, ago_s=3600.0), rank_end(1, 4, ago_s=0.0)
    says.ranks_failed(RanksFailed(0, 0, every=False, may_restart=True), first)
    says.ranks_failed(RanksFailed(0, 1, every=True, may_restart=True), last)
    says.stopping(CycleStopping(0, "cause", here=True))
    says.cycle_started(ranks_of(first, last, cycle=1))
    says.explain(0, ranks_of(first, last), will_restart=True)

    assert "restart 1 of 1 (the last) in 0.0" in caplog.text
    assert caplog.text.count("exit code 3") == 1, "it was said; and it is not what ended the cycle"


def test_the_first_cause_is_an_event_of_its_cycle(tmp_path: Path) -> None:
    """When all have ended; of a hang the incident says more."""
    says, _ = announcer(tmp_path)
    told: list[tuple[schema.Body, int | None]] = []
    says._event = lambda body, cycle: told.append((body, cycle))
    says._failed_here[0] = 0
    gloo = "RuntimeError: Connection closed by peer"
    peer, own = rank_end(0, 1, 2.0, error=gloo), rank_end(1, 1, 1.0, last_lines=["no 'lr'"])
    says.explain(0, ranks_of(peer, own), will_restart=True)

    why = "exit code 1 (its last line: no 'lr')"
    assert told == [(schema.FirstCause(1, own.ended_at, 1, why, names_a_peer=False), 0)]
    says._failed_here[1] = 0
    hung = rank_end(0, -9, 1.0, hang=overdue_section(6.0, 5.0), is_condemned=True)
    says.explain(1, ranks_of(hung, cycle=1), will_restart=True)
    assert len(told) == 1
    in_place = rank_end(0, -9, 1.0, hung_in_place="no progress for 9.0 s")
    says._failed_here[2] = 0
    says.explain(2, ranks_of(in_place, cycle=2), will_restart=True)
    assert (told[1][0].rank, told[1][0].hung, told[1][1]) == (0, True, 2)


def test_the_first_cause_has_the_ranks_that_had_left_and_whether_it_was_exiting(
    tmp_path: Path,
) -> None:
    says, _ = announcer(tmp_path)
    told: list[Any] = []
    says._event = lambda body, cycle: told.append(body)
    says._failed_here.update({0: 0, 1: 0})
    gloo = "RuntimeError: Connection closed by peer"
    lost, gone = rank_end(0, 1, 1.0, error=gloo), rank_end(1, 0, 2.0)
    says.explain(0, ranks_of(lost, gone), will_restart=True)
    stopped_at = clock.monotonic() - 1.0
    lines = ["Traceback (most recent call last):", '  File "t.py", line 3, in <module>']
    lines += ["KeyboardInterrupt"]
    times = [stopped_at - 0.1] * 3
    stopped = {"asked": True, "asked_at": stopped_at, "last_lines": lines, "line_times": times}
    says.explain(1, ranks_of(rank_end(0, -15, 0.5, **stopped), cycle=1), will_restart=True)

    assert [(it.left, it.was_exiting) for it in told] == [((1,), False), ((), True)]
    why = "another rank was lost"
    assert told[0].why == f"{why}: exit code 1"
    assert told[0].sentence == (
        "rank 1 (pid 1001) exited with code 0 while rank 0 continued; "
        f"1.00 s later rank 0 failed: {why}"
    )


LOST = FailureReport("rank 4 (pid 9, node n1): a peer is lost", 4, 1, names_a_peer=True)


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize(
    ("failure", "exit_code", "is_named"),
    [
        (LOST, 0, True),
        (LOST.but(names_a_peer=False), 0, False),
        (LOST.but(others="5"), 0, False),
        (LOST, -15, False),
    ],
    ids=["lost a peer", "another failure", "one that left there", "none left here"],
)
def test_a_rank_that_left_is_named_by_its_node_where_one_of_another_node_failed_of_that(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    failure: FailureReport,
    exit_code: int,
    *,
    goes_on: bool,
    is_named: bool,
) -> None:
    """No error names it, and its own node has seen none; the other node cannot see it."""
    caplog.set_level(logging.INFO, "holdfast")
    says, _ = announcer(tmp_path)
    says._plan.meeting = "127.0.0.1:1"
    told: list[Any] = []
    says._event = lambda body, cycle: told.append((body, cycle))
    past = ranks_of(rank_end(0, exit_code, 1.0, asked=exit_code < 0))
    says._past = past
    says.stopping(CycleStopping(0, failure.cause, failure=failure, for_good=not goes_on))
    if goes_on:
        begun = ranks_of(rank_end(0, 0, 0.0), cycle=1)
        begun.formed.ended_by = failure
        says.cycle_started(begun)
    else:
        says.finish(LeaveProcess(LauncherEnd.FAILED, 1), past)

    named = "rank 0 (pid 1000, node n0) exited with code 0 while other nodes continued; then rank 4"
    assert (f"cycle 0 ended: {named}" in caplog.text) == is_named
    found = [(body.sentence, cycle) for body, cycle in told if isinstance(body, schema.FirstCause)]
    assert [(text.startswith(named), cycle) for text, cycle in found] == [(True, 0)] * is_named


def test_a_rank_that_was_ended_for_a_hang_is_named_at_the_end_whatever_its_exit_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The job was completed without it."""
    caplog.set_level(logging.INFO, "holdfast")
    says, _ = announcer(tmp_path)
    hung = rank_end(0, 0, ago_s=9.0, hang=overdue_section(1.0, 1.0), is_condemned=True)
    says.finish(LeaveProcess(LauncherEnd.SUCCEEDED, 0), ranks_of(hung, rank_end(1, 0, ago_s=0.0)))

    assert "the job was completed without rank 0, which failed" in caplog.text


REASON = "rank 1 was stopped; rank 0 waits for it"
OVER = IncidentOver(1, 0, (0,), Verdict((1,), "stopped", REASON, "high"), {}, "")


def test_the_culprit_is_named_first_wherever_a_hang_is_told(tmp_path: Path) -> None:
    """To the leader, when the rank is ended; when all have ended; on the culprit's node, too."""
    says, _ = announcer(tmp_path)
    hang = overdue_section(6.0, 5.0)
    victim = rank_end(0, -9, 1.0, hang=hang, is_condemned=True)
    culprit = rank_end(1, -15, 0.5, asked=True)
    says.incident_over(OVER)

    told = says.ranks_failed(RanksFailed(0, 0), victim)
    assert told.cause.startswith(f"{REASON}; rank 0 (pid 1000, node n0): waited for rank 1 (")
    found = says.cause_found(ranks_of(victim, culprit))
    assert found is not None
    assert found.failure.cause == told.cause
    assert (found.failure.rank, found.failure.incident) == (0, OVER.incident)
    assert found.failure.facts == told.facts, "so it is not reported a second time"

    elsewhere, _ = announcer(tmp_path)
    elsewhere.incident_over(OVER)
    elsewhere.stopping(CycleStopping(0, told.cause, failure=told))
    found = elsewhere.cause_found(ranks_of(culprit))
    assert found is not None
    assert found.failure.cause == REASON


def test_the_error_file_of_a_node_where_no_rank_failed_has_the_cause(tmp_path: Path) -> None:
    """On each pod of a job it is shown; nothing is written where the user has stopped the job."""
    cause = "rank 3 (local rank 1, pid 8, node n1): exit code 3"
    for why in ("no restart is left", ""):
        says, launcher = announcer(tmp_path)
        launcher.node.cycle = 0
        says._error_file = str(tmp_path / f"error{bool(why)}")
        says.stopping(CycleStopping(0, cause, no_restart=why, for_good=bool(why)))
        says.finish(LeaveProcess(LauncherEnd.FAILED, 1), None)

    told = json.loads((tmp_path / "errorTrue").read_text())["message"]
    assert (told["message"], told["errorCode"]) == (cause, 1)
    assert not (tmp_path / "errorFalse").exists()


def test_an_incident_that_has_ended_no_rank_is_not_the_cause_of_a_later_failure(
    tmp_path: Path,
) -> None:
    """The rank has recovered; an hour later another one crashes."""
    says, _ = announcer(tmp_path)
    crashed, stopped = rank_end(0, 1, 1.0), rank_end(1, -15, 0.5, asked=True)
    says.incident_over(OVER)

    told = says.ranks_failed(RanksFailed(0, 0), crashed)
    says.stopping(CycleStopping(0, told.cause, here=True, failure=told))
    found = says.cause_found(ranks_of(crashed, stopped))
    assert found is not None
    assert REASON not in told.cause + found.failure.cause
