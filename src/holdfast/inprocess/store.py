"""Stores in which ranks find each other at the beginning of a call, and that users bring along."""

from __future__ import annotations

import datetime as dt
import os

from torch._C import _distributed_c10d as c10d


class StoreMixin:
    """What a class must be derived from, before a torch store, to be a ``store_factory``."""

    @property
    def critical_ranks(self) -> tuple[int, ...]:
        """Ranks that host a part of the store."""
        return ()


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
