"""TCPStores that a restartable function makes at the same port in each iteration: who waits."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import DistNetworkError

from holdfast.inplace.torch_edge import hosted_stores

AT = ("node0", 6000)
KEY = "holdfast/hosted/node0:6000"
MADE, REAPED = ("made",), ("reaped",)
_30_S = dt.timedelta(seconds=30)


class Store:
    """Of an iteration, with that of the call; notes what is asked."""

    def __init__(self, said: list[Any], base: Store | None = None) -> None:
        self._said, self.base_store, self._keys = said, base, set()

    def set(self, key: str, _value: str) -> None:
        self._keys.add(key)
        if self.base_store is not None:
            self._said.append(("set", key))

    def check(self, keys: list[str]) -> bool:
        return set(keys) <= self._keys

    def wait(self, keys: list[str], timeout: dt.timedelta) -> None:
        self._said.append(("wait", *keys, timeout))


class TCPStore:
    """In torch's place, whose constructor has to be called."""

    said: list[Any]

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.said.append(MADE)


@pytest.fixture
def said(monkeypatch) -> list[Any]:
    """What happens when stores are made; none is."""
    said: list[Any] = []
    monkeypatch.setattr(hosted_stores, "TCPStore", TCPStore)
    monkeypatch.setattr(TCPStore, "said", said, raising=False)
    reaper = SimpleNamespace(wait=lambda _timeout_s: said.append(REAPED))
    monkeypatch.setattr(hosted_stores, "group_reaper", reaper)
    monkeypatch.setattr(hosted_stores, "wait_until_listens", lambda *_: True)
    return said


def test_a_host_waits_for_its_own_and_then_says_that_it_begins(said) -> None:
    """Before it listens: torch's constructor may wait for the others, and they for the word."""
    base = Store(said)
    now = [Store(said, base)]
    with hosted_stores.hosted_anew(lambda: now[0]):
        TCPStore(*AT, 2, True)
        assert said == [("set", KEY), MADE]
        now[0] = Store(said, base)
        said.clear()
        TCPStore(host_name="node0", port=6000, is_master=True)
    assert said == [REAPED, ("set", KEY), MADE]


def test_others_wait_for_the_word_where_a_rank_has_hosted_before(said) -> None:
    base = Store(said)
    with hosted_stores.hosted_anew(lambda: Store(said, base)):
        TCPStore(*AT, timeout=_30_S)
        assert said == [MADE], "a store of another program, or the first iteration"
        base.set(KEY, "1")
        for made in (lambda: TCPStore(*AT, 2, False, _30_S), lambda: TCPStore("node0", 6000)):
            said.clear()
            made()
            assert said[0][:2] == ("wait", KEY)
            assert said[1:] == [MADE]
    assert said[0][2] == dt.timedelta(seconds=300)


@pytest.mark.parametrize(("now", "port"), [(False, 6000), (True, 0)])
def test_stores_that_cannot_be_mistaken_are_made_at_once(said, now: bool, port: int) -> None:
    """Between iterations, or at a port that the kernel chooses."""
    base = Store(said)
    with hosted_stores.hosted_anew(lambda: Store(said, base) if now else None):
        TCPStore("node0", port, 2, True)
    assert said == [MADE]


def test_a_client_waits_for_its_server_where_it_can_be_interrupted(said, monkeypatch) -> None:
    """In Python, and not in torch's constructor; it may wait as long as torch would have."""
    waits: list[float] = []

    def wait(host: str, port: int, timeout_s: float) -> bool:
        assert (host, port) == AT[:2]
        assert not said, "the constructor is not called yet"
        waits.append(timeout_s)
        return len(waits) < 2

    monkeypatch.setattr(hosted_stores, "wait_until_listens", wait)
    with hosted_stores.hosted_anew(lambda: Store(said, Store(said))):
        TCPStore(*AT, timeout=_30_S)
        assert said == [MADE]
        said.clear()
        with pytest.raises(DistNetworkError, match=r"timed out after 10ms .* \(node0, 6000\)"):
            TCPStore(*AT, timeout=dt.timedelta(milliseconds=10))
    assert (said, waits) == ([], [30.0, 0.01])


def test_torch_is_as_it_was_afterwards() -> None:
    made = hosted_stores.TCPStore
    before = made.__dict__["__init__"]
    with hosted_stores.hosted_anew(lambda: None):
        assert made.__dict__["__init__"] is not before
    assert made.__dict__["__init__"] is before
