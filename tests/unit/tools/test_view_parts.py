"""Parts of the live views: history, merged stacks, the last failure, the newest run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base import clock
from holdfast.node.records import run_dirs
from holdfast.tools.run_list import resolve
from holdfast.tools.view import newest
from holdfast.tools.view.history import POINTS_MAX, History, Rates, sparkline
from holdfast.tools.view.job_view import JobView
from holdfast.tools.view.live import LiveJob
from holdfast.tools.view.merged_stacks import merged
from holdfast.tools.view.newest import NewestRun
from holdfast.tools.view.run_choice import RunChoice
from holdfast.tools.view.web import make_app
from holdfast.tools.view.words import as_text, headline, verdict_line
from tests.unit.made_events import HANG, THEN_WELL, event, progress, shown, typed
from tests.unit.tools.test_view import ask

# ---------------------------------------------------------------- history


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=300))
def test_a_history_has_few_points_whose_averages_are_between_the_values(ats: list[float]) -> None:
    history = History()
    for at in sorted(ats):
        history.add(at, 1.0 + at % 7)
    points = history.points()
    assert 1 <= len(points) <= POINTS_MAX
    assert all(value is None or 1.0 <= value <= 8.0 for _, value in points)
    assert points[0][1] is not None
    assert points[-1][1] is not None


def test_a_value_from_before_the_history_is_left_out() -> None:
    """A wall clock was set, or a node has sent its events late."""
    history = History()
    history.add(100.0, 1.0)
    history.add(50.0, 9.0)
    assert history.points() == [(100.0, 1.0)]
    assert History().points() == []


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([0.0, 2.0, 4.0], "▁▄█"),
        ([4.0, None, 1.0], "█·▂"),
        ([0.0, 0.0], "▁▁"),
        ([1.0] * 50, "█" * 16),
        ([], ""),
    ],
)
def test_a_line_of_bars_begins_at_0(values: list[float | None], text: str) -> None:
    assert sparkline(values) == text


def test_the_events_of_a_run_have_its_rates_from_before_the_view_was_opened() -> None:
    """Iterations, or a section's, or the optimizer's steps; not over a restart."""
    ended = [{"step": [n, 1.0, 1.0, 1.0, 1.0]} for n in (10, 30)]
    looks = [
        shown(0, 10.0, {"0": progress(iteration=100)}, final=False),
        shown(0, 20.0, {"0": progress(iteration=150)}, final=False),
        shown(1, 30.0, {"0": progress(None, ended[0])}, final=False),
        shown(1, 40.0, {"0": progress(None, ended[1])}, final=False),
        shown(2, 50.0, {"0": progress(steps=20)}, final=False),
        shown(2, 60.0, {"0": progress(steps=60)}, final=False),
    ]
    rates = Rates()
    found = [rates.take(one) for one in typed([event(0.0, "joining"), *looks])]
    assert found == [None, None, (20.0, 5.0), None, (40.0, 2.0), None, (60.0, 4.0)]


# ---------------------------------------------------------------- merged stacks
_TORCH = "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py"
_REDUCES = f"""Current thread 0x1 (most recent call first):
  File "{_TORCH}", line 2806 in all_reduce
  File "/home/me/train.py", line 9 in train_step
  File "/home/me/train.py", line 14 in <module>
"""
_LOADS = """Thread 0x2 (most recent call first):
  File "/src/holdfast/watch/rank/look_helper.py", line 92 in _serve

Current thread 0x1 (most recent call first):
  File "/home/me/data.py", line 88 in load_batch
  File "/home/me/train.py", line 13 in <module>
