"""A run is read from whatever its folders hold."""

import json
import math
import os
import random
from pathlib import Path

import pytest
from docs.tables import documented

from holdfast.base import clock
from holdfast.base.processes.job_name import new_job
from holdfast.events.pure.schema import RankArmed
from holdfast.events.run import run_links
from holdfast.node.records import run_dirs
from holdfast.tools import run_list
from holdfast.tools.commands import main
from holdfast.tools.report.report import as_json, story_of
from holdfast.tools.report.report_html import as_html
from holdfast.tools.report.report_text import as_text, clock_lines
from holdfast.tools.report.trace import trace_lines
from holdfast.tools.run.incident_files import read_incidents
from holdfast.tools.run.run_files import read_run
from holdfast.tools.run_list import NoSuchRunError, find_runs, resolve
from holdfast.tools.runs import main as list_runs
from holdfast.tools.runs import runs_table
from holdfast.watch.pure.monitor_messages import Overdue
from tests.unit.made_events import HANG, THEN_WELL, elsewhere, event, made_up, of_rank
from tests.unit.trace_format import violations

_LIFE = {"run_id": "r1", "name": "train.py", "nproc": 2}


def _write(folder: Path, events: list[dict], tail: bytes = b"", **life) -> Path:
    """A run folder with these events."""
    folder.mkdir(parents=True, exist_ok=True)
    first, *rest = events
    lines = [json.dumps(each).encode() for each in ({**first, **_LIFE, **life}, *rest)]
    (folder / "events-launcher.jsonl").write_bytes(b"\n".join(lines) + b"\n" + tail)
    return folder


REPORT_FIELDS = {
    name for names, _ in documented(as_json) for name in names.split(", ") if "." not in name
}
"""As docs/report.md has them."""


def _all_forms(folders: list[Path]) -> str:
    """Every form of the report, made."""
    run = read_run(folders)
    story = story_of(run)
    assert violations(json.loads("".join(trace_lines(run)))) == []
    shown = json.loads(json.dumps(as_json(story), allow_nan=False))
    assert set(shown) == REPORT_FIELDS
    return as_text(story) + as_html(story)


# ---------------------------------------------------------------------- state


def test_a_run_that_has_ended_is_told(tmp_path: Path) -> None:
    """Title, accounts, cycles, what happened."""
    run = read_run([_write(tmp_path / "a", HANG + THEN_WELL)])
    assert (run.state, run.run_id, run.name) == ("succeeded", "r1", "train.py")
    text = as_text(story_of(run))
    assert "train.py: succeeded after 1 restart and 2 min 12 s" in text
    assert "Goodput 49.2 %" in text
    assert ["stalled,", "until", "detected", "30", "s", "22.73", "%"] in [
        line.split()[:7] for line in text.splitlines()
    ]


def test_how_a_run_ended_is_the_same_in_all_forms(tmp_path: Path) -> None:
    """The words of its launchers, where all say the same; programs read one of four."""
    for words in (("stopped by SIGTERM",) * 2, ("stopped by SIGTERM", "failed")):
        ends = [event(90.0, "job_failed", 1, end=each) for each in words]
        folders = [_write(tmp_path / f"{k}", [*HANG, last]) for k, last in enumerate(ends)]
        run = read_run(folders)
        shown = words[0] if words[0] == words[1] else "failed"
        assert f"train.py: {shown} after 1 restart" in as_text(story_of(run))
        assert f'<span class="badge failed">{shown}</span>' in as_html(story_of(run))
        assert f" {shown} " in runs_table([run])
        assert as_json(story_of(run))["state"] == "failed"


def test_a_run_that_goes_on_is_counted_to_now(tmp_path: Path) -> None:
    """Its launcher lives: its name says so."""
    shift = clock.monotonic() - 100.0
    events = [{**each, "t": each["t"] + shift, "wall": clock.wall() - 100.0} for each in HANG]
    run = read_run([_write(tmp_path / "a", events, job=new_job())])
    assert run.state == "running"
    assert story_of(run).ledger.total_s == pytest.approx(200.0, abs=60.0)


