"""Raise an exception in the main thread, from another thread, where it does least harm.

A real-time signal to the main thread alone, whose handler raises. It gets through where an
asynchronous exception does not (measured: 0.12 to 0.2 ms out of ``time.sleep``, a lock, ``recv``,
``select``, a queue; ``PyThreadState_SetAsyncExc`` is seen when the call ends) and it sees the stack
of what it interrupts, so it can refuse. It waits while the main thread is

* in an :class:`~holdfast.host.atomic.Atomic` section,
* in a body of ``finally`` or ``except`` (``clean_up_lines``), in ``__exit__``, ``__aexit__`` or
  ``__del__``, where the exception would even vanish,
* importing a module, which would stay half-made in C,
* in a function that was named by :func:`never_inside`.

Without that, 165 of 400 trials left a ``finally`` half-done; with it none of 300. What refuses too
long (``max_defer_s``) is interrupted all the same, except in the last case.

It does not get through to C code that neither returns nor lets itself be interrupted (gloo's waits:
``torch_edge/gloo_abort.py``). Where the user's code blocks the signal or has put its own handler in
place of ours, the asynchronous exception is the second way.

The owner repeats (:meth:`MainThreadInterrupt.deliver_again`, each few milliseconds) until the main
thread has acknowledged, because the exception may be refused, or swallowed by the code it hits.
There is no thread and no timer in here.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeVar

from holdfast.host.atomic import Atomic
from holdfast.host.clean_up_lines import clean_up_of
from holdfast.host.clock import monotonic
from holdfast.host.free_signal import free_signal
from holdfast.host.proc import process_state

log = logging.getLogger(__name__)

_PREFERRED = 8
"""Above SIGRTMIN; the one before is that of stack dumps (``dump_signal``)."""
_LEAVES = frozenset({"__exit__", "__aexit__", "__del__"})
_IMPORT = "<frozen importlib"
_KEPT = 8
"""How many places that swallow are remembered; code in a loop does it each few milliseconds."""

_never: set[int] = set()
"""Identities of code objects, which :data:`_never_kept` keeps alive."""
_never_kept: list[CodeType] = []

_T = TypeVar("_T")
ExceptionFactory = Callable[[], BaseException]


def never_inside(function: Any) -> Any:
    """Mark a Python function in which no interrupt may be raised, such as a callback from C."""
    code = function.__code__
    if id(code) not in _never:
        _never_kept.append(code)
        _never.add(id(code))
    return function


class InterruptError(RuntimeError):
    """The main thread cannot be interrupted; the text says why."""


@dataclass(frozen=True)
class Delivered:
    """How one request went.

    Attributes:
        is_requested: There was one.
        attempts: How often the exception was raised.
        refusals: How often it was not, in favour of clean-up.
        forced_at: The clean-up it was raised in at last, after ``max_defer_s``; "": none.
        swallowed_at: ``file:line in function`` of code that caught the exception and went on.
    """

    is_requested: bool = False
    attempts: int = 0
    refusals: int = 0
    forced_at: str = ""
    swallowed_at: tuple[str, ...] = ()


class MainThreadInterrupt:
    """The signal, its handler and what is asked of it. To be made and closed in the main thread.

    ::

        arm ──► request (any thread) ──► deliver_again ... ──► the exception ──► acknowledge

    Attributes:
        signal: Number of the signal; another process may send it, too, once :meth:`request` was
            called.
        atomic: Sections that are not interrupted.
        max_defer_s: How long clean-up is respected.
        delivered: How the last :meth:`run` went.
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
        self.atomic = Atomic(self._on_atomic_left)
        self._main = threading.get_ident()
        self._lock = threading.Lock()
        self._is_closed = False
        self._factory: ExceptionFactory | None = None
        self._outermost: FrameType | None = None
        self._is_handling = False
        self._requested_at: float | None = None
        self._attempts = 0
        self._refusals = 0
        self._runs = 0
        self._runs_before = -1
        self._async_kind: type[BaseException] | None = None
        self._forced_at = ""
        self._hit: list[tuple[int, CodeType, int]] = []
        self._swallowed: list[str] = []
        self._handler = self._handle
        self._before = signal.signal(self.signal, self._handler)

    # ------------------------------------------------------------------ the main thread
    def run(self, function: Callable[[], _T], factory: ExceptionFactory) -> _T:
        """Call ``function`` so that it can be interrupted, and nothing that comes after it.

        Returns, and raises, what the function does, or the exception of ``factory``. How it went is
        in :attr:`delivered`; it may have been asked for and still the function returned.
        """
        try:
            self.arm(factory)
            return function()
        finally:
            self.delivered = self.acknowledge()

    def arm(self, factory: ExceptionFactory) -> None:
        """From now on the main thread may be interrupted. To be called in the main thread.

        A request that was made before counts; :meth:`acknowledge` drops one that is out of date.
        After :meth:`arm` the caller must be in a ``try`` until it has acknowledged, and what comes
        in between in ``except`` or ``finally``: :meth:`run` does all that.

        What the caller's callers do is none of the interrupt's business: clean-up is looked for in
        the caller's frame and in what it calls.

        Args:
            factory: Makes the exception to raise, in the main thread. Its class must also do
                without arguments, for the second way.
        """
        self._outermost = sys._getframe(1)  # noqa: SLF001 - the documented way to a frame
        self._factory = factory
        if self._requested_at is not None:
            self._send()

    def acknowledge(self) -> Delivered:
        """The exception has arrived, or is not wanted any more: nothing is raised from now on."""
        while True:
            try:
                self._factory = None
                self._outermost = None
                self.atomic.unwatch()
                if self._async_kind is not None:
                    self._raise_async(None)
                break
            except BaseException as error:
                # An asynchronous exception that was on its way. Anything else is the user's.
                if type(error) is not self._async_kind:
                    raise
                log.debug("arrived while it was acknowledged: %r", error)
        delivered = Delivered(
            self._requested_at is not None,
            self._attempts,
            self._refusals,
            self._forced_at,
            tuple(self._swallowed),
        )
        self._requested_at = None
        self._async_kind = None
        self._attempts = self._refusals = 0
        self._forced_at = ""
        self._hit = []
        self._swallowed = []
        return delivered

    def close(self) -> None:
        """Put back the handler that was there; does nothing the second time."""
        self.acknowledge()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if signal.getsignal(self.signal) is not self._handler:
                return  # somebody else's by now
            # What is still on its way must meet neither no handler (it would end the process) nor
            # somebody else's: ignoring a signal discards it.
            signal.signal(self.signal, signal.SIG_IGN)
            signal.signal(self.signal, self._before)

    # ------------------------------------------------------------------ any thread
    @property
    def is_requested(self) -> bool:
        """Asked for, and not yet acknowledged."""
        return self._requested_at is not None

    @property
    def swallowed_at(self) -> tuple[str, ...]:
        """So far; see :class:`Delivered`."""
        return tuple(self._swallowed)

    def request(self) -> None:
        """Interrupt the main thread; if it is not armed, as soon as it is.

        Then call :meth:`deliver_again` until :attr:`is_requested` is false.
        """
        if self._requested_at is None:
            self._requested_at = monotonic()
            self.atomic.watch()
        self._send()

    def deliver_again(self) -> None:
        """Repeat it: the exception may have been refused, swallowed, or not got through."""
        factory = self._factory
        if self._requested_at is None or factory is None:
            return
        if self._can_send() and not self._is_blocked():
            self._send()
        elif self._obstacle_from_outside() is None:
            self._async_kind = type(factory())
            self._attempts += 1
            self._raise_async(self._async_kind)

    # ------------------------------------------------------------------ sending
    def _can_send(self) -> bool:
        return signal.getsignal(self.signal) is self._handler

    def _is_blocked(self) -> bool:
        if self._runs != self._runs_before:  # it got through since we last looked
            self._runs_before = self._runs
            return False
        state = process_state(os.getpid())
        return state is not None and state.blocks(self.signal)

    def _send(self) -> None:
        with self._lock:
            # Without our handler the signal would end the process.
            if not self._is_closed and self._can_send():
                signal.pthread_kill(self._main, self.signal)

    def _raise_async(self, kind: type[BaseException] | None) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self._main), ctypes.py_object(kind) if kind is not None else None
        )

    # ------------------------------------------------------------------ the handler
    def _handle(self, _signum: int, frame: FrameType | None) -> None:
        self._runs += 1
        self._raise_if_due(frame)

    def _on_atomic_left(self, may_raise: bool) -> None:  # noqa: FBT001
        if may_raise:
            # The frame of Atomic.__exit__ itself is not the user's clean-up.
            self._raise_if_due(sys._getframe(2))  # noqa: SLF001

    def _raise_if_due(self, frame: FrameType | None) -> None:
        # Signals that arrive during the handler are handled within it.
        if self._is_handling or self._factory is None or self._requested_at is None:
            return
        self._is_handling = True
        try:
            error = self._due(frame, self._factory, self._requested_at)
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
                self._refusals += 1
                return None
            self._forced_at = obstacle
        else:
            self._note_swallowed(frame)
        self._attempts += 1
        self._hit = [(id(f), f.f_code, f.f_lineno) for f in self._stack(frame)]
        return factory()

    def _obstacle_from_outside(self) -> str | None:
        frame = sys._current_frames().get(self._main)  # noqa: SLF001 - the documented way
        obstacle, can_be_forced = self._obstacle(frame)
        requested_at = self._requested_at
        if not obstacle or requested_at is None:
            return None
        if can_be_forced and monotonic() - requested_at >= self.max_defer_s:
            self._forced_at = obstacle
            return None
        self._refusals += 1
        return obstacle

    def _obstacle(self, frame: FrameType | None) -> tuple[str, bool]:
        """Why not now, "" for no reason; and whether that may be overruled in the end."""
        obstacle = "an atomic section" if self.atomic.is_main_inside else ""
        for f in self._stack(frame):
            code = f.f_code
            if id(code) in _never:
                return _place(f), False
            if not obstacle and (
                code.co_name in _LEAVES
                or code.co_filename.startswith(_IMPORT)
                or f.f_lineno in clean_up_of(code, f.f_globals).lines
            ):
                obstacle = _place(f)
        return obstacle, True

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
        """In ordinary code again: the innermost of the stack that was hit before has caught it."""
        now = {id(f): f for f in self._stack(frame)}
        for identity, code, line in self._hit:
            f = now.get(identity)
            if f is None or f.f_code is not code:
                continue
            caught = clean_up_of(code, f.f_globals).catcher(line) or f.f_lineno
            place = f"{code.co_filename}:{caught} in {code.co_name}"
            if place not in self._swallowed and len(self._swallowed) < _KEPT:
                self._swallowed.append(place)
            return


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


for _own in (MainThreadInterrupt.arm, MainThreadInterrupt.acknowledge, MainThreadInterrupt.close):
    never_inside(_own)
