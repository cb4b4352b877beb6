"""A torch Store that lives beside the coordinator of an in-process restart, not in any rank.

Ranks of one epoch find each other in it: process groups (``env://`` as well) and rank assignments.
Losing a rank, rank 0 included, takes nothing with it; each epoch has a room of its own, so no key
of a past attempt is ever seen. One TCP connection, made at the first use; no name is looked up.

A request that waits is woken from another thread by :meth:`EpochStore.hang_up`: the connection is
shut down, and a caller that waits, or asks later, gets :class:`EpochOverError`.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.distributed import DistStoreError

from holdfast.base.clock import monotonic
from holdfast.base.torch_private import Store
from holdfast.inplace.pure.keyvalue import STORE_FRAME_BYTES_MAX, VALUE_BYTES_MAX, join
from holdfast.net.client import Client
from holdfast.net.pure.address import Endpoint
from holdfast.net.pure.frames import FrameError, encode
from holdfast.net.tcp import tune

_CONNECT_S = 30.0
_SILENCE_S = 30.0
_DEFAULT_S = 300.0


class EpochOverError(ConnectionError):
    """The epoch this store belongs to is over, or being aborted."""


class EpochStore(Store):
    """One rank's client, for one epoch; from any thread, one request at a time.

    Args:
        address: Host and port of the coordinator.
        token: The secret of the job.
        room: Number of the epoch.
        timeout_s: How long :meth:`get` and :meth:`wait` wait where nothing else is said.
    """

    def __init__(
        self, address: tuple[str, int], token: str, room: int, timeout_s: float = _DEFAULT_S
    ) -> None:
        super().__init__()
        self._address = address
        self._token = token
        self._room = room
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._pid = os.getpid()
        self._next_id = 0
        self._is_over = False
        self._clones: list[EpochStore] = []
        """Kept: C++ holds on to a clone, and calls methods that only the Python object has."""

    # ------------------------------------------------------------ torch's interface

    def set(self, key: str, value: str | bytes) -> None:
        """Store ``value`` under ``key``."""
        self._ask("set", key=key, value=_carried(value))

    def get(self, key: str) -> bytes:
        """The value of ``key``, waiting until there is one; DistStoreError: not in time."""
        return _bytes("get", self._ask("get", wait_s=self._timeout_s, key=key))

    def add(self, key: str, amount: int) -> int:
        """Add to the number under ``key``, which starts from 0; the sum."""
        return _whole("add", self._ask("add", key=key, by=int(amount)))

    def append(self, key: str, value: str | bytes) -> None:
        """Append to the value of ``key``."""
        self._ask("append", key=key, value=_carried(value))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set ``key`` where it holds ``expected``; its value then."""
        had, wants = _carried(expected), _carried(desired)
        return _bytes("compare_set", self._ask("compare_set", key=key, expected=had, value=wants))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of ``keys`` have values."""
        return bool(self._ask("check", keys=list(keys)))

    def wait(self, keys: Sequence[str], timeout: dt.timedelta | None = None) -> None:
        """Wait until all of ``keys`` have values; DistStoreError: not in time."""
        wait_s = self._timeout_s if timeout is None else timeout.total_seconds()
        self._ask("wait", wait_s=wait_s, keys=list(keys))

    def delete_key(self, key: str) -> bool:
        """Remove ``key``; whether it was there."""
        return bool(self._ask("delete", key=key))

    def num_keys(self) -> int:
        """How many keys this epoch has."""
        return _whole("count", self._ask("count"))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Values of all ``keys``, waiting for each."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Store all."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """``append``, ``multi_get`` and ``multi_set`` work."""
        return True

    def set_timeout(self, timeout: dt.timedelta) -> None:
        """How long to wait from now on."""
        self._timeout_s = timeout.total_seconds()

    @property
    def timeout(self) -> dt.timedelta:
        """How long to wait where nothing else is said."""
        return dt.timedelta(seconds=self._timeout_s)

    def clone(self) -> EpochStore:
        """Another client of the same room, with a connection of its own."""
        clone = EpochStore(self._address, self._token, self._room, self._timeout_s)
        with self._lock:
            clone._is_over = self._is_over
            self._clones.append(clone)
        return clone

    # ------------------------------------------------------------ holdfast's own

    def collect(self, name: str, place: int, of: int, value: Any, timeout_s: float) -> list[Any]:
        """Values of ``of`` ranks, in the order of their places; the same list on each.

        Raises:
            DistStoreError: Not all came within ``timeout_s`` seconds.
            RuntimeError: The values are too long (this one: 1 MiB as JSON; all: 64 MiB).
        """
        text = json.dumps(value, separators=(",", ":"))
        if len(text) > VALUE_BYTES_MAX:
            raise RuntimeError(_too_long("gather", name, len(text)))
        fields = {"key": name, "place": place, "of": of, "value": text}
        answer = self._answer("gather", timeout_s, fields)
        gathered = answer.get("value")
        try:
            if gathered is None:
                pieces = range(answer["pieces"])
                gathered = join([self._ask("piece", key=name, index=at) for at in pieces])
            return list(json.loads(gathered))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise RuntimeError(
                f"gather {name!r}: what the ranks gathered cannot be read: {error}"
            ) from None

    def hang_up(self) -> None:
        """Wake all waiting threads; no more requests are possible. Never waits itself."""
        self._is_over = True
        for clone in list(self._clones):
            clone.hang_up()
        client = self._client
        if client is not None and self._pid == os.getpid():
            client.hang_up()

    def close(self) -> None:
        """Close the connection; to be called when the store is not used any more."""
        self.hang_up()
        with self._lock:
            self._drop()
        for clone in self._clones:
            clone.close()
        self._clones.clear()

    # ------------------------------------------------------------ one request

    def _ask(self, op: str, wait_s: float = _SILENCE_S, **fields: Any) -> Any:
        return self._answer(op, wait_s, fields).get("value")

    def _answer(self, op: str, wait_s: float, fields: Mapping[str, Any]) -> dict[str, Any]:
        for name in ("value", "expected"):
            if len(fields.get(name, "")) > VALUE_BYTES_MAX:
                raise RuntimeError(_too_long(op, fields.get("key"), len(fields[name])))
        with self._lock:
            self._next_id += 1
            number = self._next_id
            is_answered = False
            try:
                frame = encode(
                    {"op": op, "id": number, "room": self._room, **fields}, STORE_FRAME_BYTES_MAX
                )
            except FrameError as error:
                raise RuntimeError(f"{op}: the request is too long: {error}") from None
            try:
                answer = self._exchange(number, frame, monotonic() + wait_s)
                is_answered = True
            except TimeoutError:
                keys = fields.get("key") or ", ".join(fields.get("keys", ()))
                raise DistStoreError(
                    f"{op} {keys!r}: no answer within {wait_s:g} s; not all ranks came this far"
                ) from None
            except (OSError, FrameError) as error:
                if self._is_over:
                    raise EpochOverError(
                        f"{op}: the iteration {self._room} is being left"
                    ) from None
                where = Endpoint(*self._address)
                why = getattr(error, "strerror", None) or error
                raise ConnectionError(f"{op}: the coordinator at {where} is gone: {why}") from error
            finally:
                if not is_answered:
                    self._drop()  # also when a signal's handler raised: an answer may be half read
        if answer.get("over"):
            raise EpochOverError(f"{op}: the iteration {self._room} is over")
        if "error" in answer:
            raise RuntimeError(str(answer["error"]))
        return answer

    def _exchange(self, number: int, frame: bytes, until: float) -> dict[str, Any]:
        client = self._connected()
        client.send_frame(frame, until - monotonic())
        answer = client.receive(until - monotonic())
        while answer.get("id") != number:
            answer = client.receive(until - monotonic())
        return answer

    def _connected(self) -> Client:
        if self._is_over:
            raise EpochOverError("over")
        if self._pid != os.getpid():
            # A child must not talk on its parent's connection.
            self._client, self._pid = None, os.getpid()
        if self._client is None:
            connected = socket.create_connection(self._address, timeout=_CONNECT_S)
            tune(connected, _SILENCE_S)
            client = Client(connected, STORE_FRAME_BYTES_MAX)
            client.send({"token": self._token, "role": "store", "node": ""}, _CONNECT_S)
            self._client = client
            if self._is_over:  # hang_up() came before there was anything to shut down
                raise EpochOverError("over")
        return self._client

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _carried(value: str | bytes | Iterable[int]) -> str:
    """The text that has the same code points as the bytes; a text's bytes are UTF-8, as torch's."""
    return (value.encode() if isinstance(value, str) else bytes(value)).decode("latin-1")


def _too_long(op: str, key: object, size: int) -> str:
    return (
        f"{op} {key!r}: the value has {size} bytes, limit {VALUE_BYTES_MAX}; "
        "send large data through a collective or a file"
    )


def _bytes(op: str, text: object) -> bytes:
    try:
        if isinstance(text, str):
            return text.encode("latin-1")
    except UnicodeEncodeError:
        pass
    raise RuntimeError(f"{op}: the coordinator's answer holds no bytes: {text!r:.200}")


def _whole(op: str, number: object) -> int:
    if isinstance(number, int):
        return number
    raise RuntimeError(f"{op}: the coordinator's answer is not a whole number: {number!r:.200}")
