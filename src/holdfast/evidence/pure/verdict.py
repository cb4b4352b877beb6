"""From the digests of all ranks to the ranks that hold up the job. Pure.

The rank whose timeout runs out first is no better a guess than any: in a collective job all run out
within milliseconds. So no rule looks at that. :data:`RULES` are tried in order; the docstring of
each has its condition, and kind and confidence of its verdict (docs/incidents.md shows them). They
decide *which* ranks; stacks and /proc say *how* they hang (``hang_kind.py``). Without a flight
recorder that is a guess, and its confidence says so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

from holdfast.base.pure.rank_sets import named
from holdfast.base.pure.wording import count
from holdfast.evidence.pure import evidence as ev
from holdfast.evidence.pure.echoes import is_echo
from holdfast.evidence.pure.evidence import Missing, RankDigest, Verdict
from holdfast.evidence.pure.evidence_words import at, how, of_one_or_many, shown
from holdfast.evidence.pure.hang_kind import kind_of
from holdfast.evidence.pure.job_evidence import JobEvidence
from holdfast.evidence.pure.mismatch import Called, begun_of, called, differ, left_out, odd_ones
from holdfast.evidence.pure.rank_words import awaited

_CALLS_TOLD = 3


def judge(digests: Mapping[int, RankDigest], missing: Mapping[str, Missing]) -> Verdict:
    """Name the culprits, from the digests of ranks, and the nodes that have sent none, by name."""
    job = JobEvidence(digests, missing)
    verdict = next((found for rule in RULES if (found := rule(job)) is not None), None)
    verdict = verdict or job.verdict((), ev.UNKNOWN, job.looks_alike(), ev.NONE)
    gone = {rank for rank in job.ended_well if rank not in verdict.culprits}
    if not gone or not any(_is_inside(digest) for digest in digests.values()):
        return verdict
    has = of_one_or_many("has", gone)
    return verdict.but(reason=f"{verdict.reason}; {named(gone)} {has} exited with code 0")


def _is_inside(digest: RankDigest) -> bool:
    return bool(digest.waits_in) or _is_in_call(digest) or digest.waits_for == ev.STORE


def _is_in_call(digest: RankDigest) -> bool:
    """Of torch.distributed's."""
    return digest.is_in_collective or digest.is_transfer


# ---------------------------------------------------------------- rules
def _ended(job: JobEvidence) -> Verdict | None:
    """A rank has failed while others wait.

    Kind: ``dead``. Confidence: high.
    """
    dead = [rank for rank, digest in job.digests.items() if kind_of(digest) == ev.DEAD]
    ended = [rank for rank in dead if job.digests[rank].end != ev.ENDED_WELL]
    return job.named(ended, ev.HIGH) if ended and len(ended) < len(job.digests) else None


def _stopped(job: JobEvidence) -> Verdict | None:
    """A rank is stopped, frozen by its control group, or stuck in the kernel (state D).

    In both samples.

    Kind: ``stopped``, ``kernel``. Confidence: high.
    """
    by_kind = defaultdict(list)
    for rank, digest in job.digests.items():
        by_kind[kind_of(digest)].append(rank)
    stopped, stuck = by_kind[ev.STOPPED], by_kind[ev.KERNEL]
    if stopped and (job.is_few(stopped) or not stuck):
        return job.named(stopped, ev.HIGH)
    if stuck and job.is_few(stuck):
        return job.named(stuck, ev.HIGH)
    if stuck:
        places = Counter(job.digests[rank].wchan for rank in stuck)
        reason = (
            f"{count(len(stuck), 'rank')} of {job.size} are stuck in the kernel (state D in "
            f"{places.most_common(1)[0][0] or '?'}): they wait for the same disk, file system or "
            "device"
        )
        return job.verdict((), ev.KERNEL, reason, ev.NONE)
    return None


