"""What a launcher tells an outer restarter of its own restarts."""

from __future__ import annotations

import pytest

from holdfast.fault_tolerance.launch.restart_lines import RestartLines

START, GOES_ON, DONE = (
    f"handling stage={stage}" for stage in ("starting", "processing", "completed")
)


def told(*events: str, has_rank_0: bool = True) -> list[str]:
    said: list[str] = []
    lines = RestartLines(said.append)
    for event in events:
        if event == "begins":
            lines.cycle_begins(has_rank_0=has_rank_0)
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
