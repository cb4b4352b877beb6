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

from holdfast.core.evidence import HIGH, MEDIUM, MISMATCH
from holdfast.core.evidence_words import FIFO, LOCK, PIPE, SLEEP, SOCKET, SOCKET_OR_PIPE
from holdfast.core.monitor.hang import STEP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.core.evidence import RankDigest, Verdict

_INSIDE = (LOCK, SLEEP, PIPE, FIFO)
"""What a rank waits for (:attr:`RankDigest.waits_for`) that nobody outside the job will give it."""
_OF_LOADER = (*_INSIDE, SOCKET, SOCKET_OR_PIPE)
"""The same of a data loader, whose workers send over pipes and sockets."""
_STOPPED = "T"
_ASLEEP = ("S", _STOPPED)
"""States of ps(1); ``t`` is that of a process which a debugger has stopped."""


def is_hang(verdict: Verdict, digests: Mapping[int, RankDigest]) -> bool:
    """Whether the culprits are to be ended though nobody gave them a timeout."""
    if not verdict.culprits or verdict.confidence not in (HIGH, MEDIUM):
        return False
    if verdict.kind == MISMATCH and all(map(_is_pending, digests.values())):
        return True
    others = (digest for rank, digest in digests.items() if rank not in verdict.culprits)
    return any(map(_waits, others)) and not any(
        rank not in digests or _may_go_on(digests[rank]) for rank in verdict.culprits
    )


def is_left_alone(verdict: Verdict, digests: Mapping[int, RankDigest]) -> bool:
    """Whether ranks only make no steps: no configured timeout ran out, and no hang is proved."""
    overdue = {digest.overdue for digest in digests.values()} - {""}
    return overdue == {STEP} and not is_hang(verdict, digests)


def _may_go_on(digest: RankDigest) -> bool:
    if digest.state not in _ASLEEP or not digest.idle_s:
        return True
    is_fifo = digest.waits_for.startswith("/") and "pipe" in digest.wchan
    inside = _OF_LOADER if digest.is_in_loader else _INSIDE
    return not (digest.state == _STOPPED or is_fifo or digest.waits_for in inside)


def _is_pending(digest: RankDigest) -> bool:
    return any(group.pending for group in digest.groups)


def _waits(digest: RankDigest) -> bool:
    return _is_pending(digest) or digest.is_in_collective
