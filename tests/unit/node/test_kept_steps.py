"""The launcher's part of kept steps: memory, orders to the process that copies, ranks that wait."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pytest

from holdfast.arena.arena import ArenaMemory
from holdfast.arena.pure import layout
from holdfast.arena.pure.messages import Arena, OpenArena, SnapshotAwaited, SnapshotUnusable
from holdfast.arena.pure.peer_messages import (
    CopyNotPushed,
    CopyPushed,
    CopyReceived,
    CopyRefused,
    CopyUnderWay,
)
from holdfast.arena.pure.snapshots import (
    Ancestor,
    Beginning,
    CopySource,
    DamagedCopy,
    Held,
    Holdings,
    Refused,
    Restore,
    SnapshotId,
)
from holdfast.base import clock
from holdfast.events.pure import schema
from holdfast.job.pure.member_messages import KeepStep, StepCopied, StepKept, StepMissed
from holdfast.job.pure.membership import CyclePlace, Keeper, Round
from holdfast.node.arenas import Answer, Arenas
from holdfast.node.kept_steps import AWAITED_S, KeptSteps
from holdfast.node.peer_copies import CopiesEnded
from holdfast.watch.pure.rank_messages import Ok

MIB = 1 << 20
PLACES = (CyclePlace("a", 0, 1, 0, "10.0.0.1"), CyclePlace("b", 1, 1, 1, "10.0.0.2"))
KEEPERS = (Keeper(7001, 1), Keeper(7002, 0))
FIVE = SnapshotId(0, 0, 5)


class FakeCopies:
    """Notes orders; a process would carry them out."""

    port = 7001

    def __init__(self) -> None:
        self.held: dict[int, ArenaMemory] = {}
        self.dropped: list[Any] = []
        self.pushed: list[tuple[Held, int, str, int]] = []
        self.is_there = True

    def hold(self, rank: int, memory: ArenaMemory, bytes_max: int) -> None:
        assert bytes_max > 0
        self.held[rank] = memory

    def drop(self, rank: int, then: Any) -> None:
        self.held.pop(rank, None)
        self.dropped.append(then)

    def push(self, held: Held, memory: ArenaMemory, kept: int, host: str, port: int) -> int | None:
        assert memory.words[layout.VERSION] == layout.LAYOUT_VERSION
        if not self.is_there:
            return None
        self.pushed.append((held, kept, host, port))
        return len(self.pushed)


class Node:
    """The launcher on node ``a`` or ``b``, of one rank."""

    def __init__(self, beginning: Beginning | None = None, *, group_rank: int = 0) -> None:
        self.fed: list[StepCopied | StepMissed] = []
        self.events: list[schema.Body] = []
        self.changes = 0
        self.arenas = Arenas(
            1, 64 * MIB, self._never, lambda _: None, tempfile.mkdtemp(), keeps=True
        )
        self.copies = FakeCopies()
        self.steps = KeptSteps(
            self.arenas,
            lambda _: self.copies,  # type: ignore[arg-type,return-value]
            self.fed.append,
            self._changed,
            self.events.append,
        )
        self.answers: list[Answer] = []
        self.rank = group_rank
        self.begin(0 if beginning is None else 1, beginning)

    @staticmethod
    def _never(_: object) -> None:
        raise AssertionError

    def _changed(self) -> None:
        self.changes += 1

    def begin(self, cycle: int, beginning: Beginning | None = None) -> None:
        formed = Round(cycle, PLACES, world_size=2, beginning=beginning, keepers=KEEPERS)
        self.arenas.begin(formed, PLACES[self.rank])
        self.steps.begin(formed, PLACES[self.rank])

    def open(self, slot_bytes: int = MIB) -> ArenaMemory:
        self.ask(slot_bytes)
        answer, descriptors = self.answers.pop()
        assert isinstance(answer, Arena)
        return ArenaMemory(os.dup(descriptors[0]))

    def ask(self, slot_bytes: int = MIB) -> None:
        self.steps.answer(OpenArena(self.rank, slot_bytes, 2), self.answers.append)

    def outcome(self, outcome: Any) -> None:
        self.steps._on_outcome(outcome)


def take(memory: ArenaMemory, rank: int, step: int, slot: int) -> None:
    memory.words[layout.LAST_STEP] = step
    memory.reserve(slot, 4096)
    memory.commit(slot, Held(rank, 2, 0, 0, step), 4096)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    return now


def test_a_step_is_pinned_sent_to_the_peer_and_reported(times: list[float]) -> None:
    node = Node()
    memory = node.open()
    assert node.copies.held.keys() == {1}
    node.steps.keep(KeepStep(0, 5, None))
    assert memory.words[layout.KEEP] == 5
    take(memory, 0, 5, 0)
    node.steps.on_time()
    assert node.copies.pushed == [(Held(0, 2, 0, 0, 5), 0, "10.0.0.2", 7002)]
    times[0] += 2.0
    node.outcome(CopyPushed(1))
    assert node.fed == [StepCopied(0, FIVE, 4096)]
    node.steps.step_kept(StepKept(0, FIVE, 8192, 2.5))
    assert node.events == [
        schema.SnapshotPeer("b", None),
        schema.SnapshotCopied(5, 0, "b", 4096, 2.0),
        schema.SnapshotKept(5, 0, 8192, 2.5),
    ]
    assert (memory.words[layout.KEEP], memory.words[layout.KEPT]) == (0, 5)
    assert node.steps.holdings(Holdings()) == Holdings(kept=FIVE, complete=FIVE)
    node.steps.keep(KeepStep(0, 9, FIVE))
    take(memory, 0, 9, 1)
    times[0] += 1.0
    node.steps.on_time()
    assert node.copies.pushed[1:] == [(Held(0, 2, 0, 0, 9), 5, "10.0.0.2", 7002)]


def test_a_step_that_is_named_before_the_rank_has_memory_is_pinned_there() -> None:
    """The first rank of the job to begin answers for all; others may still import."""
    node = Node()
    node.steps.keep(KeepStep(0, 5, SnapshotId(0, 0, 3)))
    memory = node.open()
    assert (memory.words[layout.KEEP], memory.words[layout.KEPT]) == (5, 3)


def test_a_copy_that_is_not_there_is_reported(times: list[float]) -> None:
    node = Node()
    memory = node.open()
    node.steps.keep(KeepStep(0, 5, None))
    take(memory, 0, 5, 0)
    node.steps.on_time()
    node.outcome(CopyNotPushed(1, "timed out"))
    assert node.fed == [StepMissed(0, 5, -1, "rank 0 to b: timed out")]
    assert node.events[1:] == [schema.SnapshotNotCopied(5, "rank 0 to b: timed out")]


def test_a_process_that_takes_no_orders_is_reported() -> None:
    node = Node()
    memory = node.open()
    node.copies.is_there = False
    node.steps.keep(KeepStep(0, 5, None))
    take(memory, 0, 5, 0)
    node.steps.on_time()
    assert node.fed == [StepMissed(0, 5, -1, "rank 0 to b: no process takes it")]


def test_a_node_says_how_far_its_rank_is(times: list[float]) -> None:
    node = Node()
    node.steps.keep(KeepStep(0, 0, None))
    node.steps.on_time()
    assert node.fed == []
    node.open().words[layout.LAST_STEP] = 7
    times[0] += 2.0
    node.steps.on_time()
    assert node.fed == [StepMissed(0, 0, 7)]
    assert node.events == [schema.SnapshotPeer("b", None)], "no copy has failed"


def test_a_node_says_that_its_rank_takes_no_snapshots_until_it_takes_one_again(
    times: list[float],
) -> None:
    """After a restart in place."""
    node = Node()
    memory = node.open()
    memory.words[layout.LAST_STEP] = 7
    memory.give_up(0, 0)
    node.steps.keep(KeepStep(0, 0, None))
    node.steps.on_time()
    memory.reserve(0, 4096)
    memory.commit(0, Held(0, 2, 0, 1, 8), 4096)
    node.steps.keep(KeepStep(0, 0, None))
    node.steps.on_time()
    why = "rank 0 takes none any more"
    assert node.fed == [StepMissed(0, 0, 7, why, gave_up=True), StepMissed(0, 0, 7)]


def test_a_node_without_the_memory_says_that_it_keeps_none() -> None:
    node = Node()
    node.open(slot_bytes=20 * MIB)  # three slots have room, and two more are needed
    node.steps.keep(KeepStep(0, 0, None))
    why = "there is too little memory (--ft-snapshot-memory)"
    assert node.fed == [StepMissed(0, 0, -1, why, for_good=True)]
    assert node.events[1:] == [schema.SnapshotNotCopied(0, why, for_good=True)]


def test_a_process_that_has_ended_for_good_ends_it() -> None:
    node = Node()
    node.outcome(CopiesEnded("it cannot be started"))
    node.steps.keep(KeepStep(0, 0, None))
    why = "the process for copies has ended: it cannot be started"
    assert node.fed == [StepMissed(0, 0, -1, why, for_good=True)]


# ---------------------------------------------------------------- the loss of a node
FROM_FIVE = Beginning(
    Restore(FIVE, 2, sources=(CopySource(1, "a"),)), (Ancestor(0, 0, 0, 5),), kept=FIVE
)


def replaces() -> Node:
    """The spare that takes the place of node ``b``, whose rank asks for its memory."""
    node = Node(FROM_FIVE, group_rank=1)
    node.ask(slot_bytes=0)
    return node


def test_the_peer_of_a_lost_node_sends_what_it_has_to_the_spare(times: list[float]) -> None:
    """Until that has it."""
    node = Node()
    take(node.open(), 0, 5, 0)
    take(node.copies.held[1], 1, 5, 0)
    assert node.arenas.holdings() == Holdings((Held(0, 2, 0, 0, 5), Held(1, 2, 0, 0, 5)), 5)
    node.begin(1, FROM_FIVE)
    assert node.copies.pushed == [(Held(1, 2, 0, 0, 5), 5, "10.0.0.2", 7002)]
    node.outcome(CopyNotPushed(1, "connection refused"))
    times[0] += 1.0
    node.steps.on_time()
    assert len(node.copies.pushed) == 2


def test_a_rank_whose_snapshot_is_on_its_way_waits_for_it(times: list[float]) -> None:
    node = replaces()
    assert node.answers == []
    take(node.copies.held[1], 1, 5, 0)
    node.outcome(CopyReceived(Held(1, 2, 0, 0, 5)))
    assert node.answers == []  # the process may write there still
    for then in node.copies.dropped:
        then()
    [(answer, _)] = node.answers
    assert isinstance(answer, Arena)
    assert (answer.restore, answer.slot) == (FIVE, 0)


def test_a_rank_that_waits_long_asks_again(times: list[float]) -> None:
    node = replaces()
    times[0] += 10.0
    node.steps.on_time()
    assert node.answers == [(SnapshotAwaited(), ())]


def test_a_copy_of_which_there_is_no_sign_is_given_up(times: list[float]) -> None:
    """The rank finds that it is not there, and says so: all begin from another one."""
    node = replaces()
    times[0] += AWAITED_S - 1
    node.outcome(CopyUnderWay(1))
    times[0] += AWAITED_S - 1
    node.steps.on_time()
    assert node.copies.dropped == []
    times[0] += 1.0
    node.steps.on_time()
    [then] = node.copies.dropped
    node.answers.clear()
    node.ask(slot_bytes=0)
    then()
    assert all(isinstance(answer, Arena) for answer, _ in node.answers)


def test_a_copy_that_was_refused_three_times_is_given_up() -> None:
    node = replaces()
    for _ in range(3):
        assert node.copies.dropped == []
        node.outcome(CopyRefused(Held(1, 2, 0, 0, 5), "its sum is wrong"))
    assert len(node.copies.dropped) == 1


def test_a_copy_that_comes_when_the_ranks_are_gone_is_reported_to_the_leader() -> None:
    """Ranks of this node have succeeded; those of others run."""
    node = Node()
    node.open()
    node.outcome(CopyReceived(Held(1, 2, 0, 0, 5)))
    assert node.changes == 0
    node.steps.end_ranks()
    node.outcome(CopyReceived(Held(1, 2, 0, 0, 6)))
    assert node.changes == 1


# ---------------------------------------------------------------- damaged copies
def held_of(memory: ArenaMemory) -> list[SnapshotId]:
    return [slot.held.id for slot in memory.all_held()]


def test_a_damaged_copy_counts_until_the_next_cycle_voids_it_before_a_good_one_comes() -> None:
    """Until then it says that no restart in place has given the step up."""
    node = Node(group_rank=1)
    memory = node.open()
    take(memory, 1, 5, 0)
    take(node.copies.held[0], 0, 5, 0)
    node.begin(1, FROM_FIVE.but(restore=Restore(FIVE, 2)))
    damaged = SnapshotUnusable(1, FIVE, "its bytes have changed", is_damaged=True)
    assert node.arenas.answer(damaged) == (Ok(), ())
    both = (Held(0, 2, 0, 0, 5), Held(1, 2, 0, 0, 5))
    refused = Refused(FIVE, 1, "its bytes have changed", is_damaged=True)
    assert node.arenas.holdings() == Holdings(both, refused=(refused,))
    node.begin(2, FROM_FIVE)
    assert held_of(memory) == []
    assert node.copies.held.keys() == {0, 1}, "its own comes from the other node"
    assert node.arenas.holdings() == Holdings(both[:1]), "which is as good as here"


def test_a_node_that_has_sent_a_damaged_copy_is_named_and_voids_it() -> None:
    spare = replaces()
    spare.arenas.answer(SnapshotUnusable(1, FIVE, "slot 0 holds none", is_damaged=True))
    held = spare.arenas.holdings()
    assert held is not None
    assert [it.source for it in held.refused] == ["a"]
    node = Node()
    node.open()
    take(node.copies.held[1], 1, 5, 0)
    node.begin(1, FROM_FIVE.but(restore=None, damaged=(DamagedCopy(FIVE, 1, "a"),)))
    assert held_of(node.copies.held[1]) == []
