"""Sections that exclude each other, and the abort of a restart."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from holdfast.inplace.atomic import Atomic

BOUND_S = 30.0


@contextmanager
def restart_under_way(atomic: Atomic) -> Iterator[None]:
    """A thread suspends entry and owns the lock, as the watcher of a rank does, until the end."""
    begun, over = threading.Event(), threading.Event()

    def run() -> None:
        atomic.suspend_entry()
        assert atomic.try_own()
        begun.set()
        over.wait(BOUND_S)
        atomic.resume_entry()

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(BOUND_S)
    try:
        yield
    finally:
        over.set()
        thread.join(BOUND_S)


def in_thread(function: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_a_restart_begins_when_the_last_section_has_ended() -> None:
    """Nested ones included; the thread that leaves says so, and none begins from then on."""
    left = threading.Event()
    atomic = Atomic(left.set)
    owned: list[bool] = []
    with atomic:
        with atomic:
            restart = in_thread(lambda: (atomic.suspend_entry(), owned.append(atomic.try_own()))[0])
            restart.join(BOUND_S)
            assert owned == [False]
        assert not left.is_set()
        with atomic:  # inside, more may be nested
            pass
        assert not left.is_set()
    assert left.is_set()


def test_a_section_that_is_due_waits_for_the_end_of_a_restart() -> None:
    """In a thread that enters by either way; a thread that does not want to wait need not."""
    atomic = Atomic()
    entered = threading.Event()

    def work() -> None:
        with atomic:
            entered.set()

    with restart_under_way(atomic):
        thread = in_thread(work)
        assert not atomic.acquire(blocking=False)
        assert not atomic.acquire(timeout=0.01)
        assert not entered.is_set()
    thread.join(BOUND_S)
    assert entered.is_set()
    assert atomic.acquire(timeout=BOUND_S)
    atomic.release()


def test_the_thread_of_a_restart_may_enter_sections() -> None:
    """An abort plug-in that does would wait for itself."""
    atomic = Atomic()
    atomic.suspend_entry()
    assert atomic.try_own()
    with atomic:
        assert atomic.is_owned
    atomic.resume_entry()
    assert not atomic.is_owned


def test_sections_of_threads_exclude_each_other() -> None:
    """As with a reentrant lock: 8 threads count in steps that a switch of threads would break."""
    atomic = Atomic()
    total = 0

    def count() -> None:
        nonlocal total
        for _ in range(2_000):
            with atomic, atomic:
                before = total
                for _ in range(5):
                    pass
                total = before + 1

    threads = [in_thread(count) for _ in range(8)]
    for thread in threads:
        thread.join(BOUND_S)
    assert total == 16_000


def test_a_section_is_a_decorator_too() -> None:
    atomic = Atomic()

    @atomic
    def step(n: int) -> tuple[int, bool]:
        return n, atomic.is_owned

    assert step(3) == (3, True)
    assert not atomic.is_owned


def test_leaving_a_section_that_was_not_entered_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="release"):
        Atomic().release()


def test_a_forked_child_enters_though_the_thread_that_was_inside_is_not_there() -> None:
    """Its parent's restart goes on; a child that resets the lock has its own."""
    atomic = Atomic()
    with restart_under_way(atomic):
        pid = os.fork()
        if pid == 0:
            atomic.reset()
            os._exit(0 if atomic.acquire(timeout=BOUND_S) else 1)
        assert os.waitpid(pid, 0)[1] == 0
