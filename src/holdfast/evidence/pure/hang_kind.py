"""How one rank hangs, by what it shows of itself: the kind, and in words. Pure."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.evidence.pure.evidence import (
    COMPUTING,
    DEAD,
    EXITING,
    INTERPRETER,
    KERNEL,
    LOADER,
    NATIVE,
    SILENT,
    STOPPED,
    UNKNOWN,
    WAITING,
    RankDigest,
)
from holdfast.evidence.pure.evidence_words import (
    ENDED_WELL,
    FROZEN,
    HAS_ENDED,
    NO_HANDLER,
    PROCESS_GONE,
    SLEEP,
)

BUSY_SHARE = 0.5
"""Of a CPU, from which on a main thread computes,"""
BUSY_SWITCHES = 6
"""or context switches in 50 ms, from which on it does something in turns."""

_Verb = Callable[[str], str]
"""``waits``, of many ``wait``."""


def kind_of(digest: RankDigest) -> str:
    """How a rank hangs that waits for no other."""
    if is_gone(digest):
        return DEAD
    if digest.state in ("T", "t") or is_frozen(digest):
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


def is_frozen(digest: RankDigest) -> bool:
    """By its control group's freezer; the kernel shows state D, as of a wait for a disk."""
    return digest.state == "D" and digest.waits_for == FROZEN


def is_gone(digest: RankDigest) -> bool:
    """Its process has ended."""
    has_ended = digest.lacks.startswith((PROCESS_GONE, HAS_ENDED, ENDED_WELL))
    return has_ended or digest.state in ("Z", "X")


def _has_no_frames(digest: RankDigest) -> bool:
    """Its interpreter is going: its stacks were taken, and are none, or it takes none any more."""
    is_looked_at = not digest.lacks or NO_HANDLER in digest.lacks
    return digest.helper == SILENT and not digest.stack and is_looked_at


def how(digest: RankDigest, *, are_many: bool = False) -> str:
    """How a rank hangs that waits for no other; completes "rank 5", or "ranks 5,6"."""
    return _HOW[kind_of(digest)](digest, _do if are_many else str)


def shown(place: str) -> str:
    """``load_batch data.py:88`` with the function as code."""
    function, _, line = place.partition(" ")
    return f"`{function}` {line}".rstrip()


def at(digest: RankDigest) -> str:
    """`` in `load_batch` data.py:88``; nothing where that is not known."""
    call = f", in its call of `{digest.call}`" if digest.call else ""
    thread = "" if digest.is_main_thread else ", in another thread than its main one"
    return f" in {shown(digest.place)}{call}{thread}" if digest.place else ""


def exiting_after(digest: RankDigest) -> str:
    """`` after its ValueError: bad sample``."""
    return f" after its {digest.exception}" if digest.exception else ": its program has ended"


def _do(verb: str) -> str:
    return {"does": "do", "is": "are", "has": "have"}.get(verb, verb.removesuffix("s"))


def _how_it_ended(digest: RankDigest) -> str:
    if digest.lacks.startswith(ENDED_WELL):
        return f"with {digest.lacks.partition(': ')[2] or 'exit code 0'}"
    return f"({digest.lacks})"


def _stopped_by(digest: RankDigest) -> str:
    frozen = is_frozen(digest)
    return "frozen by its control group" if frozen else "stopped (by SIGSTOP or a debugger)"


def _kernel(digest: RankDigest, do: _Verb) -> str:
    where = f" in {digest.wchan}" if digest.wchan else ""
    return f"{do('is')} stuck in the kernel (state D{where}){at(digest)}"


def _loader(digest: RankDigest, do: _Verb) -> str:
    worker = f": worker {digest.worker}" if digest.worker else ""
    return f"{do('waits')} for a data loader{at(digest)}{worker}"


def _computing(digest: RankDigest, do: _Verb) -> str:
    is_busy = digest.state == "R" or digest.cpu >= BUSY_SHARE
    used = f"{digest.cpu:.0%} of a CPU" if is_busy else "in small steps"
    return f"{do('runs')}{at(digest)} ({used})"


def _waiting(digest: RankDigest, do: _Verb) -> str:
    if digest.waits_for == SLEEP:
        return f"{do('sleeps')}{at(digest)}"
    what = f" for {digest.waits_for}" if digest.waits_for else ""
    child = f": its child process {digest.worker}" if digest.worker else ""
    return f"{do('waits')}{what}{at(digest)}{child}"


_HOW: dict[str, Callable[[RankDigest, _Verb], str]] = {
    DEAD: lambda digest, do: f"{do('has')} ended {_how_it_ended(digest)}",
    EXITING: lambda digest, do: f"{do('is')} exiting{exiting_after(digest)}",
    STOPPED: lambda digest, do: f"{do('is')} {_stopped_by(digest)}",
    KERNEL: _kernel,
    LOADER: _loader,
    INTERPRETER: lambda digest, do: f"{do('holds')} the interpreter's lock{at(digest)}",
    COMPUTING: _computing,
    NATIVE: lambda digest, do: f"{do('is')} in native code{at(digest)}",
    WAITING: _waiting,
    UNKNOWN: lambda digest, do: f"{do('shows')} nothing: {digest.lacks}",
}