@pytest.mark.parametrize("set_by_s", [3600.0, -3600.0])
def test_a_run_that_goes_on_is_counted_to_now_after_its_clock_was_set(
    tmp_path: Path, set_by_s: float
) -> None:
    """Here and on another host, whose last event shows how its clock stands."""
    shift, began = clock.monotonic() - 100.0, clock.wall() - 100.0
    walls = [began + each["t"] - (set_by_s if each["t"] < 50.0 else 0.0) for each in HANG]
    events = [
        {**each, "t": each["t"] + shift, "wall": wall}
        for each, wall in zip(HANG, walls, strict=True)
    ]
    for job in (new_job(), "1-1-0-0-0-abc"):
        run = read_run([_write(tmp_path / job, events, job=job)])
        assert run.state == "running"
        assert run.ended - run.began == pytest.approx(100.0, abs=60.0)
        assert story_of(run).ledger.total_s == pytest.approx(200.0, abs=60.0)


def test_a_run_whose_launcher_was_killed_is_cut_off(tmp_path: Path) -> None:
    """The half of a line that it left is no event, and no error either."""
    job = "-".join(["4194303", "1", *new_job().split("-")[2:]])
    run = read_run([_write(tmp_path / "a", HANG, b'{"t": 99.0, "kind": "wor', job=job)])
    assert run.state == "cut off"
    assert run.nodes[0].passed_over == 0
    for form in (as_text, as_html):
        assert "A launcher was killed" in form(story_of(run))


def test_a_silent_launcher_of_another_host_is_cut_off(tmp_path: Path) -> None:
    """Nobody here can ask whether it lives."""
    elsewhere = {"job": "1-1-0-0-0-abc"}
    fresh = [{**each, "wall": clock.wall()} for each in HANG]
    assert read_run([_write(tmp_path / "a", HANG, **elsewhere)]).state == "cut off"
    assert read_run([_write(tmp_path / "b", fresh, **elsewhere)]).state == "running"


# ---------------------------------------------------------------------- several nodes


_INCIDENT = {"incident": 1, "culprits": [1], "verdict": "loader", "reason": "rank 1 loads"}
_CRASH = [
    *(each for each in HANG[:6]),
    of_rank(80.0, "worker_exited", 0, 1, exit_code=1),
    event(80.1, "cycle_stopping", 0, cause="rank 1", cause_local_rank=1, at_once=False),
    of_rank(81.0, "worker_exited", 0, 0, exit_code=-15),
    event(81.5, "first_cause", local_rank=1, rank=1, why="exit code 1", began_at=80.0),
    *(each for each in HANG[10:]),
]
_HANG = [*HANG[:7], event(80.2, "incident", **_INCIDENT), *HANG[7:]]


@pytest.mark.parametrize(
    ("wall_s", "step_s"),
    [(0.02, 0.0), (-2.0, 0.0), (3600.0, 0.0), (-3600.0, 0.0), (0.0, -3600.0)],
    ids=["20ms", "-2s", "1h", "-1h", "step"],
)
@pytest.mark.parametrize("fails", [_CRASH, _HANG], ids=["crash", "hang"])
def test_a_report_has_no_part_in_what_wall_clocks_show(
    tmp_path: Path, fails: list[dict], wall_s: float, step_s: float
) -> None:
    """Of two nodes one is wrong, or is set in the middle; which one does not matter."""
    here = [{**each, "master_port": 1} for each in fails + THEN_WELL]
    there = [{**each, "t": each["t"] + 0.001} for each in here if each["kind"] != "first_cause"]
    told = []
    for wrong in (None, 0, 1):
        folders = []
        for k, events in enumerate((here, there)):
            by_s = (
                (lambda t: wall_s + (step_s if t > 70.0 else 0.0)) if k == wrong else lambda _: 0.0
            )
            moved = [elsewhere(one, f"n{k}", 5000.0 * k, by_s(one["t"])) for one in events]
            folders.append(_write(tmp_path / f"{wrong}{k}", moved))
        story = story_of(read_run(folders))
        found = as_json(story)
        (failure,) = [row["failure"] for row in found["cycles"] if row["failure"]]
        assert failure["detected_s"] == pytest.approx(80.0, abs=0.01)
        assert 0.0 < failure["ranks_started_after_s"] < 5.0
        assert sum(found["rank_seconds"].values()) == pytest.approx(4 * found["length_s"], rel=1e-3)
        assert [one["at_s"] for one in found["incidents"]] == pytest.approx(
            [80.2 for one in fails if one["kind"] == "incident"], abs=0.01
        )
        assert violations(json.loads("".join(trace_lines(story.run)))) == []
        is_said = wrong is not None and max(abs(wall_s), abs(step_s)) > 1.0
        assert ("The wall clock of node n" in as_text(story)) == is_said
        assert ("The wall clock of node n" in as_html(story)) == is_said
        told.append({key: found[key] for key in ("length_s", "cycles", "rank_seconds", "ranks")})
    assert told[0] == told[1] == told[2]


