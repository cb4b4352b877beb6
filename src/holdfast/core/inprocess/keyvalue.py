"""The store of an in-process restart, decided: who gets which value, and who has to wait for it.

Pure. Ranks use it to find each other anew in each epoch (process groups, rank assignment): it lives
beside the coordinator, so it outlives any rank, and each epoch has a room of its own, which is
dropped when nobody can be in it any more. A client has one request at a time under way, by the
number ``id``; the answer comes when there is one.

    set  get  add  append  compare_set  check  wait  delete  count      (torch's Store, in short)
    gather      a value of each of ``of`` ranks, for all of them, once all have come or left

Values are bytes, carried as the text that has the same code points (latin-1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


class RequestError(ValueError):
    """A body that is no request of ours: names the request, the key and the value."""


Reply = tuple[object, dict[str, Any]]
"""To which client, and what."""


class _Waiter:
    __slots__ = ("client", "keys", "number", "wants_values")

    def __init__(
        self, client: object, number: object, keys: set[str], *, wants_values: bool
    ) -> None:
        self.client = client
        self.number = number
        self.keys = keys
        self.wants_values = wants_values


class _Room:
    """Keys and values of one epoch, and who waits for which."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.waiters: dict[str, list[_Waiter]] = {}
        self.gathers: dict[str, _Gather] = {}
        self.left: set[int] = set()
        """Ranks, as they were born, that have left this epoch without a fault."""


class _Gather:
    """One exchange: what came, by place, and how many living ranks there were at the beginning."""

    def __init__(self, of: int) -> None:
        self.of = of
        self.came: dict[int, tuple[object, int, Any]] = {}


