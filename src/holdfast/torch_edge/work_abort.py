"""End a ``recv`` from any source, or a half-sent ``send``, that no broken connection ends.

A receive from any source belongs to no connection, so it hangs until the group's timeout even when
every peer is dead; a send that is partly written to a stopped peer likewise. gloo has a way out,
``RecvWork::abort`` and ``SendWork::abort``, which torch exports from its library but not to Python.
We call them (measured: the waiter is back 0.3 to 3 ms later, *without* an error: the interrupt of
the main thread must follow).

That is private binary interface, so:

* what is called is looked up by name, and an object is only touched if its first word, the address
  of its class's table of functions, says that it is one of the two classes;
* before the first use a child process has done all of it to operations of its own (:func:`main`,
  about as long as importing torch). Where that fails or crashes, it is said once, and such an
  operation ends with its group's timeout.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import os
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import HashStore, Work
from torch.distributed import ProcessGroupGloo

from holdfast.host.rank_log import rank_logger
from holdfast.host.trial import Trial

if TYPE_CHECKING:
    from typing_extensions import Self

log = rank_logger(__name__)

_TEST_S = 120.0
_TEST = f"from {__name__} import main; main()"
_TABLE = "_ZTVN4c10d16ProcessGroupGloo8{}E"
_ABORT = "_ZN4c10d16ProcessGroupGloo8{}5abortEv"
_CLASSES = ("RecvWork", "SendWork")
_SEND_OR_RECEIVE = frozenset({12, 13, 14})
"""Numbers of c10d's SEND, RECV and RECVANYSOURCE."""
_WORD = ctypes.sizeof(ctypes.c_void_p)
_VALUE = 2 * _WORD
"""Where an instance of a class bound by pybind11 has its C++ object: after an object's head."""


class _Native:
    """The two functions, by the address that begins an object of their class."""

    def __init__(self) -> None:
        folder = Path(torch.__file__).parent / "lib"
        library = ctypes.CDLL(str(folder / "libtorch_cpu.so"), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        self._abort: dict[int, Any] = {}
        for name in _CLASSES:
            table = ctypes.c_char.in_dll(library, _TABLE.format(name))
            function = library[_ABORT.format(name)]
            function.restype = None
            function.argtypes = (ctypes.c_void_p,)
            # Its first two words are for casts; objects point behind them.
            self._abort[ctypes.addressof(table) + 2 * _WORD] = function

    def abort(self, work: Work) -> bool:
        """End it, if it is a send or receive of gloo."""
        value = ctypes.c_void_p.from_address(id(work) + _VALUE).value
        if not value:
            return False
        function = self._abort.get(ctypes.c_size_t.from_address(value).value)
        if function is None:
            return False
        function(value)
        return True


class WorkAborter:
    """Knows which operation each thread waits for, while it is installed.

    A wait in Python costs 0.4 microseconds more. One per process, :func:`work_aborter`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._original: Any = None
        self._waiting: dict[int, Work] = {}
        self._test: Trial | None = None
        self._is_decided = False
        self._native: _Native | None = None

    def __enter__(self) -> Self:
        """Take note of waits from now on. May be nested."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._original = Work.wait
                Work.wait = self._noting(Work.wait)  # type: ignore[method-assign]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Undo it, and give up a test that is not over: the next user starts it again."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                Work.wait = self._original  # type: ignore[method-assign]
                if self._test is not None:
                    self._test.cancel()
                    self._test = None

    def _noting(self, wait: Any) -> Any:
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

    def prepare(self) -> None:
        """Start the test in a child process, if it was not started yet; returns at once."""
        with self._lock:
            if self._test is None and not self._is_decided:
                self._test = _start_test()

    def wait_prepared(self, timeout_s: float) -> bool:
        """The test is over and was passed."""
        with self._lock:
            if self._test is not None:
                try:
                    why_not = self._test.why_not(timeout_s)
                except TimeoutError:
                    return False
                self._test = None
                self._is_decided = True
                self._decide(why_not)
        return self._native is not None

    def abort(self, thread: int) -> bool:
        """End the send or receive that ``thread`` waits for, if it waits for one.

        The first time this only starts the test, so call it again until the thread is back.

        Args:
            thread: Its identifier (``threading.get_ident``).

        Returns:
            An operation was ended.
        """
        work: Any = self._waiting.get(thread)
        if work is None or work._get_op_type() not in _SEND_OR_RECEIVE:  # noqa: SLF001
            return False
        self.prepare()
        if not self.wait_prepared(0.0) or self._native is None:
            return False
        return self._native.abort(work)

    def _decide(self, why_not: str | None) -> None:
        if why_not is None:
            self._native = _Native()
            return
        log.warning(
            "a receive from any source and a half-sent send of gloo cannot be ended at once with "
            "this torch (%s): %s. A rank blocked in one restarts when the timeout of its process "
            "group is over; give the group a shorter one if that matters.",
            torch.__version__,
            why_not,
        )


_aborter = WorkAborter()


def work_aborter() -> WorkAborter:
    """The one of this process."""
    return _aborter


def _start_test() -> Trial:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    for name in ("TORCH_DISTRIBUTED_DEBUG", "LD_PRELOAD"):
        env.pop(name, None)
    return Trial(_TEST, env, _TEST_S)


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

    native = _Native()
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
