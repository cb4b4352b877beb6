"""Two stamps of the clock in shared memory: the main thread runs Python, and any thread can.

The watcher thread calls :meth:`Stamps.beat` each period. It stores the thread's stamp and asks the
interpreter to call a C function in the main thread (``Py_AddPendingCall``); if that was called by
the next beat, it stores the main thread's stamp. If both are old, something holds the interpreter
or the process is stopped; if the main thread's alone is, it is blocked in C. The main thread's
stamp is at most one period later than its last step of Python. A beat costs 1 microsecond
(measured): no message, no lock, no system call.
"""

from __future__ import annotations

import ctypes

from holdfast.base.clock import monotonic

_SEM_BYTES = 64
"""At least as large as a ``sem_t`` of any C library (32 bytes with glibc)."""


class _MainThreadProbe:
    """Whether the main thread has come to run Python since it was last asked."""

    # The C function is ``sem_post``, not Python code (a ctypes callback): ctypes prints and loses
    # an exception that is raised inside of that, by a handler of Ctrl-C or asynchronously, and
    # returns an undefined value. The interpreter takes that for a failure without an exception, and
    # raises ``SystemError: error return without exception set`` in the user's code (CPython 3.8 to
    # 3.14). CPython runs calls that were added by this function in the main thread alone, also
    # since 3.12, where other pending calls may run in any thread.

    def __init__(self) -> None:
        library = ctypes.PyDLL(None)  # calls of it keep the interpreter: they take no time
        self._try_wait = library.sem_trywait
        self._try_wait.argtypes = (ctypes.c_void_p,)
        # Never freed: a call may be pending for as long as the process lives.
        self._semaphore = ctypes.create_string_buffer(_SEM_BYTES)
        self._address = ctypes.addressof(self._semaphore)
        if library.sem_init(self._semaphore, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "no semaphore")
        self._post = ctypes.cast(library.sem_post, ctypes.c_void_p)
        self._add_pending_call = ctypes.pythonapi.Py_AddPendingCall
        self._add_pending_call.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self._add_pending_call.restype = ctypes.c_int
        self._is_asked = False

    def ask(self) -> None:
        """Ask, unless an answer is still due."""
        if not self._is_asked:
            # Where the interpreter's queue of 32 is full, the next beat asks again.
            self._is_asked = self._add_pending_call(self._post, self._address) == 0

    def has_answered(self) -> bool:
        """Take the answer; False: there is none since the last one was taken."""
        if self._try_wait(self._address) != 0:
            return False
        self._is_asked = False
        return True


_probe = _MainThreadProbe()
"""One: there is one main thread."""
_target: Stamps | None = None
"""The one that asks the probe; at most one in a process."""


class Stamps:
    """The writer of both; one at a time in a process.

    Args:
        words: Of a shared page.
        main: Index of the word for the main thread's stamp.
        thread: Index of the word for the watcher thread's.
    """

    def __init__(self, words: memoryview[float], main: int, thread: int) -> None:
        self._words = words
        self._main = main
        self._thread = thread

    def begin(self) -> None:
        """Both stamps are now; to be called in the main thread, before a reader does."""
        global _target  # noqa: PLW0603 - there is one main thread
        now = monotonic()
        self._words[self._main] = now
        self._words[self._thread] = now
        _probe.has_answered()  # of an earlier target
        _target = self

    def beat(self, *, main_counts: bool = True) -> None:
        """Stamp for the calling thread, and for the main thread if it ran since the last beat.

        Args:
            main_counts: False while signals wake the main thread again and again: then it runs, and
                that says nothing.
        """
        now = monotonic()
        self._words[self._thread] = now
        if _target is self:
            if _probe.has_answered() and main_counts:
                self._words[self._main] = now
            _probe.ask()

    def end(self) -> None:
        """No stamps any more."""
        global _target  # noqa: PLW0603
        if _target is self:
            _target = None
