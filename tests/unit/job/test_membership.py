"""Messages and decisions as JSON, and what is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.arena.pure.snapshots import (
    Ancestor,
    Beginning,
    Held,
    Holdings,
    Refused,
    Restore,
    SnapshotId,
)
from holdfast.base.pure.codec import MAX_TEXT, MessageError, decode, encode
from holdfast.job.pure.membership import (
    DECISIONS,
    MESSAGES,
    ControlAsked,
    CyclePlace,
    Descriptor,
    End,
    FailureReport,
    JobOutcome,
    Join,
    LeaderBeat,
    Leave,
    LeaveWhy,
    NodeRefused,
    NodeState,
    Round,
    StateChanged,
    StopCycle,
)
from holdfast.job.pure.timing import Pace

DESC = Descriptor("10.0.0.1", "gpu-1", nproc=8, pid=4711, infra_rank=3, domain="rack-7", port=29511)


@given(st.text(st.characters(exclude_categories=()), max_size=20), st.integers(0, MAX_TEXT))
def test_whatever_its_text_is_a_message_is_understood(text: str, times: int) -> None:
    """One that is refused for its text would be lost with all it says: that a rank has failed."""
    text = (text * times)[: 2 * MAX_TEXT]
    said = [
        StateChanged("n0", 1, NodeState.FAILED, FailureReport(text)),
        Leave("n0", LeaveWhy.UNHEALTHY, text),
    ]
    for message in (*said, ControlAsked("n0", "shutdown", 0, text)):
        decode(MESSAGES, json.loads(json.dumps(encode(message))))
    decided = [
        StopCycle(1, text, "n0", 0),
        End(JobOutcome.FAILED, 1, text),
        NodeRefused("n0", text),
    ]
    for decision in (*decided, LeaderBeat(text)):
        decode(DECISIONS, json.loads(json.dumps(encode(decision))))


def test_a_job_without_snapshots_has_no_byte_of_them_in_its_messages() -> None:
    formed = Round(0, (CyclePlace("n0", 0, 1, 0, "a"),), world_size=1)
    assert "holdings" not in encode(Join("n0", DESC))
    assert "beginning" not in encode(formed)
    beginning = Beginning(Restore(SnapshotId(0, 0, 5), 1), (Ancestor(0, 0, 0, 5),), every=3)
    with_one = dataclasses.replace(formed, cycle=1, beginning=beginning)
    assert decode(DECISIONS, json.loads(json.dumps(encode(with_one)))) == with_one
    holdings = Holdings((Held(0, 1, 0, 0, 5),), 6, (Refused(SnapshotId(0, 0, 5), 0, "no"),), 3)
    join = Join("n0", DESC, 0, None, holdings)
    assert decode(MESSAGES, json.loads(json.dumps(encode(join)))) == join


JOIN = encode(Join("n0", DESC))
STATE = encode(StateChanged("n0", 1, NodeState.FAILED))
END = encode(End(JobOutcome.FAILED, 1, ""))
ROUND = encode(Round(0, (CyclePlace("n0", 0, 1, 0, "a"),), world_size=1))


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (
            {"op": "round"},
            "unknown message 'round'; known are join, statechanged, leave, controlasked",
        ),
        ({"op": "beat"}, "beat: 'node' should be text of 1 to 8192 characters, is missing"),
        ({"op": "beat", "node": ""}, "beat: 'node' should be text of 1"),
        ({**JOIN, "have_cycle": -2}, "join: 'have_cycle' should be a whole number from -1"),
        ({**JOIN, "desc": {**JOIN["desc"], "nproc": 0}}, "join.desc: 'nproc' should be a .* 1 to"),
        ({**STATE, "state": "UNWELL"}, "statechanged: 'state' should be one of HEALTHY, LEAVING"),
    ],
)
def test_nonsense_up_is_one_clear_error(body: object, complaint: str) -> None:
    with pytest.raises(MessageError, match="^" + complaint):
        decode(MESSAGES, body)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"op": "join"}, "unknown message 'join'; known are round, stopcycle, end, noderefused"),
        ({**ROUND, "spares": [1]}, "round.spares: item 0 should be text"),
        (
            {**ROUND, "places": [["n0", -1, 1, 0, "a"]]},
            r"round.places\[0\]: 'group_rank' should be",
        ),
        ({**ROUND, "world_size": 0}, "round: 'world_size' should be a whole number from 1"),
        ({**END, "exit_code": 256}, "end: 'exit_code' should be a whole number from 0 to 255"),
    ],
)
def test_nonsense_down_is_one_clear_error(body: object, complaint: str) -> None:
    with pytest.raises(MessageError, match="^" + complaint):
        decode(DECISIONS, body)


def test_a_cut_off_node_gives_up_before_the_others_go_on() -> None:
    """The limits of both sides cannot be set so that ranks of two cycles run at a time."""
    pace = Pace.of(30.0)
    assert (pace.beat_s, pace.fence_s) == (6.0, 20.0)
    with pytest.raises(ValueError, match="stops its ranks before the others continue without it"):
        Pace(silence_s=10.0, beat_s=3.0, fence_s=8.0)
    with pytest.raises(ValueError, match="join_timeout_s must be positive, is 0"):
        Pace(join_timeout_s=0)
