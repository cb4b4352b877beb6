"""Watch for the exception that ends a rank (``uncaught.py``), from its first lines on.

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
_watched: list[float] = []


def watch_end(grace_s: float, threading: "Any") -> None:
    """From now on, an uncaught exception ends this process soon; once per process.

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

    threading._shutdown = _shutdown  # noqa: SLF001


def _end_process(grace_s: float) -> None:
    try:
        from holdfast.watch.rank.uncaught import end_process  # noqa: PLC0415

        end_process(grace_s)
    except Exception:  # noqa: BLE001 - then it ends as it would without holdfast
        return
