"""Let this process's stacks be dumped from outside, even while it holds the interpreter lock.

``faulthandler`` writes all Python stacks from inside a C signal handler into a file that was opened
beforehand. Once per process: the registration and its file stay for ever, because a monitor may
send the signal at any moment, and a signal without a handler would end the process.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

from holdfast.base.own_descriptor import OwnDescriptor
from holdfast.base.processes.proc import process_state

_PREFERRED = 7
"""Above SIGRTMIN."""
_START = "_holdfast_start"
"""The module in which the first lines of a rank live on: ``watch/rank/first_lines.py``."""

_RANK_MONITOR = "rank monitor"
_registered: dict[str, tuple[str, int, OwnDescriptor]] = {}
"""By owner: path of the dump file, the signal, and the descriptor that its handler writes to, which
is never closed."""


def _take_over() -> None:
    """Know the registration that this process was started with."""
    found = getattr(sys.modules.get(_START), "dump", None)
    if found is not None:
        path, number, fd = found
        _registered[_RANK_MONITOR] = path, number, OwnDescriptor(fd, is_used=True)


_take_over()


def signal_of_start(path: str | None) -> int:
    """The signal by which a rank whose start made ``path`` dumps its stacks; 0: it made none."""
    return signal.SIGRTMIN + _PREFERRED if path is not None and os.path.exists(path) else 0


def register_stack_dump(path: str, owner: str = _RANK_MONITOR) -> int:
    """From now on, a signal to this process appends the stacks of its threads to ``path``.

    Takes SIGRTMIN+7, or the next real-time signal that is neither handled nor ignored.

    Args:
        path: The file; made where there is none.
        owner: Who asks. Each owner has a signal and a file of its own; a new path replaces its
            old one, and another signal one that the program handles itself by now.

    Returns:
        The number of the signal; 0: no signal is free, none may be sent.

    Raises:
        OSError: ``path`` cannot be opened.
    """
    known = _registered.get(owner)
    keeps_signal = known is not None and known[1] != 0 and _has_handler(known[1])
    if known is not None and keeps_signal and known[0] == path:
        return known[1]
    number = known[1] if known is not None and keeps_signal else free_signal(_PREFERRED)
    if number:
        if not keeps_signal:
            faulthandler.unregister(number)  # or it would believe that its handler is there
        _open_dump(path, number, owner)
    elif known is not None:
        _registered[owner] = known[0], 0, known[2]
    return number


def _has_handler(number: int) -> bool:
    """The program has not replaced the dump's handler, as one for all signals does."""
    state = process_state(os.getpid())
    is_caught = state is None or state.catches(number)
    return is_caught and signal.getsignal(number) == signal.SIG_DFL  # faulthandler's is not known


def _open_dump(path: str, number: int, owner: str) -> OwnDescriptor:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    file = OwnDescriptor(fd)
    faulthandler.register(number, file=file.fd, all_threads=True, chain=False)
    _registered[owner] = path, number, file
    return file


def dump_signal() -> int:
    """By which the rank monitor asks for stacks; 0: there is none."""
    known = _registered.get(_RANK_MONITOR)
    return 0 if known is None else known[1]


def write_stacks() -> None:
    """What that signal does, from an ordinary thread: no system call of another one is interrupted.

    While it lasts no thread runs Python, so all stacks are of the same moment.
    """
    if known := _registered.get(_RANK_MONITOR):
        path, number, file = known
        if not file.is_own():  # the program has closed it
            file = _open_dump(path, number, _RANK_MONITOR)
        faulthandler.dump_traceback(file=file.fd, all_threads=True)


def free_signal(above_first: int) -> int:
    """The first from SIGRTMIN + ``above_first`` on without a handler, and not ignored; 0: none.

    The lowest signals are used by libraries, the highest by valgrind and others.
    """
    state = process_state(os.getpid())
    for number in range(signal.SIGRTMIN + above_first, signal.SIGRTMAX + 1):
        # The kernel also knows of handlers that were not installed through Python.
        is_caught = state is not None and state.catches(number)
        if not is_caught and signal.getsignal(number) == signal.SIG_DFL:
            return number
    return 0
