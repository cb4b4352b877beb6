"""A rank's session with its guard, without the Wrapper around it: a test is the guard."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from holdfast.base.own_descriptor import OwnSocket
from holdfast.inplace.atomic import Atomic
from holdfast.inplace.session import Session
from holdfast.net.client import Client
from holdfast.page.page import Page


def bare_session(
    to_guard: socket.socket,
    page: Page,
    abort_again: Callable[[], None] = lambda: None,
) -> Session:
    """Of rank 0; no limit of time runs out, and its main thread is not interrupted."""
    interrupt: Any = SimpleNamespace(
        request=lambda: None, deliver_again=lambda: None, atomic=Atomic(), refused_at=""
    )
    return Session(
        Client(OwnSocket(to_guard.detach())),
        0,
        page,
        interrupt,
        abort=lambda _causes: None,
        abort_again=abort_again,
        waits=lambda: False,
        is_idle=lambda: False,
        number=lambda: 0,
        silence_s=1e4,
        soft_s=1e4,
        interval_s=1.0,
    )
