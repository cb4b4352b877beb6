"""A monitor's part in the incidents of the job: evidence of its rank, hung or not.

    CollectEvidence ──► evidence of the rank ──► text, digest ──EvidenceCollected──► launcher
    launcher ──Proceed──► goes on

The evidence of a rank that is overdue itself is taken once, before the launcher asks: see
``hang_response.py``, which ends it.
"""

from __future__ import annotations

import json
import os

from holdfast.base import clock
from holdfast.base.own_file import replace_text
from holdfast.base.processes import proc
from holdfast.base.pure.printable import printable
from holdfast.evidence import proc_sample
from holdfast.evidence.pure.evidence import GONE, Operations, RankDigest, folder_name
from holdfast.page.pure.clocks import PAUSE
from holdfast.watch.monitor.rank_sessions import RankSession
from holdfast.watch.pure import monitor_messages as messages
from holdfast.watch.pure.rank_messages import Dump, Dumped, SayWhere

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from holdfast.evidence.collector import RankCollector
    from holdfast.page.pure.clocks import RunningClock
    from holdfast.page.pure.page_view import PageView
    from holdfast.watch.monitor.monitor_reports import Reports
    from holdfast.watch.pure.rank_messages import Alive

SHARE = 0.5
"""Of the time that evidence may take: the rest is for the way to the leader and back."""
WAKE_SHARE = 0.2
"""Of the time that evidence may take: so long the stacks of a rank that was stopped may take, after
the verdict."""


