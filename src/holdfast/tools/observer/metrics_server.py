"""Metrics and health of a node's job over HTTP, also for slow and silent clients."""

from __future__ import annotations

import http.server
import socket
import threading
from contextlib import suppress
from typing import Any

from prometheus_client.exposition import choose_encoder

from holdfast.tools.observer.metrics import Metrics

CONNECTIONS = 128
"""At a time."""


class MetricsServer(http.server.ThreadingHTTPServer):
    """Serves ``/metrics``, ``/healthz`` and ``/readyz``.

    Args:
        host: Address to listen on; empty: every one, of both families.
        port: 0: any that is free.
        metrics: Of ``/metrics``.

    Raises:
        OSError: It cannot listen there.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, metrics: Metrics) -> None:
        self.metrics = metrics
        self._is_dual = not host and socket.has_dualstack_ipv6()
        is_v6 = self._is_dual or ":" in host
        self.address_family = socket.AF_INET6 if is_v6 else socket.AF_INET
        self._open: dict[socket.socket, None] = {}
        self._opening = threading.Lock()
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without the look-up of this host's name that ``HTTPServer`` makes."""
        if self._is_dual:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_port = int(self.socket.getsockname()[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread; the oldest of too many connections is closed: silent clients block none."""
        with self._opening:
            oldest = next(iter(self._open)) if len(self._open) >= CONNECTIONS else None
            self._open[request] = None
            if oldest is not None:
                del self._open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        """It was answered, or has gone."""
        with self._opening:
            self._open.pop(request, None)
        super().close_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Logs nothing: clients may close the connection in the middle of an answer."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: MetricsServer
    protocol_version = "HTTP/1.1"
    timeout = 10.0

    def do_GET(self) -> None:
        outages = self.server.metrics.outages
        match self.path.partition("?")[0]:
            case "/metrics":
                encode, kind = choose_encoder(self.headers.get("Accept", ""))
                try:
                    body = encode(self.server.metrics.registry)
                except Exception as error:  # noqa: BLE001 - the client gets the reason
                    self._answer(500, f"{type(error).__name__}: {error}\n".encode())
                else:
                    self._answer(200, body, kind)
            case "/healthz":
                self._answer(200, b"the launcher runs\n")
            case "/readyz" if outages.is_ready:
                self._answer(200, b"all ranks of this node run\n")
            case "/readyz":
                self._answer(503, b"not all ranks of this node run\n")
            case _:
                self._answer(404, b"there are /metrics, /healthz and /readyz\n")

    def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Nothing: a scrape every few seconds is no news."""
