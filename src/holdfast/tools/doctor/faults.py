"""Each kind of fault, with times, for one resolved command line. Pure.

Every number is the plan's, or the constant that the machine which acts uses. This is the one list
of faults: ``holdfast doctor`` prints it for a job, and docs/failure-model.md for an example
(``docs/tables.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.base.pure import kill_ladder
from holdfast.base.pure.wording import count
from holdfast.job.pure.exit_codes import Ending
from holdfast.job.pure.rules import Rules
from holdfast.job.pure.timing import Pace
from holdfast.node.pure import node, rank_life
from holdfast.options.ft_options import ANY_FAILED
from holdfast.options.plan import LaunchPlan
from holdfast.options.values import NEVER, AutoKill
from holdfast.tools.doctor.limits import in_force

_AT_ONCE = "within milliseconds"


@dataclass(frozen=True)
class PlantedFault:
    """One kind of fault.

    Attributes:
        noticed: The process that notices it, and after how long at most.
        exit_code: Of this node's launcher, if the fault ends it; None: it goes on.
    """

    name: str
    noticed: str
    then: str
    exit_code: int | None = None


def faults_of(plan: LaunchPlan) -> list[PlantedFault]:
    """All kinds of faults, those of single ranks first."""
    found = [*_of_ranks(plan), *_hangs(plan), *_of_holdfast(plan)]
    if plan.meeting is not None:
        found += _of_nodes(plan)
    return [*found, *_asked(plan), *_ends(plan)]


def _of_ranks(plan: LaunchPlan) -> Iterator[PlantedFault]:
    many = plan.meeting is not None
    later = "; all nodes, a few milliseconds later" if many else ""
    report = (
        "the report has its exit code, the last lines of its stderr, and the error file of "
        f"@record; then {_restart(plan)}"
    )
    yield PlantedFault(
        "a rank raises an exception that nothing catches", _raised(plan) + later, report
    )
    yield PlantedFault("a rank exits or crashes", f"its launcher, {_AT_ONCE}{later}", report)
    yield PlantedFault(
        "a rank is killed (SIGKILL, out of memory)",
        "its launcher, when the kernel has freed its memory: 0.1 to 0.2 s for each GiB",
        "the report has the signal, and whether the kernel has counted an out-of-memory kill; then "
        + _restart(plan),
    )
    yield PlantedFault(
        "a rank cannot be killed (state D: dead storage, a driver)",
        f"its launcher, {node.UNKILLABLE_AFTER_S:g} s after SIGKILL",
        "the launcher of this node reports it and leaves; "
        + ("the others continue" if many else "the job ends"),
        1,
    )


def _raised(plan: LaunchPlan) -> str:
    grace_s = plan.ft.exception_grace_in_force
    if plan.start_hook is None or grace_s is None:
        return "its launcher, when its process has ended, which waits for threads and peers"
    handlers = f", its exit handlers ({grace_s:g} s at most, --ft-exception-grace)"
    return f"its launcher, {_AT_ONCE} after the exception{handlers if grace_s else ''}"


def _hangs(plan: LaunchPlan) -> Iterator[PlantedFault]:
    if not plan.monitors_enabled:
        text = "not noticed: monitors are disabled (NVRX_DISABLE_RANK_MONITORS)"
        yield PlantedFault("a rank hangs", text, "only torch's own timeouts end it")
        return
    within_s = plan.ft.evidence_timeout
    seen = "every rank of the job" if within_s else "it"
    evidence = (
        f"its incident records what {seen} does: stacks of all threads, state in /proc, open "
        f"sections, collectives (within {within_s or kill_ladder.EVIDENCE_S:g} s)"
    )
    signal = plan.ft.rank_termination_signal.name
    kill = "" if signal == "SIGKILL" else f", SIGKILL {plan.workers_stop_timeout_s:g} s later"
    then = f"{evidence}, then {signal}{kill}; then {_restart(plan)}"
    for name, limit_s in in_force(plan.ft).items():
        yield PlantedFault(f"a rank hangs: {name}", f"its monitor, after {limit_s:g} s", then)
    sections = {name for name, limit in plan.ft.rank_section_timeouts.items() if limit is None}
    beats = "if the rank sends heartbeats, by their timeout"
    for name in sorted(sections):
        text = f"by its timeout, once that is learned; {beats}"
        yield _by_steps(plan, f"a rank hangs: section {name!r}", f"{text}; otherwise not noticed")
    if plan.ft.rank_out_of_section_timeout is None:
        text = f"{beats}; otherwise not noticed"
        yield _by_steps(plan, "a rank hangs: outside all sections", text)
    exit_s = plan.ft.exit_timeout
    at_exit = "not noticed: --ft-exit-timeout is null"
    if exit_s is not None:
        at_exit = f"its monitor, {exit_s:g} s after the shutdown call (--ft-exit-timeout)"
    late = then if exit_s is not None else "it stays until you end it"
    yield PlantedFault(
        "a rank hangs at its exit, after shutdown_workload_monitoring()", at_exit, late
    )
    yield _unreported(plan)


def _unreported(plan: LaunchPlan) -> PlantedFault:
    name = "a rank hangs and never called init_workload_monitoring()"
    warned = "not noticed; a warning says that no rank has called it" + _after(
        plan.ft.initial_rank_heartbeat_timeout
    )
    if (first_s := plan.ft.first_call_timeout) is not None:
        after = f"its monitor, {first_s:g} s after another rank has (--ft-first-call-timeout)"
        warned = f"{after}; where none has, {warned}"
    return _by_steps(plan, name, warned)


def _by_steps(plan: LaunchPlan, name: str, otherwise: str) -> PlantedFault:
    """While no timeout of the rank runs; ``otherwise``: where it makes no steps."""
    torchs = "only torch's own timeouts end it"
    if not plan.counts_steps:
        return PlantedFault(name, otherwise, torchs)
    ends = "where it is proved that no time can help, ranks are killed, with an incident as above"
    kill = plan.ft.auto_kill
    if kill == NEVER or not plan.max_restarts:
        why = "--ft-auto-kill never" if kill == NEVER else "no restart"
        then = f"a stall is reported, with the stacks of all ranks; with {why}, {torchs}"
    else:
        after_s = AutoKill().after_s(kill)
        also = f", or after {after_s:g} s ({kill})" if after_s is not None else ""
        then = (
            f"a stall is reported, with the stacks of all ranks; {ends}{also}; then "
            f"{_restart(plan)}; in all other cases {torchs}"
        )
    return PlantedFault(
        name,
        f"if it makes optimizer steps, its monitor, after {plan.ft.auto_heartbeat_floor:g} s "
        "without progress (--ft-auto-heartbeat-floor), or longer where its pauses are long; "
        f"otherwise {otherwise}",
        then,
    )


def _of_holdfast(plan: LaunchPlan) -> Iterator[PlantedFault]:
    many = plan.meeting is not None
    if plan.monitors_enabled:
        yield PlantedFault(
            "a rank monitor dies",
            f"the launcher, {_AT_ONCE}",
            "the rank trains on, another monitor takes over; after "
            f"{rank_life.MONITOR_DEATHS} deaths in {rank_life.MONITOR_DEATHS_PERIOD_S:g} s it is "
            "left unwatched, with an error",
        )
    yield PlantedFault(
        "the launcher is killed",
        "the kernel and the monitors, within 0.1 s",
        "every process that it started ends with it; only the scheduler can start it again"
        + ("; the others see a lost node" if many else ""),
    )
    if plan.care is None:
        yield PlantedFault(
            "this host is not healthy",
            "not noticed: --ft-host-checks is false",
            "ranks are started here anyway, and fail or hang",
        )
    else:
        yield PlantedFault(
            "this host is not healthy before a start",
            f"its health process, at once or after {plan.care.limit_s:g} s at most",
            "this node has no ranks and leaves"
            + (
                "; a spare takes its place, or the job ends with exit code "
                f"{Ending.NO_NODE_LEFT.code()} if too few nodes are left. The launcher that "
                "leads stays"
                if many
                else ""
            ),
            (Ending.UNHEALTHY if many else Ending.NO_NODE_LEFT).code(),
        )
        yield PlantedFault(
            "a GPU breaks under its rank",
            f"the health process, within {plan.care.interval_s:g} s (where there is a driver)",
            f"the rank is killed, its GPU is named as the cause; {_restart(plan)}, or, "
            "if the host is not healthy then, the node leaves",
        )


def _of_nodes(plan: LaunchPlan) -> Iterator[PlantedFault]:
    assert plan.meeting is not None
    pace = plan.meeting.pace
    if plan.min_nodes < plan.max_nodes:
        goes_on = f"a spare takes its place, or the job runs on {plan.min_nodes} or more nodes"
    else:
        goes_on = f"a spare takes its place; without one the job waits {pace.join_timeout_s:g} s"
    if plan.max_restarts:
        yield PlantedFault(
            "a node is lost (power, network)",
            f"the leader, {_AT_ONCE} if only its launcher was killed, else after "
            f"{pace.silence_s:g} s of silence (--rdzv-conf keep_alive_timeout=)",
            f"while restarts are left, the ranks of all other nodes are stopped; {goes_on}",
        )
        yield PlantedFault(
            "a node is cut off, or its launcher is stopped",
            f"itself or its monitors, after {pace.fence_s:g} s",
            "while restarts are left, it stops its ranks before the others continue without it, "
            "and joins again when it can",
        )
    else:
        yield PlantedFault(
            "a node is lost, or cut off",
            f"the leader, after {pace.silence_s:g} s of silence (--rdzv-conf keep_alive_timeout=)",
            "a warning; as no restart is left, the node is awaited until ranks of others fail of "
            "their own timeouts",
        )
    yield PlantedFault(
        "the job is suspended, on all nodes or one after the other",
        "each launcher, when it wakes",
        "it asks before it stops anything, and the job continues, or restarts",
    )
    yield from _of_the_leader(plan, pace)
    yield PlantedFault(
        "too few nodes come",
        f"all launchers, after {pace.join_timeout_s:g} s (--rdzv-conf join_timeout=)",
        "they leave; nothing was started",
        Ending.TOO_FEW.code(),
    )


def _of_the_leader(plan: LaunchPlan, pace: Pace) -> Iterator[PlantedFault]:
    assert plan.meeting is not None
    gone_s = pace.fence_s + pace.return_s
    leave = "they leave; the job has to be started again"
    other = plan.meeting.place.other
    if not plan.max_restarts:
        yield PlantedFault(
            "the launcher that leads is lost",
            f"all others, {_AT_ONCE}, or, if its host is gone, {gone_s:g} s after its last message",
            leave,
            Ending.LEADER_LOST.code(),
        )
        return
    restarts = "which restarts the ranks without that node while restarts are left"
    yield PlantedFault(
        "the launcher that leads is killed, or told to end",
        f"all others, {_AT_ONCE}",
        f"a majority of the launchers, spares counted, has another one lead, {restarts}; one "
        "launcher of two leaves instead, unless the job has a witness (holdfast witness)"
        if other is None
        else f"a key of the {other.name} store says which of them leads next, {restarts}; if the "
        f"store is away for {pace.return_s:g} s, they leave",
        Ending.LEADER_LOST.code(),
    )
    if other is None:
        yield PlantedFault(
            "a witness is lost",
            f"the leader, {_AT_ONCE}, or after {pace.silence_s:g} s of silence",
            "a warning; the job continues without it, and another witness may take its place",
        )
        yield PlantedFault(
            "the host of the launcher that leads is gone, or cut off",
            f"all others, {pace.fence_s:g} s after its last message; it, if it lives, after "
            f"{pace.leader_lease_s:g} s",
            f"all ranks end; a majority of the launchers, spares counted, starts them again "
            f"{pace.takeover_s:g} s after that message, while restarts are left; without a "
            f"majority the launchers leave after {gone_s:g} s, to be started again",
            Ending.LEADER_LOST.code(),
        )
        return
    yield PlantedFault(
        "the host of the launcher that leads is gone, or cut off",
        f"all others, {gone_s:g} s after its last message",
        leave,
        Ending.LEADER_LOST.code(),
    )


def _asked(plan: LaunchPlan) -> Iterator[PlantedFault]:
    others = (
        "; a spare takes its place, or the job ends if too few nodes are left"
        if plan.meeting is not None
        else ""
    )
    yield PlantedFault(
        "a rank asks for ExcludeThisNode",
        "its launcher",
        f"when the cycle is over, this node leaves{others}",
        Ending.EXCLUDED.code(),
    )
    yield PlantedFault(
        "a rank asks for ShutdownWorkload",
        "its launcher",
        "the job ends for all",
        Ending.SHUT_DOWN.code(),
    )
    yield PlantedFault(
        "the scheduler sends SIGTERM",
        f"the launcher, {_AT_ONCE}",
        f"the ranks get the signal, SIGKILL after {plan.term_timeout_s:g} s (--term-timeout), or "
        f"at a second SIGTERM that comes {node.SAME_REQUEST_S:g} s later; hangs are found "
        f"meanwhile; no restart; exit code {Ending.SIGNALLED.code()}, however they end",
    )


def _ends(plan: LaunchPlan) -> Iterator[PlantedFault]:
    window = f" within {plan.restart_window_s:g} s" if plan.restart_window_s else ""
    yield PlantedFault(
        f"one failure more than {count(plan.max_restarts, 'restart')}{window} (--max-restarts)",
        "the launcher" if plan.meeting is None else "the leader",
        "the job ends; the summary names the first cause",
        Ending.FAILED.code(),
    )
    cycles = plan.ft.max_no_progress_cycles
    if plan.ft.is_progress_tracking_enabled and plan.ft.checkpoint_iteration_file:
        yield PlantedFault(
            f"{count(cycles, 'failed cycle')} in a row without progress",
            f"the number in {plan.ft.checkpoint_iteration_file}",
            "the job ends: another attempt would not help",
            Ending.NO_PROGRESS.code(plan.no_restart_exit_code),
        )
    if plan.max_same_failures:
        yield PlantedFault(
            f"the same exception at the same line in {count(plan.max_same_failures, 'cycle')} in a "
            "row, without known progress",
            "the last lines of the first rank that failed",
            "the job ends: another attempt would not help (--ft-max-same-failures)",
            Ending.SAME_FAILURE.code(plan.no_restart_exit_code),
        )
    if plan.no_restart_exit_code != 1:
        yield PlantedFault(
            f"a rank exits with {plan.no_restart_exit_code}",
            f"its launcher, {_AT_ONCE}",
            "the job ends without a restart (--ft-no-restart-exit-code), whatever else ranks ask "
            "for",
            Ending.NO_USE.code(plan.no_restart_exit_code),
        )


def _restart(plan: LaunchPlan) -> str:
    """In short; :func:`describe_restart` has the rest."""
    last = "no restart (--max-restarts 0)" if plan.max_restarts == 0 else "a restart"
    if plan.restart_policy != ANY_FAILED and plan.meeting is None:
        return f"the other ranks continue; when none of them is left, {last}"
    if plan.max_restarts == 0:
        return f"{last}: the job ends with exit code {Ending.FAILED.code()}"
    if plan.restart_policy != ANY_FAILED:
        return (
            f"no restart while at least {count(plan.min_nodes, 'healthy node')} run; otherwise a "
            "restart"
        )
    return last


def describe_restart(plan: LaunchPlan) -> str:
    """How ranks are stopped and started again, and how long that may take."""
    text = (
        f"All ranks get SIGTERM, SIGKILL {plan.workers_stop_timeout_s:g} s later "
        "(--workers-stop-timeout); processes that they leave behind are killed"
    )
    if plan.max_restarts == 0:
        return f"{text}. There is no restart (--max-restarts 0)."
    if plan.care is not None:
        text += "; the host is checked"
        if plan.care.reclaim_timeout_s:
            text += (
                f", the restart waits for GPU memory (at most {plan.care.reclaim_timeout_s:g} s)"
            )
    how = "from warm standby" if plan.warm else "with a plain start, which imports torch again"
    text += f"; all ranks start again {how}"
    if plan.restart_backoff_s:
        text += (
            f"; from the second failure in a row on they wait {plan.restart_backoff_s:g} s, then "
            f"twice as long each time, at most {Rules.backoff_max_s:g} s"
        )
    window = f" within {plan.restart_window_s:g} s" if plan.restart_window_s else ""
    return f"{text}. At most {count(plan.max_restarts, 'time')}{window} (--max-restarts)."


def _after(limit_s: float | None) -> str:
    return "" if limit_s is None else f", after {limit_s:g} s"
