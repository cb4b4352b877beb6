"""Stores in which ranks find each other at the beginning of a call, and that users bring along.

A store of one's own is a torch store with :class:`StoreMixin` among its bases::

    class RedisStore(StoreMixin, MyTorchStore): ...

    Wrapper(store_factory=RedisStore, store_kwargs={...})

It has to work until all ranks have met; from then on ranks meet in a store beside the coordinator,
so that the loss of this one's host does no harm.

:class:`StoreMixin`'s methods are for plug-ins and programs. The wrapper uses ``add``, ``set``,
``get`` and ``wait`` to meet, and an assignment :meth:`StoreMixin.exchange` where the store has no
``gather``. Faults, deaths, heartbeats and the end of an iteration are written in no store.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from torch.distributed import DistNetworkError

from holdfast.base import clock, torch_private
from holdfast.base.pure.wording import count
from holdfast.inprocess._timing import in_seconds, run_within
from holdfast.inprocess.attribution import InterruptionRecord
from holdfast.inprocess.exception import BarrierError, BarrierOverflow, BarrierTimeout
from holdfast.inprocess.exception import TimeoutError as RestartTimeoutError
from holdfast.net.address import way_to_store
from holdfast.net.pure.address import Endpoint

__all__ = [
    "BarrierError",
    "BarrierOverflow",
    "BarrierTimeout",
    "FileStore",
    "PrefixStore",
    "StoreMixin",
    "TCPStore",
]

_WAIT = dt.timedelta(seconds=300)
_NOW = dt.timedelta(0)
_HERE, _ANY_PORT = "127.0.0.1", "0"
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
        self._arrive(name, n_arrivals, n_ranks)
        self._await_complete(name, n_ranks, timeout)

    def meet_again(
        self, name: str, ranks: int | Iterable[int], n_ranks: int, timeout: dt.timedelta = _WAIT
    ) -> None:
        """As :meth:`meet`, for ranks that may arrive repeatedly: each counts once.

        Args:
            name: Of the barrier, used once.
            ranks: The ranks that arrive with this call, one or several: this one, and others.
            n_ranks: How many different ones have to arrive.
            timeout: How long to wait for the others; zero: arrive, and do not wait.

        Raises:
            BarrierOverflow: More than ``n_ranks`` different ones arrived.
            BarrierTimeout: Fewer did, within ``timeout``.
        """
        store: Any = self
        for rank in _several(ranks):
            if store.add(f"{name}/rank/{rank}", 1) == 1:
                self._arrive(name, 1, n_ranks)
        self._await_complete(name, n_ranks, timeout)

    def _arrive(self, name: str, n_arrivals: int, n_ranks: int) -> None:
        store: Any = self
        arrived = store.add(f"{name}/arrived", n_arrivals)
        if arrived > n_ranks:
            raise BarrierOverflow(
                f"barrier {name!r}: {count(arrived, 'rank')} came, it is for {n_ranks}"
            )
        if arrived == n_ranks:
            store.set(f"{name}/complete", "1")

    def _await_complete(self, name: str, n_ranks: int, timeout: dt.timedelta) -> None:
        if timeout <= _NOW:
            return
        store: Any = self
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

    # ------------------------------------------------------------ the barriers of a call, by name

    def initial_barrier(
        self, ranks: int | Iterable[int], n_ranks: int, timeout: dt.timedelta = _WAIT
    ) -> None:
        """:meth:`meet_again` by this name, once per store: at the beginning of a call."""
        self.meet_again("holdfast/barrier/initial", ranks, n_ranks, timeout)

    def completion_barrier(
        self, ranks: int | Iterable[int], n_ranks: int, timeout: dt.timedelta = _WAIT
    ) -> None:
        """:meth:`meet_again` by this name, once per store: the function has returned."""
        self.meet_again("holdfast/barrier/completion", ranks, n_ranks, timeout)

    def iteration_barrier(
        self, ranks: int | Iterable[int], n_ranks: int, timeout: dt.timedelta = _WAIT
    ) -> None:
        """:meth:`meet_again` by this name, once per store: between iterations."""
        self.meet_again("holdfast/barrier/iteration", ranks, n_ranks, timeout)

    def termination_barrier(
        self, ranks: int | Iterable[int], n_ranks: int, timeout: dt.timedelta = _WAIT
    ) -> None:
        """:meth:`meet_again` by this name, once per store: at the end of a call."""
        self.meet_again("holdfast/barrier/termination", ranks, n_ranks, timeout)

    # ------------------------------------------------------------ heartbeats and records

    def send_heartbeat(self, rank: int) -> None:
        """``rank`` is alive now, by this host's wall clock."""
        store: Any = self
        store.set(f"holdfast/heartbeat/{rank}", repr(clock.wall()))

    def get_heartbeat(self, rank: int) -> float | None:
        """When ``rank`` sent its last heartbeat, seconds since 1970; ``None``: never."""
        store: Any = self
        key = f"holdfast/heartbeat/{rank}"
        return float(store.get(key)) if store.check([key]) else None

    def get_all_heartbeats(self, world_size: int) -> list[float | None]:
        """:meth:`get_heartbeat` of the ranks 0 to ``world_size - 1``."""
        return [self.get_heartbeat(rank) for rank in range(world_size)]

    def record_interrupted(
        self, records: InterruptionRecord | Iterable[InterruptionRecord]
    ) -> None:
        """Add to the records of this iteration. It interrupts no rank; raise for it.

        Records made after :meth:`lock_interruption_records` do not count.

        Args:
            records: Several, or one.
        """
        several = [records] if isinstance(records, InterruptionRecord) else records
        self._append("interrupted", map(str, several))

    def lock_interruption_records(self) -> None:
        """Close the list, on all ranks."""
        store: Any = self
        if store.add("holdfast/interrupted/locks", 1) == 1:
            store.set("holdfast/interrupted/locked", str(self._length("interrupted")))
        store.wait(["holdfast/interrupted/locked"], _WAIT)

    def get_interruption_records(self) -> list[InterruptionRecord]:
        """The list, in the order in which records were made."""
        store: Any = self
        locked = "holdfast/interrupted/locked"
        length = int(store.get(locked)) if store.check([locked]) else self._length("interrupted")
        return [InterruptionRecord.from_str(text) for text in self._listed("interrupted", length)]

    def is_interrupted(self) -> bool:
        """Whether there is a record."""
        return self._length("interrupted") > 0

    def wait_for_interruption(self, timeout: dt.timedelta = _WAIT) -> None:
        """Wait for the first record.

        Raises:
            RuntimeError: There was none within ``timeout``; torch's, ``DistStoreError``.
        """
        store: Any = self
        store.wait(["holdfast/interrupted/1"], timeout)

    def record_terminated_ranks(self, ranks: int | Iterable[int]) -> None:
        """These ranks have left or are lost; several, or one."""
        self._append("terminated", map(str, _several(ranks)))

    def get_terminated_ranks(self) -> set[int]:
        """All that were recorded."""
        return {int(text) for text in self._listed("terminated", self._length("terminated"))}

    def record_completed(self) -> None:
        """A rank has completed this iteration."""
        store: Any = self
        store.set("holdfast/completed", "1")

    def is_any_rank_completed(self) -> bool:
        """Whether one has."""
        store: Any = self
        return bool(store.check(["holdfast/completed"]))

    def set_initial_rank(self, rank: int, initial_rank: int) -> None:
        """``rank`` was ``initial_rank`` at the start of the job."""
        store: Any = self
        store.set(f"holdfast/initial_rank/{rank}", str(initial_rank))

    def get_initial_rank(self, rank: int) -> int:
        """The number of ``rank`` at the start of the job; waits until it is set."""
        store: Any = self
        return int(store.get(f"holdfast/initial_rank/{rank}"))

    def get_initial_ranks(self, ranks: Sequence[int]) -> list[int]:
        """The number of each of ``ranks`` at the start of the job."""
        return [self.get_initial_rank(rank) for rank in ranks]

    # ------------------------------------------------------------ lists that only grow

    def _append(self, name: str, texts: Iterable[str]) -> None:
        store: Any = self
        for text in texts:
            number = store.add(f"holdfast/{name}/length", 1)
            store.set(f"holdfast/{name}/{number}", text)

    def _length(self, name: str) -> int:
        store: Any = self
        return int(store.add(f"holdfast/{name}/length", 0))

    def _listed(self, name: str, length: int) -> list[str]:
        """Waits for a text whose number is taken already."""
        store: Any = self
        return [store.get(f"holdfast/{name}/{number}").decode() for number in range(1, length + 1)]


