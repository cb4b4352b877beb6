"""A rank makes its store as a client when that listens; torch's constructor is as ever."""

from __future__ import annotations

import datetime as dt
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from holdfast.net import until_listens
from holdfast.watch.rank import first_lines
from holdfast.watch.rank.store_wait import wait_for_servers

T = dt.timedelta(seconds=60)


class NetworkError(Exception):
    pass


@pytest.fixture
def said() -> list[Any]:
    return []


@pytest.fixture
def store(said: list[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Torch's class, in a process that has imported torch; a server listens at 6000 alone."""

    class TCPStore:
        """A store."""

        def __init__(self, *args: object, **named: object) -> None:
            """Connect."""
            said.append("made")

    def wait(host: str, port: int, timeout_s: float, ranks: int) -> bool:
        said.append((host, port, timeout_s, ranks))
        return port == 6000

    torch = SimpleNamespace(DistNetworkError=NetworkError)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch)  # type: ignore[arg-type]
    module: Any = ModuleType("torch.distributed.rendezvous")
    module.TCPStore = TCPStore
    waiter: Any = SimpleNamespace(wait_until_listens=wait, timed_out=until_listens.timed_out)
    monkeypatch.setitem(sys.modules, "holdfast.net.until_listens", waiter)
    wait_for_servers(module, waiter)
    assert module.TCPStore is TCPStore
    return TCPStore


def test_a_client_is_made_when_its_server_listens(store: Any, said: list[Any]) -> None:
    store("node0", 6000, 8, False, T)
    store(host_name="node0", port=6000, world_size=8, is_master=False, timeout=T)
    assert said == [("node0", 6000, 60.0, 8), "made"] * 2


def test_what_is_not_given_is_as_in_torch(store: Any, said: list[Any]) -> None:
    store("node0", 6000)
    assert said == [("node0", 6000, 300.0, 1), "made"]


def test_the_rank_that_hosts_it_waits_for_nothing(store: Any, said: list[Any]) -> None:
    store("node0", 6001, 8, True, T)
    store("node0", 6001, is_master=True)
    assert said == ["made"] * 2


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ((), {}),
        (("node0",), {}),
        (("node0", "a port"), {}),
        (("node0", 70_000), {}),
        (("node0", -1), {}),
        ((b"node0", 6001), {}),
        (("node0", 6001, "8"), {}),
        (("node0", 6001, 2, False, 30), {}),
        (("node0", 6001), {"timeout": None}),
        (("node0", 6001), {"of_another_torch": True}),
    ],
)
def test_torch_says_what_is_wrong_with_arguments(
    store: Any, said: list[Any], args: Any, named: Any
) -> None:
    """At once."""
    store(*args, **named)
    assert said == ["made"]


def test_numbers_of_other_libraries_are_numbers(store: Any, said: list[Any]) -> None:
    class Number:
        def __index__(self) -> int:
            return 6000

    store("node0", Number(), Number())
    assert said == [("node0", 6000, 300.0, 6000), "made"]


def test_a_server_that_does_not_come_is_the_error_of_torch(store: Any, said: list[Any]) -> None:
    with pytest.raises(NetworkError, match=r"timed out after 60000ms .* \(node0, 6001\)"):
        store("node0", 6001, timeout=T)
    assert said == [("node0", 6001, 60.0, 1)]


def test_the_constructor_is_described_as_ever(store: Any) -> None:
    assert store.__init__.__doc__ == "Connect."


def test_a_torch_without_stores_is_left_alone() -> None:
    wait_for_servers(ModuleType("torch.distributed.rendezvous"), until_listens)


def test_holdfast_that_is_gone_from_the_disk_does_not_keep_torch_from_being_imported() -> None:
    def load(file: str) -> None:
        raise FileNotFoundError(file)

    first_lines._wait_for_servers(SimpleNamespace(load=load), ModuleType("rendezvous"))
