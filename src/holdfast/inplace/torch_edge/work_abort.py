"""End a ``send`` or ``recv`` of gloo that no broken connection ends.

A receive from any source belongs to no connection, so it hangs until the group's timeout even when
every peer is dead. A transfer that is half done when its connection breaks hangs likewise, on both
sides: that is any fault while ranks send each other large tensors. gloo has a way out, which torch
exports from its library but not to Python
(:class:`~holdfast.base.torch_private.PointToPointAbort`; the waiter is back 0.3 to 3 ms
later, *without* an error: the interrupt of the main thread must follow).

That is private binary interface. So before the first use a child process tests it on operations of
its own (:func:`main`; about as long as importing torch, and the operation waits so long). Where it
fails or crashes, a warning says so, and a rank that is blocked so is killed when ``hard_timeout``
is over. Decision 25 has the figures.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo

from holdfast.base.clock import monotonic
from holdfast.base.rank_log import rank_logger
from holdfast.base.torch_private import HashStore, PointToPointAbort, Work, is_point_to_point
from holdfast.inplace.torch_edge.replaced import replaced

log = rank_logger(__name__)

_TEST_S = 120.0
_TEST = f"from {__name__} import main; main()"
_READ_S = 1.0
"""For the last output of a test that has ended: another process may hold its pipe open."""


class ChildRun:
    """Python code in a child process; no thread waits for it. It has failed after ``bound_s``.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, code: str, env: Mapping[str, str], bound_s: float) -> None:
        self._bound_s = bound_s
        self._until = monotonic() + bound_s
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def why_not(self, timeout_s: float) -> str | None:
        """``None``: the code ran to its end, else how it failed; TimeoutError: it is not over."""
        process = self._process
        # With a timeout of 0, communicate() says that it is not over, whether it is or not.
        wait_s = timeout_s if process.poll() is None else _READ_S
        try:
            _, stderr = process.communicate(timeout=wait_s)
        except subprocess.TimeoutExpired:
            if monotonic() < self._until:
                raise TimeoutError from None
            self.cancel()
            return f"its test takes longer than {self._bound_s:g} s"
        if process.returncode == 0:
            return None
        return f"its test ended with {process.returncode}, {stderr.strip()[-300:] or 'silently'}"

    def cancel(self) -> None:
        """Kill it, if it is not over."""
        self._process.kill()
        self._process.communicate()


class WorkAborter:
    """Knows which operation each thread waits for, while it is installed.

    A wait in Python costs 0.4 microseconds more. One per process, :data:`work_aborter`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, Work] = {}
        self._test: ChildRun | None = None
        self._is_decided = False
        self._native: PointToPointAbort | None = None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Take note of waits inside; a test that is not over then is started again by the next."""
        try:
            with replaced(Work, "wait", self._noting):
                yield
        finally:
            with self._lock:
                if self._test is not None:
                    self._test.cancel()
                    self._test = None

    def _noting(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        waiting = self._waiting
        ident = threading.get_ident

        def wait_noted(work: Work, *args: Any, **kwargs: Any) -> Any:
            thread = ident()
            waiting[thread] = work
            try:
                return wait(work, *args, **kwargs)
            finally:
                waiting.pop(thread, None)

        return wait_noted

    def waits(self, thread: int) -> bool:
        """Whether ``thread`` (``threading.get_ident``) waits for an operation with other ranks."""
        return thread in self._waiting

    def forget(self) -> None:
        """The calling thread waits for nothing: in Python 3.10, an interrupt may skip a finally."""
        self._waiting.pop(threading.get_ident(), None)

    def prepare(self) -> None:
        """Start the test in a child process, if it was not started yet; returns at once."""
        with self._lock:
            if self._test is not None or self._is_decided:
                return
            try:
                self._test = _start_test()
            except OSError as error:
                self._decide(f"its test: {error}")

    def wait_prepared(self, timeout_s: float) -> bool:
        """The test is over and was passed."""
        with self._lock:
            if self._test is not None:
                try:
                    why_not = self._test.why_not(timeout_s)
                except TimeoutError:
                    return False
                self._test = None
                self._decide(why_not)
        return self._native is not None

    def abort(self, thread: int) -> bool:
        """End the send or receive that ``thread`` (``threading.get_ident``) waits for, if any.

        The first time this only starts the test, so call it again until the thread is back.
        """
        work: Any = self._waiting.get(thread)
        if work is None or not is_point_to_point(work):
            return False
        self.prepare()
        self.wait_prepared(0.0)
        return self._native is not None and self._native.abort(work)

    def _decide(self, why_not: str | None) -> None:
        self._is_decided = True
        if why_not is None:
            self._native = PointToPointAbort()
            return
        log.warning(
            "a half-done send or receive of gloo, and a receive from any source, cannot be ended "
            "with this torch (%s): %s. A rank blocked in one is killed after hard_timeout, unless "
            "the timeout of its process group is shorter: init_process_group(timeout=...)",
            torch.__version__,
            why_not,
        )


work_aborter = WorkAborter()


def _start_test() -> ChildRun:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    for name in ("TORCH_DISTRIBUTED_DEBUG", "LD_PRELOAD"):
        env.pop(name, None)
    return ChildRun(_TEST, env, _TEST_S)


def main() -> None:
    """The test: two ranks of gloo in this process, a receive from any source, a send too long."""
    store = HashStore()
    groups: dict[int, Any] = {}

    def make(rank: int) -> None:
        groups[rank] = ProcessGroupGloo(store, rank, 2, timeout=dt.timedelta(seconds=_TEST_S))

    makers = [threading.Thread(target=make, args=(rank,)) for rank in (0, 1)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()

    native = PointToPointAbort()
    too_much = torch.zeros(64 << 20, dtype=torch.uint8)
    works = [
        groups[0].recv_anysource([torch.zeros(1)], 0),
        groups[0].recv([torch.zeros(1)], 1, 1),
        groups[0].send([too_much], 1, 2),
    ]
    for work in works:
        waiter = threading.Thread(target=work.wait, daemon=True)
        waiter.start()
        waiter.join(0.05)
        was_waiting = waiter.is_alive()
        done = native.abort(work)
        waiter.join(_TEST_S / 4)
        if not was_waiting or not done or waiter.is_alive():
            sys.stderr.write(f"{work}: waiting {was_waiting}, aborted {done}\n")
            sys.stderr.flush()
            os._exit(1)
    os._exit(0)  # destructors of groups have nothing to say here
