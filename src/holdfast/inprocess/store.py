"""Stores in which ranks find each other at the beginning of a call, and that users bring along.

A store of one's own is a torch store with :class:`StoreMixin` among its bases::

    class RedisStore(StoreMixin, MyTorchStore): ...

    Wrapper(store_factory=RedisStore, store_kwargs={...})

It has to work until all ranks have met; from then on ranks meet in a store beside the coordinator,
so that the loss of this one's host does no harm. Faults, deaths, heartbeats and the end of an
iteration are written in no store.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterable
from typing import Any

from torch.distributed import DistNetworkError

from holdfast.base import torch_private
from holdfast.base.loopback import own_loopback
from holdfast.base.pure.wording import count
from holdfast.inprocess._timing import in_seconds, run_within
from holdfast.inprocess.exception import BarrierError, BarrierOverflow, BarrierTimeout
from holdfast.inprocess.exception import TimeoutError as RestartTimeoutError
from holdfast.net.address import way_to_endpoint
from holdfast.net.pure.address import Endpoint
from holdfast.net.until_listens import timed_out, wait_until_listens

__all__ = [
    "BarrierError",
    "BarrierOverflow",
    "BarrierTimeout",
    "FileStore",
    "StoreMixin",
    "TCPStore",
]

_WAIT = dt.timedelta(seconds=300)
_ANY_PORT = "0"
_MARGIN_S = 5.0
"""An operation of torch may end so much later than its timeout."""


class StoreMixin:
    """Methods for a torch store, on its ``add``, ``set``, ``get``, ``check`` and ``wait``.

    None of these names is one of torch's, so this class may be named before the torch store or
    after it.
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
            n_arrivals: How many arrive with this call: one may arrive for others.

        Raises:
            BarrierOverflow: More than ``n_ranks`` arrived.
            BarrierTimeout: Fewer did, within ``timeout``.
        """
        store: Any = self
        arrived = store.add(f"{name}/arrived", n_arrivals)
        if arrived > n_ranks:
            raise BarrierOverflow(
                f"barrier {name!r}: {count(arrived, 'rank')} came, it is for {n_ranks}"
            )
        if arrived == n_ranks:
            store.set(f"{name}/complete", "1")
        if timeout <= dt.timedelta(0):
            return
        wait_s = in_seconds(timeout)
        try:
            store.wait([f"{name}/complete"], dt.timedelta(seconds=wait_s))
        except RuntimeError as error:  # torch's DistStoreError among them
            arrived = store.add(f"{name}/arrived", 0)
            raise BarrierTimeout(
                f"barrier {name!r}: {arrived} of {n_ranks} ranks came within {wait_s:g} s"
            ) from error

    def exchange(
        self,
        name: str,
        rank: int,
        n_ranks: int,
        value: Any,
        timeout: dt.timedelta = _WAIT,
        *,
        ranks: Iterable[int] | None = None,
    ) -> list[Any]:
        """Values of all ranks that take part, in their order; the same list on each.

        Args:
            name: Of the exchange, used once.
            rank: Of this process.
            n_ranks: How many take part.
            value: Anything that JSON can carry.
            timeout: How long to wait for the others.
            ranks: The ranks that take part; default 0 to ``n_ranks - 1``.

        Raises:
            BarrierTimeout: Not all came within ``timeout``.
        """
        store: Any = self
        others = sorted(range(n_ranks) if ranks is None else ranks)
        store.set(f"{name}/value/{rank}", json.dumps(value))
        keys = [f"{name}/value/{other}" for other in others]
        wait_s = in_seconds(timeout)
        try:
            store.wait(keys, dt.timedelta(seconds=wait_s))
        except RuntimeError as error:
            raise BarrierTimeout(
                f"exchange {name!r}: not all of {n_ranks} ranks came within {wait_s:g} s"
            ) from error
        return [json.loads(store.get(key)) for key in keys]


class TCPStore(StoreMixin, torch_private.TCPStore):
    """torch's TCPStore, hosted by rank 0; its address is the environment's by default.

    Where a store listens on the port already, rank 0 is a client like the others: of the store
    of ``torchrun``'s agent, which listens on ``MASTER_PORT`` (``TORCHELASTIC_USE_AGENT_STORE``), or
    of a store that the program made before.

    Args:
        host_name: Default ``MASTER_ADDR``; where that is not set, a world of 1 is at this host.
        port: Default ``MASTER_PORT``; where that is not set, a world of 1 takes a free port.
        world_size: Default ``WORLD_SIZE``, or 1.
        timeout: Of each operation, and of the connection.
        wait_for_workers: Rank 0 waits for ``world_size`` clients, as long as ``timeout``. Default
            False, unlike torch's: the wrapper waits for all ranks itself, within its
            ``barrier_timeout``.
        multi_tenant: Several stores of one process share a server.
        use_libuv: The server's implementation.

    Raises:
        BarrierTimeout: The program that listens on the port does not answer as a store.
        KeyError: The environment lacks a value that is not given.
        torch.distributed.DistNetworkError: No process listens on the port within ``timeout``.
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
        size = int(env.get("WORLD_SIZE", "1")) if world_size is None else world_size
        host = _from_env("MASTER_ADDR", size, own_loopback()) if host_name is None else host_name
        number = int(_from_env("MASTER_PORT", size, _ANY_PORT)) if port is None else port
        has_agent = (
            env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            and str(number) == env.get("MASTER_PORT")
            and host == env.get("MASTER_ADDR")
        )
        wait_s = in_seconds(timeout)

        def become(*, is_master: bool) -> None:
            torch_private.TCPStore.__init__(
                self,
                host_name=way_to_endpoint(host),
                port=number,
                world_size=size,
                is_master=is_master,
                timeout=dt.timedelta(seconds=wait_s),
                wait_for_workers=wait_for_workers,
                multi_tenant=multi_tenant,
                use_libuv=use_libuv,
            )

        def host_or_join() -> None:
            if not is_host:
                _await_host(way_to_endpoint(host), number, wait_s, size)
            try:
                become(is_master=is_host)
            except DistNetworkError as error:
                if not is_host or "EADDRINUSE" not in str(error):
                    raise
                become(is_master=False)

        is_host = int(_from_env("RANK", size, "0")) == 0 and not has_agent
        self._has_agent = has_agent
        try:
            # torch waits without end for the first answer of a server that has none to give.
            run_within(wait_s + _MARGIN_S, f"connecting to {Endpoint(host, number)}", host_or_join)
        except RestartTimeoutError:
            raise BarrierTimeout(
                f"{Endpoint(host, number)} has not answered as a torch store within {wait_s:g} s: "
                "if another program listens there, give the Wrapper another port, the same on all "
                'ranks: store_kwargs={"port": ...}'
            ) from None

    @property
    def critical_ranks(self) -> tuple[int, ...]:
        """Rank 0, which hosts the store; none, where ``torchrun``'s agent does."""
        return () if self._has_agent else (0,)


def _await_host(host: str, port: int, within_s: float, ranks: int) -> None:
    if not wait_until_listens(host, port, within_s, ranks):
        raise DistNetworkError(timed_out(host, port, within_s))


def _from_env(name: str, world_size: int, of_one: str) -> str:
    """The environment's value, or ``of_one``, the default for a world of one rank."""
    if name in os.environ:
        return os.environ[name]
    if world_size == 1:
        return of_one
    raise KeyError(
        f"{name} is not set: each of {world_size} ranks needs RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT, as ft_launcher and torchrun set them"
    )


class FileStore(StoreMixin, torch_private.FileStore):
    """torch's FileStore: a file that all ranks can write to.

    Args:
        file_name: Its path; the same on all ranks.
        world_size: The last of so many removes the file. Default ``WORLD_SIZE``; without that, the
            file stays.
    """

    def __init__(self, file_name: str, world_size: int | None = None) -> None:
        size = int(os.environ.get("WORLD_SIZE", "-1")) if world_size is None else world_size
        torch_private.FileStore.__init__(self, file_name, size)
