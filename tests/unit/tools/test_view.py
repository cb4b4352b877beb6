"""Live views: what they show of folders and pages, and what they do with bad input."""

from __future__ import annotations

import asyncio
import fcntl
import html
import json
import os
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from docs.tables import documented

from holdfast.arena.arena import ArenaMemory, create
from holdfast.arena.pure import layout
from holdfast.arena.pure.snapshots import Held
from holdfast.arena.taken import show
from holdfast.base import clock
from holdfast.base.processes import proc
from holdfast.base.processes.job_name import new_job
from holdfast.cli import main
from holdfast.tools.view.job_view import JobView, NodeView, RankView
from holdfast.tools.view.live import LiveJob
from holdfast.tools.view.top import Stacks, Top
from holdfast.tools.view.web import make_app
from holdfast.tools.view.words import SORTS, as_text, incident_line, newest, of_limit, seconds
from tests.unit.made_events import elsewhere, event
from tests.unit.tools.test_outages import OVERDUE, RESTARTED, STARTED, STOPPING, exited
from tests.waiting import BOUND_S

START = {
    "kind": "launcher_started",
    "cycle": 0,
    "t": 0.5,
    "wall": 1000.5,
    "node": "n0",
    "name": "train.py",
    "run_id": "r",
    "job": "elsewhere",
    "pid": 1,
}


def run_folder(folder: Path, *events: dict, node: str = "n0") -> Path:
    """With these events, stamped as a launcher does."""
    folder.mkdir()
    stamped = [{"wall": 1000 + event["t"], "node": node, "pid": 7, **event} for event in events]
    (folder / "events-launcher.jsonl").write_text("".join(json.dumps(e) + "\n" for e in stamped))
    return folder


def test_a_job_is_seen_from_its_events_also_where_its_ranks_are_on_another_host(tmp_path) -> None:
    folder = run_folder(tmp_path / "a", START, *STARTED, OVERDUE, STOPPING, exited(-15), *RESTARTED)
    incident = folder / "incidents" / "0001" / "incident.json"
    incident.parent.mkdir(parents=True)
    incident.write_text('{"culprits": [5], "kind": "lock", "cycle": 0, "reason": "rank 5 waits"}')
    view = LiveJob([folder]).look()
    assert (view.name, view.state, view.restarts) == ("train.py", "running", 1)
    assert [(one.rank, one.state) for one in view.ranks] == [(4, "running"), (5, "running")]
    assert [node.is_here for node in view.nodes] == [False]
    said = [event["text"] for event in view.events]
    assert said[0] == "cycle 0 started"
    assert "rank 5 timed out in" in said[1]
    assert not any("SIGTERM" in text for text in said)  # we have ended it
    assert view.incidents[0]["culprits"] == [5]
    assert "rank 5 waits" in as_text(view)


def test_two_nodes_are_one_job(tmp_path) -> None:
    other = [
        {**event, "rank": event["rank"] + 2} if "rank" in event else event for event in STARTED
    ]
    folders = [
        run_folder(tmp_path / "a", START, *STARTED),
        run_folder(tmp_path / "b", {**START, "node": "n1"}, *other, node="n1"),
    ]
    view = LiveJob(folders).look()
    assert [(one.rank, one.node) for one in view.ranks] == [
        *((4, "n0"), (5, "n0")),
        *((6, "n1"), (7, "n1")),
    ]


def test_news_of_two_nodes_are_in_order_whatever_their_wall_clocks_show(tmp_path) -> None:
    """The last lines are the latest, and the age of the job is its own."""
    told = [{"wall": 1000 + one["t"], **one} for one in (START, *STARTED, STOPPING, *RESTARTED)]
    there = [elsewhere(one, "n1", 500.0, -3600.0) for one in told]
    over = {"kind": "job_succeeded", "cycle": 1, "t": 30.0, "end": "succeeded", "exit_code": 0}
    folders = [
        run_folder(tmp_path / "a", *told, over),
        run_folder(tmp_path / "b", *there, {**over, "t": 530.0}, node="n1"),
    ]
    view = LiveJob(folders).look()
    said = [event["text"].partition(":")[0] for event in view.events]
    assert said[::2] == said[1::2]
    assert said[::2] == [
        "cycle 0 started",
        "cycle 0 is over",
        "cycle 1 started",
        "the job succeeded, exit code 0",
    ]
    assert view.age_s == 29.5


