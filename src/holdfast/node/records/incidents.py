"""Write down an incident: its events, and its folder with ``incident.json`` and ``incident.txt``.

Monitors write beside them; all go into memory first, as all evidence, and are delivered from there
(``evidence/staging.py``). The folder is written again when more is known: signals that were sent,
and the cost, once ranks of a later cycle work.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.base.own_file import replace_text
from holdfast.base.pure.printable import printable
from holdfast.base.pure.rank_sets import text_of
from holdfast.events.pure import schema
from holdfast.evidence.pure import last_words
from holdfast.evidence.pure.evidence import RankDigest, folder_name
from holdfast.evidence.pure.failure import EXITING_S
from holdfast.node.console import LOGGER, facts_of
from holdfast.node.part import CycleStarted, Happening, Part
from holdfast.node.pure.console_lines import fitted, room_on
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.node.pure.rank_life import MonitorSaid
from holdfast.page.pure.clocks import PAUSE, STEP
from holdfast.watch.pure import monitor_messages
from holdfast.watch.pure.monitor import HUNG

if TYPE_CHECKING:
    from holdfast.events.event_log import EventLog
    from holdfast.evidence.staging import Staging
    from holdfast.node.processes.ranks import RankProcess, Ranks
    from holdfast.node.pure.incident_words import NodeIncident

_LINES = 5
_LINE_CHARS = 200
_EXCEPTION_CHARS = 200
_LOOK_S = 1.0
"""How old a look may be."""
_MANY = 512
"""Ranks whose digests take the launcher's thread longer than a recovery should wait."""


class IncidentFolders:
    """Writes the folders of one launcher's incidents; knows the last one."""

    def __init__(self, node: str, run_dir: str, staging: Staging) -> None:
        self._node = node
        self._run_dir = run_dir
        self._staging = staging
        self._first: monitor_messages.Overdue | None = None
        self._last: NodeIncident | None = None
        self._waits: NodeIncident | None = None
        """To be written by the thread that delivers."""

    def over(self, over: IncidentOver, stderr: Mapping[int, Sequence[str]] | None = None) -> None:
        """An incident is judged: write its folder, and log it.

        ``stderr``: last lines of ranks of this node, by global rank.
        """
        from holdfast.node.pure import incident_words  # noqa: PLC0415 - no start should wait for it

        before, wall, first, self._first = self._last, clock.wall(), self._first, None
        if over.verdict.is_known or (over.verdict.is_pause and over.is_elsewhere):
            return
        if over.verdict.is_pause:
            line = incident_words.pause_line(over.cycle, over.verdict, over.digests)
            LOGGER.info("%s", fitted(line, room_on(self._node)), extra=facts_of(over.cycle))
            return
        is_serious = not over.verdict.is_stall
        was_serious = before is not None and not before.over.verdict.is_stall
        is_news = before is None or before.over.incident != over.incident
        if before is not None and not is_news:
            notifies = before.over.notifies or over.notifies
            before.over = IncidentOver(**{**vars(over), "notifies": notifies})
        else:
            cause = first if first is not None and first.cycle == over.cycle else None
            self._last = incident_words.NodeIncident(
                over,
                self._node,
                clock.local_time(wall),
                wall,
                cause,
                None if cause is None else clock.monotonic() - cause.at,
            )
        assert self._last is not None
        self._last.stderr = self._last.stderr or stderr or {}
        if is_news or is_serious > was_serious:
            shown = os.path.join(self._run_dir, self._path(self._last))  # noqa: PTH118
            level = logging.ERROR if is_serious else logging.WARNING
            lines = incident_words.lines(self._last, shown, room_on(self._node))
            if over.is_elsewhere:
                level, lines = logging.INFO, [incident_words.line_elsewhere(self._last, shown)]
            facts = facts_of(over.cycle, next(iter(over.verdict.culprits), None))
            for line in lines:
                LOGGER.log(level, "%s", line, extra=facts)
            LOGGER.debug("%s", incident_words.detail_line(self._last), extra=facts)
        self._write(self._last)
        self._staging.deliver(over.cycle)

    def note(self, message: monitor_messages.ToLauncher) -> None:
        """Add a monitor's message to the incident that it belongs to."""
        last = self._last
        match message:
            case monitor_messages.Overdue(cycle=cycle):
                if self._first is None or self._first.cycle != cycle:
                    self._first = message
            case monitor_messages.Signalled(cycle, rank, pid, signum, why) if last is not None:
                if cycle == last.over.cycle:
                    culprits = last.over.verdict.culprits
                    if why == HUNG and culprits and rank not in culprits:
                        ranks = "rank" if len(culprits) == 1 else "ranks"
                        why = f"it waits for {ranks} {text_of(culprits)}"
                    last.signals.append(monitor_messages.Signalled(cycle, rank, pid, signum, why))
                    self._write(last)
            case monitor_messages.WatchBegan(cycle) if last is not None:
                if cycle > last.over.cycle and last.cost_s is None and last.cause is not None:
                    since = last.cause.at - last.cause.limit_s
                    last.cost_s = clock.monotonic() - since
                    last.next_cycle = cycle
                    self._write(last)
                    self._staging.deliver(last.over.cycle, over=True)

    def _path(self, incident: NodeIncident) -> str:
        return os.path.join("incidents", folder_name(incident.over.incident, incident.over.cycle))  # noqa: PTH118

    def _write(self, incident: NodeIncident) -> None:
        if len(incident.over.digests) <= _MANY:
            self._write_to(self._staging.folder(incident.over.cycle), incident)
        elif self._waits is not incident:
            self._waits = incident
            self._staging.call(lambda: self._write_late(incident))

    def _write_late(self, incident: NodeIncident) -> None:
        """In the thread that delivers: to the run folder, as the staged one may be gone by now."""
        self._waits = None
        self._write_to(self._run_dir, incident)

    def _write_to(self, root: str, incident: NodeIncident) -> None:
        from holdfast.node.pure import incident_words  # noqa: PLC0415 - as above

        folder = os.path.join(root, self._path(incident))  # noqa: PTH118
        try:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
            body = json.dumps(incident_words.to_json(incident), indent=1) + "\n"
            replace_text(f"{folder}/incident.txt", printable(incident_words.report(incident)))
            replace_text(f"{folder}/incident.json", body)
        except OSError as error:
            LOGGER.error("cannot write the incident to %s: %s", folder, error.strerror)


