"""No stranger's byte ends a call: garbage for a real node guard with the coordinator in it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.pure.codec import encode
from holdfast.inplace.guard_process import connect_to_guard, guard_address
from holdfast.inplace.pure import messages
from holdfast.inplace.torch_edge.epoch_store import EpochStore
from holdfast.net.pure.rate_limited_log import LINES_MAX, QUIET_S
from holdfast.page.page import anonymous_page
from tests.garbage import (
    BOUND_S,
    ask,
    framed,
    fuzz,
    send_and_hear_out,
    streams,
)
from tests.message_strategies import shape

TOKENS = st.just("?")


class Node:
    """A guard with a coordinator, and rank 0 of 2, which waits for a rank that does not come."""

    def __init__(self, world: int = 1) -> None:
        self.token = secrets.token_hex(16)
        self._page = anonymous_page()
        self.rank = connect_to_guard(self.token)._socket
        waits = (
            messages.CallTimeouts(*[1e4] * 5),
            messages.CoordinatorTimeouts(1e4, 1e4, 0.0, 1e4),
        )
        attach = messages.Attach(0, world, self._page.fd, 0, *waits, hosts=True)
        hosting = ask(self.rank, encode(attach), lambda answer: answer["op"] == "hosting")
        self.port: int = hosting["port"]
        self.lines: list[str] = []
        self._began = time.monotonic()
        self.store = EpochStore(("127.0.0.1", self.port), self.token, 0)
        self._rest = b""

    def check(self) -> None:
        """Everybody who belongs here is still served."""
        try:
            self.store.add("alive", 1)
        except ConnectionError:
            assert self._hears_end()
            pytest.fail(f"the guard is gone; it said {self.lines}")
        assert not self._hears_end(), f"the guard is gone; it said {self.lines}"

    def _hears_end(self) -> bool:
        while select.select([self.rank], [], [], 0)[0]:
            data = self.rank.recv(1 << 16)
            if not data:
                return True
            self._rest += data
            while len(self._rest) >= 4:
                end = 4 + int.from_bytes(self._rest[:4], "big")
                if len(self._rest) < end:
                    break
                frame, self._rest = json.loads(self._rest[4:end]), self._rest[end:]
                if frame["op"] == "guardlog":
                    self.lines.append(frame["text"])
        return False

    def call(self) -> socket.socket:
        """A stranger at the coordinator."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=BOUND_S)

    def call_guard(self) -> socket.socket:
        """A stranger at the guard."""
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(BOUND_S)
        connected.connect(guard_address(self.token))
        return connected

    def check_lines(self) -> None:
        """One per offender and minute: all came from one address, or one process."""
        with self.call_guard() as stranger:  # the first one, where a single test is run
            send_and_hear_out(stranger, framed(b"[]"))
        self.check()
        minutes = 1 + (time.monotonic() - self._began) / QUIET_S
        assert 1 <= len(self.lines) <= min(LINES_MAX, 2) * minutes, self.lines

    def close(self) -> None:
        self.store.close()
        self.rank.close()
        self._page.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """In an empty folder: who knows the token may have files written there."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("guard"))
    try:
        node = Node()
        yield node
        node.check_lines()
        node.close()
    finally:
        os.chdir(before)


# ---------------------------------------------------------------- what is near the expected
whole = st.integers(-1, 3)
text = st.sampled_from(["a", "k", "", "x" * 100])
keys = st.lists(text, max_size=3)
REQUESTS = [
    {"op": st.just(op), "id": whole, "room": whole, **more}
    for op, more in {
        "set": {"key": text, "value": text},
        "get": {"key": text},
        "add": {"key": text, "by": whole},
        "append": {"key": text, "value": text},
        "compare_set": {"key": text, "expected": text, "value": text},
        "check": {"keys": keys},
        "wait": {"keys": keys},
        "delete": {"key": text},
        "count": {},
        "gather": {"key": text, "place": whole, "of": whole, "value": text},
        "piece": {"key": text, "index": whole},
    }.items()
]
UP = [shape(kind) for kind in messages.UP.values()]
TOKEN = {"token": text, "role": st.sampled_from(["guard", "store"]), "node": text}
SHAKE = [{"nonce": text}, {"proof": text}]
ATTACH = {
    **shape(messages.Attach),
    **dict.fromkeys(("rank", "world", "page_fd", "dump_signal", "port"), whole),
    **dict.fromkeys(("log", "pidfile"), st.none()),  # they would be written
}


@fuzz
@given(data=streams(TOKEN))
def test_garbage_from_strangers_ends_no_coordinator(node: Node, data: bytes) -> None:
    """They do not know the token; it hangs up on them, and serves all others."""
    with node.call() as stranger:
        assert send_and_hear_out(stranger, data) == b"", "nobody is answered"
    node.check()


@fuzz
@given(data=streams(*REQUESTS))
def test_garbage_from_stores_ends_no_coordinator(node: Node, data: bytes) -> None:
    """They know the token; a user's data may be anything."""
    with node.call() as store:
        admit = {"token": node.token, "role": "store", "node": ""}
        send_and_hear_out(store, framed(json.dumps(admit).encode()) + data)
    node.check()


