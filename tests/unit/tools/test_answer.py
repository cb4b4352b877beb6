"""The answer of a report: the fault to see first, with its line, cause and remedy; each once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.tools.report.answer import BAD, GOOD, RECOVERED, ReportAnswer, answer_of
from holdfast.tools.report.report import Story, as_json, story_of
from holdfast.tools.report.report_html import as_html
from holdfast.tools.report.report_text import as_text
from holdfast.tools.run.run_files import read_run
from tests.unit.made_events import HANG, THEN_WELL, event, of_rank
from tests.unit.tools.test_run_files import _write

_MAIN = 'Thread 0x1 (most recent call first):\n  File "/home/me/{}", line {} in {}\n'
_VERDICT = {"culprits": [1], "reason": "rank 1 (pid 7, node n0) sleeps in `load` data.py:88"}
_JUDGED = event(80.4, "incident", incident=1, verdict="waiting", short="rank 1 sleeps", **_VERDICT)


def _crash(cycle: int, t: float, rank: int = 1, **failed: Any) -> list[dict[str, Any]]:
    """A cycle in which a rank fails after ten seconds."""
    started = [of_rank(t, "worker_started", cycle, k, pid=70 + k) for k in (0, 1)]
    why = {"rank": rank, "began_at": t + 10.0, "why": "KeyError ('a'): exit code 1 at data.py:88"}
    return [
        event(t, "cycle_started", cycle),
        *started,
        of_rank(t + 10.0, "worker_exited", cycle, rank, exit_code=1),
        of_rank(t + 10.1, "rank_failed", cycle, rank, exception="KeyError", **failed),
        event(t + 10.2, "cycle_stopping", cycle, restart=True),
        of_rank(t + 11.0, "worker_exited", cycle, 1 - rank, exit_code=-15),
        event(t + 12.0, "cycle_stopped", cycle),
        event(t + 13.0, "first_cause", cycle, **why),
    ]


def _story(folder: Path, *events: dict[str, Any]) -> Story:
    in_order = sorted(events, key=lambda one: one["t"])
    return story_of(read_run([_write(folder, [event(0.0, "launcher_started"), *in_order])]))


def _rows(answer: ReportAnswer) -> dict[str, str]:
    return dict(answer.rows)


def _incident(folder: Path, stacks: dict[int, str], **facts: Any) -> None:
    path = folder / "incidents" / "0001-cycle0"
    path.mkdir(parents=True)
    (path / "incident.json").write_text(json.dumps({"cycle": 0, **facts}))
    for rank, stack in stacks.items():
        (path / f"rank{rank}.json").write_text(json.dumps({"stacks_text": stack}))


def test_of_a_hang_it_says_the_line_the_ranks_that_wait_and_the_remedy(tmp_path: Path) -> None:
    groups = [{"ranks": [1], "text": "in `load` data.py:88"}, {"ranks": [0], "text": "waits"}]
    facts = {**_VERDICT, "kind": "waiting", "next": "Give the loader a timeout", "groups": groups}
    _incident(tmp_path, {1: _MAIN.format("data.py", 88, "load")}, **facts)
    lines = ["NCCL WARN socket closed", "2026-11-26 08:00:00,1 [INFO] [n0] [rank 1] holdfast: x"]
    last = of_rank(80.5, "rank_failed", 0, 1, stderr=lines)
    story = _story(tmp_path, *HANG[1:], *THEN_WELL, _JUDGED, last)
    answer = answer_of(story)
    assert answer.look == RECOVERED
    assert story.faults[0].last.stderr == ("NCCL WARN socket closed",)
    assert answer.title.startswith("Succeeded, after 1 failure, which cost ")
    rows = _rows(answer)
    assert rows["what"] == "rank 1 sleeps"
    assert rows["where"] == "/home/me/data.py:88, in load (rank 1, pid 0, node n0)"
    assert (
        rows["why"] == "rank 1 hung (section 'step': 30.0 s, timeout 30 s); meanwhile rank 0 waits"
    )
    assert rows["do"] == "Give the loader a timeout"
    assert rows["then"].startswith("ranks of cycle 1 started 4 s after the detection, steps again")


def test_of_a_mismatch_it_shows_the_lines_and_stacks_of_both_sides(tmp_path: Path) -> None:
    groups = [{"ranks": [1], "text": "in `broadcast`"}, {"ranks": [0], "text": "in `all_reduce`"}]
    stacks = {0: _MAIN.format("train.py", 23, "sync"), 1: _MAIN.format("train.py", 21, "sync")}
    facts = {"culprits": [1], "reason": "rank 1 called `broadcast`", "kind": "mismatch"}
    _incident(tmp_path, stacks, groups=groups, **facts)
    judged = event(80.4, "incident", incident=1, verdict="mismatch", **_VERDICT)
    story = _story(tmp_path, *HANG[1:], *THEN_WELL, judged)
    rows = _rows(answer_of(story))
    assert rows["what"] == "rank 1 called another collective than rank 0"
    sides = ["/home/me/train.py:21, in sync", "/home/me/train.py:23, in sync"]
    assert rows["where"] == f"rank 1: {sides[0]}; rank 0: {sides[1]}"
    assert rows["why"] == "rank 1 called `broadcast`"
    text, page = as_text(story), as_html(story)
    assert "rank 1 called <code>broadcast</code>" in page
    for line in (21, 23):
        assert f"sync train.py:{line}" in text
        assert f"<b>&gt; sync  /home/me/train.py:{line}</b>" in page


def test_failures_that_look_the_same_are_one_with_all_its_times(tmp_path: Path) -> None:
    """Whichever rank they strike; the last one's lines are shown."""
    failed = {"place": "/home/me/data.py:88", "stderr": ["Traceback ...", "KeyError: 'a'"]}
    events = [
        *_crash(0, 1.0, 1, **failed),
        *_crash(1, 21.0, 0, **failed),
        *_crash(2, 41.0, 1, **{**failed, "place": "/home/me/data.py:99"}),
        event(60.0, "job_failed", 2, end="failed", exit_code=1),
    ]
    story = _story(tmp_path, *events)
    assert [len(each.failures) for each in story.faults] == [2, 1]
    answer = answer_of(story)
    assert (answer.look, answer.title) == (BAD, "Failed, after 2 restarts")
    rows = _rows(answer)
    assert rows["what"] == "rank 1 raised KeyError"
    assert rows["where"] == "/home/me/data.py:99 (rank 1, pid 71, node n0)"
    assert rows["why"] == "KeyError ('a'): exit code 1 at data.py:88"
    assert "See /home/me/data.py:99" in rows["do"]
    assert rows["then"] == "no rank was started again"
    text = as_text(story)
    assert "rank 0 raised KeyError: 2 times, in cycles 0, 1" in text
    assert text.count("KeyError: 'a'") == 2
    assert [each["group"] for each in as_json(story)["failures"]] == [0, 0, 1]


