"""Where a copy of another node's snapshot is written: never over one that the leader may choose."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.arena.arena import ArenaMemory, create
from holdfast.arena.copy_transfer import CopyMemory
from holdfast.arena.pure.peer_messages import CopyBegins, slot_for
from holdfast.arena.pure.snapshots import Held
from holdfast.arena.slot_stream import LinkError

BYTES = 100


def of(step: int) -> Held:
    return Held(0, 2, 0, 0, step)


@pytest.mark.parametrize(
    ("usable", "kept", "is_listed", "expected"),
    [
        ({0: None, 1: None}, 0, False, 0),
        ({0: of(3), 1: None}, 0, False, 1),
        ({0: of(5), 1: of(3)}, 0, False, 1),
        ({0: of(5), 1: of(3)}, 3, False, 0),
        ({0: of(3)}, 3, False, None),
        ({}, 0, False, None),
        ({0: of(5), 1: of(3)}, 3, True, None),
        ({0: of(5), 1: of(3)}, 0, True, None),
        ({0: of(5), 1: None}, 5, True, 1),
    ],
)
def test_a_copy_takes_a_free_slot_or_the_oldest_that_is_neither_kept_nor_listed(
    usable: dict[int, Held | None], kept: int, is_listed: bool, expected: int | None
) -> None:
    assert slot_for(usable, frozenset({kept}), is_listed=is_listed) == expected


@pytest.fixture
def copies() -> Iterator[CopyMemory]:
    """Memory at a peer, with two slots that hold steps 3 and 5."""
    memory = CopyMemory(create("test", 2), 1 << 20)
    for slot, step in enumerate((3, 5)):
        memory.memory.reserve(slot, BYTES)
        memory.memory.commit(slot, of(step), BYTES)
    yield memory
    memory.close()


@pytest.fixture
def launcher(copies: CopyMemory) -> Iterator[ArenaMemory]:
    """The same memory, as its launcher has it."""
    memory = ArenaMemory(os.dup(copies.memory.fd))
    yield memory
    os.close(memory.fd)


def listed(launcher: ArenaMemory) -> list[int]:
    return [it.held.step for it in launcher.list_all(is_shared=True)]


def test_what_the_leader_has_a_list_of_is_not_overwritten_before_the_next_cycle(
    copies: CopyMemory, launcher: ArenaMemory
) -> None:
    assert listed(launcher) == [3, 5]
    with pytest.raises(LinkError, match="that the next cycle may begin from"):
        copies.room_for(CopyBegins(of(7), BYTES, 0))
    assert listed(launcher) == [3, 5]
    launcher.unlist()
    assert copies.room_for(CopyBegins(of(7), BYTES, 0)) == 0


def test_a_free_slot_is_given_to_a_copy_that_comes_after_the_list(
    copies: CopyMemory, launcher: ArenaMemory
) -> None:
    launcher.void(1)
    assert listed(launcher) == [3]
    assert copies.room_for(CopyBegins(of(7), BYTES, 0)) == 1


@pytest.mark.parametrize("at", ["reserve", "claim", "may_write", "begin", "unclaim"])
def test_a_list_at_any_instant_of_a_beginning_copy_has_only_what_stays(
    copies: CopyMemory, launcher: ArenaMemory, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either the launcher sees the claim, or the copy sees that there is a list."""
    found: list[int] = []
    do: Callable[..., Any] = getattr(ArenaMemory, at)

    def after_the_list(self: ArenaMemory, *args: Any) -> Any:
        if not found:
            found.extend(listed(launcher))
        return do(self, *args)

    monkeypatch.setattr(ArenaMemory, at, after_the_list)
    try:
        slot = copies.room_for(CopyBegins(of(7), BYTES, 0))
    except LinkError:
        slot = None
    assert slot is None or at in ("may_write", "begin", "unclaim")
    assert {*found} <= {it.held.step for it in launcher.all_held()}
    assert 5 in found


def test_the_claim_of_a_process_that_died_is_gone_with_it(launcher: ArenaMemory) -> None:
    launcher.claim(1, 7)
    assert listed(launcher) == [3]
    successor = CopyMemory(os.dup(launcher.fd), 1 << 20)
    assert listed(launcher) == [3, 5]
    successor.close()


def test_the_claim_of_a_rank_that_died_hides_no_snapshot(launcher: ArenaMemory) -> None:
    """It is gone, so what is committed stays."""
    launcher.claim(1, 7)
    assert [it.held.step for it in launcher.list_all(is_shared=False)] == [3, 5]
