"""``holdfast view``: the ranks of a job on a page in a browser, live by server-sent events."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from holdfast.host import clock
from holdfast.view.live import LiveJob

_LOOK_S = 1.0
_PAGE = Path(__file__).with_name("page.html")
LOCAL = ("localhost", "127.0.0.1", "[::1]")
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
)


class _Looks:
    """One look a second, however many browsers there are; none while there is none."""

    def __init__(self, job: LiveJob) -> None:
        self._job = job
        self._busy = asyncio.Lock()
        self._at = 0.0
        self._latest: dict[str, Any] = {}

    async def latest(self) -> dict[str, Any]:
        """Not older than a second."""
        async with self._busy:
            if clock.monotonic() - self._at >= _LOOK_S * 0.9:
                self._latest = (await asyncio.to_thread(self._job.look)).as_json()
                self._at = clock.monotonic()
            return self._latest

    async def stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """Asked of the ranks now."""
        async with self._busy:
            return await asyncio.to_thread(self._job.stacks, ranks)


def make_app(job: LiveJob, token: str | None = None, hosts: Sequence[str] = LOCAL) -> Starlette:
    """The application.

    Args:
        job: What is shown.
        token: Who sends it may ask ranks for their stacks; None: nobody may.
        hosts: Names by which browsers may call this server. Others are refused, so that a page of
            another site cannot read this one through a name that it lets lead here.
    """
    looks = _Looks(job)

    async def page(_: Request) -> Response:
        return Response(
            _PAGE.read_bytes(),
            media_type="text/html",
            headers={"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"},
        )

    async def state(_: Request) -> Response:
        return JSONResponse(await looks.latest())

    async def stream() -> AsyncIterator[str]:
        while True:
            yield f"data: {json.dumps(await looks.latest(), separators=(',', ':'))}\n\n"
            await asyncio.sleep(_LOOK_S)

    async def events(_: Request) -> Response:
        return StreamingResponse(stream(), media_type="text/event-stream")

    async def stacks(request: Request) -> Response:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token is None:
            return PlainTextResponse(
                "this view only shows; holdfast view --token TEXT lets it ask ranks for stacks\n",
                403,
            )
        if not hmac.compare_digest(given.encode(), token.encode()):
            return PlainTextResponse("wrong token\n", 401)
        ranks = [int(word) for word in request.query_params.getlist("rank") if word.isdecimal()]
        found = await looks.stacks(ranks)
        return JSONResponse({str(rank): text for rank, text in found.items()})

    return Starlette(
        routes=[
            Route("/", page),
            Route("/state", state),
            Route("/events", events),
            Route("/stacks", stacks, methods=["POST"]),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
    )
