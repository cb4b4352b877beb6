"""Watch for the end of a rank, from its first lines on.

An exception ends it soon (``uncaught.py``). At any other end a file says so, for Python may take
seconds then, and peers fail meanwhile.

``first_lines.py`` has this file run from its path, and not imported by its name: nothing of
holdfast is imported until the end. The client imports it where a rank has no such first lines.
"""

# Annotations are quoted, as in ``first_lines.py``.
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KEPT_AS = "_holdfast_start"
"""In ``sys.modules`` where ``first_lines.py`` has run: it watches already."""
EXITING_FILE = "exiting"
"""Beside the file in ``TORCHELASTIC_ERROR_FILE``, with the pid behind a dot. It is empty, and so
not delivered to the run folder: its time of change is the monotonic clock's."""
_watched: list[float] = []


def watch_end(grace_s: float, threading: "Any") -> None:
    """From now on, an uncaught exception ends this process soon, and another end is marked.

    Once per process. An end is marked when the threads have ended that are no daemons: until then
    they may do the work of the rank.

    Args:
        grace_s: How long exit handlers may take.
        threading: The module; the interpreter calls its ``_shutdown`` first when it ends, to wait
            for threads.
    """
    before = getattr(threading, "_shutdown", None)
    if _watched or before is None:
        return
    _watched.append(grace_s)
    pid = os.getpid()

    def _shutdown() -> None:
        # Called by the interpreter itself, and in the rank's own process, not in a fork of it.
        is_end = os.getpid() == pid and sys._getframe().f_back is None  # noqa: SLF001
        value = getattr(sys, "last_value", None)
        # After an interrupt nothing is imported: Python would forget to end with SIGINT.
        if is_end and value is not None and not isinstance(value, KeyboardInterrupt):
            _end_process(grace_s)
        before()
        if is_end and value is None:
            _mark_exiting(pid)

    threading._shutdown = _shutdown  # noqa: SLF001


def _end_process(grace_s: float) -> None:
    try:
        from holdfast.watch.rank.uncaught import end_process  # noqa: PLC0415

        end_process(grace_s)
    except Exception:  # noqa: BLE001 - then it ends as it would without holdfast
        return


def _mark_exiting(pid: int) -> None:
    beside = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not beside:
        return
    try:
        import time  # noqa: PLC0415

        path = os.path.join(os.path.dirname(beside), f"{EXITING_FILE}.{pid}")
        now = time.monotonic_ns()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.utime(fd, ns=(now, now))
        finally:
            os.close(fd)
    except Exception:  # noqa: BLE001 - then it is not known
        return
