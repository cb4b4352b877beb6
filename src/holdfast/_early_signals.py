"""Signals that reach the launcher while no event loop takes them. Light: no typing, no signal."""

import _signal  # type: ignore[import-not-found] # signal itself takes another 3 ms
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_ENDING = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGQUIT)


def end_on_signals() -> None:
    """From now on, one of torchrun's signals ends this process with the launcher's code for it.

    SIGHUP stays ignored if it is: the user said nohup.
    """
    for signum in _ENDING:
        if not _is_nohup(signum):
            _signal.signal(signum, _end)


def hold_signals(handled: "Iterable[int]") -> None:
    """From now on these signals wait for the launcher's loop, which unblocks those it handles.

    Others have their default effect again: the user has left them out.
    """
    held = {signum for signum in handled if not _is_nohup(signum)}
    _signal.pthread_sigmask(_signal.SIG_BLOCK, held)
    for signum in set(_ENDING) - held:
        if _signal.getsignal(signum) is _end:
            _signal.signal(signum, _signal.SIG_DFL)


def _is_nohup(signum: int) -> bool:
    ignored: bool = signum == _signal.SIGHUP and _signal.getsignal(signum) == _signal.SIG_IGN
    return ignored


def _end(signum: int, _frame: object) -> None:
    # As in job/pure/exit_codes.py (INTERRUPTED, SIGNALLED), which is not loaded yet.
    is_interrupt = signum == _signal.SIGINT
    text = "interrupted" if is_interrupt else f"ended by signal {signum}"
    try:
        os.write(2, f"ft_launcher: {text} before anything was started\n".encode())
    finally:
        os._exit(130 if is_interrupt else 1)