"""
_SAVES = _REDUCES.replace(_TORCH, "/home/me/save.py").replace("all_reduce", "save")


def test_stacks_of_all_ranks_are_one_tree_that_says_where_how_many_are() -> None:
    """The helper's thread and the library's frames are not in it."""
    dumps = dict.fromkeys(range(16), _REDUCES) | {5: _LOADS}
    assert merged(dumps).splitlines() == [
        "16 ranks: 15 in all_reduce, 1 in load_batch",
        "",
        "15 of 16  <module> train.py:14    ranks 0-4,6-15",
        "            train_step train.py:9",
        "              all_reduce",
        "1 of 16   <module> train.py:13    rank 5",
        "            load_batch data.py:88",
    ]


def test_a_branch_below_a_common_frame_names_its_ranks() -> None:
    assert merged({0: _REDUCES, 1: _REDUCES, 2: _SAVES}).splitlines()[2:] == [
        "3 of 3  <module> train.py:14    ranks 0, 1, 2",
        "          train_step train.py:9",
        "2 of 3      all_reduce    ranks 0, 1",
        "1 of 3      save save.py:2806    rank 2",
    ]


def test_ranks_without_stacks_are_named_with_the_reason() -> None:
    dumps = {0: _LOADS, 1: "(rank 1 is stopped (SIGSTOP))", 2: "(rank 2 has ended)"}
    dumps[3] = "(rank 3 has ended)"
    assert merged(dumps).splitlines()[-3:] == [
        "",
        "rank 1: is stopped (SIGSTOP)",
        "ranks 2, 3: has ended",
    ]
    assert merged({2: "(rank 2 has ended)"}) == "rank 2: has ended"
    assert merged({}) == ""


@given(st.dictionaries(st.integers(0, 9), st.text(max_size=200), max_size=4))
def test_whatever_a_dump_holds_it_is_merged(dumps: dict[int, str]) -> None:
    assert isinstance(merged(dumps), str)


# ---------------------------------------------------------------- the last failure


def _folder(folder: Path, events: list[dict], **life: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    first, *rest = events
    head = {"run_id": "r1", "name": "train.py", "nproc": 2, **life}
    lines = [json.dumps(one) for one in ({**first, **head}, *rest)]
    (folder / "events-launcher.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_a_crash_stays_in_the_view_with_its_line_and_the_cycle_that_runs_now(
    tmp_path: Path,
) -> None:
    failed = [
        event(
            5.0, "rank_failed", local_rank=1, rank=1, place="/a/train.py:12", exception="ValueError"
        ),
        event(6.0, "first_cause", local_rank=1, rank=1, why="exit code 1", began_at=5.0),
    ]
    restarted = [event(8.0, "cycle_started", 1), event(8.0, "worker_started", 1, rank=1)]
    restarted[-1] |= {"local_rank": 1, "pid": 7}
    begin = [event(0.0, "launcher_started"), event(1.0, "cycle_started")]
    view = LiveJob([_folder(tmp_path, [*begin, *failed, *restarted])]).look()
    assert view.verdict is not None
    assert view.verdict["ranks"] == [1]
    view.wall = view.verdict["wall"] + 65.0
    line = "last failure: rank 1: ValueError: exit code 1 at /a/train.py:12"
    assert verdict_line(view) == f"{line} (cycle 0, 1 min 05 s ago; running in cycle 1)"
    assert line in as_text(view).splitlines()[1]


def test_the_view_names_the_rank_that_left_and_not_the_one_that_failed_of_it(
    tmp_path: Path,
) -> None:
    why = {"why": "a peer is lost", "left": [1], "left_how": "rank 1 left", "then": "rank 0 failed"}
    cause = event(6.0, "first_cause", local_rank=0, rank=0, began_at=5.0, **why)
    begin = [event(0.0, "launcher_started"), event(1.0, "cycle_started")]
    view = LiveJob([_folder(tmp_path, [*begin, cause])]).look()
    assert view.verdict is not None
    assert (view.verdict["ranks"], view.verdict["text"]) == ([1], "rank 1 left; rank 0 failed")


def test_the_verdict_of_a_hang_is_the_last_failure_until_a_later_one(tmp_path: Path) -> None:
    """Of one cycle the verdict names the culprit, which the first cause may not."""
    hang = event(5.0, "incident", incident=1, culprits=[5], reason="rank 5 waits for a lock")
    cause = event(6.0, "first_cause", local_rank=0, rank=0, why="hung", began_at=5.0)
    begin = [event(0.0, "launcher_started"), event(1.0, "cycle_started")]
    view = LiveJob([_folder(tmp_path / "a", [*begin, hang, cause])]).look()
    assert view.verdict is not None
    assert view.verdict["text"] == "rank 5 waits for a lock"
    later = [event(8.0, "cycle_started", 1), {**cause, "cycle": 1, "why": "exit code 3"}]
    view = LiveJob([_folder(tmp_path / "b", [*begin, hang, cause, *later])]).look()
    assert view.verdict is not None
    assert view.verdict["text"] == "rank 0: exit code 3"
    view = LiveJob([_folder(tmp_path / "c", begin)]).look()
    assert (view.verdict, verdict_line(view)) == (None, "")


# ---------------------------------------------------------------- the newest run


@pytest.fixture
def temp(temp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, and runs are searched at each look."""
    monkeypatch.setattr(newest, "_FIND_S", 0.0)
    monkeypatch.setattr(newest, "_FIND_NEXT_S", 0.0)
    return temp


