"""The timeline is derived from event files alone."""

import pytest

from holdfast.tools.report import timeline
from holdfast.tools.report.timeline import Recovery, lines
from tests.unit.made_events import event as _event
from tests.unit.made_events import typed


def recoveries(events):
    return timeline.recoveries(typed(events))


def _started(t, cycle, rank):
    return _event(t, "worker_started", cycle, local_rank=rank, rank=rank, pid=100 * cycle + rank)


def _exited(t, cycle, rank, exit_code):
    return _event(t, "worker_exited", cycle, local_rank=rank, rank=rank, exit_code=exit_code)


def _overdue(t, cycle, rank, **fields):
    hang = {"clock": "section", "name": "step", "age_s": 4.001, "limit_s": 4.0, **fields}
    return _event(t, "rank_overdue", cycle, local_rank=rank, rank=rank, **hang)


KILLED = [
    _event(0.0, "launcher_started"),
    _started(0.1, 0, 0),
    _started(0.2, 0, 1),
    _event(5.0, "fault", fault="kill@110:1", what="kill", rank=1, step=110),
    _exited(5.001, 0, 1, -9),
    _exited(5.1, 0, 0, 1),
    _started(5.2, 1, 0),
    _started(5.3, 1, 1),
    _event(8.0, "resumed", 1, rank=0, step=100),
]
THEN_HUNG = [
    _event(10.0, "fault", 1, fault="freeze@220:0", what="freeze", rank=0, step=220),
    _overdue(14.01, 1, 0, detected_at=14.001),
    _overdue(14.02, 1, 1),
    _event(14.1, "evidence", 1, rank=1, stacks="attempt_1/1/stacks.txt"),
    _event(14.2, "evidence", 1, rank=0, stacks="attempt_1/0/stacks.txt"),
    _exited(14.3, 1, 0, -9),
    _started(14.4, 2, 0),
    _event(17.0, "resumed", 2, rank=0, step=200),
    _exited(30.0, 2, 0, 0),
    _event(30.0, "job_succeeded", 2),
]


def test_a_killed_rank_is_told_from_fault_to_resumed_step():
    """Detected by its death; the other rank's death a moment later is no cause."""
    (kill,) = recoveries(KILLED)
    assert kill == Recovery(
        cycle=0,
        symptom="rank 1: killed by SIGKILL",
        detected_at=5.001,
        failed_rank=1,
        fault="kill of rank 1 at step 110",
        fault_at=5.0,
        fault_step=110,
        restarted_at=5.3,
        resumed_at=8.0,
        resumed_step=100,
    )
    assert kill.steps_lost == 10


def test_a_hung_rank_is_detected_when_its_monitor_says_so_not_when_it_dies():
    """The monitor's own instant counts, not that of the launcher's note."""
    _, hang = recoveries(KILLED + THEN_HUNG)
    assert hang.symptom == "ranks 0, 1 hung (section 'step': 4.0 s, timeout 4 s)"
    assert hang.detected_at == 14.001
    assert hang.stacks == {0: "attempt_1/0/stacks.txt", 1: "attempt_1/1/stacks.txt"}
    assert hang.steps_lost == 20


def test_many_ranks_that_hang_are_named_in_a_few_words():
    """A collective that waits hangs all of them."""
    (hang,) = recoveries([_overdue(9.0, 0, rank) for rank in range(1024) if rank != 5])
    assert hang.symptom == "ranks 0-4,6-1023 hung (section 'step': 4.0 s, timeout 4 s)"


def test_ranks_that_hang_elsewhere_are_not_counted_in():
    """Only ranks found on the same clock as the first are named with it."""
    events = [_overdue(9.0, 0, 1), _overdue(9.5, 0, 0, name="checkpointing")]
    (hang,) = recoveries(events)
    assert hang.symptom == "rank 1 hung (section 'step': 4.0 s, timeout 4 s)"


def _stopping(t, cause, launcher=None, **fields):
    where = {} if launcher is None else {"launcher": launcher}
    return _event(t, "cycle_stopping", cause=cause, restart=True, **where, **fields)


def test_ranks_that_a_launcher_has_ended_are_no_symptom():
    """A node was lost: the others of that cycle did not fail, and the launcher has said why."""
    (lost,) = recoveries([_stopping(5.0, "node b is gone"), _exited(5.1, 0, 0, -15)])
    assert (lost.symptom, lost.detected_at) == ("node b is gone", 5.0)


def test_a_rank_that_fails_on_another_node_is_the_symptom_whatever_its_clock_says():
    """This node has stopped its ranks; there the rank has died before its own launcher stopped."""
    there = {**_exited(5.2, 0, 3, -9), "launcher": 1}
    here = [_stopping(5.0, "rank 3 died"), _exited(5.1, 0, 0, -15)]
    (end,) = recoveries([*here, there, _stopping(5.3, "rank 3 died", launcher=1)])
    assert (end.symptom, end.detected_at) == ("rank 3: killed by SIGKILL", 5.2)


def test_a_crash_is_told_by_its_first_cause_with_its_reason():
    """Its peer was reaped before it; on another node a rank failed of its absence, too."""
    peer = {"rank": 2, "why": "a peer is lost: exit code 1", "names_a_peer": True, "began_at": 1.0}
    own = {"rank": 1, "why": "ValueError (x): exit code 1", "names_a_peer": False, "began_at": 2.0}
    ends = [_exited(3.0, 0, 0, 1), _exited(3.1, 0, 1, 1)]
    causes = [_event(3.2, "first_cause", **each) for each in (peer, own)]
    (end,) = recoveries([*ends, *causes])
    assert (end.symptom, end.detected_at) == ("rank 1: ValueError (x): exit code 1", 3.0)

    left = {"left": [1], "left_how": "rank 1 left", "then": "rank 2 failed", "rank": 1}
    left = _event(3.3, "first_cause", names_a_peer=True, began_at=1.5, **left)
    (end,) = recoveries([*ends, causes[0], left])
    assert end.symptom == "rank 1 left; rank 2 failed", "by its own node, whichever came first"
    (end,) = recoveries([*ends, *causes, left])
    assert end.symptom == "rank 1: ValueError (x): exit code 1"

    (hang,) = recoveries([_overdue(2.5, 0, 0), *ends, *causes])
    assert "hung" in hang.symptom


