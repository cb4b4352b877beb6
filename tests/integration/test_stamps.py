from __future__ import annotations

import ctypes
import mmap
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.page.stamps import Stamps
from tests.waiting import until

LIMIT_S = 0.4
"""Forty periods of stamping."""


class Stamping:
    def __init__(self, folder: Path, state: str) -> None:
        path = folder / "words"
        path.write_bytes(bytes(4096))
        with path.open("r+b") as file:
            self.words = memoryview(mmap.mmap(file.fileno(), 4096)).cast("d")
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("stamping.py"), path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{state}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{state}\n"

    def state(self) -> str:
        """By the ages of both stamps: the main thread's, and the watcher's."""
        now = time.monotonic()
        main_is_old, thread_is_old = (now > at + LIMIT_S for at in self.words[:2])
        if not main_is_old:
            return "running"
        return "interpreter held" if thread_is_old else "blocked"

    def comes_to(self, state: str) -> None:
        until(lambda: self.state() == state, lambda: (state, self.state()))

    def stamps(self, word: int, times: int) -> None:
        """At least so many."""
        seen: set[float] = set()
        until(lambda: seen.add(self.words[word]) or len(seen) >= times)


@contextmanager
def stamping(folder: Path, state: str) -> Iterator[Stamping]:
    made = Stamping(folder, state)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


def test_a_loop_of_python_stamps_all_the_time(tmp_path: Path) -> None:
    """Both stamps go on."""
    with stamping(tmp_path, "loop") as process:
        for word in (0, 1):
            process.stamps(word, 30)
        process.comes_to("running")


@pytest.mark.parametrize(("call", "seen"), [("sleep", "blocked"), ("hold", "interpreter held")])
def test_a_call_into_c_is_seen_with_who_has_the_interpreter(
    tmp_path: Path, call: str, seen: str
) -> None:
    """One that lets others run, and one that does not."""
    with stamping(tmp_path, call) as process:
        process.comes_to(seen)


def test_a_stopped_process_looks_held_and_recovers(tmp_path: Path) -> None:
    """SIGSTOP, then SIGCONT."""
    with stamping(tmp_path, "loop") as process:
        process.comes_to("running")
        process.process.send_signal(signal.SIGSTOP)
        process.comes_to("interpreter held")
        process.process.send_signal(signal.SIGCONT)
        process.comes_to("running")


def test_what_is_raised_while_the_main_thread_stamps_arrives_as_what_it_is() -> None:
    """Python code in that place would lose it, and end as a SystemError in the user's code."""

    class Restart(BaseException):
        pass

    words = memoryview(bytearray(16)).cast("d")
    stamps = Stamps(words, 0, 1)
    stamps.begin()
    raised = []
    for _ in range(20):
        try:
            stamps.beat()
            # Pending calls come before it, as soon as this returns.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Restart)
            )
            for _ in range(100):
                pass
        except BaseException as error:  # noqa: BLE001 - which one is the point
            raised.append(type(error))
    stamps.end()
    assert raised == [Restart] * 20


def test_the_main_thread_is_stamped_when_it_ran_since_the_beat_before() -> None:
    """And stamps go on after whatever was raised in between."""
    words = memoryview(bytearray(16)).cast("d")
    stamps = Stamps(words, 0, 1)
    stamps.begin()
    for _ in range(3):
        words[0] = 0.0
        until(lambda: stamps.beat() or words[0])
    stamps.end()


def test_only_the_one_that_began_last_stamps() -> None:
    """And none after its end, though its call may still be pending."""
    words = memoryview(bytearray(32)).cast("d")
    first, second = Stamps(words, 0, 1), Stamps(words, 2, 3)
    first.begin()
    second.begin()
    before = words[0]
    first.beat()
    for _ in range(100):
        pass
    assert words[0] == before
    second.end()
    before = words[2]
    second.beat()
    for _ in range(100):
        pass
    assert words[2] == before