def _several(ranks: int | Iterable[int]) -> Iterable[int]:
    return [ranks] if isinstance(ranks, int) else ranks


class TCPStore(StoreMixin, torch_private.TCPStore):
    """torch's TCPStore, hosted by rank 0; its address is the environment's by default.

    Where a store listens on the port already, rank 0 is a client like the others: of the store
    of ``torchrun``'s agent, which listens on ``MASTER_PORT`` (``TORCHELASTIC_USE_AGENT_STORE``), or
    of a store that the program made before.

    Args:
        host_name: Default ``MASTER_ADDR``; where that is not set, a world of 1 is at 127.0.0.1.
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
        host = _from_env("MASTER_ADDR", size, _HERE) if host_name is None else host_name
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
                host_name=way_to_store(host),
                port=number,
                world_size=size,
                is_master=is_master,
                timeout=dt.timedelta(seconds=wait_s),
                wait_for_workers=wait_for_workers,
                multi_tenant=multi_tenant,
                use_libuv=use_libuv,
            )

        def host_or_join() -> None:
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


class PrefixStore(StoreMixin, torch_private.PrefixStore):
    """A room of its own in another store, for one iteration.

    Args:
        iteration: Names the room.
        store: The other store.

    Attributes:
        base_store: The other store.
    """

    def __init__(self, iteration: int, store: Any) -> None:
        torch_private.PrefixStore.__init__(self, str(iteration), store)
        self.base_store = store

    @property
    def critical_ranks(self) -> tuple[int, ...]:
        """Those of the other store."""
        return tuple(getattr(self.base_store, "critical_ranks", ()))