@pytest.mark.parametrize(("later_s", "cause"), [(0.005, 1), (-0.005, 1), (0.5, 0)])
def test_of_failures_at_once_on_two_nodes_the_one_that_the_leader_heard_first_is_the_cause(
    later_s, cause
):
    """It has stopped the cycle for that one, and the launchers have logged it."""
    began = {0: 5.0, 1: 5.0 + later_s}
    ends = [{**_exited(6.0, 0, rank, 1), "launcher": rank} for rank in began]
    stops = [
        _event(6.1, "cycle_stopping", launcher=rank, cause_local_rank=0 if rank else None)
        for rank in began
    ]
    causes = [
        _event(6.2, "first_cause", launcher=rank, rank=rank, why="exit code 1", began_at=at)
        for rank, at in began.items()
    ]
    (end,) = recoveries([*ends, *stops, *causes])
    assert end.symptom == f"rank {cause}: exit code 1"


def test_a_job_that_was_stopped_for_good_has_not_failed():
    """Its scheduler ended it."""
    for stop in (
        _event(5.0, "cycle_stopping", cause="SIGTERM", restart=False),
        _event(5.0, "signal_received", signal=15),
    ):
        assert recoveries([stop, _exited(5.1, 0, 0, -15)]) == []


def test_what_happened_is_in_order_of_time():
    """The verdict is there before the stacks are written."""
    events = [*THEN_HUNG, _event(14.05, "incident", 1, reason="rank 0 sleeps")]
    words = [line.split()[3] for line in lines(recoveries(events), start=0.0)]
    assert words.index("verdict") < words.index("evidence")


@pytest.mark.parametrize(
    ("incident", "ended_by"),
    [
        (
            {
                "culprits": [3],
                "reason": "rank 3 (pid 7, node a) sleeps in `f` x.py:8; 1 other",
                "short": "rank 3 sleeps in `f` x.py:8",
            },
            "rank 3 sleeps in `f` x.py:8",
        ),
        (
            {"culprits": [2, 3], "reason": "rank 2 sleeps, rank 3 waits", "short": ""},
            "rank 2 sleeps, rank 3 waits",
        ),
        ({"culprits": [], "reason": "cannot tell"}, "rank 1 hung (heartbeat: 4.0 s, timeout 4 s)"),
        ({"culprits": None}, "rank 1 hung (heartbeat: 4.0 s, timeout 4 s)"),
    ],
    ids=["culprit", "unlike", "nobody named", "cut short"],
)
def test_a_hang_is_said_to_end_its_cycle_by_the_rank_that_the_others_waited_for(incident, ended_by):
    """The ranks whose timeout ran out are mostly its victims."""
    overdue = _overdue(9.0, 0, 1, clock="heartbeat", name=None)
    (hang,) = recoveries([overdue, _event(9.1, "incident", 0, **incident)])
    assert hang.ended_by == ended_by


def test_heartbeats_have_no_section_to_name():
    """The clock that ran out is named instead."""
    (hang,) = recoveries([_overdue(9.0, 0, 1, clock="heartbeat", name=None)])
    assert hang.symptom == "rank 1 hung (heartbeat: 4.0 s, timeout 4 s)"
    assert hang.detected_at == 9.0


def test_the_order_of_events_does_not_matter():
    """Files of several processes are read one after the other."""
    events = KILLED + THEN_HUNG
    assert recoveries(reversed(events)) == recoveries(events)


def test_what_nobody_recorded_is_not_guessed():
    """Without the training's own notes the timeline starts at detection."""
    (end,) = recoveries([_started(0.0, 0, 0), _exited(3.0, 0, 0, 7)])
    assert (end.fault_at, end.restarted_at, end.resumed_at, end.steps_lost) == (None,) * 4
    assert end.began_at == 3.0
    assert lines([end], start=0.0) == ["  at    3.00 s   detected   rank 0: exit code 7"]


def test_a_run_without_failures_has_no_timeline():
    """Ranks that end with exit code 0 are no failure."""
    assert recoveries([_started(0.0, 0, 0), _exited(9.0, 0, 0, 0)]) == []


def test_the_text_counts_from_the_start_and_then_from_each_fault():
    """What a person reads at the end of ``make demo``."""
    assert lines(recoveries(KILLED + THEN_HUNG), start=0.0) == [
        "  at    5.00 s   fault      kill of rank 1 at step 110",
        "  +    0.001 s   detected   rank 1: killed by SIGKILL",
        "  +    0.300 s   restarted  all ranks of cycle 1 started",
        "  +    3.000 s   resumed    at step 100, 10 steps lost",
        "  at   10.00 s   fault      freeze of rank 0 at step 220",
        "  +    4.001 s   detected   ranks 0, 1 hung (section 'step': 4.0 s, timeout 4 s)",
        "  +    4.200 s   evidence   stacks of ranks 0, 1 written",
        "  +    4.400 s   restarted  all ranks of cycle 2 started",
        "  +    7.000 s   resumed    at step 200, 20 steps lost",
    ]