def test_an_incident_that_two_nodes_have_written_is_one(tmp_path) -> None:
    """That of the node which knows of more ranks is shown; at first an event tells of it."""
    told = {"kind": "incident", "cycle": 0, "t": 7.2, "incident": 1, "verdict": "lock"}
    folders = [
        run_folder(tmp_path / name, START, *STARTED, {**told, "culprits": [5]}) for name in "ab"
    ]
    job = LiveJob(folders)
    assert [(one["kind"], one["culprits"]) for one in job.look().incidents] == [("lock", [5])]
    for folder, ranks in zip(folders, ({"5": {}}, {"4": {}, "5": {}}), strict=True):
        path = folder / "incidents" / "0001-cycle0" / "incident.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"culprits": [5], "kind": "lock", "cycle": 0, "ranks": ranks}))
        job.look()
    (shown,) = job.look().incidents
    assert shown["path"].startswith(str(folders[1]))


def test_a_stall_that_ended_no_rank_is_news_and_no_incident(tmp_path) -> None:
    """Its folder lies among those of incidents."""
    told = {"kind": "stall", "cycle": 0, "t": 7.2, "incident": 1, "reason": "rank 4 saves"}
    folder = run_folder(tmp_path / "a", START, *STARTED, told)
    job = LiveJob([folder])
    before = job.look()
    path = folder / "incidents" / "0001-cycle0" / "incident.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"culprits": [4], "cycle": 0, "stall": True}))
    for view in (before, job.look()):
        assert view.incidents == []
        said = "a stall, no rank is killed: rank 4 saves"
        assert said in [event["text"] for event in view.events]
        assert "0 incidents" in as_text(view)


def test_restarts_in_place_are_counted_once_for_all_nodes(tmp_path) -> None:
    told = event(7.2, "restarted_in_place")
    garbage = {**told, "t": 7.0, "call": None}
    folders = [run_folder(tmp_path / name, START, *STARTED, garbage, told) for name in "ab"]
    view = LiveJob(folders).look()
    assert view.restarts_in_place == 1
    assert "0 restarts and 1 in place" in as_text(view)


@pytest.mark.parametrize(
    "last", [{"kind": "job_failed", "cycle": 0, "end": "failed", "exit_code": 1}, STOPPING]
)
def test_the_age_of_a_job_that_is_over_does_not_grow(tmp_path, last) -> None:
    """It said so, or its launcher is gone, with its ranks."""
    dead = "-".join(["4194303", "1", *new_job().split("-")[2:]])
    gone = {**START, "job": dead}
    end = {**last, "t": 60.5}
    view = LiveJob([run_folder(tmp_path / "a", gone, *STARTED, end)]).look()
    assert view.state in ("failed", "gone")
    assert view.age_s == pytest.approx(60.0)
    assert {one.state for one in view.ranks} == {"running" if view.state == "failed" else "gone"}


def test_the_newest_events_of_all_nodes_are_kept(tmp_path) -> None:
    """However many one of them has written."""
    many = [{"kind": "cycle_started", "cycle": k, "t": 2.0 + k} for k in range(300)]
    folders = [
        run_folder(tmp_path / name, {**START, "node": node}, *many, node=node)
        for name, node in (("a", "n0"), ("b", "n1"))
    ]
    shown = LiveJob(folders).look().events[-4:]
    assert sorted(event["node"] for event in shown) == ["n0", "n0", "n1", "n1"]


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "{}\n[]\nnull\n\xff\n",
        '{"kind": "worker_started"}\n',
        '{"kind": "worker_started", "local_rank": 1e400, "rank": 1, "pid": 1}\n',
        '{"kind": "cycle_started", "cycle": 1e400}\n',
        '{"kind": "exit", "exit_code": 1e400}\n{"kind": "signal_received", "signal": 1e400}\n',
        100_000 * "[" + "\n",
        '{"t": 99, "kind": "job_succ',
    ],
    ids=["none", "none-are-events", "empty", "rank", "cycle", "code", "deep", "half"],
)
def test_garbage_in_the_events_costs_the_view_nothing_else(tmp_path, garbage: str) -> None:
    folder = run_folder(tmp_path / "a", START, *STARTED)
    with (folder / "events-launcher.jsonl").open("a", encoding="latin-1") as file:
        file.write(garbage)
    assert len(LiveJob([folder]).look().ranks) == 2


