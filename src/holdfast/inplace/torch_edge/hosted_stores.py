"""Stores in which torch's ranks meet, for a function that is called again and again.

``env://`` is the store of the iteration; a TCPStore may be made at the same port in each::

    init_process_group("gloo", init_method="tcp://node0:6000", ...)
    store = TCPStore("node0", 6000, world_size, is_master=rank == 0)

The one of the iteration before still listens for some 10 ms after the function is called again: the
process groups that hold it are destroyed in the background. Measured: one to three restarts more,
as the new server finds its port taken, or quick ranks connect to the old one. So the rank that
hosts waits for its own, and says through the iteration's store that it begins; the others wait for
that. Ports at which no rank has hosted in this call are not touched.

A client whose server does not listen tries again within torch's constructor, where it cannot be
interrupted, until its timeout is over (300 s), and holds up the restart. So the constructor is
called when the server listens, and is waited for in Python.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
from torch.distributed import DistNetworkError

from holdfast.base.rank_log import rank_logger
from holdfast.base.torch_private import TCPStore, environment_handlers
from holdfast.inplace.torch_edge.abort_distributed import group_reaper
from holdfast.inplace.torch_edge.replaced import replaced
from holdfast.net.until_listens import timed_out, wait_until_listens

log = rank_logger(__name__)

_SCHEME = "env"
_REAP_S = 10.0
_TIMEOUT = dt.timedelta(seconds=300)
"""torch's, of a TCPStore that is made without one."""
_POSITIONS = {"host_name": 0, "port": 1, "is_master": 3, "timeout": 4}


def _wait_for_server(host: str, port: int, timeout: dt.timedelta) -> None:
    timeout_s = timeout.total_seconds()
    if not wait_until_listens(host, port, timeout_s):
        raise DistNetworkError(timed_out(host, port, timeout_s))


@contextlib.contextmanager
def hosted_anew(store_of_now: Callable[[], Any]) -> Iterator[None]:
    """Inside, a TCPStore is never taken for the one at the same port of an earlier iteration.

    ``store_of_now``: the store of this iteration, with ``base_store``, that of the call; ``None``
    between iterations.
    """
    hosted_here: set[str] = set()

    def in_turn(make: Callable[..., None]) -> Callable[..., None]:
        def made(this: Any, *args: Any, **kwargs: Any) -> None:
            now = store_of_now()
            given = _arguments(args, kwargs)
            if now is not None and given["port"]:
                name = f"holdfast/hosted/{given['host_name']}:{given['port']}"
                if given["is_master"]:
                    if name in hosted_here:
                        group_reaper.wait(_REAP_S)
                    hosted_here.add(name)
                    now.set(name, "1")
                    now.base_store.set(name, "1")
                else:
                    if now.base_store.check([name]):
                        now.wait([name], given["timeout"])
                    _wait_for_server(given["host_name"], given["port"], given["timeout"])
            make(this, *args, **kwargs)

        return made

    with replaced(TCPStore, "__init__", in_turn):
        yield


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    given = {"host_name": "", "port": 0, "is_master": False, "timeout": _TIMEOUT}
    given |= {name: args[at] for name, at in _POSITIONS.items() if at < len(args)}
    return given | {name: kwargs[name] for name in _POSITIONS if name in kwargs}


@contextlib.contextmanager
def env_rendezvous_by(store_of_now: Callable[[], Any]) -> Iterator[None]:
    """Inside, ``init_process_group()`` without arguments uses ``store_of_now()``.

    torch's own ``env://`` has rank 0 host a TCPStore at MASTER_PORT: a port that the past attempt
    may still hold, on a host that may be lost, with a name look-up that can take seconds. ``RANK``
    and ``WORLD_SIZE`` still come from the environment; explicit stores and other schemes stay.
    """

    def handler(url: str, **_kwargs: Any) -> Iterator[tuple[Any, int, int]]:
        query = parse_qs(urlsplit(url).query)

        def number(of_url: str, of_env: str) -> int:
            return int(query[of_url][0] if of_url in query else os.environ[of_env])

        yield store_of_now(), number("rank", "RANK"), number("world_size", "WORLD_SIZE")
        raise RuntimeError("env:// inside a restartable function cannot rerendezvous")

    handlers = environment_handlers()
    if handlers is None:
        log.warning(
            "holdfast cannot replace env:// of this torch (%s): after a restart in place, "
            "init_process_group() without store= waits for a store of rank 0 at MASTER_PORT, and "
            "fails where the attempt before still holds that port",
            torch.__version__,
        )
        yield
        return
    before = handlers.get(_SCHEME)
    handlers[_SCHEME] = handler
    try:
        yield
    finally:
        if before is None:
            del handlers[_SCHEME]
        else:
            handlers[_SCHEME] = before