def test_every_instant_of_an_event_is_on_the_axis_of_the_run(tmp_path: Path) -> None:
    """Not only that of its line: a hang was found before its launcher heard of it."""
    moved = [elsewhere(one, "n1", 5000.0, 0.0) for one in HANG]
    folders = [_write(tmp_path / "0", HANG), _write(tmp_path / "1", moved)]
    events = [event for event in read_run(folders).events if event.launcher == 1]
    (overdue,) = [event for event in events if isinstance(event.body, Overdue)]
    assert (overdue.t, overdue.body.detected_at, overdue.body.at) == (80.5, 80.0, 80.0)
    assert [e.body.armed_at for e in events if isinstance(e.body, RankArmed)] == [6, 6, 88, 88]


def test_the_report_says_which_wall_clocks_were_wrong(tmp_path: Path) -> None:
    """Once for each node, with the numbers."""
    nodes = [(0.0, 0.0), (3600.0, 0.0), (0.5, 0.0), (-7.0, -3.0), (0.0, 12.5)]
    folders = []
    for k, (wall_s, step_s) in enumerate(nodes):
        told = [
            elsewhere(one, f"n{k}", 10.0**k, wall_s + (step_s if one["t"] > 70 else 0.0))
            for one in HANG + THEN_WELL
        ]
        folders.append(_write(tmp_path / f"{k}", told))
    run = read_run(folders)
    assert [line.partition(";")[0] for line in clock_lines(run)] == [
        "The wall clock of node n1 was 3600.0 s ahead of that of node n0",
        "The wall clock of node n3 was 7.0 s behind that of node n0",
        "The wall clock of node n3 was set by -3.0 s during the run",
        "The wall clock of node n4 was set by +12.5 s during the run, or the node was suspended",
    ]
    ahead = [node["clock_ahead_s"] for node in as_json(story_of(run))["nodes"]]
    assert ahead == [0.0, 3600.0, 0.5, -7.0, 0.0]


def test_nodes_are_put_on_one_axis(tmp_path: Path) -> None:
    """Their monotonic clocks have nothing in common."""
    other = [elsewhere(each, "n1", 5000.0, 0.0) for each in HANG + THEN_WELL]
    _write(tmp_path / "a", HANG + THEN_WELL)
    _write(tmp_path / "b", other)
    story = story_of(read_run([tmp_path / "a", tmp_path / "b"]))
    assert story.length_s == pytest.approx(132.0)
    assert [node["node"] for node in as_json(story)["nodes"]] == ["n0", "n1"]
    assert story.ledger.n_ranks == 4
    (recovery,) = story.recoveries
    assert recovery.detected_at == pytest.approx(80.0)


