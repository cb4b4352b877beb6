"""From the digests of all ranks to the ranks that hold up the job. Pure.

The rank whose timeout runs out first is no better a guess than any: in a collective job all run out
within milliseconds. So no rule looks at that. They are tried in this order:

    1  a rank has ended                        while others wait: nothing else is needed
    2  it is stopped, or stuck in the kernel   in both looks
    3  it is awaited, and waits for no rank    in torch's flight recorder; a rank that shows nothing
                                               has not begun what the others wait in
       it is gone, and others fail of that
    4  collectives that do not match           the rank that broke its own order, else the fewest
    5  those who are awaited were not asked    nobody is named
    6  they wait for complete collectives      nobody is named (``wait_graph.py``)
    7  stacks                                  it is outside collectives, and others are in one
    8  all are in the same collective          unread bytes show whose threads do not read
    9  no rank waits, and ranks move           the timeout is too short
   10  it cannot be told

Rules 3 and 4 decide *which* ranks; stacks and /proc say *how* they hang (:func:`kind_of`). Without
a flight recorder that is a guess, and its confidence says so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property

from holdfast.core.evidence import (
    COMMUNICATION,
    COMPUTING,
    DEAD,
    EXITING,
    HIGH,
    INTERPRETER,
    KERNEL,
    LOADER,
    LOW,
    MEDIUM,
    MISMATCH,
    MISSING,
    NATIVE,
    NONE,
    SILENT,
    SLOW,
    STOPPED,
    UNKNOWN,
    WAITING,
    Alike,
    GroupDigest,
    Missing,
    RankDigest,
    Verdict,
)
from holdfast.core.failure import NAMES_A_PEER
from holdfast.core.mismatch import CallsAt, begun_of, differ, left_out, odd_ones
from holdfast.core.rank_sets import ranks_of, text_of
from holdfast.core.wait_graph import complete
from holdfast.core.wording import count

ENDED = ("its process has ended", "the process is gone")
"""Beginnings of :attr:`RankDigest.lacks` of a rank that is dead."""
ENDED_WELL = "it has ended well"
"""The same of a rank that may have done all its work."""
GOING = "has no handler for signal"
"""Part of the same, of a rank that has answered such a signal before."""
SLEEP = "a sleep"
""":attr:`RankDigest.waits_for` of a rank that waits for nothing but time."""
BEING_STOPPED = "the ranks of this node are being stopped"
"""The same of a rank whose silence has that reason."""
NOT_ASKED = "not asked"
"""Beginning of :attr:`Missing.why` of ranks that cannot be blamed for their silence."""
BUSY_SHARE = 0.5
"""Of a CPU, from which on a main thread computes,"""
BUSY_SWITCHES = 6
"""or context switches in 50 ms, from which on it does something in turns."""
_GROUPS = 8
_RANKS_TOLD = 3
_POINT_TO_POINT = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
"""Calls that gloo's flight recorder does not have."""


def judge(digests: Mapping[int, RankDigest], missing: Mapping[str, Missing]) -> Verdict:
    """Name the culprits.

    Args:
        digests: By global rank.
        missing: Nodes that have sent none, by name.
    """
    job = _Job(digests, missing)
    verdict = next((found for rule in _RULES if (found := rule(job)) is not None), None)
    return verdict or job.verdict((), UNKNOWN, job.looks_alike(), NONE)


