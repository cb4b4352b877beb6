"""An incident of the job as JSON, as a page for people, and as log lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.pure.codec import encode, encode_fields
from holdfast.base.pure.rank_sets import named, ranks_of
from holdfast.base.pure.wording import count
from holdfast.events.run.run_words import restart_words, signal_words
from holdfast.evidence.pure.evidence import (
    COMMUNICATION,
    COMPUTING,
    DEAD,
    EXITING,
    INTERPRETER,
    KERNEL,
    LOADER,
    MISMATCH,
    MISSING,
    NATIVE,
    SLOW,
    STOPPED,
    WAITING,
    Alike,
    RankDigest,
    Verdict,
)
from holdfast.evidence.pure.incident import advice, describe_clock, seconds
from holdfast.evidence.pure.rank_words import in_words
from holdfast.node.pure.console_lines import fitted
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.watch.pure.monitor_messages import Overdue, Signalled

SCHEMA_VERSION = 1
_GROUPS_SHOWN = 4
_LINES_SHOWN = 3
_CALLS_SHOWN = 3

_NEXT = {
    STOPPED: "Look for a debugger, a shell (Ctrl-Z), a scheduler or a control group's freezer",
    KERNEL: "Check the disk, network file system or device that it uses (dmesg names it)",
    LOADER: "Look at the worker's line, or give the DataLoader a timeout",
    INTERPRETER: "Look for a C extension or a regular expression there that keeps the lock",
    COMPUTING: "If that work is right, give it a longer timeout; else it does not end",
    NATIVE: "See what its threads do with gdb or py-spy --native in a run that hangs again",
    WAITING: "See what it waits for there",
    MISMATCH: "Compare the conditions under which ranks make that call: all ranks must make it",
    MISSING: "Check that node: its launcher or its network does not answer",
    EXITING: "See why its program ended before those of the others, and what its exit waits for",
    DEAD: "See how it ended: its own last lines say why",
    COMMUNICATION: "Check the network between the nodes, and the communication library's own log",
    SLOW: "Give it a longer timeout",
}
_NEXT_OF_HIDDEN_WORKER = "Give the DataLoader a timeout: its error says what the workers did"


@dataclass
class NodeIncident:
    """An incident, with the facts that one node adds.

    Attributes:
        over: The incident, as the node knows it now.
        node: Name of the host that writes it.
        time: When the evidence was complete, for people.
        wall: The same, seconds since 1970.
        cause: The first timeout that ran out on this node; None: none did.
        evidence_s: From there to the verdict; None: as above.
        signals: Those that monitors have sent.
        next_cycle: The first that began after it; None: none has.
        stderr: Last lines of the ranks of this node, by rank; without those whose stderr does not
            go through the launcher.
        cost_s: From the last progress of the first overdue rank until a rank of the next cycle
            reported to its monitor; None: none has.
    """

    over: IncidentOver
    node: str
    time: str
    wall: float
    cause: Overdue | None = None
    evidence_s: float | None = None
    signals: list[Signalled] = field(default_factory=list)
    next_cycle: int | None = None
    stderr: Mapping[int, Sequence[str]] = field(default_factory=dict)
    cost_s: float | None = None


def to_json(incident: NodeIncident) -> dict[str, Any]:
    """For programs; docs/incidents.md is made from this list.

    Fields:
        ``schema_version``: 1.
        ``incident``, ``cycle``: number in the job, from 1; cycle in which it was, from 0.
        ``node``: the node that has written this file.
        ``time``, ``wall``: when all evidence was there: for people; seconds since 1970.
        ``culprits``: global ranks that hold up the job; empty where none can be named.
        ``kind``, ``confidence``: see above: ``high``, ``medium``, ``low``, ``none``.
        ``reason``: a sentence.
        ``nodes``: nodes of which every rank is a culprit.
        ``groups``: ranks that show the same, culprits first: ``ranks``, and ``text`` that completes
            "rank 5".
        ``cause``: the timeout that ran out first on this node: ``rank``, ``clock``, ``name`` of a
            section, ``age_s``, ``limit_s``; null: none did here.
        ``without``: nodes whose evidence is missing, and why; empty: none is.
        ``signals``: sent since by the monitors of this node: ``cycle``, ``rank``, ``pid``,
            ``signal``, ``why``.
        ``next_cycle``: the cycle that was started since; null: none was.
        ``done``: both in words.
        ``next``: where to look, and the option to change.
        ``evidence_s``: seconds from that timeout to the verdict; null: none ran out here.
        ``cost_s``: seconds from the last sign of life of that rank until a rank of the next cycle
            reported to its monitor; null: none has.
        ``notifies``: this node starts the command of [``--ft-on-incident``](metrics.md) for it.
        ``stall``: true: ranks make no optimizer steps, and [no rank is killed](no-code-change.md)
            for it. ``kind`` is still that of the culprit.
        ``proof``: of ranks without timeouts: the proof that no time can help; empty: nothing
            does.
        ``ranks``: by global rank: its digest, and ``stderr``, its last lines (null: a terminal, or
            another node).
    """
    over, verdict, cause = incident.over, incident.over.verdict, incident.cause
    return {
        "schema_version": SCHEMA_VERSION,
        "incident": over.incident,
        "cycle": over.cycle,
        "node": incident.node,
        "time": incident.time,
        "wall": incident.wall,
        "culprits": list(verdict.culprits),
        "kind": verdict.kind,
        "confidence": verdict.confidence,
        "reason": verdict.reason,
        "nodes": list(verdict.nodes),
        "groups": [
            {"ranks": ranks_of(group.ranks), "text": group.doing} for group in verdict.groups
        ],
        "cause": None
        if cause is None
        else {name: getattr(cause, name) for name in ("rank", "clock", "name", "age_s", "limit_s")},
        "without": over.without,
        "signals": [encode_fields(each) for each in incident.signals],
        "next_cycle": incident.next_cycle,
        "done": _done(incident),
        "next": ". ".join(next_steps(incident)),
        "evidence_s": incident.evidence_s,
        "cost_s": incident.cost_s,
        "notifies": over.notifies,
        "stall": verdict.is_stall,
        "proof": verdict.proof,
        "ranks": {
            str(rank): {**_digest(it), "stderr": incident.stderr.get(rank)}
            for rank, it in sorted(over.digests.items())
        },
    }


def _digest(digest: RankDigest) -> dict[str, Any]:
    groups = [encode(group) for group in digest.groups]
    for group in groups:
        del group["op"]
    return {**in_words(digest), "groups": groups}


def headline(verdict: Verdict) -> str:
    """``rank 5 in `load_batch` data.py:88 · 15 others in `all_reduce```."""
    culprits = [it for it in verdict.groups if ranks_of(it.ranks)[0] in verdict.culprits]
    others = [it for it in verdict.groups if it not in culprits]
    parts = [f"{_ranks(group)} {group.doing}" for group in culprits[:_GROUPS_SHOWN]]
    for group in others[:_GROUPS_SHOWN]:
        name = count(group.count, "other") if culprits else _ranks(group)
        parts.append(f"{name} {group.doing}")
    left = len(verdict.groups) - len(parts)
    return " · ".join([*parts, *([f"and {count(left, 'more group')}"] if left else [])])


def _ranks(group: Alike) -> str:
    return f"{'rank' if group.count == 1 else 'ranks'} {group.ranks}"


def next_steps(incident: NodeIncident) -> list[str]:
    """Advice for the user: where to look, which option to change."""
    verdict, parts = incident.over.verdict, []
    if verdict.kind in _NEXT:
        parts.append(_NEXT[verdict.kind])
        digests = incident.over.digests.values()
        shows_worker = any(it.worker and not it.is_worker_hidden for it in digests)
        if verdict.kind == LOADER and not shows_worker:
            parts[-1] = _NEXT_OF_HIDDEN_WORKER
    here = [rank for rank in verdict.culprits if rank in incident.over.digests]
    if verdict.kind == MISMATCH and len(verdict.groups) > 1:
        parts += _files_of_calls(incident)
    elif here and verdict.kind not in (DEAD, MISSING):
        parts.append(_file_of(incident.over.digests[here[0]]))
    if incident.cause is not None and not verdict.proof:
        parts.append(advice(vars(incident.cause)))
    return parts


def _files_of_calls(incident: NodeIncident) -> list[str]:
    """The files of one rank of each of the first groups: their calls do not match."""
    digests = incident.over.digests
    first = [ranks_of(group.ranks)[0] for group in incident.over.verdict.groups[:_CALLS_SHOWN]]
    files = [f"rank{rank}.txt on node {digests[rank].node}" for rank in first if rank in digests]
    if not files:
        return []
    have = "has" if len(files) == 1 else "have"
    return [f"{' and '.join(files)} {have} the stacks and last collectives of these calls"]


def _file_of(digest: RankDigest) -> str:
    """The file of a rank's evidence, and whether it has stacks."""
    is_woken = digest.state in ("T", "t")  # for its stacks, after the verdict
    shows = "has all threads" if digest.stack or is_woken else "says why it has no stacks"
    return f"rank{digest.rank}.txt on node {digest.node} {shows}"


