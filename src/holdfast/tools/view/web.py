"""``holdfast view``: the ranks of a job on a page in a browser, live by server-sent events."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.base import clock
from holdfast.base.pure.printable import one_line
from holdfast.tools.view.merged_stacks import merged
from holdfast.tools.view.newest import Viewed
from holdfast.tools.view.run_choice import RunChoice

_LOOK_S = 1.0
_PAGE = Path(__file__).with_name("page.html")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_RANK_DIGITS_MAX = 9
_CHOSEN_MAX = 16
"""Runs that browsers have chosen, and that are kept for the next look."""
LOCAL = ("localhost", "127.0.0.1", "[::1]")


class _Hosts:
    """Middleware: refuses requests under other names, which a page of another site can lead here.

    Args:
        app: Behind it.
        hosts: Names of this server; None: those of this machine, and any address, as only names
            can be led elsewhere.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str] | None) -> None:
        self._app = app
        self._any_address = hosts is None
        own = socket.gethostname(), socket.getfqdn(), socket.gethostname().partition(".")[0]
        self._names = {name.lower() for name in (hosts or (*LOCAL, *own))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_own_name(Headers(scope=scope).get("host", "")):
            text = (
                f"{one_line(Headers(scope=scope).get('host', ''))!r} is not a name of this server\n"
            )
            await PlainTextResponse(text, 400, _HEADERS)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_own_name(self, header: str) -> bool:
        try:
            host = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        if self._any_address:
            with suppress(ValueError):
                ip_address(host)
                return True
        return (f"[{host}]" if ":" in host else host) in self._names


class _Looks:
    """One look a second, however many browsers there are; none while there is none."""

    def __init__(self, job: Viewed) -> None:
        self._job = job
        self._busy = asyncio.Lock()
        self._at = 0.0
        self._latest = ""

    async def latest(self) -> str:
        """As JSON, made once for all browsers; not older than a second."""
        async with self._busy:
            if clock.monotonic() - self._at >= _LOOK_S * 0.9:
                self._latest = await asyncio.to_thread(self._look)
                self._at = clock.monotonic()
            return self._latest

    def _look(self) -> str:
        return json.dumps(self._job.look().as_json(), separators=(",", ":"))

    async def stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """Asked of the ranks now."""
        async with self._busy:
            return await asyncio.to_thread(self._job.stacks, ranks)


class _ShownRuns:
    """The looks at the run that the words of the command name, and at those that are chosen."""

    def __init__(self, job: Viewed, choice: RunChoice | None) -> None:
        self._named = _Looks(job)
        self._choice = choice
        self._chosen: dict[Viewed, _Looks] = {}

    async def of(self, request: Request) -> _Looks | None:
        """None: there is no such run."""
        name = request.query_params.get("run", "")
        if not name:
            return self._named
        job = None if self._choice is None else await asyncio.to_thread(self._choice.job, name)
        if job is None:
            return None
        looks = self._chosen.pop(job, None) or _Looks(job)
        self._chosen[job] = looks  # the last one of the dict
        while len(self._chosen) > _CHOSEN_MAX:
            del self._chosen[next(iter(self._chosen))]
        return looks

    async def runs(self) -> list[dict[str, Any]]:
        """Those that can be chosen."""
        return [] if self._choice is None else await asyncio.to_thread(self._choice.listed)


def make_app(
    job: Viewed,
    token: str | None = None,
    hosts: Sequence[str] | None = LOCAL,
    choice: RunChoice | None = None,
) -> Starlette:
    """The application.

    Args:
        job: To show.
        token: Lets a request ask ranks for their stacks; None: no request may.
        hosts: Names by which browsers may call this server; None: those of this machine.
        choice: Other runs that can be shown; None: ``job`` alone.
    """
    shown = _ShownRuns(job, choice)

    async def page(_: Request) -> Response:
        return Response(_PAGE.read_bytes(), media_type="text/html", headers=_HEADERS)

    async def runs(_: Request) -> Response:
        return JSONResponse(await shown.runs(), headers=_HEADERS)

    async def state(request: Request) -> Response:
        if (looks := await shown.of(request)) is None:
            return _no_such_run()
        return Response(await looks.latest(), media_type="application/json", headers=_HEADERS)

    async def stream(looks: _Looks) -> AsyncIterator[str]:
        while True:
            yield f"data: {await looks.latest()}\n\n"
            await asyncio.sleep(_LOOK_S)

    async def events(request: Request) -> Response:
        if (looks := await shown.of(request)) is None:
            return _no_such_run()
        return StreamingResponse(stream(looks), media_type="text/event-stream", headers=_HEADERS)

    async def stacks(request: Request) -> Response:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token is None:
            return PlainTextResponse(
                "this view only shows; holdfast view --token TEXT lets it ask ranks for stacks\n",
                403,
            )
        if not hmac.compare_digest(given.encode(), token.encode()):
            return PlainTextResponse("wrong token\n", 401)
        if (looks := await shown.of(request)) is None:
            return _no_such_run()
        words = request.query_params.getlist("rank")
        ranks = [int(word) for word in words if word.isdecimal() and len(word) <= _RANK_DIGITS_MAX]
        found = await looks.stacks(ranks)
        texts = {str(rank): text for rank, text in found.items()}
        return JSONResponse({"merged": merged(found), "ranks": texts}, headers=_HEADERS)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/runs", runs),
            Route("/state", state),
            Route("/events", events),
            Route("/stacks", stacks, methods=["POST"]),
        ],
        middleware=[Middleware(_Hosts, hosts=hosts)],
    )


def _no_such_run() -> Response:
    return PlainTextResponse("no such run of this user on this host\n", 404, _HEADERS)
