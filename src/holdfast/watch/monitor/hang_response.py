"""One verdict, from the evidence to the last signal.

    opened ── stacks come, bounded ──► concluded ── signals, one after the other ──► closed
       "overdue"                        "evidence", files       "signalled"

The machine (``watch.pure.monitor``) decides when each step is due; this carries it out and writes
it down, for the launcher, the events file, and as an incident (a JSON file and a text).

K-2 has two halves: no kill without evidence or a reason, and no hung rank that lives on because its
evidence cannot be had. So a failure here is logged and ends its own part alone. The monitor must
not die of it, since its successor would do the same.
"""

from __future__ import annotations

import math
import os

from holdfast.base import clock
from holdfast.base.processes import proc
from holdfast.base.pure import kill_ladder
from holdfast.base.pure.rank_sets import named
from holdfast.evidence.pure import incident
from holdfast.evidence.pure.evidence import folder_name
from holdfast.evidence.pure.rank_words import signal_name
from holdfast.page.pure import clocks
from holdfast.watch.monitor.looks import SHARE, make_room, recent_operations, write_incident
from holdfast.watch.pure import monitor
from holdfast.watch.pure import monitor_messages as messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from holdfast.evidence.collector import RankCollector
    from holdfast.page.pure.clocks import RunningClock
    from holdfast.page.pure.page_view import PageView
    from holdfast.watch.monitor.looks import Looks
    from holdfast.watch.monitor.monitor_reports import Reports
    from holdfast.watch.monitor.rank_sessions import RankSession