class _Job:
    """What all ranks show.

    Attributes:
        digests: By rank.
        silent: Ranks of nodes that do not answer; their nodes.
    """

    def __init__(self, digests: Mapping[int, RankDigest], missing: Mapping[str, Missing]) -> None:
        self.digests = digests
        self.missing = missing
        self.silent = {rank: name for name, it in missing.items() for rank in ranks_of(it.ranks)}

    @cached_property
    def size(self) -> int:
        """How many ranks are known of."""
        return len(self.digests.keys() | self.silent.keys())

    @property
    def count_ended_well(self) -> int:
        """How many have ended, and not of a failure."""
        return sum(digest.lacks.startswith(ENDED_WELL) for digest in self.digests.values())

    def is_few(self, ranks: Collection[int]) -> bool:
        """They are less than half of all, or the only ones."""
        return 2 * len(ranks) < self.size or len(ranks) == self.size == 1

    # ------------------------------------------------------------ the wait graph

    @cached_property
    def groups(self) -> dict[tuple[str, str], dict[int, GroupDigest]]:
        """By name and members: what each rank says of a group."""
        found: dict[tuple[str, str], dict[int, GroupDigest]] = defaultdict(dict)
        for rank, digest in self.digests.items():
            for group in digest.groups:
                found[group.name, group.members][rank] = group
        return found

    @cached_property
    def calls_at(self) -> CallsAt:
        """What each rank called as which collective, as far as ranks wait in it or the next."""
        found: CallsAt = defaultdict(dict)
        for (name, members), told in self.groups.items():
            for rank, group in told.items():
                if group.pending and not group.peers:
                    found[name, members, group.seq][rank] = group.pending
                    if group.last:
                        found[name, members, group.seq - 1][rank] = group.last
        return found

    @cached_property
    def waiting(self) -> set[int]:
        """Ranks that are in a collective, a send or a receive."""
        return {
            rank
            for rank, digest in self.digests.items()
            if any(group.pending for group in digest.groups)
        }

    @cached_property
    def awaited(self) -> set[int]:
        """Ranks for which one of those waits."""
        found: set[int] = set()
        for (_, members), told in self.groups.items():
            waits = [group for group in told.values() if group.pending]
            if not waits:
                continue
            for group in waits:
                found.update(ranks_of(group.peers))
            seqs = [group.seq for group in waits if not group.peers]
            if seqs:
                last = max(seqs)
                begun = {rank for rank, group in told.items() if group.enqueued >= last}
                found.update({*(ranks_of(members) or self.digests)} - begun)
        return found

    @cached_property
    def complete(self) -> dict[tuple[str, str, int], set[int]]:
        """Collectives that no rank is missing from, if all waiting ends there."""
        return complete(self.groups, self.calls_at, self.digests)

    # ------------------------------------------------------------ words

    def name(self, ranks: Collection[int]) -> str:
        """``rank 5 (pid 12, node b)``, ``ranks 2,3 (node b)``, ``node b (ranks 8-15)``."""
        first = min(ranks)
        digest = self.digests.get(first)
        nodes = {self.node_of(rank) for rank in ranks}
        node = f"node {next(iter(nodes))}" if len(nodes) == 1 else count(len(nodes), "node")
        if len(ranks) == 1:
            pid = f"pid {digest.pid}, " if digest is not None and digest.pid else ""
            return f"rank {first} ({pid}{node})"
        if len(nodes) == 1 and self.whole_nodes(ranks):
            return f"{node} (ranks {text_of(ranks)})"
        return f"ranks {text_of(ranks)} ({node})"

    def node_of(self, rank: int) -> str:
        """Its name."""
        digest = self.digests.get(rank)
        return digest.node if digest is not None else self.silent.get(rank, "?")

    def whole_nodes(self, culprits: Collection[int]) -> tuple[str, ...]:
        """Nodes of several ranks, all of which are culprits."""
        everyone = self.digests.keys() | self.silent.keys()
        all_of = Counter(map(self.node_of, everyone))
        named = Counter(map(self.node_of, culprits))
        return tuple(sorted(n for n, some in named.items() if some == all_of[n] > 1))

    def doing(self, rank: int) -> str:
        """What it shows; completes "rank 5"."""
        digest = self.digests.get(rank)
        if digest is None:
            return f"without evidence: {self.missing[self.silent[rank]].why}"
        pending = next((group.pending for group in digest.groups if group.pending), "")
        if digest.state in ("T", "t"):
            return "stopped"
        if kind_of(digest) == EXITING:
            return f"exiting{_after(digest)}" if digest.exception else "exiting"
        if pending:
            return f"in `{pending.partition(' ')[0]}`"
        if digest.place:
            return f"in {shown(digest.place)}"
        return f"without evidence: {digest.lacks}" if digest.lacks else f"in state {digest.state}"

    def others(self, culprits: Collection[int]) -> str:
        """``; 15 others wait for it in `all_reduce```."""
        rest = [rank for rank in self.digests if rank not in culprits]
        calls = Counter(
            group.pending.partition(" ")[0]
            for rank in rest
            for group in self.digests[rank].groups
            if group.pending
        )
        waiting = [rank for rank in rest if rank in self.waiting]
        if not calls:
            inside = [rank for rank in rest if self.digests[rank].is_in_collective]
            calls, waiting = Counter(self.digests[rank].call for rank in inside), inside
        if not waiting:
            return ""
        it = "it" if len(culprits) == 1 else "them"
        verb = "waits" if len(waiting) == 1 else "wait"
        call = calls.most_common(1)[0][0]
        place = f" in `{call}`" if call else ""
        return f"; {count(len(waiting), 'other rank')} {verb} for {it}{place}"

    def looks_alike(self) -> str:
        """What the ranks show, and that it decides nothing."""
        return f"the evidence does not tell which rank holds up the others: {self.summary()}"

    def summary(self) -> str:
        """``ranks 0-3 look alike, in `all_reduce```; of several groups the largest."""
        groups = self.alike(())
        shown_ranks = "; ".join(
            f"{'rank' if it.count == 1 else 'ranks'} {it.ranks} {it.doing}" for it in groups[:3]
        )
        alike = " look alike" if len(groups) == 1 and groups[0].count > 1 else ""
        return f"{shown_ranks}{alike}" if groups else "no rank has shown anything"

    def alike(self, culprits: Collection[int]) -> tuple[Alike, ...]:
        """All ranks by what they show, culprits first."""
        found: dict[tuple[bool, str], list[int]] = defaultdict(list)
        for rank in sorted(self.digests.keys() | self.silent.keys()):
            found[rank not in culprits, self.doing(rank)].append(rank)
        ordered = sorted(found.items(), key=lambda item: (item[0][0], -len(item[1])))
        groups = [Alike(text_of(ranks), len(ranks), doing) for (_, doing), ranks in ordered]
        if len(groups) <= _GROUPS:
            return tuple(groups)
        rest = [rank for _, ranks in ordered[_GROUPS - 1 :] for rank in ranks]
        doing = f"in {len(groups) - _GROUPS + 1} other states"
        return (*groups[: _GROUPS - 1], Alike(text_of(rest), len(rest), doing))

    def verdict(
        self, culprits: Collection[int], kind: str, reason: str, confidence: str
    ) -> Verdict:
        """All of it."""
        named = tuple(sorted(culprits))
        nodes = self.whole_nodes(named)
        return Verdict(named, kind, reason, confidence, self.alike(named), nodes)

    def named(self, culprits: Collection[int], confidence: str) -> Verdict:
        """With how they hang."""
        by_kind: dict[str, list[int]] = defaultdict(list)
        for rank in sorted(culprits):
            by_kind[self.kind(rank)].append(rank)
        kinds = sorted(by_kind, key=lambda kind: -len(by_kind[kind]))
        parts = [self.sentence(by_kind[kind], kind) for kind in kinds[:_RANKS_TOLD]]
        return self.verdict(
            culprits, kinds[0], "; ".join(parts) + self.others(culprits), confidence
        )

    def kind(self, rank: int) -> str:
        """How it hangs."""
        digest = self.digests.get(rank)
        return MISSING if digest is None else kind_of(digest)

    def sentence(self, ranks: list[int], kind: str) -> str:
        """Of ranks that hang alike."""
        digest = self.digests.get(ranks[0])
        do = _does if len(ranks) == 1 else _do
        if digest is None:
            why = self.missing[self.silent[ranks[0]]].why
            does = "does" if len(ranks) == 1 or self.whole_nodes(ranks) else "do"
            return f"{self.name(ranks)} {does} not answer: {why}"
        return f"{self.name(ranks)} {_HOW[kind](digest, do)}"