def _run(name: str, log_dir: Path | None = None, *, is_over: bool = False, **life: object) -> Path:
    run_id = str(life.get("run_id", "r1"))
    folder = Path(run_dirs.make_run_dir(None if log_dir is None else str(log_dir), run_id))
    events = [*HANG, *(THEN_WELL if is_over else ())]
    return _folder(folder, events, name=name, wall=clock.wall(), job="elsewhere", **life)


def test_a_view_waits_for_a_run_and_follows_the_next_one_when_that_is_over(temp: Path) -> None:
    """Not before: a run that somebody watches is not taken from the screen."""
    job = NewestRun(lambda: resolve([]))
    assert job.look().state == "waiting"
    assert headline(job.look()) == "no run yet: waiting for one of yours on this host"
    assert job.stacks([0]) == {}
    first = _run("first.py")
    assert job.look().name == "first.py"
    _run("second.py", run_id="r2")
    assert job.look().name == "first.py"
    with (first / "events-launcher.jsonl").open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in THEN_WELL)
    job.look()
    assert job.look().name == "second.py"


def test_a_run_that_is_over_stays_on_the_screen_where_no_newer_one_begins(temp: Path) -> None:
    """Also where its folder was removed, and an older run is the newest again."""
    _run("old.py", is_over=True)
    last = _run("new.py", is_over=True, run_id="r2")
    job = NewestRun(lambda: resolve([]))
    assert job.look().name == "new.py"
    shutil.rmtree(last)
    job.look()
    assert job.look().name == "new.py"


def test_a_node_that_joins_later_is_shown_with_the_others(temp: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    _run("train.py", logs)
    job = NewestRun(lambda: resolve([str(logs)]))
    assert len(job.look().nodes) == 1
    _run("train.py", logs)
    assert len(job.look().nodes) == 2


def test_no_run_is_a_state_for_programs(tmp_path: Path) -> None:
    assert JobView().as_json()["state"] == "waiting"


# ---------------------------------------------------------------- a choice of runs


def test_the_newest_runs_can_be_chosen_by_the_name_that_holdfast_runs_shows(temp: Path) -> None:
    """Another run's stays on the screen of those that have chosen it."""
    folders = [_run(f"{n}.py", is_over=n % 2 == 0, run_id=str(n)) for n in range(22)]
    choice = RunChoice()
    listed = choice.listed()
    assert [one["script"] for one in listed] == [f"{n}.py" for n in range(21, 1, -1)]
    assert [one["is_over"] for one in listed[:2]] == [False, True]
    assert listed[-1]["run"] == folders[2].name[-8:]
    job = choice.job(listed[-1]["run"])
    assert job is not None
    assert job.look().name == "2.py"
    assert choice.job(listed[-1]["run"]) is job
    assert choice.job(folders[0].name[-8:]) is None, "it is too old"
    for one in listed[:8]:
        choice.job(one["run"])
    assert choice.job(listed[-1]["run"]) is not job, "eight others were chosen since"


def test_a_run_that_is_not_listed_is_not_shown(temp: Path) -> None:
    """Whatever a request names: it is compared, and never used as a path."""
    _run("a.py", run_id="a")
    last = _run("b.py", run_id="b")
    app = make_app(NewestRun(lambda: resolve([])), "secret", choice=RunChoice())
    secret = {"authorization": "Bearer secret"}
    for path in ("/state?run=..", "/state?run=nothing", f"/state?run={last}"):
        assert ask(app, path, "localhost")[0] == 404
    assert ask(app, "/events?run=nothing", "localhost")[0] == 404
    assert ask(app, "/stacks?run=nothing&rank=0", "localhost", "POST", **secret)[0] == 404
    runs = json.loads(ask(app, "/runs", "localhost")[2])
    status, _, body = ask(app, f"/state?run={runs[1]['run']}", "localhost")
    assert (status, json.loads(body)["name"]) == (200, "a.py")
    alone = make_app(NewestRun(lambda: resolve([])))
    assert ask(alone, "/runs", "localhost")[2] == b"[]"
    assert ask(alone, f"/state?run={runs[0]['run']}", "localhost")[0] == 404