def lines(incident: NodeIncident, folder: str, room: int) -> list[str]:
    """Log lines of at most ``room`` characters, and one with the folder, as long as it is.

    Of a hang: the culprit, its code and the ranks that wait. The other line is the restart's; and
    monitors log nothing of ranks that they end because of it. Of a stall also why no rank is ended.
    """
    over, verdict = incident.over, incident.over.verdict
    known, of_all = _evidence(incident)
    path = (
        f"  incident {over.incident} of cycle {over.cycle}, evidence of {known} of "
        f"{count(of_all, 'rank')}: {folder}"
    )
    if not verdict.is_stall:
        return [_culprit_line(verdict, room), path]
    stall = f"incident {over.incident} of cycle {over.cycle} is a stall: {verdict.reason}"
    alone = f"  {_left_alone(verdict)}"
    if overdue := _overdue(incident):
        alone = fitted(f"  {overdue}", room, f"; {_left_alone(verdict)}")
    return [fitted(stall, room), fitted(alone, room), path]


def _culprit_line(verdict: Verdict, room: int) -> str:
    """The sentence; where it is too long, its few words and the largest group of the others."""
    if len(verdict.reason) <= room or not verdict.short:
        return fitted(verdict.reason, room)
    others = [it for it in verdict.groups if ranks_of(it.ranks)[0] not in verdict.culprits]
    tail = f"; {count(others[0].count, 'other')} {others[0].doing}" if others else ""
    return fitted(verdict.short, room, "" if verdict.kind == MISMATCH else tail)