def _does(verb: str) -> str:
    return verb


def _do(verb: str) -> str:
    return {"does": "do", "is": "are", "has": "have"}.get(verb, verb.removesuffix("s"))


def shown(place: str) -> str:
    """``load_batch data.py:88`` with the function as code."""
    function, _, line = place.partition(" ")
    return f"`{function}` {line}".rstrip()


def _in(digest: RankDigest) -> str:
    call = f", in its call of `{digest.call}`" if digest.call else ""
    return f" in {shown(digest.place)}{call}" if digest.place else ""


def _how_it_ended(digest: RankDigest) -> str:
    return "with exit code 0" if digest.lacks.startswith(ENDED_WELL) else f"({digest.lacks})"


def _after(digest: RankDigest) -> str:
    return f" after its {digest.exception}" if digest.exception else ": its program has ended"


def _kernel(digest: RankDigest, do: Callable[[str], str]) -> str:
    where = f" in {digest.wchan}" if digest.wchan else ""
    return f"{do('is')} stuck in the kernel (state D{where}){_in(digest)}"


def _loader(digest: RankDigest, do: Callable[[str], str]) -> str:
    worker = f": worker {digest.worker}" if digest.worker else ""
    return f"{do('waits')} for a data loader{_in(digest)}{worker}"


def _computing(digest: RankDigest, do: Callable[[str], str]) -> str:
    is_busy = digest.state == "R" or digest.cpu >= BUSY_SHARE
    used = f"{digest.cpu:.0%} of a CPU" if is_busy else "in small steps"
    return f"{do('runs')}{_in(digest)} ({used})"


