"""The state of a node's job for Prometheus: counters from events, ages from the ranks' pages."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

from holdfast.base import clock
from holdfast.base.processes.job_name import host_of
from holdfast.events.pure.schema import CycleJoined, Event, InPlaceRestart, LeaderMoved, PagesRead
from holdfast.events.run.accounts import ACCOUNTS
from holdfast.events.run.ledger import LiveLedger
from holdfast.evidence.pure.evidence import KINDS as VERDICTS
from holdfast.evidence.pure.evidence import STALL
from holdfast.page.page import PageError, map_page
from holdfast.page.pure.page_view import PageView, RankProgress
from holdfast.tools.node_copies import NodeCopies
from holdfast.tools.node_snapshots import NodeSnapshots
from holdfast.tools.observer.metric_table import described
from holdfast.tools.outages import FAULTS, STATES, FirstFault, Outages, RecoveryTime

_LATE = (0.001, 0.01, 0.1, 0.5, 1, 5)
_STALLED = (1, 10, 30, 60, 300, 600, 1800, 3600)
_RECOVERY = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 900)
_INF = float("inf")


Totals = dict[tuple[int, str], tuple[float, int]]
"""By rank and section: seconds, and how often it has ended."""


class SectionTotals:
    """Time and number of each section of a node's ranks, over all cycles: never less than before.

    A page counts from the start of its rank and goes with its cycle; the last event of a cycle
    comes a second after the next one has begun. So the most that was seen of each is kept.
    """

    def __init__(self) -> None:
        self._past: Totals = {}
        self._cycles: dict[int, Totals] = {}
        self._over: set[int] = set()

    def see(self, cycle: int, rank: int, name: str, total_s: float, times: int) -> None:
        """Totals of one section of a page."""
        if cycle not in self._over:
            of_cycle = self._cycles.setdefault(cycle, {})
            seen_s, seen = of_cycle.get((rank, name), (0.0, 0))
            of_cycle[rank, name] = max(seen_s, total_s), max(seen, times)

    def take(self, look: PagesRead, cycle: int) -> None:
        """Take a look at all pages."""
        for shown in look.ranks.values():
            for name, ended in shown.sections.items():
                self.see(cycle, shown.rank, name, ended.total_s, ended.times)
        if look.final:
            self._over.add(cycle)
            self._past = _sum(self._past, self._cycles.pop(cycle, {}))

    def all(self) -> Iterator[tuple[int, str, float, int]]:
        """Rank, section, seconds, times."""
        found = self._past
        for of_cycle in self._cycles.values():
            found = _sum(found, of_cycle)
        return ((*key, *value) for key, value in found.items())


def _sum(one: Totals, other: Totals) -> Totals:
    both = dict(one)
    for key, (total_s, times) in other.items():
        before_s, before = both.get(key, (0.0, 0))
        both[key] = before_s + total_s, before + times
    return both


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
        disable_created_metrics()  # type: ignore[no-untyped-call] # unused series
        self.registry = CollectorRegistry()
        self.outages = outages
        self._runtime_dir = runtime_dir
        self._ledger, self._ledger_lock = LiveLedger(), threading.Lock()
        self._sections = SectionTotals()
        self._snapshots = NodeSnapshots()
        self._copies = NodeCopies()
        self._names, self._values = tuple(labels), tuple(labels.values())
        self._version = version

        def made(kind: Any, name: str, **more: Any) -> Any:
            of_it = described(name)
            names = (*labels, *of_it.labels)
            return kind(f"holdfast_{name}", of_it.text, names, registry=self.registry, **more)

        self._events = made(Counter, "events")
        self._faults = made(Counter, "faults")
        self._restarts = made(Counter, "restarts")
        self._in_place = made(Counter, "restarts_in_place")
        self._takeovers = made(Counter, "takeovers")
        self._term: int | None = None
        self._incidents = made(Counter, "incidents")
        self._late = made(Histogram, "detection_lateness_seconds", buckets=_LATE)
        self._stalled = made(Histogram, "stalled_seconds", buckets=_STALLED)
        self._recovery = made(Histogram, "recovery_seconds", buckets=_RECOVERY)
        # All are 0 from the start: from a series that begins with 1, increase() learns nothing.
        counters = self._restarts, self._in_place, self._takeovers
        for each in (*counters, self._late, self._stalled, self._recovery):
            each.labels(*self._values)
        for counter, kinds in ((self._faults, FAULTS), (self._incidents, (*VERDICTS, STALL))):
            for kind in kinds:
                counter.labels(*self._values, kind)
        self.registry.register(self)

    def take(self, event: Event, meanings: list[FirstFault | RecoveryTime]) -> None:
        """Count an event, and its faults and recoveries."""
        self._events.labels(*self._values, event.kind).inc()
        with self._ledger_lock:
            self._ledger.take(event)
            self._snapshots.take(event)
            self._copies.take(event)
            if isinstance(event.body, PagesRead):
                self._sections.take(event.body, event.cycle)
        if isinstance(event.body, CycleJoined) and event.cycle > 0:
            self._restarts.labels(*self._values).inc()
        elif isinstance(event.body, InPlaceRestart):
            self._in_place.labels(*self._values).inc()
        elif isinstance(event.body, LeaderMoved):
            self._takeovers.labels(*self._values).inc()
            self._term = event.body.term
        for meaning in meanings:
            if isinstance(meaning, RecoveryTime):
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
        """The gauges (prometheus_client calls this)."""
        outages = self.outages
        yield InfoMetricFamily(
            "holdfast_build", described("build").text, {"version": self._version}
        )
        yield self._gauge("cycle", outages.cycle)
        yield self._gauge("spare", float(outages.is_spare))
        if self._term is not None:
            yield self._gauge("leader_term", self._term)
        if outages.restarts_left is not None:
            yield self._gauge("restarts_left", outages.restarts_left)
        ranks = list(outages.ranks.items())
        states = self._family("ranks")
        for state in STATES:
            n = sum(rank.state == state for _, rank in ranks)
            states.add_metric((*self._values, state), n)
        yield states
        running = [(k, rank.rank) for k, rank in ranks if rank.state == "running"]
        shown: dict[str, RankProgress] = {}
        yield from self._of_pages(running, outages.cycle, shown)
        yield from self._of_ledger(clock.monotonic(), outages.cycle, shown)
        yield from self._of_snapshots(clock.monotonic(), [k for k, _ in ranks])
        yield from self._of_copies(clock.monotonic())

    def _of_snapshots(self, now: float, local_ranks: list[int]) -> Iterator[Any]:
        snapshots = self._snapshots
        with self._ledger_lock:
            newest = snapshots.now(self._runtime_dir, local_ranks)
            off, counts = (
                snapshots.off,
                (
                    ("snapshots_taken", snapshots.taken),
                    ("snapshot_seconds", snapshots.seconds),
                    ("snapshot_restores", snapshots.restores),
                    ("snapshot_steps_lost", snapshots.steps_lost),
                ),
            )
        yield from self._counters(counts)
        if not snapshots.is_used:
            return
        yield self._gauge("snapshots_off", float(bool(off)))
        if newest is not None and newest.step is not None:
            yield self._gauge("snapshot_step", newest.step)
        if newest is not None and newest.at is not None:
            age_s = max(0.0, now - newest.at)
            yield self._gauge("snapshot_age_seconds", age_s)

    def _of_copies(self, now: float) -> Iterator[Any]:
        copies = self._copies
        with self._ledger_lock:
            kept, copied, peer, is_off = (
                copies.kept,
                copies.copied,
                host_of(copies.peer),
                copies.is_off,
            )
            counts = (
                ("kept_steps", copies.n_kept),
                ("snapshot_copies", copies.n_copied),
                ("snapshot_copy_failures", copies.n_failed),
                ("snapshot_copy_bytes", copies.n_bytes),
                ("snapshot_copy_seconds", copies.seconds),
            )
        yield from self._counters(counts)
        if not copies.is_used:
            return
        yield self._gauge("snapshot_copies_off", float(is_off))
        if kept is not None:
            yield self._gauge("kept_step", kept.step)
            age_s = max(0.0, now - kept.at)
            yield self._gauge("kept_step_age_seconds", age_s)
        if copied is not None:
            ages = self._family("snapshot_copy_age_seconds")
            ages.add_metric((*self._values, peer), max(0.0, now - copied.at))
            yield ages

    def _counters(self, counts: Iterable[tuple[str, float]]) -> Iterator[CounterMetricFamily]:
        for name, value in counts:
            counter = self._counter(name)
            counter.add_metric(self._values, value)
            yield counter

    def _of_ledger(
        self, now: float, cycle: int, shown: dict[str, RankProgress]
    ) -> Iterator[GaugeMetricFamily]:
        progress = Event(now, cycle, PagesRead(shown))
        with self._ledger_lock:
            ledger, is_watched = self._ledger.at(now, progress), self._ledger.spans.is_watched
        seconds = self._family("rank_seconds")
        for account in ACCOUNTS:
            seconds.add_metric((*self._values, account), ledger.seconds.get(account, 0.0))
        yield seconds
        if is_watched:
            yield self._gauge("goodput_ratio", ledger.goodput)

    def _gauge(self, name: str, value: float) -> GaugeMetricFamily:
        family = self._family(name)
        family.add_metric(self._values, value)
        return family

    def _family(self, name: str) -> GaugeMetricFamily:
        of_it = described(name)
        return GaugeMetricFamily(
            f"holdfast_{name}", of_it.text, labels=(*self._names, *of_it.labels)
        )

    def _counter(self, name: str) -> CounterMetricFamily:
        of_it = described(name)
        return CounterMetricFamily(
            f"holdfast_{name}", of_it.text, labels=(*self._names, *of_it.labels)
        )

    def _of_pages(
        self, ranks: list[tuple[int, int]], cycle: int, shown: dict[str, RankProgress]
    ) -> Iterator[Any]:
        """Also puts the progress of each page into ``shown``, by local rank, as events have it."""
        watched, beats = self._family("rank_monitored"), self._family("heartbeat_age_seconds")
        limits, ages = (
            self._family("heartbeat_timeout_seconds"),
            self._family("section_age_seconds"),
        )
        section_limits = self._family("section_timeout_seconds")
        spent, ends = self._counter("section_seconds"), self._counter("section_ends")
        iterations = self._family("iteration")
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
                beat_at = snapshot.stepped_at if view.is_by_steps else snapshot.heartbeat_at
                if beat_at is not None:
                    beats.add_metric(labels, max(0.0, now - beat_at))
                    limits.add_metric(labels, _seconds(limit.subsequent))
                for name, opened_at in snapshot.sections.items():
                    ages.add_metric((*labels, name), max(0.0, now - opened_at))
                for name, limit_s in limit.sections.items():
                    section_limits.add_metric((*labels, name), _seconds(limit_s))
            with self._ledger_lock:
                for name, ended in view.ended_sections().items():
                    self._sections.see(cycle, rank, name, ended.total_s, ended.times)
            shown[str(local_rank)] = view.progress(rank, view.armed_at)
            if view.iteration is not None:
                iterations.add_metric(labels, view.iteration)
            del view
            page.close()
        with self._ledger_lock:
            totals = list(self._sections.all())
        for rank, name, total_s, times in totals:
            spent.add_metric((*self._values, str(rank), name), total_s)
            ends.add_metric((*self._values, str(rank), name), times)
        yield from (watched, beats, limits, ages, section_limits, spent, ends, iterations)


def _seconds(limit_s: float | None) -> float:
    return _INF if limit_s is None else limit_s
