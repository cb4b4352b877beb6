"""The watcher thread of a rank: what it calls may fail, and it goes on."""

from __future__ import annotations

import socket
import threading

import pytest

from holdfast.inplace.pure import rank as machine
from holdfast.page.page import anonymous_page
from tests.bare_session import bare_session

BOUND_S = 20.0


def test_an_abort_that_fails_is_repeated_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """As where no descriptor is free; the main thread waits for a rank that is gone meanwhile."""
    tries, has_gone_on = [], threading.Event()

    def abort_again() -> None:
        tries.append(1)
        if len(tries) == 3:
            has_gone_on.set()
        raise OSError(24, "Too many open files")

    page = anonymous_page()
    ours, theirs = socket.socketpair()
    session = bare_session(ours, page, abort_again)
    try:
        session.begin(2)
        session._machine.is_interrupting = True
        session._carry_out([machine.Interrupt()])
        assert has_gone_on.wait(BOUND_S)
    finally:
        session.close()
        page.close()
        theirs.close()
    said = [record.message for record in caplog.records if "repeated" in record.message]
    assert len(said) == 1
    assert "Too many open files" in said[0]
