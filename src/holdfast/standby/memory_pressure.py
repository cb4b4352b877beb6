"""Be told by the kernel when processes wait for memory (PSI).

A *trigger* is a descriptor that is ready, for EPOLLPRI, when the time that processes waited for
memory within a window exceeded a threshold: those of the host, all of them at once; those of this
process's control group (version 2), any of them. Without CAP_SYS_RESOURCE, kernels before 6.5
refuse triggers, and later ones take windows of 2 s only.
"""

from __future__ import annotations

import contextlib
import os

from holdfast.base import memory

_STALLED_US = 200_000
_WINDOW_US = 2_000_000
_HOST = "/proc/pressure/memory"


def open_triggers() -> list[int]:
    """Descriptors of the triggers that this system allows; the caller closes them."""
    found = []
    own = next(iter(memory.groups()), None)
    paths = [(_HOST, "full")]
    if own is not None:
        paths.append((f"{own}/memory.pressure", "some"))
    for path, kind in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(descriptor, f"{kind} {_STALLED_US} {_WINDOW_US}\0".encode())
            except OSError:
                os.close(descriptor)
                raise
            found.append(descriptor)
    return found
