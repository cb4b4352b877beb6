"""What a node's events say of its faults and recoveries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.tools.outages import FirstFault, Outages, RecoveryTime
from tests.unit.made_events import event, typed

STARTED = [
    {"kind": "cycle_started", "cycle": 0, "t": 1.0},
    {"kind": "worker_started", "cycle": 0, "t": 1.1, "local_rank": 0, "rank": 4},
    {"kind": "worker_started", "cycle": 0, "t": 1.2, "local_rank": 1, "rank": 5},
]
RESTARTED = [{**one, "cycle": 1, "t": one["t"] + 10} for one in STARTED]
OVERDUE = {
    "kind": "rank_overdue",
    "cycle": 0,
    "t": 7.1,
    "local_rank": 1,
    "rank": 5,
    "at": 7.0,
    "detected_at": 7.002,
    "age_s": 3.002,
    "limit_s": 3.0,
    "pid": 7,
    "clock": "section",
    "name": "step",
    "learned": False,
}
STOPPING = {"kind": "cycle_stopping", "cycle": 0, "t": 7.5, "restart": True}


def exited(code: int, t: float = 7.0, local_rank: int = 1) -> dict[str, object]:
    end = {"kind": "worker_exited", "cycle": 0, "t": t}
    return {**end, "local_rank": local_rank, "rank": 5, "exit_code": code}


def meanings(outages: Outages, *events: dict[str, object]) -> list[FirstFault | RecoveryTime]:
    return [meaning for one in typed(events) for meaning in outages.take(one)]


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([exited(3)], "exit"),
        ([exited(-9)], "signal"),
        ([OVERDUE], "hang"),
        ([event(7.0, "finding", verdict="unhealthy")], "host"),
        ([STOPPING], "elsewhere"),
        ([OVERDUE, exited(-9)], "hang"),
        ([exited(3), OVERDUE], "exit"),
        ([exited(3), STOPPING, exited(-15, local_rank=0)], "exit"),
    ],
)
def test_the_first_symptom_is_the_fault_of_its_cycle(events: list[dict], kind: str) -> None:
    outages = Outages(nproc=2)
    found = meanings(outages, *STARTED, *events)
    assert [fault.kind for fault in found] == [kind]


def test_a_recovery_lasts_from_the_detection_until_the_last_rank_of_the_node_was_started() -> None:
    outages = Outages(nproc=2)
    found = meanings(outages, *STARTED, OVERDUE, STOPPING, exited(-9), *RESTARTED)
    assert found == [
        FirstFault("hang", pytest.approx(0.002), 3.002),
        RecoveryTime(pytest.approx(4.198)),
    ]


def test_a_recovery_begins_with_the_rank_that_was_found_hung_first() -> None:
    """Two monitors may be heard in the other order."""
    other = {**OVERDUE, "local_rank": 0, "rank": 4, "t": 7.2, "detected_at": 6.9}
    *_, recovered = meanings(Outages(2), *STARTED, OVERDUE, other, STOPPING, *RESTARTED)
    assert recovered == RecoveryTime(pytest.approx(11.2 - 6.9))


def test_a_rank_that_completes_and_a_cycle_that_is_stopped_for_good_are_no_faults() -> None:
    outages = Outages(nproc=2)
    polite = {"kind": "cycle_stopping", "cycle": 0, "t": 8.0, "restart": False}
    assert meanings(outages, *STARTED, exited(0), polite, exited(-15, local_rank=0)) == []


def test_the_restarts_that_are_left_are_those_of_the_newest_cycle_that_is_over() -> None:
    outages = Outages(nproc=2)
    seen = []
    starts = event(0.0, "launcher_started", max_restarts=3)
    for one in (starts, {**STOPPING, "restarts_left": 2}):
        seen += [outages.restarts_left, meanings(outages, one)]
    assert (seen[0], seen[2], outages.restarts_left) == (None, 3, 2)


def test_ranks_that_end_because_the_job_was_told_to_are_no_fault() -> None:
    told = {"kind": "signal_received", "cycle": 0, "t": 6.9, "signal": 15}
    assert meanings(Outages(nproc=2), *STARTED, told, exited(-15), exited(1, local_rank=0)) == []


def test_a_node_is_ready_while_all_its_ranks_run() -> None:
    outages = Outages(nproc=2)
    ready = []
    for one in (*STARTED, OVERDUE, STOPPING, exited(-9), *RESTARTED, exited(0)):
        meanings(outages, one)
        ready.append(outages.is_ready)
    assert ready == [False, False, True, False, False, False, False, False, True, False]


@given(
    st.dictionaries(st.sampled_from([*OVERDUE, "verdict", "exit_code"]), st.integers() | st.text())
)
def test_malformed_events_mean_nothing(fields: dict[str, object]) -> None:
    kinds = ("cycle_started", "worker_started", "worker_exited", "rank_overdue", "finding", None)
    for kind in kinds:
        meanings(Outages(nproc=1), {"t": 1.0, "cycle": 0, **fields, "kind": kind})
