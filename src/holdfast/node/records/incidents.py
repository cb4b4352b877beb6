"""Write the events of an incident, and add the last stderr lines of ranks to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.events.pure import schema
from holdfast.evidence.pure import last_words
from holdfast.evidence.pure.evidence import RankDigest
from holdfast.evidence.pure.failure import EXITING_S
from holdfast.node.part import CycleStarted, Happening, Part
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.node.pure.rank_life import MonitorSaid
from holdfast.page.pure.clocks import PAUSE, STEP
from holdfast.watch.pure import monitor_messages

if TYPE_CHECKING:
    from holdfast.events.event_log import EventLog
    from holdfast.node.processes.ranks import RankProcess, Ranks
    from holdfast.node.records.incident_folder import IncidentFolders

_LINES = 5
_LINE_CHARS = 200
_EXCEPTION_CHARS = 200
_LOOK_S = 1.0
"""How old a look may be."""


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
        if isinstance(message, monitor_messages.Overdue) and message.clock in (PAUSE, STEP):
            self._without_steps[local_rank] = message
        elif isinstance(message, monitor_messages.Evidence) and local_rank in self._without_steps:
            pass  # taken of a rank that goes on, or it is signalled next
        elif isinstance(message, (monitor_messages.Recovered, monitor_messages.Closed)):
            self._without_steps.pop(local_rank, None)
        elif isinstance(
            message,
            (
                monitor_messages.Overdue,
                monitor_messages.Evidence,
                monitor_messages.Signalled,
                monitor_messages.Unkillable,
            ),
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
        shown = [text[:_LINE_CHARS] for line in now_shown if (text := last_words.plain(line))]
        found[rank.place.rank] = shown[-_LINES:]
    return found