def _waiting(digest: RankDigest, do: Callable[[str], str]) -> str:
    if digest.waits_for == SLEEP:
        return f"{do('sleeps')}{_in(digest)}"
    what = f" for {digest.waits_for}" if digest.waits_for else ""
    return f"{do('waits')}{what}{_in(digest)}"


_HOW: dict[str, Callable[[RankDigest, Callable[[str], str]], str]] = {
    DEAD: lambda digest, do: f"{do('has')} ended {_how_it_ended(digest)}",
    EXITING: lambda digest, do: f"{do('is')} exiting{_after(digest)}",
    STOPPED: lambda _, do: f"{do('is')} stopped (by SIGSTOP or a debugger)",
    KERNEL: _kernel,
    LOADER: _loader,
    INTERPRETER: lambda digest, do: f"{do('holds')} the interpreter's lock{_in(digest)}",
    COMPUTING: _computing,
    NATIVE: lambda digest, do: f"{do('is')} in native code{_in(digest)}",
    WAITING: _waiting,
    UNKNOWN: lambda digest, do: f"{do('shows')} nothing: {digest.lacks}",
}


def how(digest: RankDigest) -> str:
    """How a rank hangs that waits for no other; completes "rank 5"."""
    return _HOW[kind_of(digest)](digest, _does)


def kind_of(digest: RankDigest) -> str:
    """How a rank hangs that waits for no other."""
    if digest.lacks.startswith((*ENDED, ENDED_WELL)) or digest.state in ("Z", "X"):
        return DEAD
    if digest.state in ("T", "t"):
        return STOPPED
    if digest.state == "D":
        return KERNEL
    if digest.exception or _has_no_frames(digest):
        return EXITING
    if digest.is_in_loader:
        return LOADER
    if digest.helper == SILENT:
        return INTERPRETER
    if digest.state == "R" or digest.cpu >= BUSY_SHARE or digest.switches >= BUSY_SWITCHES:
        return COMPUTING
    if digest.is_in_collective:
        return NATIVE
    return WAITING if digest.state else UNKNOWN