def test_a_log_folder_names_its_newest_run_with_all_its_nodes(tmp_path: Path) -> None:
    """Nodes that share a log folder have a run id in common, and folders of their own."""
    old = _write(tmp_path / "old", HANG, run_id="r0")
    _write(tmp_path / "n0", [{**HANG[0], "wall": 9.0}])
    n1 = _write(tmp_path / "n1", [{**HANG[0], "wall": 10.0}])
    assert [each.name for each in resolve([str(tmp_path)])] == ["n1", "n0"]
    run_links.point_latest(str(tmp_path), str(old))
    assert [each.name for each in resolve([str(tmp_path)])] == ["old"]
    assert resolve([str(n1)]) == [n1]


def test_a_job_that_was_queued_again_is_another_run(tmp_path: Path) -> None:
    """Slurm keeps the job's number, and so the run id; nodes come, go, and meet in cycles."""
    for name, wall, starts in (
        ("one-a", 1.0, {0: (11, 0), 1: (12, 0)}),
        ("one-b", 1.0, {0: (11, 1)}),
        ("one-spare", 1.0, {}),
        ("two-a", 9.0, {0: (21, 0)}),
        ("two-b", 9.0, {0: (21, 1), 1: (22, 0)}),
        ("two-c", 9.5, {1: (22, 1)}),
    ):
        cycles = [
            event(cycle, "cycle_started", cycle, master_port=port, group_rank=node)
            for cycle, (port, node) in starts.items()
        ]
        _write(tmp_path / name, [{**HANG[0], "wall": wall}, *cycles])
    found = {}
    for newest in ("one-b", "two-c"):
        run_links.point_latest(str(tmp_path), str(tmp_path / newest))
        found[newest] = [each.name for each in resolve([str(tmp_path)])]
    assert found == {"one-b": ["one-b", "one-a"], "two-c": ["two-c", "two-b", "two-a"]}


def test_a_report_on_the_folders_of_several_jobs_says_so(tmp_path: Path) -> None:
    """`holdfast report logs/*`: their times and sums would pass for those of one job."""
    ports = {"a": (11, 0), "b": (11, 1), "later": (21, 0), "spare": None}
    for name, at in ports.items():
        port = {} if at is None else {"master_port": at[0], "group_rank": at[1]}
        events = [{**one, **port} for one in HANG if at is not None or one["t"] == 0.0]
        _write(tmp_path / name, events)
    said = "later had no cycle in common with the rest. Times and sums here are of all of them."
    for names, is_said in ((["a", "b", "spare"], False), ([*ports], True), (["spare"], False)):
        story = story_of(read_run([tmp_path / name for name in names]))
        assert (said in as_text(story).replace("\n", " ")) == is_said, names
        assert (said in as_html(story)) == is_said, names


def test_a_job_of_one_node_that_was_started_again_on_the_same_port_is_another_run(
    tmp_path: Path,
) -> None:
    """--master-port; two nodes of one cycle would have different numbers."""
    start = event(1.0, "cycle_started", master_port=29500, group_rank=0)
    for name, wall in (("first", 1.0), ("second", 2.0)):
        _write(tmp_path / name, [{**HANG[0], "wall": wall}, start])
    assert [each.name for each in resolve([str(tmp_path)])] == ["second"]


# ---------------------------------------------------------------------- garbage


