from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from holdfast.inprocess.store import (
    BarrierOverflow,
    BarrierTimeout,
    FileStore,
    PrefixStore,
    StoreMixin,
)

SOON = dt.timedelta(milliseconds=50)
NOW = dt.timedelta(0)
BOUND_S = 30


class HashStore(StoreMixin, dist.HashStore):
    """As a user would bring it."""


@pytest.fixture(params=["hash", "file", "prefix"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "file":
        return FileStore(str(tmp_path / "store"), 2)
    return HashStore() if request.param == "hash" else PrefixStore(3, HashStore())


def both(first: Callable[[], Any], second: Callable[[], Any]) -> list[Any]:
    results: list[Any] = [None, None]

    def run(number: int, do: Callable[[], Any]) -> None:
        results[number] = do()

    threads = [threading.Thread(target=run, args=item) for item in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    return results


def test_ranks_meet(store: Any) -> None:
    both(lambda: store.meet("a", 2), lambda: store.meet("a", 2))


def test_who_comes_alone_is_told_who_is_missing_after_the_timeout(store: Any) -> None:
    with pytest.raises(BarrierTimeout, match=r"'a': 1 of 2 ranks came within 0.05 s"):
        store.meet("a", 2, SOON)


def test_one_too_many_is_an_error(store: Any) -> None:
    store.meet("a", 1)
    with pytest.raises(BarrierOverflow, match="2 ranks came, it is for 1"):
        store.meet("a", 1)


def test_with_no_timeout_one_arrives_and_does_not_wait(store: Any) -> None:
    store.meet("a", 2, NOW)
    store.meet("a", 2, SOON)


def test_who_arrives_repeatedly_counts_once(store: Any) -> None:
    for _ in range(3):
        store.meet_again("a", [0], 2, NOW)
    with pytest.raises(BarrierTimeout, match="1 of 2"):
        store.meet_again("a", [0], 2, SOON)


def test_the_lost_are_stood_in_for(store: Any) -> None:
    store.meet_again("a", [1, 2], 3, NOW)
    store.meet_again("a", [0], 3, SOON)


def test_values_are_exchanged_in_the_order_of_the_ranks(store: Any) -> None:
    def give(rank: int) -> Callable[[], Any]:
        return lambda: store.exchange("keys", rank, 2, {"node": f"n{rank}"})

    assert both(give(0), give(1)) == [[{"node": "n0"}, {"node": "n1"}]] * 2


def test_an_exchange_that_not_all_join_ends(store: Any) -> None:
    with pytest.raises(BarrierTimeout, match="not all of 2 ranks"):
        store.exchange("keys", 0, 2, 1, SOON)


def test_no_name_of_torch_is_hidden() -> None:
    ours = {name for name in vars(StoreMixin) if not name.startswith("_")}
    assert not ours & set(dir(dist.Store))


def test_a_room_knows_its_store() -> None:
    base = HashStore()
    assert PrefixStore(1, base).base_store is base
    PrefixStore(1, base).set("key", "1")
    assert not PrefixStore(2, base).check(["key"])
