"""Two runs side by side: their differences, and that equal facts were compared."""

import json
from pathlib import Path

import pytest

from holdfast.tools.commands import main
from holdfast.tools.report.compare import are_two_jobs, compared_as_html, compared_as_text, rows_of
from holdfast.tools.report.report import story_of
from holdfast.tools.run.run_files import read_run
from tests.unit.made_events import HANG, THEN_WELL, event, of_rank
from tests.unit.tools.test_run_files import _write

_FACTS = {
    "command": ["ft_launcher", "--nproc-per-node", "2", "train.py", "--lr", "1"],
    "commit": "a" * 40,
    "versions": {"torch": "2.13.0", "Python": "3.11.7"},
    "environment": {"NCCL_DEBUG": "INFO"},
}
_WELL = [one for one in HANG if one["t"] < 80.0] + [
    *(of_rank(131.0, "worker_exited", 0, k, exit_code=0) for k in (0, 1)),
    event(132.0, "cycle_stopped", 0),
    event(132.0, "job_succeeded", 0),
]


def _ported(events: list[dict], port: int, **facts: object) -> list[dict]:
    """On a rendezvous port, with the facts of the start."""
    given = [{**one, "master_port": port} if "cycle_s" in one["kind"] else one for one in events]
    return [given[0], event(0.1, "launch_facts", 0, **{**_FACTS, **facts}), *given[1:]]


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    changed = {
        "command": ["ft_launcher", "--nproc-per-node", "2", "train.py", "--lr", "2"],
        "versions": {"torch": "2.12.0", "Python": "3.11.7"},
        "environment": {},
    }
    _write(tmp_path / "one", _ported(HANG + THEN_WELL, 11), run_id="one")
    _write(tmp_path / "two", _ported(_WELL, 12, **changed), run_id="two")
    return tmp_path / "one", tmp_path / "two"


def test_the_facts_that_differ_are_shown_side_by_side(two: tuple[Path, Path]) -> None:
    a, b = (story_of(read_run([folder])) for folder in two)
    rows = {row.what: (row.a, row.b) for row in rows_of(a, b) if not row.is_equal}
    assert rows["restarts"] == ("1 restart", "0 restarts")
    assert rows["torch"] == ("2.13.0", "2.12.0")
    assert rows["command"] == ("--lr 1", "--lr 2")
    assert rows["NCCL_DEBUG"] == ("INFO", "-")
    fault = "fault: rank 1 hung (section 'step': 30.0 s, timeout 30 s)"
    assert rows[fault] == ("1 time", "-")
    assert "goodput" in rows
    assert "Python" not in rows
    text = compared_as_text(a, b)
    same = " ".join(text.partition("The same in both: ")[2].split())
    assert {"result", "script", "Python", "commit"} <= set(same.split(", "))
    assert all(len(line) <= 100 for line in text.splitlines()[3:])


def test_the_command_compares_runs_of_two_jobs_and_adds_up_the_nodes_of_one(
    two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(folder) for folder in two]
    assert main("report", words) == 0
    assert capsys.readouterr().out.startswith("A: run one, began ")
    assert main("report", [*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["run_id"] for run in found["runs"]] == ["one", "two"]
    assert {"what": "torch", "a": "2.13.0", "b": "2.12.0"} in found["differences"]
    assert main("report", [*words, "--html", str(tmp_path / "page.html")]) == 0
    assert "<td>torch<td>2.13.0<td>2.12.0" in (tmp_path / "page.html").read_text()

    numbered = [{**one, "group_rank": 1} for one in _ported(HANG + THEN_WELL, 11)]
    other = _write(tmp_path / "other", numbered, run_id="one")
    capsys.readouterr()
    assert main("report", [words[0], str(other)]) == 0
    assert "2 nodes, 4 ranks" in capsys.readouterr().out


def test_the_page_is_named_after_both_scripts_and_names_no_fact_that_neither_run_has(
    tmp_path: Path,
) -> None:
    folders = [
        _write(tmp_path / name, _ported(_WELL, port, commit=""), run_id=name, name=f"{name}.py")
        for port, name in enumerate(("one", "two"), 11)
    ]
    a, b = (story_of(read_run([folder])) for folder in folders)
    assert "<h1>one.py and two.py: two runs compared</h1>" in compared_as_html(a, b)
    assert "<h1>one.py: two runs compared</h1>" in compared_as_html(a, a)
    assert "commit" not in {row.what for row in rows_of(a, b)}


def test_a_node_that_never_had_ranks_belongs_to_the_job_of_its_name(tmp_path: Path) -> None:
    run = read_run([_write(tmp_path / "a", _ported(HANG, 11), run_id="one")])
    for name, are_two in (("one", False), ("two", True)):
        spare = read_run([_write(tmp_path / name, HANG[:1], run_id=name)])
        assert are_two_jobs(run, spare) == are_two
