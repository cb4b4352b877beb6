"""Runs are listed by script, found without a name, and removed by age or number."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from pathlib import Path

import pytest

from holdfast.base import clock
from holdfast.base.processes.job_name import new_job
from holdfast.cli import main
from holdfast.events.run import old_runs, run_links
from holdfast.events.run.old_runs import FoundRun, beyond, found_run, keep_newest
from holdfast.node.records import run_dirs
from holdfast.tools.run_list import resolve
from tests.unit.made_events import HANG, THEN_WELL, event

_DAY_S = 86400.0
_NO_LAUNCHER = "elsewhere"
"""A job's name that says nothing of its launcher: it ran on another host."""


def _made(
    log_dir: Path | None, run_id: str, age_s: float = 0.0, *, is_over: bool = True, **life: object
) -> Path:
    """A run folder as a launcher leaves it, whose last event is ``age_s`` seconds old."""
    folder = Path(run_dirs.make_run_dir(None if log_dir is None else str(log_dir), run_id))
    wall = clock.wall() - age_s
    first = {**HANG[0], "run_id": run_id, "name": "train.py", "job": _NO_LAUNCHER, "wall": wall}
    events = [{**first, **life}, *HANG[1:], *(THEN_WELL if is_over else ())]
    path = folder / "events-launcher.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in events))
    os.utime(path, (wall, wall))
    return folder


# ---------------------------------------------------------------- holdfast runs


