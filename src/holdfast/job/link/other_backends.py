"""The leader of a job, found in the store of another rendezvous backend: etcd, or a plug-in.

One key of that store names the launcher that leads (:mod:`holdfast.job.pure.leader_key`); the first
to set it leads, and when it has died, one of the others changes it
(:mod:`holdfast.job.pure.succession_by_key`). All else goes over connections between the launchers
(``job_server.py``), so once they have met the store may be away while no leader dies.

- ``etcd`` and ``etcd-v2``: torch's EtcdStore, below a folder of the job's own.
- A backend made of torch's ``create_handler(store, backend, params)``: that store.
- Any other :class:`RendezvousHandler`: the store of its ``next_rendezvous()``, entered once by each
  launcher. Where each round of the backend has a store of its own, launchers that come later than
  its first round are not in the job.

Importing this module imports torch.
"""

from __future__ import annotations

import functools
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

from holdfast.base import clock
from holdfast.base.torch_private import Store, registered_backends, store_of_all_rounds
from holdfast.job.link.meeting_place import OtherBackend
from holdfast.job.pure.leader_key import Claimed, LeaderKey, claim, how_over, over, parse_key
from holdfast.job.pure.succession_messages import KeyTaken
from holdfast.job.pure.timing import TRY_AGAIN_S
from holdfast.net.reach import PeerUnreachableError, connect_when_reachable

LOGGER = logging.getLogger("holdfast")
ETCD = ("etcd", "etcd-v2")
_LOOK_S = 1.0
"""How often a launcher that finds a dead leader looks whether another one has taken its place."""
_T = TypeVar("_T")


class BackendError(ConnectionError):
    """A backend gives no store that launchers can meet in."""


