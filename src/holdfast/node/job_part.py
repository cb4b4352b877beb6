"""A launcher's part in its job, from the plan: its machines, its log, its place among nodes."""

from __future__ import annotations

import dataclasses
import math
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.base.pure.kill_ladder import EVIDENCE_S
from holdfast.evidence.pure.stall_rules import StallRules
from holdfast.job.pure.assign import Policy
from holdfast.job.pure.member import Member
from holdfast.job.pure.membership import Descriptor, Pace
from holdfast.job.pure.rules import RestartPolicy, Rules
from holdfast.node.console import LOGGER
from holdfast.node.job_log import JobLog, LocalLog, StoreLog
from holdfast.node.pure.launcher import Launcher
from holdfast.node.pure.node import Node
from holdfast.node.pure.node_evidence import NodeEvidence
from holdfast.node.pure.rank_life import RankLives
from holdfast.options.values import NEVER, AutoKill

if TYPE_CHECKING:
    from holdfast.options.meeting_plan import MeetingPlan
    from holdfast.options.plan import LaunchPlan
    from holdfast.page.lease import Lease

_LINGER_S = 45.0
"""At the end, beyond the grace of a stop: for ranks that do not die, and for a slow way."""


def iteration_file(plan: LaunchPlan) -> str | None:
    """What tells how far the job's checkpoints are; None: nothing does."""
    ft = plan.ft
    return (ft.is_progress_tracking_enabled and ft.checkpoint_iteration_file) or None


def make_launcher(plan: LaunchPlan, node_id: str, port: int) -> Launcher:
    """The machines of one launcher.

    Args:
        plan: What to do.
        node_id: Names this launcher among all of its job.
        port: Free on this host for rank 0.
    """
    node = Node(
        nproc=plan.nproc_per_node,
        no_restart_exit_code=plan.no_restart_exit_code,
        stop_grace_s=plan.workers_stop_timeout_s,
        signal_grace_s=plan.term_timeout_s,
        checks_host=plan.care is not None,
        measures_waits=True,
    )
    grace_s = plan.ft.exception_grace_in_force
    lives = RankLives(
        plan.ft.initial_rank_heartbeat_timeout if plan.monitors_enabled else None,
        evidence_s(plan) or EVIDENCE_S,
        math.inf if grace_s is None else grace_s,
        awaits_reports=plan.monitors_enabled and plan.ft.first_call_timeout is not None,
    )
    evidence = NodeEvidence(evidence_s(plan))
    if plan.meeting is None:
        desc = _descriptor(plan, plan.master_addr, port)
        member = Member(node_id, desc, Pace.of_one())
        return Launcher(node, member, make_rules(plan), lives, evidence)
    meeting, addr = plan.meeting, ""  # which is found out on the way to the log
    desc = _descriptor(
        plan, addr, port, meeting.infra_rank, meeting.infra_is_place, _domain(meeting)
    )
    member = Member(node_id, desc, meeting.pace)
    return Launcher(node, member, make_rules(plan), lives, evidence)


def evidence_s(plan: LaunchPlan) -> float:
    """How long evidence of all ranks may take; 0: none of other ranks is taken."""
    return plan.ft.evidence_timeout if plan.monitors_enabled else 0.0


def stall_rules(plan: LaunchPlan) -> StallRules:
    """What the job does about ranks that make no steps."""
    wanted = plan.ft.auto_kill
    return StallRules(plan.ft.auto_heartbeat_floor, wanted != NEVER, AutoKill().after_s(wanted))


def open_log(plan: LaunchPlan, is_leaving: Callable[[], bool]) -> JobLog:
    """The log of the job; see :class:`StoreLog`."""
    return (
        LocalLog()
        if plan.meeting is None
        else StoreLog(plan.meeting, plan.run_id, plan.workload, is_leaving)
    )


def open_lease(plan: LaunchPlan, runtime_dir: str) -> Lease | None:
    """Read by our monitors, where others go on without ranks of a launcher that is stopped."""
    if plan.meeting is None or not plan.monitors_enabled:
        return None
    from holdfast.page.lease import Lease  # noqa: PLC0415 - of no use to one node

    try:
        wake_s = plan.meeting.pace.ask_s + plan.meeting.pace.lease_s
        return Lease(f"{runtime_dir}/lease", writable=True, wake_s=wake_s)
    except OSError as error:
        LOGGER.warning("if this launcher is stopped, its ranks run on: %s", error)
        return None


def _descriptor(
    plan: LaunchPlan,
    addr: str,
    port: int,
    infra_rank: int | None = None,
    infra_is_place: bool = True,  # noqa: FBT001, FBT002 - as in the descriptor
    domain: str | None = None,
) -> Descriptor:
    host, nproc = socket.gethostname(), plan.nproc_per_node
    about = infra_rank, infra_is_place, domain, port, plan.workload
    return Descriptor(addr, host, nproc, os.getpid(), *about)


def make_rules(plan: LaunchPlan) -> Rules:
    """What the job asks of the launcher that leads it."""
    meeting = plan.meeting
    rules = Rules(
        nodes=Policy(1, 1, use_infra_group_rank=False),
        restart=RestartPolicy(plan.restart_policy),
        max_restarts=plan.max_restarts,
        restarts_period_s=plan.restart_window_s,
        backoff_s=plan.restart_backoff_s,
        max_no_progress_cycles=plan.ft.max_no_progress_cycles,
        min_progress_iterations=plan.ft.min_progress_iterations,
        max_same_failures=plan.max_same_failures,
        no_restart_exit_code=plan.no_restart_exit_code,
        launchers=1,
        is_of_one=meeting is None,
        linger_s=max(Rules.linger_s, plan.workers_stop_timeout_s + _LINGER_S),
        reads_iterations=iteration_file(plan) is not None,
        evidence_s=evidence_s(plan),
        stall=stall_rules(plan),
    )
    if meeting is None:
        return rules
    return dataclasses.replace(
        rules,
        nodes=meeting.nodes,
        launchers=meeting.launchers,
        first_last_call_s=meeting.last_call_s,
        grow_cooldown_s=meeting.grow_cooldown_s,
        workload=plan.workload,
    )


def _domain(meeting: MeetingPlan) -> str | None:
    """Where this node belongs to, if anybody wants to know; None: it can only stand by."""
    if meeting.domain is not None or meeting.nodes.segment is None:
        return meeting.domain
    from holdfast.job.pure.infra_rank import DOMAIN_BY_HAND  # noqa: PLC0415 - seldom used
    from holdfast.node.processes.nvlink import (  # noqa: PLC0415 - likewise
        FabricUnknownError,
        fabric,
    )

    try:
        return fabric()
    except FabricUnknownError as error:
        LOGGER.warning(
            "--ft-segment: it is not known which NVLink domain this node is in (%s); without one "
            "it can only wait as a spare. Say it with %s, the same on all nodes of a domain",
            error,
            DOMAIN_BY_HAND,
        )
        return None
