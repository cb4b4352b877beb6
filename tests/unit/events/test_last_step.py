"""What a rank that ends well does after its last step is no productive step."""

import pytest

from holdfast.events.run.ledger import Ledger, LiveLedger
from holdfast.events.run.rank_spans import spans_of
from tests.unit.made_events import NAMES, event, of_rank, progress, shown, typed

STEPS = {"step": [30, 30.0, 1.5, 10.0, 50.0]}
BEATS = {"heartbeat_at": 50.0, "first_heartbeat_at": 10.0}
BEGINS = [
    event(0.0, "launcher_started"),
    event(0.0, "cycle_started"),
    of_rank(0.0, "worker_started", 0, 0),
    of_rank(6.0, "rank_armed", 0, 0, armed_at=6.0, sections=NAMES),
]


def over(t, looks, *ended):
    return [*ended, event(t, "cycle_stopped"), shown(0, t, looks)]


def exits(t=100.0, code=0, rank=0):
    return of_rank(t, "worker_exited", 0, rank, exit_code=code)


def seconds(events, now=None, rank=0):
    """Of a rank from its first step on, which is at 10."""
    ledger = Ledger()
    ledger.add("", spans_of(typed(events), now)[1])
    sums = ledger.by_rank["", rank]
    return {a: s for a, s in sums.items() if s and a not in ("starting", "importing", "setup")}


@pytest.mark.parametrize(
    ("shows", "expected"),
    [
        (progress(None, STEPS), {"steps": 40, "finishing": 50}),
        (progress(**BEATS), {"steps": 40, "finishing": 50}),
        (progress(None, STEPS, left_at=90.0), {"steps": 40, "finishing": 50}),
        (
            progress(None, {**STEPS, "checkpoint": [1, 20.0, 20.0, 70.0, 90.0]}),
            {"steps": 40, "finishing": 30, "checkpointing": 20},
        ),
        (
            progress(None, {**STEPS, "eval": [3, 12.0, 5.0, 20.0, 90.0]}),
            {"steps": 33, "finishing": 45, "evaluating": 12},
        ),
        (
            progress({"checkpoint": 80.0}, {**STEPS, "checkpoint": [2, 6.0, 3.0, 20.0, 40.0]}),
            {"steps": 34, "finishing": 30, "checkpointing": 26},
        ),
        # Some 100 steps of 10 microseconds are published together.
        (progress(None, STEPS, outside_since=60.0), {"steps": 50, "finishing": 40}),
        (
            progress(None, {**STEPS, "eval": [1, 5.0, 5.0, 60.0, 65.0]}, outside_since=65.0),
            {"steps": 40, "finishing": 45, "evaluating": 5},
        ),
        # Steps that cannot be told from other work.
        (progress({"step": 50.0}, STEPS), {"steps": 90}),
        (progress(None, {"tokenize": [1, 5.0, 5.0, 10.0, 15.0]}), {"steps": 90}),
        (
            progress(None, {"checkpoint": [9, 9.0, 1.0, 10.0, 40.0]}),
            {"steps": 81, "checkpointing": 9},
        ),
        (progress(heartbeat_at=10.0, first_heartbeat_at=10.0), {"steps": 90}),
        (progress(), {}),
    ],
    ids=[
        *("sections", "heartbeats", "left", "saves", "evaluates", "saves until its exit"),
        *("short steps", "no step since", "in a step", "one section", "saves only"),
        *("one heartbeat", "no step"),
    ],
)
def test_a_rank_that_ends_well_finishes_from_its_last_step_on(shows, expected) -> None:
    """Sections of checkpoints and evaluations keep their account, before it and after it."""
    assert seconds([*BEGINS, *over(100.0, {"0": shows}, exits())]) == pytest.approx(expected)