def test_a_rank_that_cannot_be_asked_says_why(tmp_path) -> None:
    job = LiveJob([run_folder(tmp_path / "a", START, *STARTED)])
    assert "does not run on this host" in job.stacks([4])[4]
    assert "there is no rank 9" in job.stacks([9])[9]


@pytest.mark.parametrize(
    ("s", "text"), [(None, "-"), (0.26, "0.3"), (12.9, "12"), (245, "4:05"), (7205, "2:00:05")]
)
def test_times_are_short(s, text) -> None:
    assert seconds(s) == text
    assert of_limit(s, None) == ("" if s is None else text)


@pytest.mark.parametrize(
    ("age_s", "limit_s", "text"),
    [(8.94, 60, "8.9 of 60 s"), (61.2, 60, "61 of 60 s"), (245, 3600, "4:05 of 1:00:00")],
)
def test_an_age_and_its_timeout_are_in_one_unit(age_s, limit_s, text) -> None:
    assert of_limit(age_s, limit_s) == text


RANKS = [
    RankView(0, "n0", 0, 10, used=0.1, section="step", section_age_s=6.0, section_limit_s=60.0),
    RankView(1, "n0", 1, 11, used=0.9, state="overdue", per_s=2.5, iteration=7),
    RankView(2, "n0", 2, 12, slow=("data", 1.7)),
]


@pytest.mark.parametrize(("sort", "first"), [("rank", 0), ("used", 1), ("slow", 2)])
def test_the_first_row_is_the_one_to_look_at(sort: str, first: int) -> None:
    assert min(RANKS, key=SORTS[sort]).rank == first


class Job(LiveJob):
    """Of three ranks that never change."""

    def __init__(self) -> None:
        super().__init__([])

    def look(self) -> JobView:
        nodes = [NodeView("n0", "running", 0, is_here=True, run_dir="/run")]
        return JobView("train.py", "r", nodes=nodes, ranks=list(RANKS))

    def stacks(self, ranks) -> dict[int, str]:
        return {rank: f"File train.py, line {rank}" for rank in ranks}


def test_keys_of_top_sort_and_show_stacks() -> None:
    async def press() -> None:
        app = Top(Job())
        async with app.run_test(size=(120, 30)) as pilot:
            table = app.query_one("DataTable")
            assert [str(cell) for cell in table.get_row_at(0)][:2] == ["0", "n0"]
            await pilot.press("s")
            assert str(table.get_row_at(0)[0]) == "1"
            await pilot.press("down", "enter")
            assert isinstance(app.screen, Stacks)
            assert app.screen._texts == {0: "File train.py, line 0"}
            await pilot.press("escape")
            await pilot.press("D")
            assert set(app.screen._texts) == {0, 1, 2}
            await pilot.press("q")
            assert not isinstance(app.screen, Stacks)

    asyncio.run(press())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["top", "--x"], "unknown option '--x'\n"),
        (["top", "--jsno"], "unknown option '--jsno': did you mean --json?"),
        (["report", "--htlm=x"], "unknown option '--htlm=x': did you mean --html?"),
        (["reprot"], "unknown command 'reprot': did you mean report?"),
        (["top", "absent"], "no run is called 'absent'"),
        (["top", "--sort"], "--sort needs a value"),
        (["view", "--port", "99999"], "'99999' is not a port"),
    ],
)
def test_bad_input_is_one_clear_error(words, told, capsys) -> None:
    assert main(words) == 2
    assert told in capsys.readouterr().err


def test_top_without_a_terminal_says_what_to_give(tmp_path, capsys) -> None:
    folder = run_folder(tmp_path / "a", START, *STARTED)
    assert main(["top", str(folder)]) == 2
    assert "give --once" in capsys.readouterr().err
    assert main(["top", "--once", "--sort", "nothing", str(folder)]) == 2
    assert main(["top", "--once", str(folder)]) == 0
    assert "2 ranks on 1 node" in capsys.readouterr().out


