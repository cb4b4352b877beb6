"""All ranks at an incident: the wait graph, and groups of ranks that show the same. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

from holdfast.base.pure.rank_sets import ranks_of, text_of
from holdfast.base.pure.wording import count
from holdfast.evidence.pure import evidence as ev
from holdfast.evidence.pure.evidence import Alike, Call, GroupDigest, Missing, RankDigest, Verdict
from holdfast.evidence.pure.evidence_words import at, doing, how
from holdfast.evidence.pure.hang_kind import Shown, kind_of, shown_by
from holdfast.evidence.pure.mismatch import CallsAt, differ
from holdfast.evidence.pure.rank_words import awaited

PEERS_UNKNOWN = ("coalesced", "send", "recv")
"""Calls of sends and receives; of several at once, the recorder does not say the peers."""
_GROUPS = 8
_KINDS_TOLD = 3


def ends_of_waiting(waits: Mapping[Call, set[int]], behind: Mapping[Call, set[int]]) -> list[Call]:
    """Calls that no rank is missing from, if all waiting ends there; empty: there is a circle.

    Ranks whose calls do not match wait in a circle. Where there is none, and all have called the
    same, they wait for collectives that do not end though no rank is missing: no fault of the
    script.

    Args:
        waits: Ranks that wait in each call.
        behind: Ranks that each call waits for.
    """
    missed_by = defaultdict(list)
    for call, missing in behind.items():
        for rank in missing:
            missed_by[rank].append(call)
    n_behind = {call: len(missing) for call, missing in behind.items()}
    n_calls = Counter(rank for ranks in waits.values() for rank in ranks)
    ends = [call for call, missing in behind.items() if not missing]
    lead_there = list(ends)  # they, and calls whose missing ranks wait in such calls alone
    for call in lead_there:  # which grows
        for rank in waits[call]:
            n_calls[rank] -= 1
            for blocked in () if n_calls[rank] else missed_by[rank]:
                n_behind[blocked] -= 1
                if not n_behind[blocked]:
                    lead_there.append(blocked)
    return ends if len(lead_there) == len(behind) else []


class JobEvidence:
    """All digests of an incident, and facts that follow from them.

    Attributes:
        digests: By rank.
        silent: Ranks of nodes that do not answer; their nodes.
    """

    def __init__(self, digests: Mapping[int, RankDigest], missing: Mapping[str, Missing]) -> None:
        self.digests = digests
        self.missing = missing
        self.silent = {rank: name for name, it in missing.items() for rank in ranks_of(it.ranks)}

    @cached_property
    def everyone(self) -> list[int]:
        """All ranks that are known of, in order."""
        return sorted(self.digests.keys() | self.silent.keys())

    @property
    def size(self) -> int:
        """How many they are."""
        return len(self.everyone)

    @cached_property
    def seen(self) -> dict[int, RankDigest]:
        """Those of ranks whose process was there to be looked at."""
        return {rank: digest for rank, digest in self.digests.items() if digest.state}

    @property
    def ended_well(self) -> set[int]:
        """Ranks that have ended, and not of a failure."""
        return {r for r, digest in self.digests.items() if digest.end == ev.ENDED_WELL}

    def is_few(self, ranks: Collection[int]) -> bool:
        """They are less than half of all, or the only ones."""
        return 2 * len(ranks) < self.size or len(ranks) == self.size == 1

    # ------------------------------------------------------------ the wait graph

    @cached_property
    def groups(self) -> dict[tuple[str, str], dict[int, GroupDigest]]:
        """By name and members of a group: its digest on each rank."""
        found: dict[tuple[str, str], dict[int, GroupDigest]] = defaultdict(dict)
        for rank, digest in self.digests.items():
            for group in digest.groups:
                found[group.name, group.members][rank] = group
        return found

    @cached_property
    def calls_at(self) -> CallsAt:
        """Call of each rank, by collective, as far as ranks wait in it or the next."""
        found: CallsAt = defaultdict(dict)
        for (name, members), digests in self.groups.items():
            for rank, group in digests.items():
                if group.pending and not group.peers:
                    found[name, members, group.seq][rank] = group.pending
                    if group.last:
                        found[name, members, group.seq - 1][rank] = group.last
        return found

    @cached_property
    def waits(self) -> dict[Call, set[int]]:
        """Ranks that wait in each call, a collective, a send or a receive."""
        found: dict[Call, set[int]] = defaultdict(set)
        for rank, digest in self.digests.items():
            for group in digest.waits_in:
                found[group.call].add(rank)
        return found

    @cached_property
    def behind(self) -> dict[Call, set[int]]:
        """Ranks that each of these calls waits for: its peers, or members that have not begun."""
        found: dict[Call, set[int]] = {}
        for call in self.waits:
            name, members, seq, peers = call
            found[call] = {*ranks_of(peers)}
            if not peers:
                begun = {r for r, it in self.groups[name, members].items() if it.enqueued >= seq}
                found[call] = self.members(members) - begun
        return found

    @cached_property
    def waiting(self) -> set[int]:
        """Ranks that wait in one of them."""
        return set().union(*self.waits.values())

    @cached_property
    def awaited(self) -> set[int]:
        """Ranks for which one of those waits."""
        return set().union(*self.behind.values())

    @cached_property
    def complete(self) -> dict[tuple[str, str, int], set[int]]:
        """Collectives that no rank is missing from, if all waiting ends there; their waiting ranks.

        Empty where there is a circle, or the calls of all members of one are not known.
        """
        for group in (each for digest in self.digests.values() for each in digest.waits_in):
            if group.is_unusual or (group.pending.startswith(PEERS_UNKNOWN) and not group.peers):
                return {}
        found = {call[:3]: self.waits[call] for call in ends_of_waiting(self.waits, self.behind)}
        is_sure = all(
            self.calls_at[at].keys() >= self.members(at[1]) and not differ(self.calls_at[at])
            for at in found
        )
        return found if is_sure else {}

    def members(self, of_group: str) -> set[int]:
        """Of a group with these members; all ranks where they are not known."""
        return {*(ranks_of(of_group) or self.digests)}

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
        all_of = Counter(map(self.node_of, self.everyone))
        named = Counter(map(self.node_of, culprits))
        return tuple(sorted(n for n, some in named.items() if some == all_of[n] > 1))

    def doing(self, rank: int) -> str:
        """State of a rank; completes "rank 5"."""
        return self._in_words(self._shown_by(rank), rank)

    def _in_words(self, shown: Shown, rank: int) -> str:
        return self.missing[self.silent[rank]].why if shown.state == ev.MISSING else doing(shown)

    def _shown_by(self, rank: int, *, with_line: bool = False) -> Shown:
        digest = self.digests.get(rank)
        if digest is None:
            node = self.silent[rank]
            return Shown(ev.MISSING, detail=self.missing[node].kind(node))
        return shown_by(digest, with_line=with_line)

    def others(self, culprits: Collection[int]) -> str:
        """``; 15 others wait for it in `all_reduce```."""
        rest = {rank: it for rank, it in self.digests.items() if rank not in culprits}
        waiting = [rank for rank in rest if rank in self.waiting]
        called = [g.pending.partition(" ")[0] for it in rest.values() for g in it.waits_in]
        if not waiting:
            waiting = [r for r, it in rest.items() if it.is_in_collective and not it.is_transfer]
            called = [rest[rank].call for rank in waiting]
        sends = [r for r, it in rest.items() if it.is_transfer and r not in self.waiting]
        transfers = self._others_wait(sends, "in a send or receive")  # the other end is not known
        if not waiting:
            at_store = sorted(self.at_store.intersection(rest))
            return transfers or self._others_wait(at_store, f"for {awaited(ev.STORE)}")
        it = "it" if len(culprits) == 1 else "them"
        call = Counter(called).most_common(1)[0][0]
        place = f" in `{call}`" if call else ""
        return f"; {_others_that_wait(waiting)} for {it}{place}{transfers}"

    def _others_wait(self, ranks: Sequence[int], purpose: str) -> str:
        if not ranks:
            return ""
        return f"; {_others_that_wait(ranks)} {purpose}{at(self.digests[ranks[0]])}"

    @cached_property
    def at_store(self) -> set[int]:
        """Ranks that wait for a key of torch's store, which another one may have to set."""
        return {rank for rank, digest in self.digests.items() if digest.waits_for == ev.STORE}

    def looks_alike(self) -> str:
        """State of the ranks, which decides nothing; of several groups the largest."""
        groups = self.alike(())
        shown_ranks = "; ".join(
            f"{'rank' if it.count == 1 else 'ranks'} {it.ranks} {it.doing}" for it in groups[:3]
        )
        alike = " look alike" if len(groups) == 1 and groups[0].count > 1 else ""
        return (
            "the evidence does not tell which rank holds up the others: "
            f"{shown_ranks or 'no rank has shown anything'}{alike}"
        )

    def alike(self, culprits: Collection[int], *, with_lines: bool = False) -> tuple[Alike, ...]:
        """All ranks by their state, culprits first."""
        found: dict[tuple[bool, Shown], list[int]] = defaultdict(list)
        for rank in self.everyone:
            found[rank not in culprits, self._shown_by(rank, with_line=with_lines)].append(rank)
        ordered = sorted(found.items(), key=lambda item: (item[0][0], -len(item[1])))
        groups = [
            Alike(text_of(ranks), len(ranks), self._in_words(state, ranks[0]), state.is_nothing)
            for (_, state), ranks in ordered
        ]
        if len(groups) <= _GROUPS:
            return tuple(groups)
        rest = [rank for _, ranks in ordered[_GROUPS - 1 :] for rank in ranks]
        others = f"in {len(groups) - _GROUPS + 1} other states"
        return (*groups[: _GROUPS - 1], Alike(text_of(rest), len(rest), others))

    def verdict(
        self, culprits: Collection[int], kind: str, reason: str, confidence: str
    ) -> Verdict:
        """All of it."""
        named = tuple(sorted(culprits))
        nodes = self.whole_nodes(named)
        alike = self.alike(named, with_lines=kind == ev.MISMATCH)
        return Verdict(named, kind, reason, confidence, alike, nodes)

    def named(self, culprits: Collection[int], confidence: str) -> Verdict:
        """With how they hang."""
        by_kind: dict[str, list[int]] = defaultdict(list)
        for rank in sorted(culprits):
            by_kind[self.kind(rank)].append(rank)
        kinds = sorted(by_kind, key=lambda kind: -len(by_kind[kind]))
        parts = [self.sentence(by_kind[kind]) for kind in kinds[:_KINDS_TOLD]]
        found = self.verdict(
            culprits, kinds[0], "; ".join(parts) + self.others(culprits), confidence
        )
        return found.but(short=self.sentence(by_kind[kinds[0]], is_short=True))

    def kind(self, rank: int) -> str:
        """How it hangs."""
        digest = self.digests.get(rank)
        return ev.MISSING if digest is None else kind_of(digest)

    def sentence(self, ranks: list[int], *, is_short: bool = False) -> str:
        """Of ranks that hang alike."""
        name = f"rank {ranks[0]}" if is_short and len(ranks) == 1 else self.name(ranks)
        digest = self.digests.get(ranks[0])
        if digest is None:
            why = self.missing[self.silent[ranks[0]]].why
            is_one = len(ranks) == 1 or self.whole_nodes(ranks)
            return f"{name} {'does' if is_one else 'do'} not answer: {why}"
        return f"{name} {how(digest, are_many=len(ranks) > 1)}"


def _others_that_wait(ranks: Collection[int]) -> str:
    """Words by which ``holdfast explain`` knows the line."""
    return f"{len(ranks)} {'other rank waits' if len(ranks) == 1 else 'other ranks wait'}"
