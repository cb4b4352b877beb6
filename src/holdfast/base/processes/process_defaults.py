"""State that a process has from its parent and gives to its children: limits, descriptors."""

from __future__ import annotations

import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_ENOUGH = 1 << 20
_LAST_STANDARD = 2
_before: tuple[int, int] | None = None


def open_files_max() -> int:
    """How many this process may have open, once it has raised its limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)


def raise_descriptor_limit() -> None:
    """Let this process open as many descriptors as the hard limit allows, a million at most.

    The usual soft limit, 1024, is there for programs that use select(2), which holdfast doesn't; a
    coordinator of 1,000 ranks needs more. Where the hard one is a billion, old tools (``numactl``)
    would close each of them.
    """
    global _before  # noqa: PLW0603 - a limit is one for the process, too
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = open_files_max()
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


def keep_from_children(words: Sequence[str]) -> None:
    """Close inherited descriptors in processes that this one starts, as torchrun does.

    A rank would hold a lock, a pipe or a slot of ``make -j`` that is its parent's. Standard streams
    stay, and those that ``words`` name (``/dev/fd/63``, which a shell makes of ``<(...)``).
    """
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:  # without /proc no job starts, which is said later
        return
    for name in names:
        is_named = any(word.endswith((f"/dev/fd/{name}", f"/self/fd/{name}")) for word in words)
        if int(name) > _LAST_STANDARD and not is_named:
            try:  # noqa: SIM105 - contextlib is slow to import
                os.set_inheritable(int(name), False)
            except OSError:  # the one that the list was read through
                pass


def open_closed_ones() -> None:
    """Open /dev/null in the place of a closed standard stream; to be called before all else.

    Else the next file that is opened gets its number, and output of ranks goes into that.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
            os.set_inheritable(number, True)
    # Python leaves None where it found a stream closed.
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - open until the exit
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
