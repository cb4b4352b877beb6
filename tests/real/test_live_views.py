"""``holdfast top`` and ``holdfast view`` beside a real job."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.harness import Job, Launcher
from tests.unit.made_events import HANG, THEN_WELL
from tests.waiting import BOUND_S, until

SCRIPT = """
import os, time
import holdfast.fault_tolerance as ft
client = ft.client()
data, step = client.section("data"), client.section("step")
rank = int(os.environ["RANK"])
def reads_a_shard():
    time.sleep(0.02 if rank == 2 else 0.002)
while not os.path.exists(os.path.join(os.environ["OUT"], "end")):
    with data:
        reads_a_shard()
    with step:
        time.sleep(0.002)
client.shutdown_workload_monitoring()
"""
HOLDFAST = [sys.executable, "-m", "holdfast.cli"]


@pytest.fixture
def job(ft: Launcher) -> Iterator[Job]:
    timeouts = "data:600,step:600"
    job = ft.start(
        *("--nproc-per-node", "3", "--log-dir", "logs", "--ft-warm-standby", "false"),
        *("--ft-rank-section-timeouts", timeouts, ft.script(SCRIPT)),
    )
    until(lambda: len(job.events("worker_started")) == 3, "there is something to be seen")
    yield job
    (job.folder / "end").touch()
    assert job.wait() == 0


def seen(job: Job) -> dict:
    words = [*HOLDFAST, "top", "--json", str(job.run_dir)]
    return json.loads(subprocess.run(words, capture_output=True, check=True).stdout)


class View:
    """A ``holdfast view`` of a job."""

    def __init__(self, job: Job, *words: str) -> None:
        self.process = subprocess.Popen(
            [*HOLDFAST, "view", "--port", "0", *words, str(job.run_dir)], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline().decode().strip()
        self.url, _, self.token = self.link.partition("#token=")

    def ask(self, path: str, *, method: str = "GET", **headers: str) -> tuple[int, bytes]:
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=BOUND_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(BOUND_S)
        self.process.stdout.close()


@pytest.fixture
def view(job: Job) -> Iterator[View]:
    one = View(job, "--token", "secret")
    yield one
    one.close()


def test_both_views_show_ranks_the_slow_one_and_their_stacks(job: Job, view: View) -> None:
    def slow() -> dict[int, str]:
        ranks = seen(job)["ranks"]
        return {one["rank"]: one["slow"][0] for one in ranks if one["slow"]}

    until(lambda: slow() == {2: "data"}, "rank 2 is slow in data")
    shown = seen(job)
    assert shown["state"] == "running"
    assert all(one["section_limit_s"] in (600, None) for one in shown["ranks"])

    status, body = view.ask("state")
    assert (status, len(json.loads(body)["ranks"])) == (200, 3)
    with urllib.request.urlopen(view.url + "events", timeout=BOUND_S) as stream:
        assert json.loads(stream.readline().removeprefix(b"data: "))["state"] == "running"

    def stacks() -> str:
        status, body = view.ask("stacks?rank=2", method="POST", Authorization="Bearer secret")
        assert status == 200
        answer = json.loads(body)
        assert answer["merged"].startswith("1 rank: 1 in ")
        return answer["ranks"]["2"]

    until(lambda: "reads_a_shard" in stacks(), "stacks of rank 2 in its section")
    assert view.ask("stacks?rank=2", method="POST")[0] == 401
    assert view.ask("state", Host="evil.example")[0] == 400
    assert not job.events("rank_overdue")


def test_a_view_of_this_host_prints_a_link_with_a_token_and_one_of_others_only_shows(
    job: Job,
) -> None:
    """Any other user of the host, who has not seen the link, can only see the page."""
    for words, status in (([], 401), (["--host", "0.0.0.0"], 403)):
        view = View(job, *words)
        view.url = view.url.replace("0.0.0.0", "127.0.0.1")
        try:
            assert view.ask("stacks?rank=0", method="POST", Authorization="Bearer ")[0] == status
            given = {"Authorization": f"Bearer {view.token}"}
            accepted = view.ask("stacks?rank=0", method="POST", **given)[0] == 200
            assert accepted == (len(view.token) >= 20) == (status == 401)
        finally:
            view.close()


PLAIN = """
import os, time, light_torch, torch
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
while not os.path.exists(os.path.join(os.environ["OUT"], "end")):
    optimizer.step()
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if is_first and os.path.exists(os.path.join(os.environ["OUT"], "fails")):
        raise ValueError("loss is nan")
    time.sleep(0.01)