def test_while_a_rank_runs_its_last_step_is_not_known() -> None:
    """Nor while the last look is older than its exit: there may have been more steps."""
    look = shown(0, 60.0, {"0": progress(None, STEPS)}, final=False)
    others = of_rank(0.0, "worker_started", 0, 1)
    assert seconds([*BEGINS, look], now=90.0) == {"steps": 80.0}
    ends = [*BEGINS, others, look, exits()]
    assert seconds(ends, now=105.0) == {"steps": 90.0, "finishing": 5.0}
    last = {**look, "t": 104.0, "at": 103.0}
    assert seconds([*ends, last], now=105.0) == {"steps": 40.0, "finishing": 55.0}
    leaves = shown(0, 60.0, {"0": progress(None, STEPS, left_at=55.0)}, final=False)
    assert seconds([*BEGINS, leaves], now=90.0) == {"steps": 40.0, "finishing": 40.0}


def test_a_checkpoint_is_one_while_it_is_written() -> None:
    """Its account does not change when it ends; nor does it where a rank dies in it."""
    ledger = LiveLedger()
    for one in typed(BEGINS):
        ledger.take(one)
    saves = shown(0, 70.0, {"0": progress({"checkpoint": 50.0}, STEPS)}, final=False)
    now = ledger.at(70.0, *typed([saves]))
    assert (now.seconds["steps"], now.seconds["checkpointing"]) == (40.0, 20.0)
    dies = over(70.0, saves["ranks"], exits(70.0, -9))
    assert seconds([*BEGINS, *dies]) == {"steps": 40.0, "checkpointing": 20.0}


def test_a_rank_that_is_stopped_and_exits_with_0_has_not_ended_well() -> None:
    """Its handler of SIGTERM may save for minutes, after a hang or a crash of another rank."""
    looks = {"0": progress(None, STEPS, outside_since=50.0), "1": progress({"step": 50.0}, STEPS)}
    begins = [*BEGINS, of_rank(0.0, "worker_started", 0, 1)]
    hang = of_rank(70.0, "rank_overdue", 0, 1, detected_at=70.0, age_s=20.0)
    ends = over(90.0, looks, exits(75.0, -9, rank=1), exits(90.0))
    assert seconds([*begins, hang, *ends]) == {"steps": 40.0, "stalled": 20.0, "stopping": 20.0}
    assert seconds([*begins, *ends]) == {"steps": 65.0, "stopping": 15.0}
    asked = event(80.0, "signal_received", signal=15)
    ends = over(90.0, looks, exits(90.0))
    assert seconds([*begins, asked, *ends]) == {"steps": 70.0, "stopping": 10.0}


def test_a_rank_that_has_left_finishes_until_a_failure_is_detected() -> None:
    """One that hangs after it has left is the failure."""
    looks = {k: progress(None, STEPS, left_at=60.0) for k in "01"}
    begins = [*BEGINS, of_rank(0.0, "worker_started", 0, 1)]
    begins += [of_rank(6.0, "rank_armed", 0, 1, armed_at=6.0, sections=NAMES)]
    hang = of_rank(80.0, "rank_overdue", 0, 1, detected_at=80.0, age_s=20.0)
    events = [*begins, hang, *over(100.0, looks, exits(85.0, -15))]
    assert seconds(events) == {"steps": 40.0, "finishing": 30.0, "stopping": 20.0}
    assert seconds(events, rank=1) == {"steps": 50.0, "stalled": 20.0, "stopping": 20.0}


def test_a_node_whose_ranks_have_ended_well_finishes_until_the_job_is_over() -> None:
    """Those of another node may upload for minutes; after a failure the launcher stops."""
    looks = {"0": progress(None, STEPS)}
    ends = event(130.0, "job_succeeded")
    well = [*BEGINS, *over(100.0, looks, exits())]
    assert seconds([*well, ends]) == {"steps": 40.0, "finishing": 80.0}
    failed = [*BEGINS, *over(100.0, looks, exits(code=1))]
    assert seconds([*failed, ends]) == {"steps": 90.0, "stopping": 30.0}