@pytest.mark.parametrize("seed", range(30))
def test_any_file_is_read(tmp_path: Path, seed: int) -> None:
    """Torn lines, other types, huge numbers: passed over, and every form made."""
    rng = random.Random(seed)
    text = [json.dumps(each) for each in made_up(seed)]
    junk = ["", "null", "[]", '{"t":1e999,"kind":3}', '{"t":"x","kind":"worker_exited","cycle":0}']
    junk += ['{"t":1,"kind":"progress","cycle":0,"ranks":[]}', "[" * 9000, "\x00\xff"]
    junk += ['{"t":5,"kind":"worker_started","cycle":0,"local_rank":0,"rank":"</script>"}']
    for each in junk:
        text.insert(rng.randrange(len(text) + 1), each)
    if text:
        place = rng.randrange(len(text))
        text[place] = text[place][: len(text[place]) // 2]
    folder = tmp_path / "a"
    (folder / "incidents" / "0001").mkdir(parents=True)
    (folder / "incidents" / "0001" / "incident.json").write_text(rng.choice(junk))
    (folder / "incidents" / "cycle0_rank1.json").write_text(rng.choice(junk))
    (folder / "events-launcher.jsonl").write_text("\n".join(text), errors="surrogateescape")
    assert _all_forms([folder])


def test_an_empty_events_file_is_a_run(tmp_path: Path) -> None:
    """Its launcher was killed at once."""
    (tmp_path / "events-launcher.jsonl").touch()
    assert "cut off" in _all_forms([tmp_path])


def test_what_users_have_named_is_no_markup(tmp_path: Path) -> None:
    """The page shows it as it is."""
    name = "<script>alert(1)</script>"
    page = as_html(story_of(read_run([_write(tmp_path, HANG + THEN_WELL, name=name)])))
    assert name not in page
    assert "&lt;script&gt;alert(1)" in page


def test_the_page_needs_no_network(tmp_path: Path) -> None:
    """Nothing in it is loaded from elsewhere."""
    page = as_html(story_of(read_run([_write(tmp_path, HANG + THEN_WELL)])))
    assert not any(mark in page for mark in ("http://", "https://", "src=", "@import", "url("))


# ---------------------------------------------------------------------- incidents


_STACK = (
    'Current thread 0x1 (most recent call first):\n  File "/x/data.py", line 88 in load_batch\n'
)


def test_an_incident_of_a_job_is_read_once(tmp_path: Path) -> None:
    """Every node writes it; the one that knows more ranks is shown, with what all have done."""
    verdict = {
        "schema_version": 1,
        "cycle": 2,
        "wall": 5.0,
        "culprits": [5],
        "kind": "loader",
        "confidence": "high",
        "reason": "rank 5 waits for its loader",
        "groups": [{"ranks": [0, 1], "text": "in all_reduce"}, {"ranks": [5], "text": "in load"}],
        "next": "Look at the worker",
    }
    for node, ranks in (("a", {"5": {}}), ("b", {"0": {}, "1": {}, "5": {}})):
        folder = tmp_path / node / "incidents" / "0001-cycle2"
        folder.mkdir(parents=True)
        sent = (9, int(max(ranks)), "hung"), (15, 0, node)
        signals = [
            {"cycle": 2, "rank": rank, "pid": 100 + rank, "signal": signum, "why": why}
            for signum, rank, why in sent
        ]
        told = {"ranks": ranks, "node": node, "signals": signals, "next_cycle": 3}
        (folder / "incident.json").write_text(json.dumps({**verdict, **told}))
        for rank in ranks if node == "a" else ():
            seen = {"rank": int(rank), "stacks_text": _STACK}
            (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    (one,) = read_incidents([("a", tmp_path / "a"), ("b", tmp_path / "b")])
    assert (one.node, one.culprits, one.kind, one.confidence) == ("b", (5,), "loader", "high")
    assert [(group.text, group.stack) for group in one.groups] == [
        ("in load", _STACK),
        ("in all_reduce", ""),
    ]
    assert one.next == "Look at the worker"
    signals = ["SIGKILL to rank 5: hung", "SIGTERM to rank 0: a", "SIGTERM to rank 0: b"]
    assert one.done == [*signals, "cycle 3 was started"]


def test_an_incident_of_a_version_without_facts_shows_its_texts(tmp_path: Path) -> None:
    """They are not taken apart: each node's, one after the other."""
    for node in "ab":
        folder = tmp_path / node / "incidents" / "0001-cycle2"
        folder.mkdir(parents=True)
        done = [f"SIGKILL to rank 0: {node}", "cycle 3 was started"]
        found = {"cycle": 2, "culprits": [0], "reason": "rank 0 sleeps", "done": done}
        (folder / "incident.json").write_text(json.dumps(found))
    run = read_run([_write(tmp_path / node, HANG + THEN_WELL) for node in "ab"])
    (one,) = run.incidents
    assert one.done == ["SIGKILL to rank 0: a", "cycle 3 was started", "SIGKILL to rank 0: b"]
    assert f"done {'; '.join(one.done)}" in " ".join(as_text(story_of(run)).split())


def test_incidents_of_single_ranks_are_one_of_the_cycle(tmp_path: Path) -> None:
    """As earlier versions wrote them: equal stacks are one group, and nobody is named."""
    (tmp_path / "incidents").mkdir()
    hang = {"cycle": 0, "clock": "section", "name": "step", "age_s": 4.0, "limit_s": 4.0}
    stacks = {0: _STACK, 1: _STACK.replace("0x1", "0x2"), 2: _STACK.replace("88", "7")}
    for rank, stack in stacks.items():
        path = tmp_path / "incidents" / f"cycle0_rank{rank}.json"
        path.write_text(json.dumps({**hang, "rank": rank, "stacks_text": stack}))
    (one,) = read_incidents([("a", tmp_path)])
    assert one.culprits == ()
    assert [group.ranks for group in one.groups] == [(2,), (0, 1)]


def test_an_incident_without_a_file_is_told_from_the_events(tmp_path: Path) -> None:
    """The disk was full, or the launcher was killed; each node has the event."""
    verdict = {"culprits": [1], "verdict": "loader", "confidence": "high", "reason": "rank 1 loads"}
    told = event(80.2, "incident", incident=1, **verdict)
    for name in "ab":
        _write(tmp_path / name, [*HANG[:7], told, *HANG[7:], *THEN_WELL])
    run = read_run([tmp_path / "a", tmp_path / "b"])
    (one,) = run.incidents
    assert (one.culprits, one.kind, one.reason) == ((1,), "loader", "rank 1 loads")
    text = as_text(story_of(run))
    assert "what     rank 1 loads" in text
    assert "culprit named +0.2 s" in text


@pytest.mark.parametrize("has_file", [True, False])
@pytest.mark.parametrize("is_hang_later", [True, False])
def test_a_stall_that_ended_no_rank_is_no_hang(
    tmp_path: Path, has_file: bool, is_hang_later: bool
) -> None:
    """One that was judged to be a hang after all is an incident."""
    told = {"incident": 1, "culprits": [1], "verdict": "computing", "reason": "rank 1 evaluates"}
    later = [event(60.0, "incident", **told)] if is_hang_later else []
    events = [*HANG[:6], event(50.0, "stall", **told), *later, *HANG[6:], *THEN_WELL]
    folder = _write(tmp_path, events)
    if has_file:
        path = tmp_path / "incidents" / "0001-cycle0" / "incident.json"
        path.parent.mkdir(parents=True)
        told["kind"] = told.pop("verdict")
        path.write_text(json.dumps({**told, "cycle": 0, "stall": not is_hang_later}))
    story = story_of(read_run([folder]))
    found = as_json(story)
    shown, other = ("incidents", "stalls") if is_hang_later else ("stalls", "incidents")
    assert [(one["kind"], one["culprits"]) for one in found[shown]] == [("computing", [1])]
    assert found[shown][0]["at_s"] == (60.0 if is_hang_later else 50.0)
    assert found[other] == []
    for page in (as_text(story), as_html(story)):
        assert ("Stalls: ranks made no optimizer steps" in page) == (not is_hang_later)
        assert "rank 1 evaluates" in page


# ---------------------------------------------------------------------- finding runs


def test_latest_is_the_last_that_was_made_and_goes_with_it(temp: Path) -> None:
    """In the temp folder its name has the user's number: the folder is everybody's."""
    first = run_dirs.make_run_dir(None, "one")
    second = run_dirs.make_run_dir(None, "two")
    link = temp / f"holdfast_run_latest_{os.getuid()}"
    assert str(link.resolve()) == str(Path(second).resolve())
    run_dirs.remove_run_dir(None, first)  # not ours any more
    assert link.is_symlink()
    run_dirs.remove_run_dir(None, second)
    assert list(temp.iterdir()) == []


def test_latest_is_not_taken_from_a_launcher_that_was_faster(
    temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It made its link between our look and our removal."""
    ours = run_dirs.make_run_dir(None, "ours")
    rename = os.rename

    def rename_late(source: str, target: str) -> None:
        run_dirs.make_run_dir(None, "faster")
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_late)
    run_dirs.remove_run_dir(None, ours)
    (link,) = [each for each in temp.iterdir() if each.is_symlink()]
    assert "faster" in str(link.readlink())


def test_a_folder_that_is_called_latest_stays(tmp_path: Path) -> None:
    """The run goes on without the link."""
    (tmp_path / "latest").mkdir()
    run_dirs.make_run_dir(str(tmp_path), "one")
    assert (tmp_path / "latest").is_dir()
    assert len(list(tmp_path.iterdir())) == 2


def test_runs_are_found_in_the_temp_folder_in_log_folders_and_where_launchers_live(
    temp: Path, tmp_path: Path
) -> None:
    """The oldest first; nothing else is taken for one."""
    for at, folder in ((3.0, temp / "holdfast_run_x"), (1.0, tmp_path / "logs" / "a")):
        _write(folder, [{**HANG[0], "wall": at}])
    live = _write(tmp_path / "elsewhere", [{**HANG[0], "wall": 2.0}])
    runtime = run_dirs.make_runtime_dir(new_job())
    run_links.note_run_dir(runtime, str(live))
    (tmp_path / "logs" / "notes").mkdir()
    names = [folder.name for folder in find_runs([tmp_path / "logs"])]
    assert names == ["a", "elsewhere", "holdfast_run_x"]
    assert [folder.name for folder in resolve(["run_x"])] == ["holdfast_run_x"]
    assert [folder.name for folder in resolve([])] == ["holdfast_run_x"]


def test_a_run_that_is_found_by_two_ways_is_listed_once(
    temp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``holdfast runs logs/`` while its launcher runs, which notes the whole path."""
    run = _write(tmp_path / "logs" / "run", HANG)
    run_links.note_run_dir(run_dirs.make_runtime_dir(new_job()), str(run))
    monkeypatch.chdir(tmp_path)
    assert find_runs([Path("logs")]) == [run]


def test_a_link_that_another_user_has_made_is_not_followed(
    temp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temp folder is everybody's."""
    evil = _write(tmp_path / "evil", HANG)
    (temp / f"holdfast_run_latest_{os.getuid()}").symlink_to(evil)
    monkeypatch.setattr(run_list, "is_own_link", lambda _: False)
    with pytest.raises(NoSuchRunError, match="no run is known here: a job that ended well"):
        resolve([])


# ---------------------------------------------------------------------- commands


def test_the_commands(tmp_path: Path, temp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What they print, and their exit codes."""
    folder = str(_write(tmp_path / "a", HANG + THEN_WELL))
    assert main("report", [folder]) == 0
    assert capsys.readouterr().out.startswith("train.py: succeeded")
    assert main("report", [folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema_version"] == 1
    page, trace = str(tmp_path / "r.html"), str(tmp_path / "t.json")
    assert main("report", [folder, "--html", page]) == 0
    assert main("trace", [folder, f"-o={trace}"]) == 0
    assert capsys.readouterr().out == f"{page}\n{trace}\n"
    assert violations(json.loads(Path(trace).read_text())) == []
    for wrong in (["--jsn"], [folder, "--html"], [str(temp)], ["nowhere"], ["--json", "--html=x"]):
        assert main("report", wrong) == 2
        assert capsys.readouterr().err.startswith("holdfast report: error: ")


def test_a_page_of_a_large_job_stays_small(tmp_path: Path) -> None:
    """Of each node the worst rank, and no more rectangles than can be seen."""
    many = [event(0.0, "launcher_started"), event(1.0, "cycle_started")]
    many += [event(2.0 + 0.001 * k, "worker_started", local_rank=k, rank=k) for k in range(1000)]
    many.append(event(90.0, "job_failed"))
    page = as_html(story_of(read_run([_write(tmp_path, many, nproc=1000)])))
    assert page.count("<rect") < 10
    assert len(page) < 50_000


def test_the_report_names_ranks_that_were_slower_than_their_peers(tmp_path: Path) -> None:
    """Over the nodes of a job, by the ranks' global numbers."""
    for node, offset in (("a", 0), ("b", 2)):
        (tmp_path / node).mkdir()
        ranks = {
            str(local): {
                "rank": offset + local,
                "sections": {"data": [100, 9.0 if offset + local == 3 else 3.0, 1.0, 1.0, 50.0]},
                "open": {},
            }
            for local in range(2)
        }
        began = [
            {"kind": "worker_started", "local_rank": local, "rank": offset + local}
            for local in range(2)
        ]
        events = [
            {"kind": "launcher_started", "run_id": "r", "name": "train.py", "wall": 100.0},
            *({"kind": "cycle_started"}, *began),
            *({**each, "kind": "rank_armed", "armed_at": 0.5} for each in began),
            {"kind": "progress", "ranks": ranks, "final": True},
            {"kind": "job_succeeded", "end": "succeeded", "exit_code": 0},
        ]
        lines = [
            json.dumps({"t": float(t), "cycle": 0, "node": node, **e}) for t, e in enumerate(events)
        ]
        (tmp_path / node / "events-launcher.jsonl").write_text("\n".join(lines) + "\n")
    story = story_of(read_run([tmp_path / "a", tmp_path / "b"]))
    assert [(s["rank"], s["section"], s["mean_s"]) for s in as_json(story)["slow"]] == [
        (3, "data", 0.09)
    ]
    assert "rank 3 in data, 0.09 s on average, 3.0x the median" in as_text(story)
    assert "rank 3 in data" in as_html(story)


def test_a_report_reads_the_last_look_of_each_cycle_alone(tmp_path: Path) -> None:
    """And tells the same as without the others, but for the number of events."""
    events = HANG + THEN_WELL
    last = {**events[-2], "cycle": 0, "final": False}
    early = [{**last, "t": 20.0 + k, "wall": 20.0 + k} for k in range(50)]
    with_early = sorted([*events, *early], key=lambda one: one["t"])
    all_looks = read_run([_write(tmp_path / "a", with_early)])
    last_looks = read_run([_write(tmp_path / "b", events)])
    assert all_looks.nodes[0].events == last_looks.nodes[0].events
    told, same = as_json(story_of(all_looks)), as_json(story_of(last_looks))
    for each in (told, same):
        each.pop("step_rates")  # these are from all looks
        each.pop("steps_per_s")
    (node,), (alike,) = told.pop("nodes"), same.pop("nodes")
    assert told == same
    assert (node["events"], alike["events"]) == (len(events) + 50, len(events))


_ALWAYS = {"t", "wall", "kind", "node", "cycle", "rank", "local_rank", "exit_code"}
_OTHER_VERSIONS = {
    "older": lambda one: {key: one[key] for key in one if key in _ALWAYS},
    "newer": lambda one: {**one, "new": {"a": [1, {"b": None}]}},
    "other-kinds": lambda one: one if one["kind"] in _KEPT else {**one, "kind": "new"},
    "huge": lambda one: {
        "nproc": math.inf,
        **one,
        "sections": 7,
        "pid": math.inf,
        "ranks": math.inf,
    },
}
_KEPT = ("launcher_started", "cycle_started", "worker_started", "worker_exited", "job_succeeded")


@pytest.mark.parametrize("edit", _OTHER_VERSIONS.values(), ids=_OTHER_VERSIONS)
def test_the_run_of_another_version_is_told_as_far_as_it_is_understood(tmp_path, edit) -> None:
    """Fields are missing, or new; kinds of events are new; the last line is half written."""
    events = [edit(one) for one in HANG + THEN_WELL]
    life = {"nproc": events[0].get("nproc", 2)}
    folder = _write(tmp_path / "a", events, b'{"t": 99.0, "kind": "job_succ', **life)
    assert "train.py: succeeded after 1 restart and 2 min 12 s" in _all_forms([folder])
    assert list_runs("runs", [str(tmp_path)]) == 0
