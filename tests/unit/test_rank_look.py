"""One look at a rank, step by step."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.monitor.rank_messages import Alive, Look, Operations
from holdfast.fault_tolerance.monitor.rank_look import SILENT_S, RankLook
from holdfast.host import proc, sight
from holdfast.host.sight import APART_S


@pytest.fixture
def look() -> Iterator[RankLook]:
    """At ourselves, from 100.0 to 110.0; there are no stacks to be had."""
    asked: list[Any] = []
    helper: Any = SimpleNamespace(send=asked.append)
    process = proc.Process(os.getpid())
    with select.epoll() as epoll:
        one = RankLook(process, 0, None, helper, epoll, 100.0, 110.0, wakes_stopped=True)
        assert asked == [Look()]
        yield one
    process.close()


def test_an_answer_ends_the_look(look: RankLook) -> None:
    assert not look.step(100.0)
    assert not look.step(100.0 + APART_S)
    look.helper_said(Alive())
    look.helper_said(Operations(recent=("0 gloo 1 barrier",)))

    assert look.step(100.1)
    assert (look.seen().is_asked, look.seen().is_alive) == (True, True)
    assert look.operations == ("0 gloo 1 barrier",)


def test_silence_is_waited_for_and_then_told(look: RankLook) -> None:
    """A thread that sleeps for the interpreter's lock is not on a CPU."""
    look.step(100.0 + APART_S)
    assert not look.step(100.0 + SILENT_S - 0.01)

    assert look.step(100.0 + SILENT_S)
    assert (look.seen().is_asked, look.seen().is_alive) == (True, False)


def test_a_helper_that_has_no_cpu_is_not_called_silent(
    look: RankLook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for as long as there is time."""
    monkeypatch.setattr(sight, "state_of_thread", lambda *_: "R")
    look.step(100.0 + APART_S)

    assert not look.step(100.0 + SILENT_S)
    assert look.next_step_at == 110.0
    assert look.step(110.0)
    assert not look.seen().is_asked
    assert "its helper thread had no CPU to answer" in look.seen().lacks