class StoppedTime:
    """For how long one rank has been stopped, as far as looks at /proc tell."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._switches = -1

    def look(self, pid: int, now: float) -> None:
        """Look at it. A process that was continued between two looks has switched contexts."""
        shown = proc_sample.look_at(pid)
        if shown is None or shown.state != "T":
            self._since = None
        elif self._since is None or shown.switches != self._switches:
            self._since, self._switches = now, shown.switches

    def seconds(self, now: float) -> float:
        """0.0: it was not stopped when it was looked at last."""
        return 0.0 if self._since is None else now - self._since


class Looks:
    """The look at the rank of one monitor, at most one at a time.

    Args:
        reports: To the launcher.

    Attributes:
        look: The latest one; None: there was none in this cycle.
        asked: The incident that the launcher has begun, if it has.
        verdict: Of that incident, once it is there.
        stopped: For how long the rank has been stopped.
        pause_s: Of a rank that is watched by steps: since its last sign of progress.
        is_gentle: The look sends no signal for evidence, and writes none: see ``RankCollector``. A
            rank that merely pauses is not disturbed for a line of the log.
        wake_s: How long the stacks of a rank that was stopped may take.
    """

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._process: proc.Process | None = None  # of a rank without a session
        self._has_reported = False
        self._fresh_until = float("inf")
        self.look: RankCollector | None = None
        self.asked: messages.CollectEvidence | None = None
        self.verdict: messages.Proceed | None = None
        self.stopped = StoppedTime()
        self.pause_s = 0.0
        self.is_gentle = False
        self.wake_s = 0.0

    @property
    def next_step_at(self) -> float | None:
        """When to call :meth:`step` at the latest."""
        return None if self.look is None else self.look.next_step_at

    def begin(
        self,
        session: RankSession,
        view: PageView | None,
        dump: str | None,
        now: float,
        within_s: float,
        *,
        wakes_stopped: bool,
        is_gentle: bool,
    ) -> RankCollector:
        """Look at a rank, or go on with the look at it that this incident has begun.

        Not with one that shows less: the new one serves the incident, unless that has its digest.
        """
        process, helper = session.process, session.helper
        is_of, shows_less = self._is_of(process, now), self.is_gentle and not is_gentle
        if self.look is None or not is_of or shows_less:
            from holdfast.evidence.collector import RankCollector  # noqa: PLC0415 - in memory by now
            from holdfast.evidence.dump_signal import signal_of_start  # noqa: PLC0415

            asked = self.asked if is_of and not self._has_reported else None
            self.forget()
            self.asked, self.is_gentle = asked, is_gentle
            signum = (view.dump_signal if view is not None else 0) or signal_of_start(dump)
            self.stopped.look(process.pid, now)
            self.look = RankCollector(
                process,
                signum,
                dump,
                now,
                now + within_s,
                wakes_stopped=wakes_stopped,
                is_gentle=is_gentle,
                ask_helper=None if helper is None else lambda: helper.send(SayWhere()),
                ask_stacks=None if helper is None else lambda: helper.send(Dump()),
            )
        return self.look

    def ask(
        self,
        message: messages.CollectEvidence,
        session: RankSession | None,
        view: PageView | None,
        dump: str | None,
        now: float,
    ) -> None:
        """The launcher asks for evidence."""
        is_another = self.asked is not None and message.incident != self.asked.incident
        if is_another or not self._is_of(session.process if session is not None else None, now):
            self.forget()
        if self.look is None or (self.is_gentle and not message.is_gentle):
            looked_at = session or RankSession.of_pid(message.rank, message.pid)
            if looked_at is None:
                gone = RankDigest(message.rank, pid=message.pid, end=GONE)
                self._reports.send(
                    messages.EvidenceCollected(message.incident, message.cycle, gone)
                )
                return
            self.begin(
                looked_at,
                view,
                dump,
                now,
                message.within_s,
                wakes_stopped=False,
                is_gentle=message.is_gentle,
            )
            self._process = looked_at.process if session is None else None
        self.asked, self._has_reported = message, False

    def _is_of(self, process: proc.Process | None, now: float) -> bool:
        """The look is at this process (None: at whichever), and of this incident."""
        return now < self._fresh_until and (
            self.look is None or process is None or self.look.is_at(process)
        )

    def helper_said(self, message: Alive | Operations | Dumped) -> None:
        """Pass on a message of the rank's helper thread."""
        if self.look is None:
            return
        if isinstance(message, Dumped):
            self.look.stacks.written()
        else:
            self.look.helper.answered(message if isinstance(message, Operations) else None)

    def step(self, now: float) -> None:
        """Go on with the look."""
        if self.look is not None:
            self.look.step(now)

    def report(
        self,
        identity: dict[str, Any],
        view: PageView | None,
        overdue: RunningClock | None,
        cycle: messages.Cycle,
        now: float,
    ) -> None:
        """Send the launcher the digest, once; write down the texts of a rank that lives on."""
        look, asked = self.look, self.asked
        if look is None or asked is None or self._has_reported or not look.is_done:
            return
        self._has_reported = True
        from holdfast.evidence.pure.rank_digest import digest  # noqa: PLC0415 - in memory by now

        found = digest(
            {**identity, "rank": asked.rank},
            look.seen(),
            view.snapshot() if view is not None else None,
            view.iteration if view is not None else None,
            overdue,
            now,
            pause_s=self.pause_s,
            stopped_s=self.stopped.seconds(now),
        )
        # A rank that is overdue has its text from ``HangResponse``, but not for a pause.
        if not self.is_gentle and (overdue is None or overdue.clock == PAUSE):
            self._write(look, asked, found, cycle)
        self._reports.send(messages.EvidenceCollected(asked.incident, asked.cycle, found))

    def go_on(self, message: messages.Proceed, now: float) -> None:
        """The verdict is there: a rank that was left stopped is woken for its stacks.

        Not where no rank is ended: a debugger, or a person, may have stopped it.
        """
        self.verdict, self._fresh_until = message, now + messages.JOINS_S
        verdict = message.verdict
        if self.look is not None and not (verdict.is_stall or verdict.is_pause):
            self.look.wake(now, now + self.wake_s)

    def case_over(self, now: float) -> None:
        """The verdict on the rank is carried out, or dropped: a later one takes new evidence."""
        self._fresh_until = min(self._fresh_until, now + messages.JOINS_S)

    def end(self, error: Exception | None = None) -> None:
        """The rank has died or left, or the look failed: evidence that has come by then is all."""
        errors = [] if error is None else [error]
        try:
            if self.look is not None:
                self.look.close()
        except Exception as another:  # noqa: BLE001 - as in hang_response.py
            errors.append(another)
        for each in errors:
            self._reports.log("error", f"the evidence of a rank is incomplete: {each!r:.200}")

    def _write(
        self,
        look: RankCollector,
        asked: messages.CollectEvidence,
        found: RankDigest,
        cycle: messages.Cycle,
    ) -> None:
        from holdfast.evidence.pure import incident  # noqa: PLC0415 - in memory by now
        from holdfast.evidence.pure.rank_words import in_words  # noqa: PLC0415 - the same

        if cycle.incidents is None:
            return
        folder = f"{cycle.incidents}/{folder_name(asked.incident, asked.cycle)}"
        record = {
            **in_words(found),
            "groups": [vars(group) for group in found.groups],
            "cycle": asked.cycle,
            "time": clock.local_time(clock.wall()),
            "operations": recent_operations(look),
        }
        try:
            make_room(cycle.room)
            os.makedirs(folder, exist_ok=True)
            text = incident.sight(record, look.stacks.text)
            write_incident(f"{folder}/rank{found.rank}", text, record, look.stacks.text)
        except Exception as error:  # noqa: BLE001 - a full disk does not keep the job waiting
            why = error.strerror if isinstance(error, OSError) else repr(error)
            self._reports.log("error", f"cannot write evidence to {folder}: {why}")

    def forget(self) -> None:
        """The rank is another one, or its incident is over."""
        self.end()
        if self._process is not None:
            self._process.close()
        self.look = self.asked = self.verdict = self._process = None
        self._has_reported, self._fresh_until = False, float("inf")


def recent_operations(look: RankCollector) -> list[str]:
    """The last operations of a rank, for people."""
    answer = look.helper.operations
    return list(answer.recent) if answer is not None else []


def make_room(path: str | None) -> None:
    """Free the space that the launcher has kept for this, in case there is no other."""
    if path is not None:
        try:  # noqa: SIM105 - contextlib is slow to import
            os.unlink(path)
        except OSError:
            pass


def write_incident(stem: str, text: str, record: Mapping[str, Any], stacks: str) -> None:
    """Write a rank's part of an incident: a text, then the JSON file."""
    replace_text(f"{stem}.txt", printable(text))
    replace_text(f"{stem}.json", json.dumps({**record, "stacks_text": stacks}, indent=1) + "\n")