def _awaited(job: JobEvidence) -> Verdict | None:
    """Others wait in a collective that this rank has not begun, and it waits for none.

    Also one that exited with 0, or that has ended its program and still exits.

    Kind: how it hangs, below; ``dead``, ``exiting``. Confidence: high; medium where some ranks show
    nothing; low where most ranks are named.
    """
    found = job.awaited - job.waiting
    blamed = {rank for rank in found if _can_blame(job, rank)}
    blamed = {rank for rank in blamed if not _lost_a_peer(job.digests.get(rank))} or blamed
    if not blamed:
        return None
    # A receive that no recorder has: it waits, for a rank that is not known.
    free = {rank for rank in blamed if not _is_transfer(job.digests.get(rank))}
    free = free - job.at_store or free  # another one may have to set the key
    if not free:
        wait = of_one_or_many("waits", blamed)
        where = at(job.digests[min(blamed)])
        reason = f"{job.name(blamed)} {wait}{where} for a rank that torch does not record"
        return job.verdict((), ev.MISMATCH, f"{reason}{job.others(blamed)}", ev.NONE)
    free = next((some for some in _surest(job, free) if some), free)
    answered = all(digest.groups for rank, digest in job.digests.items() if rank not in free)
    few = 2 * len(free) <= job.size
    return job.named(free, ev.HIGH if answered and few else ev.MEDIUM if few else ev.LOW)


def _left(job: JobEvidence) -> Verdict | None:
    """Ranks fail of the loss of another one, which has ended well or is exiting.

    Kind: ``dead``, ``exiting``. Confidence: medium.
    """
    lost = {rank for rank, digest in job.digests.items() if _lost_a_peer(digest)}
    gone = {rank for rank, it in job.digests.items() if kind_of(it) in (ev.DEAD, ev.EXITING)} - lost
    return job.named(gone, ev.MEDIUM) if lost and gone else None


def _surest(job: JobEvidence, free: set[int]) -> Iterable[set[int]]:
    """Those who certainly have not begun: one that shows nothing may have."""
    shown = {rank: job.digests[rank] for rank in free if rank in job.digests}
    yield {rank for rank, it in shown.items() if kind_of(it) in (ev.DEAD, ev.EXITING)}
    yield {
        rank for rank, it in shown.items() if it.groups or kind_of(it) in (ev.STOPPED, ev.KERNEL)
    }
    # A busy machine may have left no time for an answer.
    yield {rank for rank, it in shown.items() if it.place and not it.is_in_collective}
    yield {rank for rank, it in shown.items() if it.state}


def _can_blame(job: JobEvidence, rank: int) -> bool:
    if (digest := job.digests.get(rank)) is not None:
        return digest.end != ev.BEING_STOPPED
    name = job.silent.get(rank)
    return name is not None and job.missing[name].is_asked


def _lost_a_peer(digest: RankDigest | None) -> bool:
    """It ends because another one did."""
    return digest is not None and is_echo(digest.exception)


def _is_transfer(digest: RankDigest | None) -> bool:
    """In one that gloo's flight recorder does not have."""
    return digest is not None and digest.is_transfer


def _mismatch(job: JobEvidence) -> Verdict | None:
    """Ranks wait in collectives that do not match.

    Named is the one that broke its own earlier order; else the fewest that called the same
    collective by another name or size, or left out one of a subgroup; none where both sides are as
    many.

    Kind: ``mismatch``. Confidence: high; medium; none.
    """
    differs = {rank for calls in job.calls_at.values() if differ(calls) for rank in calls}
    is_cycle = bool(job.awaited) and job.awaited <= job.waiting and not job.complete
    if is_cycle:
        differs.update(job.waiting)
    if not differs:
        return None
    waits = {rank: _call_of(job.digests[rank]) for rank in differs & job.waiting}
    unusual = {rank for rank in waits if any(it.is_unusual for it in job.digests[rank].groups)}
    if unusual and len(unusual) < len(waits):
        return _mismatched(job, unusual, waits, ev.HIGH)
    odd, calls = odd_ones(job.calls_at)
    if not odd and is_cycle:
        begun = {rank: begun_of(job.digests[rank]) for rank in waits}
        odd, calls = left_out(job.calls_at, begun), waits
    if odd:
        return _mismatched(job, odd, calls, ev.MEDIUM)
    by_call = "; ".join(
        f"{named(alike)} called {call}{_place_of(job, alike)}"
        for call, _ in Counter(waits.values()).most_common(_CALLS_TOLD)
        if (alike := [rank for rank in waits if waits[rank] == call])
    )
    reason = (
        f"the ranks wait in collectives that do not match: {by_call}; the evidence does not tell "
        "which is wrong"
    )
    return job.verdict((), ev.MISMATCH, reason, ev.NONE)


