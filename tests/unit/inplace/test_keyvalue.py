from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.inplace.pure import keyvalue
from holdfast.inplace.pure.keyvalue import KeyValues, RequestError


class Client:
    """Asks, and keeps what it is answered."""

    def __init__(self, values: KeyValues, others: list[Client], room: int = 0) -> None:
        self.values, self.others, self.room = values, others, room
        self.answers: list[Any] = []
        self._number = 0
        self._gathers: set[int] = set()
        others.append(self)

    def ask(self, op: str, **fields: Any) -> Any:
        """The answer, or "waits"."""
        self._number += 1
        if op == "gather":
            self._gathers.add(self._number)
            fields["value"] = json.dumps(fields["value"])
        body = {"op": op, "id": self._number, "room": self.room, **fields}
        before = len(self.answers)
        for client, reply in self.values.request(self, body):
            assert isinstance(client, Client)
            client.take(reply)
        return self.answers[before] if len(self.answers) > before else "waits"

    def take(self, reply: dict[str, Any]) -> None:
        """What was gathered is JSON."""
        is_gathered = reply["id"] in self._gathers and "value" in reply
        self.answers.append(
            json.loads(reply["value"]) if is_gathered else reply.get("value", reply)
        )


@pytest.fixture
def two() -> tuple[Client, Client]:
    values, clients = KeyValues(), []
    return Client(values, clients), Client(values, clients)


def test_a_value_is_what_was_set_last(two: tuple[Client, Client]) -> None:
    a, b = two
    a.ask("set", key="k", value="1")
    a.ask("set", key="k", value="2")
    assert b.ask("get", key="k") == "2"


@pytest.mark.parametrize("op", ["set", "add", "append", "compare_set"])
def test_who_waits_for_a_key_is_answered_whoever_makes_it(
    two: tuple[Client, Client], op: str
) -> None:
    a, b = two
    assert a.ask("get", key="k") == "waits"
    fields: dict[str, Any] = {"add": {"by": 3}, "compare_set": {"expected": "", "value": "3"}}.get(
        op, {"value": "3"}
    )
    b.ask(op, key="k", **fields)
    assert a.answers == ["3"]


def test_a_wait_for_several_keys_ends_with_the_last(two: tuple[Client, Client]) -> None:
    a, b = two
    assert a.ask("wait", keys=["x", "y"]) == "waits"
    b.ask("set", key="x", value="")
    assert a.answers == []
    b.ask("set", key="y", value="")
    assert a.answers == [None]


def test_numbers_are_added_and_texts_appended(two: tuple[Client, Client]) -> None:
    a, b = two
    assert [a.ask("add", key="n", by=2), b.ask("add", key="n", by=-1)] == [2, 1]
    a.ask("append", key="t", value="ab")
    b.ask("append", key="t", value="c")
    assert a.ask("get", key="t") == "abc"
    with pytest.raises(RequestError, match="holds 'abc', which is not a number"):
        a.ask("add", key="t", by=1)


def test_a_key_is_exchanged_only_where_it_holds_what_is_expected(
    two: tuple[Client, Client],
) -> None:
    a, b = two
    assert a.ask("compare_set", key="k", expected="x", value="1") == "x"
    assert a.ask("compare_set", key="k", expected="", value="1") == "1"
    assert b.ask("compare_set", key="k", expected="", value="2") == "1"
    assert b.ask("compare_set", key="k", expected="1", value="2") == "2"


def test_keys_are_counted_looked_for_and_removed(two: tuple[Client, Client]) -> None:
    a, b = two
    a.ask("set", key="k", value="1")
    assert [b.ask("count"), b.ask("check", keys=["k"]), b.ask("check", keys=["k", "l"])] == [
        1,
        True,
        False,
    ]
    assert [b.ask("delete", key="k"), b.ask("delete", key="k"), b.ask("count")] == [True, False, 0]


