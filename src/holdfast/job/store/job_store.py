"""Messages up, decisions down: the launchers' mailbox and log, in a torch ``Store``.

    <prefix>/up/count          how many numbers have been given out
    <prefix>/up/<n>            message n, deleted when the leader has it
    <prefix>/down/count        how many decisions have been published
    <prefix>/down/<k>          decision k; the last ``_KEPT`` are kept
    <prefix>/welcome/<nonce>   the leader's answer to a launcher that is new
    <prefix>/leaders           how many wanted to lead; only where no launcher of the job hosts the
                               store
    holdfast/hosted_for        name of the job whose launcher hosts the store

Values are bytes here; :mod:`holdfast.job.pure.sealed` authenticates them.

A constant number of operations for each message and decision, and no polling: the leader blocks on
the next number, every launcher on the next decision. Only slots whose value a launcher has not
written, and numbers without a message, are looked at again (:mod:`holdfast.job.pure.mailbox`).

Importing this module imports torch.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import socket
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from torch.distributed import DistStoreError

from holdfast.base import clock
from holdfast.base.pure.never import assert_never
from holdfast.base.pure.value import Value
from holdfast.base.torch_private import PrefixStore, Store, TCPStore, client_descriptor
from holdfast.job.pure.mailbox import (
    Abandoned,
    Answer,
    AskCount,
    Check,
    MailboxReader,
    Pause,
    Read,
    Take,
    WaitFor,
    look_again_pauses,
)
from holdfast.job.pure.timing import SLICE_S, TRY_AGAIN_S, WAIT_S

Connect = Callable[[], Store]
"""Makes a connection of its own to the job's store."""

Seal = Callable[[str], bytes]
"""Makes the value for a slot, as ``up/17``; ASCII."""

_T = TypeVar("_T")
_KEPT = 512
_HOSTED_FOR = "holdfast/hosted_for"


class StorePatience(Value):
    """With a service that may outlive its own restarts (etcd): a store that has ``is_away``.

    Attributes:
        for_s: Try again for so long, in seconds.
        report: Called when it begins to be away, with the reason, in the thread that noticed.
    """

    for_s: float = 0.0
    report: Callable[[str], object] = lambda _: None


class StoreLostError(ConnectionError):
    """The store, or the way to it, is gone for good."""