def test_a_stopped_rank_is_not_woken_to_be_asked(tmp_path, monkeypatch) -> None:
    """Somebody has stopped it, and a monitor may be about to say so."""
    import signal

    from holdfast.base.processes.job_name import PREFIX, new_job
    from holdfast.page.page import create_page, map_page
    from holdfast.page.pure import page as layout

    job = new_job()
    runtime = tmp_path / (PREFIX + job)
    runtime.mkdir()
    monkeypatch.setattr("holdfast.events.run.run_links._TMPFS", str(tmp_path))
    rank = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        create_page(str(runtime / "c0_r0.page"), 0)
        page = map_page(str(runtime / "c0_r0.page"), writable=True)
        page.words[layout.PID], page.words[layout.DUMP_SIGNAL] = float(rank.pid), 40.0
        page.close()
        started = {**STARTED[1], "pid": rank.pid}
        folder = run_folder(tmp_path / "run", {**START, "job": job}, STARTED[0], started)
        os.kill(rank.pid, signal.SIGSTOP)
        os.waitpid(rank.pid, os.WUNTRACED)
        assert "is stopped" in LiveJob([folder]).stacks([4])[4]
        assert proc.process_state(rank.pid).is_stopped
    finally:
        rank.kill()
        rank.communicate()


# ------------------------------------------------------------------ over HTTP
def ask(app, path: str, host: str, method: str = "GET", **headers: str) -> tuple[int, dict, bytes]:
    """One request, without a network."""
    sent: list[dict] = []
    path, _, query = path.partition("?")
    given = [(b"host", host.encode()), *((k.encode(), v.encode()) for k, v in headers.items())]
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode()}
    scope |= {"headers": given, "scheme": "http", "server": ("", 80), "http_version": "1.1"}

    async def send(message: dict) -> None:
        sent.append(message)

    async def receive() -> dict:
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run(app(scope, receive, send))
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, b"".join(each.get("body", b"") for each in sent[1:])


@pytest.mark.parametrize(
    ("host", "is_local", "elsewhere"),
    [
        ("127.0.0.1:8265", 200, 200),
        ("[::1]:8265", 200, 200),
        ("LOCALHOST", 200, 200),
        ("10.1.2.3:8265", 400, 200),
        ("evil.example:8265", 400, 400),
        ("127.0.0.1.evil.example", 400, 400),
        ("[::1", 400, 400),
        ("", 400, 400),
    ],
)
def test_a_name_that_another_site_lets_lead_here_is_refused(host, is_local, elsewhere) -> None:
    """Also where the page is served to other hosts: an address cannot be led elsewhere."""
    assert ask(make_app(Job()), "/state", host)[0] == is_local
    assert ask(make_app(Job(), hosts=None), "/state", host)[0] == elsewhere
    name = socket.gethostname()
    assert ask(make_app(Job(), hosts=None), "/state", name)[0] == 200


def test_answers_are_kept_nowhere_framed_nowhere_and_named_nowhere() -> None:
    app = make_app(Job(), "secret")
    for path in ("/", "/state"):
        _, headers, _ = ask(app, path, "localhost")
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_stacks_need_the_token_in_a_header_that_no_other_site_can_send() -> None:
    """A form of another site sends no such header; in the address it would be in logs."""
    app, secret = make_app(Job(), "secret"), {"authorization": "Bearer secret"}
    assert ask(app, "/stacks?rank=1", "localhost", "POST", **secret)[0] == 200
    assert ask(app, "/stacks?rank=1&token=secret", "localhost", "POST")[0] == 401
    assert ask(app, "/stacks?rank=1", "localhost", "GET", **secret)[0] == 405
    assert ask(app, f"/stacks?rank={5000 * '9'}", "localhost", "POST", **secret)[2] == (
        b'{"merged":"","ranks":{}}'
    )
    assert ask(make_app(Job()), "/stacks?rank=1", "localhost", "POST", **secret)[0] == 403


