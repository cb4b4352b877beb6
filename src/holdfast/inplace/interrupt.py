"""Raise an exception in the main thread, from another thread, where it does least harm.

The handler of a real-time signal to the main thread alone raises it. A signal gets through where an
asynchronous exception does not (measured: 0.12 to 0.2 ms out of ``time.sleep``, a lock, ``recv``,
``select``, a queue; ``PyThreadState_SetAsyncExc`` is seen when the call ends), and its handler sees
the interrupted stack, so it can refuse. It waits while the main thread is

* in an :class:`~holdfast.inplace.atomic.Atomic` section, but not where it waits to enter one,
* in a body of ``finally`` or ``except`` (``clean_up_lines``), in ``__exit__``, ``__aexit__`` or
  ``__del__``, or a callback of ``weakref``, of the garbage collector (``gc.callbacks``) or for what
  those have raised (``sys.unraisablehook``), where the exception would even vanish,
* in a handler of a signal: where SIGTERM ends a job, one rank may write the last checkpoint in
  there while the others are gone already,
* importing a module, which would stay half-made in C,
* in a function that was named by :func:`never_inside`.

Without that, 165 of 400 trials left a ``finally`` half-done; with it none of 300. An import that
takes too long (``max_defer_s``) is interrupted nevertheless, as the program may train in there.
Sections and clean-up never are: they end, or the guard ends the process at its timeouts. A clean-up
that waits to enter a section would wait for its own end, so it is interrupted at that door.

C code that neither returns nor lets itself be interrupted is not reached (gloo's waits:
``torch_edge/gloo_abort.py``). Where the user's code blocks the signal or has replaced its handler,
``_thread.interrupt_main`` makes the interpreter run the handler of a second number, kept for that:
no blocked call ends then, but it runs in the main thread before its next steps.

``PyThreadState_SetAsyncExc`` is not used. It raises in clean-up or below C code that loses
exceptions; it cannot be taken back once the main thread has acknowledged; and CPython 3.11 gives it
to a thread that is just being started, which is under the main thread's number until it runs (seen
in 2 of 3,000 interrupts of a thread that starts others).

The owner repeats (:meth:`MainThreadInterrupt.deliver_again`, each few milliseconds) until the main
thread has acknowledged, because the exception may be refused, or swallowed by the code it hits.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal's own take 0.3 ms for all numbers
import _thread
import gc
import multiprocessing.util
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, TypeVar

from holdfast.base.clock import monotonic
from holdfast.base.processes.proc import process_state
from holdfast.base.rank_log import rank_logger
from holdfast.evidence.dump_signal import free_signal
from holdfast.inplace.atomic import Atomic
from holdfast.inplace.clean_up_lines import clean_up_of

log = rank_logger(__name__)

_PREFERRED = 8
"""Above SIGRTMIN; the one before is that of stack dumps (``dump_signal``)."""
_LEAVES = frozenset({"__exit__", "__aexit__", "__del__"})
_IMPORT = "<frozen importlib"
_CALLED_BY_C = frozenset(
    kind.__init__.__code__.co_filename for kind in (weakref.WeakSet, weakref.WeakValueDictionary)
)
"""Files whose functions the interpreter calls when an object dies."""
_FINALIZER = multiprocessing.util.Finalize.__call__.__code__
"""Called with a weak reference when the object of a queue, a pool or a ``DataLoader`` dies."""
_NUMBERS = [int(number) for number in signal.valid_signals()]
_KEPT = 8
"""How many places that swallow are remembered; code in a loop does it each few milliseconds."""

_never: dict[int, CodeType] = {}
"""Code objects by identity: the hash of one looks at all of it."""

_T = TypeVar("_T")
ExceptionFactory = Callable[[], BaseException]


def never_inside(function: Any) -> Any:
    """Mark a Python function in which no interrupt may be raised, such as a callback from C."""
    _never[id(function.__code__)] = function.__code__
    return function


class InterruptError(RuntimeError):
    """The main thread cannot be interrupted; the text says why."""


@dataclass
class Delivered:
    """How one request goes, or went.

    ``refusals``: how often the exception was not raised, in favour of clean-up. ``forced_at``: the
    import it was raised in at last, after ``max_defer_s``; "": none. ``swallowed_at``: places,
    ``file:line in function``, of code that caught the exception and went on.
    """

    requested_at: float | None = None
    attempts: int = 0
    refusals: int = 0
    forced_at: str = ""
    swallowed_at: list[str] = field(default_factory=list)

    @property
    def is_requested(self) -> bool:
        """There was a request at all."""
        return self.requested_at is not None


class MainThreadInterrupt:
    """The signal, its handler and the request. To be made and closed in the main thread.

    ::

        arm ──► request (any thread) ──► deliver_again ... ──► the exception ──► acknowledge

    Attributes:
        signal: Its number; another process may send it, too, once :meth:`request` was called.
        atomic: Sections that are not interrupted.
        delivered: How the last :meth:`run` went.
        refused_at: Where the main thread was when it was not interrupted; "": it was.
    """

    def __init__(self, max_defer_s: float = 10.0) -> None:
        """Install the handler.

        Raises:
            InterruptError: This is not the main thread, or no signal is free.
        """
        if threading.current_thread() is not threading.main_thread():
            raise InterruptError(
                "only the main thread of a process can be interrupted, and this is thread "
                f"{threading.current_thread().name!r}: call the function in the main thread"
            )
        self.signal = free_signal(_PREFERRED)
        if self.signal == 0:
            raise InterruptError("no real-time signal is free in this process")
        self.max_defer_s = max_defer_s
        self.delivered = Delivered()
        self.atomic = Atomic()
        self.refused_at = ""
        self._main = threading.get_ident()
        self._lock = threading.Lock()
        self._is_closed = False
        self._factory: ExceptionFactory | None = None
        self._outermost: FrameType | None = None
        self._is_handling = False
        self._now = Delivered()
        self._runs = 0
        self._runs_before = -1
        self._handlers: set[CodeType] = set()
        """Of all signals, as far as seen: one may ignore its signal while it runs."""
        self._has_warned = False
        self._hit: list[tuple[FrameType, int]] = []
        """The stack that was hit last, with its lines: the frames, as one that is gone leaves its
        identity to the next. For no longer than its traceback lives: see :meth:`acknowledge`."""
        self._handler = self._handle
        self._before = {self.signal: signal.signal(self.signal, self._handler)}
        # None is left for the second way where a process uses nearly all: it does without, then.
        self._second = free_signal(_PREFERRED)
        if self._second:
            self._before[self._second] = signal.signal(self._second, self._handler)

    # ------------------------------------------------------------------ the main thread
    def run(self, function: Callable[[], _T], factory: ExceptionFactory) -> _T:
        """Call ``function`` so that it can be interrupted, and no code that comes after it.

        The exception of ``factory`` may be raised; how it went is in :attr:`delivered`. There may
        have been a request and still the function returned.
        """
        try:
            self.arm(factory)
            return function()
        finally:
            self.delivered = self.acknowledge()

    def arm(self, factory: ExceptionFactory) -> None:
        """From now on the main thread may be interrupted. To be called in the main thread.

        A request that was made before counts; :meth:`acknowledge` drops one that is out of date.
        After :meth:`arm` the caller must be in a ``try`` until it has acknowledged, and catch the
        exception in ``except`` or ``finally``, as :meth:`run` does. Clean-up is looked for in the
        caller's frame and in functions that it calls, not in its callers. ``factory`` makes the
        exception, in the main thread.
        """
        self._outermost = sys._getframe(1)  # noqa: SLF001 - the documented way to a frame
        self._handlers |= _signal_handlers()
        self._factory = factory
        if self.is_requested:
            self._send()

    def acknowledge(self) -> Delivered:
        """Raise nothing from now on: the exception has arrived, or is not wanted any more."""
        self._factory = None
        self._outermost = None
        delivered, self._now = self._now, Delivered()
        self.refused_at = ""
        self._hit = []
        return delivered

    def close(self) -> None:
        """Put back the handler that was there; does nothing the second time."""
        self.acknowledge()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for number, before in self._before.items():
                if signal.getsignal(number) is self._handler:  # else the program's by now
                    # A signal that is still on its way must meet neither no handler (it would end
                    # the process) nor the program's: ignoring it discards it.
                    signal.signal(number, signal.SIG_IGN)
                    signal.signal(number, before)

    # ------------------------------------------------------------------ any thread
    @property
    def is_requested(self) -> bool:
        """Asked for, and not yet acknowledged."""
        return self._now.is_requested

    def request(self) -> None:
        """Interrupt the main thread; if it is not armed, as soon as it is.

        Then call :meth:`deliver_again` until :attr:`is_requested` is false.
        """
        if not self.is_requested:
            self._now.requested_at = monotonic()
        self._send()

    def deliver_again(self) -> None:
        """Repeat it: the exception may have been refused or swallowed, or did not get through."""
        if not self.is_requested or self._factory is None:
            return
        if self._runs == self._runs_before:  # no handler has run since the last time
            self._interrupt_interpreter()
            state = process_state(os.getpid())
            if state is not None and state.blocks(self.signal):
                return  # blocked, perhaps for a moment only; one that was sent is still waiting
        self._runs_before = self._runs
        self._send()

    # ------------------------------------------------------------------ sending
    def _send(self) -> None:
        with self._lock:
            # Without this handler the signal would end the process.
            if not self._is_closed and signal.getsignal(self.signal) is self._handler:
                signal.pthread_kill(self._main, self.signal)

    def _interrupt_interpreter(self) -> None:
        """Run the handler without a signal: the second way."""
        with self._lock:
            if self._is_closed:
                return
            for number in (self._second, self.signal):
                if number and signal.getsignal(number) is self._handler:
                    _thread.interrupt_main(number)  # type: ignore[arg-type]  # any number will do
                    return
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "the main thread cannot be interrupted: the handlers of signals %d and %d were "
                "replaced, which holdfast uses to restart in place; leave these to it",
                self.signal,
                self._second,
            )

    # ------------------------------------------------------------------ the handler
    def _handle(self, _signum: int, frame: FrameType | None) -> None:
        self._runs += 1
        requested_at = self._now.requested_at
        # Signals that arrive during the handler are handled within it.
        if self._is_handling or self._factory is None or requested_at is None:
            return
        self._is_handling = True
        try:
            error = self._due(frame, self._factory, requested_at)
        finally:
            self._is_handling = False
        if error is not None:
            raise error

    def _due(
        self, frame: FrameType | None, factory: ExceptionFactory, requested_at: float
    ) -> BaseException | None:
        obstacle, can_be_forced = self._obstacle(frame)
        if obstacle:
            if not can_be_forced or monotonic() - requested_at < self.max_defer_s:
                self._now.refusals += 1
                self.refused_at = obstacle
                return None
            self._now.forced_at = obstacle
        else:
            self._note_swallowed(frame)
        self.refused_at = ""
        self._now.attempts += 1
        self._hit = [(f, f.f_lineno) for f in self._stack(frame)]
        return factory()

    def _obstacle(self, frame: FrameType | None) -> tuple[str, bool]:
        """Why not now, "" for no reason; and whether that may be overruled in the end."""
        clean_up = "an atomic section" if self.atomic.is_owned else ""
        imports = ""
        is_at_door = False
        self._handlers |= _signal_handlers()
        hooks = self._handlers | _hooks_of_c()
        for f in self._stack(frame):
            code = f.f_code
            if id(code) in _never:
                return _place(f), False
            is_at_door = is_at_door or self.atomic.is_entered_by(f)
            if clean_up or is_at_door:
                continue
            if code.co_filename.startswith(_IMPORT):
                imports = imports or _place(f)
            elif (
                code.co_name in _LEAVES
                or code.co_filename in _CALLED_BY_C
                or (code is _FINALIZER and f.f_locals.get("wr") is not None)
                or code in hooks
                or f.f_lineno in clean_up_of(code, f.f_globals).lines
            ):
                clean_up = _place(f)
        return clean_up or imports, not clean_up

    def _stack(self, frame: FrameType | None) -> list[FrameType]:
        """From ``frame`` up to the one that armed."""
        stack = []
        while frame is not None:
            stack.append(frame)
            if frame is self._outermost:
                break
            frame = frame.f_back
        return stack

    def _note_swallowed(self, frame: FrameType | None) -> None:
        """In ordinary code again: the innermost of the stack that was hit before caught it."""
        now, swallowed = self._stack(frame), self._now.swallowed_at
        for f, line in self._hit:
            if f not in now:
                continue
            code = f.f_code
            caught = clean_up_of(code, f.f_globals).catcher(line) or f.f_lineno
            place = f"{code.co_filename}:{caught} in {code.co_name}"
            if place not in swallowed and len(swallowed) < _KEPT:
                swallowed.append(place)
            return


def _hooks_of_c() -> set[CodeType]:
    """Functions of the program that the interpreter calls now and then; it loses their errors."""
    return _codes_of((*gc.callbacks, sys.unraisablehook))


def _signal_handlers() -> set[CodeType]:
    return _codes_of(filter(callable, map(_signal.getsignal, _NUMBERS)))


def _codes_of(hooks: Iterable[Any]) -> set[CodeType]:
    """Of functions, methods, partial ones, and objects with ``__call__``, if in Python."""
    found = set()
    for one in hooks:
        hook = getattr(one, "func", one)
        hook = getattr(hook, "__func__", hook)
        code = getattr(hook, "__code__", None) or getattr(type(hook).__call__, "__code__", None)
        if code is not None:
            found.add(code)
    return found


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


for _own in (MainThreadInterrupt.arm, MainThreadInterrupt.acknowledge, MainThreadInterrupt.close):
    never_inside(_own)