class HangResponse:
    """A verdict on its way. Making one announces it and begins to look at the rank.

    Args:
        overdue: The clock that ran out; an attribute, too.
        session: Of the rank.
        view: Its page.
        config: Of the monitor.
        cycle: Where to find the dump, where incidents go.
        watch: How the rank is ended: ``signal``, ``grace_s``.
        reports: To the launcher.
        looks: By which the rank is looked at; at its ``next_step_at`` call :meth:`step`.
        now: Instant of the verdict.
        until: Of the evidence.
    """

    def __init__(
        self,
        overdue: RunningClock,
        session: RankSession,
        view: PageView,
        config: messages.ConfigureMonitor,
        cycle: messages.Cycle,
        watch: monitor.Watch,
        reports: Reports,
        looks: Looks,
        now: float,
        until: float,
    ) -> None:
        self.overdue = overdue
        self._session = session
        self._view = view
        self._config = config
        self._cycle = cycle
        self._watch = watch
        self._reports = reports
        self._looks = looks
        self._found_at = now
        self._until = until
        self._failures: list[str] = []
        self._stacks = ""
        self._path: str | None = None
        self._is_concluded = False
        self._is_signalled = False
        self._record: dict[str, Any] = {
            "rank": session.rank,
            "local_rank": config.local_rank,
            "pid": session.process.pid,
            "node": config.node,
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

    def _attempt(self, purpose: str, do: Callable[[], Any]) -> Any:
        """Do a part of a verdict. If it fails, for whatever reason, the others are done."""
        try:
            return do()
        except Exception as error:  # noqa: BLE001 - see above: it protects the kill
            self._failures.append(f"cannot {purpose}: {type(error).__name__}: {error}")
            text = f"{incident.named(self._record)}: {self._failures[-1]}; the verdict continues"
            self._reports.log("error", text)
            return None

    def _read_page(self) -> None:
        record, view = self._record, self._view
        snapshot = view.snapshot()
        sections = snapshot.sections if snapshot is not None else {}
        record.update(
            learned=view.limits().learned.has(self.overdue.clock, self.overdue.name),
            time=clock.local_time(record["wall"]),
            open_sections={name: self._found_at - opened for name, opened in sections.items()},
            iteration=view.iteration,
        )

    def _ask(self) -> None:
        make_room(self._cycle.room)
        awaits_verdict = self._config.awaits_verdict
        if not awaits_verdict:
            self._looks.forget()  # its facts belong to an earlier verdict
        within_s = (self._until - self._found_at) * (SHARE if awaits_verdict else 1.0)
        self._looks.begin(
            self._session,
            self._view,
            self._cycle.dump,
            self._found_at,
            within_s,
            wakes_stopped=not (awaits_verdict or self.overdue.clock in clocks.OF_STEPS),
            is_gentle=self.overdue.clock == clocks.PAUSE,
        )

    def _announce(self) -> None:
        record = {name: self._record[name] for name in messages.Overdue.__match_args__}
        self._reports.send(messages.Overdue(**record))

    # ------------------------------------------------------------ evidence

    @property
    def _look(self) -> RankCollector | None:
        """The one that serves it; the incident may have begun another that shows more."""
        return self._looks.look

    @property
    def _ids(self) -> tuple[int, int, int]:
        return self._record["cycle"], self._record["rank"], self._record["pid"]

    @property
    def has_all_evidence(self) -> bool:
        """No more evidence comes, of this rank or of another one."""
        if self._look is None:
            return True
        awaits_verdict = self._config.awaits_verdict and self._looks.verdict is None
        return self._look.is_done and not awaits_verdict

    def step(self, now: float) -> None:
        """Look for evidence."""
        look = self._look
        if look is not None:
            is_done = self._attempt("look for its stacks", lambda: look.step(now))
            if is_done is None:
                self._end_look()

    def conclude(self, now: float) -> None:
        """Write the incident down."""
        self._end_look()
        self._record["took_s"] = now - self._found_at
        self._record["why_not"] = "; ".join(self._failures) or "no attempt was made"
        self._record["is"] = self._description()
        self._attempt("read its stacks", self._read_look)
        self._is_concluded = True
        self._write()
        self._attempt("report the evidence", self._report_evidence)

    def _description(self) -> str:
        judged = self._looks.verdict
        verdict = judged.verdict if judged is not None else None
        culprits = verdict.culprits if verdict is not None else ()
        if culprits and self._record["rank"] not in culprits:
            return f"waits for {named(culprits)}"
        return "makes no steps" if verdict is not None and verdict.is_stall else "is hung"

    def _read_look(self) -> None:
        look = self._look
        if look is None:
            return
        dump = look.stacks.dump
        self._stacks = look.stacks.text
        state = dump.state if dump is not None else proc.process_state(self._session.process.pid)
        has_stopped = look.stacks.is_left_stopped or (dump is not None and dump.was_stopped)
        self._record.update(
            process=state.to_json() if state is not None else None,
            was_stopped=has_stopped,
            stacks=self._shown(self._cycle.dump) if self._stacks else None,
            why_not=None if self._stacks else "; ".join(self._failures) or look.stacks.why_not,
            operations=recent_operations(look),
        )

    def _report_evidence(self) -> None:
        stacks, incident_path = self._record["stacks"], self._shown(self._path)
        took_s, why_not = self._record["took_s"], self._record["why_not"]
        message = messages.Evidence(*self._ids, stacks, incident_path, took_s, why_not)
        self._reports.send(message)

    def _end_look(self) -> None:
        look = self._look
        if look is not None and not look.is_done:
            self._attempt("end the look at it", look.close)

    # ------------------------------------------------------------ actions

    def note_signal(self, effect: monitor.SendSignal, *, was_sent: bool) -> None:
        """Report that a signal was sent, or that the process was gone."""
        self._attempt("report the signal", lambda: self._note_signal(effect, was_sent=was_sent))

    def _note_signal(self, effect: monitor.SendSignal, *, was_sent: bool) -> None:
        name = signal_name(effect.signal)
        if not was_sent:
            self._note(f"{name} not sent: the process is gone")
            return
        grace = f", {self._watch.grace_s:g} s after {signal_name(self._watch.signal)}"
        self._note(f"{name} sent{grace if effect.why == monitor.GRACE_OVER else ''}")
        if effect.signal == kill_ladder.SIGCONT:
            return
        self._is_signalled = True
        self._reports.send(messages.Signalled(*self._ids, effect.signal, effect.why))
        are_stacks_in_a_file = self._path is not None or not self._stacks
        is_reported = (
            effect.why == monitor.HUNG
            and self._looks.verdict is not None  # the launcher reports it
            and are_stacks_in_a_file
        )
        self._reports.log("debug" if is_reported else "warning", self._announcement(effect))

    def abandon(self, why: str, now: float) -> None:
        """Let the rank go; ``why`` completes "the rank ..."."""
        if why in (monitor.ARMED_ANEW, monitor.GOES_ON):
            self._reports.send(messages.Recovered(self._cycle.cycle))
        then = "no SIGKILL follows" if self._is_signalled else "it is not killed"
        level = "debug" if why == monitor.GOES_ON else "warning"  # the launcher says it once
        self._reports.log(level, f"{incident.named(self._record)} {why}; {then}")
        self.close(why, now)

    def report_stuck(self) -> None:
        """Say that SIGKILL did not end the process, and where that is."""
        state = proc.process_state(self._record["pid"])
        place = f"state {state.state} in {state.wchan or '?'}" if state else "state unknown"
        self._note(f"still there {kill_ladder.UNKILLABLE_S:g} s after SIGKILL, {place}")
        self._reports.send(messages.Unkillable(*self._ids, kill_ladder.UNKILLABLE_S, place))
        self._reports.log(
            "error",
            f"{incident.named(self._record)} does not die of SIGKILL: {place}; "
            "the node needs attention",
        )

    def close(self, why: str, now: float) -> None:
        """Nothing more will be done; ``why`` completes "the rank ..."."""
        self._note(f"over {now - self._found_at:.3f} s after the verdict: the rank {why}")
        self._end_look()
        self._looks.case_over(now)
        # Nothing more is written: the launcher may take the folder away.
        self._reports.send(messages.Closed(self._cycle.cycle))

    def _announcement(self, effect: monitor.SendSignal) -> str:
        record = self._record
        name = signal_name(effect.signal)
        if effect.why == monitor.GRACE_OVER:
            return (
                f"{incident.named(record)} is still there {self._watch.grace_s:g} s after "
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
        return (
            f"{incident.named(record)} {incident.described(record)}: "
            f"{incident.describe_clock(record)}."
            f"{was_stopped} {evidence}. Sent SIGCONT, {name}{follows}. "
            f"{incident.advice(record)}"
        )

    # ------------------------------------------------------------ writing down

    def _note(self, action: str) -> None:
        self._record["actions"].append(action)
        if self._is_concluded:
            self._write()

    def _shown(self, path: str | None) -> str | None:
        """Path of the same file in the run folder, to which the launcher delivers it."""
        staged, run_dir = self._cycle.staged, self._cycle.run_dir
        if path is None or staged is None or run_dir is None:
            return path
        return path.replace(staged, run_dir, 1)

    def _write(self) -> None:
        folder, record, asked = self._cycle.incidents, self._record, self._looks.asked
        if folder is None:
            return
        try:
            if self._path is None and asked is not None:
                of_job = f"{folder}/{folder_name(asked.incident, asked.cycle)}"
                os.makedirs(of_job, exist_ok=True)
                self._path = f"{of_job}/rank{record['rank']}.json"
            elif self._path is None:
                self._path = _fresh_path(folder, record)
            text = incident.report(record, self._stacks)
            write_incident(self._path.removesuffix(".json"), text, record, self._stacks)
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