def test_values_are_gathered_in_the_order_of_the_places(two: tuple[Client, Client]) -> None:
    a, b = two
    assert b.ask("gather", key="g", place=1, of=2, value={"b": 1}) == "waits"
    assert a.ask("gather", key="g", place=0, of=2, value={"a": 0}) == [{"a": 0}, {"b": 1}]
    assert b.answers == [[{"a": 0}, {"b": 1}]]


def three() -> tuple[KeyValues, list[Client]]:
    values, clients = KeyValues(), []
    return values, [Client(values, clients) for _ in range(3)]


def left(values: KeyValues, room: int, rank: int) -> None:
    for client, reply in values.leave(room, rank):
        assert isinstance(client, Client)
        client.take(reply)


def test_a_gather_does_not_wait_for_a_rank_that_has_left() -> None:
    """Discarded by an assignment that others follow; whether it went before they came or after."""
    values, (a, _, c) = three()
    assert a.ask("gather", key="before", place=0, of=3, value="a") == "waits"
    left(values, 0, 1)
    left(values, 0, 1)
    assert a.answers == []
    assert c.ask("gather", key="before", place=2, of=3, value="c") == ["a", "c"]
    assert a.ask("gather", key="after", place=0, of=3, value="a") == "waits"
    assert c.ask("gather", key="after", place=2, of=3, value="c") == ["a", "c"]


def test_those_who_wait_for_a_rank_alone_are_answered_when_it_leaves() -> None:
    values, (a, _, c) = three()
    a.ask("gather", key="g", place=0, of=3, value="a")
    c.ask("gather", key="g", place=2, of=3, value="c")
    left(values, 0, 1)
    assert a.answers == c.answers == [["a", "c"]]


def test_what_a_rank_showed_before_it_left_stays_gathered() -> None:
    values, (a, b, c) = three()
    for place, client in enumerate((a, b, c)):
        client.ask("gather", key="g", place=place, of=3, value=place)
    left(values, 0, 1)
    assert a.answers == [[0, 1, 2]]


def test_who_leaves_one_epoch_is_not_missing_in_another() -> None:
    values = KeyValues()
    left(values, 0, 1)
    a, b = Client(values, clients := [], 1), Client(values, clients, 1)
    assert a.ask("gather", key="g", place=0, of=2, value="a") == "waits"
    assert b.ask("gather", key="g", place=1, of=2, value="b") == ["a", "b"]
    values.drop_before(2)
    assert values.leave(1, 0) == [], "over"


def test_a_value_is_taken_back_with_its_client() -> None:
    """One that gave up waiting does not have the list, so nobody may have it with its value."""
    values, (a, b, c) = three()
    b.ask("gather", key="g", place=1, of=3, value="b")
    values.forget(b)
    a.ask("gather", key="g", place=0, of=3, value="a")
    assert c.ask("gather", key="g", place=2, of=3, value="c") == "waits"
    left(values, 0, 1)
    assert a.answers == c.answers == [["a", "c"]]
    assert b.answers == []


def test_rooms_know_nothing_of_each_other_and_end() -> None:
    values = KeyValues()
    old, new = Client(values, [], 0), Client(values, [], 1)
    old.ask("set", key="k", value="1")
    assert new.ask("check", keys=["k"]) is False
    values.drop_before(1)
    assert old.ask("get", key="k") == {"id": 2, "over": True}


def test_the_room_of_the_call_outlives_every_epoch() -> None:
    values = KeyValues()
    whole = Client(values, [], room=keyvalue.CALL_ROOM)
    whole.ask("set", key="k", value="1")
    values.drop_before(7)
    assert whole.ask("get", key="k") == "1"


