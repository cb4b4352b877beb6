"""Words for a rank's digest and for its end. Pure, and light: the rank monitor writes them, too."""

from __future__ import annotations

import signal

from holdfast.evidence.pure import evidence as ev
from holdfast.evidence.pure.evidence import RankDigest

_WAITS = {
    ev.LOCK: "a lock",
    ev.SLEEP: "a sleep",
    ev.PIPE: "a pipe",
    ev.FIFO: "the other end of a FIFO",
    ev.SOCKET: "a socket",
    ev.SOCKET_OR_PIPE: "a socket or pipe",
    ev.FILE: "a file",
    ev.FILE_LOCK: "a lock on a file",
    ev.TERMINAL: "the terminal",
    ev.SIGNAL: "a signal",
    ev.CHILD: "a child process",
    ev.THAW: "its control group to be thawed",
    ev.TASKS: "its tasks",
    ev.STORE: "a key of torch's store",
    ev.OTHER_PROCESS: "another process",
    ev.DEBUGGER: "a debugger",
    ev.PERSON: "a person",
    ev.SERVER: "a server",
}
ENDS = {
    ev.GONE: "the process is gone",
    ev.ENDED: "its process has ended",
    ev.ENDED_BEFORE: "its process had ended before",
    ev.ENDED_WELL: "it has ended well",
    ev.BEING_STOPPED: "the ranks of this node are being stopped",
}


def awaited(waits_for: str, file: str = "") -> str:
    """``/data/x.fifo``, ``a lock``; "": not known."""
    return file or _WAITS.get(waits_for, waits_for)


def lacking(digest: RankDigest) -> str:
    """Missing evidence of a rank, and why; "": nothing is missing."""
    if not digest.end:
        return digest.lacks
    before = f", {digest.ended_before_s:.1f} s before" if digest.end == ev.ENDED_WELL else ""
    return f"{ended(digest.end, digest.exit_code)}{before}"


def in_words(digest: RankDigest) -> dict[str, object]:
    """Its fields, as files have them, with words for ``waits_for`` and ``lacks``."""
    waits_for = awaited(digest.waits_for, digest.file)
    return {**vars(digest), "waits_for": waits_for, "lacks": lacking(digest)}


def ended(end: str, exit_code: int | None) -> str:
    """Why there is no process any more."""
    return ENDS[end] if exit_code is None else f"{ENDS[end]}: {describe_exit(exit_code)}"


def describe_exit(exit_code: int) -> str:
    """``exit code 3``, ``killed by SIGSEGV``."""
    return f"exit code {exit_code}" if exit_code >= 0 else f"killed by {signal_name(-exit_code)}"


def signal_name(signum: int) -> str:
    """``SIGTERM``; ``signal 41`` where a signal has no name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
