"""Messages up, decisions down: the launchers' mailbox and log, in a torch ``Store``.

    <prefix>/up/count     how many numbers have been given out
    <prefix>/up/<n>       message n, deleted when the leader has it
    <prefix>/down/count   how many decisions have been published
    <prefix>/down/<k>     decision k; the last ``_KEPT`` are kept
    <prefix>/leaders      how many wanted to lead; only where nobody's launcher hosts the store

A constant number of operations for each message and decision, and nobody polls: the leader blocks
on the next number, every launcher on the next decision. A ``TCPStore`` client does one thing at a
time (a thread that waits blocks all others that use it), so each concern has a connection of its
own: :class:`JobStore` is one of them. Short timeouts are avoided; a wait that timed out can stall
a connection for seconds.

Such a wait knows no interruption, and an interpreter that ends while a thread is in one aborts. So
a :class:`JobStore` keeps a handle of its own on the connection's socket, and hangs up with it.
Stores of other backends have no such socket; waits there are cut into slices of a second.

Importing this module imports torch.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
import socket
from collections.abc import Callable
from typing import TypeVar

from torch._C._distributed_c10d import (
    PrefixStore,
    Store,
    TCPStore,
)  # where torch's own stubs have them
from torch.distributed import DistStoreError

Connect = Callable[[], Store]
"""Makes a connection of its own to the job's store."""

_T = TypeVar("_T")
_WAIT_S = 3600.0
_HOLE_S = 5.0
"""How long a number may be without its message: its sender died between two operations."""
_SLICE_S = 1.0
"""How long a wait that cannot be hung up may be."""
_KEPT = 512


class StoreLostError(ConnectionError):
    """The store, or the way to it, is gone for good."""


class JobStore:
    """One connection. Use it in one thread; every method but :meth:`hang_up` may wait."""

    def __init__(self, connect: Connect, prefix: str) -> None:
        """Connect.

        Raises:
            StoreLostError: There is no store.
        """
        self._prefix = prefix
        self._store = _guarded(connect)
        self._line = _line_of(self._store)
        self._hung_up = False

    def hang_up(self) -> None:
        """End the connection: who waits at it, and who uses it later, gets StoreLostError.

        Any thread; more than once does no harm.
        """
        self._hung_up = True
        if self._line is not None:
            with contextlib.suppress(OSError):  # the other side was first
                self._line.shutdown(socket.SHUT_RDWR)
            self._line.close()

    def is_first(self) -> bool:
        """Whether nobody asked this before, here or elsewhere: one launcher is told so.

        Raises:
            StoreLostError: The store is gone.
        """
        return _guarded(lambda: self._store.add(f"{self._prefix}/leaders", 1)) == 1

    def post(self, message: dict[str, object]) -> None:
        """Put a message into the mailbox.

        Raises:
            StoreLostError: The store is gone.
        """
        number = _guarded(lambda: self._store.add(f"{self._prefix}/up/count", 1))
        _guarded(lambda: self._store.set(f"{self._prefix}/up/{number}", json.dumps(message)))

    def take(self, number: int) -> object | None:
        """Wait for message ``number`` (1, 2 ...) and take it out; None: it will never come.

        Raises:
            StoreLostError: The store is gone.
        """
        key = f"{self._prefix}/up/{number}"
        given_out = False
        while not self._wait(key, _HOLE_S):
            if given_out:  # before this wait began, so its sender had all of it
                return None
            given_out = _guarded(lambda: self._store.add(f"{self._prefix}/up/count", 0)) >= number
        body = _guarded(lambda: self._store.get(key))
        self._delete(key)
        return _parse(body)

    def publish(self, number: int, decision: dict[str, object]) -> None:
        """Append decision ``number`` (1, 2 ...) to the log. The leader alone does this.

        Raises:
            StoreLostError: The store is gone.
        """
        down = f"{self._prefix}/down"
        _guarded(lambda: self._store.set(f"{down}/{number}", json.dumps(decision)))
        _guarded(lambda: self._store.add(f"{down}/count", 1))
        if number > _KEPT:
            self._delete(f"{down}/{number - _KEPT}")

    def published(self) -> int:
        """How many decisions there are.

        Raises:
            StoreLostError: The store is gone.
        """
        return _guarded(lambda: self._store.add(f"{self._prefix}/down/count", 0))

    def follow(self, number: int) -> object:
        """Wait for decision ``number`` and return it.

        Raises:
            StoreLostError: The store is gone.
        """
        key = f"{self._prefix}/down/{number}"
        while not self._wait(key, _WAIT_S):
            pass
        return _parse(_guarded(lambda: self._store.get(key)))

    def _delete(self, key: str) -> None:
        """Only to save room: a store of another backend that cannot delete is good enough."""
        with contextlib.nullcontext() if self._line else contextlib.suppress(StoreLostError):
            _guarded(lambda: self._store.delete_key(key))

    def _wait(self, key: str, timeout_s: float) -> bool:
        slice_s = timeout_s if self._line else min(timeout_s, _SLICE_S)
        for _ in range(round(timeout_s / slice_s)):
            if self._hung_up:
                raise StoreLostError("hung up")
            if self._wait_once(key, slice_s):
                return True
        return False

    def _wait_once(self, key: str, timeout_s: float) -> bool:
        try:
            self._store.wait([key], dt.timedelta(seconds=timeout_s))
        except (DistStoreError, LookupError):  # the second: torch's EtcdStore
            return False
        except Exception as error:
            if type(error) is RuntimeError and "timeout" in str(error).lower():  # its FileStore
                return False
            raise StoreLostError(_first_line(error)) from error
        return True


def host_store(host: str, port: int, timeout_s: float) -> Store:
    """Host the job's store in this process; to be kept as long as the job lives.

    Raises:
        StoreLostError: The port cannot be had.
    """
    return _guarded(lambda: _tcp_store(host, port, timeout_s, is_master=True))


def store_client(host: str, port: int, timeout_s: float) -> Store:
    """Connect to the store that another launcher hosts.

    Whether there is one is better asked before (:func:`~holdfast.host.reach.wait_until_reachable`):
    the wait in here cannot be ended, and its errors are torch's.

    Raises:
        StoreLostError: Nobody hosts one there within ``timeout_s``.
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
    """A handle of our own on the connection of a TCPStore; None: it is another kind of store.

    torch gives no way to it but the number in the store's description; the port of the other side
    tells that it is the right one.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    described = re.search(r"client=TCPClient\(SocketImpl\(fd=(\d+)", repr(store))
    if described is None or not isinstance(store, TCPStore):
        return None
    try:
        line = socket.socket(fileno=os.dup(int(described[1])))
    except OSError:
        return None
    with contextlib.suppress(OSError):
        if line.getpeername()[1] == store.port:
            return line
    line.close()
    return None


def _parse(body: bytes) -> object:
    try:
        parsed: object = json.loads(body)
    except ValueError:
        return None
    return parsed


def _guarded(operation: Callable[[], _T]) -> _T:
    try:
        return operation()
    except Exception as error:  # torch's are RuntimeErrors; another backend's may be anything
        raise StoreLostError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    """Without torch's stack."""
    return str(error).partition("\n")[0] or type(error).__name__
