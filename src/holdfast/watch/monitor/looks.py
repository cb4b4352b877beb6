"""A monitor's part in the incidents of the job: its rank is looked at, hung or not.

    LookNow ──► look at the rank ──► text, digest ──Looked──► launcher ──GoOn──► goes on

A rank that is overdue itself is looked at once, before the launcher asks: see ``incident_case.py``,
which ends it. One look serves both.
"""

from __future__ import annotations

import json
import os
import time

from holdfast.base import clock
from holdfast.base.processes import proc
from holdfast.base.pure.printable import printable
from holdfast.evidence.pure.incident_files import folder_name
from holdfast.watch.monitor.stopped_time import StoppedTime
from holdfast.watch.pure import monitor_messages as messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    import select
    from typing import Any

    from holdfast.evidence.pure.evidence import Operations, RankDigest
    from holdfast.page.pure.clocks import Overdue
    from holdfast.page.pure.page_view import PageView
    from holdfast.watch.monitor.monitor_reports import Reports
    from holdfast.watch.monitor.rank_look import RankLook
    from holdfast.watch.monitor.visitors import Seat
    from holdfast.watch.pure.rank_messages import Alive, Dumped

SHARE = 0.5
"""Of the time that evidence may take: the rest is for the way to the leader and back."""
FRESH_S = 5.0
"""A rank that is overdue so soon after a verdict belongs to that incident."""
WAKE_SHARE = 0.2
"""Of the time that evidence may take: so long the stacks of a rank that was stopped may take, after
the verdict."""


