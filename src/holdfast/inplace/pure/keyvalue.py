"""The machine of the store of a restart in place: values, waiting clients, gathers. Pure.

Ranks use it to find each other anew in each epoch (process groups, rank assignment). It lives
beside the coordinator, so it outlives any rank. Each epoch has a room, which is dropped when no
rank can be in it any more. A client has one request at a time under way, with the number ``id``.

    set  get  add  append  compare_set  check  wait  delete  count      (torch's Store, in short)
    gather      a value of each of ``of`` ranks, for all of them, once all have come or left
    piece       the next part of gathered values, where they are long

Values are bytes, carried as the text that has the same code points (latin-1). Gathered values are
JSON, carried as text and not parsed here. All sizes are bounded; a request for more is refused, and
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.base.pure.codec import shown

KEY_CHARS_MAX = 4096
VALUE_BYTES_MAX = 1 << 20
"""Longest value of a key, and of one rank in a gather."""
GATHERED_BYTES_MAX = 64 << 20
"""Values of all ranks of one gather together; 4 KiB each for 16,384 ranks."""
STORE_BYTES_MAX = 4 << 30
"""All rooms together."""
STORE_FRAME_BYTES_MAX = 13 << 20
"""Two values, each byte of which JSON writes as six."""
_KEYS_MAX = 1 << 16
_INT64 = 1 << 63
_ROOMS_AHEAD = 1024
_INLINE_BYTES = 1 << 16
"""Longest list of gathered values that is sent as it is."""
PIECE_BYTES = 1 << 15


class RequestError(ValueError):
    """A body that is no valid request; the text names the request, the key and the value."""


Reply = tuple[object, dict[str, Any]]
"""A client, and the answer to it."""


class _Waiter:
    """A request that is answered when all of ``missing`` have values."""

    __slots__ = ("client", "missing", "number", "wants_value")

    def __init__(
        self, client: object, number: int, missing: set[str], *, wants_value: bool
    ) -> None:
        self.client = client
        self.number = number
        self.missing = missing
        self.wants_value = wants_value


class _Gather:
    """One exchange: values by place, and how many living ranks there were at the beginning."""

    def __init__(self, of: int) -> None:
        self.of = of
        self.came: dict[int, tuple[object, int, str]] = {}
        self.bytes = 0


class _Room:
    """Keys and values of one epoch, and the clients that wait for them."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.waiters: dict[str, dict[_Waiter, None]] = {}
        self.gathers: dict[str, _Gather] = {}
        self.gathered: dict[str, list[str]] = {}
        """Long gathered values, in pieces: every rank takes them at its own pace."""
        self.left: set[int] = set()
        """Ranks, as they were born, that have left this epoch without a fault."""
        self.bytes = 0

    def take_back_wait(self, waiter: _Waiter) -> None:
        for key in waiter.missing:
            others = self.waiters.get(key, {})
            others.pop(waiter, None)
            if not others:
                self.waiters.pop(key, None)

    def take_back_value(self, key: str, place: int) -> None:
        gather = self.gathers[key]
        _, _, value = gather.came.pop(place)
        gather.bytes -= len(value)
        self.bytes -= len(value)
        if not gather.came:
            del self.gathers[key]


CALL_ROOM = -1
"""The room that no epoch ends: for the whole call."""


