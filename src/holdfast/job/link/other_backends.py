"""The leader of a job, found in the store of another rendezvous backend: etcd, or a plug-in.

One key of that store holds the address of the launcher that leads; the first to set it leads, and a
launcher that finds a dead one there takes its place. All else goes over connections between the
launchers (``job_server.py``), so the store may be away once they have met.

- ``etcd`` and ``etcd-v2``: torch's EtcdStore, below a folder of the job's own.
- A backend made of torch's ``create_handler(store, backend, params)``: that store.
- Any other :class:`RendezvousHandler`: the store of its ``next_rendezvous()``, entered once by each
  launcher. Where each round of the backend has a store of its own, launchers that come later than
  its first round are not in the job.

Importing this module imports torch.
"""

from __future__ import annotations

import functools
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
from holdfast.job.pure.timing import TRY_AGAIN_S
from holdfast.net.pure.address import Endpoint, parse_endpoint
from holdfast.net.reach import PeerUnreachableError, connect_when_reachable

ETCD = ("etcd", "etcd-v2")
_OVER = "over: "
"""Begins the value of the key when the job has ended."""
_LEADER_S = 10.0
"""How long a leader that the key names may take to accept a connection."""
_T = TypeVar("_T")


class BackendError(ConnectionError):
    """A backend gives no store that launchers can meet in."""


class Election:
    """The key that says which launcher leads.

    Args:
        asked: The backend.
        run_id: Of the job.
        addr, port: Where this launcher would lead.
    """

    def __init__(self, asked: OtherBackend, run_id: str, addr: str, port: int) -> None:
        self._asked = asked
        self._run_id = run_id
        self._own = str(Endpoint(addr, port))
        self._key = f"holdfast/{run_id}/leader"
        self._store: Any = None
        self._handler: RendezvousHandler | None = None  # with whatever it keeps alive

    def hold(self, stop: threading.Event, patience_s: float) -> tuple[str, int] | None:
        """The launcher that leads, which accepts connections; None: this one leads.

        Raises:
            BackendError: The backend gives no store, or not within ``patience_s``.
            ConnectionError: The job is over, or the leader cannot be reached.
        """
        self._patiently(self._open, stop, patience_s)
        expected = ""
        while True:
            swap = functools.partial(self._swap, expected, self._own)
            leader = self._patiently(swap, stop, patience_s)
            if leader == self._own:
                return None
            if leader.startswith(_OVER):
                raise ConnectionError(
                    f"launchers cannot meet: the job {self._run_id!r} is over there "
                    f"({leader[len(_OVER) :]}); a store that outlives jobs needs another "
                    "--rdzv-id for each"
                )
            at = parse_endpoint(leader)
            assert at.port is not None
            try:
                connect_when_reachable(at.host, at.port, _LEADER_S, stop).close()
            except PeerUnreachableError:
                if leader == expected:
                    raise
                expected = leader  # a leader that is dead, unless another launcher was faster
            else:
                return at.host, at.port

    def end(self, cause: str) -> None:
        """The job that this launcher led is over: launchers that come late are to know."""
        self._swap(self._own, f"{_OVER}{cause}")

    def _swap(self, expected: str, value: str) -> str:
        """The value after the attempt."""
        found: bytes = self._store.compare_set(self._key, expected, value)
        return found.decode(errors="replace")

    def _patiently(
        self, operation: Callable[[], _T], stop: threading.Event, patience_s: float
    ) -> _T:
        """Try again while the store is away."""
        until = clock.monotonic() + patience_s
        while True:
            try:
                return operation()
            except ConnectionError:
                raise
            except Exception as error:  # a backend may raise anything
                is_away = getattr(self._store, "is_away", None)
                again = is_away is not None and is_away(error) and clock.monotonic() < until
                if again and not stop.wait(TRY_AGAIN_S):
                    continue
                text = str(error).partition("\n")[0]
                raise BackendError(
                    f"launchers cannot meet: the rendezvous backend {self._asked.name!r} gives no "
                    f"store ({type(error).__name__}: {text}); its endpoint is "
                    f"{self._asked.endpoint!r} (--rdzv-endpoint), its options are --rdzv-conf"
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
