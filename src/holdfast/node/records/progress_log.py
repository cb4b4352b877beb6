"""Write the pages of this node's ranks into the events file, and make the ledger.

Pages are read when a rank reports in, then after 10 s and whenever the cycle has become 1 % older
(900 times in a month), and once more when the cycle is over: a second after the next one's ranks
were started, so that no restart waits for it. The ledger is made from the same events as
``holdfast report``, by the same code, which is loaded at the first of these times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.events.pure.schema import PagesRead, RankArmed
from holdfast.node.console import LOGGER
from holdfast.node.part import CycleStarted, Happening, Part
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.node.pure.rank_life import MonitorSaid
from holdfast.page.page import PageError, map_page
from holdfast.page.pure.page_view import PageView
from holdfast.watch.pure.monitor_messages import WatchBegan

if TYPE_CHECKING:
    from holdfast.events.event_log import EventLog
    from holdfast.events.pure.schema import Event
    from holdfast.events.run.ledger import LiveLedger
    from holdfast.node.processes.pages import Pages
    from holdfast.node.processes.ranks import Ranks
    from holdfast.node.processes.worker_env import RankPlace

_EVERY_S = 10.0
_EVERY_SHARE = 0.01
_AFTER_START_S = 1.0


class _Shown:
    """The page of one rank, mapped: it can be read when the file and the rank are gone."""

    def __init__(self, rank: int, path: str) -> None:
        self.rank = rank
        self.page = map_page(path, writable=False)
        self.view = PageView(self.page.words, self.page.names)
        self.armed_at = self.view.armed_at


class ProgressLog(Part):
    """One per launcher. Main thread only.

    The ledger is made of all events that are written.
    """

    def __init__(self, events: EventLog, pages: Pages) -> None:
        self._not_folded: list[Event] = []
        events.on_event = self._not_folded.append
        self._event = events.write
        self._pages = pages
        self._ranks: Ranks | None = None
        self._cycles: dict[int, dict[int, _Shown]] = {}
        self._is_over: set[int] = set()
        self._since = 0.0
        self._look_at: float | None = None
        self._ledger: LiveLedger | None = None
        self._is_worth_it = False
        self._has_said_steps = False
        self._judged: tuple[int, int] | None = None
        """Cycle and number of the latest incident."""

    def on_event(self, happening: Happening) -> None:
        """Ranks were started, so those of other cycles are gone; or one has reported in."""
        ranks = self._ranks
        match happening:
            case CycleStarted():
                self._ranks = happening.ranks
                self._cycle_started(happening.ranks.cycle)
            case MonitorSaid(local_rank, WatchBegan(cycle, by_steps)) if (
                ranks and ranks.cycle == cycle
            ):
                place = ranks.ranks[local_rank].place
                self._armed(place)
                if by_steps and place.rank == 0 and not self._has_said_steps:
                    self._has_said_steps = True
                    LOGGER.info(
                        "rank 0 reports nothing by itself, so the steps of its optimizer count as "
                        "heartbeats; --ft-auto-heartbeat=false switches that off"
                    )

            case IncidentOver(verdict=verdict) if not (verdict.is_stall or verdict.is_pause):
                of_incident = happening.cycle, happening.incident
                if of_incident != self._judged:  # it may come again, with more evidence
                    self._judged = of_incident
                    self._look(verdict=True)

    def _armed(self, place: RankPlace) -> None:
        cycle, local_rank, rank = place.cycle, place.local_rank, place.rank
        try:
            shown = _Shown(rank, self._pages.path(cycle, local_rank))
        except PageError:
            return
        ranks = self._cycles.setdefault(cycle, {})
        if (before := ranks.pop(local_rank, None)) is not None:
            before.page.close()
        ranks[local_rank] = shown
        sections = tuple(shown.view.section_names())
        self._event(RankArmed(local_rank, rank, shown.armed_at, sections), cycle)
        self._is_worth_it = True
        if len(ranks) == 1:
            self._since = clock.monotonic()
            self._look_within(_EVERY_S)

    def _cycle_started(self, cycle: int) -> None:
        self._is_worth_it = self._is_worth_it or cycle > 0
        self._is_over |= {past for past in self._cycles if past != cycle}
        if cycle > 0:
            self._look_within(_AFTER_START_S)

    def _look_within(self, s: float) -> None:
        at = clock.monotonic() + s
        self._look_at = at if self._look_at is None else min(at, self._look_at)

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_time`."""
        return self._look_at

    def on_time(self) -> None:
        """Look, if it is time to."""
        now = clock.monotonic()
        if self._look_at is None or now < self._look_at:
            return
        self._look_at = None
        self._look()
        if self._cycles:
            self._look_within(max(_EVERY_S, _EVERY_SHARE * (now - self._since)))
        self._fold()

    def _look(self, *, verdict: bool = False) -> None:
        """``verdict``: all ranks have just been looked at; a stopped one is about to be woken."""
        for cycle, ranks in list(self._cycles.items()):
            read_at = clock.monotonic()
            shown_now = {
                str(local_rank): shown.view.progress(shown.rank, shown.armed_at)
                for local_rank, shown in ranks.items()
            }
            is_over = cycle in self._is_over
            self._event(PagesRead(shown_now, is_over, read_at, verdict), cycle)
            if is_over:
                for shown in self._cycles.pop(cycle).values():
                    shown.page.close()
        self._is_over.clear()

    def last_look(self) -> None:
        """The ranks are gone, and no others come."""
        self._is_over |= self._cycles.keys()
        self._look()

    def two_lines(self) -> list[str]:
        """The ledger in words, after the event of the job's end; nothing where nothing is known."""
        if not self._is_worth_it:
            return []
        from holdfast.events.run.ledger import two_lines  # noqa: PLC0415 - where it is used

        ledger = self._fold()
        spans = ledger.spans
        found = ledger.close()
        knows = spans.knows_steps_again
        return two_lines(found, is_watched=spans.is_watched, knows_steps_again=knows)

    def _fold(self) -> LiveLedger:
        from holdfast.events.run.ledger import LiveLedger  # noqa: PLC0415 - no start waits for it

        if self._ledger is None:
            self._ledger = LiveLedger()
        for event in self._not_folded:
            self._ledger.take(event)
        self._not_folded.clear()
        return self._ledger