@fuzz
@given(data=streams(*UP), name=text | st.uuids().map(str))
def test_garbage_from_guards_ends_no_coordinator(node: Node, data: bytes, name: str) -> None:
    """Of another version, say; the ranks that it speaks for are its own."""
    with node.call() as guard:
        admit = {"token": node.token, "role": "guard", "node": name}
        send_and_hear_out(guard, framed(json.dumps(admit).encode()) + data)
    node.check()


@fuzz
@given(data=streams(*SHAKE, ATTACH))
def test_garbage_from_strangers_ends_no_guard(node: Node, data: bytes) -> None:
    """On its socket, which every process of this network namespace may call."""
    with node.call_guard() as stranger:
        send_and_hear_out(stranger, data)
    node.check()


@fuzz
@given(data=streams(ATTACH, *UP))
def test_garbage_from_ranks_ends_no_guard(node: Node, data: bytes) -> None:
    """They know the token."""
    with connect_to_guard(node.token) as rank:
        send_and_hear_out(rank._socket, data)
    node.check()


@pytest.mark.parametrize(
    "frame",
    [
        b'{"token":"\\ud800","role":"store","node":"x"}',
        b'{"token":"TOKEN","role":"store","node":"\\ud800"}',
        b'{"token":"TOKEN","role":"guard","node":"\\ud800"}',
    ],
)
def test_a_token_that_is_no_utf8_ends_no_coordinator(node: Node, frame: bytes) -> None:
    """It could not be compared."""
    with node.call() as stranger:
        send_and_hear_out(stranger, framed(frame.replace(b"TOKEN", node.token.encode())))
    node.check()


# ---------------------------------------------------------------- floods
def test_strangers_cost_little_and_not_for_long(node: Node) -> None:
    """4 KiB each; a flood of them keeps nobody out who knows the token."""
    flood = [node.call() for _ in range(600)]
    try:
        for stranger in flood[:300]:
            with contextlib.suppress(ConnectionError):
                stranger.sendall((4000).to_bytes(4, "big") + b"x" * 100)
        began = time.monotonic()
        fresh = EpochStore(("127.0.0.1", node.port), node.token, 0)
        fresh.set("fresh", "1")
        fresh.close()
        with node.call() as greedy:
            assert send_and_hear_out(greedy, (4097).to_bytes(4, "big") + b"x" * 4097) == b""
            assert time.monotonic() - began < BOUND_S
    finally:
        for stranger in flood:
            stranger.close()
    node.check()


def test_a_coordinator_serves_more_ranks_than_its_soft_limit_of_descriptors(
    tmp_path: Path,
) -> None:
    """Its process inherits a limit that is too low for them, and raises it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 20
    ranks = low + 16
    if hard != resource.RLIM_INFINITY and hard < 512 + ranks:
        pytest.skip(f"this user may have {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    try:
        node = Node()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    stores = [EpochStore(("127.0.0.1", node.port), node.token, 0) for _ in range(ranks)]
    assert [store.add("n", 1) for store in stores] == list(range(1, ranks + 1))
    for store in stores:
        store.close()
    node.close()


# ---------------------------------------------------------------- large data
def test_large_values_are_stored_or_refused_in_words(node: Node) -> None:
    """The coordinator goes on, and so does the caller's connection."""
    store = EpochStore(("127.0.0.1", node.port), node.token, 0)
    binary = bytes(range(256)) * 800
    store.set("binary", binary)
    assert store.get("binary") == binary
    for _ in range(5):
        store.append("log", b"\xff" * 200_000)
    with pytest.raises(RuntimeError, match="'log' would hold 1200000 bytes, limit 1048576"):
        store.append("log", b"\xff" * 200_000)
    with pytest.raises(
        RuntimeError, match=r"set 'big': the value has 2000000 bytes, limit 1048576"
    ):
        store.set("big", b"x" * 2_000_000)
    assert len(store.get("log")) == 1_000_000
    store.set("text", "é€")
    assert store.get("text") == "é€".encode()
    store.close()
    node.check()


def test_ranks_gather_more_than_a_message_holds(node: Node) -> None:
    """In pieces."""
    value = [secrets.token_hex(100_000) for _ in range(4)]
    stores = [EpochStore(("127.0.0.1", node.port), node.token, 77) for _ in range(4)]
    results: dict[int, Any] = {}

    def gather(place: int) -> None:
        results[place] = stores[place].collect("g", place, 4, value[place], BOUND_S)

    threads = [threading.Thread(target=gather, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    assert results == dict.fromkeys(range(4), value)
    with pytest.raises(RuntimeError, match="gather 'g2': the value has 2000002 bytes"):
        stores[0].collect("g2", 0, 4, "x" * 2_000_000, BOUND_S)
    for store in stores:
        store.close()
    node.check()