class KeyValues:
    """All rooms."""

    def __init__(self) -> None:
        self._rooms: dict[int, _Room] = {}
        self._first_room = 0
        self._waiting: dict[object, Callable[[], None]] = {}
        """Of each client whose request waits: takes it back."""
        self._requests: Mapping[str, Callable[[_Room, Mapping[str, Any]], Any]] = {
            "set": self._set,
            "add": self._add,
            "append": self._append,
            "compare_set": self._compare_set,
            "check": lambda room, body: all(key in room.values for key in _keys(body)),
            "delete": self._delete,
            "count": lambda room, _body: len(room.values),
            "piece": self._piece,
        }

    def drop_before(self, room: int) -> None:
        """No rank can be in a room below ``room`` any more."""
        self._first_room = room
        for number in [number for number in self._rooms if CALL_ROOM < number < room]:
            del self._rooms[number]

    def leave(self, room: int, rank: int) -> list[Reply]:
        """``rank`` has left the epoch without a fault: answers to the clients it kept waiting.

        An assignment may discard a rank and gather from the others afterwards. Values that were
        gathered before keep the rank's; :meth:`forget` has taken back one that was still waiting.
        """
        if not self._first_room <= room < self._first_room + _ROOMS_AHEAD:
            return []
        its = self._rooms.setdefault(room, _Room())
        its.left.add(rank)
        return [reply for key in list(its.gathers) for reply in self._gathered(its, key)]

    def forget(self, client: object) -> None:
        """Answer ``client`` no more, and take back values that it waits with in a gather."""
        if (take_back := self._waiting.pop(client, None)) is not None:
            take_back()

    def request(self, client: object, body: Mapping[str, Any]) -> list[Reply]:
        """Answers that follow from ``body``, to ``client`` and to others.

        Raises:
            RequestError: It is no request, or for more than is allowed. Nothing was changed.
        """
        number, op = body.get("id"), body.get("op")
        room_number = body.get("room")
        if not isinstance(room_number, int) or not isinstance(number, int):
            raise RequestError(f"a request needs 'id' and 'room', whole numbers: {shown(body)}")
        if room_number != CALL_ROOM and room_number < self._first_room:
            return [(client, {"id": number, "over": True})]
        if room_number >= self._first_room + _ROOMS_AHEAD:
            raise RequestError(f"there is no iteration {shown(room_number)} yet")
        room = self._rooms.setdefault(room_number, _Room())
        if op in ("get", "wait"):
            keys = [_text(body, "key")] if op == "get" else _keys(body)
            return self._wait(room, client, number, keys, wants_value=op == "get")
        if op == "gather":
            return self._gather(room, client, number, body)
        handle = self._requests.get(op) if isinstance(op, str) else None
        if handle is None:
            raise RequestError(f"unknown request {shown(op)}")
        value = handle(room, body)
        replies: list[Reply] = [(client, {"id": number, "value": value})]
        key = body.get("key")
        if isinstance(key, str) and key in room.waiters and key in room.values:
            replies += self._wake(room, key)
        return replies

    # ------------------------------------------------------------ one kind each

    def _set(self, room: _Room, body: Mapping[str, Any]) -> None:
        self._store(room, body, _value(body, "value"))

    def _add(self, room: _Room, body: Mapping[str, Any]) -> int:
        key, by = _text(body, "key"), body.get("by")
        if not isinstance(by, int) or not -_INT64 <= by < _INT64:
            raise RequestError(f"add: 'by' should be a whole number of 64 bits, is {shown(by)}")
        held = room.values.get(key, "0")
        try:
            total = int(held) + by
        except ValueError:
            raise RequestError(f"add: {key!r} holds {held[:80]!r}, which is not a number") from None
        if not -_INT64 <= total < _INT64:
            raise RequestError(f"add: {key!r} would not fit into 64 bits any more")
        self._store(room, body, str(total))
        return total

    def _append(self, room: _Room, body: Mapping[str, Any]) -> None:
        held, more = room.values.get(_text(body, "key"), ""), _value(body, "value")
        self._store(room, body, held + more)

    def _compare_set(self, room: _Room, body: Mapping[str, Any]) -> str:
        """As torch's: an absent key is set where nothing is expected of it."""
        key, expected = _text(body, "key"), _value(body, "expected")
        held = room.values.get(key)
        if held == expected or (held is None and not expected):
            desired = _value(body, "value")
            self._store(room, body, desired)
            return desired
        return expected if held is None else held

    def _delete(self, room: _Room, body: Mapping[str, Any]) -> bool:
        key = _text(body, "key")
        held = room.values.pop(key, None)
        if held is not None:
            room.bytes -= len(key) + len(held)
        return held is not None

    def _store(self, room: _Room, body: Mapping[str, Any], value: str) -> None:
        key = _text(body, "key")
        if len(value) > VALUE_BYTES_MAX:
            raise RequestError(
                f"{body.get('op')}: {key!r} would hold {len(value)} bytes, limit {VALUE_BYTES_MAX}"
            )
        held = room.values.get(key)
        more = len(value) - len(held) if held is not None else len(key) + len(value)
        self._check_total(more, body)
        room.values[key] = value
        room.bytes += more

    def _check_total(self, more: int, body: Mapping[str, Any]) -> None:
        held = sum(room.bytes for room in self._rooms.values())
        if more > 0 and held + more > STORE_BYTES_MAX:
            raise RequestError(
                f"{body.get('op')}: the store holds {held} bytes, limit {STORE_BYTES_MAX}; "
                "delete keys, or keep data elsewhere"
            )

    # ------------------------------------------------------------ waiting

    def _begin_wait(self, client: object, take_back: Callable[[], None]) -> None:
        if client in self._waiting:
            raise RequestError("another request of this client waits already")
        self._waiting[client] = take_back

    def _wake(self, room: _Room, key: str) -> list[Reply]:
        replies = []
        for waiter in room.waiters.pop(key, ()):
            waiter.missing.discard(key)
            if not waiter.missing:
                self._waiting.pop(waiter.client, None)
                value = room.values[key] if waiter.wants_value else None
                replies.append((waiter.client, {"id": waiter.number, "value": value}))
        return replies

    def _wait(
        self, room: _Room, client: object, number: int, keys: Sequence[str], *, wants_value: bool
    ) -> list[Reply]:
        missing = {key for key in keys if key not in room.values}
        if not missing:
            value = room.values[keys[0]] if wants_value else None
            return [(client, {"id": number, "value": value})]
        waiter = _Waiter(client, number, missing, wants_value=wants_value)
        self._begin_wait(client, lambda: room.take_back_wait(waiter))
        for key in missing:
            room.waiters.setdefault(key, {})[waiter] = None
        return []

    def _gather(
        self, room: _Room, client: object, number: int, body: Mapping[str, Any]
    ) -> list[Reply]:
        key, place, of = _text(body, "key"), body.get("place"), body.get("of")
        if not isinstance(place, int) or not isinstance(of, int):
            raise RequestError("gather: 'place' and 'of' should be whole numbers")
        value = _text(body, "value", VALUE_BYTES_MAX)
        gather = room.gathers.get(key) or _Gather(of)
        if gather.bytes + len(value) > GATHERED_BYTES_MAX:
            raise RequestError(
                f"gather {key!r}: {len(gather.came)} of {shown(gather.of)} ranks have brought "
                f"{gather.bytes} bytes; with the {len(value)} of this rank it is more than the "
                f"limit, {GATHERED_BYTES_MAX}"
            )
        self._check_total(len(value), body)
        self._begin_wait(client, lambda: room.take_back_value(key, place))
        if before := gather.came.get(place):  # of the same rank: it gave up, and asks again
            self.forget(before[0])
        room.gathers[key] = gather
        gather.came[place] = (client, number, value)
        gather.bytes += len(value)
        room.bytes += len(value)
        return self._gathered(room, key)

    def _gathered(self, room: _Room, key: str) -> list[Reply]:
        gather = room.gathers[key]
        if len(gather.came) < gather.of - len(room.left):
            return []
        del room.gathers[key]
        in_order = [came for _, came in sorted(gather.came.items(), key=lambda item: item[0])]
        text = "[" + ",".join(value for _, _, value in in_order) + "]"
        room.bytes -= gather.bytes
        answer: dict[str, Any] = {"value": text}
        if len(text) > _INLINE_BYTES:
            room.bytes -= sum(map(len, room.gathered.get(key, ())))
            room.gathered[key] = pieces = cut(text)
            room.bytes += sum(map(len, pieces))
            answer = {"pieces": len(pieces)}
        for client, _, _ in in_order:
            self._waiting.pop(client, None)
        return [(client, {"id": number, **answer}) for client, number, _ in in_order]

    def _piece(self, room: _Room, body: Mapping[str, Any]) -> str:
        pieces, index = room.gathered.get(_text(body, "key"), []), body.get("index")
        if not isinstance(index, int) or not 0 <= index < len(pieces):
            raise RequestError(f"piece: there are {len(pieces)}, not number {shown(index)}")
        return pieces[index]


