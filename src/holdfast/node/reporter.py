"""Report the course of a job: to the log, to an outer restarter, and to the events file.

A failure is two lines: the first cause; then the signals that were sent, and the restart
(``node/pure/console_lines.py``). The cause waits for the decision on a restart, the second line for
the restart itself, :data:`_PATIENCE_S` at most: where stopping the ranks takes longer, both are
logged as far as they are known. A failure that ends the job is in the box at its end, and nowhere
else if the ranks exit within that time.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.base.pure.wording import count, restarts
from holdfast.events.pure import schema
from holdfast.evidence.pure.failure import RankEnd, explain, first_cause
from holdfast.evidence.pure.left_early import left_before_other_node, left_early
from holdfast.job.pure.member_messages import CauseFound, CycleStopping, How, RanksFailed
from holdfast.job.pure.membership import FailureReport, Round
from holdfast.node.console import LOGGER, STDOUT, facts_of, log_box
from holdfast.node.part import Part
from holdfast.node.processes.output import OutputPump
from holdfast.node.processes.ranks import write_error_file
from holdfast.node.pure import console_lines
from holdfast.node.pure import launcher as machine
from holdfast.node.records import report
from holdfast.node.restart_lines import RestartLines

if TYPE_CHECKING:
    from holdfast.evidence.pure.evidence import Verdict
    from holdfast.evidence.pure.left_early import LeftEarly
    from holdfast.inplace.pure.job_calls import RestartedInPlace
    from holdfast.node.processes.ranks import Ranks
    from holdfast.node.pure.node_evidence import IncidentOver
    from holdfast.options.plan import LaunchPlan

_PATIENCE_S = 1.0
"""For how long a line waits for the facts that make it one line."""


class JobReporter(Part):
    """Reports for one launcher.

    ``event`` writes an event, of the cycle of the ranks where none is named. ``error_file`` is the
    file for the first cause, from the launcher's parent; None: there is none.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        node: str,
        run_dir: Path,
        launcher: machine.Launcher,
        pump: OutputPump,
        event: Callable[[schema.Body, int | None], None],
        error_file: str | None,
    ) -> None:
        self._plan = plan
        self._node = node
        self._run_dir = run_dir
        self._launcher = launcher
        self._pump = pump
        self._event = event
        self._error_file = error_file
        self._cause_elsewhere = ""
        """Why the job is over, where no rank of this node has failed."""
        self._failed_here: dict[int, int] = {}
        """The local rank that failed first, by cycle; of cycles that were stopped for it."""
        self._said: set[tuple[object, ...]] = set()
        """Which failures of the last cycle have been reported."""
        self._incidents: dict[int, IncidentOver] = {}
        """The last one of each cycle, with the ranks that hold up the others."""
        self._logged_incidents: set[int] = set()
        """Their numbers: a line of this node's log has their verdict."""
        self._stopped_for_hang: set[int] = set()
        """Cycles that were stopped for that, here or elsewhere."""
        self._over_since: float | None = None
        """When that failure began, or the decision came that the cycle is over."""
        self._restarts_used = 0
        self._in_place = 0
        """Restarts that the ranks of this node did by themselves."""
        self._has_started = False
        self._room = console_lines.room_on(node)
        self._cause: tuple[int, list[str], dict[str, int]] | None = None
        """Level, lines and facts of the cause, which waits."""
        self._is_of_victim = False
        """It names a peer, so the first cause may be another failure."""
        self._outlook: tuple[int, str] | None = None
        """Level and text of the line after it, unless the next cycle begins soon."""
        self._wait_until: float | None = None
        self._no_restart = ""
        self._last_stop: CycleStopping | None = None
        self._last_cause = ""
        """Of the stop after which no cycle follows; the log has it."""
        self._past: Ranks | None = None
        """Of the latest cycle that was started here."""
        self.restart_lines = RestartLines(
            lambda line: pump.write(STDOUT, line.encode(errors="replace")),
            plan.ft.restart_check_interval,
            is_asked_for=plan.restarter_lines,
        )

    # ------------------------------------------------------------ lines that wait
    def next_deadline(self) -> float | None:
        """When a line has waited for long enough."""
        return self._wait_until

    def on_time(self) -> None:
        """Log the lines that wait, if it is time; of a victim none, as the first cause may come."""
        if self._wait_until is not None and clock.monotonic() >= self._wait_until:
            victim = self._cause if self._is_of_victim and not self._no_restart else None
            self._cause = self._cause if victim is None else None
            self._log_waiting()
            self._cause = victim

    def end(self) -> None:
        """The launcher ends."""
        self._log_waiting()

    def _wait(self) -> None:
        if self._wait_until is None:
            self._wait_until = clock.monotonic() + _PATIENCE_S

    def _log_cause(self) -> None:
        if self._cause is not None:
            level, lines, facts = self._cause
            for line in lines:
                LOGGER.log(level, "%s", line, extra=facts)
        self._cause = None

    def _log_waiting(self) -> None:
        self._log_cause()
        if self._outlook is not None:
            level, text = self._outlook
            LOGGER.log(level, "%s", console_lines.fitted(text, self._room, self._stopping_words()))
        self._forget_waiting()

    def _stopping_words(self) -> str:
        if not (alive := len(self._launcher.node.alive)):
            return ""
        limit_s = self._plan.workers_stop_timeout_s
        return f"; waiting for {count(alive, 'rank')} to exit, SIGKILL {limit_s:g} s after SIGTERM"

    def _forget_waiting(self) -> None:
        self._cause = self._outlook = self._wait_until = None

    def job_begins(self, job: str, *, has_terminal: bool) -> None:
        """Before the first process is started; ``has_terminal``: a rank reads the launcher's."""
        plan = self._plan
        for warning in plan.warnings:
            LOGGER.warning("%s", warning)
        for note in plan.notes:
            LOGGER.info("%s", note)
        if has_terminal:
            LOGGER.info(
                "local rank %d reads this terminal%s",
                plan.stdin_rank,
                "; where it waits for input for longer than its timeouts it counts as hung, "
                "unless NVRX_DISABLE_RANK_MONITORS=1 is set"
                if plan.monitors_enabled
                else "",
            )
        if plan.why_cold:
            LOGGER.info("no warm standby: %s", plan.why_cold)
        started = schema.LauncherStarted(
            pid=os.getpid(),
            job=job,
            run_id=plan.run_id,
            name=plan.name,
            nproc=plan.nproc_per_node,
            max_restarts=plan.max_restarts,
            schema_version=schema.SCHEMA_VERSION,
        )
        self._event(started, None)

    def standing_by(self, cycle: int) -> None:
        """A cycle has been formed without this node."""
        self._event(schema.StandingBy(cycle), None)
        LOGGER.info("cycle %d has started without this node, which waits as a spare", cycle)

    def cycle_started(self, ranks: Ranks) -> None:
        """All ranks of a cycle were started here."""
        plan, formed, pids = self._plan, ranks.formed, [rank.pid for rank in ranks.ranks.values()]
        past, self._past, used = self._past, ranks, formed.restarts_used
        warm = sum(rank.is_warm for rank in ranks.ranks.values())
        started = console_lines.started_words(pids, warm)
        ended_by = formed.ended_by if plan.meeting is not None else self._cause_of(past)
        if ended_by is not None and not self._note_left(past, ranks.cycle - 1, ended_by):
            self._cycle_ended(ranks.cycle - 1, ended_by)
        self._log_cause()
        if self._over_since is not None and used > self._restarts_used:  # and not for more nodes
            done = self._done(past) if past is not None else ""
            restart = console_lines.restart_words(used, plan.max_restarts, plan.restart_window_s)
            after_s = clock.monotonic() - self._over_since
            begins_from = console_lines.beginning_words(formed)
            started = f"cycle {ranks.cycle}{begins_from}{started}"
            line = console_lines.restart_line(done, restart, after_s, started, self._room)
            LOGGER.warning("%s", line, extra=facts_of(ranks.cycle))
        else:
            of = f"{count(plan.nproc_per_node, 'rank')} of {plan.name}"
            line = console_lines.fitted(f"cycle {ranks.cycle}: started {of}{started}", self._room)
            LOGGER.info("%s", line, extra=facts_of(ranks.cycle))
        self._forget_waiting()
        self._note_beginning(formed, ranks.cycle)
        self._said, self._over_since, self._restarts_used = set(), None, used
        LOGGER.log(
            logging.DEBUG if plan.meeting is None else logging.INFO,
            "node has joined round %d of the rendezvous %r as rank %d of %d",
            ranks.cycle,
            plan.run_id,
            ranks.place.group_rank,
            len(formed.places),
        )
        if not self._has_started:
            self._has_started = True
            stays = "; it is removed if the job succeeds without a restart"
            LOGGER.info("run folder: %s%s", self._run_dir, "" if self._is_asked_for else stays)

    def _note_beginning(self, formed: Round, cycle: int) -> None:
        """Say which snapshot could not be used, and write down which one is."""
        if (beginning := formed.beginning) is None:
            return
        restore, what = beginning.restore, "no snapshot: from a checkpoint, if the script has one"
        if restore is not None:
            step, of_cycle = restore.snapshot.step, max(0, restore.snapshot.cycle)
            what = f"step {step}" + (" on disk" if restore.file else "")
            is_same_world = restore.world_size == formed.world_size
            if not is_same_world:  # only the script knows whether it reads this one
                what += (
                    f", of {restore.world_size} ranks, if the script reads it with "
                    "Snapshots.reader(); otherwise from its checkpoint"
                )
            lost = restore.lost_steps if restore.lost_steps >= 0 else None
            why, file = beginning.why, restore.file
            if is_same_world:
                sources = tuple(sorted({it.node for it in restore.sources}))
                self._event(
                    schema.SnapshotRestored(step, of_cycle, lost, why, file, sources), cycle
                )
            else:
                self._event(schema.SnapshotOffered(step, restore.world_size, file), cycle)
            if file and not why and restore.times == 1:
                LOGGER.info("all ranks begin from %s (%s)", what, file, extra=facts_of(cycle))
        if beginning.why:
            line = f"all ranks begin from {what}; {beginning.why}"
            LOGGER.warning("%s", console_lines.fitted(line, self._room), extra=facts_of(cycle))

    def _done(self, past: Ranks) -> str:
        ends = past.ends()
        over = self._incident(past.cycle, ends)
        return console_lines.done_line(ends, over.verdict.proof if over is not None else "")

    def _cause_of(self, past: Ranks | None) -> FailureReport | None:
        """The failure that ended a cycle, on the only node; None: none did here."""
        if past is None or past.cycle not in self._failed_here:
            return None
        ends = past.ends()
        return report.failure_report(ends, self._incident(past.cycle, ends))

    def _note_left(self, past: Ranks | None, cycle: int, failure: FailureReport) -> bool:
        """Log the rank of this node that left before one of another node failed; False: none did.

        No error names it, and its own node has seen no failure.
        """
        is_peers = failure.names_a_peer and not failure.others and failure.rank >= 0
        if not is_peers or past is None or past.cycle != cycle or cycle in self._failed_here:
            return False
        left = left_before_other_node(past.ends(), failure.cause, self._node)
        if left is None:
            return False
        self._write_left(cycle, left)
        line = console_lines.fitted(f"cycle {cycle} ended: {left}", self._room)
        LOGGER.error("%s", line, extra=facts_of(cycle, left.ranks[0]))
        return True

    def _write_left(self, cycle: int, left: LeftEarly) -> None:
        found = schema.FirstCause(
            rank=left.ranks[0],
            began_at=left.at,
            names_a_peer=True,  # a failure that does not is the cause
            left=left.ranks,
            left_how=left.how,
            then=left.then,
            advice=left.advice,
        )
        self._event(found, cycle)

    def _cycle_ended(self, cycle: int, failure: FailureReport) -> None:
        """Of which cause, unless a line has it."""
        if failure.incident in self._logged_incidents or failure.facts in self._said:
            return
        is_first_here = self._cause is not None and self._is_of_victim
        self._cause = None
        LOGGER.log(
            logging.ERROR if is_first_here else logging.INFO,
            "%s",
            console_lines.fitted(f"cycle {cycle} ended: {failure.cause}", self._room),
            extra=facts_of(cycle, failure.rank if failure.rank >= 0 else None),
        )

    def ranks_failed(self, failed: RanksFailed, end: RankEnd) -> FailureReport:
        """Log the failure; returns the report for the job."""
        over = self._incidents.get(failed.cycle)
        failure, line = report.seen_failure(end, over, self._node)
        ends_cycle = failed.every or not self._launcher.node.survives_ranks
        has_line = end.hang is not None and failure.incident in self._logged_incidents
        if has_line and not ends_cycle:
            LOGGER.error("%s", console_lines.fitted(line, self._room))
        elif not has_line:
            self._note_incident(failure.incident)
            self._note_cause(failed, end, line)
            if ends_cycle:
                self._wait()
            else:
                self._log_waiting()
        self._write_rank_failed(end)
        if not (ends_cycle and end.names_a_peer):
            self._said.add(failure.facts)
        self._failed_here.setdefault(failed.cycle, failed.local_rank)
        if ends_cycle:
            self._note_end(end.began_at)
            self.restart_lines.cycle_failed()
        return failure

    def _note_cause(self, failed: RanksFailed, end: RankEnd, line: str) -> None:
        self._log_waiting()
        lines = console_lines.cause_lines(line, end.attribution.advice, self._room)
        level = logging.WARNING if end.names_a_peer else logging.ERROR
        self._cause = level, lines, facts_of(failed.cycle, end.rank)
        self._is_of_victim = end.names_a_peer

    def _write_rank_failed(self, end: RankEnd) -> None:
        found = end.attribution
        failed = schema.RankFailed(
            local_rank=end.local_rank,
            rank=end.rank,
            failure=found.kind or None,
            what=found.what or None,
            exception=found.exception or None,
            place=found.place or None,
            advice=found.advice or None,
            stderr=tuple(report.stderr_shown(end)),
        )
        self._event(failed, None)

    def incident_over(self, over: IncidentOver) -> None:
        """All evidence is there: say which ranks hold up the others, where one of them is ended."""
        self._incidents[over.cycle] = over
        if over.verdict.reason and not over.is_elsewhere:
            self._note_incident(over.incident)

    def _short_of(self, failure: FailureReport) -> str:
        """The few words of the incident that explains a failure; "": none is known."""
        of = {over.incident: over.verdict.short for over in self._incidents.values()}
        return of.get(failure.incident, "") if failure.incident else ""

    def _note_incident(self, number: int) -> None:
        if number:
            self._logged_incidents.add(number)

    def _incident(self, cycle: int, ends: Sequence[RankEnd]) -> IncidentOver | None:
        """With the ranks that held up the others, if that is what ended this cycle."""
        hung = any(end.hang is not None and end.is_condemned for end in ends)
        return self._incidents.get(cycle) if hung or cycle in self._stopped_for_hang else None

    def cause_found(self, ranks: Ranks) -> CauseFound | None:
        """The failure of this node's ranks, for the other nodes; None: none has failed."""
        ends = ranks.ends()
        failure = report.failure_report(ends, self._incident(ranks.cycle, ends), self._node)
        return CauseFound(ranks.cycle, failure) if failure is not None else None

    def stopping(self, stopping: CycleStopping) -> None:
        """Log why a cycle is over, and whether there is another."""
        is_polite = stopping.how is How.POLITE
        incident = self._incidents.get(stopping.cycle)
        if incident is not None and stopping.failure.incident == incident.incident:
            self._stopped_for_hang.add(stopping.cycle)
        said = schema.CycleOver(
            cause=stopping.cause,
            cause_local_rank=self._failed_here.get(stopping.cycle) if stopping.here else None,
            restart=not stopping.for_good,
            at_once=not is_polite,
            restarts_left=stopping.restarts_left,
            silent_s=round(stopping.silent_s, 3),
        )
        self._event(said, None)
        alive = len(self._launcher.node.alive) if is_polite else 0
        self._last_stop = stopping
        self._last_cause = stopping.cause if stopping.for_good else ""
        if not stopping.here:
            self._failed_here.pop(stopping.cycle, None)
            if not is_polite:
                return  # there is an error that says it
            cause, why = stopping.cause, stopping.no_restart
            self._no_restart = why
            self._said.add(stopping.failure.facts)
            self._cause_elsewhere = cause if stopping.for_good else ""
            text = f"cycle {stopping.cycle} is over for this node: "
            self._cause = None
            if why or stopping.failure.incident not in self._logged_incidents:
                tail = f"; {why}" if why else ""
                shown = self._short_of(stopping.failure)
                fits = not shown or len(text + cause + tail) <= self._room
                line = console_lines.fitted(text + (cause if fits else shown), self._room, tail)
                LOGGER.info("%s", line, extra=facts_of(stopping.cycle))
                self._note_incident(stopping.failure.incident)
        elif stopping.for_good:
            self._no_restart = stopping.no_restart
            text = f"Worker group FAILED, and is not started again: {stopping.no_restart}"
            self._outlook = logging.ERROR, f"the job ends: {stopping.no_restart}"
            self._wait()
        else:
            left, most = stopping.restarts_left, self._plan.max_restarts
            text = f"Worker group FAILED. {left}/{most} attempts left; will restart worker group"
            if not self._is_of_victim:
                self._log_cause()
            words = console_lines.restart_words(most - left, most, self._plan.restart_window_s)
            self._outlook = logging.INFO, f"{words} follows"
            self._wait()
        if alive:
            limit = f"Timeout = {self._plan.workers_stop_timeout_s:g} sec."
            text += f". Stopping workers... {limit} ({alive} still running)"
        LOGGER.debug("%s", text)  # torchrun's words, for programs that search for them
        self._note_end(clock.monotonic())

    def _note_end(self, at: float) -> None:
        self._over_since = at if self._over_since is None else min(at, self._over_since)

    def explain(self, cycle: int, ranks: Ranks, *, will_restart: bool) -> None:
        """Say why a cycle failed here, now that all its ends are known."""
        if will_restart and cycle not in self._failed_here:
            return  # the cause is elsewhere
        plan = self._plan
        ends = ranks.ends()
        incident = self._incident(cycle, ends)
        hang = incident.verdict if incident is not None else None
        self._write_first_cause(cycle, ends, hang)
        if will_restart:
            return  # see cycle_started
        self._forget_waiting()
        used, outlook = ranks.formed.restarts_used, self._no_restart or "the job is over"
        if plan.meeting is None:
            because = (
                f"; {self._no_restart}" if self._no_restart and used < plan.max_restarts else ""
            )
            outlook = f"{used} of {plan.max_restarts} restarts used{because}"
        summary = report.failure_summary(plan.name, self._node, cycle, ends, outlook, hang)
        cause = first_cause(ends, hang.culprits if hang is not None else ())
        log_box(summary.text, summary.boxed, facts_of(cycle, cause.rank if cause else None))
        if cause and self._error_file:
            own = cause.error if hang is None else None
            text = own or report.cause_line(ends, hang)
            write_error_file(Path(self._error_file), text, cause.exit_code, cause)
            self._error_file = None

    def _write_first_cause(self, cycle: int, ends: Sequence[RankEnd], hang: Verdict | None) -> None:
        cause = None if hang is not None else first_cause(ends)
        if cause is not None and cause.hang is None:
            left = left_early(ends, cause)
            found = schema.FirstCause(
                local_rank=cause.local_rank,
                rank=cause.rank,
                why=explain(cause),
                names_a_peer=cause.names_a_peer,
                began_at=cause.began_at,
                hung=cause.hung_in_place is not None,
                was_exiting=cause.exception_when_asked is not None,
                left=left.ranks if left is not None else (),
                left_how=left.how if left is not None else "",
                then=left.then if left is not None else "",
                advice=left.advice if left is not None else "",
            )
            self._event(found, cycle)

    def finish(
        self,
        finish: machine.LeaveProcess,
        ranks: Ranks | None,
        ledger: Callable[[], list[str]] = list,
    ) -> None:
        """Say how the job ended for this launcher, and where its time went (``ledger``)."""
        self._log_waiting()
        if (stop := self._last_stop) is not None and stop.for_good:
            self._note_left(ranks, stop.cycle, stop.failure)
        succeeded = finish.ended is machine.LauncherEnd.SUCCEEDED
        if finish.exit_code and self._cause_elsewhere and self._error_file:
            write_error_file(Path(self._error_file), self._cause_elsewhere, finish.exit_code)
        level = logging.INFO if finish.exit_code == 0 else logging.ERROR
        over = schema.JobSucceeded if succeeded else schema.JobFailed
        self._event(over(finish.how, finish.exit_code, finish.never_ran or None), None)
        if finish.text:
            has_line = bool(self._last_cause) and self._last_cause in finish.text
            LOGGER.log(logging.DEBUG if has_line else level, "%s", finish.text)
        ends = [rank.end() for rank in ranks.ranks.values()] if succeeded and ranks else []
        if failed := [f"rank {end.rank}" for end in ends if end.failed]:
            LOGGER.warning("the job was completed without %s, which failed", ", ".join(failed))
        for line in ledger():
            LOGGER.info("%s", line)
        name, how = self._plan.name, f"was {finish.how}" if finish.signal else finish.how
        if finish.never_ran:
            line = f"the job {how}; this node {finish.never_ran}, and never ran {name}"
        else:
            past = restarts(max(0, self._launcher.node.cycle), self._in_place)
            line = f"{name} {how} after {past}"
        LOGGER.log(
            level,
            "%s; exit code %d%s",
            line,
            finish.exit_code,
            "" if self.is_uneventful() else f"; logs and evidence are in {self._run_dir}",
        )
        if not self.is_uneventful():
            # Not `latest`: another job may have begun when this line is read.
            LOGGER.info("to read this run: holdfast report %s", shlex.quote(str(self._run_dir)))
        self.restart_lines.job_is_over(succeeded=succeeded)

    def restarted_in_place(self, restart: RestartedInPlace) -> None:
        """The ranks did that by themselves; it belongs to the story of the run."""
        self._in_place += 1
        verdict = restart.verdict
        restarted = schema.InPlaceRestart(
            call=restart.call,
            causes=restart.causes,
            n_causes=restart.n_causes,
            progress_at=restart.progress_at,
            noticed_at=restart.noticed_at,
            entered_at=restart.entered_at,
            culprits=verdict.culprits if verdict is not None else (),
            verdict=verdict.kind if verdict is not None else None,
            reason=verdict.reason if verdict is not None else None,
            step=restart.step,
            lost_steps=restart.lost_steps if restart.lost_steps >= 0 else None,
        )
        self._event(restarted, None)

    def outcome(self, ranks: Ranks | None, exit_code: int) -> dict[str, object]:
        """How the job ended here, with the ranks of the last cycle, as JSON values."""
        finished, last = self._launcher.finished, list(ranks.ranks.values()) if ranks else []
        ends = [(rank.end(), str(rank.folder / rank.error_file.name)) for rank in last]
        return {
            "exit_code": exit_code,
            "end": finished.ended.name if finished else None,
            "cycle": ranks.cycle if ranks else None,
            "ranks": [
                {
                    "rank": end.rank,
                    "local_rank": end.local_rank,
                    "pid": end.pid,
                    "exit_code": end.exit_code,
                    "failed": end.failed,
                    "why": explain(end),
                    "error_file": error_file,
                }
                for end, error_file in ends
            ],
        }

    def is_uneventful(self) -> bool:
        """The job had no trouble, and the user asked for no files."""
        finished = self._launcher.finished
        ended_well = finished is not None and finished.ended is machine.LauncherEnd.SUCCEEDED
        had_trouble = self._launcher.node.cycle > 0 or self._failed_here or self._in_place
        return ended_well and not (self._is_asked_for or had_trouble)

    @property
    def _is_asked_for(self) -> bool:
        """The user wants the run folder, whatever happens."""
        plan = self._plan
        to_files = any(plan.redirects.values()) or any(plan.tee.values())
        return plan.log_dir is not None or to_files
