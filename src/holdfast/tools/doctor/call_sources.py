"""Where the system calls of :mod:`holdfast.base.processes.system_calls` come from on this host."""

from __future__ import annotations

import os
import signal

from holdfast.base.processes import system_calls

INTERPRETER, C_LIBRARY, ABSENT = "interpreter", "C library", "absent"


def _source_of_spawn() -> str:
    """With a path that is no program: OSError says that the call got as far as that."""
    try:
        os.posix_spawn("/", ["/"], {}, setsid=True)
    except NotImplementedError:
        pass
    except OSError:
        return INTERPRETER
    try:
        system_calls.spawn_by_c_library("/", ["/"], {}, (), (), ())
    except NotImplementedError:
        pass
    except OSError:
        return C_LIBRARY
    return ABSENT


def survey() -> dict[str, str]:
    """Where each call comes from: the interpreter, the C library, or (absent) nowhere. Tries it."""
    pidfd = -1
    found = dict.fromkeys(("pidfd_open", "pidfd_send_signal", "memfd_create"), ABSENT)
    try:
        pidfd = system_calls.pidfd_open(os.getpid())
        found["pidfd_open"] = _source(os, "pidfd_open")
        system_calls.pidfd_send_signal(pidfd, 0)
        found["pidfd_send_signal"] = _source(signal, "pidfd_send_signal")
    except OSError:
        pass
    finally:
        if pidfd >= 0:
            os.close(pidfd)
    try:
        os.close(system_calls.memfd_create("holdfast"))
        found["memfd_create"] = _source(os, "memfd_create")
    except OSError:
        pass
    return {**found, "posix_spawn(setsid)": _source_of_spawn()}


def _source(module: object, name: str) -> str:
    return INTERPRETER if hasattr(module, name) else C_LIBRARY