class KeyValues:
    """All rooms."""

    def __init__(self) -> None:
        self._rooms: dict[int, _Room] = {}
        self._first_room = 0
        self._requests: Mapping[str, Callable[[_Room, Mapping[str, Any]], Any]] = {
            "add": self._add,
            "append": self._append,
            "compare_set": self._compare_set,
            "check": lambda room, body: all(key in room.values for key in _keys(body)),
            "delete": lambda room, body: room.values.pop(_text(body, "key"), None) is not None,
            "count": lambda room, _body: len(room.values),
        }

    def drop_before(self, room: int) -> None:
        """Nobody can be in a room below ``room`` any more."""
        self._first_room = room
        for number in [number for number in self._rooms if number < room]:
            del self._rooms[number]

    def leave(self, room: int, rank: int) -> list[Reply]:
        """``rank`` has left the epoch, and nobody else will: answers to those it kept waiting.

        An assignment may discard a rank and gather from the others afterwards. What the rank had
        shown before stays in what was gathered then; where it went while its value was waiting for
        others, :meth:`forget` has taken that back.
        """
        if room < self._first_room:
            return []
        its = self._rooms.setdefault(room, _Room())
        its.left.add(rank)
        return [reply for key in list(its.gathers) for reply in self._gathered(its, key)]

    def forget(self, client: object) -> None:
        """Answer ``client`` no more, and show nobody what it waited with."""
        for room in self._rooms.values():
            for key, gather in list(room.gathers.items()):
                for place in [at for at, (who, *_) in gather.came.items() if who is client]:
                    del gather.came[place]
                if not gather.came:
                    del room.gathers[key]
            for key, waiters in list(room.waiters.items()):
                left = [waiter for waiter in waiters if waiter.client is not client]
                if left:
                    room.waiters[key] = left
                else:
                    del room.waiters[key]

    def request(self, client: object, body: Mapping[str, Any]) -> list[Reply]:
        """Answers that follow from one request: to it, and to those who waited for it.

        Raises:
            RequestError: It is no request of ours; says what is wrong with it.
        """
        number, op = body.get("id"), body.get("op")
        room_number = body.get("room")
        if not isinstance(room_number, int) or not isinstance(number, int):
            raise RequestError(
                f"a request needs 'id' and 'room', whole numbers: {repr(body)[:200]}"
            )
        if room_number < self._first_room:
            return [(client, {"id": number, "over": True})]
        room = self._rooms.setdefault(room_number, _Room())
        if op == "set":
            key = _text(body, "key")
            replies = self._store(room, key, _text(body, "value"))
            return [(client, {"id": number, "value": None}), *replies]
        if op in ("get", "wait"):
            keys = [_text(body, "key")] if op == "get" else _keys(body)
            return self._wait(room, client, number, keys, wants_values=op == "get")
        if op == "gather":
            return self._gather(room, client, number, body)
        handle = self._requests.get(str(op))
        if handle is None:
            raise RequestError(f"unknown request {repr(op)[:200]}")
        before = room.values.get(str(body.get("key")))
        value = handle(room, body)
        replies = [(client, {"id": number, "value": value})]
        key = str(body.get("key"))
        after = room.values.get(key)
        if after is not None and after != before:
            replies += self._wake(room, key)
        return replies

    # ------------------------------------------------------------ one kind each

    def _add(self, room: _Room, body: Mapping[str, Any]) -> int:
        key, by = _text(body, "key"), body.get("by")
        if not isinstance(by, int):
            raise RequestError(f"add: 'by' should be a whole number, is {repr(by)[:200]}")
        held = room.values.get(key, "0")
        try:
            total = int(held) + by
        except ValueError:
            raise RequestError(f"add: {key!r} holds {held[:80]!r}, which is no number") from None
        room.values[key] = str(total)
        return total

    def _append(self, room: _Room, body: Mapping[str, Any]) -> None:
        key = _text(body, "key")
        room.values[key] = room.values.get(key, "") + _text(body, "value")

    def _compare_set(self, room: _Room, body: Mapping[str, Any]) -> str:
        """As torch's: an absent key is set where nothing is expected of it."""
        key, expected = _text(body, "key"), _text(body, "expected")
        held = room.values.get(key)
        if held == expected or (held is None and not expected):
            room.values[key] = _text(body, "value")
            return room.values[key]
        return expected if held is None else held

    # ------------------------------------------------------------ waiting

    def _store(self, room: _Room, key: str, value: str) -> list[Reply]:
        room.values[key] = value
        return self._wake(room, key)

    def _wake(self, room: _Room, key: str) -> list[Reply]:
        replies = []
        for waiter in room.waiters.pop(key, ()):
            waiter.keys.discard(key)
            if not waiter.keys:
                value = room.values[key] if waiter.wants_values else None
                replies.append((waiter.client, {"id": waiter.number, "value": value}))
        return replies

    def _wait(
        self, room: _Room, client: object, number: int, keys: Sequence[str], *, wants_values: bool
    ) -> list[Reply]:
        missing = {key for key in keys if key not in room.values}
        if not missing:
            value = room.values[keys[0]] if wants_values else None
            return [(client, {"id": number, "value": value})]
        waiter = _Waiter(client, number, missing, wants_values=wants_values)
        for key in missing:
            room.waiters.setdefault(key, []).append(waiter)
        return []

    def _gather(
        self, room: _Room, client: object, number: int, body: Mapping[str, Any]
    ) -> list[Reply]:
        key, place, of = _text(body, "key"), body.get("place"), body.get("of")
        if not isinstance(place, int) or not isinstance(of, int):
            raise RequestError("gather: 'place' and 'of' should be whole numbers")
        gather = room.gathers.setdefault(key, _Gather(of))
        gather.came[place] = (client, number, body.get("value"))
        return self._gathered(room, key)

    def _gathered(self, room: _Room, key: str) -> list[Reply]:
        gather = room.gathers[key]
        if len(gather.came) < gather.of - len(room.left):
            return []
        del room.gathers[key]
        values = [
            value for _, (_, _, value) in sorted(gather.came.items(), key=lambda item: item[0])
        ]
        return [(who, {"id": which, "value": values}) for who, which, _ in gather.came.values()]


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{body.get('op')}: {name!r} should be text, is {repr(value)[:200]}")
    return value


def _keys(body: Mapping[str, Any]) -> list[str]:
    keys = body.get("keys")
    if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
        raise RequestError(f"{body.get('op')}: 'keys' should be a list of texts")
    return keys
