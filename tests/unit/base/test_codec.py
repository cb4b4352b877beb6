"""What a message is follows from its fields, for every family that there is."""

from __future__ import annotations

import contextlib
import enum
import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NewType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.arena.pure import file_names, peer_messages
from holdfast.base.pure.codec import (
    MAX_TEXT,
    Characters,
    Count,
    MessageError,
    Name,
    Number,
    Raw,
    Text,
    Whole,
    decode,
    encode,
    family,
)
from holdfast.base.pure.value import Value
from holdfast.health import messages as health
from holdfast.inplace.pure import messages as inprocess
from holdfast.job.pure import link, membership
from holdfast.node import control_endpoint
from holdfast.snapshot import _launcher_link as snapshot_link
from holdfast.standby.pure import parked_messages
from holdfast.watch.pure import monitor_messages, rank_messages
from tests.garbage import bodies, values
from tests.message_strategies import messages, shape

FAMILIES = {
    f"{module.__name__.removeprefix('holdfast.')} {name}": table
    for module in (
        link,
        membership,
        rank_messages,
        monitor_messages,
        parked_messages,
        inprocess,
        health,
        control_endpoint,
        snapshot_link,
        file_names,
        peer_messages,
    )
    for name, table in vars(module).items()
    if name.isupper() and isinstance(table, dict)
}


def test_every_family_is_tried_here() -> None:
    sources = Path(holdfast.__file__).parent.rglob("*.py")
    made = sum(source.read_text(encoding="utf-8").count("] = family(") for source in sources)
    assert len(FAMILIES) == made


@pytest.mark.parametrize("name", FAMILIES)
@given(data=st.data())
def test_a_message_comes_out_as_it_went_in(name: str, data: st.DataObject) -> None:
    table = FAMILIES[name]
    message = data.draw(st.sampled_from(sorted(table)).flatmap(lambda op: messages(table[op])))

    assert decode(table, encode(message)) == message
    assert decode(table, json.loads(json.dumps(encode(message)))) == message


@functools.cache
def garbage(name: str) -> st.SearchStrategy[Any]:
    """Nearly messages of a family, or not at all."""
    return bodies(*(shape(kind) for kind in FAMILIES[name].values())) | values


@pytest.mark.parametrize("name", FAMILIES)
@given(data=st.data())
def test_garbage_is_a_message_error_and_nothing_else(name: str, data: st.DataObject) -> None:
    with contextlib.suppress(MessageError):
        decode(FAMILIES[name], data.draw(garbage(name)))


