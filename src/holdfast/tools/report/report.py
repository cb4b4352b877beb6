"""The story of a run as data: what ``holdfast report --json`` prints and the other forms show.

Instants are seconds since the run began, on one axis for all nodes (``node_clocks.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from holdfast.base.pure.codec import encode_fields
from holdfast.events.pure.schema import InPlaceRestart, RankStarted
from holdfast.events.run.accounts import ACCOUNTS, Account, account_of
from holdfast.events.run.ledger import Ledger
from holdfast.events.run.rank_spans import RankSpans, Span, spans_of
from holdfast.tools.calls import restarts_in_place, why
from holdfast.tools.report.failures import RepeatedFailure, repeated_failures
from holdfast.tools.report.snapshot_facts import RunSnapshots, snapshots_of
from holdfast.tools.report.stragglers import LEAST_TIMES, Slow, slow
from holdfast.tools.report.timeline import Recovery, recoveries
from holdfast.tools.run.incident_files import Incident
from holdfast.tools.run.run_files import NodeRun, Run
from holdfast.tools.run.step_rates import mean

SCHEMA_VERSION = 1
_DIGITS = 6


@dataclass
class NodeSpans:
    """The spans of one launcher, with its way to the axis of the run."""

    node: NodeRun
    made: RankSpans
    spans: list[Span]
    began: float
    """Of the run."""

    def at(self, t: float) -> float:
        """An instant of this launcher, in seconds since the run began."""
        return self.node.axis.at(t) - self.began


@dataclass
class Story:
    """All that is known of a run."""

    run: Run
    nodes: list[NodeSpans]
    ledger: Ledger
    recoveries: list[Recovery]
    in_place: list[tuple[int, InPlaceRestart]]
    """With the cycle."""

    @property
    def length_s(self) -> float:
        """From the first event to the last, or to now."""
        return max(0.0, self.run.ended - self.run.began)

    @cached_property
    def cycles(self) -> list[dict[str, Any]]:
        """A row for each cycle, as ``--json`` has it."""
        return _cycles(self)

    @cached_property
    def slow(self) -> list[tuple[int, Slow]]:
        """Ranks that were slower than their peers, with the cycle; over each whole cycle."""
        means: dict[int, dict[str, dict[int, float]]] = {}
        for each in self.nodes:
            rank_of = {
                (event.cycle, event.body.local_rank): event.body.rank
                for event in each.node.events
                if isinstance(event.body, RankStarted)
            }
            for key, progress in each.made.last_progress.items():
                for name, ended in progress.sections.items():
                    if key in rank_of and ended.times >= LEAST_TIMES:
                        by_rank = means.setdefault(key[0], {}).setdefault(name, {})
                        by_rank[rank_of[key]] = ended.total_s / ended.times
        return [(cycle, one) for cycle, sections in sorted(means.items()) for one in slow(sections)]

    @cached_property
    def snapshots(self) -> RunSnapshots | None:
        """The cost of snapshots and their use; None: the job used none."""
        return snapshots_of(
            self.run.events,
            self.recoveries,
            [each.made for each in self.nodes],
            sum(self.ledger.seconds.get(a, 0.0) for a in ("steps", "steps_again"))
            / max(1, self.ledger.n_ranks),
        )

    @cached_property
    def faults(self) -> list[RepeatedFailure]:
        """All failures; those that look the same are one fault."""
        places = self.ledger.n_ranks
        return repeated_failures(
            self.run,
            self.recoveries,
            self.cycles,
            self.in_place,
            {it.cycle: it for it in self.snapshots.restarts} if self.snapshots else {},
            n_ranks=places,
        )

    @property
    def restarts(self) -> int:
        """By the launcher; those in place are others."""
        return max((row["cycle"] for row in self.cycles), default=0)

    @property
    def is_watched(self) -> bool:
        """A rank has reported progress."""
        return any(each.made.is_watched for each in self.nodes)

    @property
    def knows_steps_again(self) -> bool:
        """Steps that were done again are known."""
        made = [each.made for each in self.nodes]
        return any(it.saves for it in made) or all(it.knows_steps_again for it in made)


def story_of(run: Run) -> Story:
    """Derive the story of a run from its files."""
    nodes, ledger = node_spans(run), Ledger()
    for index, node in enumerate(nodes):
        ledger.add(place(run, index), node.spans)
    return Story(run, nodes, ledger, recoveries(run.events), restarts_in_place(run.events))


def node_spans(run: Run) -> list[NodeSpans]:
    """The spans of each launcher, in the order of ``run.nodes``."""
    return [NodeSpans(node, *spans_of(node.events, node.now), run.began) for node in run.nodes]


def place(run: Run, index: int) -> str:
    """Name of a node, unique in its run: several launchers may run on one host."""
    name = run.nodes[index].node
    alike = [i for i, node in enumerate(run.nodes) if node.node == name]
    return name if len(alike) == 1 else f"{name}#{alike.index(index)}"


def as_json(story: Story) -> dict[str, Any]:
    """The story as plain values; docs/report.md is made from this list.

    Fields:
        ``schema_version``: 1; fields may be added without a new number.
        ``name``, ``run_id``, ``state``: script; ``--rdzv-id``; ``running``, ``succeeded``,
            ``failed``, or ``cut off``: the launcher was killed, or is on another host and silent.
        ``began``, ``length_s``: seconds since 1970; until the last event, or now.
        ``goodput``, ``steps_again_are_known``: share of productive steps, null where no rank has
            reported a section or heartbeat.
        ``rank_seconds``: of all ranks, by account.
        ``nodes``: for each launcher ``node``, ``folder``, ``state``, ``end``, ``exit_code``,
            ``events``, ``lines_passed_over``; ``clock_ahead_s``, ``clock_set_by_s``
            ([clocks](#clocks-of-several-nodes)).
        ``cycles``: for each cycle ``cycle``, ``at_s``, ``until_s``, ``ranks``, ``steps`` (of the
            rank with the most), ``rank_seconds``, ``failure``.
        ``cycles[].failure``: null, or ``ended_by`` (the culprit of a hang), ``symptom`` (the first
            sign), ``fault`` (if planted), ``detected_s``, ``stacks``, and after the detection
            ``ranks_started_after_s``, ``steps_after_s``.
        ``ranks``: for each place of a rank ``node``, ``local_rank``, ``rank_seconds``.
        ``failures``: each failure: ``cycle``, ``detected_s``, ``group`` (equal for failures that
            look the same), ``what``, ``where``, ``why``, ``advice``, ``lost_s`` (of each rank, on
            average), ``in_place``, ``stderr``.
        ``snapshots``: null where the job uses [none](snapshots.md), or, of one rank in the whole
            run: ``taken``, ``skipped`` (no slot was free, or no memory), ``seconds`` (their cost),
            ``share`` (of the time of steps), ``every`` (one step of so many; 0: not agreed),
            ``steps_lost`` (by all restarts; null: not known), ``off`` (by node, why it took none),
            ``kept`` (null, or kept steps: ``steps``, ``n_bytes`` of all, ``copy_s`` of the slowest
            node, ``failures``, ``why`` of the last), ``written`` (at the end, by each node:
            ``node``, ``step``, ``file``, ``n_bytes``, ``seconds``, ``why`` it is not on disk).
        ``snapshots.restarts``: for each cycle after the first, or from a snapshot of an earlier
            job, ``cycle``, ``step`` and ``of_cycle`` of its snapshot (null: none), ``steps_lost``,
            ``steps_since_save`` (about: from the last checkpoint), ``why`` (no newer one was used),
            ``is_from_peer`` ([another node](snapshots.md#lost-nodes) had the state of a lost one),
            ``sources`` (those nodes), ``file`` (its name on disk; empty: in memory),
            ``offered_step`` (of one on disk of [another number of
            ranks](snapshots.md#another-number-of-ranks); null: none).
        ``facts``: of the start of each launcher: ``node``, ``command``, ``folder``, ``commit``,
            ``branch``, ``versions``, ``environment``.
        ``steps_per_s``, ``step_rates``: the mean; for each stretch of time ``cycle``, ``from_s``,
            ``until_s``, ``steps``.
        ``slow``: [slow ranks](live-views.md#slow-ranks): ``cycle``, ``rank``, ``section``,
            ``mean_s``, ``median_s``.
        ``restarts_in_place``: ``cycle``, ``call`` (of the function, from 1), ``noticed_s``,
            ``stalled_s`` before that, ``took_s``, ``culprits`` (after a hang), ``why``.
        ``stalls``: [stalls](no-code-change.md), by which no rank was killed; as ``incidents``.
        ``incidents``: ``path``, ``node``, ``cycle``, ``at_s``, ``culprits``, ``kind``,
            ``confidence``, ``reason``, ``actions``, ``advice``, and ``groups`` of ranks with equal
            stacks: ``ranks``, ``doing``, ``stack``.
    """
    run = story.run
    return {
        "schema_version": SCHEMA_VERSION,
        "name": run.name,
        "run_id": run.run_id,
        "state": run.state,
        "began": run.began + run.offset_s,
        "length_s": _round(story.length_s),
        "goodput": _round(story.ledger.goodput) if story.is_watched else None,
        "steps_again_are_known": story.knows_steps_again,
        "rank_seconds": _seconds(story.ledger.seconds),
        "nodes": [
            {
                "node": place(run, index),
                "folder": str(node.folder),
                "state": node.state,
                "end": node.end,
                "exit_code": node.exit_code,
                "clock_ahead_s": round(node.axis.ahead_s, 3),
                "clock_set_by_s": round(node.marks.set_by_s, 3),
                "events": node.n_events,
                "lines_passed_over": node.passed_over,
            }
            for index, node in enumerate(run.nodes)
        ],
        "cycles": story.cycles,
        "ranks": [
            {"node": node, "local_rank": local_rank, "rank_seconds": _seconds(seconds)}
            for (node, local_rank), seconds in story.ledger.by_rank.items()
        ],
        "slow": [
            {
                "cycle": cycle,
                "rank": one.rank,
                "section": one.section,
                "mean_s": _round(one.mean_s),
                "median_s": _round(one.median_s),
            }
            for cycle, one in story.slow
        ],
        "failures": [
            {
                "cycle": each.cycle,
                "detected_s": _round(each.at_s),
                "group": number,
                "what": each.what,
                "where": each.where,
                "why": each.why,
                "advice": each.advice,
                "lost_s": _round(each.lost_s),
                "in_place": each.in_place,
                "stderr": list(each.stderr),
            }
            for number, fault in enumerate(story.faults)
            for each in fault.failures
        ],
        "snapshots": None if story.snapshots is None else encode_fields(story.snapshots),
        "facts": [
            {"node": place(run, index), **encode_fields(node.facts)}
            for index, node in enumerate(run.nodes)
        ],
        "steps_per_s": _round(mean(run.steps)),
        "step_rates": [
            {
                "cycle": each.cycle,
                "from_s": _round(each.start - run.began),
                "until_s": _round(each.end - run.began),
                "steps": each.steps,
            }
            for each in run.steps
        ],
        "restarts_in_place": [
            {
                "cycle": cycle,
                "call": one.call,
                "noticed_s": _round(one.noticed_at - run.began),
                "stalled_s": _round(one.noticed_at - one.progress_at),
                "took_s": _round(one.entered_at - one.noticed_at),
                "culprits": list(one.culprits),
                "why": why(one),
            }
            for cycle, one in story.in_place
        ],
        "incidents": [_incident(story, one) for one in run.incidents],
        "stalls": [_incident(story, one) for one in run.stalls],
    }


def _cycles(story: Story) -> list[dict[str, Any]]:
    """A row for each cycle: when, how it ended, how long each part of the recovery took."""
    failed = {recovery.cycle: recovery for recovery in story.recoveries}
    by_cycle: dict[int, list[tuple[float, float, Span]]] = {}
    for each in story.nodes:
        for span in each.spans:
            ends = each.at(span.start), each.at(span.end)
            by_cycle.setdefault(span.cycle, []).append((*ends, span))
    rows = []
    for cycle, seconds in sorted(story.ledger.by_cycle.items()):
        spans = by_cycle[cycle]
        recovery = failed.get(cycle)
        row: dict[str, Any] = {
            "cycle": cycle,
            "at_s": _round(min(start for start, _, _ in spans)),
            "until_s": _round(max(end for _, end, _ in spans)),
            "ranks": len({span.rank for _, _, span in spans if span.rank is not None}),
            "steps": _steps(story, cycle),
            "rank_seconds": _seconds(seconds),
            "failure": None,
        }
        if recovery is not None:
            row["failure"] = _failure(story, recovery, by_cycle.get(cycle + 1, ()))
        rows.append(row)
    return rows


def _failure(
    story: Story, recovery: Recovery, following: Iterable[tuple[float, float, Span]]
) -> dict[str, Any]:
    steps = [start for start, _, span in following if span.account == "steps"]
    began = story.run.began
    again = None if recovery.restarted_at is None else recovery.restarted_at - recovery.detected_at
    resumed = max(steps) - (recovery.detected_at - began) if steps and story.is_watched else None
    return {
        "ended_by": recovery.ended_by,
        "symptom": recovery.symptom,
        "fault": recovery.fault,
        "detected_s": _round(recovery.detected_at - began),
        "stacks": {str(rank): path for rank, path in recovery.stacks.items()},
        "ranks_started_after_s": _round(again),
        "steps_after_s": _round(resumed),
    }


def _steps(story: Story, cycle: int) -> int | None:
    """Of the section of steps that a rank has closed most often, or of its optimizer."""
    counts = []
    for each in story.nodes:
        for (of_cycle, _), progress in each.made.last_progress.items():
            if of_cycle == cycle:
                ended = progress.sections.items()
                counts += [one.times for name, one in ended if account_of(name) == "steps"]
                counts.append(progress.steps or 0)
    return max(counts, default=0) or None


def _incident(story: Story, one: Incident) -> dict[str, Any]:
    at = one.at
    return {
        "path": str(one.path),
        "node": one.node,
        "cycle": one.cycle,
        "at_s": None if at is None else _round(at - story.run.began),
        "culprits": list(one.culprits),
        "kind": one.kind,
        "confidence": one.confidence,
        "reason": one.reason,
        "actions": one.done,
        "advice": one.next,
        "groups": [
            {"ranks": list(group.ranks), "doing": group.text, "stack": group.stack}
            for group in one.groups
        ],
    }


def _seconds(sums: Mapping[Any, float]) -> dict[str, float]:
    return {str(account): round(s, _DIGITS) for account, s in sums.items() if s > 0.0}


def _round(s: float | None) -> float | None:
    return None if s is None else round(s, _DIGITS)


def as_shares(sums: Mapping[Account, float]) -> list[tuple[Account, float, float]]:
    """Account, seconds and share of all, in the order of the accounts; empty ones are left out."""
    total_s = sum(sums.values())
    return [
        (account, sums[account], sums[account] / total_s)
        for account in ACCOUNTS
        if sums.get(account, 0.0) > 0.0
    ]