class JobStore:
    """One connection. Use it in one thread; every method but :meth:`hang_up` may wait.

    Each concern has one of its own, as a ``TCPStore`` client does one thing at a time: a thread
    that waits blocks all others that use it. All methods raise :class:`StoreLostError` when the
    store is gone, or there is none.
    """

    def __init__(
        self, connect: Connect, prefix: str, patience: StorePatience | None = None
    ) -> None:
        self._prefix = prefix
        self._store = _guarded(connect)
        self._patience = patience or StorePatience()
        self._is_away: Callable[[Exception], bool] = getattr(self._store, "is_away", _never)
        self._line = _line_of(self._store)
        self._ended = threading.Event()

    def hang_up(self) -> None:
        """End the connection: a thread that waits at it, or uses it later, gets StoreLostError.

        Any thread; more than once does no harm.
        """
        self._ended.set()
        if self._line is not None:
            with contextlib.suppress(OSError):  # the other side was first
                self._line.shutdown(socket.SHUT_RDWR)
            self._line.close()

    def is_first(self) -> bool:
        """Whether this is the first call of this method in the whole job: true for one launcher."""
        # Not tried again: an attempt that failed may have counted, and no launcher would lead.
        return _guarded(lambda: self._store.add(f"{self._prefix}/leaders", 1)) == 1

    def hosted_for(self) -> str | None:
        """``ascii`` of the name of the job whose launcher hosts the store; None: not known.

        Not authenticated.
        """
        if not _guarded(lambda: self._store.check([_HOSTED_FOR])):
            return None
        return _guarded(lambda: self._store.get(_HOSTED_FOR)).decode(errors="replace")

    def post(self, seal: Seal) -> int:
        """Put a message into the mailbox; returns its number."""
        number = self._patiently(lambda: self._store.add(f"{self._prefix}/up/count", 1))
        self.put(f"up/{number}", seal)
        return number

    def given_out(self) -> int:
        """How many numbers of the mailbox were given out, by launchers and by strangers."""
        return self._patiently(lambda: self._store.add(f"{self._prefix}/up/count", 0))

    def publish(self, number: int, seal: Seal) -> None:
        """Append decision ``number`` (1, 2 ...) to the log. The leader alone does this."""
        self.put(f"down/{number}", seal)
        self._patiently(lambda: self._store.add(f"{self._prefix}/down/count", 1))
        if number > _KEPT:
            self.delete(f"down/{number - _KEPT}")

    def published(self) -> int:
        """How many decisions there are; not authenticated."""
        return self._patiently(lambda: self._store.add(f"{self._prefix}/down/count", 0))

    def follow(self, number: int, accept: Callable[[str, bytes], _T | None]) -> _T:
        """Wait for decision ``number`` (1, 2 ...) and return it.

        ``accept`` takes slot and value, and returns the message; None: no launcher of the job wrote
        it, and the decision is still to come.
        """
        slot = f"down/{number}"
        pauses = look_again_pauses()
        while True:
            if not self.wait_for(slot, WAIT_S):
                continue
            found = accept(slot, self.get(slot))
            if found is not None:
                return found
            self.pause(next(pauses))

    # ------------------------------------------------------------ slots
    def put(self, slot: str, seal: Seal) -> None:
        """Set a value, whatever was there."""
        self._patiently(lambda: self._store.set(f"{self._prefix}/{slot}", seal(slot).decode()))

    def has(self, slot: str) -> bool:
        """Whether there is a value now."""
        return self._patiently(lambda: self._store.check([f"{self._prefix}/{slot}"]))

    def get(self, slot: str) -> bytes:
        """The value that is there."""
        return self._patiently(lambda: self._store.get(f"{self._prefix}/{slot}"))

    def delete(self, slot: str) -> None:
        """Only to save room: a store of another backend that cannot delete is good enough."""
        with contextlib.nullcontext() if self._line else contextlib.suppress(StoreLostError):
            self._patiently(lambda: self._store.delete_key(f"{self._prefix}/{slot}"))

    def wait_for(self, slot: str, timeout_s: float) -> bool:
        """Whether there is a value, within so long."""
        return self._wait(f"{self._prefix}/{slot}", timeout_s)

    def pause(self, for_s: float) -> None:
        """Wait for so long; raises StoreLostError if the connection is closed meanwhile."""
        if self._ended.wait(for_s):
            raise StoreLostError("closed the connection")

    def _wait(self, key: str, timeout_s: float) -> bool:
        slice_s = timeout_s if self._line else min(timeout_s, SLICE_S)
        for _ in range(round(timeout_s / slice_s)):
            if self._ended.is_set():
                raise StoreLostError("closed the connection")
            if self._wait_once(key, slice_s):
                return True
        return False

    def _patiently(self, operation: Callable[[], _T]) -> _T:
        """Try again while the store is away; an operation may be carried out more than once."""
        give_up_at: float | None = None
        while True:
            try:
                return operation()
            except Exception as error:  # torch's are RuntimeErrors; another backend's: anything
                if not self._is_away(error) or self._patience.for_s <= 0:
                    raise StoreLostError(_first_line(error)) from error
                if give_up_at is None:
                    give_up_at = clock.monotonic() + self._patience.for_s
                    self._patience.report(_first_line(error))
                elif clock.monotonic() >= give_up_at:
                    text = f"{_first_line(error)}, for {self._patience.for_s:g} s"
                    raise StoreLostError(text) from error
            self.pause(TRY_AGAIN_S)

    def _wait_once(self, key: str, timeout_s: float) -> bool:
        def wait() -> bool:
            try:
                self._store.wait([key], dt.timedelta(seconds=timeout_s))
            except (DistStoreError, LookupError):  # the second: JobsEtcdStore
                return False
            except RuntimeError as error:
                if type(error) is RuntimeError and "timeout" in str(error).lower():
                    return False  # torch's FileStore
                raise
            return True

        return self._patiently(wait)


