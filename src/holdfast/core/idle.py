"""Whether ranks are to be ended for which nobody has chosen a timeout. Pure, and light.

A rank that makes no progress evaluates, saves, downloads, compiles or waits for a person far more
often than it hangs. So four things must hold of the verdict on all ranks:

    sure      its confidence is not low
    awaited   another rank waits for the culprits, in a collective
    idle      each culprit, and all that it has started, has done nothing for long
              (``core/monitor/movement.py``)
    inside    what each one waits for can only come from the job itself: see :data:`_INSIDE`. A
              person, a process, the network and a file system answer when they do

Where all ranks are in collectives that do not match, the recorder alone proves it.
"""

from __future__ import annotations

from holdfast.core.evidence import HIGH, MEDIUM, MISMATCH, STOPPED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.core.evidence import RankDigest, Verdict

_INSIDE = ("a lock", "a sleep", "a pipe", "the other end of a FIFO")
"""What a rank waits for (:attr:`RankDigest.waits_for`) that nobody outside the job will give it."""
_OF_LOADER = (*_INSIDE, "a socket", "a socket or pipe")
"""The same of a data loader, whose workers send over pipes and sockets."""
_TRACED = "t"
"""State of a process that a debugger has stopped."""
_ASLEEP = ("S", "T")


def is_hang(verdict: Verdict, digests: Mapping[int, RankDigest]) -> bool:
    """Whether the culprits are to be ended though nobody gave them a timeout."""
    if not verdict.culprits or verdict.confidence not in (HIGH, MEDIUM):
        return False
    if verdict.kind == MISMATCH and all(map(_is_pending, digests.values())):
        return True
    others = (digest for rank, digest in digests.items() if rank not in verdict.culprits)
    return any(map(_waits, others)) and not any(
        rank not in digests or may_go_on(digests[rank], verdict.kind) for rank in verdict.culprits
    )


def may_go_on(digest: RankDigest, kind: str) -> str:
    """Why a culprit is left alone; completes "it"; "": it is not."""
    if digest.state == _TRACED:
        return "is stopped by a debugger"
    if digest.state not in _ASLEEP:
        return "runs, or is in the kernel"
    if not digest.idle_s:
        return "has done something lately"
    is_fifo = digest.waits_for.startswith("/") and "pipe" in digest.wchan
    inside = _OF_LOADER if digest.is_in_loader else _INSIDE
    if kind == STOPPED or is_fifo or digest.waits_for in inside:
        return ""
    return f"waits for {digest.waits_for or 'something unknown'}"


def _is_pending(digest: RankDigest) -> bool:
    return any(group.pending for group in digest.groups)


def _waits(digest: RankDigest) -> bool:
    return _is_pending(digest) or digest.is_in_collective