# ------------------------------------------------------------------ for programs
def names_of(thing: object) -> set[str]:
    """Fields that docs/live-views.md has of it."""
    return {name for names, _ in documented(thing) for name in names.split(", ")}


def test_the_fields_of_top_json_are_documented_under_a_version(tmp_path, capsys) -> None:
    folder = run_folder(
        tmp_path / "a",
        START,
        *STARTED,
        {"kind": "incident", "cycle": 0, "t": 7.2, "incident": 1},
        {"kind": "snapshots_on", "cycle": 0, "t": 7.3},
    )
    assert main(["top", "--json", str(folder)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema_version"] == 1
    assert set(shown) == names_of(JobView.as_json)
    assert set(shown["ranks"][0]) == names_of(RankView)
    texts = dict(documented(JobView.as_json))
    for key in ("nodes", "incidents", "events", "snapshots"):
        value = shown[key]
        fields = value[0] if isinstance(value, list) else value
        assert set(fields) <= set(re.findall(r"`(\w+)`", texts[key])), key


def test_the_meaning_of_version_1_of_top_json() -> None:
    """Who reads it, in a script, is not to be surprised: a change here needs a new number."""
    one = RankView(3, "n0", 1, 10, "overdue", "step", 61.0, 60.0, 2.0, 600.0, 1.02, 7, 2.5)
    one.slow = "data", 1.7
    nodes = [NodeView("n0", "running", 2, is_here=True, run_dir="/run")]
    assert json.loads(json.dumps(JobView("a.py", "r", 9.0, 8.0, 2, 1, nodes, [one]).as_json())) == {
        "schema_version": 1,
        "state": "running",
        "name": "a.py",
        "run_id": "r",
        "wall": 9.0,
        "age_s": 8.0,
        "restarts": 2,
        "restarts_left": 1,
        "restarts_in_place": 0,
        "nodes": [
            {"node": "n0", "state": "running", "cycle": 2, "is_here": True, "run_dir": "/run"}
        ],
        "ranks": [
            {
                "rank": 3,
                "node": "n0",
                "local_rank": 1,
                "pid": 10,
                "state": "overdue",
                "section": "step",
                "section_age_s": 61.0,
                "section_limit_s": 60.0,
                "heartbeat_age_s": 2.0,
                "heartbeat_limit_s": 600.0,
                "used": 1.02,
                "iteration": 7,
                "per_s": 2.5,
                "slow": ["data", 1.7],
                "steps": None,
                "step_age_s": None,
                "step_limit_s": None,
            }
        ],
        "incidents": [],
        "events": [],
        "verdict": None,
        "history": [],
        "snapshots": None,
    }


# ------------------------------------------------------------------ snapshots
def arena_of(folder: Path, local_rank: int, steps: Iterable[int], taken_at: float) -> ArenaMemory:
    """The memory of a rank with these snapshots, where a launcher shows it."""
    fd = create("test")
    show(str(folder), local_rank, fd)
    memory = ArenaMemory(fd)
    for slot, step in enumerate(steps):
        memory.reserve(slot, 4096)
        memory.commit(slot, Held(local_rank, 2, 0, 0, step), 100)
    words = memory.words
    words[layout.TAKEN_AT], words[layout.EVERY], words[layout.TAKEN] = int(taken_at * 1e9), 4, 2
    words[layout.SPENT_NS] = 5_000_000
    return memory


def test_the_newest_snapshot_of_all_ranks_is_shown_with_its_age(temp, tmp_path) -> None:
    """Rank 1 is a step behind: a restart would begin from step 8."""
    job = new_job()
    runtime = temp / f"holdfast_{job}"
    runtime.mkdir()
    on = {"kind": "snapshots_on", "cycle": 0, "t": 7.0}
    folder = run_folder(tmp_path / "a", {**START, "job": job}, *STARTED, on)
    live, now = LiveJob([folder]), clock.monotonic()
    assert live.look().snapshots["step"] is None
    arenas = [arena_of(runtime, 0, (4, 8, 12), now - 1.0), arena_of(runtime, 1, (4, 8), now - 60.0)]
    seen = live.look()
    assert seen.snapshots["step"] == 8
    assert seen.snapshots["age_s"] >= 60.0
    assert seen.snapshots["seconds"] == 0.005
    line = as_text(seen).splitlines()[1]
    assert re.fullmatch(r"snapshots: step 8, [\d. mins]+ old, one step of 4", line), line
    arenas[1].void(1)
    assert live.look().snapshots["step"] == 4
    for arena in arenas:
        os.close(arena.fd)


def test_snapshots_that_are_off_say_why_until_a_cycle_has_them_again(tmp_path) -> None:
    off = {"kind": "snapshots_off", "cycle": 0, "t": 7.0, "why": "2 ranks need 4 MiB"}
    folder = run_folder(tmp_path / "a", START, *STARTED, off)
    assert "\nsnapshots are off: node n0: 2 ranks need 4 MiB\n" in as_text(LiveJob([folder]).look())
    taken = {"kind": "snapshots_taken", "cycle": 1, "t": 21.0, "taken": 9, "step": 9, "at": 20.5}
    folder = run_folder(tmp_path / "b", START, *STARTED, off, *RESTARTED, taken)
    assert "\nsnapshots: step 9" in as_text(LiveJob([folder]).look()), "as its last event says"


def test_the_kept_step_is_shown_with_the_node_that_has_the_copies_of_each(tmp_path) -> None:
    """The second node has not heard of the newest kept step, and its last copy failed."""
    on = {"kind": "snapshots_on", "cycle": 0, "t": 7.0}
    taken = {"kind": "snapshots_taken", "cycle": 0, "t": 9.0, "taken": 9, "step": 9, "at": 8.5}

    def copied(step: int, t: float, peer: str) -> list[dict]:
        about = {"cycle": 0, "step": step, "seconds": 1.0}
        return [
            {"kind": "snapshot_copied", "t": t, "peer": peer, **about},
            {"kind": "snapshot_kept", "t": t + 0.1, **about},
        ]

    a = [{"kind": "snapshot_peer", "cycle": 0, "t": 7.0, "peer": "n1-8"}]
    a += [*copied(4, 8.0, "n1-8"), *copied(8, 8.5, "n1-8")]
    b = [{"kind": "snapshot_peer", "cycle": 0, "t": 7.0, "peer": "n0-7"}, *copied(4, 8.0, "n0-7")]
    b.append({"kind": "snapshot_not_copied", "cycle": 0, "t": 8.6, "step": 8, "why": "timed out"})
    folders = [
        run_folder(tmp_path / "a", START, *STARTED, on, taken, *a),
        run_folder(tmp_path / "b", {**START, "node": "n1"}, *STARTED, on, taken, *b),
    ]
    seen = LiveJob(folders).look()
    assert seen.snapshots["kept_step"] == 4
    assert [(it["peer"], it["step"]) for it in seen.snapshots["copies"]] == [
        ("n1-8", 8),
        ("n0-7", 4),
    ]
    text = as_text(seen)
    assert "; kept at other nodes: step 4 (copies of 1 node fail)\n" in text
    assert "\ncopies of n0: step 8 at n1-8\n" in text
    assert "at n0-7; the last one failed: timed out\n" in text


def test_a_job_without_snapshots_shows_nothing_of_them(tmp_path) -> None:
    assert "snapshot" not in as_text(LiveJob([run_folder(tmp_path / "a", START, *STARTED)]).look())


# ------------------------------------------------------------------ ends, and terminals
DEAD = {**START, "job": "-".join(["4194303", "1", *new_job().split("-")[2:]])}


def test_a_job_that_ended_well_and_left_no_folder_has_succeeded(tmp_path) -> None:
    """Its launcher has removed the event that says so; one that was killed removes nothing."""
    folder = run_folder(tmp_path / "a", DEAD, *STARTED)
    job = LiveJob([folder])
    view = job.look()
    assert (view.state, {one.state for one in view.ranks}) == ("gone", {"gone"})
    assert "its launcher is gone" in job.stacks([4])[4]
    shutil.rmtree(folder)
    view = job.look()
    assert (view.state, {one.state for one in view.ranks}) == ("succeeded", {"completed"})


def test_a_job_does_not_restart_because_one_rank_is_done_before_the_others(tmp_path) -> None:
    folder = run_folder(tmp_path / "a", START, *STARTED, exited(0))
    assert LiveJob([folder]).look().state == "running"


@pytest.mark.parametrize(
    ("env", "stdin", "told"),
    [
        ({"TERM": "dumb"}, None, "this terminal cannot move its cursor (TERM=dumb)"),
        ({"TERM": "xterm"}, subprocess.DEVNULL, "stdin is not a terminal"),
    ],
    ids=["dumb", "stdin"],
)
def test_top_says_in_a_line_what_a_terminal_lacks(tmp_path, env, stdin, told: str) -> None:
    run = run_folder(tmp_path / "a", START, *STARTED)
    terminal, theirs = os.openpty()
    words = [sys.executable, "-m", "holdfast.cli", "top", str(run)]
    given = theirs if stdin is None else stdin
    done = subprocess.run(
        words,
        stdin=given,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, **env},
        check=False,
        timeout=BOUND_S,
    )
    os.close(terminal)
    os.close(theirs)
    assert done.returncode == 2
    assert done.stderr.decode() == f"holdfast top: error: {told}: give --once, or --json\n"


@pytest.mark.parametrize("how", ["ctrl-c", "sigterm"])
def test_top_leaves_the_terminal_as_it_was(tmp_path, how: str) -> None:
    """After Ctrl-C, and where it is ended from outside; it draws there though stderr is a file."""
    run = run_folder(tmp_path / "a", START, *STARTED)
    terminal, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 20, 40, 0, 0))
    before = termios.tcgetattr(theirs)
    with (tmp_path / "stderr").open("wb") as file:
        top = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", "top", str(run)],
            stdin=theirs,
            stdout=theirs,
            stderr=file,
            env={**os.environ, "TERM": "xterm"},
        )
    written = b""
    try:
        written = read_until(terminal, b"train.py", written)
        if how == "ctrl-c":
            os.write(terminal, b"\x03")
        else:
            top.terminate()
        written = read_until(terminal, b"\x1b[?1049l", written)
        assert top.wait(BOUND_S) == 0
        assert termios.tcgetattr(theirs) == before
        assert (tmp_path / "stderr").read_bytes() == b""
    finally:
        top.kill()
        top.wait()
        os.close(terminal)
        os.close(theirs)