_LEFT = {
    "left": [0],
    "left_how": "rank 0 (pid 70) exited with code 0 while rank 1 continued",
    "then": "0.09 s later rank 1 failed at t.py:22: another rank was lost",
    "advice": "look in rank 0",
}


def test_of_a_rank_that_left_it_says_so_first_and_then_where_its_peer_failed(
    tmp_path: Path,
) -> None:
    failed = {"place": "/home/me/t.py:22", "advice": "look at the rank that ended first"}
    *events, cause = _crash(0, 1.0, 1, **failed)
    end = event(60.0, "job_failed", 0, end="failed", exit_code=1)
    story = _story(tmp_path, *events, {**cause, **_LEFT}, end)
    rows = _rows(answer_of(story))
    assert rows["what"] == _LEFT["left_how"]
    assert rows["where"] == "/home/me/t.py:22 (rank 1, pid 71, node n0)"
    assert (rows["why"], rows["do"]) == (_LEFT["then"], _LEFT["advice"])
    page = as_html(story)
    assert f"cycle 0: {_LEFT['left_how']}; {_LEFT['then']}" in page, "on the time axis"


@pytest.mark.parametrize("form", [as_text, as_html])
def test_an_incident_is_explained_once(tmp_path: Path, form: Any) -> None:
    """In the answer; the list of failures has its times, stacks and files."""
    facts = {**_VERDICT, "kind": "waiting", "next": "Give the loader a timeout"}
    groups = [{"ranks": [1], "text": "in `load` data.py:88"}]
    _incident(tmp_path, {1: _MAIN.format("data.py", 88, "load")}, groups=groups, **facts)
    shown = re.sub(r"[\s│]+", " ", form(_story(tmp_path, *HANG[1:], *THEN_WELL, _JUDGED)))
    for words in ("Give the loader a timeout", "/home/me/data.py:88, in load"):
        assert shown.count(words) == 1, words


@pytest.mark.parametrize(
    ("end", "look", "title"),
    [
        (THEN_WELL[-1:], GOOD, "Succeeded; nothing failed"),
        ([event(9.0, "job_failed", end="stopped by SIGTERM")], BAD, "Stopped by SIGTERM, without"),
        ([], BAD, "Cut off: the launcher was killed"),
    ],
)
def test_a_job_without_a_failure_has_its_state(
    tmp_path: Path, end: list[dict[str, Any]], look: str, title: str
) -> None:
    answer = answer_of(_story(tmp_path, *HANG[1:6], *end))
    assert (answer.look, answer.title[: len(title)]) == (look, title)


def test_the_answer_comes_before_all_else(tmp_path: Path) -> None:
    story = _story(tmp_path, *_crash(0, 1.0), event(20.0, "job_failed", 0, end="failed"))
    assert as_text(story).splitlines()[1] == "┌─ Failed, without a restart"
    page = as_html(story)
    assert page.index("class='card answer bad'".replace("'", '"')) < page.index("<h2>Goodput")
    assert max(map(len, as_text(story).splitlines())) <= 100 + len(str(tmp_path))
