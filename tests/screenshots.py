"""Draw the pictures of docs/live-views.md and docs/report.md: ``python -m tests.screenshots``.

Needs chromium and playwright. ``python -m tests.screenshots FOLDER`` draws the pages there, as wide
as a desk's and a pocket's screen, light and dark, to be looked at.

The live views show made-up jobs of 16 and of 1,024 ranks: one rank hung, one near its timeout, one
slow. The report is that of a real run, with six faults.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from holdfast.tools.report.report import story_of
from holdfast.tools.report.report_html import as_html
from holdfast.tools.run.run_files import read_run
from holdfast.tools.view.job_view import JobView, NodeView, RankView
from holdfast.tools.view.live import LiveJob
from holdfast.tools.view.top import Top
from holdfast.tools.view.web import make_app
from tests.real.faulty_run import FaultyRun, plan
from tests.real.harness import launcher

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FAULTS = ("killed", "hangs", "leaves", "stopped", "raises", "both")
_BEGAN = 1.79e9


class MadeUp(LiveJob):
    """A job that only looks like one."""

    def __init__(self, n_ranks: int) -> None:
        super().__init__([])
        self._n = n_ranks

    def look(self) -> JobView:
        chance, hung = random.Random(3), 77 % self._n
        view = JobView(
            "train_gpt.py", "gpt", _BEGAN + 112320, 112320.0, restarts=3, restarts_left=2
        )
        for number in range(self._n // 8):
            view.nodes.append(NodeView(f"node{number:03}", "running", 3, True, "/runs/gpt"))
        for rank in range(self._n):
            used = 0.4 * chance.random()
            place = rank, f"node{rank // 8:03}", rank % 8, 4000 + rank
            one = RankView(*place, "running", "step", 60 * used, 60, used=used)
            one.iteration, one.per_s = 1200, 4.1
            if rank == hung:
                one.state, one.section_age_s, one.used = "overdue", 60.6, 1.01
            if rank == hung + 1:
                one.section_age_s, one.used = 54.6, 0.91
            if rank == 5:
                one.slow = "data", 1.7
            view.ranks.append(one)
        reason = (
            f"rank {hung} waits for its data loader: worker pid 5123 reads shard-17.tar; "
            f"{self._n - 1} others wait in all_reduce"
        )
        where = {"path": "/runs/gpt/incidents/0002/incident.json", "node": "node009", "cycle": 3}
        known = {"wall": _BEGAN, "kind": "loader", "culprits": [hung], "reason": reason}
        view.incidents = [{**where, **known}]
        view.verdict = {"cycle": 3, "wall": view.wall - 1.0, "ranks": [hung], "text": reason}
        view.verdict["path"] = where["path"]
        view.history = [(_BEGAN + 1800.0 * k, 4.1 + 0.2 * chance.random()) for k in range(60)]
        view.history[41] = view.history[41][0], None
        view.events = [
            {"wall": _BEGAN + 900 * cycle, "node": "node000", "text": f"cycle {cycle} started"}
            for cycle in range(4)
        ]
        return view


async def _draw_top() -> None:
    app = Top(MadeUp(16))
    async with app.run_test(size=(124, 30)) as pilot:
        await pilot.press("s")
        await pilot.pause()
        app.save_screenshot(str(IMAGES / "top.svg"))


@contextmanager
def _served(n_ranks: int) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(MadeUp(n_ranks)), log_level="warning"))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join()


def _report(folder: Path) -> str:
    """The page of a real run; its address."""
    with launcher(folder) as ft:
        run = FaultyRun(ft, plan(6, FAULTS), nproc=4, well=100)
        run.has_done_its_steps()
        run.end()
        page = folder / "report.html"
        found = read_run(run.folders)
        node = found.nodes[0]
        node.start = node.start.but(name="train_gpt.py")  # its folder is of no interest
        text = as_html(story_of(found)).replace(str(folder), "/home/me")
        page.write_text(text)
    return page.as_uri()


def _pictures(browser: Any, report: str, folder: Path, *looks: tuple[int, str]) -> None:
    """Each page in each width and scheme of colours."""
    for n_ranks in (16, 1024):
        with _served(n_ranks) as url:
            for width, scheme in looks:
                _picture(browser, url, folder / f"view-{n_ranks}.png", width, scheme, "#rows tr")
    for width, scheme in looks:
        _picture(browser, report, folder / "report.png", width, scheme, "svg")


def _picture(browser: Any, url: str, path: Path, width: int, scheme: str, awaited: str) -> None:
    if path.parent != IMAGES:
        path = path.with_stem(f"{path.stem}-{width}-{scheme}")
    page = browser.new_page(viewport={"width": width, "height": 760}, color_scheme=scheme)
    page.goto(url)
    page.wait_for_selector(awaited)
    is_report = path.stem.startswith("report")
    clip = {"x": 0, "y": 0, "width": width, "height": 1180} if is_report else None
    page.screenshot(path=str(path), full_page=is_report, clip=clip)
    page.close()


def main(words: Sequence[str]) -> None:
    """Of docs, or of a folder that is named."""
    from playwright.sync_api import sync_playwright

    folder = Path(words[0]) if words else IMAGES
    folder.mkdir(exist_ok=True, parents=True)
    both = [(width, scheme) for width in (1280, 400) for scheme in ("light", "dark")]
    if folder == IMAGES:
        asyncio.run(_draw_top())
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as library:
        browser = library.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        report = _report(Path(scratch))
        _pictures(browser, report, folder, *(both if words else [(1280, "light")]))
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
