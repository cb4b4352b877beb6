"""The state of a node's job for Prometheus: counters from events, ages from the ranks' pages."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder

from holdfast.host import clock
from holdfast.host.page import PageError, map_page
from holdfast.observe.accounts import ACCOUNTS
from holdfast.observe.ledger import LiveLedger
from holdfast.observe.outages import STATES, Fault, Outages, Recovered
from holdfast.wire.page_view import PageView

_LATE = (0.001, 0.01, 0.1, 0.5, 1, 5)
_STALLED = (1, 10, 30, 60, 300, 600, 1800, 3600)
_RECOVERY = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 900)
_INF = float("inf")


class Metrics:
    """Takes events, and is asked by Prometheus.

    Args:
        outages: Has taken each event before.
        runtime_dir: Where the pages of ranks are.
        labels: Of all of them; ``node`` and ``run``: Prometheus has a ``job`` of its own.
        version: Of holdfast.
    """

    def __init__(
        self, outages: Outages, runtime_dir: str, labels: dict[str, str], version: str
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # series that nobody draws
        self.registry = CollectorRegistry()
        self.outages = outages
        self._runtime_dir = runtime_dir
        self._ledger, self._ledger_lock = LiveLedger(), threading.Lock()
        self._names, self._values = tuple(labels), tuple(labels.values())
        self._version = version

        def made(kind: Any, name: str, text: str, *names: str, **more: Any) -> Any:
            return kind(f"holdfast_{name}", text, (*labels, *names), registry=self.registry, **more)

        self._events = made(Counter, "events", "Events of this node's launcher.", "kind")
        self._faults = made(
            Counter, "faults", "Cycles that failed, by the first symptom on this node.", "kind"
        )
        self._restarts = made(Counter, "restarts", "Cycles after the first.")
        self._in_place = made(
            Counter, "restarts_in_place", "Calls of a restartable function after the first."
        )
        self._incidents = made(Counter, "incidents", "Incidents written, by verdict.", "kind")
        self._late = made(
            Histogram,
            "detection_lateness_seconds",
            "From the end of a timeout until the hang was noticed.",
            buckets=_LATE,
        )
        self._stalled = made(
            Histogram,
            "stalled_seconds",
            "Without progress of a hung rank, until the hang was noticed.",
            buckets=_STALLED,
        )
        self._recovery = made(
            Histogram,
            "recovery_seconds",
            "From noticing a fault until all ranks of this node were started again.",
            buckets=_RECOVERY,
        )
        for each in (self._restarts, self._in_place, self._late, self._stalled, self._recovery):
            each.labels(*self._values)  # shown as 0 from the start
        self.registry.register(self)

    def take(self, event: dict[str, Any], meanings: list[Fault | Recovered]) -> None:
        """Count an event, and what it means."""
        self._events.labels(*self._values, str(event.get("kind"))).inc()
        with self._ledger_lock:
            self._ledger.take(event)
        if event.get("kind") == "cycle_started" and event.get("cycle", 0) > 0:
            self._restarts.labels(*self._values).inc()
        elif event.get("kind") == "restarted_in_place":
            self._in_place.labels(*self._values).inc()
        for meaning in meanings:
            if isinstance(meaning, Recovered):
                self._recovery.labels(*self._values).observe(meaning.after_s)
                continue
            self._faults.labels(*self._values, meaning.kind).inc()
            if meaning.late_s is not None and meaning.stalled_s is not None:
                self._late.labels(*self._values).observe(max(0.0, meaning.late_s))
                self._stalled.labels(*self._values).observe(meaning.stalled_s)

    def incident(self, kind: str) -> None:
        """Count an incident."""
        self._incidents.labels(*self._values, kind).inc()

    # ------------------------------------------------------------ when Prometheus asks
    def collect(self) -> Iterator[Any]:
        """What is true now (prometheus_client calls this)."""
        outages = self.outages
        yield InfoMetricFamily("holdfast_build", "Version.", {"version": self._version})
        yield self._gauge("cycle", "The latest cycle; -1: none yet.", outages.cycle)
        yield self._gauge("spare", "1: the job runs without this node.", float(outages.is_spare))
        if outages.restarts_left is not None:
            left = "Of --max-restarts, when a cycle was last over."
            yield self._gauge("restarts_left", left, outages.restarts_left)
        ranks = list(outages.ranks.items())
        states = self._family("ranks", "Ranks of this node, by state.", "state")
        for state in STATES:
            n = sum(rank.state == state for _, rank in ranks)
            states.add_metric((*self._values, state), n)
        yield states
        running = [(k, rank.rank) for k, rank in ranks if rank.state == "running"]
        shown: dict[str, Any] = {}
        yield from self._of_pages(running, outages.cycle, shown)
        yield from self._of_ledger(clock.monotonic(), outages.cycle, shown)

    def _of_ledger(self, now: float, cycle: int, shown: Any) -> Iterator[GaugeMetricFamily]:
        progress = {"kind": "progress", "t": now, "cycle": cycle, "ranks": shown}
        with self._ledger_lock:
            ledger, is_watched = self._ledger.at(now, progress), self._ledger.spans.is_watched
        seconds = self._family("rank_seconds", "Of the ranks so far, by account.", "account")
        for account in ACCOUNTS:
            seconds.add_metric((*self._values, account), ledger.seconds.get(account, 0.0))
        yield seconds
        if is_watched:
            yield self._gauge("goodput_ratio", "Share of productive steps.", ledger.goodput)

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = self._family(name, text)
        family.add_metric(self._values, value)
        return family

    def _family(self, name: str, text: str, *names: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"holdfast_{name}", text, labels=(*self._names, *names))

    def _of_pages(
        self, ranks: list[tuple[int, int]], cycle: int, shown: dict[str, Any]
    ) -> Iterator[Any]:
        """Also puts into ``shown`` what each page shows, by local rank, as events have it."""
        watched = self._family("rank_monitored", "1: timeouts of the rank run.", "rank")
        beats = self._family("heartbeat_age_seconds", "Since the last heartbeat.", "rank")
        limits = self._family("heartbeat_timeout_seconds", "Of heartbeats.", "rank")
        ages = self._family("section_age_seconds", "Of each open section.", "rank", "section")
        section_limits = self._family(
            "section_timeout_seconds", "Of each section.", "rank", "section"
        )
        names = (*self._names, "rank", "section")
        spent = CounterMetricFamily("holdfast_section_seconds", "In each section.", labels=names)
        ends = CounterMetricFamily("holdfast_section_ends", "Of each section.", labels=names)
        iterations = self._family("iteration", "Training iteration, where reported.", "rank")
        for local_rank, rank in ranks:
            labels = (*self._values, str(rank))
            try:
                page = map_page(
                    f"{self._runtime_dir}/c{cycle}_r{local_rank}.page",
                    writable=False,
                )
            except PageError:
                continue
            view = PageView(page.words, page.names)
            now, snapshot, limit = clock.monotonic(), view.snapshot(), view.limits()
            watched.add_metric(labels, float(snapshot is not None and snapshot.left_at is None))
            if snapshot is not None:
                if snapshot.heartbeat_at is not None:
                    beats.add_metric(labels, max(0.0, now - snapshot.heartbeat_at))
                    limits.add_metric(labels, _seconds(limit.subsequent))
                for name, opened_at in snapshot.sections.items():
                    ages.add_metric((*labels, name), max(0.0, now - opened_at))
                for name, limit_s in limit.sections.items():
                    section_limits.add_metric((*labels, name), _seconds(limit_s))
            for name, ended in view.ended_sections().items():
                spent.add_metric((*labels, name), ended.total_s)
                ends.add_metric((*labels, name), ended.times)
            shown[str(local_rank)] = view.summary(view.armed_at)
            if view.iteration is not None:
                iterations.add_metric(labels, view.iteration)
            del view
            page.close()
        yield from (watched, beats, limits, ages, section_limits, spent, ends, iterations)


def _seconds(limit_s: float | None) -> float:
    return _INF if limit_s is None else limit_s


class Server(http.server.ThreadingHTTPServer):
    """Serves ``/metrics``, ``/healthz`` and ``/readyz``.

    Args:
        host: Address to listen on; empty: every one, of both families.
        port: 0: any that is free.
        metrics: Of ``/metrics``.

    Raises:
        OSError: It cannot listen there.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, metrics: Metrics) -> None:
        self.metrics = metrics
        self._is_dual = not host and socket.has_dualstack_ipv6()
        is_v6 = self._is_dual or ":" in host
        self.address_family = socket.AF_INET6 if is_v6 else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without the look-up of this host's name that ``HTTPServer`` makes."""
        if self._is_dual:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_port = int(self.socket.getsockname()[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """Who hangs up in the middle of an answer is no news."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 10.0

    def do_GET(self) -> None:
        outages = self.server.metrics.outages
        match urlsplit(self.path).path:
            case "/metrics":
                encode, kind = choose_encoder(self.headers.get("Accept", ""))
                self._answer(200, encode(self.server.metrics.registry), kind)
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