def _has_no_frames(digest: RankDigest) -> bool:
    """Its interpreter is going: its stacks were taken, and are none, or it takes none any more."""
    is_looked_at = not digest.lacks or GOING in digest.lacks
    return digest.helper == SILENT and not digest.stack and is_looked_at


# ---------------------------------------------------------------- rules
def _ended(job: _Job) -> Verdict | None:
    dead = [rank for rank, digest in job.digests.items() if kind_of(digest) == DEAD]
    ended = [rank for rank in dead if not job.digests[rank].lacks.startswith(ENDED_WELL)]
    return job.named(ended, HIGH) if ended and len(ended) < len(job.digests) else None


def _stopped(job: _Job) -> Verdict | None:
    by_kind = defaultdict(list)
    for rank, digest in job.digests.items():
        by_kind[kind_of(digest)].append(rank)
    stopped, stuck = by_kind[STOPPED], by_kind[KERNEL]
    if stopped and (job.is_few(stopped) or not stuck):
        return job.named(stopped, HIGH)
    if stuck and job.is_few(stuck):
        return job.named(stuck, HIGH)
    if stuck:
        places = Counter(job.digests[rank].wchan for rank in stuck)
        reason = (
            f"{count(len(stuck), 'rank')} of {job.size} are stuck in the kernel (state D in "
            f"{places.most_common(1)[0][0] or '?'}): they wait for the same disk, file system or "
            "device"
        )
        return job.verdict((), KERNEL, reason, NONE)
    return None


def _awaited(job: _Job) -> Verdict | None:
    found = job.awaited - job.waiting
    blamed = {rank for rank in found if _can_blame(job, rank)}
    blamed = {rank for rank in blamed if not _lost_a_peer(job.digests.get(rank))} or blamed
    if not blamed:
        return None
    # A receive that no recorder has: it waits, for a rank that is not known.
    free = {rank for rank in blamed if not _is_point_to_point(job.digests.get(rank))}
    if not free:
        waits = "waits" if len(blamed) == 1 else "wait"
        where = _in(job.digests[min(blamed)])
        reason = f"{job.name(blamed)} {waits}{where} for a rank that torch does not record"
        return job.verdict((), MISMATCH, f"{reason}{job.others(blamed)}", NONE)
    free = next((some for some in _surest(job, free) if some), free)
    answered = all(digest.groups for rank, digest in job.digests.items() if rank not in free)
    few = 2 * len(free) <= job.size
    return job.named(free, HIGH if answered and few else MEDIUM if few else LOW)


def _left(job: _Job) -> Verdict | None:
    """Ranks fail of the loss of another one; that one has ended well, or is exiting."""
    lost = {rank for rank, digest in job.digests.items() if _lost_a_peer(digest)}
    gone = {rank for rank, it in job.digests.items() if kind_of(it) in (DEAD, EXITING)} - lost
    return job.named(gone, MEDIUM) if lost and gone else None


def _surest(job: _Job, free: set[int]) -> Iterable[set[int]]:
    """Those who certainly have not begun: one that shows nothing may have."""
    shown = {rank: job.digests[rank] for rank in free if rank in job.digests}
    yield {rank for rank, it in shown.items() if kind_of(it) in (DEAD, EXITING)}
    yield {rank for rank, it in shown.items() if it.groups or kind_of(it) in (STOPPED, KERNEL)}
    # A busy machine may have left no time for an answer.
    yield {rank for rank, it in shown.items() if it.place and not it.is_in_collective}
    yield {rank for rank, it in shown.items() if it.state}


def _can_blame(job: _Job, rank: int) -> bool:
    if (digest := job.digests.get(rank)) is not None:
        return not digest.lacks.startswith(BEING_STOPPED)
    name = job.silent.get(rank)
    return name is not None and not job.missing[name].why.startswith(NOT_ASKED)


def _lost_a_peer(digest: RankDigest | None) -> bool:
    """It ends because another one did."""
    return digest is not None and any(text in digest.exception for text in NAMES_A_PEER)


def _is_point_to_point(digest: RankDigest | None) -> bool:
    return digest is not None and digest.call in _POINT_TO_POINT


