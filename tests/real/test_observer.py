"""The observer process beside a real launcher: scraped, called with events, gone at the end."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.real.harness import Job, Launcher, kill
from tests.waiting import until

SCRIPT = """
import os, time
os.chdir(os.environ["OUT"])
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
while not os.path.exists("fail" if is_first else "end"):
    time.sleep(0.01)
raise SystemExit(3 if is_first and os.environ["RANK"] == "1" else 0)
"""
OBSERVER = """
import json, os
def take(event):
    with open(os.path.join(os.environ["OUT"], "observed"), "a") as file:
        file.write(json.dumps({**event, "pid": os.getpid()}) + "\\n")
"""


def installed_observer(folder: Path) -> Path:
    """A folder for PYTHONPATH, with a package that registers an observer."""
    site = folder / "site"
    info = site / "tells-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "tells.py").write_text(OBSERVER)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tells\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[holdfast.observers]\ntells = tells:take\n")
    return site


def metrics(job: Job) -> str:
    port = until(lambda: job.said(r"metrics are at http://\S+:(\d+)/metrics"), "an address")[1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return answer.read().decode()


def sample(text: str, name: str) -> float | None:
    found = re.search(rf"^{name}(?![a-z_]).* (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else None


def test_a_restart_shows_in_the_metrics_and_every_event_reaches_an_observer(ft: Launcher) -> None:
    site = installed_observer(ft.folder)
    job = ft.start(
        *("--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", "logs"),
        *("--ft-metrics-port", "0", "--ft-observers", "tells"),
        ft.script(SCRIPT),
        env={"PYTHONPATH": str(site)},
    )
    until(lambda: sample(metrics(job), "holdfast_cycle") == 0, "cycle 0")
    assert sample(metrics(job), "holdfast_restarts_total") == 0
    (job.folder / "fail").touch()
    until(lambda: sample(metrics(job), "holdfast_recovery_seconds_count") == 1, "a restart")
    text = metrics(job)
    assert sample(text, "holdfast_restarts_total") == 1
    assert sample(text, 'holdfast_faults_total.*kind="exit"') == 1

    def observed() -> list[dict]:
        return [json.loads(line) for line in job.written("observed")]

    until(lambda: len(observed()) == len(job.events()), "all events of now")
    kill(observed()[0]["pid"])  # out of memory, say
    until(lambda: job.said(r"metrics and hooks .*killed by SIGKILL; it is started again"), "a line")

    def counted_again() -> bool:
        with suppress(OSError, HTTPException):  # perhaps of the one that was killed
            return sample(metrics(job), "holdfast_restarts_total") == 1
        return False

    until(counted_again, "the same address, for a probe ends a pod that does not answer")
    (job.folder / "end").touch()
    assert job.wait() == 0
    written = [event["kind"] for event in job.events()]
    assert sorted(event["kind"] for event in observed()) == sorted(written), "each event once"
    assert written[-1] == "job_succeeded"
    assert len({event["pid"] for event in observed()}) == 2
    assert not job.leftovers()


def test_a_port_that_is_taken_costs_the_metrics_and_not_the_job(ft: Launcher) -> None:
    has_ipv6 = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if has_ipv6 else socket.AF_INET
    with socket.create_server(("", 0), family=family, dualstack_ipv6=has_ipv6) as taken:
        port = str(taken.getsockname()[1])
        job = ft.start("--ft-metrics-port", port, ft.script(SCRIPT), env={"OUT": str(ft.folder)})
        until(lambda: job.said(rf"no metrics: cannot listen on .*port {port}"), "a warning")
        (ft.folder / "fail").touch()
        assert job.wait() == 0


WORKS_IN_A_SECTION = """
import os, time
import holdfast.fault_tolerance as ft
client = ft.client()
for _ in range(100_000):
    with client.section("step"):
        if os.path.exists(os.path.join(os.environ["OUT"], "fail")):
            break
        time.sleep(0.2)
    client.send_heartbeat()