def detail_line(incident: NodeIncident) -> str:
    """The timeouts that ran out, the proof, and the next steps, for the level debug."""
    about = "; ".join(filter(None, [_overdue(incident), incident.over.verdict.proof]))
    return ". ".join(filter(None, [about, *next_steps(incident)]))


def line_elsewhere(incident: NodeIncident, folder: str) -> str:
    """The log line on other nodes, for an incident that the leader's node logs for all."""
    return (
        f"incident {incident.over.incident} of cycle {incident.over.cycle} is in the log of the "
        f"launcher that leads the job; evidence of this node: {folder}"
    )


def pause_line(cycle: int, verdict: Verdict, digests: Mapping[int, RankDigest]) -> str:
    """Ranks have made no steps for a while: where they are, and which one others wait for."""
    pause_s = max((digest.pause_s for digest in digests.values()), default=0.0)
    since = f"for {seconds(pause_s)}" if pause_s else "for a while"
    where = "" if verdict.culprits else f"; {headline(verdict)}"
    return f"cycle {cycle}: no optimizer step {since}; {verdict.reason}{where}"


def _left_alone(verdict: Verdict) -> str:
    proof = f"{verdict.proof}; " if verdict.proof else ""
    return f"{proof}no rank is killed, because {verdict.why_alone}"


