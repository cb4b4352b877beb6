"""Decide about ranks that make no steps, and of which no chosen timeout runs. Pure, and light.

Such a rank evaluates, saves, downloads, compiles or waits for a person far more often than it
hangs, and looking does not tell one from the other. So (D-1) a stall is reported at the floor, and
ranks are ended only where the job may be started again and it is proved that no time can help:

    mismatch   ranks have called the same collective of a group as different operations
    stopped    a rank has been stopped (state T) or gone for the floor, and others wait for it
    circle     ranks wait for each other, and every wait is one for a rank, in torch's flight
               recorder; locks and sleeps may wait for anything
    timeout    a rank waits in collectives for longer than all of their groups' timeouts, and torch
               has not ended it
"""

from __future__ import annotations

from holdfast.base.pure.rank_sets import named
from holdfast.evidence.pure.evidence import HIGH, MEDIUM, RankDigest, Verdict
from holdfast.evidence.pure.hang_kind import is_gone
from holdfast.evidence.pure.job_evidence import PEERS_UNKNOWN, JobEvidence
from holdfast.page.pure.clocks import PAUSE, STEP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.evidence.pure.evidence import GroupDigest, Missing
    from holdfast.evidence.pure.stall_rules import StallRules

MARGIN_S = 60.0
"""Beyond a group's timeout: torch's own watchdog needs some seconds to end a rank."""
LEAST_AGAIN_S = 0.5
_STOPPED = "T"
"""As ps(1) has it; ``t`` is that of a process that a debugger has stopped."""
_NOT_RECORDED = ("monitored_barrier",)
"""Collectives that no flight recorder has."""
_FAMILIES = ("all_gather", "allgather", "reduce_scatter", "all_to_all", "alltoall", "broadcast")
"""Operations that have several forms, some of which a backend carries out alike."""


def settle(
    verdict: Verdict,
    digests: Mapping[int, RankDigest],
    missing: Mapping[str, Missing],
    clock: str,
    rules: StallRules,
    why_not: str = "",
) -> Verdict:
    """The same verdict, with its meaning for ranks without timeouts.

    ``clock``: that ran out first, of its rank, which may have ended since; "": the timeout of that
    one was chosen, or only the digests say it. ``why_not``: why no rank may be ended, as the job
    would not go on; "": it would.
    """
    if clock == PAUSE:  # ranks were not disturbed: all else that ran out has its own incident
        return verdict.but(is_pause=True)
    clocks = {clock, *(digest.overdue for digest in digests.values())} - {""}
    is_other = not clocks <= {STEP, PAUSE}
    if STEP not in clocks:
        return verdict.but(is_pause=PAUSE in clocks and not is_other)
    job = JobEvidence(digests, missing)
    proof = proof_of(job, rules.floor_s)
    why = proof or _lasts_too_long(job, verdict, rules)
    why_alone = _why_alone(why, rules, why_not)
    return verdict.but(
        is_hang=not why_alone,
        is_stall=bool(why_alone) and not is_other,
        proof=why,
        why_alone=why_alone,
        again_s=_again_s(job, rules),
    )


def _why_alone(proof: str, rules: StallRules, why_not: str) -> str:
    if not proof:
        return "nothing proves that it hangs"
    return why_not if rules.ends else "of --ft-auto-kill never"


def _lasts_too_long(job: JobEvidence, verdict: Verdict, rules: StallRules) -> str:
    if rules.after_s is None or not verdict.culprits or verdict.confidence not in (HIGH, MEDIUM):
        return ""
    others = [it for rank, it in job.digests.items() if rank not in verdict.culprits]
    lasts_s = _lasts_s(job)
    if lasts_s < rules.after_s or not any(map(_waits_for_ranks, others)):
        return ""
    return f"no rank has made progress for {lasts_s:.1f} s (--ft-auto-kill {rules.after_s:g})"


def _waits_for_ranks(digest: RankDigest) -> bool:
    return digest.is_in_collective or digest.is_transfer or bool(digest.waits_in)


def _lasts_s(job: JobEvidence) -> float:
    """No rank that is watched by its steps has moved for so long; 0.0 while a section has time."""
    if any(it.section is not None and not it.pause_s for it in job.digests.values()):
        return 0.0
    return min((it.pause_s for it in job.digests.values() if it.pause_s > 0), default=0.0)


def _again_s(job: JobEvidence, rules: StallRules) -> float:
    """When one more fact may be known, from now; 0.0: never."""
    due = [rules.floor_s - digest.stopped_s for digest in job.digests.values() if digest.stopped_s]
    if rules.after_s is not None:
        due.append(rules.after_s - _lasts_s(job))
    for digest in job.digests.values():
        wait = _wait_of(digest)
        if wait is not None:
            due.append(wait[1] + MARGIN_S - wait[0])
    return max(LEAST_AGAIN_S, min(after)) if (after := [s for s in due if s > 0]) else 0.0


# ---------------------------------------------------------------- proofs that no time helps
def proof_of(job: JobEvidence, floor_s: float) -> str:
    """In words; "": nothing does."""
    proofs = (_mismatch(job), _stopped(job, floor_s), _circle(job), _timeout(job))
    return next((proof for proof in proofs if proof), "")


def _mismatch(job: JobEvidence) -> str:
    for (name, members, seq), calls in sorted(job.calls_at.items()):
        digests = job.groups[name, members]
        waits = [rank for rank in calls if digests[rank].seq == seq]
        is_complete = all(r in digests and digests[r].enqueued >= seq for r in job.members(members))
        families = {rank: _family(calls[rank], name, is_complete=is_complete) for rank in calls}
        if waits and len({*families.values()} - {""}) > 1:
            return (
                f"{named(calls)} have called collective {seq} of group {name} as different "
                "operations"
            )
    return ""


