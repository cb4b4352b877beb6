"""Each metric that a node serves: its meaning and its labels beside those of all.

The observer serves it with this text, and docs/metrics.md is made from it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        text: For people; no full stop.
        labels: Beside those of all metrics.
    """

    text: str
    labels: tuple[str, ...] = ()


METRICS = {
    "restarts_total": Metric("cycles after the first"),
    "restarts_in_place_total": Metric("calls of a restartable function after the first"),
    "takeovers_total": Metric("times this launcher came to lead the job, after another had died"),
    "leader_term": Metric(
        "term in which this launcher last came to lead, from 1; absent where it never did"
    ),
    "restarts_left": Metric("restarts left of --max-restarts, when a cycle was last over"),
    "faults_total": Metric(
        (
            "cycles that failed, by what this node saw first: hang, exit (a rank exited "
            "with a code), signal (a rank was killed), host (the node is not healthy), "
            "elsewhere (another node)"
        ),
        ("kind",),
    ),
    "incidents_total": Metric(
        (
            "incidents, by the kind of the verdict, or stall where no rank is killed; "
            "each node has all of the job"
        ),
        ("kind",),
    ),
    "recovery_seconds": Metric(
        "histogram: from noticing a fault until all ranks of this node were started again"
    ),
    "stalled_seconds": Metric(
        "histogram: how long a hung rank had shown no progress when the hang was noticed"
    ),
    "detection_lateness_seconds": Metric(
        "histogram: from the end of the timeout until the hang was noticed"
    ),
    "ranks": Metric("ranks of this node that are running, overdue, completed, failed", ("state",)),
    "spare": Metric("1 while the job runs without this node"),
    "cycle": Metric("the latest cycle; -1 before the first"),
    "rank_monitored": Metric("1 while timeouts of the rank run", ("rank",)),
    "section_age_seconds": Metric(
        "age of each open section that has a timeout, or is to get one", ("rank", "section")
    ),
    "section_timeout_seconds": Metric("timeout of each section that has one", ("rank", "section")),
    "section_seconds_total": Metric(
        "seconds in the section, of those that have ended, over all cycles", ("rank", "section")
    ),
    "section_ends_total": Metric("sections that have ended, over all cycles", ("rank", "section")),
    "heartbeat_age_seconds": Metric("since the last heartbeat", ("rank",)),
    "heartbeat_timeout_seconds": Metric("timeout of heartbeats", ("rank",)),
    "iteration": Metric("training iteration, of Megatron-LM", ("rank",)),
    "snapshot_step": Metric(
        "of the newest snapshot that all ranks of this node have; absent where there is none"
    ),
    "snapshot_age_seconds": Metric(
        "since the newest snapshot was taken; absent until one is taken in this cycle"
    ),
    "snapshots_off": Metric(
        "1 while ranks want snapshots and have no memory for them; absent where they want none"
    ),
    "snapshots_taken_total": Metric("snapshots that one rank has taken, in all cycles"),
    "snapshot_seconds_total": Metric(
        "seconds that snapshots have added to the training of one rank"
    ),
    "snapshot_restores_total": Metric("cycles that began from a snapshot"),
    "snapshot_steps_lost_total": Metric(
        "steps computed again in cycles that began from a snapshot; equal on all nodes"
    ),
    "kept_step": Metric(
        "the newest kept step: each node's snapshots of it are at another node; "
        "absent until there is one"
    ),
    "kept_step_age_seconds": Metric("since the leader named it: its snapshots are younger"),
    "snapshot_copy_age_seconds": Metric(
        ("since the newest copy of this node's snapshots began, and the node that has it"),
        ("peer",),
    ),
    "snapshot_copies_off": Metric(
        "1 while this node cannot copy in this cycle; the event snapshot_not_copied says why"
    ),
    "kept_steps_total": Metric(
        "kept steps that this launcher has seen: fewer where it joined later"
    ),
    "snapshot_copies_total": Metric("steps whose snapshots this node has copied"),
    "snapshot_copy_failures_total": Metric(
        "steps that it was to copy, and has not; events say why"
    ),
    "snapshot_copy_bytes_total": Metric("bytes of the copies of this node"),
    "snapshot_copy_seconds_total": Metric(
        "seconds that the copies of this node took, from the first byte to the last"
    ),
    "rank_seconds": Metric(
        (
            "time of the ranks of this node so far, by account of the ledger; a gauge: "
            "seconds move from steps to stalled when a hang is found, and to finishing "
            "when a rank has ended"
        ),
        ("account",),
    ),
    "goodput_ratio": Metric(
        "share of productive steps in the time of the ranks; missing where no rank reports progress"
    ),
    "events_total": Metric("events of the launcher", ("kind",)),
    "build_info": Metric("version of holdfast", ("version",)),
}
"""By name, without ``holdfast_``; those of counters end in ``_total``."""


def described(name: str) -> Metric:
    """Of a name as prometheus_client wants it: counters without ``_total``."""
    return METRICS[
        next(each for each in (name, f"{name}_total", f"{name}_info") if each in METRICS)
    ]
