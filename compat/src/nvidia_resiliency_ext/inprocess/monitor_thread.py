"""A thread that interrupts the main thread when an iteration is over for all ranks.

holdfast's Wrapper does this in ``holdfast.inplace.session``, with a signal. This thread works
with an asynchronous exception and a store, for programs that use the parts by themselves.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import CodeType, FrameType
from typing import Any

from holdfast.base.rank_log import rank_logger
from holdfast.inprocess.exception import RankShouldRestart
from nvidia_resiliency_ext._former import ignore
from nvidia_resiliency_ext.inprocess.attribution import format_interruption_records

__all__ = [
    "MonitorThread",
    "RankShouldRestart",
    "async_raise",
    "reraise_if_unraisable",
]

_LOGGER = rank_logger("holdfast.compat")
_MILLISECOND = 0.001


def async_raise(tid: int, exc_type: type[BaseException]) -> None:
    """Raise an exception in another thread, before its next Python instruction.

    Args:
        tid: ``threading.get_ident()`` of the thread.
        exc_type: Class of the exception; Python makes the object without arguments.

    Raises:
        TypeError: ``exc_type`` is no class of exceptions.
        ValueError: There is no such thread.
    """
    kind: object = exc_type
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise TypeError(f"async_raise takes a class of exceptions, got {exc_type!r}")
    set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
    reached = set_exception(ctypes.c_ulong(tid), ctypes.py_object(exc_type))
    if reached == 0:
        raise ValueError(f"there is no thread with identifier {tid}")


@contextmanager
def reraise_if_unraisable(exc_type: type[BaseException]) -> Iterator[None]:
    """While inside, an ``exc_type`` that Python swallows in ``__del__`` is raised again.

    Python cannot propagate what arrives during ``__del__`` or a callback of a weak reference; it
    reports that to ``sys.unraisablehook`` and goes on. Here it is raised once more, asynchronously,
    in the thread where it was lost. Other exceptions go to the hook that was installed before.
    """
    before = sys.unraisablehook

    def hook(unraisable: Any, /) -> None:
        if unraisable.exc_type is None or not issubclass(unraisable.exc_type, exc_type):
            before(unraisable)
            return
        threading.Thread(
            target=_raise_outside,
            args=(threading.get_ident(), exc_type, hook.__code__),
            daemon=True,
        ).start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _raise_outside(tid: int, exc_type: type[BaseException], code: CodeType) -> None:
    """Once the thread has left ``code``: an exception raised in a hook is lost for good."""
    while _is_inside(sys._current_frames().get(tid), code):  # noqa: SLF001 - the documented way
        threading.Event().wait(_MILLISECOND)
    async_raise(tid, exc_type)


def _is_inside(frame: FrameType | None, code: CodeType) -> bool:
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


class MonitorThread(threading.Thread):
    """Waits until an iteration is interrupted; then aborts, and interrupts the main thread.

    In order: the first record in ``store``; ``last_call_wait``, for records of other ranks; the
    list of records is closed; ``abort``, with ``atomic_lock`` held; ``RankShouldRestart`` in the
    main thread, again and again until :meth:`shutdown`.

    Args:
        state: Given to ``abort``.
        store: Of this iteration, with :class:`~nvidia_resiliency_ext.inprocess.store.StoreMixin`.
        abort: Called with ``state``; ``None``: nothing is aborted.
        atomic_lock: Held by the program where it must not be interrupted; ``None``: nowhere.
        interval: How long one wait for the store takes, and the pause between two exceptions.
        last_call_wait: How long other ranks may still record their ends.
        main_tid: Of the thread to interrupt; ``None``: the main thread.

    Attributes:
        should_stop: Set by :meth:`shutdown`.
        message: Which ranks were interrupted by what; empty before.
    """

    def __init__(
        self,
        state: Any,
        store: Any,
        abort: Callable[[Any], Any] | None = None,
        atomic_lock: AbstractContextManager[Any] | None = None,
        interval: dt.timedelta = dt.timedelta(seconds=1),
        last_call_wait: dt.timedelta = dt.timedelta(0),
        main_tid: int | None = None,
        **others: object,
    ) -> None:
        ignore(others, "MonitorThread")
        super().__init__(name="MonitorThread", daemon=True)
        self.state = state
        self.store = store
        self.abort = abort
        self.atomic_lock = nullcontext() if atomic_lock is None else atomic_lock
        self.interval = interval
        self.last_call_wait = last_call_wait
        self.main_tid = threading.main_thread().ident if main_tid is None else main_tid
        self.should_stop = threading.Event()
        self.message = ""

    def run(self) -> None:
        """The body of the thread; see the class."""
        if not self._await_interruption():
            return
        if self.should_stop.wait(self.last_call_wait.total_seconds()):
            return
        self.store.lock_interruption_records()
        self.message = format_interruption_records(self.store.get_interruption_records())
        with self.atomic_lock:
            if self.abort is not None:
                try:
                    self.abort(self.state)
                except Exception:
                    _LOGGER.exception("rank %s: abort failed", getattr(self.state, "rank", "?"))
        while not self.should_stop.is_set():
            async_raise(self.main_tid or 0, RankShouldRestart)
            self.should_stop.wait(max(self.interval.total_seconds(), _MILLISECOND))

    def _await_interruption(self) -> bool:
        while not self.should_stop.is_set():
            try:
                self.store.wait_for_interruption(self.interval)
            except RuntimeError:  # torch's DistStoreError: not yet
                continue
            return True
        return False

    def shutdown(self) -> None:
        """End the thread; nothing is raised any more once this returns."""
        self.should_stop.set()
        if threading.current_thread() is not self and self.is_alive():
            self.join()
