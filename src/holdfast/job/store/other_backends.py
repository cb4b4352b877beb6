"""The job's store out of another rendezvous backend of torch: etcd, or a registered plug-in.

Only the store is taken: membership is holdfast's over any of them.

- ``etcd`` and ``etcd-v2``: torch's EtcdStore, below a folder of the job's own.
- A backend made of torch's ``create_handler(store, backend, params)``: that store.
- Any other :class:`RendezvousHandler`: the store of its ``next_rendezvous()``, entered once by each
  launcher. Where each round of the backend has a store of its own, launchers that come later than
  its first round are not in the job.

Importing this module imports torch.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

from holdfast.base.torch_private import Store, registered_backends, store_of_all_rounds
from holdfast.job.store.job_store import Connect
from holdfast.job.store.store_address import OtherBackend

ETCD = ("etcd", "etcd-v2")


class BackendError(ConnectionError):
    """A backend gives no store that launchers can meet in."""


def open_backend(asked: OtherBackend, run_id: str) -> Connect:
    """Reach a backend; returns a function that makes connections to its store. May wait.

    Raises:
        BackendError: It cannot be had.
    """
    params = RendezvousParameters(
        asked.name,
        asked.endpoint,
        run_id,
        asked.min_nodes,
        asked.max_nodes,
        asked.local_addr,
        **asked.conf,
    )
    try:
        connect = _etcd(params) if asked.name in ETCD else _registered(params)
        connect().add(f"holdfast/{run_id}/launchers", 1)  # better an error now than in the middle
    except ConnectionError:
        raise
    except Exception as error:  # a backend may raise anything
        text = str(error).partition("\n")[0]
        raise BackendError(
            f"the rendezvous backend {asked.name!r} gives no store "
            f"({type(error).__name__}: {text}); its endpoint is {asked.endpoint!r} "
            "(--rdzv-endpoint), its options are --rdzv-conf"
        ) from error
    return connect


def _etcd(params: RendezvousParameters) -> Connect:
    try:
        from holdfast.job.store import etcd_store  # noqa: PLC0415 - needs packages of its own
    except ImportError as error:
        raise BackendError(
            f"--rdzv-backend {params.backend} needs the Python package {error.name!r}, which is "
            "not installed here: pip install python-etcd (and an etcd server that speaks its v2 "
            "protocol), or use --rdzv-backend c10d, which needs neither"
        ) from None
    return functools.partial(etcd_store.connect, params)


def _registered(params: RendezvousParameters) -> Connect:
    known = registered_backends(rendezvous_handler_registry)
    if known is not None and params.backend not in known:
        raise BackendError(
            f"torch could not load the rendezvous backend {params.backend!r} of the entry points "
            f"torchrun.handlers; registered are {', '.join(sorted(known))}"
        )
    handler = rendezvous_handler_registry.create_handler(params)
    return functools.partial(_connection, _store_of(handler), handler)


def _connection(store: Any, _handler: RendezvousHandler) -> Store:
    """Of its own if it can be: a thread that waits may block all others at its connection.

    The handler is kept alive, with whatever it keeps alive.
    """
    try:
        connection: Store = store.clone()
    except (AttributeError, RuntimeError):  # a store written in Python
        connection = store
    return connection


def _store_of(handler: RendezvousHandler) -> Store:
    if isinstance(handler, DynamicRendezvousHandler):
        store = store_of_all_rounds(handler)
        if store is not None:
            return store
    return handler.next_rendezvous().store
