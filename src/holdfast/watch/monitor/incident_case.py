"""One verdict, from the evidence to the last signal: what was found, and what was done about it.

    opened ── stacks come, bounded ──► concluded ── signals, one after the other ──► closed
       "overdue"                        "evidence", files       "signalled"

The machine (``watch.pure.monitor``) decides when each step is due; a case carries it out and
writes it down, for the launcher, for the events file, and as an incident: one JSON file and one
text.

K-2 has two halves: no kill without evidence or a reason, and no hung rank that lives on because its
evidence cannot be had. So whatever fails here ends the part that failed, is said, and nothing else:
the monitor must not die of it, since its successor would do the same.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time

from holdfast.base import clock
from holdfast.base.processes import proc
from holdfast.base.pure import kill_ladder
from holdfast.base.pure.printable import printable
from holdfast.base.pure.rank_sets import text_of
from holdfast.evidence.pure import incident
from holdfast.evidence.pure.incident_files import folder_name
from holdfast.page.pure import clocks
from holdfast.watch.monitor.looks import SHARE, make_room, replace
from holdfast.watch.pure import monitor
from holdfast.watch.pure import monitor_messages as messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from holdfast.page.pure.clocks import Overdue
    from holdfast.page.pure.page_view import PageView
    from holdfast.watch.monitor.looks import Looks
    from holdfast.watch.monitor.monitor_reports import Reports
    from holdfast.watch.monitor.rank_look import RankLook
    from holdfast.watch.monitor.visitors import Seat


def signal_name(signum: int) -> str:
    """``SIGKILL``, or ``signal 70``."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


