"""Garbage from the other side: from whom ranks and node guards have called themselves."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.pure.codec import encode
from holdfast.inplace.guard_main import GuardProcess
from holdfast.inplace.pure import messages
from holdfast.inplace.torch_edge.epoch_store import EpochStore
from holdfast.net.pure.frames import Decoder
from holdfast.net.pure.handshake import proof
from holdfast.page.page import anonymous_page
from tests.bare_session import bare_session
from tests.garbage import BOUND_S, encoded, fuzz, streams
from tests.message_strategies import shape
from tests.waiting import until

whole = st.integers(-1, 3)
text = st.sampled_from(["a", "", "x" * 100, "é"])
DOWN = [shape(kind) for kind in messages.TO_RANK.values()]


# ---------------------------------------------------------------- a guard, from its coordinator
class Guard:
    """A guard in this process, its one rank, and a coordinator that says what a test wants."""

    def __init__(self) -> None:
        token = secrets.token_hex(8)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind("\0holdfast-test-" + token)
        self._listener.listen()
        self._ports = socket.create_server(("127.0.0.1", 0))
        self._page = anonymous_page()
        self.guard = GuardProcess(self._listener, token)
        self.rank = socket.socket(socket.AF_UNIX)
        self.rank.setblocking(False)
        self.rank.connect(self._listener.getsockname())
        self._decoder = Decoder()
        self.rank.sendall(encoded({"nonce": "n"}))
        [answer] = self.heard()
        port = self._ports.getsockname()[1]
        waits = (messages.CallTimeouts(*[1e4] * 5), messages.CoordinatorTimeouts(*[1e4] * 4))
        attach = messages.Attach(0, 2, self._page.fd, 0, *waits, host="127.0.0.1", port=port)
        self.rank.sendall(encoded({"proof": proof(token, "rank", answer["nonce"])}))
        self.rank.sendall(encoded(encode(attach)))
        self.turn()
        self.coordinator, _ = self._ports.accept()

    def turn(self) -> None:
        for _ in range(10):
            self.guard._descriptors.wait(0.0)
            self.guard._tick(time.monotonic())

    def heard(self) -> list[Any]:
        """By the rank, by now."""
        self.turn()
        with contextlib.suppress(BlockingIOError):
            return self._decoder.feed(self.rank.recv(1 << 16))
        return []

    def close(self) -> None:
        for held in (self.rank, self.coordinator):
            held.close()
        self.turn()
        assert self.guard._is_over(), "its rank has gone"
        self.guard._ranks_server.close()
        self._listener.close()
        self._ports.close()
        self._page.close()
        self.guard._descriptors.epoll.close()


@fuzz
@given(data=streams(*DOWN))
def test_garbage_from_the_coordinator_ends_no_guard(data: bytes) -> None:
    """Its ranks hear that the coordinator is gone, or what it said, and it ends with them."""
    guard = Guard()
    try:
        guard.coordinator.setblocking(False)
        left = memoryview(data)
        for _ in range(100):
            try:
                left = left[guard.coordinator.send(left) :]
            except OSError:
                break
            guard.turn()
            if not left:
                break
        guard.coordinator.close()
        heard: set[str] = set()

        def hears_the_end() -> set[str]:  # which comes over TCP, in its own time
            heard.update(message["op"] for message in guard.heard())
            return heard & {"coordinatorlost", "exit", "rankrefused"}

        until(hears_the_end, f"the end is heard: {heard}")
    finally:
        guard.close()


# ---------------------------------------------------------------- a rank, from its guard
@fuzz
@given(data=streams(*DOWN))
def test_garbage_from_the_guard_ends_no_rank(data: bytes) -> None:
    """Its watcher lives until the guard hangs up, and wakes the main thread then."""
    page = anonymous_page()
    ours, theirs = socket.socketpair()
    logging.getLogger("holdfast.inplace.session").propagate = False
    session = bare_session(ours, page)
    try:
        session.begin(2)
        with theirs:
            theirs.settimeout(0.2)
            with contextlib.suppress(OSError):  # after garbage it reads no more
                theirs.sendall(data)
        until(lambda: session._fence_at is not None or not session._watcher.is_alive())
        assert session._fence_at is not None, "the watcher died"
        assert session.wait(BOUND_S) is not None
        assert session._watcher.is_alive()
    finally:
        session.close()
        page.close()
        logging.getLogger("holdfast.inplace.session").propagate = True


# ---------------------------------------------------------------- a rank, from the store
class Answers:
    """A coordinator that answers every caller with the same bytes."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = ("127.0.0.1", self._listener.getsockname()[1])
        self.data = b""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            with connected:
                connected.settimeout(BOUND_S)
                try:
                    connected.recv(1 << 16)
                    connected.sendall(self.data)
                except OSError:
                    pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    answers = Answers()
    yield answers
    answers.close()


ASK: list[Callable[[EpochStore], object]] = [
    lambda store: store.get("k"),
    lambda store: store.add("k", 1),
    lambda store: store.compare_set("k", "a", "b"),
    lambda store: store.num_keys(),
    lambda store: store.check(["k"]),
    lambda store: store.collect("g", 0, 1, 1, BOUND_S),
]
ANSWER = {"id": st.just(1), "value": text}


@fuzz
@given(
    data=streams(
        ANSWER,
        ANSWER | {"value": whole},
        {"id": st.just(1), "pieces": whole},
        {"id": st.just(1), "error": text},
    ),
    ask=st.sampled_from(ASK),
)
def test_garbage_from_the_store_is_an_error_for_who_asked(
    answers: Answers, data: bytes, ask: Callable[[EpochStore], object]
) -> None:
    """One that says so, at once."""
    answers.data = data
    store = EpochStore(answers.address, "token", 0, BOUND_S)
    try:
        ask(store)
    except (RuntimeError, ConnectionError):
        pass
    finally:
        store.close()