class Election:
    """The key that says which launcher leads. Its methods may wait: for a thread.

    Args:
        asked: The backend.
        run_id: Of the job.
        own: The value of the key that names this launcher.
        dead_s: After so long a launcher that is new takes the place of a leader that it cannot
            reach. Those that have followed that one take it earlier.
    """

    def __init__(self, asked: OtherBackend, run_id: str, own: LeaderKey, dead_s: float) -> None:
        self._asked = asked
        self._run_id = run_id
        self._own = own
        self._dead_s = dead_s
        self._key = f"holdfast/{run_id}/leader"
        self._store: Any = None
        self._handler: RendezvousHandler | None = None  # with whatever it keeps alive
        self._lock = threading.Lock()

    def hold(self, stop: threading.Event, patience_s: float) -> socket.socket | None:
        """A connection to the launcher that leads; None: this one leads.

        Raises:
            BackendError: The backend gives no store, or not within ``patience_s``.
            ConnectionError: The job is over, or the leader cannot be reached.
        """
        if self._store is None:
            self._patiently(self._open, stop, patience_s)
        expected, seen, dead_at = "", "", 0.0
        while True:
            swap = functools.partial(self._swap, expected, self._own)
            found = self._patiently(swap, stop, patience_s)
            if found == str(self._own):
                return None
            leader = self._parse(found)
            try:
                return connect_when_reachable(leader.addr, leader.port, _LOOK_S, stop)
            except PeerUnreachableError as error:
                if found == expected or stop.is_set():
                    raise
                if found != seen:
                    seen, dead_at = found, clock.monotonic() + self._dead_s
                    LOGGER.info(
                        "%s: it led the job %r. This launcher waits up to %g s for another one "
                        "that takes its place",
                        *(error, self._run_id, self._dead_s),
                    )
                is_dead = clock.monotonic() >= dead_at
                expected = found if is_dead else ""
                self._own = self._own.but(term=leader.term)

    def claim(
        self, term: int, dead: tuple[str, ...], stop: threading.Event, patience_s: float
    ) -> Claimed:
        """See :class:`.ClaimKey`; tries again for ``patience_s`` while the store is away.

        Raises:
            BackendError: It was away for so long.
        """
        steps = claim(self._own.but(term=term), dead)
        expected, value = next(steps)
        while True:
            swap = functools.partial(self._swap, expected, value)
            try:
                found = self._patiently(swap, stop, patience_s, once_open=True)
                expected, value = steps.send(found)
            except StopIteration as end:
                claimed: Claimed = end.value
                if isinstance(claimed, KeyTaken):
                    self._own = self._own.but(term=claimed.term)
                return claimed

    def usurper(self) -> LeaderKey | None:
        """The launcher that has taken the key from this one; None: none has.

        A new launcher that takes it keeps the term: it has only not reached this one.

        Raises:
            Exception: Any, of the store.
        """
        found = self._swap(str(self._own), self._own)
        if how_over(found) is not None:
            return None
        holder = parse_key(found)
        return holder if holder.term > self._own.term else None

    def end(self, cause: str) -> None:
        """The job that this launcher led is over: launchers that come late are to know."""
        self._swap(str(self._own), over(cause))

    def _parse(self, found: str) -> LeaderKey:
        how = how_over(found)
        if how is None:
            return parse_key(found)
        raise ConnectionError(
            f"launchers cannot meet: the job {self._run_id!r} is over there ({how}); a store that "
            "outlives jobs needs another --rdzv-id for each"
        )

    def _swap(self, expected: str, value: LeaderKey | str) -> str:
        """The value after the attempt."""
        with self._lock:
            found: bytes = self._store.compare_set(self._key, expected, str(value))
        return found.decode(errors="replace")

    def _patiently(
        self,
        operation: Callable[[], _T],
        stop: threading.Event,
        patience_s: float,
        *,
        once_open: bool = False,
    ) -> _T:
        """Try again while the store is away; ``once_open``: it has worked, so any error says so."""
        until = clock.monotonic() + patience_s
        while True:
            try:
                return operation()
            except Exception as error:  # a backend may raise anything
                if isinstance(error, ConnectionError) and not once_open:
                    raise
                is_away = getattr(self._store, "is_away", None)
                may_return = once_open or (is_away is not None and is_away(error))
                if may_return and clock.monotonic() < until and not stop.wait(TRY_AGAIN_S):
                    continue
                text = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                name, endpoint = self._asked.name, self._asked.endpoint
                if once_open:
                    raise BackendError(
                        f"the rendezvous backend {name!r} at {endpoint!r} has not answered for "
                        f"{patience_s:g} s ({text}), and only there a launcher can take the lead"
                    ) from error
                raise BackendError(
                    f"launchers cannot meet: the rendezvous backend {name!r} gives no store "
                    f"({text}); its endpoint is {endpoint!r} (--rdzv-endpoint), its options are "
                    "--rdzv-conf"
                ) from error

    def _open(self) -> None:
        asked = self._asked
        params = RendezvousParameters(
            asked.name,
            asked.endpoint,
            self._run_id,
            asked.min_nodes,
            asked.max_nodes,
            asked.local_addr,
            **asked.conf,
        )
        if asked.name in ETCD:
            self._store = _etcd(params)
        else:
            self._handler = _registered(params)
            self._store = _store_of(self._handler)


def _etcd(params: RendezvousParameters) -> Store:
    try:
        from holdfast.job.link import etcd_store  # noqa: PLC0415 - needs packages of its own
    except ImportError as error:
        raise BackendError(
            f"--rdzv-backend {params.backend} needs the Python package {error.name!r}, which is "
            "not installed here: pip install python-etcd (and an etcd server that speaks its v2 "
            "protocol), or use --rdzv-backend c10d, which needs neither"
        ) from None
    return etcd_store.connect(params)


def _registered(params: RendezvousParameters) -> RendezvousHandler:
    known = registered_backends(rendezvous_handler_registry)
    if known is not None and params.backend not in known:
        raise BackendError(
            f"torch could not load the rendezvous backend {params.backend!r} of the entry points "
            f"torchrun.handlers; registered are {', '.join(sorted(known))}"
        )
    handler: RendezvousHandler = rendezvous_handler_registry.create_handler(params)
    return handler


def _store_of(handler: RendezvousHandler) -> Store:
    if isinstance(handler, DynamicRendezvousHandler):
        store = store_of_all_rounds(handler)
        if store is not None:
            return store
    return handler.next_rendezvous().store