def _overdue(incident: NodeIncident) -> str:
    """``timed out: rank 3: Section 'step' has been open for 3.01 s, timeout 3 s, and rank 2``."""
    cause = incident.cause
    ranks = {rank for rank, digest in incident.over.digests.items() if digest.overdue}
    if cause is None:
        return f"timed out: {named(sorted(ranks))}" if ranks else ""
    others = sorted(ranks - {cause.rank})
    more = f", and {named(others)}" if others else ""
    return f"timed out: rank {cause.rank}: {describe_clock(vars(cause))}{more}"


def _evidence(incident: NodeIncident) -> tuple[int, int]:
    groups = incident.over.verdict.groups
    known = sum(group.count for group in groups if not group.shows_nothing)
    return known, sum(group.count for group in groups)


def report(incident: NodeIncident) -> str:
    """For people, a screen at most."""
    over, verdict, cause = incident.over, incident.over.verdict, incident.cause
    known, of_all = _evidence(incident)
    took = "" if incident.evidence_s is None else f", {seconds(incident.evidence_s)} after that"
    rows: list[tuple[str, Sequence[str]]] = [
        ("ranks", [headline(verdict)]),
        ("kind", [_kind(verdict)]),
        ("found by", [_cause(cause, incident.over.digests)]),
        ("stderr", _last_lines(incident)),
        ("evidence", [f"of {known} of {count(of_all, 'rank')}{took}"]),
        ("proof", [verdict.proof] if verdict.proof and not verdict.is_stall else []),
        ("missing", [incident.over.without] if incident.over.without else []),
        ("done", _done(incident) or ["nothing yet"]),
        ("next", next_steps(incident)),
        ("cost", [_cost(incident)]),
    ]
    text = [
        f"Incident {over.incident}, cycle {over.cycle}, {incident.time}, on {incident.node}",
        "",
        f"{verdict.reason}.",
        "",
    ]
    for name, values in rows:
        text += [f"{'' if at else name:<12}{value}" for at, value in enumerate(values)]
    return "\n".join([*text, ""])


def _kind(verdict: Verdict) -> str:
    found = f"{verdict.kind}, confidence {verdict.confidence}"
    return f"a stall, which ends no rank; {found}" if verdict.is_stall else found


def _done(incident: NodeIncident) -> list[str]:
    left_alone = [_left_alone(incident.over.verdict)] if incident.over.verdict.is_stall else []
    lines = [signal_words(each.signal, [each.rank], each.why) for each in incident.signals]
    return [*lines, *restart_words(incident.next_cycle)] or left_alone


def _last_lines(incident: NodeIncident) -> list[str]:
    """Of the first culprit, if it is here."""
    first = next(iter(incident.over.verdict.culprits), -1)
    digest = incident.over.digests.get(first)
    if first in incident.stderr:
        return [f"rank {first}: {line}" for line in incident.stderr[first][-_LINES_SHOWN:]]
    if digest is None or digest.node != incident.node:
        return []
    return [f"not kept of rank {first}: it goes to a terminal (--redirects 2 or --tee 2 keeps it)"]


def _cause(cause: Overdue | None, digests: Mapping[int, RankDigest]) -> str:
    overdue = [rank for rank, digest in digests.items() if digest.overdue]
    if cause is None:
        return f"timeouts of {named(overdue)}" if overdue else "a timeout on another node"
    name = f"section '{cause.name}'" if cause.name is not None else cause.clock
    others = [rank for rank in overdue if rank != cause.rank]
    more = f"; also timed out: {named(others)}" if others else ""
    return f"{name} of rank {cause.rank}, timeout {seconds(cause.limit_s)}{more}"


def _cost(incident: NodeIncident) -> str:
    if incident.cost_s is None:
        return "not known: no rank of a later cycle has reported to its monitor"
    return f"{seconds(incident.cost_s)} without progress, until a rank of the next cycle reported"
