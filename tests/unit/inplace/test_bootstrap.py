"""Ranks find each other in a store that they share."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed import HashStore  # noqa: E402

from holdfast.inplace import bootstrap  # noqa: E402
from holdfast.inplace.pure.messages import (  # noqa: E402
    Attach,
    CallTimeouts,
    CoordinatorTimeouts,
)

DEAD, ALIVE = 1111, 2222
WAIT_S = 2.0
"""For a meeting that is there."""


class Guard:
    """Takes what a rank sends."""

    def send(self, *_: Any) -> None: ...


@pytest.fixture
def meet(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As the first call in a process of a rank, whose node has restarted it so often."""
    monkeypatch.setattr(bootstrap, "connect_to_guard", lambda _token: Guard())
    monkeypatch.setattr(bootstrap, "_answers", lambda meeting, _until: meeting.port == ALIVE)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")

    def call(store: Any, rank: int, restarts: int, port: int = 0) -> bootstrap.Meeting:
        monkeypatch.setattr(bootstrap, "_calls", 0)
        monkeypatch.setattr(bootstrap, "_host", lambda *_: port)
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))
        attach = Attach(rank, 2, 0, 0, CallTimeouts(), CoordinatorTimeouts())
        return bootstrap.meet(store, rank, attach, WAIT_S)[1]

    return call


def test_ranks_meet_whose_nodes_have_counted_different_restarts(meet: Any) -> None:
    """Torchrun counts one on the node that has lost a rank, and none where it only joins again."""
    store = HashStore()
    meet(store, 0, restarts=0, port=DEAD)
    hosted = meet(store, 0, restarts=0, port=ALIVE)
    found = meet(store, 1, restarts=1)
    assert found.token == hosted.token
    assert bootstrap.late_ranks(store, hosted, 3) == [2]
