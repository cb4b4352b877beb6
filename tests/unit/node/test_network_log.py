"""Where a refused connection proves that the leader has died."""

from __future__ import annotations

import errno
import socket
import threading
from typing import Any

import pytest

from holdfast.job.link.leader_call import LeaderCall
from holdfast.job.link.meeting_place import MeetingPlace
from holdfast.job.pure.member_messages import LeaderLost
from holdfast.job.pure.membership import Successor
from holdfast.job.pure.succession_messages import LeaderDied
from holdfast.node.network_log import NetworkLog
from tests.waiting import until

PORT = 29400


@pytest.fixture
def log() -> NetworkLog:
    """Of a launcher that is connected to its leader through a proxy."""
    made = NetworkLog(MeetingPlace("proxy", PORT, False, 1.0, "j1"), "n1", None, lambda: False)
    made._leader_address = ("10.9.9.9", PORT)
    yield made
    made.close()


class Answers:
    """In the place of the search; ``gate``: the check waits for it."""

    def __init__(self, *, yes: bool) -> None:
        self.stop, self.gate, self.yes = threading.Event(), threading.Event(), yes

    def answers(self, *_at: Any) -> bool:
        assert self.gate.wait(30)
        return self.yes


@pytest.mark.parametrize("yes", [True, False])
def test_a_proxy_s_refusal_proves_nothing_unless_the_leader_has_answered_itself(
    log: NetworkLog, yes: bool
) -> None:
    log._finder = finder = Answers(yes=yes)
    log._note_leader(Successor("n0", "10.0.0.1", PORT))
    assert log._proof_at() is None
    finder.gate.set()
    check = log._check
    assert check is not None
    until(check[1].has_ended, "the check has ended")
    assert log._proof_at() == (("10.0.0.1", PORT) if yes else None)


def no_thread(_thread: threading.Thread) -> None:
    raise OSError(errno.EAGAIN, "the system lets this process start no thread")


def test_where_no_thread_can_be_started_nothing_is_proved_and_nothing_ends(
    log: NetworkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check is not made, then or later; a leader's call of the one before is made again."""
    monkeypatch.setattr("holdfast.base.bounded.start_thread", no_thread)
    log._finder = Answers(yes=True)
    log._note_leader(Successor("n0", "10.0.0.1", PORT))
    assert log._proof_at() is None
    assert log._proof_at() is None, "once more"

    about = ("10.0.0.1", PORT), log._finder, ("10.0.0.2", PORT), pytest.fail, lambda: None
    call = LeaderCall(*about, once=True, pause_s=lambda _: 7.0)
    call.on_time()
    call.on_connected()
    assert call.next_deadline() is not None
    assert not call.has_answered


def test_the_address_of_the_connection_needs_no_check(log: NetworkLog) -> None:
    log._note_leader(Successor("n0", "10.9.9.9", PORT))
    assert log._proof_at() == ("10.9.9.9", PORT)


def test_a_check_of_the_leader_before_that_ends_late_proves_nothing_of_the_next(
    log: NetworkLog,
) -> None:
    """Its host refuses, of course: a cut link to the next one would look like a death."""
    log._finder = finder = Answers(yes=True)
    log._note_leader(Successor("n0", "10.0.0.1", PORT))
    assert log._check is not None
    late = log._check[1]
    log._look = lambda _call: None
    with socket.socket() as unused:
        log._make_link = lambda _candidate: unused  # type: ignore[assignment, return-value]
        log._approach(Successor("n2", "10.0.0.2", PORT))
        log._link = None
    finder.gate.set()
    until(late.has_ended, "the check has ended")
    assert log._proof_at() is None


@pytest.mark.parametrize(("addr", "kind"), [("10.9.9.9", LeaderDied), ("10.0.0.1", LeaderLost)])
def test_another_program_at_the_leader_s_address_proves_its_death_unless_a_proxy_has_it(
    log: NetworkLog, addr: str, kind: type
) -> None:
    log._finder = finder = Answers(yes=True)
    log._note_leader(Successor("n0", addr, PORT))
    finder.gate.set()
    log._on_replaced("the job was started again")
    assert isinstance(log.take(), kind)
