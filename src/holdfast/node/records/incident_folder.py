"""Write the folder of an incident: ``incident.json``, ``incident.txt``; monitors write beside them.

Into memory first, as all evidence, from where it is delivered (``evidence/staging.py``). Written
again when more is known: signals that were sent, and the cost, once ranks of a later cycle work.
"""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.base.own_file import replace_text
from holdfast.base.pure.printable import printable
from holdfast.base.pure.rank_sets import text_of
from holdfast.evidence.pure.evidence import folder_name
from holdfast.node.console import LOGGER
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.watch.pure import monitor_messages
from holdfast.watch.pure.monitor import HUNG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.evidence.staging import Staging
    from holdfast.node.pure.incident_words import NodeIncident

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
            LOGGER.info("%s", incident_words.pause_line(over.cycle, over.verdict, over.digests))
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
            lines = incident_words.lines(self._last, shown)
            if over.is_elsewhere:
                level, lines = logging.INFO, [incident_words.line_elsewhere(self._last, shown)]
            for line in lines:
                LOGGER.log(level, "%s", line)
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