def read_until(terminal: int, mark: bytes, written: bytes) -> bytes:
    """What is written to a terminal, up to this."""
    give_up_at = time.monotonic() + BOUND_S
    while mark not in written:
        ready, _, _ = select.select([terminal], [], [], max(0.0, give_up_at - time.monotonic()))
        assert ready, written
        written += os.read(terminal, 1 << 16)
    return written


@pytest.mark.parametrize(
    "reason", ["rank 5 (pid 7) waits", "node b (ranks 8-15) waits", "no rank waits"]
)
def test_the_line_of_an_incident_names_its_ranks_once(reason: str) -> None:
    """As the reason does."""
    incident = {"cycle": 0, "kind": "lock", "culprits": [5], "reason": reason}
    assert incident_line(incident) == f"cycle 0: lock: {reason}"


def test_of_news_the_newest_are_shown_as_many_as_fit() -> None:
    lines = ["first", "second", "x" * 25, "last"]
    assert newest(lines, rows=4, columns=10) == ["x" * 25, "last"]
    assert newest(lines, rows=5, columns=10) == ["second", "x" * 25, "last"]
    assert newest(["x" * 99], rows=1, columns=10) == ["x" * 99]
    assert newest([], rows=4, columns=10) == []


def test_in_a_small_terminal_the_keys_and_the_newest_event_can_be_seen() -> None:
    class Busy(Job):
        def look(self) -> JobView:
            view = super().look()
            view.events = [
                {"wall": 0.0, "node": "n0", "text": f"cycle {k} is over: {'why ' * 20}"}
                for k in range(9)
            ]
            return view

    async def see() -> None:
        app = Top(Busy())
        async with app.run_test(size=(40, 20)) as pilot:
            await pilot.pause()
            assert app.query_one("DataTable").size.height >= 4
            shown = html.unescape(app.export_screenshot()).replace("\xa0", " ")
            assert "cycle 8 is over" in shown
            assert "Quit" in shown

    asyncio.run(see())
