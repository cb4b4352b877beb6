"""Report the course of a job: to the log, to an outer restarter, and to the events file."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.base.pure.wording import count, restarts
from holdfast.events.pure import schema
from holdfast.evidence.pure.failure import RankEnd, explain, first_cause
from holdfast.job.pure.member import CauseFound, CycleStopping, How, RanksFailed
from holdfast.job.pure.membership import FailureReport
from holdfast.node.console import LOGGER, STDERR, STDOUT
from holdfast.node.processes.output import OutputPump
from holdfast.node.processes.ranks import write_error_file
from holdfast.node.pure import launcher as machine
from holdfast.node.records import report
from holdfast.node.restart_lines import RestartLines

if TYPE_CHECKING:
    from holdfast.evidence.pure.evidence import Verdict
    from holdfast.inplace.pure.job_calls import RestartedInPlace
    from holdfast.node.processes.ranks import Ranks
    from holdfast.node.pure.node_evidence import IncidentOver
    from holdfast.options.plan import LaunchPlan


class JobReporter:
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
        self._stopped_for_hang: set[int] = set()
        """Cycles that were stopped for that, here or elsewhere."""
        self._over_since: float | None = None
        """When that failure began, or the decision came that the cycle is over."""
        self._restarts_used = 0
        self._in_place = 0
        """Restarts that the ranks of this node did by themselves."""
        self._has_started = False
        self.restart_lines = RestartLines(
            lambda line: pump.write(STDOUT, line.encode(errors="replace")),
            plan.ft.restart_check_interval,
        )

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
        warm = sum(rank.is_warm for rank in ranks.ranks.values())
        warmly = f"; {count(warm, 'rank')} from warm standby" if warm else ""
        restarted, used = "", formed.restarts_used
        if self._over_since is not None and used > self._restarts_used:  # and not for more nodes
            after_s = clock.monotonic() - self._over_since
            restarted = (
                f"; restart {used} of {plan.max_restarts}, {after_s:.3f} s after the failure"
            )
        self._over_since, self._restarts_used = None, used
        LOGGER.info(
            "cycle %d: started %s of %s, pids %s%s%s; node has joined round %d of the "
            "rendezvous %r as rank %d of %d",
            ranks.cycle,
            count(plan.nproc_per_node, "rank"),
            plan.name,
            ", ".join(map(str, pids)),
            restarted,
            warmly,
            ranks.cycle,
            plan.run_id,
            ranks.place.group_rank,
            len(formed.places),
        )
        if not self._has_started:
            self._has_started = True
            stays = "; it is removed if the job succeeds without a restart"
            LOGGER.info("run folder: %s%s", self._run_dir, "" if self._is_asked_for else stays)
        failure = formed.ended_by if plan.meeting is not None else None
        if failure is not None:
            self._cycle_ended(ranks.cycle - 1, failure, self._said)

    def _cycle_ended(
        self, cycle: int, failure: FailureReport, said: Collection[tuple[object, ...]]
    ) -> None:
        """Of what, unless that has been said."""
        if failure.facts not in said:
            LOGGER.info("cycle %d ended: %s", cycle, failure.cause)

    def ranks_failed(self, failed: RanksFailed, end: RankEnd) -> FailureReport:
        """Log the failure; returns the report for the job."""
        failure, line = report.seen_failure(end, self._incidents.get(failed.cycle), self._node)
        if end.names_a_peer:
            hint = "if the rank that this error names failed first, a later line says so"
            LOGGER.warning("%s; %s", line, hint)
        else:
            advice = end.attribution.advice
            LOGGER.error("%s", f"{line}. Advice: {advice}" if advice else line)
        self._write_rank_failed(end)
        self._said.add(failure.facts)
        self._failed_here.setdefault(failed.cycle, failed.local_rank)
        if failed.every or not self._launcher.node.survives_ranks:
            self._note_end(end.began_at)
            self.restart_lines.cycle_failed()
        return failure

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
        )
        self._event(failed, None)

    def incident_over(self, over: IncidentOver) -> None:
        """All evidence is there: say which ranks hold up the others, where one of them is ended."""
        self._incidents[over.cycle] = over

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
        level = logging.INFO
        if not stopping.here:
            self._failed_here.pop(stopping.cycle, None)
            if not is_polite:
                return  # there is an error that says it
            cause, why = stopping.cause, stopping.no_restart
            self._said.add(stopping.failure.facts)
            self._cause_elsewhere = cause if stopping.for_good else ""
            text = f"{cause}; {why}" if why else cause
            text = f"cycle {stopping.cycle} is over for this node: {text}"
        elif stopping.for_good:
            level = logging.ERROR
            text = f"Worker group FAILED, and is not started again: {stopping.no_restart}"
        else:
            left, most = stopping.restarts_left, self._plan.max_restarts
            text = f"Worker group FAILED. {left}/{most} attempts left; will restart worker group"
        if is_polite and (alive := len(self._launcher.node.alive)):
            limit = f"Timeout = {self._plan.workers_stop_timeout_s:g} sec."
            text += f". Stopping workers... {limit} ({alive} still running)"
        LOGGER.log(level, "%s", text)
        self._note_end(clock.monotonic())

    def _note_end(self, at: float) -> None:
        self._over_since = at if self._over_since is None else min(at, self._over_since)

    def explain(self, cycle: int, ranks: Ranks, *, will_restart: bool) -> None:
        """Say why a cycle failed here, now that all its ends are known."""
        if will_restart and cycle not in self._failed_here:
            return  # the cause is elsewhere, and was said
        plan = self._plan
        ends = ranks.ends()
        incident = self._incident(cycle, ends)
        hang = incident.verdict if incident is not None else None
        self._write_first_cause(cycle, ends, hang)
        said, self._said = self._said, set()
        if will_restart:
            if plan.meeting is not None:
                return  # the leader knows the other nodes' causes, too: see cycle_started
            failure = report.failure_report(ends, incident)
            self._cycle_ended(cycle, failure or FailureReport(report.cause_line(ends, hang)), said)
            return
        outlook = "the job is over"
        if plan.meeting is None:
            outlook = f"{ranks.formed.restarts_used} of {plan.max_restarts} restarts used"
        summary = report.failure_summary(
            plan.name, self._node, cycle, ends, outlook, str(self._run_dir), hang
        )
        self._pump.write(STDERR, f"{summary}\n".encode(errors="replace"))
        cause = first_cause(ends, hang.culprits if hang is not None else ())
        if cause and self._error_file:
            own = cause.error if hang is None else None
            text = own or report.cause_line(ends, hang)
            write_error_file(Path(self._error_file), text, cause.exit_code, cause)
            self._error_file = None

    def _write_first_cause(self, cycle: int, ends: Sequence[RankEnd], hang: Verdict | None) -> None:
        cause = None if hang is not None else first_cause(ends)
        if cause is not None and cause.hang is None:
            found = schema.FirstCause(
                local_rank=cause.local_rank,
                rank=cause.rank,
                why="; ".join(filter(None, (explain(cause), report.gone_line(ends, cause)))),
                names_a_peer=cause.names_a_peer,
                began_at=cause.began_at,
                hung=cause.hung_in_place is not None,
            )
            self._event(found, cycle)

    def finish(
        self,
        finish: machine.LeaveProcess,
        ranks: Ranks | None,
        ledger: Callable[[], list[str]] = list,
    ) -> None:
        """Say how the job ended for this launcher, and where its time went (``ledger``)."""
        succeeded = finish.ended is machine.LauncherEnd.SUCCEEDED
        if finish.exit_code and self._cause_elsewhere and self._error_file:
            write_error_file(Path(self._error_file), self._cause_elsewhere, finish.exit_code)
        level = logging.INFO if finish.exit_code == 0 else logging.ERROR
        over = schema.JobSucceeded if succeeded else schema.JobFailed
        self._event(over(finish.how, finish.exit_code, finish.never_ran or None), None)
        if finish.text:
            LOGGER.log(level, "%s", finish.text)
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