class IncidentRecords(Part):
    """Of one launcher; ``on_over`` is called with each incident that is over, for the log."""

    def __init__(
        self,
        events: EventLog,
        folders: IncidentFolders,
        on_over: Callable[[IncidentOver], None],
    ) -> None:
        self._events = events
        self._folders = folders
        self._on_over = on_over
        self._ranks: Ranks | None = None
        self._without_steps: dict[int, monitor_messages.Overdue] = {}
        """By local rank: it is not known yet whether they hang."""
        self._last: tuple[int, int] | None = None
        """Cycle and number of the incident that was over last."""

    def on_event(self, happening: Happening) -> None:
        """Write it down, if it belongs to an incident."""
        match happening:
            case CycleStarted(ranks):
                self._ranks = ranks
                self._without_steps.clear()
            case MonitorSaid(local_rank, message):
                self._write(local_rank, message)
                self._folders.note(message)
            case IncidentOver():
                self._over(happening)

    def _write(self, local_rank: int, message: monitor_messages.ToLauncher) -> None:
        """A verdict of a monitor; that a rank makes no steps once it is one."""
        match message:
            case monitor_messages.Overdue(clock=clock) if clock in (PAUSE, STEP):
                self._without_steps[local_rank] = message
            case monitor_messages.Evidence() if local_rank in self._without_steps:
                pass  # taken of a rank that goes on, or it is signalled next
            case monitor_messages.Recovered() | monitor_messages.Closed():
                self._without_steps.pop(local_rank, None)
            case (
                monitor_messages.Overdue()
                | monitor_messages.Evidence()
                | monitor_messages.Signalled()
                | monitor_messages.Unkillable()
            ):
                if overdue := self._without_steps.pop(local_rank, None):
                    self._events.write(overdue, overdue.cycle)
                self._events.write(message, message.cycle)

    def with_exception(
        self, local_rank: int, message: monitor_messages.ToLauncher
    ) -> monitor_messages.ToLauncher:
        """The same; of a look, with the exception that has ended the rank's program.

        One since the rank has reported last, or a recent one: it has survived an older one.
        """
        if not isinstance(message, monitor_messages.EvidenceCollected) or self._ranks is None:
            return message
        words = last_words.read(*self._ranks.ranks[local_rank].last_lines())
        if not words.is_final or words.has_more or words.began_at is None:
            return message
        digest = message.digest
        silent_s = max(digest.beat_s or 0.0, digest.section_s) or EXITING_S
        if clock.monotonic() - words.began_at > silent_s + _LOOK_S:
            return message
        exception = words.message[:_EXCEPTION_CHARS]
        digest = RankDigest(**{**vars(digest), "exception": exception})
        return monitor_messages.EvidenceCollected(message.incident, message.cycle, digest)

    def _over(self, over: IncidentOver) -> None:
        verdict, ranks = over.verdict, self._ranks.ranks if self._ranks is not None else {}
        is_quiet = verdict.is_stall or verdict.is_pause
        # It may come again, with more evidence, or for ranks that were overdue a moment later.
        is_again = is_quiet and self._last == (over.cycle, over.incident)
        self._last = over.cycle, over.incident
        if is_again and verdict.is_pause:
            return
        if not is_quiet:
            self._on_over(over)
        self._folders.over(over, _last_lines(ranks))
        if verdict.is_known or is_again:
            return
        quiet = schema.StallFound if verdict.is_stall else schema.PauseFound
        judged = (quiet if is_quiet else schema.HangFound)(
            incident=over.incident,
            culprits=verdict.culprits,
            verdict=verdict.kind,
            confidence=verdict.confidence,
            reason=verdict.reason,
            overdue=tuple(ranks[local_rank].place.rank for local_rank in over.overdue),
            without=over.without,
            notifies=over.notifies,
            short=verdict.short,
        )
        self._events.write(judged, over.cycle)


def _last_lines(ranks: Mapping[int, RankProcess]) -> dict[int, list[str]]:
    """Of each rank whose stderr goes through the launcher, by global rank."""
    found: dict[int, list[str]] = {}
    for rank in ranks.values():
        if not rank.keeps_stderr:
            continue
        lines, _ = rank.last_lines()
        now_shown = (line.rstrip().rpartition("\r")[2] for line in lines)  # of a progress bar
        own = (last_words.plain(line) for line in now_shown if not last_words.is_own(line))
        shown = [text[:_LINE_CHARS] for text in own if text]
        found[rank.place.rank] = shown[-_LINES:]
    return found
