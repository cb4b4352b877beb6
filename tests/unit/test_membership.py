"""Messages and decisions as JSON, and what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.membership import (
    MAX_TEXT,
    Beat,
    Control,
    Decision,
    Descriptor,
    End,
    Join,
    LeaderBeat,
    Leave,
    LeaveWhy,
    Message,
    MessageError,
    NodeState,
    Outcome,
    Pace,
    Place,
    Refused,
    Round,
    State,
    Stop,
    decision_from_wire,
    message_from_wire,
)

DESC = Descriptor("10.0.0.1", "gpu-1", nproc=8, pid=4711, infra_rank=3, domain="rack-7", port=29511)
names = st.text(min_size=1, max_size=40)
texts = st.text(max_size=200)
counts = st.integers(0, 2**40)

messages = st.one_of(
    st.builds(
        Join,
        names,
        st.builds(
            Descriptor,
            addr=texts,
            hostname=texts,
            nproc=st.integers(1, 64),
            pid=counts,
            infra_rank=st.none() | counts,
            infra_is_place=st.booleans(),
            domain=st.none() | texts,
            port=counts,
        ),
        st.integers(-1, 1000),
    ),
    st.builds(State, names, counts, st.sampled_from(NodeState), texts, st.booleans()),
    st.builds(Leave, names, st.sampled_from(LeaveWhy), texts),
    st.builds(Control, names, names, st.integers(-1, 100_000), texts),
    st.builds(Beat, names),
)
places = st.builds(Place, names, counts, st.integers(1, 64), counts, texts)
decisions = st.one_of(
    st.builds(
        Round,
        cycle=counts,
        places=st.lists(places, max_size=5).map(tuple),
        spares=st.lists(names, max_size=5).map(tuple),
        world_size=st.integers(1, 100_000),
        master_addr=texts,
        master_port=counts,
        restarts_used=counts,
    ),
    st.builds(Stop, counts, texts, st.none() | names, counts),
    st.builds(End, st.sampled_from(Outcome), st.none() | st.integers(0, 255), texts),
    st.builds(Refused, names, texts),
    st.builds(LeaderBeat, texts),
)


@given(messages)
def test_a_message_survives_the_wire(message: Message) -> None:
    assert message_from_wire(json.loads(json.dumps(message.to_wire()))) == message


@given(decisions)
def test_a_decision_survives_the_wire(decision: Decision) -> None:
    assert decision_from_wire(json.loads(json.dumps(decision.to_wire()))) == decision


@given(st.text(st.characters(exclude_categories=()), max_size=20), st.integers(0, MAX_TEXT))
def test_whatever_its_text_is_a_message_is_understood(text: str, times: int) -> None:
    """One that is refused for its text would be lost with all it says: that a rank has failed."""
    text = (text * times)[: 2 * MAX_TEXT]
    said = [State("n0", 1, NodeState.FAILED, text), Leave("n0", LeaveWhy.UNHEALTHY, text)]
    for message in (*said, Control("n0", "shutdown", 0, text)):
        message_from_wire(json.loads(json.dumps(message.to_wire())))
    decided = [Stop(1, text, "n0", 0), End(Outcome.FAILED, 1, text), Refused("n0", text)]
    for decision in (*decided, LeaderBeat(text)):
        decision_from_wire(json.loads(json.dumps(decision.to_wire())))


def test_a_text_that_is_no_utf8_is_escaped_and_a_long_one_cut() -> None:
    assert message_from_wire(Leave("n0", LeaveWhy.STUCK, "st\udcffep").to_wire()) == Leave(
        "n0", LeaveWhy.STUCK, "st\\udcffep"
    )
    long = decision_from_wire(End(Outcome.FAILED, 1, "x" * 9000).to_wire())
    assert isinstance(long, End)
    assert (len(long.cause), long.cause[-5:]) == (MAX_TEXT, "x ...")


def test_a_key_of_a_later_version_is_ignored() -> None:
    """Launchers of two versions can be in one job."""
    assert message_from_wire({**Beat("n0").to_wire(), "mood": "fine"}) == Beat("n0")


JOIN = Join("n0", DESC).to_wire()
STATE = State("n0", 1, NodeState.FAILED).to_wire()
END = End(Outcome.FAILED, 1, "").to_wire()
ROUND = Round(0, (Place("n0", 0, 1, 0, "a"),), world_size=1).to_wire()


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (None, "a message is a JSON object"),
        ([], "a message is a JSON object"),
        ({}, "'op' should be text, is None"),
        ({"op": 1}, "'op' should be text, is 1"),
        ({"op": "jion"}, "unknown message 'jion'"),
        ({"op": "beat"}, "beat: 'node' should be text"),
        ({"op": "beat", "node": ""}, "beat: 'node' should be text of 1"),
        ({"op": "beat", "node": "x" * (MAX_TEXT + 1)}, "beat: 'node' should be text"),
        ({**JOIN, "have_cycle": -2}, "join: 'have_cycle' should be a whole number, -1 or more"),
        ({**JOIN, "desc": 3}, "join: 'desc' should be an object"),
        ({**JOIN, "desc": {**DESC.to_wire(), "nproc": 0}}, "join.desc: 'nproc' should be"),
        ({**STATE, "cycle": True}, "state: 'cycle' should be a whole number"),
        ({**STATE, "cycle": 1.0}, "state: 'cycle' should be a whole number"),
        (
            {**STATE, "cycle": 2**63},
            "state: 'cycle' should be a whole number, 9223372036854775807",
        ),
        ({**STATE, "cycle": 10**5000}, "state: 'cycle' .* is a int that cannot be shown"),
        (
            {**STATE, "cause": "\ud800"},
            "state: 'cause' should be text that can be written as UTF-8",
        ),
        ({**STATE, "state": []}, "state: 'state' should be one of HEALTHY"),
        ({**STATE, "state": "UNWELL"}, "state: 'state' should be one of HEALTHY, LEAVING"),
        ({**STATE, "may_restart": "no"}, "state: 'may_restart' should be true or false, is 'no'"),
    ],
)
def test_nonsense_up_is_one_clear_error(body: object, complaint: str) -> None:
    with pytest.raises(MessageError, match="^" + complaint):
        message_from_wire(body)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"op": "join"}, "unknown decision 'join'"),
        ({**ROUND, "places": {}}, "round: 'places' should be a list"),
        ({**ROUND, "places": [["n0", 0]]}, "round: 'places' should be a list of"),
        ({**ROUND, "spares": [1]}, "round: 'spares' should be a list of nodes"),
        (
            {**ROUND, "places": [["n0", -1, 1, 0, "a"]]},
            "round: 'places' should be ranks and counts",
        ),
        ({**END, "exit_code": 256}, "end: 'exit_code' should be a whole number, 255 or less"),
        ({**ROUND, "world_size": 0}, "round: 'world_size' should be a whole number, 1"),
    ],
)
def test_nonsense_down_is_one_clear_error(body: object, complaint: str) -> None:
    with pytest.raises(MessageError, match="^" + complaint):
        decision_from_wire(body)


def test_a_cut_off_node_gives_up_before_the_others_go_on() -> None:
    """The limits of both sides cannot be set so that ranks of two cycles run at a time."""
    pace = Pace.of(30.0)
    assert (pace.beat_s, pace.fence_s) == (6.0, 20.0)
    with pytest.raises(ValueError, match="ends its ranks before the others go on without it"):
        Pace(silence_s=10.0, beat_s=3.0, fence_s=8.0)
    with pytest.raises(ValueError, match="join_timeout_s must be positive, is 0"):
        Pace(join_timeout_s=0)
