"""Two stamps of the clock in shared memory: the main thread runs Python, and anybody can.

The watcher thread calls :meth:`Stamps.beat` each period. It stores the thread's stamp and asks the
interpreter to call a C function in the main thread (``Py_AddPendingCall``), which stores the main
thread's. What the two say together: ``core/interpreter.py``. A beat costs 0.6 microseconds and its
answer is there 18 microseconds later (measured); no message, no lock, no system call.

A word is 8 bytes, aligned, and stored whole, as in ``wire/page.py``: the reader is another process.
"""

from __future__ import annotations

import ctypes
import threading

from holdfast.host.clock import monotonic
from holdfast.host.interrupt import never_inside

_PendingCall = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_target: Stamps | None = None
"""Whose call is pending, or was last."""


class Stamps:
    """The writer of both; one at a time in a process.

    Args:
        words: Of a shared page, format ``d``.
        main: Index of the word for the main thread's stamp.
        thread: Index of the word for the watcher thread's.
    """

    def __init__(self, words: memoryview[float], main: int, thread: int) -> None:
        self._words = words
        self._main = main
        self._thread = thread
        self._is_pending = False

    def begin(self) -> None:
        """Both stamps are now; to be called before anybody reads them."""
        global _target  # noqa: PLW0603 - there is one main thread
        now = monotonic()
        self._words[self._main] = now
        self._words[self._thread] = now
        _target = self

    def beat(self) -> None:
        """Stamp for the calling thread, and have the main thread stamp as soon as it can."""
        self._words[self._thread] = monotonic()
        if not self._is_pending and _target is self:
            self._is_pending = True
            if _add_pending_call(_call, None) != 0:  # the interpreter's queue of 32 is full
                self._is_pending = False

    def end(self) -> None:
        """No stamps any more; a call that is still pending does nothing."""
        global _target  # noqa: PLW0603
        if _target is self:
            _target = None

    def _called(self) -> None:
        self._is_pending = False
        # From Python 3.12 on any thread may run pending calls; the next beat asks again.
        if threading.get_ident() == _main_ident:
            self._words[self._main] = monotonic()


_main_ident = threading.main_thread().ident


@never_inside
def _run(_argument: object) -> int:
    # An exception would be printed and lost in here; so none may come from outside, either.
    target = _target
    if target is not None:
        target._called()  # noqa: SLF001
    return 0


never_inside(Stamps._called)  # noqa: SLF001
_call = _PendingCall(_run)
"""Never freed: a call may be pending for as long as the process lives."""
_add_pending_call = ctypes.pythonapi.Py_AddPendingCall
_add_pending_call.argtypes = (_PendingCall, ctypes.c_void_p)
_add_pending_call.restype = ctypes.c_int
