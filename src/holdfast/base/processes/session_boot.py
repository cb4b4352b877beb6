"""Begin a session, then become a program: ``python -I -S session_boot.py PROGRAM ARGUMENTS ...``.

For interpreters and C libraries that cannot start a process in a session of its own; see
``system_calls.py``. ``ARGUMENTS`` begin with the program's name.
"""

from __future__ import annotations

import os
import signal
import sys

CANNOT_START = 127

if __name__ == "__main__":
    os.setsid()
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by every Python, and so across exec
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execv(sys.argv[1], sys.argv[2:])  # noqa: S606 - no shell is wanted here
    except OSError as error:
        sys.stderr.write(f"holdfast: cannot start {sys.argv[1]!r}: {error.strerror}\n")
        sys.exit(CANNOT_START)
