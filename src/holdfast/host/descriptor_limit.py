"""How many descriptors a process may have open (``RLIMIT_NOFILE``, ``ulimit -n``).

The usual soft limit, 1024, is there for programs that use select(2), which we don't; a coordinator
of 1,000 ranks needs more. So our own processes raise it to the hard one, or to a million: where
that is a billion, old tools that we start (``numactl``) would close each of them. What users run is
started with the limit that it would have had without us.
"""

from __future__ import annotations

import resource

_ENOUGH = 1 << 20
_before: tuple[int, int] | None = None


def raise_descriptor_limit() -> None:
    """Raise the soft limit of this process to the hard one, a million at most."""
    global _before  # noqa: PLW0603 - a limit is one for the process, too
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):  # more than the kernel allows by now (fs.nr_open)
        return
    _before = (soft, hard)


def give_limit_back(pid: int) -> None:
    """Give a process that was just started the limit that this one had before it was raised."""
    if _before is None:
        return
    try:  # noqa: SIM105 - contextlib is slow to import
        resource.prlimit(pid, resource.RLIMIT_NOFILE, _before)
    except OSError:  # it has ended
        pass
