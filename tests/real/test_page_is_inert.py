"""The live page and the report in a real browser: texts of ranks are no markup; keys suffice."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from holdfast.tools.report.report import story_of
from holdfast.tools.report.report_html import as_html
from holdfast.tools.report.time_axis import ticks
from holdfast.tools.run.run_files import read_run
from holdfast.tools.view.job_view import JobView, NodeView, RankView
from holdfast.tools.view.live import LiveJob
from holdfast.tools.view.web import make_app
from tests.unit.made_events import HANG, THEN_WELL
from tests.unit.tools.test_run_files import _write
from tests.waiting import BOUND_S, until

EVIL = "\"'><img src=x onerror=evil()><script>evil()</script></title></svg>{{evil()}}"

_HAS_FOCUS = "document.activeElement.dataset.rank === '0'"


class Evil(LiveJob):
    """A job whose every text is markup."""

    def __init__(self) -> None:
        super().__init__([])

    def look(self) -> JobView:
        incident: dict[str, Any] = {"path": EVIL, "cycle": 0, "wall": 1.0, "kind": EVIL}
        return JobView(
            EVIL,
            EVIL,
            nodes=[NodeView(EVIL, EVIL, 0, is_here=True, run_dir=EVIL)],
            ranks=[RankView(0, EVIL, 0, 1, EVIL, EVIL, 1.0, 2.0, slow=(EVIL, 2.0))],
            incidents=[{**incident, "culprits": [0], "reason": EVIL}],
            events=[{"wall": 1.0, "node": EVIL, "text": EVIL}],
            verdict={"cycle": 0, "wall": 1.0, "ranks": [0], "text": EVIL, "path": EVIL},
            history=[(1.0, 2.0), (3.0, None), (5.0, 1.0)],
        )

    def stacks(self, ranks: Any) -> dict[int, str]:
        return dict.fromkeys(ranks, EVIL)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if shutil.which("chromium") is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as library:
        browser = library.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page()
    page.set_default_timeout(1000 * BOUND_S)
    yield page
    page.close()


@pytest.fixture
def url() -> Iterator[str]:
    """Of a live view."""
    app = make_app(Evil(), "secret")
    config = uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started, "the server")
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()


def _report(folder: Path, **life: str) -> str:
    """The address of its page."""
    path = folder / "report.html"
    path.write_text(as_html(story_of(read_run([_write(folder / "a", HANG + THEN_WELL, **life)]))))
    return path.as_uri()


def test_texts_of_ranks_are_no_markup(url: str, page: Any, tmp_path: Path) -> None:
    called: list[object] = []
    page.expose_function("evil", lambda: called.append(1))
    page.goto(_report(tmp_path, name=EVIL, run_id=EVIL, node=EVIL))
    assert EVIL in page.inner_text("body")
    page.goto(url)
    page.wait_for_selector("#rows tr")
    page.fill("#token", "secret")
    page.click("#all")
    page.wait_for_selector("#text:has-text('onerror')")
    assert page.inner_text("body").count(EVIL) > 5
    assert page.locator("img").count() == 0
    assert called == []


def test_the_live_page_is_used_by_keys_while_it_is_drawn_again(url: str, page: Any) -> None:
    """Each second its rows are new; what has the focus keeps it, also behind the stacks."""
    page.goto(url)
    page.wait_for_selector("#rows tr")
    page.focus("#rows button")
    page.evaluate("old = document.activeElement")
    until(lambda: page.evaluate(f"!old.isConnected && {_HAS_FOCUS}"), "rows drawn again")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    page.evaluate("old = document.querySelector('#rows button')")
    until(lambda: page.evaluate("!old.isConnected"), "rows drawn again")
    page.keyboard.press("Escape")
    closed = "!document.querySelector('dialog[open]')"
    until(lambda: page.evaluate(f"{closed} && {_HAS_FOCUS}"), "the button again")
    page.focus("#head th:nth-child(2) button")
    page.keyboard.press("Enter")
    assert page.inner_text("th.by") == "node"


@pytest.mark.parametrize("width", [1280, 400])
def test_the_answer_is_seen_before_the_page_is_scrolled(
    page: Any, tmp_path: Path, width: int
) -> None:
    """On a desk and on a telephone, with nothing wider than the window."""
    page.set_viewport_size({"width": width, "height": 700})
    page.goto(_report(tmp_path))
    box = page.locator(".answer").bounding_box()
    assert box["y"] + box["height"] <= 700
    assert "rank 1 hung (section 'step'" in page.inner_text(".answer .what")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_axis_has_the_same_ticks_while_it_is_zoomed(page: Any, tmp_path: Path) -> None:
    page.goto(_report(tmp_path))
    for start, length in ((0.0, 0.02), (3.0, 2.6), (13.2, 105.6), (0.0, 600.0), (7e4, 2e6)):
        drawn = page.evaluate(f"ticks({start}, {length})")
        assert [label for _, label in drawn] == [label for _, label in ticks(start, length)]
        expected = [at for at, _ in ticks(start, length)]
        assert [at for at, _ in drawn] == pytest.approx(expected)


def test_threads_of_holdfast_are_folded(page: Any, tmp_path: Path) -> None:
    """A click shows them; the main thread and the user's frames are seen at once."""
    own = 'Thread 0x1:\n  File "/x/holdfast/inplace/session.py", line 4 in _watch\n'
    main = 'Thread 0x2:\n  File "/home/me/train.py", line 9 in load_batch\n'
    folder = tmp_path / "a" / "incidents" / "0001-cycle0"
    folder.mkdir(parents=True)
    groups = [{"ranks": [1], "text": "in `load_batch` train.py:9"}]
    facts = {"cycle": 0, "culprits": [1], "reason": "rank 1 sleeps", "groups": groups}
    (folder / "incident.json").write_text(json.dumps(facts))
    (folder / "rank1.json").write_text(json.dumps({"stacks_text": own + main}))
    page.goto(_report(tmp_path))
    assert page.locator("pre b").inner_text() == "> load_batch  /home/me/train.py:9"
    assert not page.locator("details.own pre").is_visible()
    page.click("details.own summary")
    assert "_watch" in page.inner_text("details.own pre")


def test_the_timeline_is_moved_by_keys_and_lets_the_page_scroll(page: Any, tmp_path: Path) -> None:
    def shown() -> list[float]:
        box = page.evaluate("document.querySelector('svg.time').getAttribute('viewBox')")
        return [float(number) for number in box.split()]

    page.goto(_report(tmp_path))
    everything = shown()
    page.focus("svg.time")
    for key, begins, length in (("+", 13.2, 105.6), ("ArrowRight", 23.76, 105.6), ("0", 0, 132)):
        page.keyboard.press(key)
        assert (shown()[0], shown()[2]) == (pytest.approx(begins), pytest.approx(length)), key
    page.hover("svg.time")
    page.evaluate("scrolled = scrollY")
    page.mouse.wheel(0, 50)
    until(lambda: page.evaluate("scrollY > scrolled"), "the page scrolled")
    assert shown() == everything
    page.focus("tr[data-from]")
    page.keyboard.press("Enter")
    assert shown() != everything
