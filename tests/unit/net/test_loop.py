from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from holdfast.base import clock
from holdfast.base.processes import proc
from holdfast.net.loop import Loop
from tests.waiting import SCALE, until

WAITS_S = 1.0 * SCALE
WAITS = f"""
from holdfast.base import clock
from holdfast.net.loop import Loop
with Loop() as loop:
    def say(word):
        print(word, flush=True)
        loop.stop()
    deadline = clock.monotonic() + {WAITS_S}
    loop.watch(0, lambda: say("readable"))
    print(deadline, flush=True)
    loop.run(lambda: deadline, lambda: say("late"))
"""


def test_what_came_while_the_process_was_stopped_comes_before_the_deadline_that_it_overslept() -> (
    None
):
    """A launcher that was stopped has the leader's message before it finds that none came."""
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = float(process.stdout.readline())

        def state() -> str:
            found = proc.stat(process.pid)
            return "" if found is None else found.state

        until(lambda: state() == "S", "it waits")
        process.send_signal(signal.SIGSTOP)
        until(lambda: state() == "T", "it is stopped")
        process.stdin.write(b"x")
        process.stdin.flush()
        until(lambda: clock.monotonic() > deadline, "the deadline")
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == b"readable\n"


def test_another_thread_has_the_loop_call_what_the_main_thread_is_to_do() -> None:
    """Once each, in order, also while a signal comes; when the loop is closed, nothing."""
    called: list[tuple[str, bool]] = []

    def call(name: str) -> None:
        called.append((name, threading.current_thread() is threading.main_thread()))

    def ask() -> None:
        loop.call_soon(lambda: call("first"))
        signal.raise_signal(signal.SIGUSR1)
        loop.call_soon(lambda: call("second"))
        loop.call_soon(loop.stop)

    before = signal.getsignal(signal.SIGUSR1)
    with Loop() as loop:
        loop.on_signals([signal.SIGUSR1], lambda _: call("signal"))
        thread = threading.Thread(target=ask)
        thread.start()
        loop.run(lambda: None, lambda: None)
        thread.join()
    loop.call_soon(lambda: call("late"))

    assert signal.getsignal(signal.SIGUSR1) == before
    assert [name for name in called if name[0] != "signal"] == [("first", True), ("second", True)]


def test_a_process_that_a_callback_of_a_signal_cannot_fork_ends_the_loop() -> None:
    """As any error: a launcher that went on would start no rank, and say nothing."""

    def start(_: int) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    late = clock.monotonic() + WAITS_S
    with Loop() as loop:
        loop.on_signals([signal.SIGUSR1], start)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        with pytest.raises(BlockingIOError):
            loop.run(lambda: late, loop.stop)


def test_a_signal_at_the_end_of_the_loop_waits_as_it_did_before_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An impatient user: in no moment does the handler of the first lines end the process."""
    called: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda signum, _: called.append(signum))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    set_handler = signal.signal

    def set_and_be_interrupted(signum: int, handler: Any) -> Any:
        replaced = set_handler(signum, handler)
        # To this thread: in a worker of the tests, others do not block it.
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        return replaced

    try:
        with Loop() as loop:
            loop.on_signals([signal.SIGUSR1], lambda _: None)
            monkeypatch.setattr("holdfast.net.loop.signal.signal", set_and_be_interrupted)
        assert called == []
        assert signal.SIGUSR1 in signal.sigpending()
        signal.sigwait([signal.SIGUSR1])
    finally:
        monkeypatch.undo()
        set_handler(signal.SIGUSR1, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])


@pytest.mark.parametrize("is_signalled", [True, False])
def test_a_wait_for_a_descriptor_ends_with_a_signal_that_came_before(is_signalled: bool) -> None:
    """Others do not end it, and nothing is called for it."""
    called: list[int] = []
    read_end, write_end = os.pipe()

    def later() -> None:
        os.kill(os.getpid(), signal.SIGUSR2)
        if is_signalled:
            os.kill(os.getpid(), signal.SIGUSR1)
        else:
            os.close(write_end)

    with Loop() as loop:
        loop.on_signals([signal.SIGUSR1, signal.SIGUSR2], called.append)
        timer = threading.Timer(0.05, later)
        timer.start()
        assert loop.signalled_before(read_end, [signal.SIGUSR1], 60.0) is is_signalled
        timer.join()
    assert called == []


def test_a_wait_for_a_descriptor_may_have_a_bound() -> None:
    read_end, write_end = os.pipe()
    with Loop() as loop:
        assert not loop.signalled_before(read_end, [signal.SIGUSR1], 0.01)
    os.close(read_end)
    os.close(write_end)