def _mismatch(job: _Job) -> Verdict | None:
    differs = {rank for calls in job.calls_at.values() if differ(calls) for rank in calls}
    is_cycle = bool(job.awaited) and job.awaited <= job.waiting and not job.complete
    if is_cycle:
        differs.update(job.waiting)
    if not differs:
        return None
    waits = {rank: _call_of(job.digests[rank]) for rank in differs & job.waiting}
    unusual = {rank for rank in waits if any(it.is_unusual for it in job.digests[rank].groups)}
    if unusual and len(unusual) < len(waits):
        return _mismatched(job, unusual, waits, HIGH)
    odd, calls = odd_ones(job.calls_at)
    if not odd and is_cycle:
        begun = {rank: begun_of(job.digests[rank]) for rank in waits}
        odd, calls = left_out(job.calls_at, begun), waits
    if odd:
        return _mismatched(job, odd, calls, MEDIUM)
    told = "; ".join(
        f"{_ranks([rank for rank in waits if waits[rank] == call])} called {call}"
        for call, _ in Counter(waits.values()).most_common(_RANKS_TOLD)
    )
    reason = (
        f"the ranks wait in collectives that do not match: {told}; the evidence does not tell "
        "which is wrong"
    )
    return job.verdict((), MISMATCH, reason, NONE)


def _call_of(digest: RankDigest) -> str:
    group = next(group for group in digest.groups if group.pending)
    return f"`{group.pending}` of group {group.name} (collective {group.seq})"


