"""What a launcher tells an outer restarter of its own restarts."""

from __future__ import annotations

import pytest

from holdfast.base.pure.numbering import Cycle, LocalRank
from holdfast.node.pure.rank_life import MonitorSaid
from holdfast.node.restart_lines import RestartLines
from holdfast.watch.pure.monitor_messages import WatchBegan

START, GOES_ON, DONE = (
    f"handling stage={stage}" for stage in ("starting", "processing", "completed")
)


def told(*events: str, has_rank_0: bool = True) -> list[str]:
    said: list[str] = []
    lines = RestartLines(said.append, 60.0)
    for event in events:
        if event == "begins":
            lines.cycle_begins(Cycle(0), has_rank_0=has_rank_0)
        elif event in ("succeeded", "failed"):
            lines.job_is_over(succeeded=event == "succeeded")
        else:
            getattr(lines, event)()
    assert all(line.startswith("[NestedRestarter] name=[InJob] state=") for line in said)
    return [line.rstrip().partition("state=")[2] for line in said]


FIRST = ("begins", "rank_works")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (("begins", "cycle_failed", "begins", "succeeded"), []),  # nobody was monitored
        ((*FIRST, "rank_works", "succeeded"), ["initialize", "finalized"]),
        ((*FIRST, "failed"), ["initialize", START, "aborted"]),
        ((*FIRST, "cycle_failed", "failed"), ["initialize", START, "aborted"]),
        (
            (*FIRST, "cycle_failed", *FIRST, "succeeded"),
            ["initialize", START, GOES_ON, DONE, "finalized"],
        ),
        # Another node failed; this one is only told to start again.
        ((*FIRST, *FIRST, "succeeded"), ["initialize", START, GOES_ON, DONE, "finalized"]),
        # A start that fails before anybody works belongs to the same restart.
        (
            (*FIRST, "cycle_failed", "begins", "cycle_failed", *FIRST, "failed"),
            ["initialize", START, GOES_ON, GOES_ON, DONE, START, "aborted"],
        ),
        # The ranks were not monitored any more, and the job is done.
        (
            (*FIRST, "cycle_failed", "begins", "succeeded"),
            ["initialize", START, GOES_ON, DONE, "finalized"],
        ),
    ],
)
def test_each_state_is_told_once(events: tuple[str, ...], expected: list[str]) -> None:
    assert told(*events) == expected
    assert told(*events, has_rank_0=False) == [], "the launcher of another node says nothing"


def test_a_restart_that_goes_on_is_told_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nodes are waited for, say; not once the ranks work, and not by other nodes."""
    now, said = [100.0], []
    monkeypatch.setattr("holdfast.base.clock.monotonic", lambda: now[0])

    def until(lines: RestartLines, end: float) -> int:
        before = len(said)
        while (at := lines.next_deadline()) is not None and at <= end:
            now[0] = at - 1
            lines.on_time()  # too early
            now[0] = at
            lines.on_time()
        return len(said) - before

    lines, of_another_node = (RestartLines(said.append, 60.0) for _ in range(2))
    for each, has_rank_0 in ((lines, True), (of_another_node, False)):
        each.cycle_begins(Cycle(0), has_rank_0=has_rank_0)
        each.rank_works()
        assert each.next_deadline() is None
        each.cycle_failed()
    assert until(lines, 400.0) == 5
    assert until(of_another_node, 400.0) == 0
    assert set(said[2:]) == {f"[NestedRestarter] name=[InJob] state={GOES_ON}\n"}
    lines.rank_works()
    assert until(lines, 1e6) == 0


def test_the_stdout_of_a_script_that_calls_nothing_of_holdfast_is_its_own() -> None:
    """Its steps count as heartbeats, but nobody around it asked for lines; a later client does."""
    said: list[str] = []
    lines = RestartLines(said.append, 60.0)
    lines.cycle_begins(Cycle(0), has_rank_0=True)
    lines.on_event(MonitorSaid(LocalRank(0), WatchBegan(0, by_steps=True)))
    assert said == []
    lines.on_event(MonitorSaid(LocalRank(0), WatchBegan(0)))
    assert said == ["[NestedRestarter] name=[InJob] state=initialize\n"]


def test_no_line_comes_where_no_restarter_asked_for_them() -> None:
    """Stdout is the script's; ``--ft-restarter-lines`` asks."""
    said: list[str] = []
    lines = RestartLines(said.append, 60.0, is_asked_for=False)
    lines.cycle_begins(Cycle(0), has_rank_0=True)
    lines.rank_works()
    lines.cycle_failed()
    assert lines.next_deadline() is None
    lines.job_is_over(succeeded=False)
    assert said == []
