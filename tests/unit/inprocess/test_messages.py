from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.inprocess import messages as m

whole = st.integers(-1, 2**40)
text = st.text(max_size=50)
causes = st.lists(st.builds(m.Cause, whole, st.sampled_from(m.Kind), text), max_size=3).map(tuple)
world = st.integers(-1, m.MAX_WORLD)
numbering = st.builds(m.Numbering, whole, whole, world)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "int": whole,
    "str": text,
    "bool": st.booleans(),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "Kind": st.sampled_from(m.Kind),
    "tuple[int, ...]": st.lists(whole, max_size=4).map(tuple),
    "tuple[Cause, ...]": causes,
    "tuple[Standing, ...]": st.lists(
        st.builds(m.Standing, whole, numbering, numbering), max_size=3
    ).map(tuple),
}
UP = (m.Hello, m.Fault, m.Leave, m.Done, m.Ready, m.Dead, m.Bye, m.Beat)
DOWN = (m.Abort, m.Commit, m.Kill, m.Exit, m.Refused, m.Echo, m.Lost)


def any_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    fields = {f.name: FIELDS[str(f.type)] for f in dataclasses.fields(kind)}
    return st.builds(kind, **fields | ({"world": world} if "world" in fields else {}))


@given(st.one_of([any_of(kind) for kind in UP]))
def test_a_message_up_comes_out_as_it_went_in(message: m.Up) -> None:
    assert m.up_from_wire(json.loads(json.dumps(message.to_wire()))) == message


@given(st.one_of([any_of(kind) for kind in DOWN]))
def test_a_message_down_comes_out_as_it_went_in(message: m.Down) -> None:
    assert m.down_from_wire(json.loads(json.dumps(message.to_wire()))) == message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
keys = st.sampled_from(["op", "epoch", "rank", "causes", "standings", "text", "kind", "active"])


@given(
    st.dictionaries(keys, json_values),
    st.none() | st.sampled_from([kind.OP for kind in (*UP, *DOWN)]),
)
def test_garbage_is_an_error_of_its_own_and_nothing_else(
    body: dict[str, Any], op: str | None
) -> None:
    for read in (m.up_from_wire, m.down_from_wire):
        with contextlib.suppress(m.MessageError):
            read({**body, **({} if op is None else {"op": op})})


def test_an_error_names_message_key_and_value() -> None:
    with pytest.raises(m.MessageError, match="leave: 'fault' should be true or false, is 3"):
        m.up_from_wire({"op": "leave", "epoch": 0, "rank": 1, "fault": 3, "text": ""})
