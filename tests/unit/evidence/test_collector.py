"""One collection of evidence: sources in turn, one deadline, one record."""

from __future__ import annotations

import os
from typing import Any

from holdfast.base.processes import proc
from holdfast.evidence.collector import Collector
from holdfast.evidence.sources import DumpedStacks, KeptSamples, Source


class Ends(Source):
    """A source that has its facts at an instant."""

    def __init__(self, at: float, **facts: Any) -> None:
        self.at = at
        self.began_at: float | None = None
        self.done: list[str] = []
        self._facts = facts

    def step(self, now: float) -> float | None:
        self.began_at = now if self.began_at is None else self.began_at
        return self.at if now < self.at else None

    def facts(self) -> dict[str, Any]:
        return dict(self._facts)

    def finish(self) -> None:
        self.done.append("finish")


def test_each_source_begins_when_the_one_before_has_ended() -> None:
    """The collector names the next instant, and is done with the last source."""
    first, second = Ends(3.0), Ends(5.0)
    collector = Collector([first, second], 0.0, 9.0)

    assert not collector.step(1.0)
    assert (collector.next_step_at, second.began_at) == (3.0, None)
    assert not collector.step(3.0)
    assert (collector.next_step_at, second.began_at) == (5.0, 3.0)
    assert collector.step(5.0)
    assert (collector.is_done, first.done, second.done) == (True, ["finish"], ["finish"])


def test_one_deadline_ends_all_sources() -> None:
    """Those that have not begun never begin; all may add what they have."""
    slow, late = Ends(100.0), Ends(0.0)
    collector = Collector([slow, late], 0.0, 9.0)

    assert not collector.step(1.0)
    assert collector.next_step_at == 9.0
    assert collector.step(9.0)
    assert (late.began_at, late.done) == (None, ["finish"])


def test_one_record_has_the_facts_of_all_sources() -> None:
    """A later source knows better; what lacks is listed, the latest source first."""
    sources = [Ends(0.0, apart_s=1.0, is_asked=True, lacks=["a"]), Ends(0.0, apart_s=2.0)]
    collector = Collector([*sources, Ends(0.0, lacks=["b", "c"])], 0.0, 9.0)
    seen = collector.seen()

    assert (seen.apart_s, seen.is_asked, [*seen.lacks]) == (2.0, True, ["b", "c", "a"])


def test_a_collection_that_is_broken_off_finishes_its_sources() -> None:
    """Its rank has died."""
    source = Ends(100.0)
    collector = Collector([source], 0.0, 9.0)
    collector.step(1.0)
    collector.close()
    assert (collector.is_done, source.done) == (True, ["finish"])


def test_a_guard_waits_for_stacks_no_longer_than_its_machine_allows(
    tmp_path: Any, monkeypatch: Any
) -> None:
    """A process that has a handler for the signal, and never writes."""
    opened = (tmp_path / "stacks").open("a")
    monkeypatch.setattr(proc.ProcessState, "catches", lambda _, number: number == 50)
    monkeypatch.setattr(proc.Process, "send", lambda *_: True)
    monkeypatch.setattr(proc.Process, "send_to_thread", lambda *_: True)
    process = proc.Process(os.getpid())
    samples = KeptSamples(process.pid)
    stacks = DumpedStacks(process, 50, str(tmp_path / "stacks"), samples=samples)
    collector = Collector([samples, stacks], 10.0, 11.0)
    now = 10.0
    while not collector.step(now):
        assert collector.next_step_at is not None
        now = collector.next_step_at
    process.close()
    opened.close()
    assert now == 11.0
    assert collector.seen().lacks == ["no stacks: no answer to signal 50"]
