"""Words for the state of ranks in a verdict. Pure."""

from __future__ import annotations

from holdfast.evidence.pure import evidence as ev
from holdfast.evidence.pure.evidence import RankDigest
from holdfast.evidence.pure.hang_kind import (
    BUSY_SHARE,
    FROZEN,
    IN_CALL,
    IN_PLACE,
    IN_STATE,
    Shown,
    is_frozen,
    kind_of,
)
from holdfast.evidence.pure.rank_words import ENDS, awaited, ended, lacking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    _Verb = Callable[[str], str]


def doing(it: Shown) -> str:
    """State of ranks; completes "rank 5": ``in `load_batch` data.py:88``."""
    state = it.state
    if state in (FROZEN, ev.STOPPED):
        return state
    if state == ev.EXITING:
        return f"exiting after its {it.detail}" if it.detail else "exiting"
    if state == IN_CALL and not it.group:
        return f"in `{it.call}`"
    if state == IN_CALL:
        line = f" in {shown(it.place)}" if it.place else ""
        return f"in `{it.call}` of group {it.group} (collective {it.seq}){line}"
    if state == IN_PLACE:
        return f"in {shown(it.place)}"
    if state == ev.ENDED_WELL:
        return "exited with code 0"
    if state == IN_STATE:
        return f"in state {it.detail}"
    end = ended(state, it.exit_code) if state in ENDS else it.detail
    return f"without evidence: {end}"


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


def of_one_or_many(verb: str, ranks: Collection[int]) -> str:
    """``waits`` of one rank, ``wait`` of several."""
    return verb if len(ranks) == 1 else _do(verb)


def _do(verb: str) -> str:
    return {"does": "do", "is": "are", "has": "have"}.get(verb, verb.removesuffix("s"))


def _how_it_ended(digest: RankDigest) -> str:
    if digest.end == ev.ENDED_WELL:
        before = f", {digest.ended_before_s:.1f} s before" if digest.exit_code is not None else ""
        return f"exited with code 0{before}"
    return f"ended ({lacking(digest)})"


def _stopped_by(digest: RankDigest) -> str:
    frozen = is_frozen(digest)
    return "frozen by its control group" if frozen else "stopped (by SIGSTOP or a debugger)"


def _kernel(digest: RankDigest, do: _Verb) -> str:
    where = f" in {digest.wchan}" if digest.wchan else ""
    return f"{do('is')} stuck in the kernel (state D{where}){at(digest)}"


def _loader(digest: RankDigest, do: _Verb) -> str:
    worker = f": worker {digest.worker}" if digest.worker else ""
    where = at(digest.but(call=""))  # that is the loader's `__next__`
    return f"{do('waits')} for a data loader{where}{worker}"


def _computing(digest: RankDigest, do: _Verb) -> str:
    is_busy = digest.state == "R" or digest.cpu >= BUSY_SHARE
    used = f"{digest.cpu:.0%} of a CPU" if is_busy else "in small steps"
    return f"{do('runs')}{at(digest)} ({used})"


def _waiting(digest: RankDigest, do: _Verb) -> str:
    if digest.waits_for == ev.SLEEP:
        return f"{do('sleeps')}{at(digest)}"
    state = f" for {awaited(digest.waits_for, digest.file)}" if digest.waits_for else ""
    child = f": its child process {digest.worker}" if digest.worker else ""
    return f"{do('waits')}{state}{at(digest)}{child}"


_HOW: dict[str, Callable[[RankDigest, _Verb], str]] = {
    ev.DEAD: lambda digest, do: f"{do('has')} {_how_it_ended(digest)}",
    ev.EXITING: lambda digest, do: f"{do('is')} exiting{exiting_after(digest)}",
    ev.STOPPED: lambda digest, do: f"{do('is')} {_stopped_by(digest)}",
    ev.KERNEL: _kernel,
    ev.LOADER: _loader,
    ev.INTERPRETER: lambda digest, do: f"{do('holds')} the interpreter's lock{at(digest)}",
    ev.COMPUTING: _computing,
    ev.NATIVE: lambda digest, do: f"{do('is')} in native code{at(digest)}",
    ev.WAITING: _waiting,
    ev.UNKNOWN: lambda digest, do: f"{do('shows')} nothing: {lacking(digest)}",
}