client.shutdown_workload_monitoring()
"""


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs apt-get install prometheus")
def test_a_real_prometheus_scrapes_it_and_takes_the_example_rules(ft: Launcher) -> None:
    examples = Path(__file__).parents[2] / "examples" / "observability"
    if shutil.which("promtool"):
        subprocess.run(["promtool", "check", "rules", examples / "alerts.yml"], check=True)
    limits = "--ft-rank-section-timeouts=step:600"
    job = ft.start("--ft-metrics-port", "0", limits, ft.script(WORKS_IN_A_SECTION))
    port = until(lambda: job.said(r"metrics are at http://\S+:(\d+)/metrics"), "an address")[1]
    folder = ft.folder / "prometheus"
    folder.mkdir()
    (folder / "prometheus.yml").write_text(
        f"rule_files: [{examples / 'alerts.yml'}]\n"
        "scrape_configs:\n- job_name: holdfast\n  scrape_interval: 250ms\n"
        f"  static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
    )
    words = "--config.file=prometheus.yml", "--web.listen-address=127.0.0.1:0"
    own = "--storage.tsdb.path=data"  # Debian's default is one folder of the host
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(["prometheus", *words, own], cwd=folder, stderr=log)
    try:
        listens = re.compile(r'"Listening on" address=(127\.0\.0\.1:[1-9]\d*)')
        at = until(lambda: listens.search((folder / "log").read_text()), "where it listens")[1]

        def asked(query: str) -> list:
            try:
                url = f"http://{at}/api/v1/query?{urlencode({'query': query})}"
                with urllib.request.urlopen(url, timeout=5) as answer:
                    return json.load(answer)["data"]["result"]
            except urllib.error.HTTPError as error:
                if error.code != 503:  # it starts
                    raise AssertionError(f"{query}: {error.read()!r}") from error
                return []
            except OSError:
                return []

        running = 'holdfast_ranks{state="running"}'
        found = until(lambda: asked(running), "a scrape")
        assert found[0]["value"][1] == "1"
        assert found[0]["metric"]["job"] == "holdfast"
        board = json.loads((examples / "grafana-dashboard.json").read_text())
        drawn = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        drawn = [expr for expr in drawn if "iteration" not in expr]  # Megatron-LM's
        assert len(drawn) > 8
        for expr in drawn:
            query = expr.replace("$__rate_interval", "1m").replace("$run", ".*")
            until(lambda query=query: asked(query), f"values to draw: {query}")
    finally:
        server.kill()
        server.wait()
    (job.folder / "fail").touch()
    assert job.wait() == 0


HANGS = """
import os, time
import holdfast.fault_tolerance as ft
client = ft.client()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    with client.section("step"):
        time.sleep(600)
"""
HOOK = """
import json, os, sys, time
while os.environ.get("AFTER") and not os.path.exists(os.environ["AFTER"]):
    time.sleep(0.01)
incident = json.load(open(sys.argv[1]))
with open(os.path.join(os.environ["OUT"], "told"), "a") as file:
    file.write(json.dumps([sys.argv[1], os.environ["HOLDFAST_INCIDENT"], incident["kind"]]) + "\\n")
"""


def test_a_command_is_started_with_each_incident_also_when_the_job_ends_with_it(
    ft: Launcher,
) -> None:
    hook = ft.script(HOOK, "hook.py")
    job = ft.start(
        *("--max-restarts", "0", "--log-dir", "logs", "--ft-rank-section-timeouts", "step:0.3"),
        *("--ft-on-incident", f"{sys.executable} -I -S {hook}", ft.script(HANGS)),
    )
    assert job.wait() == 1
    ((path, named, kind),) = [json.loads(line) for line in job.written("told")]
    assert path == named
    assert Path(path).parent.parent == job.run_dir / "incidents"
    assert kind == json.loads(Path(path).read_text())["kind"]
    assert not job.leftovers()


RECOVERS = (
    HANGS
    + """
open(os.path.join(os.environ["OUT"], "recovered"), "w")
while not os.path.exists(os.path.join(os.environ["OUT"], "told")):
    time.sleep(0.01)
client.shutdown_workload_monitoring()
"""
)


def test_no_recovery_waits_for_a_command(ft: Launcher) -> None:
    """It ends when the next cycle works, which ends when it has ended; a restart spares it."""
    hook = ft.script(HOOK, "hook.py")
    job = ft.start(
        *("--max-restarts", "1", "--log-dir", "logs", "--ft-rank-section-timeouts", "step:0.3"),
        *("--ft-on-incident", f"{sys.executable} -I -S {hook}", ft.script(RECOVERS)),
        env={"AFTER": str(ft.folder / "job0" / "recovered")},
    )
    assert job.wait() == 0
    assert len(job.written("told")) == 1