# ---------------------------------------------------------------- one of each kind of field
Rank = NewType("Rank", int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    whole: Count


@dataclass(frozen=True)
class Row:
    AS_LIST: ClassVar[bool] = True
    name: Name
    whole: Count


@dataclass(frozen=True)
class All:
    text: str
    name: Name
    said: Text
    path: Raw
    whole: int
    count: Count
    few: Annotated[int, Whole(1, 8)]
    rank: Rank
    number: float
    age: Annotated[float, Number(0.0)]
    flag: bool
    colour: Colour
    maybe: Count | None
    whichever: Annotated[str, Characters(2, 3)] | None
    several: tuple[Count, ...]
    inner: Inner
    rows: tuple[Row, ...]
    named: dict[str, float | None]
    free: object
    late: bool = False
    last: Inner | None = None


TABLE = family(All)
GOOD = All(
    *("a", "b", "c", "/\udcff", -1, 0, 8, Rank(3), 0.5, 0.0, True, Colour.RED, None, None),
    *((1, 2), Inner(3), (Row("r", 4),), {"a": None, "b": 1.0}, {"any": [1, "x"]}),
)
BODY = encode(GOOD)


def test_the_form_of_a_message() -> None:
    assert json.loads(json.dumps(BODY)) == {
        "op": "all", "text": "a", "name": "b", "said": "c", "path": "/\udcff",
        "whole": -1, "count": 0, "few": 8, "rank": 3, "number": 0.5, "age": 0.0,
        "flag": True, "colour": "red", "maybe": None,
        "whichever": None, "several": [1, 2], "inner": {"whole": 3}, "rows": [["r", 4]],
        "named": {"a": None, "b": 1.0}, "free": {"any": [1, "x"]}, "late": False, "last": None,
    }  # fmt: skip
    assert decode(TABLE, BODY) == GOOD


@given(messages(All))
def test_any_field_comes_out_as_it_went_in(message: All) -> None:
    assert decode(TABLE, json.loads(json.dumps(encode(message)))) == message


def test_processes_of_two_versions_understand_each_other() -> None:
    """A missing key gets its field's default; a key that no field has is ignored."""
    older = {key: value for key, value in BODY.items() if key not in ("late", "last")}
    assert decode(TABLE, {**older, "mood": "fine"}) == GOOD


@dataclass(frozen=True)
class Sparse:
    SPARSE: ClassVar[bool] = True
    name: Name
    count: Count = 0
    inner: Inner | None = None


@dataclass(frozen=True)
class OfSparse:
    records: tuple[Sparse, ...]


def test_a_sparse_record_is_sent_without_the_fields_that_have_their_defaults() -> None:
    message = OfSparse((Sparse("a"), Sparse("b", 1, Inner(2))))
    body = encode(message)

    assert body["records"] == [{"name": "a"}, {"name": "b", "count": 1, "inner": {"whole": 2}}]
    assert decode(family(OfSparse), body) == message


class LikeLast(Value):
    """It is in a list of many."""

    LIKE_LAST = True

    name: Name
    count: int = 0
    inner: Inner = Inner(1)


@dataclass(frozen=True)
class OfAlike:
    records: tuple[LikeLast, ...]


def test_in_a_list_a_record_is_sent_without_what_the_one_before_has_as_well() -> None:
    """A field that has its default again is sent."""
    records = (LikeLast("a", 7), LikeLast("a", 7, Inner(2)), LikeLast("b", 0, Inner(2)))
    body = encode(OfAlike(records))

    assert body["records"] == [
        {"name": "a", "count": 7},
        {"inner": {"whole": 2}},
        {"name": "b", "count": 0},
    ]
    assert decode(family(OfAlike), body) == OfAlike(records)


@given(st.lists(st.builds(LikeLast, st.sampled_from("ab"), st.integers(0, 2)), max_size=5))
def test_records_that_are_sent_by_their_differences_come_out_as_they_went_in(
    records: list[LikeLast],
) -> None:
    message = OfAlike(tuple(records))
    assert decode(family(OfAlike), json.loads(json.dumps(encode(message)))) == message


_WHOLE = "a whole number from"
_NAME = f"text of 1 to {MAX_TEXT} characters"
_HUGE = "a value of type int, too large to show"
_UTF8 = "text that can be written as UTF-8"
_MOST = 2**63 - 1


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (None, "a message is a JSON object, not None"),
        ([], r"a message is a JSON object, not []"),
        ({}, "unknown message None; known are all"),
        ({"op": []}, "unknown message []; known are all"),
        ({"op": "al"}, "unknown message 'al'; known are all"),
        ({"text": 1}, f"all: 'text' should be text of 0 to {MAX_TEXT} characters, is 1"),
        ({"text": "\ud800"}, rf"all: 'text' should be {_UTF8}, is '\ud800'"),
        ({"path": None}, "all: 'path' should be text, is None"),
        ({"name": ""}, f"all: 'name' should be {_NAME}, is ''"),
        ({"whichever": "long"}, "all: 'whichever' should be text of 2 to 3 characters, is 'long'"),
        ({"whole": True}, f"all: 'whole' should be {_WHOLE} -{_MOST + 1} to {_MOST}, is True"),
        ({"count": -1}, f"all: 'count' should be {_WHOLE} 0 to {_MOST}, is -1"),
        ({"count": 1.0}, f"all: 'count' should be {_WHOLE} 0 to {_MOST}, is 1.0"),
        ({"few": 9}, "all: 'few' should be a whole number from 1 to 8, is 9"),
        ({"few": 10**5000}, f"all: 'few' should be {_WHOLE} 1 to 8, is {_HUGE}"),
        ({"rank": "3"}, f"all: 'rank' should be {_WHOLE} -{_MOST + 1} to {_MOST}, is '3'"),
        ({"number": float("nan")}, "all: 'number' should be a finite number, is nan"),
        ({"number": 10**400}, f"all: 'number' should be a finite number, is 1{'0' * 199}"),
        ({"number": False}, "all: 'number' should be a finite number, is False"),
        ({"age": -0.5}, "all: 'age' should be a finite number of 0 or more, is -0.5"),
        ({"flag": 1}, "all: 'flag' should be true or false, is 1"),
        ({"colour": "green"}, "all: 'colour' should be one of red, blue, is 'green'"),
        ({"colour": []}, "all: 'colour' should be one of red, blue, is []"),
        ({"several": 3}, "all: 'several' should be a list, is 3"),
        ({"several": [1, -2]}, f"all.several: item 1 should be {_WHOLE} 0 to {_MOST}, is -2"),
        ({"inner": 3}, "all: 'inner' should be an object, is 3"),
        ({"inner": {}}, f"all.inner: 'whole' should be {_WHOLE} 0 to {_MOST}, is missing"),
        ({"rows": [["r", 1], ["r"]]}, "all.rows: item 1 should be a list of name, whole, is ['r']"),
        ({"rows": [["", 1]]}, f"all.rows[0]: 'name' should be {_NAME}, is ''"),
        ({"named": []}, "all: 'named' should be an object, is []"),
        ({"named": {"a": "x"}}, "all.named: 'a' should be a finite number, is 'x'"),
        ({"last": {"whole": 1.5}}, f"all.last: 'whole' should be {_WHOLE} 0 to {_MOST}, is 1.5"),
    ],
)  # fmt: skip
def test_an_error_names_message_key_and_value(body: Any, complaint: str) -> None:
    is_whole = not isinstance(body, dict) or not body or "op" in body
    with pytest.raises(MessageError) as raised:
        decode(TABLE, body if is_whole else {**BODY, **body})
    assert str(raised.value) == complaint