def _family(call: str, group: str, *, is_complete: bool) -> str:
    """Operations of one family may match; "": it need not be a collective."""
    name = call.partition(" ")[0].lstrip("_")
    if group and name.startswith(PEERS_UNKNOWN):
        return ""
    if name == "barrier" and "nccl" in group and not is_complete:
        return "all_reduce"  # which is how NCCL makes a barrier
    return next((family.replace("_", "") for family in _FAMILIES if name.startswith(family)), name)


def _stopped(job: JobEvidence, floor_s: float) -> str:
    """Ranks that do nothing any more, where the waiting ones can wait for no other rank.

    Their earlier calls are not known: they may have had their part in it.
    """
    still = {rank: it for rank, it in job.digests.items() if _is_still(it, floor_s)}
    living = {rank: it for rank, it in job.digests.items() if rank not in still}
    if not still or not living:
        return ""
    found: set[int] = set()
    for rank in living:
        for group in job.digests[rank].waits_in:
            behind = _not_known_to_have_begun(job, rank, group)
            if behind and behind <= still.keys():
                found |= behind
    if not found and not job.silent and all(map(_can_wait_for_ranks_alone, living.values())):
        found = {*still}
    if not found:
        return ""
    least_s = min(still[rank].stopped_s for rank in found)
    are = "have ended or been stopped" if len(found) > 1 else "has been stopped"
    are = "has ended" if len(found) == 1 and is_gone(still[min(found)]) else are
    it = "it" if len(found) == 1 else "them"
    return f"{named(found)} {are}, {least_s:.1f} s ago, and others wait for {it}"


def _is_still(digest: RankDigest, floor_s: float) -> bool:
    is_still = digest.state == _STOPPED or is_gone(digest)
    return digest.stopped_s >= floor_s and is_still


def _can_wait_for_ranks_alone(digest: RankDigest) -> bool:
    """Its main thread is in a collective, or in a send or receive that no recorder may have."""
    return digest.is_transfer or digest.call in _NOT_RECORDED or _is_inside(digest)


def _not_known_to_have_begun(job: JobEvidence, rank: int, group: GroupDigest) -> set[int]:
    are_known = group.members and not group.pending.startswith(PEERS_UNKNOWN)
    return job.behind[group.call] - {rank} if group.peers or are_known else set()


def _circle(job: JobEvidence) -> str:
    """The largest set of ranks, each of which waits for another one of the set to begin.

    One that waits in several operations counts only where it is in all of them: it is not known in
    which of its receives a main thread is.
    """
    stuck = {rank for rank, it in job.digests.items() if _is_inside(it) and _has_one_wait(it)}
    while stuck:
        free = {
            rank
            for rank in stuck
            if not all(_behind(job, rank, g) & stuck for g in job.digests[rank].waits_in)
        }
        if not free:
            break
        stuck -= free
    if not stuck:
        return ""
    return f"{named(stuck)} wait in a circle, each for another one of them"


def _has_one_wait(digest: RankDigest) -> bool:
    transfers = sum(group.n_transfers for group in digest.groups)
    return not transfers or sum(group.n_pending for group in digest.groups) == 1


def _behind(job: JobEvidence, rank: int, group: GroupDigest) -> set[int]:
    """Those that certainly have not: their recorder has answered."""
    behind = _not_known_to_have_begun(job, rank, group)
    return {it for it in behind if it in job.digests and job.digests[it].groups}


def _timeout(job: JobEvidence) -> str:
    for rank, digest in sorted(job.digests.items()):
        wait = _wait_of(digest)
        if wait is not None and wait[0] > wait[1] + MARGIN_S:
            waits_s, timeout_s = wait
            return (
                f"rank {rank} has waited for {waits_s:.1f} s in a group whose timeout is "
                f"{timeout_s:g} s, and torch has not ended it"
            )
    return ""


def _wait_of(digest: RankDigest) -> tuple[float, float] | None:
    """For how long it waits, of its operations the youngest, and the longest timeout of them."""
    groups = digest.waits_in
    is_known = all(group.timeout_s > 0 and group.waits_s > 0 for group in groups)
    if not groups or not is_known or not digest.is_in_collective:
        return None
    return min(group.waits_s for group in groups), max(group.timeout_s for group in groups)


def _is_inside(digest: RankDigest) -> bool:
    """Its main thread is in the call of an operation that the recorder has, not in backward."""
    call = _family(digest.call, "", is_complete=True)
    return digest.is_in_collective and any(
        _family(group.pending, "", is_complete=True) == call for group in digest.waits_in
    )


# ---------------------------------------------------------------- which stall it is
def marks(digests: Mapping[int, RankDigest]) -> dict[int, tuple[int, ...]]:
    """How far each rank is: steps, then collectives begun and ended, where these are known."""
    return {
        rank: (
            digest.steps,
            *(
                (
                    sum(it.enqueued for it in digest.groups),
                    sum(it.completed for it in digest.groups),
                )
                if digest.groups
                else ()
            ),
        )
        for rank, digest in digests.items()
    }


def has_moved(before: Mapping[int, tuple[int, ...]], after: Mapping[int, tuple[int, ...]]) -> bool:
    """Some rank has made a step, or been in a collective, since."""
    return any(
        mark[: len(earlier)] != earlier[: len(mark)]
        for rank, mark in after.items()
        if (earlier := before.get(rank)) is not None
    )
