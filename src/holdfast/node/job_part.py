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
from holdfast.job.pure.membership import Descriptor
from holdfast.job.pure.rules import RestartPolicy, Rules
from holdfast.job.pure.succession import Succession
from holdfast.job.pure.succession_by_key import SuccessionByKey
from holdfast.job.pure.timing import Pace
from holdfast.node.console import LOGGER
from holdfast.node.job_log import JobLog, LocalLog
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
    """Path of the file with the iteration of the latest checkpoint; None: there is none."""
    ft = plan.ft
    return (ft.is_progress_tracking_enabled and ft.checkpoint_iteration_file) or None


def make_launcher(plan: LaunchPlan, node_id: str, port: int) -> Launcher:
    """The machines of one launcher.

    ``node_id`` names it among all of its job; ``port`` is free on this host for rank 0.
    """
    grace_s = plan.ft.exception_grace_in_force
    lives = RankLives(
        plan.ft.initial_rank_heartbeat_timeout if plan.monitors_enabled else None,
        evidence_s(plan) or EVIDENCE_S,
        math.inf if grace_s is None else grace_s,
        awaits_reports=plan.monitors_enabled and plan.ft.first_call_timeout is not None,
    )
    node = Node(
        nproc=plan.nproc_per_node,
        no_restart_exit_code=plan.no_restart_exit_code,
        stop_grace_s=plan.workers_stop_timeout_s,
        signal_grace_s=plan.term_timeout_s,
        checks_host=plan.care is not None,
        measures_waits=True,
        lives=lives,
        evidence=NodeEvidence(evidence_s(plan), socket.gethostname()),
    )
    pace = Pace.of_one() if plan.meeting is None else plan.meeting.pace
    succession = None
    if plan.meeting is not None:
        has_key = plan.meeting.place.other is not None
        succession = SuccessionByKey(pace) if has_key else Succession(pace)
    member = Member(node_id, _descriptor(plan, port), pace)
    return Launcher(node, member, make_rules(plan), succession)


def evidence_s(plan: LaunchPlan) -> float:
    """How long evidence of all ranks may take; 0: none of other ranks is taken."""
    return plan.ft.evidence_timeout if plan.monitors_enabled else 0.0


def stall_rules(plan: LaunchPlan) -> StallRules:
    """The job's rules for ranks that make no steps."""
    wanted = plan.ft.auto_kill
    return StallRules(plan.ft.auto_heartbeat_floor, wanted != NEVER, AutoKill().after_s(wanted))


def open_log(plan: LaunchPlan, node_id: str, is_leaving: Callable[[], bool]) -> JobLog:
    """The log of the job; see :class:`.NetworkLog`."""
    if plan.meeting is None:
        return LocalLog()
    from holdfast.node.network_log import NetworkLog  # noqa: PLC0415 - for several nodes only

    return NetworkLog(plan.meeting.place, node_id, plan.workload, is_leaving)


def open_lease(plan: LaunchPlan, runtime_dir: str) -> Lease | None:
    """Monitors read it: the other nodes go on without the ranks of a launcher that is stopped."""
    if plan.meeting is None or not plan.monitors_enabled:
        return None
    from holdfast.page.lease import Lease  # noqa: PLC0415 - for several nodes only

    try:
        wake_s = plan.meeting.pace.ask_s + plan.meeting.pace.lease_s
        return Lease(f"{runtime_dir}/lease", writable=True, wake_s=wake_s)
    except OSError as error:
        LOGGER.warning("if this launcher is stopped, its ranks run on: %s", error)
        return None


def _descriptor(plan: LaunchPlan, port: int) -> Descriptor:
    host, nproc, meeting = socket.gethostname(), plan.nproc_per_node, plan.meeting
    if meeting is None:
        desc = Descriptor(plan.master_addr, host, nproc, os.getpid())
    else:  # the way to the log shows the address
        infra = meeting.infra_rank, meeting.infra_is_place, _domain(meeting)
        desc = Descriptor("", host, nproc, os.getpid(), *infra)
    return dataclasses.replace(desc, port=port, workload=plan.workload)


def make_rules(plan: LaunchPlan) -> Rules:
    """The job's rules, for the launcher that leads it."""
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
        snapshot_progress=plan.snapshot_progress,
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
        snapshot_keep_s=plan.snapshot_keep_s,
    )


def _domain(meeting: MeetingPlan) -> str | None:
    """The NVLink domain of this node, if the job uses domains; None: it can only be a spare."""
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
