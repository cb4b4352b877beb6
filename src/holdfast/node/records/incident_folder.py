"""Write the folder of an incident: ``incident.json``, ``incident.txt``; monitors write beside them.

Into memory first, as all evidence, from where it is delivered (``evidence/staging.py``). Written
again when more is known: signals that were sent, and what it cost, once ranks of a later cycle
work.
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.base.pure.printable import printable
from holdfast.base.pure.rank_sets import text_of
from holdfast.evidence.pure.failure import signal_name
from holdfast.evidence.pure.incident_files import folder_name
from holdfast.node.console import LOGGER
from holdfast.watch.pure import monitor_messages as said
from holdfast.watch.pure.monitor import HUNG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.evidence.staging import Staging
    from holdfast.node.pure.incident_words import Incident
    from holdfast.node.pure.node_evidence import IncidentOver

_TIME_FORMAT = "%Y-%m-%d %H:%M:%S %z"
_MANY = 512
"""Ranks whose digests take the launcher's thread longer than a recovery should wait."""


class IncidentFolders:
    """Of one launcher; of its last incident.

    Args:
        node: Its name.
        run_dir: Where people find the folders.
        staging: By which they get there.
    """

    def __init__(self, node: str, run_dir: str, staging: Staging) -> None:
        self._node = node
        self._run_dir = run_dir
        self._staging = staging
        self._first: said.Overdue | None = None
        self._last: Incident | None = None
        self._waits: Incident | None = None
        """To be written by the thread that delivers."""

    def over(self, over: IncidentOver, stderr: Mapping[int, Sequence[str]] | None = None) -> None:
        """An incident is judged: write it down, and say what it was.

        ``stderr``: last lines of ranks of this node, by global rank.
        """
        from holdfast.node.pure import incident_words  # noqa: PLC0415 - no start should wait for it

        before, wall, first, self._first = self._last, clock.wall(), self._first, None
        cause = first if first is not None and first.cycle == over.cycle else None
        is_news = before is None or before.number != over.incident
        if over.verdict.is_known or (over.verdict.is_pause and over.is_elsewhere):
            return
        if over.verdict.is_pause:
            LOGGER.info("%s", incident_words.pause_line(over.cycle, over.verdict, over.digests))
            return
        is_serious = not over.verdict.is_stall
        was_serious = before is not None and not before.verdict.is_stall
        if before is not None and not is_news:
            before.verdict, before.digests, before.without = (
                over.verdict,
                over.digests,
                over.without,
            )
        else:
            self._last = incident_words.Incident(
                over.incident,
                over.cycle,
                self._node,
                time.strftime(_TIME_FORMAT, time.localtime(wall)),
                wall,
                over.verdict,
                over.digests,
                over.without,
                cause,
                None if cause is None else clock.monotonic() - cause.at,
            )
        assert self._last is not None
        self._last.stderr = self._last.stderr or stderr or {}
        self._last.notifies = self._last.notifies or over.notifies
        if is_news or is_serious > was_serious:
            shown = os.path.join(self._run_dir, self._path(self._last))  # noqa: PTH118
            level = logging.ERROR if is_serious else logging.WARNING
            told = incident_words.lines(self._last, shown)
            if over.is_elsewhere:
                level, told = logging.INFO, [incident_words.line_elsewhere(self._last, shown)]
            for line in told:
                LOGGER.log(level, "%s", line)
        self._write(self._last)
        self._staging.deliver(over.cycle)

    def note(self, message: said.ToLauncher) -> None:
        """Take in what a monitor says that belongs to the story of an incident."""
        last = self._last
        match message:
            case said.Overdue(cycle=cycle):
                if self._first is None or self._first.cycle != cycle:
                    self._first = message
            case said.Signalled(cycle=cycle, rank=rank, signal=signum, why=why) if last is not None:
                if cycle == last.cycle:
                    if why == HUNG and last.verdict.culprits and rank not in last.verdict.culprits:
                        why = f"it waits for {_ranks(last.verdict.culprits)}"
                    last.done.append(f"{signal_name(signum)} to rank {rank}: {why}")
                    self._write(last)
            case said.Armed(cycle) if last is not None:
                if cycle > last.cycle and last.cost_s is None and last.cause is not None:
                    since = last.cause.at - last.cause.limit_s
                    last.cost_s = clock.monotonic() - since
                    last.done.append(f"cycle {cycle} was started")
                    self._write(last)
                    self._staging.deliver(last.cycle, over=True)

    def _path(self, incident: Incident) -> str:
        return os.path.join("incidents", folder_name(incident.number, incident.cycle))  # noqa: PTH118

    def _write(self, incident: Incident) -> None:
        if len(incident.digests) <= _MANY:
            self._write_to(self._staging.folder(incident.cycle), incident)
        elif self._waits is not incident:
            self._waits = incident
            self._staging.call(lambda: self._write_late(incident))

    def _write_late(self, incident: Incident) -> None:
        """In the thread that delivers: to the run folder, as the staged one may be gone by now."""
        self._waits = None
        self._write_to(self._run_dir, incident)

    def _write_to(self, root: str, incident: Incident) -> None:
        from holdfast.node.pure import incident_words  # noqa: PLC0415 - as above

        folder = os.path.join(root, self._path(incident))  # noqa: PTH118
        try:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
            body = json.dumps(incident_words.to_json(incident), indent=1) + "\n"
            _replace(f"{folder}/incident.txt", printable(incident_words.report(incident)))
            _replace(f"{folder}/incident.json", body)
        except OSError as error:
            LOGGER.error("cannot write the incident to %s: %s", folder, error.strerror)


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {text_of(ranks)}"


def _replace(path: str, text: str) -> None:
    with open(f"{path}.new", "w", encoding="utf-8", errors="backslashreplace") as file:  # noqa: PTH123
        file.write(text)
    os.replace(f"{path}.new", path)  # noqa: PTH105