def test_runs_are_listed_by_script_within_100_columns(
    temp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script of the newest run comes last; each name is one that the commands take."""
    old = _made(None, "a" * 32, 900.0)
    other = _made(tmp_path / "logs", "llama-70b-with-a-long-name", 500.0, name="/src/pretrain.py")
    new = _made(None, "7", 100.0)
    assert main(["runs", str(tmp_path / "logs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    head, *rest = lines
    assert head.split() == ["began", "length", "state", "restarts", "run", "id", "name"]
    assert [line for line in rest if not line.startswith(" ")] == [
        f"pretrain.py, in {tmp_path / 'logs'}",
        "train.py",
    ]
    names = [line.split()[-1] for line in rest if line.startswith(" ")]
    assert names == [folder.name[-8:] for folder in (other, old, new)]
    assert [resolve([name]) for name in names[1:]] == [[old], [new]]
    assert resolve([f"{tmp_path / 'logs'}/{names[0]}"]) == [other]


def test_the_newest_20_runs_are_listed_and_on_request_all(
    temp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for age in range(23):
        _made(None, str(age), float(age), name="eval.py" if age == 22 else "train.py")
    for words, n_runs in ([], 20), (["--all"], 23), (["--script", "eval"], 1):
        assert main(["runs", *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert sum(line.startswith("  2") for line in lines) == n_runs
        more = "3 older runs not shown: holdfast runs --all"
        assert (lines[-1] == more) == (not words)


# ---------------------------------------------------------------- without a name


def test_a_command_without_a_name_says_which_run_it_took(
    temp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr; with the name of the folder it says nothing."""
    folder = _made(None, "7", 130.0)
    for words in (["report"], ["trace", "-o", "-"], ["top", "--once"], ["report", "latest"]):
        assert main(words) == 0
        said = capsys.readouterr().err
        assert said == (f"holdfast {words[0]}: run 7 of train.py, began 2 min 10 s ago: {folder}\n")
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().err == ""


def test_without_a_name_the_newest_run_is_taken_also_from_a_log_folder(
    temp: Path, tmp_path: Path
) -> None:
    """Its launcher is dead, and no command was given the log folder."""
    _made(None, "7", 100.0)
    newest = _made(tmp_path / "logs", "8")
    assert resolve([]) == [newest]
    shutil.rmtree(newest)
    assert resolve([])[0].name.startswith("holdfast_run_")


def test_a_temp_folder_that_hangs_does_not_keep_a_job_with_a_log_folder_from_starting(
    temp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes without the link."""
    point, is_over = run_links.point_latest, threading.Event()

    def hangs(log_dir: str | None, run_dir: str) -> None:
        if log_dir is None:
            is_over.wait()
        point(log_dir, run_dir)

    monkeypatch.setattr(run_links, "point_latest", hangs)
    monkeypatch.setattr(run_dirs, "_LOOK_S", 0.01)
    made = run_dirs.make_run_dir(str(tmp_path / "logs"), "7")
    assert (tmp_path / "logs" / "latest").resolve() == Path(made)
    assert list(temp.iterdir()) == []
    is_over.set()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_without_a_name_another_users_run_is_never_taken(temp: Path, tmp_path: Path) -> None:
    """Also where it is newer, or a node of the same run id."""
    own = _made(None, "7", 100.0)
    for run_id, age in ("7", 90.0), ("8", 0.0):
        os.chown(_made(None, run_id, age), 1234, 1234)
    assert resolve([]) == [own]


# ---------------------------------------------------------------- holdfast prune


def _prune(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["prune", *words]) == 0
    return capsys.readouterr().out.splitlines()


def _there(*folders: Path) -> list[bool]:
    return [folder.is_dir() for folder in folders]


def test_runs_that_are_older_are_removed_and_first_only_named(
    temp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "logs"
    young, old = _made(None, "1", 6.9 * _DAY_S), _made(None, "2", 7.1 * _DAY_S)
    older = _made(logs, "3", 30 * _DAY_S)
    (older / "attempt_0" / "0").mkdir(parents=True)
    (older / "attempt_0" / "0" / "stderr.log").write_bytes(bytes(3 << 20))
    dry = _prune(capsys, "--older", "7d", str(logs), "--dry-run")
    assert dry[0] == "would remove 2 runs, 3.01 MiB"
    assert _there(young, old, older) == [True, True, True]
    assert _prune(capsys, "--older", "7d", str(logs)) == [
        dry[0].replace("would remove", "removed"),
        *dry[1:],
    ]
    assert _there(young, old, older) == [True, False, False]
    assert list(logs.iterdir()) == []  # nor a link to it


def test_a_run_that_is_or_may_be_alive_is_not_removed(
    temp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """This process is its launcher, or one of another host may be; nodes of a job stay together."""
    logs = tmp_path / "logs"
    here = _made(logs, "1", 30 * _DAY_S, job=new_job(), is_over=False)
    left_early = _made(logs, "1", 30 * _DAY_S)
    elsewhere = _made(logs, "2", 0.9 * _DAY_S, is_over=False)
    silent = _made(logs, "3", 9 * _DAY_S, is_over=False)
    text = _prune(capsys, "--older", "12h", str(logs))
    assert re.fullmatch(r"removed 1 run, .* KiB; 3 runs may be alive and stay", text[0])
    assert _there(here, left_early, elsewhere, silent) == [True, True, True, False]


def test_a_folder_that_a_launcher_has_not_named_so_is_not_removed(
    temp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy that was kept on purpose, or a project with a file of events in it."""
    kept = _made(None, "1", 30 * _DAY_S)
    kept = kept.rename(kept.with_name("before-the-fix"))
    link = temp / "holdfast_run_20200101T000000.000Z_1_abcdefgh"
    link.symlink_to(kept)
    assert _prune(capsys, "--older", "1h", str(temp)) == ["removed 0 runs, 0 KiB"]
    assert (kept / "events-launcher.jsonl").is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_another_users_run_is_not_removed(
    temp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = _made(tmp_path / "logs", "1", 30 * _DAY_S)
    os.chown(theirs, 1234, 1234)
    assert _prune(capsys, "--older", "1h", str(tmp_path / "logs")) == ["removed 0 runs, 0 KiB"]
    assert theirs.is_dir()


@pytest.mark.parametrize("words", [[], ["--older", "soon"], ["--older", "7"], ["--older=7d", "-x"]])
def test_prune_needs_an_age(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", *words]) == 2
    assert capsys.readouterr().err.startswith("holdfast prune: error: ")


def test_a_run_that_was_removed_in_part_is_found_again(
    temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that makes the folder a run goes last."""
    folder = _made(None, "1")
    (folder / "incidents").mkdir()
    (folder / "a.log").write_text("a")

    def fails(_: str) -> None:
        raise PermissionError

    monkeypatch.setattr(old_runs.shutil, "rmtree", fails)
    with pytest.raises(PermissionError):
        old_runs.remove(folder)
    assert found_run(folder) is not None
    monkeypatch.undo()
    old_runs.remove(folder)
    assert not folder.exists()


# ---------------------------------------------------------------- --ft-keep-runs


def _run(began: float, node: str = "n0", *, is_over: bool = True) -> FoundRun:
    return FoundRun(Path(str(began)), node, "r", "train.py", began, began, is_over)


def test_the_newest_runs_of_a_node_are_kept_and_those_that_are_alive() -> None:
    runs = [_run(3.0, is_over=False), _run(1.0), _run(2.0), _run(0.0, is_over=False), _run(0.5)]
    others = [_run(0.1, "n1"), _run(0.2, "n1")]
    assert [run.began for run in beyond([*runs, *others], 2, "n0")] == [0.5, 1.0]
    assert beyond(runs, 9, "n0") == []


def test_a_launcher_removes_the_older_runs_of_its_node(temp: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    runs = [_made(logs, str(age), age * _DAY_S) for age in (3, 2, 1)]
    theirs = _made(logs, "9", 9 * _DAY_S)
    path = theirs / "events-launcher.jsonl"
    path.write_text(path.read_text().replace('"n0"', '"n1"'))
    own = logs / "own"  # it has no event yet
    own.mkdir()
    keep_newest(own, 3, "n0")
    assert _there(*runs, theirs) == [False, True, True, True]
    keep_newest(tmp_path / "absent" / "own", 2, "n0")


def test_a_folder_without_an_event_of_a_launcher_is_no_run(temp: Path) -> None:
    folder = Path(run_dirs.make_run_dir(None, "1"))
    assert found_run(folder) is None
    (folder / "events-launcher.jsonl").write_text(json.dumps(event(1.0, "joining")) + "\n")
    assert found_run(folder) is None
