"""Metrics and hooks of an observer process."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import sys
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.base import clock
from holdfast.base.processes import proc
from holdfast.base.pure import codec
from holdfast.events.observer_messages import FROM_OBSERVER, ObserverConfig, Orders
from holdfast.page.page import create_page, map_page
from holdfast.page.pure import page as layout
from holdfast.tools.observer import hooks
from holdfast.tools.observer.hooks import Hooks
from holdfast.tools.observer.metric_table import METRICS
from holdfast.tools.observer.metrics import Metrics
from holdfast.tools.observer.metrics_server import CONNECTIONS, MetricsServer
from holdfast.tools.observer.observer_main import Observer
from holdfast.tools.outages import Outages
from holdfast.tools.run.follower import Follower
from tests.unit.made_events import typed
from tests.unit.tools.test_outages import OVERDUE, RESTARTED, STARTED, STOPPING, exited
from tests.waiting import until

LABELS = {"node": "n0", "run": "job"}


def test_a_line_that_has_not_ended_is_read_when_it_has(tmp_path: Path) -> None:
    follower, path = Follower(tmp_path), tmp_path / "events-launcher.jsonl"
    assert list(follower.fresh()) == []
    with path.open("ab", buffering=0) as file:
        file.write(b'{"kind": "a"}\n{"ki')
        assert list(follower.fresh_fields()) == [{"kind": "a"}]
        assert list(follower.fresh()) == []
        file.write(b'nd": "b"}\nno json\n{"kind": "c"}\n')
        assert list(follower.fresh_fields()) == [{"kind": "b"}, {"kind": "c"}]


def test_a_long_file_of_events_is_read_to_its_end(tmp_path: Path) -> None:
    """A view that looks once shows the present, and not the first megabyte of the run."""
    line = json.dumps({"kind": "x" * 1000}) + "\n"
    (tmp_path / "events-launcher.jsonl").write_text(2000 * line + '{"kind": "last"}\n')
    assert [event["kind"] for event in Follower(tmp_path).fresh_fields()][-1] == "last"


def scrape(server: MetricsServer, path: str = "/metrics") -> tuple[int, str]:
    try:
        url = f"http://127.0.0.1:{server.server_port}{path}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(text: str) -> dict[str, float]:
    """By name and the labels that not all have."""
    return {
        " ".join([sample.name, *(v for k, v in sample.labels.items() if k not in LABELS)]): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def served(tmp_path: Path):
    outages = Outages(nproc=2)
    metrics = Metrics(outages, str(tmp_path), LABELS, "1.2")
    server = MetricsServer("", 0, metrics)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    def take(*events: dict) -> None:
        for event in typed(events):
            metrics.take(event, list(outages.take(event)))

    yield server, take
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_scrape_counts_faults_restarts_and_their_times(served) -> None:
    server, take = served
    assert scrape(server, "/readyz")[0] == 503
    take(*STARTED, OVERDUE, STOPPING, exited(-9), *RESTARTED)
    status, text = scrape(server)
    found = samples(text)
    assert status == 200
    assert found["holdfast_faults_total hang"] == found["holdfast_restarts_total"] == 1
    assert found["holdfast_recovery_seconds_sum"] == pytest.approx(4.198)
    assert found["holdfast_stalled_seconds_count"] == 1
    assert found["holdfast_cycle"] == 1
    assert found["holdfast_rank_seconds stopping"] > 0
    assert 0 <= found["holdfast_goodput_ratio"] < 1
    assert found["holdfast_ranks running"] == 2
    assert "_created" not in text
    assert (scrape(server, "/readyz")[0], scrape(server, "/healthz")[0]) == (200, 200)
    assert scrape(server, "/etc/passwd")[0] == 404


MOVED = {"kind": "leader_moved", "t": 9.0, "cycle": 0, "term": 3, "before": "n0-1-a", "votes": 2}


TAKEN = {"kind": "snapshots_taken", "cycle": 1, "t": 14.0, "taken": 7, "seconds": 0.5, "step": 6}
SNAPSHOTS = (
    {"kind": "snapshots_on", "cycle": 0, "t": 1.3},
    {**TAKEN, "cycle": 0, "t": 9.0, "at": 8.5},
    *RESTARTED,
    {"kind": "snapshot_restored", "cycle": 1, "t": 11.3, "step": 5, "lost_steps": 2},
    {**TAKEN, "at": 13.5},
)


def test_a_scrape_has_the_newest_snapshot_and_what_they_cost_and_lost(served) -> None:
    server, take = served
    take(*STARTED)
    found = samples(scrape(server)[1])
    assert found["holdfast_snapshot_restores_total"] == 0
    assert "holdfast_snapshots_off" not in found
    take(*SNAPSHOTS)
    found = samples(scrape(server)[1])
    assert found["holdfast_snapshots_taken_total"] == 14
    assert found["holdfast_snapshot_seconds_total"] == 1.0
    assert found["holdfast_snapshot_restores_total"] == 1
    assert found["holdfast_snapshot_steps_lost_total"] == 2
    assert found["holdfast_snapshots_off"] == 0
    assert found["holdfast_snapshot_step"] == 6
    assert found["holdfast_snapshot_age_seconds"] > 0
    take({"kind": "snapshots_off", "cycle": 1, "t": 15.0, "why": "2 ranks need 4 MiB"})
    assert samples(scrape(server)[1])["holdfast_snapshots_off"] == 1


KEPT = (
    {"kind": "snapshot_peer", "t": 1.3, "cycle": 0, "peer": "n1-7-ab"},
    {"kind": "snapshot_copied", "t": 9.0, "cycle": 0, "step": 40}
    | {"peer": "n1-7-ab", "n_bytes": 1000, "seconds": 2.0},
    {"kind": "snapshot_kept", "t": 9.5, "cycle": 0, "step": 40, "n_bytes": 2000, "seconds": 3.0},
)


def test_a_scrape_has_the_kept_step_and_the_copies_of_this_node(served) -> None:
    server, take = served
    take(*STARTED)
    found = samples(scrape(server)[1])
    assert found["holdfast_kept_steps_total"] == 0
    assert "holdfast_snapshot_copies_off" not in found, "no step is kept"
    take(*KEPT)
    found = samples(scrape(server)[1])
    assert found["holdfast_kept_step"] == 40
    assert found["holdfast_kept_step_age_seconds"] > 0
    assert found["holdfast_snapshot_copy_age_seconds n1-7-ab"] > 0
    assert found["holdfast_snapshot_copies_total"] == found["holdfast_kept_steps_total"] == 1
    assert found["holdfast_snapshot_copy_bytes_total"] == 1000
    assert found["holdfast_snapshot_copy_seconds_total"] == 2.0
    take(
        {"kind": "snapshot_not_copied", "t": 10.0, "cycle": 0, "why": "full", "for_good": True},
    )
    found = samples(scrape(server)[1])
    assert found["holdfast_snapshot_copy_failures_total"] == 1
    assert found["holdfast_snapshot_copies_off"] == 1
    take({"kind": "snapshot_peer", "t": 11.0, "cycle": 1, "peer": "n2-7-ab"})
    found = samples(scrape(server)[1])
    assert "holdfast_kept_step" not in found, "the cycle goes back to before it"
    assert not any("copy_age" in name for name in found)
    assert found["holdfast_snapshot_copies_off"] == 0
    known = {"kept": 40, "kept_age_s": 500.0}
    take({"kind": "snapshot_peer", "t": 12.0, "cycle": 2, "peer": "n2-7-ab", **known})
    found = samples(scrape(server)[1])
    assert found["holdfast_kept_step"] == 40
    assert found["holdfast_kept_step_age_seconds"] >= 500, "of a launcher that joins later, too"


def test_a_scrape_counts_how_often_this_launcher_came_to_lead(served) -> None:
    server, take = served
    take(*STARTED)
    found = samples(scrape(server)[1])
    assert found["holdfast_takeovers_total"] == 0
    assert "holdfast_leader_term" not in found
    take(MOVED)
    found = samples(scrape(server)[1])
    assert (found["holdfast_takeovers_total"], found["holdfast_leader_term"]) == (1, 3)


def test_a_scrape_shows_how_old_sections_and_heartbeats_are(served, tmp_path: Path) -> None:
    server, take = served
    take(*STARTED)
    path = tmp_path / "c0_r1.page"
    create_page(str(path), 0)
    page, now = map_page(str(path), writable=True), clock.monotonic()
    page.store_names(["step"])
    for word, value in {
        layout.LIMIT_HEARTBEAT: float("inf"),
        layout.slot(0) + layout.LIMIT: 60.0,
        layout.LIMITS_VERSION: 2.0,
        layout.HEARTBEAT_AT: now - 5,
        layout.slot(0) + layout.OPENED_AT: now - 7,
        layout.slot(0) + layout.TIMES: 3.0,
        layout.slot(0) + layout.TOTAL_S: 6.0,
        layout.slot(0) + layout.FIRST_AT: now - 9,
        layout.slot(0) + layout.CLOSED_AT: now - 8,
        layout.ITERATION: 12.0,
        layout.ARMED_AT: now - 9,
    }.items():
        page.words[word] = value
    found = samples(scrape(server)[1])
    page.close()
    assert 5 <= found["holdfast_heartbeat_age_seconds 5"] < 5 + 60
    assert 7 <= found["holdfast_section_age_seconds 5 step"] < 7 + 60
    assert found["holdfast_section_timeout_seconds 5 step"] == 60
    assert found["holdfast_heartbeat_timeout_seconds 5"] == float("inf")
    assert found["holdfast_iteration 5"] == 12
    assert found["holdfast_section_seconds_total 5 step"] == 6
    assert found["holdfast_section_ends_total 5 step"] == 3
    assert found["holdfast_rank_monitored 5"] == 1
    assert "holdfast_rank_monitored 4" not in found  # its page is not there


def test_goodput_is_that_of_now_though_the_launcher_looks_at_pages_seldom(served, tmp_path) -> None:
    """The rank is at work since a minute; no event has said so yet."""
    server, take = served
    began = clock.monotonic() - 70
    armed = {"kind": "rank_armed", "armed_at": began + 4.0, "sections": ["step"]}
    take(*({**event, "t": began + event["t"]} for event in STARTED))
    take(*({**armed, "cycle": 0, "t": began + 4, "local_rank": k, "rank": 4 + k} for k in (0, 1)))
    create_page(str(tmp_path / "c0_r1.page"), 0)
    page = map_page(str(tmp_path / "c0_r1.page"), writable=True)
    page.store_names(["step"])
    for word, value in {
        layout.LIMITS_VERSION: 2.0,
        layout.slot(0) + layout.TIMES: 3.0,
        layout.slot(0) + layout.TOTAL_S: 60.0,
        layout.slot(0) + layout.FIRST_AT: began + 10,
        layout.slot(0) + layout.CLOSED_AT: began + 70,
        layout.ARMED_AT: began + 4,
    }.items():
        page.words[word] = value
    found = samples(scrape(server)[1])
    page.close()
    assert 60 <= found["holdfast_rank_seconds steps"] < 60 + 60


def test_the_example_dashboard_and_alerts_ask_for_metrics_that_there_are(served) -> None:
    server, take = served
    take(*STARTED, OVERDUE, STOPPING, exited(-9), *SNAPSHOTS, *KEPT)
    names = {
        line.split()[2] for line in scrape(server)[1].splitlines() if line.startswith("# TYPE")
    }
    suffixes = ("", "_total", "_sum", "_count", "_bucket", "_info")
    known = {name + suffix for name in names for suffix in suffixes}
    folder = Path(__file__).parents[3] / "examples" / "observability"
    json.loads((folder / "grafana-dashboard.json").read_text())
    for file in ("grafana-dashboard.json", "alerts.yml"):
        asked = set(re.findall(r"holdfast_\w+", (folder / file).read_text()))
        assert asked
        assert asked <= known, asked - known


def test_every_metric_is_in_the_table_of_its_page(served) -> None:
    """And no other: a new one is described where people look for it."""
    server, take = served
    take(*STARTED, OVERDUE, STOPPING, exited(-9), *SNAPSHOTS, *KEPT, MOVED)
    names = {
        line.split()[2] for line in scrape(server)[1].splitlines() if line.startswith("# TYPE")
    }
    told = {f"holdfast_{name}" for name in METRICS}
    assert told - names <= {"holdfast_restarts_left"}  # the budget is not known here
    assert names <= told


def test_counters_are_there_from_the_start_and_never_fall(served, tmp_path: Path) -> None:
    """A page goes with its cycle. From a series that begins with 1, increase() learns nothing."""
    server, take = served
    found = samples(scrape(server)[1])
    for kind in ("hang", "exit", "signal", "host", "elsewhere"):
        assert found[f"holdfast_faults_total {kind}"] == 0
    assert found["holdfast_incidents_total waiting"] == 0

    def total() -> float:
        return samples(scrape(server)[1]).get("holdfast_section_seconds_total 5 step", 0.0)

    def page(cycle: int, total_s: float) -> None:
        path = tmp_path / f"c{cycle}_r1.page"
        if not path.exists():
            create_page(str(path), 0)
        page = map_page(str(path), writable=True)
        page.store_names(["step"])
        shown = {layout.TIMES: 3.0, layout.TOTAL_S: total_s}
        shown |= {layout.FIRST_AT: 1.0, layout.CLOSED_AT: 2.0}
        for word, value in shown.items():
            page.words[layout.slot(0) + word] = value
        page.words[layout.LIMITS_VERSION] = 2.0
        page.close()

    def progress(cycle: int, total_s: float, *, final: bool) -> dict:
        shown = {"1": {"rank": 5, "open": {}, "sections": {"step": [3, total_s, 1.0, 1.0, 2.0]}}}
        return {"t": 9.0, "kind": "progress", "cycle": cycle, "ranks": shown, "final": final}

    take(*STARTED)
    page(0, 6.0)
    assert total() == 6
    take(OVERDUE, STOPPING, exited(-9), *RESTARTED)
    assert total() == 6, "its page is not read any more"
    page(1, 0.5)
    assert total() == 6.5
    take(progress(0, 7.0, final=True))
    assert total() == 7.5, "what it had done since"
    take(progress(0, 7.0, final=False), progress(1, 1.0, final=False))
    assert total() == 8
    (tmp_path / "c1_r1.page").unlink()
    take(progress(1, 2.0, final=True), {"kind": "progress", "cycle": 1, "ranks": {"0": 3}})
    assert total() == 9


def raw(server: MetricsServer, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as caller:
        with suppress(OSError):  # it has answered, and does not wait for the rest of a long one
            caller.sendall(data)
            caller.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: caller.recv(1 << 16), b""))


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"HEAD /metrics HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 "),
        (b"GET /healthz?x=1 HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 "),
        (b"GET http://[::1 HTTP/1.0\r\n\r\n", b"HTTP/1.1 404 "),
        (b"POST /metrics HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", b"HTTP/1.1 501 "),
        (b"GET /" + 100_000 * b"a" + b" HTTP/1.0\r\n\r\n", b"HTTP/1.1 414 "),
        (b"GET / HTTP/1.0\r\n" + 200 * b"a: b\r\n" + b"\r\n", b"HTTP/1.1 431 "),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", (b"<!DOCTYPE", b"HTTP/1.1 400 ")),
        (b"GET /metr", b""),
    ],
    ids=["head", "query", "host", "post", "long path", "many headers", "tls", "cut off"],
)
def test_any_request_is_answered_or_closed(
    served, request_: bytes, answer: bytes | tuple[bytes, ...]
) -> None:
    with suppress(ConnectionError):  # an answer to a long one may be lost with what was not read
        assert raw(served[0], request_).startswith(answer)
    assert scrape(served[0], "/healthz")[0] == 200


def test_callers_that_say_nothing_keep_no_others_from_an_answer(served) -> None:
    """Nor does one that never reads its answer. The oldest connections make room."""
    at = ("127.0.0.1", served[0].server_port)
    silent = [socket.create_connection(at, timeout=60) for _ in range(2 * CONNECTIONS)]
    silent[-1].sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert scrape(served[0])[0] == 200
    until(lambda: threading.active_count() < 2 * CONNECTIONS, "threads of the oldest have ended")
    for each in silent:
        each.close()


def test_a_port_that_is_taken_is_an_error(served) -> None:
    server, _ = served
    with pytest.raises(OSError, match="in use"):
        MetricsServer("", server.server_port, server.metrics)


# ------------------------------------------------------------------ hooks
def hook(tmp_path: Path, code: str) -> list[str]:
    script = tmp_path / "hook.py"
    script.write_text(f"import os, sys, signal, time\n{code}\n")
    return [sys.executable, "-I", "-S", str(script)]


def test_the_command_gets_the_path_of_each_incident(tmp_path: Path) -> None:
    told: list[str] = []
    code = f"open({str(tmp_path / 'got')!r}, 'a').write(sys.argv[1] + os.environ['NODE'] + '\\n')"
    called = Hooks(hook(tmp_path, code), (), {"NODE": " n0"}, told.append)
    called.incident("/run/1")
    called.incident("/run/2")
    called.finish(60)
    assert (tmp_path / "got").read_text() == "/run/1 n0\n/run/2 n0\n"
    assert told == []


def test_a_command_that_fails_is_told_of_with_its_last_line(tmp_path: Path) -> None:
    told: list[str] = []
    called = Hooks(hook(tmp_path, "print('a'); sys.exit('no network')"), (), {}, told.append)
    called.incident("/run/1")
    called.finish(60)
    assert len(told) == 1
    assert told[0].endswith("exit code 1 for /run/1: no network")


def test_a_command_that_does_not_end_is_killed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(hooks, "COMMAND_S", 0.2)
    told: list[str] = []
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    called = Hooks(hook(tmp_path, code), (), {}, told.append)
    called.incident("/run/1")
    called.finish(60)
    assert "killed after 0.2 s" in told[0]


def test_a_command_that_still_runs_at_the_end_of_the_job_is_ended_with_it(tmp_path) -> None:
    pid = tmp_path / "pid"
    code = f"open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    called = Hooks(hook(tmp_path, code), (), {}, lambda _: None)
    called.incident("/run/1")
    called.incident("/run/2")
    while not (pid.exists() and pid.read_text()):
        threading.Event().wait(0.005)
    called.finish(0.05)
    assert called._incidents is not None
    called._incidents._thread.join(60)  # it was told of the end, and starts no second one
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_command_may_print_megabytes_and_leave_a_daemon_that_holds_its_output(tmp_path) -> None:
    """The end of the command counts; of its output the last line; the daemon is ended."""
    told: list[str] = []
    pid = tmp_path / "pid"
    code = f"""
