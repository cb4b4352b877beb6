"""An incident of the job, as programs read it, as people read it, and in three lines. Pure.

docs/incidents.md documents the form of the JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.pure.codec import encode
from holdfast.base.pure.rank_sets import ranks_of, text_of
from holdfast.base.pure.wording import count
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
from holdfast.evidence.pure.evidence_words import in_words
from holdfast.evidence.pure.incident import advice, seconds, what
from holdfast.page.pure.clocks import Overdue
from holdfast.watch.pure.monitor_messages import Overdue as SaidOverdue

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
class Incident:
    """All that is known of an incident on one node.

    Attributes:
        number: In the job, from 1.
        cycle: In which it was.
        node: Where this is written.
        time: When the evidence was complete, for people.
        wall: The same, seconds since 1970.
        verdict: On all ranks.
        digests: By rank: of this node, on the leader's node of all.
        without: Nodes whose evidence is missing, and why; empty: none is.
        cause: The first timeout that ran out on this node; None: none did.
        evidence_s: From there to the verdict; None: as above.
        done: What was done, in words.
        cost_s: From the last sign of life of the first overdue rank until one of the next cycle
            reported to its monitor; None: none has.
        stderr: Last lines of the ranks of this node, by rank; without those whose stderr does not
            go through the launcher.
        notifies: This node starts the command of ``--ft-on-incident`` for it.
    """

    number: int
    cycle: int
    node: str
    time: str
    wall: float
    verdict: Verdict
    digests: Mapping[int, RankDigest]
    without: str = ""
    cause: SaidOverdue | None = None
    evidence_s: float | None = None
    done: list[str] = field(default_factory=list)
    stderr: Mapping[int, Sequence[str]] = field(default_factory=dict)
    cost_s: float | None = None
    notifies: bool = False


def to_json(incident: Incident) -> dict[str, Any]:
    """For programs."""
    verdict, cause = incident.verdict, incident.cause
    return {
        "schema_version": SCHEMA_VERSION,
        "incident": incident.number,
        "cycle": incident.cycle,
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
        else {
            "rank": cause.rank,
            "clock": cause.clock,
            "name": cause.name,
            "age_s": cause.age_s,
            "limit_s": cause.limit_s,
        },
        "without": incident.without,
        "done": _done(incident),
        "next": ". ".join(next_steps(incident)),
        "evidence_s": incident.evidence_s,
        "cost_s": incident.cost_s,
        "notifies": incident.notifies,
        "stall": verdict.is_stall,
        "proof": verdict.proof,
        "ranks": {
            str(rank): {**_digest(it), "stderr": _list(incident.stderr.get(rank))}
            for rank, it in sorted(incident.digests.items())
        },
    }


def _list(lines: Sequence[str] | None) -> list[str] | None:
    return None if lines is None else [*lines]


def _digest(digest: RankDigest) -> dict[str, Any]:
    groups = [encode(group) for group in digest.groups]
    for group in groups:
        del group["op"]
    return {**in_words(digest), "groups": groups}


def headline(verdict: Verdict) -> str:
    """``rank 5 in `load_batch` data.py:88 · 15 others in `all_reduce```."""
    culprits: list[Alike] = []
    others: list[Alike] = []
    for group in verdict.groups:
        is_culprit = bool(verdict.culprits) and ranks_of(group.ranks)[0] in verdict.culprits
        (culprits if is_culprit else others).append(group)
    parts = [f"{_ranks(group)} {group.doing}" for group in culprits[:_GROUPS_SHOWN]]
    shown = others[:_GROUPS_SHOWN]
    parts += [
        f"{count(group.count, 'other')} {group.doing}"
        if culprits
        else f"{_ranks(group)} {group.doing}"
        for group in shown
    ]
    left = len(culprits) + len(others) - len(parts)
    return " · ".join([*parts, *([f"and {count(left, 'more group')}"] if left else [])])


def _ranks(group: Alike) -> str:
    return f"{'rank' if group.count == 1 else 'ranks'} {group.ranks}"


def next_steps(incident: Incident) -> list[str]:
    """What to look at or to change."""
    verdict, parts = incident.verdict, []
    if verdict.kind in _NEXT:
        parts.append(_NEXT[verdict.kind])
        shown = [it for it in incident.digests.values() if it.worker and not it.is_worker_hidden]
        if verdict.kind == LOADER and not shown:
            parts[-1] = _NEXT_OF_HIDDEN_WORKER
    here = [rank for rank in verdict.culprits if rank in incident.digests]
    if verdict.kind == MISMATCH and len(verdict.groups) > 1:
        parts += _files_of_calls(incident)
    elif here and verdict.kind not in (DEAD, MISSING):
        parts.append(_file_of(incident.digests[here[0]]))
    if incident.cause is not None and not verdict.proof:
        parts.append(advice(_clock(incident.cause), learned=incident.cause.learned))
    return parts


def _files_of_calls(incident: Incident) -> list[str]:
    """One rank of each of the first groups: what they called does not match."""
    first = [next(iter(ranks_of(group.ranks))) for group in incident.verdict.groups]
    files = [
        f"rank{rank}.txt on node {incident.digests[rank].node}"
        for rank in first[:_CALLS_SHOWN]
        if rank in incident.digests
    ]
    of_calls = "the stacks and last collectives of these calls"
    return [f"{' and '.join(files)} {'has' if len(files) == 1 else 'have'} {of_calls}"] * bool(
        files
    )


def _file_of(digest: RankDigest) -> str:
    """What the rank's file has: where no stack came, no threads."""
    file = f"rank{digest.rank}.txt on node {digest.node}"
    is_woken = digest.state in ("T", "t")  # for its stacks, after the verdict
    return (
        f"{file} {'has all threads' if digest.stack or is_woken else 'says why it has no stacks'}"
    )


