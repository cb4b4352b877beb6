"""``holdfast top`` and ``holdfast view`` beside a real job."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.real.harness import Job, Launcher
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
        self.url = self.process.stdout.readline().decode().strip()

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
        return json.loads(body)["2"]

    until(lambda: "reads_a_shard" in stacks(), "stacks of rank 2 in its section")
    assert view.ask("stacks?rank=2", method="POST")[0] == 401
    assert view.ask("state", Host="evil.example")[0] == 400
    assert not job.events("rank_overdue")


def test_a_view_without_a_token_only_shows(job: Job) -> None:
    view = View(job)
    try:
        status, body = view.ask("stacks?rank=0", method="POST", Authorization="Bearer ")
        assert (status, b"--token" in body) == (403, True)
    finally:
        view.close()


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
        page.wait_for_selector("#grid button.slow", timeout=1000 * BOUND_S)
        page.fill("#token", "secret")
        page.locator("#grid button").nth(2).click()
        assert page.locator("tr.chosen td").first.inner_text() == "2"
        page.click("#all")
        page.wait_for_selector("#text:has-text('rank 2')", timeout=1000 * BOUND_S)
        page.keyboard.press("Escape")
        (job.folder / "end").touch()
        page.wait_for_selector("#state.succeeded", timeout=1000 * BOUND_S)
        assert faults == []
        browser.close()