"""


@pytest.fixture
def plain(ft: Launcher) -> Iterator[Job]:
    """A script that calls nothing of holdfast."""
    job = ft.start(
        *("--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", "logs"),
        *("--ft-warm-standby", "false", "--ft-auto-heartbeat-floor", "500", ft.script(PLAIN)),
    )
    until(lambda: len(job.events("rank_armed")) == 2, "its steps are counted")
    yield job
    (job.folder / "end").touch()
    assert job.wait() == 0


def test_an_unmodified_script_shows_its_steps_and_the_timeout_that_is_in_force(plain: Job) -> None:
    """Not the one between heartbeats, which it does not send."""

    def one() -> dict:
        return seen(plain)["ranks"][1]

    until(lambda: (one()["steps"] or 0) > 5 and one()["step_limit_s"], "steps of rank 1")
    rank = one()
    assert rank["step_limit_s"] == 500.0
    assert rank["used"] < 0.2
    assert rank["heartbeat_limit_s"] is None


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_page_in_a_real_browser_follows_the_job(job: Job, view: View) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as library:
        browser = library.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(view.url)
        page.wait_for_selector("#rows tr", timeout=1000 * BOUND_S)
        assert page.locator("#grid button").count() == 3
        page.wait_for_selector("#speed path", state="attached", timeout=1000 * BOUND_S)
        page.wait_for_selector("#grid button.slow", timeout=1000 * BOUND_S)
        page.fill("#token", "secret")
        page.locator("#grid button").nth(2).click()
        assert page.locator("tr.chosen td").first.inner_text() == "2"
        page.click("#all")
        page.wait_for_selector("#merged:has-text('3 ranks: ')", timeout=1000 * BOUND_S)
        page.click("#each summary")
        page.wait_for_selector("#text:has-text('rank 2')", timeout=1000 * BOUND_S)
        page.keyboard.press("Escape")
        (job.folder / "end").touch()
        page.wait_for_selector("#state.succeeded", timeout=1000 * BOUND_S)
        assert faults == []
        browser.close()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_printed_link_gives_stacks_without_typing_and_a_failure_stays_at_the_top(
    plain: Job,
) -> None:
    """After a reload, too; the token leaves the address."""
    playwright = pytest.importorskip("playwright.sync_api")
    view = View(plain)
    bound_ms = 1000 * BOUND_S
    with playwright.sync_playwright() as library:
        browser = library.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(view.link)
        page.wait_for_selector("#rows tr", timeout=bound_ms)
        assert (page.url, page.is_visible("#token")) == (view.url, False)
        page.reload()
        page.wait_for_selector("#rows td:has-text('optimizer step')", timeout=bound_ms)
        page.click("#all")
        page.wait_for_selector("#merged:has-text('2 ranks: ')", timeout=bound_ms)
        page.keyboard.press("Escape")
        assert not page.is_visible("#verdict")
        (plain.folder / "fails").touch()
        page.wait_for_selector("#verdict:has-text('not a number')", timeout=bound_ms)
        page.wait_for_selector("#verdict:has-text('running in cycle 1')", timeout=bound_ms)
        (plain.folder / "end").touch()
        page.wait_for_selector("#state.succeeded", timeout=bound_ms)
        assert page.is_visible("#verdict:has-text('not a number')")
        said = page.evaluate("said('p', 'in `load` <b>').innerHTML")
        assert said == "in <code>load</code> &lt;b&gt;"
        assert faults == []
        browser.close()
    view.close()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_runs_of_a_host_are_found_and_can_be_chosen_in_the_browser(tmp_path: Path) -> None:
    """Without a name, and before there is one."""
    playwright = pytest.importorskip("playwright.sync_api")
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", _ONLY_HERE, str(tmp_path)], stdout=subprocess.PIPE, env=env
    )
    assert process.stdout is not None
    link = process.stdout.readline().decode().strip()
    bound_ms = 1000 * BOUND_S
    with playwright.sync_playwright() as library:
        browser = library.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(link)
        page.wait_for_selector("#lost:has-text('waiting for one')", timeout=bound_ms)
        for name, second in (("old.py", 1), ("new.py", 2)):
            folder = tmp_path / f"holdfast_run_2026010{second}T000000.000Z_{second}_abcdefg{second}"
            events = [{**HANG[0], "name": name, "wall": 1.7e9 + second}, *HANG[1:], *THEN_WELL]
            lines = "".join(json.dumps({"job": "elsewhere", **one}) + "\n" for one in events)
            folder.mkdir()
            (folder / "events-launcher.jsonl").write_text(lines)
        page.wait_for_selector("#name:has-text('new.py')", timeout=bound_ms)
        page.wait_for_selector("#runs option[value=abcdefg1]", state="attached", timeout=bound_ms)
        page.select_option("#runs", "abcdefg1")
        page.wait_for_selector("#name:has-text('old.py')", timeout=bound_ms)
        page.select_option("#runs", "")
        page.wait_for_selector("#name:has-text('new.py')", timeout=bound_ms)
        assert faults == []
        browser.close()
    process.terminate()
    process.wait(BOUND_S)
    process.stdout.close()


_ONLY_HERE = """
import sys
from holdfast.events.run import run_links
run_links._TMPFS = sys.argv[1]  # other jobs run on this host
from holdfast.cli import main
main(["view", "--port", "0"])
"""