def _clock(cause: SaidOverdue) -> Overdue:
    return Overdue(cause.clock, cause.name, cause.at - cause.limit_s, cause.limit_s)


def lines(incident: Incident, folder: str) -> list[str]:
    """What the launcher says: the culprit, the groups, whose timeout ran out, where all of it is.

    Monitors say nothing of ranks that they end because of it.
    """
    known, of_all = _evidence(incident)
    verdict = incident.verdict
    if verdict.is_stall:
        parts = [_overdue(incident), verdict.reason, _left_alone(verdict), f"evidence in {folder}"]
        shown = "; ".join(filter(None, parts))
        return [f"incident {incident.number} of cycle {incident.cycle} is a stall: {shown}"]
    told = [
        _overdue(incident),
        verdict.proof,
        f"evidence of {known} of {count(of_all, 'rank')} in {folder}",
    ]
    return [
        f"incident {incident.number} of cycle {incident.cycle}: {incident.verdict.reason}",
        f"  {headline(incident.verdict)}",
        f"  {'. '.join(['; '.join(filter(None, told)), *next_steps(incident)])}",
    ]


def line_elsewhere(incident: Incident, folder: str) -> str:
    """What the launchers of other nodes say of an incident that the leader's node logs for all."""
    # Only this node knows for how long which clock of its rank has run.
    overdue = f"{_overdue(incident)}; " if incident.cause is not None else ""
    return (
        f"incident {incident.number} of cycle {incident.cycle} is in the log of the launcher that "
        f"leads the job; {overdue}evidence of this node in {folder}"
    )


def pause_line(cycle: int, verdict: Verdict, digests: Mapping[int, RankDigest]) -> str:
    """Ranks make no steps, and not for long: who is where, and for whom others wait."""
    pause_s = max((digest.pause_s for digest in digests.values()), default=0.0)
    told = (
        f"no optimizer step for {seconds(pause_s)}" if pause_s else "no optimizer step for a while"
    )
    where = "" if verdict.culprits else f"; {headline(verdict)}"
    return f"cycle {cycle}: {told}; {verdict.reason}{where}"


def _left_alone(verdict: Verdict) -> str:
    proof = f"{verdict.proof}; " if verdict.proof else ""
    return f"{proof}no rank is ended, because {verdict.why_alone}"


def _overdue(incident: Incident) -> str:
    """``overdue: rank 3: Section 'step' has been open for 3.01 s, timeout 3.00 s, and rank 2``."""
    cause = incident.cause
    ranks = {rank for rank, digest in incident.digests.items() if digest.overdue}
    if cause is None:
        return f"overdue: {_set(sorted(ranks))}" if ranks else ""
    others = sorted(ranks - {cause.rank})
    more = f", and {_set(others)}" if others else ""
    return f"overdue: rank {cause.rank}: {what(_clock(cause), cause.detected_at)}{more}"


def _evidence(incident: Incident) -> tuple[int, int]:
    of_all = sum(group.count for group in incident.verdict.groups)
    lack = sum(group.count for group in incident.verdict.groups if group.shows_nothing)
    return of_all - lack, of_all


def report(incident: Incident) -> str:
    """For people, a screen at most."""
    verdict, cause = incident.verdict, incident.cause
    known, of_all = _evidence(incident)
    took = "" if incident.evidence_s is None else f", {seconds(incident.evidence_s)} after that"
    rows: list[tuple[str, Sequence[str]]] = [
        ("ranks", [headline(verdict)]),
        ("kind", [_kind(verdict)]),
        ("found by", [_cause(cause, incident.digests)]),
        ("stderr", _last_lines(incident)),
        ("evidence", [f"of {known} of {count(of_all, 'rank')}{took}"]),
        ("proof", [verdict.proof] if verdict.proof and not verdict.is_stall else []),
        ("missing", [incident.without] if incident.without else []),
        ("done", _done(incident) or ["nothing yet"]),
        ("next", next_steps(incident)),
        ("cost", [_cost(incident)]),
    ]
    text = [
        f"Incident {incident.number}, cycle {incident.cycle}, {incident.time}, on {incident.node}",
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


def _done(incident: Incident) -> list[str]:
    left_alone = [_left_alone(incident.verdict)] if incident.verdict.is_stall else []
    return list(incident.done) or left_alone


def _last_lines(incident: Incident) -> list[str]:
    """Of the first culprit, if it is here."""
    first = next(iter(incident.verdict.culprits), -1)
    digest = incident.digests.get(first)
    if first in incident.stderr:
        return [f"rank {first}: {line}" for line in incident.stderr[first][-_LINES_SHOWN:]]
    if digest is None or digest.node != incident.node:
        return []
    return [f"not kept of rank {first}: it goes to a terminal (--redirects 2 or --tee 2 keeps it)"]


def _cause(cause: SaidOverdue | None, digests: Mapping[int, RankDigest]) -> str:
    overdue = [rank for rank, digest in digests.items() if digest.overdue]
    if cause is None:
        return f"timeouts of {_set(overdue)}" if overdue else "a timeout on another node"
    name = f"section '{cause.name}'" if cause.name is not None else cause.clock
    others = [rank for rank in overdue if rank != cause.rank]
    more = f"; also overdue: {_set(others)}" if others else ""
    return f"{name} of rank {cause.rank}, timeout {seconds(cause.limit_s)}{more}"


def _set(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {text_of(ranks)}"


def _cost(incident: Incident) -> str:
    if incident.cost_s is None:
        return "not known: no rank of a later cycle has reported to its monitor"
    return f"{seconds(incident.cost_s)} without progress, until a rank of the next cycle reported"
