"""Draw the pictures of docs/live-views.md: ``python -m tests.screenshots``.

Needs chromium and playwright.

They show made-up jobs of 16 and of 1,024 ranks: one rank hung, one near its timeout, one slow.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import threading
from pathlib import Path

import uvicorn

from holdfast.view.live import JobView, LiveJob, NodeView, RankView
from holdfast.view.top import Top
from holdfast.view.web import make_app

IMAGES = Path(__file__).parents[1] / "docs" / "images"
_BEGAN = 1.79e9


class MadeUp(LiveJob):
    """A job that only looks like one."""

    def __init__(self, n_ranks: int) -> None:
        super().__init__([])
        self._n = n_ranks

    def look(self) -> JobView:
        chance, hung = random.Random(3), 77 % self._n
        view = JobView("train_gpt.py", "gpt", _BEGAN + 112320, 112320.0, restarts=3)
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


def _draw_page(n_ranks: int) -> None:
    from playwright.sync_api import sync_playwright

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(MadeUp(n_ranks)), log_level="warning"))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    with sync_playwright() as library:
        browser = library.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 760})
        page.goto(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        page.wait_for_selector("#rows tr")
        page.screenshot(path=str(IMAGES / f"view-{n_ranks}.png"))
        browser.close()
    server.should_exit = True
    thread.join()


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    asyncio.run(_draw_top())
    _draw_page(16)
    _draw_page(1024)
