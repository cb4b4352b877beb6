"""``init_process_group()`` without arguments, inside a restartable function.

torch's own ``env://`` has rank 0 host a TCPStore at MASTER_PORT: a port that the past attempt may
still hold, on a host that may be lost, with a name look-up that can take seconds. While a wrapped
function runs, ``env://`` gives the store of the epoch instead. Everything else is as it was:
``RANK`` and ``WORLD_SIZE`` from the environment, explicit stores and other schemes untouched.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch

from holdfast.base.rank_log import rank_logger
from holdfast.base.torch_private import environment_handlers

log = rank_logger(__name__)

_SCHEME = "env"


@contextlib.contextmanager
def env_rendezvous_by(store_of_now: Callable[[], Any]) -> Iterator[None]:
    """Inside, ``env://`` yields ``store_of_now()``."""

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
