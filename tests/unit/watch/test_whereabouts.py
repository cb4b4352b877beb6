"""Which thread of a rank trains, what it calls in C, and where its tasks wait."""

from __future__ import annotations

import asyncio
import dis
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from holdfast.evidence.pure.evidence import Operations
from holdfast.evidence.pure.stacks import Frame
from holdfast.watch.rank import whereabouts
from holdfast.watch.rank.whereabouts import awaiting, call_of, is_at_store
from tests.waiting import until

BOUND_S = 20.0
HAS_POSITIONS = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="instructions have no positions in the source"
)
assert dis


LOCK = threading.Lock()


class _Work:
    """As torch's: an object whose method ``wait`` is in C."""

    def __init__(self) -> None:
        self.lock = LOCK
        self.wait = LOCK.acquire


WORK = _Work()


@contextmanager
def in_c(wait: Callable[[], object]) -> Iterator[FrameType]:
    """The frame of a thread that is in this function, and does not go on."""
    LOCK.acquire()
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    give_up_at = time.monotonic() + BOUND_S
    before: tuple[object, int] = None, 0
    try:
        while True:
            time.sleep(0.02)
            frame = sys._current_frames()[thread.ident or 0]
            if frame.f_code is wait.__code__ and before == (frame, frame.f_lasti):
                break
            before = frame, frame.f_lasti
            assert time.monotonic() < give_up_at
        yield frame
    finally:
        LOCK.release()
        thread.join(BOUND_S)


def waits_in_a_list() -> None:
    for req in [_Work()]:
        req.wait(
            True,
            BOUND_S,
        )
    LOCK.release()


def waits_for_an_attribute() -> None:
    str(print(end="") or WORK.lock.acquire(timeout=max(BOUND_S, 1.0)))
    LOCK.release()


def waits_for_a_result() -> None:
    str(_Work().wait(True, BOUND_S))
    LOCK.release()


@HAS_POSITIONS
@pytest.mark.parametrize(
    ("wait", "calls"),
    [
        (waits_in_a_list, "req.wait"),
        (waits_for_an_attribute, "WORK.lock.acquire"),
        (waits_for_a_result, "_Work.wait"),
    ],
)
def test_a_call_in_c_is_known_though_it_has_no_frame(wait: Any, calls: str) -> None:
    """A receive of gloo's, or a store's wait, shows the user's line and nothing else."""
    with in_c(wait) as frame:
        assert call_of(frame) == calls


def test_a_request_to_the_store_without_an_answer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one that was answered, and not that of another server."""
    with socket.create_server(("127.0.0.1", 0)) as store:
        port = store.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with socket.create_connection(("127.0.0.1", port)) as client, store.accept()[0] as peer:
            for _ in range(2):
                peer.sendall(b"answer")
                client.recv(6)
                assert not is_at_store()
                # The kernel counts in ticks of some ms.
                until(lambda: client.sendall(b"wait") or is_at_store())
                peer.recv(1 << 16)
            monkeypatch.setenv("MASTER_PORT", str(port - 1))
            assert not is_at_store()
            monkeypatch.setenv("MASTER_PORT", "none")
            assert not is_at_store()


LOOP = Frame("/usr/lib/python3.11/asyncio/base_events.py", 1922, "_run_once")
HUB = Frame("/x/site-packages/gevent/hub.py", 647, "run")


async def _reads(event: asyncio.Event) -> None:
    await event.wait()


async def _awaits(task: asyncio.Task[None]) -> None:
    await task


def test_the_line_is_that_of_the_task_that_waits_for_no_other_one() -> None:
    """Read from another thread, as the helper does."""
    found: list[tuple[str, ...]] = []

    async def main() -> None:
        event = asyncio.Event()
        task = asyncio.create_task(_reads(event))
        rest = asyncio.create_task(_awaits(task))
        for _ in range(3):
            await asyncio.sleep(0)
        at = sys._getframe()
        look = threading.Thread(target=lambda: found.append(awaiting(at, [LOOP])))
        look.start()
        look.join()
        event.set()
        await asyncio.gather(task, rest)

    asyncio.run(main())
    line = _reads.__code__.co_firstlineno + 1
    # The task of this test runs the loop; in a rank's main thread, that would show its frames.
    assert f"_reads test_whereabouts.py:{line}" in found[0]
    assert not any("_awaits" in each for each in found[0])


def test_no_task_is_shown_of_a_thread_that_runs_one() -> None:
    user = Frame("/home/me/train.py", 8, "train")
    wait = Frame("/usr/lib/python3.11/threading.py", 1, "wait")
    assert awaiting(sys._getframe(), [user, LOOP]) == ()
    assert awaiting(sys._getframe(), [wait, user]) == ()


def test_greenlets_of_gevent_are_found_by_their_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    class Greenlet:
        def __init__(self, frame: FrameType | None) -> None:
            self.gr_frame = frame

    def fetch() -> FrameType:
        return sys._getframe()

    kept = [Greenlet(fetch()), Greenlet(None)]
    monkeypatch.setitem(sys.modules, "greenlet", SimpleNamespace(greenlet=Greenlet))
    line = fetch.__code__.co_firstlineno + 1

    assert awaiting(sys._getframe(), [HUB]) == (f"fetch test_whereabouts.py:{line}",)
    assert awaiting(sys._getframe(), [LOOP]) == ()
    assert kept


def test_what_fails_leaves_the_rest_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper has to answer, or its silence would be taken for a held lock."""
    monkeypatch.setattr(whereabouts, "call_of", lambda _: 1 // 0)
    found: list[Operations] = []
    look = threading.Thread(target=lambda: found.append(whereabouts.whereabouts()))
    look.start()
    look.join()

    assert found[0].call == ""
    assert any(f" {__file__.rpartition('/')[2]}:" in frame for frame in found[0].frames)