def cut(text: str) -> list[str]:
    """A long text, packed and in short pieces: names of hosts, for instance, repeat a lot."""
    import base64  # noqa: PLC0415 - seldom used, and this is imported by every node guard
    import zlib  # noqa: PLC0415

    packed = base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 1)).decode()
    return [packed[at : at + PIECE_BYTES] for at in range(0, len(packed), PIECE_BYTES)]


def join(pieces: Sequence[str]) -> str:
    """The text that :func:`cut` was given; ValueError: these are no such pieces."""
    import base64  # noqa: PLC0415
    import zlib  # noqa: PLC0415

    most = 2 * GATHERED_BYTES_MAX
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(base64.b64decode("".join(pieces)), most)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not unpacker.eof:
        raise ValueError(f"more than {most} bytes, or less than all")
    return data.decode("utf-8", "surrogatepass")


def _text(body: Mapping[str, Any], name: str, most: int = KEY_CHARS_MAX) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{body.get('op')}: {name!r} should be text, is {shown(value)}")
    if len(value) > most:
        raise RequestError(f"{body.get('op')}: {name!r} has {len(value)} bytes, limit {most}")
    return value


def _value(body: Mapping[str, Any], name: str) -> str:
    value = _text(body, name, VALUE_BYTES_MAX)
    if not value.isascii() and max(value) > "\xff":
        raise RequestError(f"{body.get('op')}: {name!r} should be bytes, is {shown(value)}")
    return value


def _keys(body: Mapping[str, Any]) -> list[str]:
    keys = body.get("keys")
    if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
        raise RequestError(f"{body.get('op')}: 'keys' should be a list of texts")
    if len(keys) > _KEYS_MAX or max(map(len, keys)) > KEY_CHARS_MAX:
        raise RequestError(
            f"{body.get('op')}: 'keys' may be {_KEYS_MAX}, of {KEY_CHARS_MAX} characters each"
        )
    return keys