class Case:
    """A verdict on its way. Making one announces it and begins to look at the rank.

    Args:
        overdue: The clock that ran out.
        seat: The rank's.
        view: Its page.
        identity: Of the rank: ``rank``, ``local_rank``, ``node``.
        cycle: The launcher's "cycle": where to find the dump, where incidents go (``staged``),
            where people find them afterwards (``run_dir``), what keeps room for them (``room``).
        watch: How the rank is ended: ``signal``, ``grace_s``.
        reports: Who is told.
        looks: By which the rank is looked at; at its ``next_step_at`` call :meth:`step`.
        now: Instant of the verdict.
        until: Of the evidence.
        awaits_verdict: The launcher has the other ranks looked at, and says when to go on.
    """

    def __init__(
        self,
        overdue: Overdue,
        seat: Seat,
        view: PageView,
        identity: Mapping[str, Any],
        cycle: messages.Cycle,
        watch: monitor.Watch,
        reports: Reports,
        looks: Looks,
        now: float,
        until: float,
        *,
        awaits_verdict: bool = False,
    ) -> None:
        self._overdue = overdue
        self._seat = seat
        self._process = process = seat.process
        self._view = view
        self._cycle = cycle
        self._folder = cycle.incidents
        self._delivered = cycle.staged, cycle.run_dir
        self._watch = watch
        self._reports = reports
        self._looks = looks
        self._found_at = now
        self._until = until
        self._awaits_verdict = awaits_verdict
        self._look: RankLook | None = None
        self._failures: list[str] = []
        self._stacks = ""
        self._path: str | None = None
        self._is_concluded = False
        self._is_signalled = False
        self._record: dict[str, Any] = {
            "rank": identity["rank"],
            "local_rank": identity["local_rank"],
            "pid": process.pid,
            "node": identity["node"],
            "cycle": cycle.cycle,
            "clock": overdue.clock,
            "name": overdue.name,
            "age_s": overdue.age_s(now),
            "limit_s": overdue.limit_s,
            "learned": False,
            "at": overdue.deadline,
            "detected_at": now,
            "wall": clock.wall(),
            "time": "",
            "open_sections": {},
            "iteration": None,
            "process": None,
            "was_stopped": False,
            "stacks": None,
            "why_not": None,
            "actions": [],
        }
        self._attempt("read what the rank shows of itself", self._read_page)
        self._attempt("ask the rank for its stacks", self._ask)
        self._attempt("announce the verdict", self._announce)

    def _attempt(self, what: str, do: Callable[[], Any]) -> Any:
        """Do a part of a verdict. If it fails, for whatever reason, the others are done."""
        try:
            return do()
        except Exception as error:  # noqa: BLE001 - see above: it protects the kill
            self._failures.append(f"cannot {what}: {type(error).__name__}: {error}")
            text = f"{incident.who(self._record)}: {self._failures[-1]}; the verdict goes on"
            self._reports.log("error", text)
            return None

    def _read_page(self) -> None:
        record, view = self._record, self._view
        snapshot = view.snapshot()
        sections = snapshot.sections if snapshot is not None else {}
        record.update(
            learned=(self._overdue.clock, self._overdue.name) in view.limits().learned,
            time=time.strftime(incident.TIME_FORMAT, time.localtime(record["wall"])),
            open_sections={name: self._found_at - opened for name, opened in sections.items()},
            iteration=view.iteration,
        )

    def _ask(self) -> None:
        make_room(self._cycle.room)
        if not self._awaits_verdict:
            self._looks.forget()  # what was seen belongs to an earlier verdict
        within_s = self._until - self._found_at
        self._look = self._looks.begin(
            self._seat,
            self._process,
            self._view,
            self._cycle.dump,
            self._found_at,
            within_s * (SHARE if self._awaits_verdict else 1.0),
            wakes_stopped=not (
                self._awaits_verdict or self._overdue.clock in (clocks.PAUSE, clocks.STEP)
            ),
        )

    def _announce(self) -> None:
        record = {name: self._record[name] for name in messages.Overdue.__match_args__}
        self._reports.tell(messages.Overdue(**record))

    # ------------------------------------------------------------ evidence

    @property
    def _whose(self) -> tuple[int, int, int]:
        return self._record["cycle"], self._record["rank"], self._record["pid"]

    @property
    def overdue(self) -> Overdue:
        """The clock that ran out."""
        return self._overdue

    @property
    def has_all_evidence(self) -> bool:
        """No more evidence comes, of this rank or of another one."""
        if self._look is None:
            return True
        return self._look.is_done and (self._looks.has_verdict or not self._awaits_verdict)

    def step(self, now: float) -> None:
        """Look for evidence."""
        look = self._look
        if look is not None:
            is_done = self._attempt("look for its stacks", lambda: look.step(now))
            if is_done is None:
                self._end_look()

    def conclude(self, now: float) -> None:
        """Write down what is known."""
        self._end_look()
        self._record["took_s"] = now - self._found_at
        self._record["why_not"] = "; ".join(self._failures) or "no attempt was made"
        self._record["is"] = self._is_what()
        self._attempt("read its stacks", self._read_look)
        self._is_concluded = True
        self._write()
        self._attempt("report the evidence", self._tell_of_evidence)

    def _is_what(self) -> str:
        judged = self._looks.verdict
        verdict = judged.verdict if judged is not None else None
        culprits = verdict.culprits if verdict is not None else ()
        if culprits and self._record["rank"] not in culprits:
            return f"waits for {'rank' if len(culprits) == 1 else 'ranks'} {text_of(culprits)}"
        return "makes no steps" if verdict is not None and verdict.is_stall else "is hung"

    def _read_look(self) -> None:
        look = self._look
        if look is None:
            return
        dump = look.dump
        self._stacks = look.text
        state = dump.state if dump is not None else proc.process_state(self._process.pid)
        has_stopped = look.is_left_stopped or (dump is not None and dump.was_stopped)
        self._record.update(
            process=state.to_json() if state is not None else None,
            was_stopped=has_stopped,
            stacks=self._shown(self._cycle.dump) if self._stacks else None,
            why_not=None if look.text else "; ".join(self._failures) or look.why_no_stacks,
            operations=list(look.operations),
        )

    def _tell_of_evidence(self) -> None:
        stacks, incident_path = self._record["stacks"], self._shown(self._path)
        took_s, why_not = self._record["took_s"], self._record["why_not"]
        told = messages.Evidence(*self._whose, stacks, incident_path, took_s, why_not)
        self._reports.tell(told)

    def _end_look(self) -> None:
        look = self._look
        if look is not None and not look.is_done:
            self._attempt("end the look at it", look.close)

    # ------------------------------------------------------------ what is done

    def note_signal(self, effect: monitor.Send, *, was_sent: bool) -> None:
        """Say that a signal was sent, or that there was nobody left to send it to."""
        self._attempt("report the signal", lambda: self._note_signal(effect, was_sent=was_sent))

    def _note_signal(self, effect: monitor.Send, *, was_sent: bool) -> None:
        name = signal_name(effect.signal)
        if not was_sent:
            self._note(f"{name} not sent: the process is gone")
            return
        grace = f", {self._watch.grace_s:g} s after {signal_name(self._watch.signal)}"
        self._note(f"{name} sent{grace if effect.why == monitor.GRACE_OVER else ''}")
        if effect.signal == kill_ladder.SIGCONT:
            return
        self._is_signalled = True
        self._reports.tell(messages.Signalled(*self._whose, effect.signal, effect.why))
        is_told = effect.why == monitor.HUNG and self._looks.has_verdict and self._has_place
        self._reports.log("debug" if is_told else "warning", self._announcement(effect))

    @property
    def _has_place(self) -> bool:
        """The stacks, if there are any, can be read in a file."""
        return self._path is not None or not self._stacks

    def abandon(self, why: str, now: float) -> None:
        """Let the rank go; ``why`` completes "the rank ..."."""
        if why in (monitor.ARMED_ANEW, monitor.GOES_ON):
            self._reports.tell(messages.Recovered(self._cycle.cycle))
        then = "no SIGKILL follows" if self._is_signalled else "it is not killed"
        level = "debug" if why == monitor.GOES_ON else "warning"  # the launcher says it once
        self._reports.log(level, f"{incident.who(self._record)} {why}; {then}")
        self.close(why, now)

    def report_stuck(self) -> None:
        """Say that SIGKILL did not end the process, and where that is."""
        state = proc.process_state(self._process.pid)
        place = f"state {state.state} in {state.wchan or '?'}" if state else "state unknown"
        self._note(f"still there {kill_ladder.UNKILLABLE_S:g} s after SIGKILL, {place}")
        self._reports.tell(messages.Stuck(*self._whose, kill_ladder.UNKILLABLE_S, place))
        self._reports.log(
            "error",
            f"{incident.who(self._record)} does not die of SIGKILL: {place}; "
            "the node needs attention",
        )

    def close(self, why: str, now: float) -> None:
        """Nothing more will be done; ``why`` completes "the rank ..."."""
        self._note(f"over {now - self._found_at:.3f} s after the verdict: the rank {why}")
        self._end_look()
        self._looks.case_over(now)
        # Nothing more is written: the launcher may take the folder away.
        self._reports.tell(messages.Closed(self._cycle.cycle))

    def _announcement(self, effect: monitor.Send) -> str:
        record = self._record
        name = signal_name(effect.signal)
        if effect.why == monitor.GRACE_OVER:
            return (
                f"{incident.who(record)} is still there {self._watch.grace_s:g} s after "
                f"{signal_name(self._watch.signal)}. Sent {name}"
            )
        follows = ""
        if effect.signal != kill_ladder.SIGKILL and self._watch.grace_s != math.inf:
            follows = f"; SIGKILL follows in {self._watch.grace_s:g} s"
        evidence = f"Its stacks are in {record['stacks']}"
        if record["why_not"] is not None:
            evidence = f"No stacks: {record['why_not']}"
        elif self._path is None:
            evidence = f"Its stacks:\n{self._stacks.rstrip()}\n"
        was_stopped = " It was stopped (SIGSTOP?)." if record["was_stopped"] else ""
        found = incident.what(self._overdue, record["detected_at"])
        return (
            f"{incident.who(record)} {incident.is_what(record)}: {found}."
            f"{was_stopped} {evidence}. Sent SIGCONT, {name}{follows}. "
            f"{incident.advice(self._overdue, learned=record['learned'])}"
        )

    # ------------------------------------------------------------ writing down

    def _note(self, action: str) -> None:
        self._record["actions"].append(action)
        if self._is_concluded:
            self._write()

    def _shown(self, path: str | None) -> str | None:
        """Where people will find what is written to ``path``: the launcher delivers it."""
        staged, run_dir = self._delivered
        if path is None or staged is None or run_dir is None:
            return path
        return path.replace(staged, run_dir, 1)

    def _choose_path(self, folder: str) -> str:
        asked, record = self._looks.asked, self._record
        if asked is None:
            return _fresh_path(folder, record)
        folder = f"{folder}/{folder_name(asked.incident, asked.cycle)}"
        os.makedirs(folder, exist_ok=True)
        return f"{folder}/rank{record['rank']}.json"

    def _write(self) -> None:
        folder, record = self._folder, self._record
        if folder is None:
            return
        try:
            if self._path is None:
                self._path = self._choose_path(folder)
            found_at = record["detected_at"]
            text = printable(incident.report(record, self._overdue, found_at, self._stacks))
            body = json.dumps({**record, "stacks_text": self._stacks}, indent=1)
            replace(self._path.removesuffix(".json") + ".txt", text)
            replace(self._path, body + "\n")
        except Exception as error:  # noqa: BLE001 - a full disk does not keep a hung rank alive
            why = error.strerror if isinstance(error, OSError) else repr(error)
            self._reports.log("error", f"cannot write the incident to {folder}: {why}")


def _fresh_path(folder: str, record: Mapping[str, Any]) -> str:
    os.makedirs(folder, exist_ok=True)
    stem = f"{folder}/cycle{record['cycle']}_rank{record['rank']}"
    path, number = f"{stem}.json", 1
    while os.path.exists(path):
        number += 1
        path = f"{stem}_{number}.json"
    return path