class Mailbox(Generic[_T]):
    """The leader's end of the mailbox, as :mod:`holdfast.job.pure.mailbox` decides.

    Args:
        store: A connection for this alone.
        accept: Takes slot and value, returns the message; None: no launcher of the job wrote it.
        lost: Called with the first and last of numbers that were given up.
    """

    def __init__(
        self,
        store: JobStore,
        accept: Callable[[str, bytes], _T | None],
        lost: Callable[[int, int], None] = lambda _first, _last: None,
    ) -> None:
        self._store = store
        self._accept = accept
        self._lost = lost
        self._reader = MailboxReader()

    def take(self) -> _T:
        """Wait for a message, and take it out."""
        store = self._store
        answer: Answer = None
        message: _T | None = None
        while True:
            operation = self._reader.step(answer, clock.monotonic())
            answer = None
            match operation:
                case WaitFor():
                    answer = store.wait_for(_slot_up(operation.number), operation.timeout_s)
                case Check():
                    answer = store.has(_slot_up(operation.number))
                case Read():
                    slot = _slot_up(operation.number)
                    message = self._accept(slot, store.get(slot))
                    answer = message is not None
                case Take():
                    assert message is not None
                    store.delete(_slot_up(operation.number))
                    return message
                case AskCount():
                    answer = store.given_out()
                case Pause():
                    store.pause(operation.seconds)
                case Abandoned():
                    self._lost(operation.first, operation.last)
                case _:
                    assert_never(operation)


def _slot_up(number: int) -> str:
    return f"up/{number}"


def host_store(host: str, port: int, timeout_s: float, run_id: str) -> Store:
    """Host the store of the job ``run_id`` in this process; keep it as long as the job lives."""
    store = _guarded(lambda: _tcp_store(host, port, timeout_s, is_master=True))
    _guarded(lambda: store.set(_HOSTED_FOR, ascii(run_id)))
    return store


def store_client(host: str, port: int, timeout_s: float) -> Store:
    """Connect to the store that another launcher hosts.

    Call :func:`~holdfast.net.reach.wait_until_reachable` before: the wait in here cannot be ended,
    and its errors are torch's.

    Raises:
        StoreLostError: There is none within ``timeout_s``.
    """
    return _guarded(lambda: _tcp_store(host, port, timeout_s, is_master=False))


def _tcp_store(host: str, port: int, timeout_s: float, *, is_master: bool) -> Store:
    return TCPStore(
        host,
        port,
        is_master=is_master,
        timeout=dt.timedelta(seconds=timeout_s),
        wait_for_workers=False,
        multi_tenant=is_master,
    )


def _line_of(store: Store) -> socket.socket | None:
    """A second handle on the connection of a TCPStore; None: it is another kind of store.

    A wait in torch knows no interruption, and an interpreter that ends while a thread is in one
    aborts: so the connection is shut down. torch gives no way to it but the number in the store's
    description; the port of the other side proves that it is the right one. Waits in stores without
    such a socket are cut into slices.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    described = client_descriptor(store)
    if described is None or not isinstance(store, TCPStore):
        return None
    try:
        line = socket.socket(fileno=os.dup(described))
    except OSError:
        return None
    with contextlib.suppress(OSError):
        if line.getpeername()[1] == store.port:
            return line
    line.close()
    return None


def _never(_error: Exception) -> bool:
    """A store that says nothing of itself does not come back."""
    return False


def _guarded(operation: Callable[[], _T]) -> _T:
    try:
        return operation()
    except Exception as error:  # torch's are RuntimeErrors; another backend's may be anything
        raise StoreLostError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    """Without torch's stack."""
    return str(error).partition("\n")[0] or type(error).__name__