class Looks:
    """The look at the rank of one monitor, at most one at a time.

    Args:
        reports: To the launcher.
        epoll: Woken when a dump grows.

    Attributes:
        look: The latest one; None: there was none in this cycle.
        asked: The incident that the launcher has begun, if it has.
        verdict: Of that incident, once it is there.
        stopped: For how long the rank has been stopped.
        pause_s: Of a rank with steps: since its last sign of progress.
        is_gentle: No signal is sent for evidence, and none of it is written: see ``RankLook``.
        wake_s: How long the stacks of a rank that was stopped may take.
    """

    def __init__(self, reports: Reports, epoll: select.epoll) -> None:
        self._reports = reports
        self._epoll = epoll
        self._process: proc.Process | None = None  # of a rank that has no seat
        self._has_told = False
        self._fresh_until = float("inf")
        self.look: RankLook | None = None
        self.asked: messages.LookNow | None = None
        self.verdict: messages.GoOn | None = None
        self.stopped = StoppedTime()
        self.pause_s = 0.0
        self.is_gentle = False
        self.wake_s = 0.0

    @property
    def next_step_at(self) -> float | None:
        """When to call :meth:`step` at the latest."""
        return None if self.look is None else self.look.next_step_at

    @property
    def has_verdict(self) -> bool:
        """The launcher says that all ranks have been looked at."""
        return self.verdict is not None

    def begin(
        self,
        seat: Seat | None,
        process: proc.Process,
        view: PageView | None,
        dump: str | None,
        now: float,
        within_s: float,
        *,
        wakes_stopped: bool,
    ) -> RankLook:
        """Look at a rank, or go on with the look at it that this incident has begun."""
        if self.look is None or not self._is_of(process, now):
            from holdfast.evidence.dump_signal import signal_of_start  # noqa: PLC0415
            from holdfast.watch.monitor.rank_look import (  # noqa: PLC0415 - as in incident_case.py
                RankLook,
            )

            self.forget()
            helper = seat.helper if seat is not None else None
            signum = (view.dump_signal if view is not None else 0) or signal_of_start(dump)
            self.stopped.look(process.pid, now)
            self.look = RankLook(
                process,
                signum,
                dump,
                helper,
                self._epoll,
                now,
                now + within_s,
                wakes_stopped=wakes_stopped,
                is_gentle=self.is_gentle,
            )
        return self.look

    def ask(
        self,
        message: messages.LookNow,
        seat: Seat | None,
        view: PageView | None,
        dump: str | None,
        now: float,
    ) -> None:
        """The launcher asks for evidence."""
        is_another = self.asked is not None and message.incident != self.asked.incident
        if is_another or not self._is_of(seat.process if seat is not None else None, now):
            self.forget()
        if self.look is None:
            try:
                process = seat.process if seat is not None else proc.Process(message.pid)
            except (ProcessLookupError, OverflowError):
                self._reports.tell(
                    messages.Looked(message.incident, message.cycle, _of_gone(message))
                )
                return
            self.begin(seat, process, view, dump, now, message.within_s, wakes_stopped=False)
            self._process = process if seat is None else None
        self.asked, self._has_told = message, False

    def _is_of(self, process: proc.Process | None, now: float) -> bool:
        """The look is at this process (None: at whichever), and of this incident."""
        return now < self._fresh_until and (
            self.look is None or process is None or self.look.is_at(process)
        )

    def helper_said(self, message: Alive | Operations | Dumped) -> None:
        """Pass on what the rank's helper thread says."""
        if self.look is not None:
            self.look.helper_said(message)

    def step(self, now: float) -> bool:
        """Whether the look is over."""
        return self.look is None or self.look.step(now)

    def report(
        self,
        identity: dict[str, Any],
        view: PageView | None,
        overdue: Overdue | None,
        cycle: messages.Cycle,
        now: float,
    ) -> None:
        """Tell the launcher, once, what was seen; write down the texts of a rank that lives on."""
        look, asked = self.look, self.asked
        if look is None or asked is None or self._has_told or not look.is_done:
            return
        self._has_told = True
        found = self._digest(look, {**identity, "rank": asked.rank}, view, overdue, now)
        if overdue is None and not self.is_gentle:
            self._write(look, found, cycle)
        self._reports.tell(messages.Looked(asked.incident, asked.cycle, found))

    def _digest(
        self,
        look: RankLook,
        identity: dict[str, Any],
        view: PageView | None,
        overdue: Overdue | None,
        now: float,
    ) -> RankDigest:
        from holdfast.evidence.pure.rank_digest import digest  # noqa: PLC0415 - in memory by now

        snapshot = view.snapshot() if view is not None else None
        iteration = view.iteration if view is not None else None
        seen = look.seen()
        return digest(
            identity,
            seen,
            snapshot,
            iteration,
            overdue,
            now,
            pause_s=self.pause_s,
            stopped_s=self.stopped.seconds(now),
        )

    def go_on(self, message: messages.GoOn, now: float) -> None:
        """The verdict is there: a rank that was left stopped is woken for its stacks.

        Not where no rank is ended: somebody has stopped it.
        """
        self.verdict, self._fresh_until = message, now + FRESH_S
        verdict = message.verdict
        if self.look is not None and not (verdict.is_stall or verdict.is_pause):
            self.look.wake(now, now + self.wake_s)

    def case_over(self, now: float) -> None:
        """The verdict on the rank is carried out, or dropped: a later one needs a look anew."""
        self._fresh_until = min(self._fresh_until, now + FRESH_S)

    def left(self) -> None:
        """The rank has died or left: what has been seen by then is all."""
        self._end_look()

    def failed(self, error: Exception) -> None:
        """The look at the rank cannot go on."""
        self._reports.log("error", f"the evidence of a rank is incomplete: {error!r:.200}")
        self._end_look()

    def _end_look(self) -> None:
        try:
            if self.look is not None:
                self.look.close()
        except Exception as error:  # noqa: BLE001 - as in incident_case.py
            self._reports.log("error", f"the evidence of a rank is incomplete: {error!r:.200}")

    def _write(self, look: RankLook, found: RankDigest, cycle: messages.Cycle) -> None:
        from holdfast.evidence.pure import incident  # noqa: PLC0415 - the same
        from holdfast.evidence.pure.evidence_words import (  # noqa: PLC0415 - in memory by now
            in_words,
        )

        assert self.asked is not None
        if cycle.incidents is None:
            return
        folder = f"{cycle.incidents}/{folder_name(self.asked.incident, self.asked.cycle)}"
        record = {
            **in_words(found),
            "groups": [vars(group) for group in found.groups],
            "cycle": self.asked.cycle,
            "time": time.strftime(incident.TIME_FORMAT, time.localtime(clock.wall())),
            "operations": list(look.operations),
        }
        try:
            make_room(cycle.room)
            os.makedirs(folder, exist_ok=True)
            text = printable(incident.sight(record, look.text))
            replace(f"{folder}/rank{found.rank}.txt", text)
            body = json.dumps({**record, "stacks_text": look.text}, indent=1)
            replace(f"{folder}/rank{found.rank}.json", body + "\n")
        except Exception as error:  # noqa: BLE001 - a full disk does not keep the job waiting
            why = error.strerror if isinstance(error, OSError) else repr(error)
            self._reports.log("error", f"cannot write evidence to {folder}: {why}")

    def forget(self) -> None:
        """The rank is another one, or its incident is over."""
        self._end_look()
        if self._process is not None:
            self._process.close()
        self.look = self.asked = self.verdict = self._process = None
        self._has_told, self._fresh_until = False, float("inf")


def _of_gone(message: messages.LookNow) -> RankDigest:
    from holdfast.evidence.pure.evidence import GONE, RankDigest  # noqa: PLC0415

    return RankDigest(message.rank, pid=message.pid, end=GONE)


def make_room(path: str | None) -> None:
    """Free the space that the launcher has kept for this, in case there is no other."""
    if path is not None:
        try:  # noqa: SIM105 - contextlib is slow to import
            os.unlink(path)
        except OSError:
            pass


def replace(path: str, text: str) -> None:
    """Write a file that is complete whenever somebody looks.

    Names of sections and folders may hold bytes that are not UTF-8 (as lone surrogates).
    """
    with open(f"{path}.new", "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    os.replace(f"{path}.new", path)