def test_who_is_gone_is_answered_no_more(two: tuple[Client, Client]) -> None:
    a, b = two
    a.ask("get", key="k")
    a.values.forget(a)
    b.ask("set", key="k", value="1")
    assert a.answers == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"op": "set", "id": 1},
        {"op": "set", "id": 1, "room": 0, "key": 3, "value": ""},
        {"op": "wait", "id": 1, "room": 0, "keys": []},
        {"op": "gather", "id": 1, "room": 0, "key": "g", "place": "x", "of": 2},
        {"op": "eval", "id": 1, "room": 0, "key": "k"},
    ],
)
def test_what_is_no_request_is_refused_in_words(body: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        KeyValues().request(None, body)


def test_what_16384_ranks_gather_reaches_each_in_pieces() -> None:
    """All of it is some megabytes; no message is longer than a piece."""
    n = 16384
    values = KeyValues()
    value = json.dumps({"host": "x" * 100})
    replies: dict[int, dict[str, Any]] = {}
    for place in range(n):
        body = {"id": 1, "room": 0, "op": "gather", "key": "g", "place": place, "of": n}
        replies.update(dict(values.request(place, {**body, "value": value})))  # type: ignore[arg-type]
    assert set(replies) == set(range(n))
    assert {reply["pieces"] for reply in replies.values()} == {replies[0]["pieces"]}

    body = {"id": 2, "room": 0, "op": "piece", "key": "g"}
    pieces = []
    for index in range(replies[0]["pieces"]):
        [(_, reply)] = values.request(5, {**body, "index": index})
        pieces.append(reply["value"])
    assert max(map(len, pieces)) <= keyvalue.PIECE_BYTES
    gathered = json.loads(keyvalue.join(pieces))
    assert (len(gathered), gathered[n - 1]) == (n, {"host": "x" * 100})
    with pytest.raises(RequestError, match="not number 99999"):
        values.request(5, {**body, "index": 99999})


def test_too_much_is_refused_and_changes_nothing(
    two: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value, what is appended to it, what ranks gather, and all of the store."""
    a, b = two
    most = keyvalue.VALUE_BYTES_MAX
    a.ask("set", key="k", value="x" * most)
    with pytest.raises(RequestError, match=f"'k' would hold {most + 1} bytes, limit {most}"):
        a.ask("append", key="k", value="y")
    with pytest.raises(RequestError, match=f"'value' has {most + 1} bytes, limit {most}"):
        a.ask("set", key="k", value="x" * (most + 1))
    assert a.ask("get", key="k") == "x" * most

    monkeypatch.setattr(keyvalue, "STORE_BYTES_MAX", most + 10)
    with pytest.raises(RequestError, match="the store holds 1048577 bytes, limit 1048586"):
        a.ask("set", key="another", value="y" * 10)
    assert a.ask("count") == 1
    a.ask("delete", key="k")
    a.ask("set", key="another", value="y" * 10)

    monkeypatch.setattr(keyvalue, "GATHERED_BYTES_MAX", 20)
    assert a.ask("gather", key="g", place=0, of=2, value="x" * 15) == "waits"
    with pytest.raises(RequestError, match="'g': 1 of 2 ranks have brought 17 bytes"):
        a.ask("gather", key="g", place=1, of=2, value="y" * 15)
    assert b.ask("gather", key="g", place=1, of=2, value="y") == ["x" * 15, "y"]


def test_a_number_beyond_64_bits_is_refused(two: tuple[Client, Client]) -> None:
    """Python would count on, up to a length at which it refuses to print the number."""
    a, _ = two
    a.ask("add", key="n", by=2**63 - 1)
    for by in (1, 10**4000):
        with pytest.raises(RequestError, match="64 bits"):
            a.ask("add", key="n", by=by)
    assert a.ask("get", key="n") == str(2**63 - 1)


def test_a_client_that_gave_up_leaves_nothing_behind(two: tuple[Client, Client]) -> None:
    """A key that never comes is asked for again and again by a loop with a timeout."""
    a, _ = two
    for number in range(100):
        waits, gathers = Client(a.values, []), Client(a.values, [])
        waits.ask("get", key="never")
        gathers.ask("gather", key="g", place=number, of=1000, value="x")
        with pytest.raises(RequestError, match="another request of this client waits"):
            waits.ask("get", key="another")
        a.values.forget(waits)
        a.values.forget(gathers)
    room = a.values._rooms[0]
    assert (room.waiters, room.gathers, room.bytes, a.values._waiting) == ({}, {}, 0, {})
