"""A thread that notes when the main thread last ran Python, and when it last said ``ping``."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable

from holdfast.base.clock import monotonic
from holdfast.page.stamps import Stamps
from nvidia_resiliency_ext._former import ignore

__all__ = ["ProgressWatchdog"]

_MAIN, _THREAD = 0, 1


class ProgressWatchdog(threading.Thread):
    """Marks of progress, by ``time.monotonic``; to be made in the main thread, one in a process.

    Every ``interval`` it asks the interpreter to run a C function in the main thread. That a
    function ran shows that the main thread takes turns: it does not wait in C code, and no other
    thread keeps the interpreter. The marks are as of at most one ``interval`` ago.

    Args:
        interval: Between two questions.
        report: Called in the watchdog's thread, each interval, with the automatic and the manual
            mark; the manual one is ``None`` before the first :meth:`ping`.
    """

    def __init__(
        self,
        interval: dt.timedelta = dt.timedelta(seconds=1),
        report: Callable[[float, float | None], object] | None = None,
        **others: object,
    ) -> None:
        ignore(others, "ProgressWatchdog")
        super().__init__(name="ProgressWatchdog", daemon=True)
        self.interval = interval
        self.report = report
        self.should_stop = threading.Event()
        self._runs = threading.Event()
        self._runs.set()
        self._turn = threading.Lock()
        self._words = memoryview(bytearray(16)).cast("d")
        self._stamps = Stamps(self._words, _MAIN, _THREAD)
        self._manual: float | None = None
        self._stamps.begin()

    @property
    def automatic_timestamp(self) -> float:
        """When the main thread was last known to run Python."""
        return self._words[_MAIN]

    @property
    def manual_timestamp(self) -> float | None:
        """The last :meth:`ping`; ``None``: there was none since the last :meth:`reset`."""
        return self._manual

    def ping(self) -> None:
        """The program makes progress."""
        self._manual = monotonic()

    def reset(self) -> None:
        """A new iteration: the automatic mark is now, and there is no manual one."""
        with self._turn:
            self._manual = None
            self._words[_MAIN] = monotonic()

    def pause_and_synchronize(self) -> None:
        """Ask nothing of the main thread any more; the question under way was asked before."""
        self._runs.clear()
        with self._turn:
            pass

    def resume(self) -> None:
        """Go on after :meth:`pause_and_synchronize`."""
        self._runs.set()

    def run(self) -> None:
        """The body of the thread; see the class."""
        while not self.should_stop.wait(self.interval.total_seconds()):
            with self._turn:
                if self._runs.is_set():
                    self._stamps.beat()
            if self.report is not None:
                self.report(self.automatic_timestamp, self._manual)

    def shutdown(self) -> None:
        """End the thread."""
        self.should_stop.set()
        self._runs.set()
        if threading.current_thread() is not self and self.is_alive():
            self.join()
        self._stamps.end()
