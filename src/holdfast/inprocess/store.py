"""Stores in which ranks find each other at the beginning of a call, and that users bring along.

A store of one's own is a torch store with :class:`StoreMixin` *before* it among its bases::

    class RedisStore(StoreMixin, MyTorchStore): ...

    Wrapper(store_factory=RedisStore, store_kwargs={...})

It has to work until all ranks have met; from then on ranks meet in a store beside the coordinator
(``iteration_store.py``), so that losing whoever hosts this one is no loss.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterable
from typing import Any

from torch._C import _distributed_c10d as c10d

from holdfast.inprocess.exception import BarrierOverflow, BarrierTimeout

__all__ = [
    "BarrierOverflow",
    "BarrierTimeout",
    "FileStore",
    "PrefixStore",
    "StoreMixin",
    "TCPStore",
]

_WAIT = dt.timedelta(seconds=300)


class StoreMixin:
    """What the wrapper adds to a torch store; built on its ``add``, ``set``, ``get`` and ``wait``.

    None of these names is one of torch's (``Store.barrier`` is another thing).
    """

    @property
    def critical_ranks(self) -> tuple[int, ...]:
        """Ranks that host a part of the store; none, where it is hosted elsewhere."""
        return ()

    def meet(
        self, name: str, n_ranks: int, timeout: dt.timedelta = _WAIT, n_arrivals: int = 1
    ) -> None:
        """Wait until ``n_ranks`` arrivals were made; each barrier has a name of its own.

        Args:
            name: Of the barrier, used once.
            n_ranks: How many have to arrive.
            timeout: How long to wait for the others; zero: arrive, and do not wait.
            n_arrivals: How many arrive with this call: others may be stood in for.

        Raises:
            BarrierOverflow: More than ``n_ranks`` arrived.
            BarrierTimeout: Fewer did, within ``timeout``.
        """
        store: Any = self
        arrived = store.add(f"{name}/arrived", n_arrivals)
        if arrived > n_ranks:
            raise BarrierOverflow(f"barrier {name!r}: {arrived} ranks came, it is for {n_ranks}")
        if arrived == n_ranks:
            store.set(f"{name}/complete", "1")
        self._await_complete(name, n_ranks, timeout)

    def meet_again(
        self, name: str, ranks: Iterable[int], n_ranks: int, timeout: dt.timedelta = _WAIT
    ) -> None:
        """As :meth:`meet`, for ranks that may arrive repeatedly: each counts once.

        Args:
            name: Of the barrier, used once.
            ranks: Who arrives with this call: oneself, and those who are stood in for.
            n_ranks: How many different ones have to arrive.
            timeout: How long to wait for the others; zero: arrive, and do not wait.

        Raises:
            BarrierOverflow: More than ``n_ranks`` different ones arrived.
            BarrierTimeout: Fewer did, within ``timeout``.
        """
        store: Any = self
        for rank in ranks:
            if store.add(f"{name}/rank/{rank}", 1) == 1:
                arrived = store.add(f"{name}/arrived", 1)
                if arrived > n_ranks:
                    raise BarrierOverflow(
                        f"barrier {name!r}: {arrived} ranks came, it is for {n_ranks}"
                    )
                if arrived == n_ranks:
                    store.set(f"{name}/complete", "1")
        self._await_complete(name, n_ranks, timeout)

    def _await_complete(self, name: str, n_ranks: int, timeout: dt.timedelta) -> None:
        if timeout <= dt.timedelta(0):
            return
        store: Any = self
        try:
            store.wait([f"{name}/complete"], timeout)
        except RuntimeError as error:  # torch's DistStoreError among them
            arrived = store.add(f"{name}/arrived", 0)
            raise BarrierTimeout(
                f"barrier {name!r}: {arrived} of {n_ranks} ranks came within "
                f"{timeout.total_seconds():g} s"
            ) from error

    def exchange(
        self, name: str, rank: int, n_ranks: int, value: Any, timeout: dt.timedelta = _WAIT
    ) -> list[Any]:
        """Values of ranks 0 to ``n_ranks - 1``, the same list on each.

        Args:
            name: Of the exchange, used once.
            rank: Of this process.
            n_ranks: How many take part.
            value: Anything that JSON can carry.
            timeout: How long to wait for the others.

        Raises:
            BarrierTimeout: Not all came within ``timeout``.
        """
        store: Any = self
        keys = [f"{name}/value/{other}" for other in range(n_ranks)]
        store.set(keys[rank], json.dumps(value))
        try:
            store.wait(keys, timeout)
        except RuntimeError as error:
            raise BarrierTimeout(
                f"exchange {name!r}: not all of {n_ranks} ranks came within "
                f"{timeout.total_seconds():g} s"
            ) from error
        return [json.loads(store.get(key)) for key in keys]


class TCPStore(StoreMixin, c10d.TCPStore):
    """torch's TCPStore, hosted by rank 0, addressed by the environment where nothing is said.

    Args:
        host_name: Default ``MASTER_ADDR``.
        port: Default ``MASTER_PORT``.
        world_size: Default ``WORLD_SIZE``.
        timeout: Of each operation.
        wait_for_workers: Rank 0 waits for ``world_size`` clients, as long as ``timeout``. Default
            False, unlike torch's: the wrapper waits for all ranks itself, within its
            ``barrier_timeout``.
        multi_tenant: Several stores of one process share a server.
        use_libuv: The server's implementation.

    Raises:
        KeyError: The environment lacks what is not said.
    """

    def __init__(
        self,
        host_name: str | None = None,
        port: int | None = None,
        world_size: int | None = None,
        timeout: dt.timedelta = dt.timedelta(seconds=300),
        wait_for_workers: bool = False,  # noqa: FBT001, FBT002 - torch's signature
        multi_tenant: bool = False,  # noqa: FBT001, FBT002
        use_libuv: bool = True,  # noqa: FBT001, FBT002
    ) -> None:
        env = os.environ
        c10d.TCPStore.__init__(
            self,
            host_name=env["MASTER_ADDR"] if host_name is None else host_name,
            port=int(env["MASTER_PORT"]) if port is None else port,
            world_size=int(env["WORLD_SIZE"]) if world_size is None else world_size,
            is_master=int(env["RANK"]) == 0,
            timeout=timeout,
            wait_for_workers=wait_for_workers,
            multi_tenant=multi_tenant,
            use_libuv=use_libuv,
        )

    @property
    def critical_ranks(self) -> tuple[int, ...]:
        """Rank 0 hosts it."""
        return (0,)


class FileStore(StoreMixin, c10d.FileStore):
    """torch's FileStore: a file that all ranks can write to.

    Args:
        file_name: Its path; the same on all ranks.
        world_size: Default ``WORLD_SIZE``.
    """

    def __init__(self, file_name: str, world_size: int | None = None) -> None:
        size = int(os.environ["WORLD_SIZE"]) if world_size is None else world_size
        c10d.FileStore.__init__(self, file_name, size)


class PrefixStore(StoreMixin, c10d.PrefixStore):
    """A room of its own in another store, for one iteration.

    Args:
        iteration: Names the room.
        store: The other store.

    Attributes:
        base_store: The other store.
    """

    def __init__(self, iteration: int, store: Any) -> None:
        c10d.PrefixStore.__init__(self, str(iteration), store)
        self.base_store = store

    @property
    def critical_ranks(self) -> tuple[int, ...]:
        """Those of the other store."""
        return tuple(getattr(self.base_store, "critical_ranks", ()))
