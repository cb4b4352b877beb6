"""Texts of ranks are no markup in a real browser: in the live page and in the report."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from holdfast.observe.report import tell
from holdfast.observe.report_html import as_html
from holdfast.observe.run_files import read_run
from holdfast.view.live import JobView, LiveJob, NodeView, RankView
from holdfast.view.web import make_app
from tests.real.harness import BOUND_S, until
from tests.unit.made_events import HANG, THEN_WELL
from tests.unit.test_run_files import _write

EVIL = "\"'><img src=x onerror=evil()><script>evil()</script></title></svg>{{evil()}}"


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
        )

    def stacks(self, ranks: Any) -> dict[int, str]:
        return dict.fromkeys(ranks, EVIL)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_texts_of_ranks_are_no_markup(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    folder = _write(tmp_path / "a", HANG + THEN_WELL, name=EVIL, run_id=EVIL, node=EVIL)
    report = tmp_path / "report.html"
    report.write_text(as_html(tell(read_run([folder]))))
    app = make_app(Evil(), "secret")
    config = uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started, "the server")
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
        with playwright.sync_playwright() as library:
            browser = library.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page = browser.new_page()
            called: list[object] = []
            page.expose_function("evil", lambda: called.append(1))
            page.goto(report.as_uri())
            assert EVIL in page.inner_text("body")
            page.goto(url)
            page.wait_for_selector("#rows tr", timeout=1000 * BOUND_S)
            page.fill("#token", "secret")
            page.click("#all")
            page.wait_for_selector("#text:has-text('onerror')", timeout=1000 * BOUND_S)
            assert page.inner_text("body").count(EVIL) > 5
            assert page.locator("img").count() == 0
            assert called == []
            browser.close()
    finally:
        server.should_exit = True
        thread.join()
