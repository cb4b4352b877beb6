"""What a rank shows, in words: how it hangs, what it waits for, why there is no evidence. Pure.

Light, as the rank monitor writes such words, too.
"""

from __future__ import annotations

from holdfast.evidence.pure.evidence import (
    BEING_STOPPED,
    CHILD,
    COMPUTING,
    DEAD,
    DEBUGGER,
    ENDED,
    ENDED_BEFORE,
    ENDED_WELL,
    EXITING,
    FIFO,
    FILE,
    FILE_LOCK,
    GONE,
    INTERPRETER,
    KERNEL,
    LOADER,
    LOCK,
    NATIVE,
    OTHER_PROCESS,
    PERSON,
    PIPE,
    SERVER,
    SIGNAL,
    SLEEP,
    SOCKET,
    SOCKET_OR_PIPE,
    STOPPED,
    STORE,
    TASKS,
    TERMINAL,
    THAW,
    UNKNOWN,
    WAITING,
    RankDigest,
)
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    _Verb = Callable[[str], str]

_WAITS = {
    LOCK: "a lock",
    SLEEP: "a sleep",
    PIPE: "a pipe",
    FIFO: "the other end of a FIFO",
    SOCKET: "a socket",
    SOCKET_OR_PIPE: "a socket or pipe",
    FILE: "a file",
    FILE_LOCK: "a lock on a file",
    TERMINAL: "the terminal",
    SIGNAL: "a signal",
    CHILD: "a child process",
    THAW: "its control group to be thawed",
    TASKS: "its tasks",
    STORE: "a key of torch's store",
    OTHER_PROCESS: "another process",
    DEBUGGER: "a debugger",
    PERSON: "a person",
    SERVER: "a server",
}
_ENDS = {
    GONE: "the process is gone",
    ENDED: "its process has ended",
    ENDED_BEFORE: "its process had ended before",
    ENDED_WELL: "it has ended well",
    BEING_STOPPED: "the ranks of this node are being stopped",
}


def awaited(waits_for: str, file: str = "") -> str:
    """``/data/x.fifo``, ``a lock``; "": not known."""
    return file or _WAITS.get(waits_for, waits_for)


def lacking(digest: RankDigest) -> str:
    """What is missing of a rank's evidence, and why; "": nothing is."""
    if not digest.end:
        return digest.lacks
    before = f", {digest.ended_before_s:.1f} s before" if digest.end == ENDED_WELL else ""
    return f"{_ended(digest.end, digest.exit_code)}{before}"


def in_words(digest: RankDigest) -> dict[str, object]:
    """Its fields, as files have them: for people, what it waits for and lacks in words."""
    waits_for = awaited(digest.waits_for, digest.file)
    return {**vars(digest), "waits_for": waits_for, "lacks": lacking(digest)}


def _ended(end: str, exit_code: int | None) -> str:
    if exit_code is None:
        return _ENDS[end]
    from holdfast.evidence.pure.failure import (  # noqa: PLC0415 - monitors know of no exit code
        describe_exit,
    )

    return f"{_ENDS[end]}: {describe_exit(exit_code)}"


def doing(it: Shown) -> str:
    """What ranks show; completes "rank 5": ``in `load_batch` data.py:88``."""
    what = it.what
    if what in (FROZEN, STOPPED):
        return what
    if what == EXITING:
        return f"exiting after its {it.detail}" if it.detail else "exiting"
    if what == IN_CALL and not it.group:
        return f"in `{it.call}`"
    if what == IN_CALL:
        line = f" in {shown(it.place)}" if it.place else ""
        return f"in `{it.call}` of group {it.group} (collective {it.seq}){line}"
    if what == IN_PLACE:
        return f"in {shown(it.place)}"
    if what == ENDED_WELL:
        return "ended with exit code 0"
    if what == IN_STATE:
        return f"in state {it.detail}"
    end = _ended(what, it.exit_code) if what in _ENDS else it.detail
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


def _do(verb: str) -> str:
    return {"does": "do", "is": "are", "has": "have"}.get(verb, verb.removesuffix("s"))


def _how_it_ended(digest: RankDigest) -> str:
    if digest.end == ENDED_WELL:
        before = f", {digest.ended_before_s:.1f} s before" if digest.exit_code is not None else ""
        return f"with exit code 0{before}"
    return f"({lacking(digest)})"


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
    what = f" for {awaited(digest.waits_for, digest.file)}" if digest.waits_for else ""
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
    UNKNOWN: lambda digest, do: f"{do('shows')} nothing: {lacking(digest)}",
}
