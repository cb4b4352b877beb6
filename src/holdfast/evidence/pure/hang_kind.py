"""How one rank hangs, from its digest. Pure; ``evidence_words.py`` says it in words."""

from __future__ import annotations

from holdfast.base.pure.value import Value
from holdfast.evidence.pure import evidence as ev
from holdfast.evidence.pure.evidence import RankDigest

FROZEN = "frozen"
IN_CALL = "in call"
IN_PLACE = "in place"
NOTHING = "nothing"
IN_STATE = "in state"
"""States of a rank, beside the kinds and ends of ``evidence.py``: :attr:`Shown.state`."""

BUSY_SHARE = 0.5
"""Of a CPU, from which on a main thread computes,"""
BUSY_SWITCHES = 6
"""or context switches in 50 ms, from which on it does something in turns."""


def kind_of(digest: RankDigest) -> str:
    """How a rank hangs that waits for no other."""
    if is_gone(digest):
        return ev.DEAD
    if digest.state in ("T", "t") or is_frozen(digest):
        return ev.STOPPED
    if digest.state == "D":
        return ev.KERNEL
    if digest.exception or _has_no_frames(digest):
        return ev.EXITING
    if digest.is_in_loader:
        return ev.LOADER
    if digest.helper == ev.SILENT:
        return ev.INTERPRETER
    if digest.state == "R" or digest.cpu >= BUSY_SHARE or digest.switches >= BUSY_SWITCHES:
        return ev.COMPUTING
    if digest.is_in_collective:
        return ev.NATIVE
    return ev.WAITING if digest.state else ev.UNKNOWN


def is_frozen(digest: RankDigest) -> bool:
    """By its control group's freezer; the kernel shows state D, as of a wait for a disk."""
    return digest.state == "D" and digest.waits_for == ev.THAW


def is_gone(digest: RankDigest) -> bool:
    """Its process has ended."""
    return digest.end in (ev.GONE, ev.ENDED, ev.ENDED_WELL) or digest.state in ("Z", "X")


def _has_no_frames(digest: RankDigest) -> bool:
    """Its interpreter is going: its stacks were taken, and are none, or it takes none any more."""
    is_looked_at = not digest.lacks or not digest.has_handler
    return digest.helper == ev.SILENT and not digest.stack and is_looked_at


class Shown(Value):
    """A rank in the summary of its job: ranks that show the same form one group.

    Attributes:
        state: :data:`IN_CALL`, ..., or the kind or end that says it all.
        call, group, seq: Where that is a collective; without its line only the name of the call.
        place: The telling line.
        exit_code: Of a process that has ended with a failure; None: not known.
        detail: An exception, the letter of a state, or why there is no evidence.
    """

    state: str
    call: str = ""
    group: str = ""
    seq: int = -1
    place: str = ""
    exit_code: int | None = None
    detail: str = ""

    @property
    def is_nothing(self) -> bool:
        """There is no evidence of them."""
        return self.state in (
            ev.MISSING,
            NOTHING,
            ev.GONE,
            ev.ENDED,
            ev.ENDED_BEFORE,
            ev.BEING_STOPPED,
        )


def shown_by(digest: RankDigest, *, with_line: bool) -> Shown:
    """``with_line``: of its call of a collective."""
    pending = next(iter(digest.waits_in), None)
    kind = kind_of(digest)
    if kind == ev.STOPPED:
        return Shown(FROZEN if is_frozen(digest) else ev.STOPPED)
    if kind == ev.EXITING:
        return Shown(ev.EXITING, detail=digest.exception)
    if pending is not None and with_line:
        return Shown(IN_CALL, pending.pending, pending.name, pending.seq, digest.place)
    if pending is not None:
        return Shown(IN_CALL, pending.pending.partition(" ")[0])
    if digest.place:
        return Shown(IN_PLACE, place=digest.place)
    if digest.end == ev.ENDED_WELL:
        return Shown(ev.ENDED_WELL)
    if digest.end:
        return Shown(digest.end, exit_code=digest.exit_code)
    if digest.lacks:
        return Shown(NOTHING, detail=digest.lacks)
    return Shown(IN_STATE, detail=digest.state)
