"""A report says what snapshots cost, and what restarts lost with and without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.base.processes.job_name import host_of, new_job, node_id
from holdfast.tools.report.answer import answer_of
from holdfast.tools.report.compare import rows_of
from holdfast.tools.report.report import Story, as_json, story_of
from holdfast.tools.report.report_html import as_html
from holdfast.tools.report.report_text import as_text
from holdfast.tools.run.run_files import read_run
from tests.unit.made_events import HANG, THEN_WELL, WITH_SNAPSHOTS, event
from tests.unit.tools.test_run_files import _write


def _story(folder: Path, events: list[dict[str, Any]]) -> Story:
    _write(folder, events)
    return story_of(read_run([folder]))


def test_a_restart_from_a_snapshot_has_its_steps_lost_and_those_of_the_checkpoint(
    tmp_path: Path,
) -> None:
    """Ten seconds of steps of one second had followed the last save."""
    found = as_json(_story(tmp_path / "run", WITH_SNAPSHOTS))["snapshots"]
    assert found["restarts"] == [
        {
            "cycle": 1,
            "step": 30,
            "of_cycle": 0,
            "steps_lost": 1,
            "steps_since_save": 10,
            "why": "",
            "is_from_peer": False,
            "sources": [],
            "file": "",
            "offered_step": None,
        }
    ]
    assert (found["kept"], found["written"]) == (None, [])
    assert (found["taken"], found["seconds"], found["steps_lost"]) == (30, 0.3, 1)
    assert found["share"] == pytest.approx(0.3 / 75.0, abs=1e-6)


def test_steps_that_a_snapshot_saved_are_not_done_again(tmp_path: Path) -> None:
    """One second of steps is, in the place of ten."""
    story = _story(tmp_path / "run", WITH_SNAPSHOTS)
    assert story.ledger.seconds["steps_again"] == pytest.approx(2 * 1.0)
    assert story.knows_steps_again


@pytest.mark.parametrize("form", [as_text, as_html])
def test_all_forms_say_it(tmp_path: Path, form: Any) -> None:
    """Cost first, then a line for each restart."""
    text = " ".join(form(_story(tmp_path / "run", WITH_SNAPSHOTS)).split())
    assert "30 taken, which cost 0.3 s of each rank, 0.4 % of its steps" in text
    assert "cycle 1 began from the snapshot of step 30, 1 step again instead of about 10" in text, (
        text
    )
    assert "steps again +10 s; from the snapshot of step 30, 1 step again" in text, "the failure"


def test_a_restart_from_a_kept_step_says_that_another_node_had_it(tmp_path: Path) -> None:
    events = [
        {**one, "sources": ["n1-12-ab"]} if one["kind"] == "snapshot_restored" else one
        for one in WITH_SNAPSHOTS
    ]
    text = " ".join(as_text(_story(tmp_path / "run", events)).split())
    assert "from the snapshot of step 30, kept at another node (n1-12-ab), 1 step again" in text, (
        text
    )


def test_people_read_the_host_of_a_launcher() -> None:
    """The name of a launcher has its process as well; one of another form stays as it is."""
    assert host_of(node_id("gpu-07", new_job())) == "gpu-07"
    assert host_of("n1-12-ab") == "n1-12-ab"


def test_kept_steps_count_once_for_all_nodes_and_have_their_cost_and_failures(
    tmp_path: Path,
) -> None:
    kept = [
        event(7.1, "snapshot_peer", 0, peer="n1-8"),
        event(20.0, "snapshot_copied", 0, step=10, peer="n1-8", n_bytes=5, seconds=1.5),
        event(20.1, "snapshot_kept", 0, step=10, n_bytes=3 << 20, seconds=2.0),
        event(40.0, "snapshot_copied", 0, step=25, peer="n1-8", n_bytes=5, seconds=0.5),
        event(40.1, "snapshot_kept", 0, step=25, n_bytes=3 << 20, seconds=2.0),
        event(45.0, "snapshot_not_copied", 0, step=29, why="timed out"),
    ]
    other = [{**one, "node": "n1"} for one in kept if one["kind"] == "snapshot_kept"]
    story = _story(tmp_path / "run", sorted([*WITH_SNAPSHOTS, *kept, *other], key=_time))
    assert as_json(story)["snapshots"]["kept"] == {
        "steps": 2,
        "n_bytes": 6 << 20,
        "copy_s": 2.0,
        "failures": 1,
        "why": "node n0: timed out",
    }
    text = " ".join(as_text(story).split())
    line = (
        "2 steps kept at other nodes: 6 MiB, for which a node copied for 2 s at most; 1 not copied"
    )
    assert line in text, text


def _time(one: dict[str, Any]) -> float:
    return float(one["t"])


@pytest.mark.parametrize(("why", "words"), [("", "is on disk, 1 MiB"), ("full", "is not on disk")])
def test_a_snapshot_at_the_end_of_the_job_is_in_the_report(
    tmp_path: Path, why: str, words: str
) -> None:
    end = max(map(_time, WITH_SNAPSHOTS))
    about = {"step": 50, "file": "step50-of2-x", "n_bytes": 1 << 20, "seconds": 0.5, "why": why}
    story = _story(tmp_path / "run", [*WITH_SNAPSHOTS, event(end, "snapshot_written", 1, **about)])
    text = " ".join(as_text(story).split())
    assert f"at the end the snapshot of step 50 {words}" in text, text
    assert (why or "step50-of2-x") in text


def test_of_the_snapshots_that_nodes_leave_the_newest_of_the_most_is_named(tmp_path: Path) -> None:
    """One that only some nodes have is removed, or of no use."""
    end = max(map(_time, WITH_SNAPSHOTS))
    left = [("n0", 50), ("n0", 49), ("n1", 49), ("n1", 48), ("n0", 48)]
    events = [
        {
            **event(end, "snapshot_written", 1, step=step, file=f"f{step}", n_bytes=1 << 20),
            "node": node,
        }
        for node, step in left
    ]
    text = " ".join(as_text(_story(tmp_path / "run", [*WITH_SNAPSHOTS, *events])).split())
    assert "the snapshot of step 49 is on disk, 2 MiB of 2 nodes in 0 s: f49" in text, text
    assert "f50" not in text
    assert "f48" not in text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "snapshot_restored", "file": "step30-of2-x"}, "of step 30 on disk, 1 step again"),
        ({"kind": "snapshot_offered"}, "without a snapshot but the one of step 30 on disk"),
    ],
)
def test_a_cycle_that_begins_from_disk_says_so(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    events = [
        {**one, **fields} if one["kind"] == "snapshot_restored" else one for one in WITH_SNAPSHOTS
    ]
    text = " ".join(as_text(_story(tmp_path / "run", events)).split())
    assert words in text, text


def test_steps_lost_by_restarts_in_place_count_once_for_all_nodes(tmp_path: Path) -> None:
    restart = {
        "call": 1,
        "causes": [],
        "progress_at": 20.0,
        "noticed_at": 20.0,
        "entered_at": 20.1,
        "step": 9,
        "lost_steps": 2,
    }
    both = [event(20.2, "restarted_in_place", 0, **restart) for _ in range(2)]
    events = sorted([*WITH_SNAPSHOTS, *both], key=lambda one: one["t"])
    story = _story(tmp_path / "run", events)
    found = as_json(story)["snapshots"]
    assert (found["in_place"], found["steps_lost"]) == (1, 3)
    assert "1 restart in place began from a snapshot" in as_text(story)


def test_the_answer_has_one_clause_of_it(tmp_path: Path) -> None:
    """A reader sees at once how much was lost."""
    rows = dict(answer_of(_story(tmp_path / "run", WITH_SNAPSHOTS)).rows)
    assert (
        ", from the snapshot of step 30, 1 step again instead of about 10; it cost" in rows["then"]
    )


def test_a_restart_that_had_no_snapshot_says_why(tmp_path: Path) -> None:
    """Of a job that uses them."""
    events = [one for one in WITH_SNAPSHOTS if one["kind"] != "snapshot_restored"]
    why = "its bytes have changed"
    events.append(event(90.0, "snapshot_refused", 0, rank=1, step=30, of_cycle=0, why=why))
    events.sort(key=lambda one: one["t"])
    text = " ".join(as_text(_story(tmp_path / "run", events)).split())
    assert (
        "cycle 1 began without a snapshot, 10 steps again; rank 1 could not use step 30: its bytes "
        "have changed" in text
    ), text


def test_a_job_that_begins_from_a_snapshot_of_an_earlier_one_says_so(tmp_path: Path) -> None:
    """It has lost nothing by a restart."""
    begins = event(2.1, "snapshot_restored", 0, step=400, of_cycle=0, lost_steps=None, why="")
    events = [*HANG[:4], begins, *HANG[4:6]]
    found = _story(tmp_path / "run", events).snapshots
    assert found is not None
    assert [(it.cycle, it.step) for it in found.restarts] == [(0, 400)]
    assert found.steps_lost == 0


def test_a_job_without_snapshots_has_nothing_of_it(tmp_path: Path) -> None:
    """Neither a section nor a clause."""
    story = _story(tmp_path / "run", HANG + THEN_WELL)
    assert as_json(story)["snapshots"] is None
    assert "napshots:" not in as_text(story)
    assert "snapshot" not in dict(answer_of(story).rows)["then"]


def test_two_runs_are_compared_by_what_they_lost(tmp_path: Path) -> None:
    """Also where one of them has used none."""
    stories = _story(tmp_path / "a", WITH_SNAPSHOTS), _story(tmp_path / "b", HANG + THEN_WELL)
    rows = {row.what: (row.a, row.b) for row in rows_of(*stories)}
    assert rows["snapshots"] == ("30, 0.4 % of the steps' time", "-")
    assert rows["steps lost"] == ("1", "not known")


def test_memory_that_is_missing_is_a_line(tmp_path: Path) -> None:
    """Of the node that lacks it."""
    events = [*HANG[:6], event(7.0, "snapshots_off", 0, why="2 ranks need 4 MiB"), *HANG[6:]]
    text = as_text(_story(tmp_path / "run", [*events, *THEN_WELL]))
    assert "off on node n0: 2 ranks need 4 MiB" in text
