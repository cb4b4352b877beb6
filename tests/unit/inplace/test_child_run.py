"""Code that is tried in a child process."""

from __future__ import annotations

import os

from holdfast.inplace.torch_edge.work_abort import ChildRun
from tests.waiting import until


def outcome(run: ChildRun) -> str:
    """The answer to a caller that never waits; empty: it is not over."""
    try:
        return run.why_not(0.0) or "passed"
    except TimeoutError:
        return ""


def test_the_end_of_a_run_is_seen_by_a_caller_that_does_not_wait() -> None:
    """A watcher asks every few milliseconds, and has other things to do meanwhile."""
    run = ChildRun("", os.environ, 60.0)
    assert until(lambda: outcome(run), "the run is over") == "passed"


def test_how_it_failed_is_seen_as_well() -> None:
    """The last words of the child are the reason."""
    run = ChildRun("raise SystemExit('no such function')", os.environ, 60.0)
    assert "no such function" in until(lambda: outcome(run), "the run is over")


def test_a_run_that_is_not_over_in_time_has_failed() -> None:
    """Its process is ended."""
    run = ChildRun("import time; time.sleep(600)", os.environ, 0.1)
    assert "longer than 0.1 s" in until(lambda: outcome(run), "its bound is over")