def _ranks(ranks: Collection[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {text_of(ranks)}"


def _mismatched(
    job: _Job, culprits: set[int], calls: Mapping[int, str], confidence: str
) -> Verdict:
    first = min(culprits)
    others = [rank for rank in calls if rank not in culprits]
    place = job.digests[first].place
    where = f" in {shown(place)}" if place else ""
    called = f"{job.name(culprits)} called {calls[first]}{where}"
    if waiting := [rank for rank in others if _waits_for(job, rank, first)]:
        waits = "waits" if len(waiting) == 1 else "wait"
        reason = f"{called}, and left out {calls[waiting[0]]}, in which {_ranks(waiting)} {waits}"
    else:
        usual = Counter(calls[rank] for rank in others).most_common(1)[0][0]
        reason = f"{called}, where {count(len(others), 'other rank')} called {usual}"
    return job.verdict(culprits, MISMATCH, reason, confidence)


def _waits_for(job: _Job, rank: int, other: int) -> bool:
    """In a collective that the other one has not begun."""
    for group in job.digests[rank].groups:
        if group.pending and not group.peers and other in (ranks_of(group.members) or ()):
            told = job.groups[group.name, group.members].get(other)
            if told is None or told.enqueued < group.seq:
                return True
    return False


def _not_asked(job: _Job) -> Verdict | None:
    """Others are waited for, but whether they hang or their launcher does is not known."""
    unknown = job.awaited & (job.silent.keys() - job.digests.keys())
    if not unknown or any(_can_blame(job, rank) for rank in unknown):
        return None
    waits = min(job.waiting)
    why = job.missing[job.silent[min(unknown)]].why
    verb = "waits" if len(job.waiting) == 1 else "wait"
    reason = (
        f"{_ranks(job.waiting)} {verb} {job.doing(waits)} for {_ranks(unknown)}, of which nothing "
        f"is known: {why}"
    )
    return job.verdict((), MISSING, reason, NONE)


def _complete(job: _Job) -> Verdict | None:
    """Some ranks are, and others wait for them or go on; of all, see :func:`_same_collective`."""
    inside = {rank for ranks in job.complete.values() for rank in ranks}
    if not inside or len(inside) == job.size:
        return None
    first, *more = sorted(job.complete)
    called = job.calls_at[first][min(job.complete[first])]
    calls = f"`{called}` of group {first[0]} (collective {first[2]})"
    calls += f" and in {count(len(more), 'other collective')}" if more else ""
    reason = (
        f"{_ranks(inside)} {'is' if len(inside) == 1 else 'are'} in {calls}, and no rank is "
        "missing there: the network or the communication library does not go on, not the script"
        f"{job.others(inside)}"
    )
    return job.verdict((), COMMUNICATION, reason, NONE)


def _outside(job: _Job) -> Verdict | None:
    """By stacks alone; with a recorder for ranks that it says nothing of."""
    inside = {rank for rank, digest in job.digests.items() if digest.is_in_collective}
    idle = {rank for rank in inside if kind_of(job.digests[rank]) in (NATIVE, COMPUTING)}
    known = {rank for rank, digest in job.digests.items() if digest.state}
    outside = known - inside - job.waiting
    if idle and outside and len(outside) < len(known):
        few = job.is_few(outside) or 2 * len(outside) == len(known)
        return job.named(outside, MEDIUM if few else LOW)
    unlike = {
        rank
        for rank in known - job.waiting
        if kind_of(job.digests[rank]) in (INTERPRETER, LOADER) and job.is_few([rank])
    }
    if unlike and job.is_few(unlike):
        return job.named(unlike, LOW)
    return None


def _same_collective(job: _Job) -> Verdict | None:
    known = {rank: digest for rank, digest in job.digests.items() if digest.state}
    inside = [rank for rank in known if rank in job.waiting or known[rank].is_in_collective]
    if not inside or len(inside) < len(known) or len(known) < 2:
        return None
    unread = {rank for rank in inside if known[rank].unread_bytes}
    if unread and job.is_few(unread):
        held = sum(known[rank].unread_bytes for rank in unread)
        reason = (
            f"{job.name(unread)} {'does' if len(unread) == 1 else 'do'} not read from the network: "
            f"{held} B wait in the receive queues, and all ranks are in the same collective"
        )
        return job.verdict(unread, COMMUNICATION, reason, MEDIUM)
    if own := [rank for rank in inside if _is_point_to_point(known[rank])]:
        call = known[own[0]].call
        reason = (
            f"all {count(len(inside), 'rank')} wait for each other, {_ranks(own)} in `{call}`: "
            "sends and receives do not match, or come in another order on some ranks"
        )
        return job.verdict((), MISMATCH, reason, NONE)
    calls = Counter(job.doing(rank) for rank in inside)
    reason = (
        f"all {count(len(inside), 'rank')} are {calls.most_common(1)[0][0]} and wait for each "
        "other: the network or the communication library does not go on, not the script"
    )
    return job.verdict((), COMMUNICATION, reason, NONE)


def _slow(job: _Job) -> Verdict | None:
    known = {rank: digest for rank, digest in job.digests.items() if digest.state}
    if not known or job.waiting:
        return None
    moving = [rank for rank, digest in known.items() if kind_of(digest) == COMPUTING]
    if len(moving) == len(known) and len(known) > 1:
        reason = (
            f"no rank waits for another, and all {count(len(known), 'rank')} run: the timeout is "
            "shorter than the work takes"
        )
        return job.verdict((), SLOW, reason, NONE)
    overdue = [r for r, digest in known.items() if digest.overdue and not _lost_a_peer(digest)]
    is_only_one = len(known) == 1 == job.size - job.count_ended_well
    if overdue and (len(overdue) < len(known) or is_only_one):
        return job.named(overdue, MEDIUM)
    places = {digest.place for digest in known.values()}
    if len(places) == 1 and len(known) > 1 and all(places):
        reason = (
            f"all {count(len(known), 'rank')} wait at the same place, and for no rank of the job: "
            f"{_waiting(next(iter(known.values())), _do)}"
        )
        return job.verdict((), WAITING, reason, NONE)
    return None


_RULES: Iterable[Callable[[_Job], Verdict | None]] = (
    _ended,
    _stopped,
    _awaited,
    _left,
    _mismatch,
    _not_asked,
    _complete,
    _outside,
    _same_collective,
    _slow,
)
