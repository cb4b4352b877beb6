"""The first lines of every rank: have it die with the launcher, then become the user's command.

    python -I -S rank_boot.py LAUNCHER_PID COMMAND ...
    python -I -S rank_boot.py session PROGRAM ARGUMENTS ...     begin a session, become the program

Few imports, as it stands between a fault and the first line of the restarted rank. The death signal
survives ``exec`` but not ``fork``, so that ranks die with the launcher at once, and their children
by the monitor's sweep. The second form is for interpreters and C libraries that cannot start a
process in a session of its own (``system_calls.py``); ``ARGUMENTS`` begin with its own name.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal is 3 ms in each restart
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SIGKILL = 9
SESSION = "session"
CANNOT_START = 127
"""Exit code of a rank whose command could not be started, as in a shell."""


def prctl(option: int, value: int) -> bool:
    """Ask Linux's process control for one thing; False where it is not to be had.

    Goes through ``_ctypes``, the module under ctypes, which costs nothing to import; the public one
    adds 7 ms to every restart.
    """
    try:
        import _ctypes  # noqa: PLC0415 - not every interpreter is built with it

        program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type] # None is this program itself
        function = _ctypes.dlsym(program, "prctl")
        result: int = _ctypes.call_function(function, (option, value, 0, 0, 0))
    except (ImportError, OSError):
        return False
    return result == 0


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    prctl(_PR_SET_PDEATHSIG, SIGKILL)


def main(argv: Sequence[str]) -> int:
    """Become ``argv[2:]``, if the launcher is still the parent; returns where it cannot."""
    program, command = argv[2], list(argv[2:])
    if argv[1] == SESSION:
        os.setsid()
        command = command[1:]
    else:
        die_with_parent()
        if os.getppid() != int(argv[1]):  # it died before the death signal was set
            return CANNOT_START
    # Every Python ignores these, and an ignored signal stays ignored across exec.
    for ignored in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(ignored, _signal.SIG_DFL)
    try:
        os.execvp(program, command)  # noqa: S606 - no shell is wanted here
    except OSError as error:
        sys.stderr.write(f"holdfast: cannot start {program!r}: {error.strerror}\n")
        return CANNOT_START


if __name__ == "__main__":
    sys.exit(main(sys.argv))