def test_what_has_no_default_must_be_there() -> None:
    for key in set(BODY) - {"op", "late", "last"}:
        with pytest.raises(MessageError, match=f"^all: '{key}' should be .*, is missing$"):
            decode(TABLE, {name: value for name, value in BODY.items() if name != key})


def test_a_text_for_people_is_escaped_and_cut_where_a_name_is_sent_as_it_is() -> None:
    """A message that is refused for its text would be lost with all it says."""
    strange = encode(All(**{**vars(GOOD), "said": "st\udcffep" + "x" * MAX_TEXT, "name": "\udcff"}))

    assert strange["said"] == "st\\udcffep" + "x" * (MAX_TEXT - 14) + " ..."
    assert strange["name"] == "\udcff"
    assert decode(TABLE, {**BODY, "said": strange["said"]})


@dataclass(frozen=True)
class Odd:
    when: complex


@dataclass(frozen=True)
class OddRow:
    AS_LIST: ClassVar[bool] = True
    inner: Inner
    other: Inner


@pytest.mark.parametrize(
    ("message", "complaint"),
    [(Odd(1j), "no message can hold a <class 'complex'>"), (OddRow(*[Inner(1)] * 2), "AS_LIST")],
)
def test_a_class_that_can_be_no_message_is_a_mistake_of_ours(
    message: object, complaint: str
) -> None:
    with pytest.raises(TypeError, match=complaint):
        encode(message)


def test_it_is_light() -> None:
    """The rank monitor imports it."""
    source = Path(holdfast.__file__).parent.parent
    code = (
        f"import sys; sys.path.insert(0, {str(source)!r}); import holdfast.base.pure.codec;"
        "print({'typing', 'dataclasses', 'json', 're'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, check=True)
    assert run.stdout == b"set()\n"
