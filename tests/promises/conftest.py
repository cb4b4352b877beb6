from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.net.port import ReservedPort
from nvidia_resiliency_ext import inprocess
from tests.real.forked_ranks import Forks
from tests.real.ranks import RankStarter, rank_starter

_PATIENT = {
    # A hard timeout would end the process of the tests.
    "soft_timeout": dt.timedelta(minutes=10),
    "hard_timeout": dt.timedelta(minutes=20),
    "barrier_timeout": dt.timedelta(minutes=30),
}


class Alone:
    """A job of one rank: this process."""

    def __call__(self, function: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
        """What a call of ``function`` under a Wrapper with these arguments returns or raises."""
        return self.wrapped(function, **arguments)(*args)

    def wrapped(self, function: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
        return inprocess.Wrapper(**{**_PATIENT, **arguments})(function)


@pytest.fixture(scope="session")
def _port() -> Iterator[int]:
    port = ReservedPort()
    yield port.number
    port.release()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, _port: int, small_heap: None) -> Alone:
    environment = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_port),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return Alone()


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Torch is imported once for all ranks that tests start."""
    one = Forks()
    yield one
    one.close()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Iterator[RankStarter]:
    """Starts ranks by hand; whatever they leave ends with the module."""
    with rank_starter(tmp_path_factory.mktemp("ranks"), forks) as starter:
        yield starter