def _call_of(digest: RankDigest) -> Called:
    group = digest.waits_in[0]
    return called(group.pending, group.name, group.seq)


def _mismatched(
    job: JobEvidence, culprits: set[int], calls: Mapping[int, Called], confidence: str
) -> Verdict:
    first = min(culprits)
    others = [rank for rank in calls if rank not in culprits]
    reason = f"{job.name(culprits)} called {calls[first]}{_place_of(job, [first])}"
    short = f"{named(culprits)} called `{calls[first].call}`{_place_of(job, [first])}"
    if waiting := [rank for rank in others if _waits_for(job, rank, first)]:
        wait = of_one_or_many("waits", waiting)
        short += f", and left out `{calls[waiting[0]].call}` of {named(waiting)}"
        reason += (
            f", and left out {calls[waiting[0]]}, in which {named(waiting)} {wait}"
            f"{_place_of(job, waiting)}"
        )
    else:
        usual = Counter(calls[rank] for rank in others).most_common(1)[0][0]
        alike = [rank for rank in others if calls[rank] == usual]
        n_others = count(len(others), "other rank")
        short += f", {n_others} `{usual.call}`{_place_of(job, alike)}"
        reason += (
            f", where {count(len(others), 'other rank')} called {usual}{_place_of(job, alike)}"
        )
    return job.verdict(culprits, ev.MISMATCH, reason, confidence).but(short=short)


def _place_of(job: JobEvidence, ranks: Collection[int]) -> str:
    """`` in `step` train.py:9``: where most of them are; "": not known."""
    places = Counter(place for rank in ranks if (place := job.digests[rank].place))
    return f" in {shown(places.most_common(1)[0][0])}" if places else ""


def _waits_for(job: JobEvidence, rank: int, other: int) -> bool:
    """In a collective that the other one has not begun."""
    return any(
        group.members and not group.peers and other in job.behind[group.call]
        for group in job.digests[rank].waits_in
    )


def _not_asked(job: JobEvidence) -> Verdict | None:
    """Ranks wait for others that could not be asked: the leader's node does not answer.

    Kind: ``missing``. Confidence: none.
    """
    unknown = job.awaited & (job.silent.keys() - job.digests.keys())
    if not unknown or any(_can_blame(job, rank) for rank in unknown):
        return None
    waits = min(job.waiting)
    why = job.missing[job.silent[min(unknown)]].why
    wait = of_one_or_many("waits", job.waiting)
    reason = (
        f"{named(job.waiting)} {wait} {job.doing(waits)} for {named(unknown)}, of which nothing "
        f"is known: {why}"
    )
    return job.verdict((), ev.MISSING, reason, ev.NONE)


def _complete(job: JobEvidence) -> Verdict | None:
    """All waiting ends in collectives that all of their ranks have begun, with the same call.

    Kind: ``communication``. Confidence: none.
    """
    inside = {rank for ranks in job.complete.values() for rank in ranks}
    if not inside or len(inside) == job.size:
        return None
    first, *more = sorted(job.complete)
    called = job.calls_at[first][min(job.complete[first])]
    calls = f"`{called}` of group {first[0]} (collective {first[2]})"
    calls += f" and in {count(len(more), 'other collective')}" if more else ""
    reason = (
        f"{named(inside)} {of_one_or_many('is', inside)} in {calls}, and no rank is "
        "missing there: the network or the communication library stands still, not the script"
        f"{job.others(inside)}"
    )
    return job.verdict((), ev.COMMUNICATION, reason, ev.NONE)


def _at_store(job: JobEvidence) -> Verdict | None:
    """No rank is in a collective, and all but a few wait for a key of torch's store: those few.

    None where more than half do not wait there.

    Kind: how it hangs. Confidence: medium; none.
    """
    waits = job.at_store
    if not waits or job.waiting:
        return None
    known = job.seen.keys()
    outside = {rank for rank in known if not _is_inside(job.digests[rank])}
    if outside and (job.is_few(outside) or 2 * len(outside) == len(known)):
        return job.named(outside, ev.MEDIUM)
    first = job.digests[min(waits)]
    wait = of_one_or_many("waits", waits)
    waiting = f"all {count(len(waits), 'rank')}" if waits == known else named(waits)
    sets = "which none of them sets" if waits == known else "and it is not known which rank sets it"
    reason = f"{waiting} {wait} for {awaited(ev.STORE)}{at(first)}, {sets}"
    return job.verdict((), ev.WAITING, reason, ev.NONE)