import subprocess
sys.stdout.write(1000 * (10_000 * 'x' + '\\n') + 'no network')
sys.stdout.flush()
daemon = subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(600)'])
open({str(pid)!r}, 'w').write(str(daemon.pid))
os._exit(3)"""
    called = Hooks(hook(tmp_path, code), (), {}, told.append)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    called.incident("/run/1")
    called.finish(60)
    assert [text.partition(" failed: ")[2] for text in told] == [
        "exit code 3 for /run/1: no network"
    ]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 5000, "kB"
    while (stat := proc.stat(int(pid.read_text()))) is not None and stat.state not in "ZX":
        threading.Event().wait(0.005)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("echo", 0o755, "cannot be started: Exec format error; a script begins with"),
        ("#!/bin/sh\n", 0o644, "cannot be started: Permission denied"),
        ("#!/bin/sh\nkill -SEGV $$\n", 0o755, "killed by SIGSEGV for /run/1: no output"),
    ],
)
def test_a_command_that_cannot_be_started_says_why(tmp_path, text, mode, said) -> None:
    told: list[str] = []
    script = tmp_path / "hook.sh"
    script.write_text(text)
    script.chmod(mode)
    called = Hooks([str(script)], (), {}, told.append)
    called.incident("/run/1")
    called.finish(60)
    assert [said in text for text in told] == [True], told


class Said:
    """The launcher's end of an observer's connection."""

    def __init__(self) -> None:
        self.messages: list = []

    def send(self, message: dict) -> None:
        self.messages.append(codec.decode(FROM_OBSERVER, message))


def follow(tmp_path: Path, monkeypatch, **orders) -> tuple[Observer, Said, list]:
    """An observer of a run folder with a command, and what reaches the command and observers."""
    reached: list = []

    class Called:
        def __init__(self, command, observers, environ, tell, on_ran) -> None:
            self._on_ran = on_ran

        def incident(self, path: str) -> None:
            reached.append(Path(path).parent.name)
            self._on_ran(path)

        def event(self, event: dict) -> None:
            reached.append(event["kind"])

    monkeypatch.setattr(hooks, "Hooks", Called)
    wanted = ObserverConfig(
        None, on_incident=("hook",), on_every_node=orders.pop("on_every_node", False)
    )
    said = Said()
    run = Orders(wanted, str(tmp_path), "/nowhere", 2, "n0", "job", **orders)
    return Observer(said, run), said, reached


def incident(tmp_path: Path, name: str, **fields) -> None:
    path = tmp_path / "incidents" / name / "incident.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"kind": "lock", **fields}))


def test_people_hear_of_an_incident_from_the_node_that_notifies_them(tmp_path, monkeypatch) -> None:
    """Which one that is may turn out later; a torn file is read when it is whole."""
    observer, said, reached = follow(tmp_path, monkeypatch)
    incident(tmp_path, "0001-cycle0", notifies=False)
    incident(tmp_path, "0002-cycle0", notifies=True)
    (tmp_path / "incidents" / "0003-cycle0").mkdir()
    (tmp_path / "incidents" / "0003-cycle0" / "incident.json").write_text('{"kind": "lo')
    observer._look()
    assert reached == ["0002-cycle0"]
    incident(tmp_path, "0001-cycle0", notifies=True, done=["SIGKILL to rank 0: hung"])
    incident(tmp_path, "0003-cycle0", notifies=True)
    observer._look()
    observer._look()
    assert reached == ["0002-cycle0", "0001-cycle0", "0003-cycle0"]
    assert [one.incident for one in said.messages] == reached


def test_on_all_nodes_each_runs_the_command(tmp_path, monkeypatch) -> None:
    observer, _, reached = follow(tmp_path, monkeypatch, on_every_node=True)
    incident(tmp_path, "0001-cycle0", notifies=False)
    observer._look()
    assert reached == ["0001-cycle0"]


def test_a_successor_of_an_observer_that_died_tells_nothing_twice(tmp_path, monkeypatch) -> None:
    """Of incidents it knows by name, of events by time."""
    notified = {"notified": ("0001-cycle0",), "since": 5.0}
    observer, _, reached = follow(tmp_path, monkeypatch, **notified)
    lines = [{"t": 4.0, "kind": "before"}, {"t": 6.0, "kind": "after"}, {"kind": "without"}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "events-launcher.jsonl").write_text(text)
    for name in ("0001-cycle0", "0002-cycle1"):
        incident(tmp_path, name, notifies=True)
    observer._look()
    assert reached == ["after", "0002-cycle1"]


class Observers:
    """Stands for the entry points of installed packages."""

    def __init__(self, **calls) -> None:
        self._calls = calls

    def __call__(self, *, group: str):
        assert group == "holdfast.observers"

        class Found:
            def __init__(self, name, call) -> None:
                self.name, self._call = name, call

            def load(self):
                if isinstance(self._call, Exception):
                    raise self._call
                return self._call

        return [Found(*each) for each in self._calls.items()]


def test_an_observer_that_fails_or_blocks_holds_up_no_other(monkeypatch) -> None:
    release, failed, seen, told = threading.Event(), [], [], []

    def fails(event: dict) -> None:
        failed.append(event)
        raise ValueError(event["kind"])

    def blocks(event: dict) -> None:
        assert release.wait(60)

    found = Observers(fails=fails, blocks=blocks, good=seen.append, broken=ImportError("no slack"))
    monkeypatch.setattr(hooks, "entry_points", found)
    monkeypatch.setattr(hooks, "_EVENTS_MAX", 4)
    called = Hooks((), ("fails", "blocks", "good", "broken", "absent"), {}, told.append)
    for number in range(10):
        called.event({"kind": f"k{number}"})
        while min(len(seen), len(failed)) <= number:
            threading.Event().wait(0.001)
    release.set()
    called.finish(60)
    assert [event["kind"] for event in seen] == [f"k{number}" for number in range(10)]
    assert sum("'fails' failed" in text for text in told) == 3
    assert sum("does not keep up" in text for text in told) == 1
    assert any("'broken' cannot be imported: ImportError: no slack" in text for text in told)
    assert any("'absent'" in text for text in told)
