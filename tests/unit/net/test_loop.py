from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from holdfast.net.loop import Loop


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