def _outside(job: JobEvidence) -> Verdict | None:
    """By stacks alone, a rank is outside collectives while others idle in one.

    Where there is no flight recorder, or for sends and receives on gloo, which its recorder does
    not have.

    Kind: how it hangs. Confidence: medium, low.
    """
    inside = {rank for rank, digest in job.digests.items() if _is_in_call(digest)}
    idle = {
        rank
        for rank in inside
        if kind_of(job.digests[rank]) in (ev.NATIVE, ev.COMPUTING)
        or _is_transfer(job.digests[rank])
    }
    known = job.seen.keys()
    outside = known - inside - job.waiting
    if idle and outside and len(outside) < len(known):
        few = job.is_few(outside) or 2 * len(outside) == len(known)
        return job.named(outside, ev.MEDIUM if few else ev.LOW)
    unlike = {
        rank
        for rank in known - job.waiting
        if kind_of(job.digests[rank]) in (ev.INTERPRETER, ev.LOADER) and job.is_few([rank])
    }
    if unlike and job.is_few(unlike):
        return job.named(unlike, ev.LOW)
    return None


def _same_collective(job: JobEvidence) -> Verdict | None:
    """All are in the same collective: the rank that does not read its network connections.

    Kind: ``communication``. Confidence: medium; none where no rank differs.
    """
    known = job.seen
    inside = [rank for rank in known if rank in job.waiting or _is_in_call(known[rank])]
    if not inside or len(inside) < len(known) or len(known) < 2:
        return None
    unread = {rank for rank in inside if known[rank].unread_bytes}
    if unread and job.is_few(unread):
        held = sum(known[rank].unread_bytes for rank in unread)
        reason = (
            f"{job.name(unread)} {of_one_or_many('does', unread)} not read from the network: "
            f"{held} B wait in the receive queues, and all ranks are in the same collective"
        )
        return job.verdict(unread, ev.COMMUNICATION, reason, ev.MEDIUM)
    if own := [rank for rank in inside if _is_transfer(known[rank])]:
        call = known[own[0]].call
        reason = (
            f"all {count(len(inside), 'rank')} wait for each other, {named(own)} in `{call}`: "
            "sends and receives do not match, or come in another order on some ranks"
        )
        return job.verdict((), ev.MISMATCH, reason, ev.NONE)
    calls = Counter(job.doing(rank) for rank in inside)
    reason = (
        f"all {count(len(inside), 'rank')} are {calls.most_common(1)[0][0]} and wait for each "
        "other: the network or the communication library stands still, not the script"
    )
    return job.verdict((), ev.COMMUNICATION, reason, ev.NONE)


def _slow(job: JobEvidence) -> Verdict | None:
    """No rank waits for another, and all run: the timeout is too short.

    Kind: ``slow``. Confidence: none.
    """
    known = job.seen
    if not known or job.waiting:
        return None
    moving = [rank for rank, digest in known.items() if kind_of(digest) == ev.COMPUTING]
    if len(moving) == len(known) and len(known) > 1:
        reason = (
            f"no rank waits for another, and all {count(len(known), 'rank')} run: the timeout is "
            "shorter than the work takes"
        )
        return job.verdict((), ev.SLOW, reason, ev.NONE)
    overdue = [r for r, digest in known.items() if digest.overdue and not _lost_a_peer(digest)]
    is_only_one = len(known) == 1 == job.size - len(job.ended_well)
    if overdue and (len(overdue) < len(known) or is_only_one):
        return job.named(overdue, ev.MEDIUM)
    places = {digest.place for digest in known.values()}
    if len(places) == 1 and len(known) > 1 and all(places):
        reason = (
            f"all {count(len(known), 'rank')} wait at the same place, and for no rank of the job: "
            f"{how(next(iter(known.values())), are_many=True)}"
        )
        return job.verdict((), ev.WAITING, reason, ev.NONE)
    return None


RULES: Iterable[Callable[[JobEvidence], Verdict | None]] = (
    _ended,
    _stopped,
    _awaited,
    _left,
    _mismatch,
    _not_asked,
    _complete,
    _at_store,
    _outside,
    _same_collective,
    _slow,
)
