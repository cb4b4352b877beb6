"""A thread in each rank that sleeps, in the kernel, until the monitor asks where the rank is.

Asked, it says first that it is there, then in which collectives the rank is, and writes the stacks.
A thread needs the interpreter's lock for that: **silence means that the lock is held**. The signal
that dumps stacks is for this thread then, for in the main thread it would end a sleep in C, and so
the hang.

It starts with the monitoring, so never in a parked interpreter before that is a rank; a forked
child has none. It is no thread of ``threading``: programs count those, and wait for them.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
from typing import TYPE_CHECKING

from holdfast.base.own_descriptor import LostDescriptorError
from holdfast.base.pure.codec import MessageError, decode, encode
from holdfast.evidence.dump_signal import dump_signal, write_stacks
from holdfast.evidence.pure.evidence import Operations
from holdfast.net import endpoint
from holdfast.net.pure.frames import FrameError
from holdfast.watch.pure.rank_messages import (
    TO_RANK,
    Alive,
    CountCollectives,
    Counted,
    Dump,
    Dumped,
    Helper,
    SayWhere,
)
from holdfast.watch.rank.whereabouts import whereabouts

if TYPE_CHECKING:
    from holdfast.net.client import Client
    from holdfast.watch.rank.rank_info import RankInfo

THREAD_NAME = "holdfast-look"
"""As in /proc, where the monitor looks whether it has the CPU."""
_START_S = 0.1
"""How long its start may hold up the rank, on a machine that has no time for it."""
_C10D = "torch.distributed.distributed_c10d"


class LookHelper:
    """The helper of one rank, from init to shutdown; ``path``: the monitor's socket."""

    def __init__(self, path: str, info: RankInfo) -> None:
        self._path = path
        self._hello = encode(Helper(info.global_rank, info.pid))
        self._client: Client | None = None
        self._is_over = False
        with contextlib.suppress(OSError):
            # The main thread may take the lock next, and keep it: then its silence must be noticed.
            self._connect(wait_s=0.0)
        if _C10D in sys.modules:
            # Now, as what hangs the rank later may be the file system.
            import holdfast.evidence.current_collectives  # noqa: F401, PLC0415
        self._is_up = _thread.allocate_lock()
        self._is_up.acquire()
        try:
            _thread.start_new_thread(self._serve, ())
        except RuntimeError:  # no room for a thread; a connection that is silent would accuse it
            self.close()
            return
        self._is_up.acquire(timeout=_START_S)  # the same again: it can be found by its name

    def close(self) -> None:
        """End it; does nothing the second time."""
        self._is_over = True
        client, self._client = self._client, None
        if client is not None:
            client.hang_up()  # or it would wait on
            client.close()

    def forget_in_child(self) -> None:
        """This process is a fork, in which the thread is not."""
        self._is_over = True
        if self._client is not None:
            self._client.close()

    def _serve(self) -> None:
        # A signal that the main thread blocks, as it waits for it, is not for this one.
        others = signal.valid_signals() - {dump_signal()}
        signal.pthread_sigmask(signal.SIG_SETMASK, others)
        with contextlib.suppress(OSError), open("/proc/thread-self/comm", "w") as name:
            name.write(THREAD_NAME)
        self._is_up.release()
        with contextlib.suppress(OSError, FrameError, MessageError):
            while not self._is_over:
                with contextlib.suppress(LostDescriptorError):  # the monitor is reached by another
                    self._visit(self._client or self._connect())

    def _connect(self, wait_s: float | None = None) -> Client:
        """Connect to the monitor that listens now.

        Raises:
            OSError: There is none, or (with ``wait_s``) it is stopped.
        """
        client = endpoint.connect(self._path, wait_s)
        try:
            client.send(self._hello, wait_s)
        except OSError:
            client.close()
            raise
        self._client = client
        return client

    def _visit(self, client: Client) -> None:
        """Serve one monitor until it is gone; the next one listens at the same place."""
        try:
            while not self._is_over:
                match decode(TO_RANK, client.receive(None)):
                    case SayWhere():
                        _answer(client)
                    case CountCollectives():
                        client.send(encode(Counted(_count())))
                    case Dump():
                        write_stacks()
                        client.send(encode(Dumped()))
                    case _:
                        raise ConnectionRefusedError("this rank is not served")
        except (ConnectionResetError, BrokenPipeError):
            return
        finally:
            self._client = None
            client.close()


def _is_initialized() -> bool:
    return bool(getattr(sys.modules.get(_C10D), "is_initialized", bool)())


def _count() -> int:
    if _is_initialized():
        with contextlib.suppress(Exception):  # of torch's, of whatever kind
            from holdfast.evidence.current_collectives import (  # noqa: PLC0415 - imports torch
                count_collectives,
            )

            return count_collectives()
    return -1


def _answer(client: Client) -> None:
    client.send(encode(Alive()))
    answer = whereabouts()
    if _is_initialized():
        found: dict[str, object] = {}
        try:
            from holdfast.evidence.current_collectives import (  # noqa: PLC0415 - imports torch
                current_collectives,
            )

            found["groups"], found["recent"] = current_collectives()
        except Exception as error:  # noqa: BLE001 - of torch's, of whatever kind; it is reported
            found["why_not"] = f"{type(error).__name__}: {error}"[:200]
        answer = Operations(**{**vars(answer), **found})
    client.send(encode(answer))
