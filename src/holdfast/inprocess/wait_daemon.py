"""``python -m holdfast.inprocess.wait_daemon PIDFILE``: wait until a node guard has ended.

The file is the Wrapper's ``monitor_process_pidfile``. A guard ends after the last of its ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.base.processes.proc import Process, await_any


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, it has ended; 1, there is no such file, or no number in it; 2, wrong usage."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        print("usage: python -m holdfast.inprocess.wait_daemon PIDFILE", file=sys.stderr)  # noqa: T201
        return 2
    try:
        pid = int(Path(given[0]).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"no process to wait for: {error}", file=sys.stderr)  # noqa: T201
        return 1
    try:
        guard = Process(pid)
    except ProcessLookupError:
        return 0
    try:
        await_any([guard], None)
    finally:
        guard.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
