"""The memory of a node's snapshots: granted, voided, read, given back."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.arena.arena import ArenaError, ArenaMemory, Pending
from holdfast.arena.pure import layout
from holdfast.arena.pure.lineage import ANY, last_life
from holdfast.arena.pure.messages import (
    Arena,
    OpenArena,
    OtherWorld,
    SnapshotCost,
    SnapshotUnusable,
)
from holdfast.arena.pure.snapshots import (
    OF_A_FILE,
    Ancestor,
    Beginning,
    CopySource,
    Held,
    Refused,
    Restore,
    SnapshotId,
)
from holdfast.base import memory
from holdfast.events.pure import schema
from holdfast.job.pure.member_messages import SetCadence, SnapshotsMeasured
from holdfast.job.pure.membership import CyclePlace, Round
from holdfast.node import arenas as module
from holdfast.node.arenas import Arenas
from holdfast.node.part import RankKilled
from holdfast.watch.pure.rank_messages import Error, Ok

MIB = 1 << 20
FIVE = SnapshotId(0, 0, 5)


def formed(
    cycle: int, beginning: Beginning | None = None, *, first: int = 0
) -> tuple[Round, CyclePlace]:
    place = CyclePlace("n0", 0, 2, first, "a")
    return Round(cycle, (place,), world_size=2, beginning=beginning), place


def from_five(times: int = 1) -> Beginning:
    return Beginning(Restore(FIVE, 2, 1, times), (Ancestor(0, 0, 0, 5),), every=4)


class Node:
    """The launcher of ranks 0 and 1."""

    def __init__(self, limit: int | None = None, *, keeps: bool = False) -> None:
        self.measured: list[SnapshotsMeasured] = []
        self.events: list[schema.Body] = []
        self.folder = tempfile.mkdtemp()
        self.arenas = Arenas(
            *(2, limit, self.measured.append, self.events.append, self.folder), keeps=keeps
        )
        self.arenas.begin(*formed(0))
        self.ranks: dict[int, ArenaMemory] = {}

    def open(self, rank: int, slot_bytes: int = MIB, n_slots: int = 2) -> Any:
        answer, descriptors = self.arenas.answer(OpenArena(rank, slot_bytes, n_slots))
        if isinstance(answer, Arena):
            [fd] = descriptors
            self.ranks[rank] = ArenaMemory(os.dup(fd))
        return answer

    def take(self, rank: int, step: int, slot: int, *, cycle: int = 0, world: int = 2) -> None:
        arena = self.ranks[rank]
        arena.reserve(slot, MIB)
        arena.begin(slot)
        arena.commit(slot, Held(rank, world, cycle, 0, step), 100)
        arena.words[layout.LAST_STEP] = step

    def held(self) -> list[tuple[int, int]]:
        holdings = self.arenas.holdings()
        assert holdings is not None
        return [(it.rank, it.step) for it in holdings.held]


@pytest.fixture
def node() -> Iterator[Node]:
    one = Node()
    yield one
    one.arenas.close()


def trained(node: Node) -> None:
    """Both have steps 4 and 5, rank 0 is in the copy of 6 in the place of 4."""
    for rank in (0, 1):
        node.open(rank)
        node.take(rank, 4, 0)
        node.take(rank, 5, 1)
    node.ranks[0].begin(0)
    node.ranks[0].words[layout.LAST_STEP] = 6


def test_an_iteration_that_began_anew_does_not_hide_the_steps_of_the_one_before(
    node: Node,
) -> None:
    """Its ranks count from their checkpoint again; the next cycle goes back to a later step."""
    trained(node)
    for rank in (0, 1):
        node.ranks[rank].words[layout.LAST_STEP] = 1
    holdings = node.arenas.holdings()
    assert holdings is not None
    assert holdings.last_step == 5


def test_a_rank_gets_memory_that_it_cannot_shrink_and_no_child_inherits(node: Node) -> None:
    answer, [fd] = node.arenas.answer(OpenArena(1, MIB, 3))
    assert answer == Arena(3, 0)
    assert not os.get_inheritable(fd)
    with pytest.raises(OSError, match=os.strerror(errno.EPERM)):
        os.ftruncate(fd, 0)
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert os.fstat(fd).st_blocks * 512 < MIB, "it takes no memory yet"
    again, [same] = node.arenas.answer(OpenArena(1, MIB, 3))
    assert (again, same) == (answer, fd)


def test_a_rank_that_asks_what_it_is_to_restore_is_told_and_claims_no_memory(node: Node) -> None:
    """A trainer must know it before its model is complete; no event, no line of the log."""
    assert node.open(0, slot_bytes=0) == Arena(0, 0)
    assert node.events == []
    trained(node)
    node.arenas.begin(*formed(1, from_five()))
    assert node.open(1, slot_bytes=0) == Arena(0, 1, FIVE, 1, 1)


def test_what_is_held_when_the_ranks_are_gone_is_what_was_committed(node: Node) -> None:
    assert node.arenas.holdings() is None, "no rank has asked"
    trained(node)
    holdings = node.arenas.holdings()
    assert holdings is not None
    assert node.held() == [(0, 5), (1, 4), (1, 5)]
    assert holdings.last_step == 6
    assert not holdings.refused


def test_the_next_ranks_find_the_chosen_state_and_what_is_not_of_its_history_is_void(
    node: Node,
) -> None:
    trained(node)
    node.take(1, 6, 0)
    node.arenas.begin(*formed(1, from_five()))
    assert node.held() == [(0, 5), (1, 5)]
    assert node.open(0) == Arena(2, 1, FIVE, 1, 1)
    words = node.ranks[0].words
    assert (words[layout.EVERY], words[layout.LAST_STEP]) == (4, -1)


def test_a_life_that_begins_anew_voids_all(node: Node) -> None:
    trained(node)
    node.arenas.begin(*formed(1))
    assert node.held() == []


def test_a_rank_gets_the_memory_that_has_its_state_whatever_its_local_rank() -> None:
    """The node has other ranks now."""
    node = Node()
    trained(node)
    for rank in (0, 1):  # as if they had been ranks 1 and 2
        arena = node.ranks[rank]
        arena.commit(1, Held(rank + 1, 3, 0, 0, 5), 100)
    beginning = Beginning(Restore(FIVE, 3), (last_life(0, 0),))
    node.arenas.begin(*formed(1, beginning, first=1))
    fds = {rank: node.arenas.answer(OpenArena(rank, MIB, 2))[1] for rank in (1, 2)}
    node.arenas.begin(*formed(2, beginning, first=2))
    assert node.arenas.answer(OpenArena(2, MIB, 2))[1] == fds[2]
    node.arenas.close()


def test_a_state_that_is_gone_is_not_replaced_by_none(node: Node) -> None:
    """The rank finds that, and fails: no rank may begin from something else than the others."""
    trained(node)
    node.arenas.begin(*formed(1, from_five()))
    for slot in (0, 1):
        node.ranks[0].void(slot)
    assert node.open(0) == Arena(2, 1, FIVE, 0, 1)


def test_without_memory_snapshots_are_off_with_one_line_that_has_the_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    node = Node(limit=3 * MIB)
    answers = [node.open(rank) for rank in (0, 1)]
    assert all(isinstance(answer, Error) for answer in answers)
    text = (
        "snapshots are off: 2 ranks need 4 MiB for two snapshots each of 1 MiB, and may have 3 MiB "
        "(--ft-snapshot-memory). Give more with --ft-snapshot-memory"
    )
    assert [record.getMessage() for record in caplog.records] == [text]
    assert answers[0].text == text
    assert [type(it) for it in node.events] == [schema.SnapshotsOff]


def test_with_little_memory_there_are_fewer_slots() -> None:
    node = Node(limit=5 * MIB)
    assert node.open(0, n_slots=3).n_slots == 2
    assert node.open(1, n_slots=3).n_slots == 2
    node.arenas.close()


# ---------------------------------------------------------------- kept steps
def test_steps_that_are_kept_have_two_more_slots_and_leave_memory_for_the_peers() -> None:
    """Two of a rank's own, two more for kept steps, two for those of the peer node."""
    node = Node(limit=12 * MIB, keeps=True)
    assert node.open(0) == Arena(4, 0, kept=2)
    node.arenas.close()


def test_no_step_is_kept_where_memory_is_short(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(limit=11 * MIB, keeps=True)
    assert [node.open(rank, n_slots=3) for rank in (0, 1)] == [Arena(3, 0)] * 2
    text = (
        "no step is kept at another node: that needs 4 MiB more for each of 2 ranks "
        "(--ft-snapshot-memory)"
    )
    assert caplog.messages == [text]
    node.arenas.keep(7)
    assert node.arenas.pinned(7) == {0: None, 1: None}
    node.arenas.close()


def test_after_memory_has_run_out_no_step_is_kept() -> None:
    node = Node(limit=99 * MIB, keeps=True)
    node.open(0)
    node.arenas._oom_cycles.add(0)
    node.arenas.begin(*formed(1))
    assert node.open(0).kept == 0
    node.arenas.close()


def test_a_step_is_pinned_before_ranks_take_it_and_until_another_one_is_kept() -> None:
    node = Node(keeps=True)
    for rank in (0, 1):
        node.open(rank)
    node.arenas.keep(5)
    assert node.arenas.pinned(5) == {0: Pending(), 1: Pending()}
    for rank in (0, 1):
        node.take(rank, 5, 1)
    assert {rank: of.slot.slot for rank, of in node.arenas.pinned(5).items()} == {0: 1, 1: 1}
    node.arenas.keep_as_kept(5)
    node.arenas.keep(9)
    assert all(arena.pins() == {5, 9} for arena in node.ranks.values())
    for arena in node.ranks.values():
        arena.words[layout.LAST_STEP] = 10
    assert node.arenas.pinned(9) == {0: None, 1: None}
    node.arenas.close()


def test_the_leader_learns_that_a_rank_has_given_its_snapshots_up(node: Node) -> None:
    """Whichever of them. That stays, for a leader that does not know of the next cycle."""
    trained(node)

    def void_until() -> SnapshotId | None:
        holdings = node.arenas.holdings()
        assert holdings is not None
        return holdings.void_until

    assert (void_until(), node.arenas.gave_up()) == (None, set())
    node.ranks[1].void_others(None)
    node.ranks[1].give_up(0, 2)
    assert (void_until(), node.arenas.gave_up()) == (SnapshotId(0, 2, ANY), {1})
    node.arenas.begin(*formed(1))
    assert (void_until(), node.arenas.gave_up()) == (SnapshotId(0, 2, ANY), set())
    node.ranks[1].give_up(1, 0)
    node.arenas.begin(*formed(1))
    assert void_until() is None, "a cycle of that number under a leader that died is another one"
    node.ranks[1].give_up(3, 0)
    assert void_until() is None, "no rank has come so far"


def test_a_new_cycle_pins_the_kept_step_alone_while_it_is_there() -> None:
    node = Node(keeps=True)
    for rank in (0, 1):
        node.open(rank)
        node.take(rank, 4, 0)
        node.take(rank, 5, 1)
    node.arenas.keep_as_kept(4)
    node.arenas.keep(7)
    node.ranks[0].claim(0, 6)
    node.arenas.begin(*formed(1, from_five()))
    assert [arena.pins() for arena in node.ranks.values()] == [{4}, {4}]
    assert node.ranks[0].words[layout.WRITES] == 0
    node.arenas.begin(*formed(2))
    assert [arena.pins() for arena in node.ranks.values()] == [set(), set()]
    node.arenas.close()


def replicate(node: Node, rank: int, step: int, *, cycle: int = 0) -> ArenaMemory:
    """A copy of a snapshot of a rank of another node has come."""
    memory = node.arenas.replica(rank)
    memory.reserve(0, MIB)
    memory.commit(0, Held(rank, 4, cycle, 0, step), 100)
    return memory


def four(cycle: int, beginning: Beginning | None, *, first: int = 0) -> tuple[Round, CyclePlace]:
    place = CyclePlace("n0", 0, 2, first, "a")
    return Round(cycle, (place,), world_size=4, beginning=beginning), place


def test_a_copy_for_another_node_is_listed_if_the_own_ranks_hold_that_step() -> None:
    """One that they do not hold was given up by a restart in place."""
    node = Node(keeps=True)
    node.arenas.begin(*four(0, None))
    for rank in (0, 1):
        node.open(rank)
        node.take(rank, 5, 0, world=4)
    replicate(node, 2, 5)
    replicate(node, 3, 4)
    assert node.held() == [(0, 5), (1, 5), (2, 5)]
    node.arenas.close()


def test_what_a_node_has_listed_stays_until_its_next_cycle() -> None:
    node = Node(keeps=True)
    node.arenas.begin(*four(0, None))
    for rank in (0, 1):
        node.open(rank)
        node.take(rank, 5, 0, world=4)
    memories = [replicate(node, 2, 5), *node.ranks.values()]
    assert not any(it.is_listed for it in memories)
    assert node.held() == [(0, 5), (1, 5), (2, 5)]
    assert all(it.is_listed for it in memories)
    node.arenas.begin(*four(1, Beginning(Restore(FIVE, 4, 1), (Ancestor(0, 0, 0, 5),))))
    assert not any(it.is_listed for it in memories)
    node.arenas.close()


def test_a_list_leaves_out_what_a_copy_is_about_to_overwrite() -> None:
    """In memory of other nodes' ranks, and of a rank that waits for its snapshot."""
    node = Node(keeps=True)
    node.arenas.begin(*four(0, None))
    for rank in (0, 1):
        node.open(rank)
        node.take(rank, 5, 0, world=4)
        node.ranks[rank].claim(0, 7)  # it died there
    replicate(node, 2, 5).claim(0, 7)
    assert node.held() == [(0, 5), (1, 5)]
    source = CopySource(0, "n1")
    beginning = Beginning(Restore(FIVE, 4, 1, sources=(source,)), (Ancestor(0, 0, 0, 5),))
    node.arenas.begin(*four(1, beginning))
    node.ranks[0].claim(0, 7)
    assert (0, 5) not in node.held()
    node.arenas.close()


def test_a_rank_that_moves_here_gets_the_copy_of_its_state_as_its_own() -> None:
    node = Node(keeps=True)
    node.arenas.begin(*four(0, None))
    for rank in (0, 1):
        node.open(rank)
        node.take(rank, 5, 0, world=4)
    copies = {rank: replicate(node, rank, 5) for rank in (2, 3)}
    beginning = Beginning(Restore(FIVE, 4, 1), (Ancestor(0, 0, 0, 5),))
    node.arenas.begin(*four(1, beginning, first=2))
    for rank in (2, 3):
        answer = node.open(rank)
        assert (answer.restore, answer.slot) == (FIVE, 0)
        assert os.fstat(node.ranks[rank].fd).st_ino == os.fstat(copies[rank].fd).st_ino
    node.arenas.close()


def test_a_copy_that_comes_for_a_rank_of_this_node_is_the_one_that_it_restores() -> None:
    """A node that took no part in the cycle before; the lineage has that cycle's term."""
    node, five = Node(keeps=True), SnapshotId(1, 0, 5)
    beginning = Beginning(Restore(five, 4, 1), (Ancestor(3, 1, 0, 5),))
    node.arenas.begin(*four(2, beginning))
    memory = node.arenas.memory_of(0)
    memory.reserve(1, MIB)
    memory.commit(1, Held(0, 4, 1, 0, 5), 100)
    answer = node.open(0)
    assert (answer.restore, answer.slot) == (five, 1)
    holdings = node.arenas.holdings()
    assert holdings is not None
    assert holdings.held == (Held(0, 4, 1, 0, 5, 3),)
    node.arenas.close()


def test_copies_of_a_history_that_is_left_are_void_and_dropped_ones_are_gone() -> None:
    node = Node(keeps=True)
    node.arenas.begin(*four(0, None))
    node.open(0)
    copies = [replicate(node, rank, 5) for rank in (2, 3)]
    node.arenas.begin(*four(1, None))
    assert not any(any(it.all_held()) for it in copies)
    node.arenas.drop_replicas(but=[3])
    assert node.arenas.replica(3) is copies[1]
    assert node.arenas.replica(2) is not copies[0]
    assert node.arenas.copy_bytes_max() > 0
    node.arenas.close()


def test_a_limit_of_0_switches_snapshots_off() -> None:
    node = Node(limit=0)
    assert node.open(0) == Error("snapshots are off: --ft-snapshot-memory is 0")
    assert node.arenas.holdings() is None


def test_a_rank_that_must_begin_from_a_snapshot_gets_it_even_where_no_other_may_be_taken(
    monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    trained(node)
    node.arenas.begin(*formed(1, from_five()))
    monkeypatch.setattr(memory, "available_kib", lambda: 0)
    monkeypatch.setattr(module._Arena, "bytes", 0)
    assert node.open(0) == Arena(0, 1, FIVE, 1, 1)


def test_where_the_system_gives_no_memory_file_snapshots_are_off(
    monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    def none(_name: str) -> int:
        raise ArenaError(errno.EMFILE, "no memory file for snapshots: Too many open files")

    monkeypatch.setattr(module, "create", none)
    assert "Too many open files" in node.open(0).text


def kill(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "oom_kills", lambda: {memory.CGROUP: 2})
    killed: Any = SimpleNamespace(oom_before={memory.CGROUP: 1})
    node.arenas.on_event(RankKilled(killed))


def test_when_memory_has_run_out_all_but_the_chosen_state_is_given_back(
    monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    """It would stay charged to the control group, and the next rank would be killed as well."""
    trained(node)
    before = sum(arena.bytes for arena in node.arenas._arenas)
    kill(node, monkeypatch)
    assert (0, 5) in node.held()
    node.arenas.begin(*formed(1, from_five()))
    after = sum(arena.bytes for arena in node.arenas._arenas)
    assert before - after == 2 * MIB
    assert node.held() == [(0, 5), (1, 5)]


def test_when_memory_runs_out_again_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    trained(node)
    kill(node, monkeypatch)
    node.arenas.begin(*formed(1, from_five()))
    node.open(0)
    kill(node, monkeypatch)
    assert node.held() == []
    node.arenas.begin(*formed(2))
    assert sum(arena.bytes for arena in node.arenas._arenas) < MIB
    assert "memory has run out before" in node.open(0).text


def test_what_a_cycle_has_taken_is_one_event_at_its_end_and_one_every_ten_seconds(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest that both have is step 5; rank 1 has paid most. No event for each snapshot."""
    trained(node)
    for rank, (at, spent) in enumerate(((4_000_000_000, 1), (3_000_000_000, 2_000_000))):
        words = node.ranks[rank].words
        words[layout.TAKEN], words[layout.SPENT_NS], words[layout.TAKEN_AT] = 2, spent, at
    node.events.clear()
    deadline = node.arenas.next_deadline()
    assert deadline is not None
    monkeypatch.setattr(module.clock, "monotonic", lambda: deadline)
    node.arenas.on_time()
    node.arenas.on_time()
    said = schema.SnapshotsTaken(2, 0, 0.002, None, step=5, last_step=6, every=0, at=3.0)
    assert node.events == [said]
    assert node.arenas.next_deadline() == deadline + 10.0
    node.arenas.holdings()
    assert node.events == [said, said]
    assert node.arenas.next_deadline() is None
    node.arenas.begin(*formed(1, from_five()))
    assert node.ranks[1].words[layout.SPENT_NS] == 0, "each cycle counts its own"


def test_the_leader_learns_what_snapshots_cost_when_all_ranks_have_said_it(node: Node) -> None:
    trained(node)
    assert node.arenas.answer(SnapshotCost(0, 20, 3)) == (Ok(), ())
    assert node.arenas.answer(SnapshotCost(0, 21, 3)) == (Ok(), ())
    assert node.measured == []
    node.arenas.answer(SnapshotCost(1, 22, 5))
    node.arenas.answer(SnapshotCost(1, 22, 5))
    assert node.measured == [SnapshotsMeasured(0, 22, 5)]
    node.arenas.set_cadence(SetCadence(5, 30))
    words = node.ranks[1].words
    assert (words[layout.EVERY], words[layout.EVERY_FROM]) == (5, 30)
    holdings = node.arenas.holdings()
    assert holdings is not None
    assert holdings.every == 5


def test_only_the_snapshot_that_the_ranks_begin_from_can_be_refused(node: Node) -> None:
    trained(node)
    refusal = SnapshotUnusable(1, FIVE, "its sum is wrong")
    assert isinstance(node.arenas.answer(refusal)[0], Error)
    node.arenas.begin(*formed(1, from_five()))
    assert node.arenas.answer(refusal) == (Ok(), ())
    node.arenas.answer(refusal)
    holdings = node.arenas.holdings()
    assert holdings is not None
    assert holdings.refused == (Refused(FIVE, 1, "its sum is wrong"),)
    refused = [it for it in node.events if isinstance(it, schema.SnapshotRefused)]
    assert refused == [schema.SnapshotRefused(1, 5, 0, "its sum is wrong")]


def test_words_that_make_no_sense_are_no_snapshot(node: Node) -> None:
    """Whatever a rank has written over them."""
    trained(node)
    words = node.ranks[1].words
    at = layout.slot(1)
    for offset, value in [
        (layout.COMMIT, 7), (layout.STEP, -1), (layout.CYCLE, 99), (layout.RANK, 2),
        (layout.CAPACITY, 1 << 60), (layout.BYTES, 0), (layout.WORLD_SIZE, -5),
    ]:  # fmt: skip
        kept, words[at + offset] = words[at + offset], value
        assert (1, 5) not in node.held(), offset
        words[at + offset] = kept
    assert (1, 5) in node.held()
    words[layout.LAST_STEP] = -(1 << 63)
    assert node.arenas.holdings() is not None


def test_a_rank_of_another_node_is_refused(node: Node) -> None:
    assert node.open(2) == Error("rank 2 does not run under this launcher now")


@pytest.mark.parametrize("limit", [None, 0])
def test_all_ranks_may_read_a_snapshot_on_disk_that_more_ranks_took(limit: int | None) -> None:
    """Also where there is no memory for new ones: all ranks read it, or none."""
    node = Node(limit)
    try:
        chosen = SnapshotId(OF_A_FILE, 0, 40)
        node.arenas.begin(*formed(1, Beginning(Restore(chosen, 3, file="step-40-of-3"))))
        for rank in (0, 1):
            answer = node.open(rank)
            assert (answer.restore, answer.file) == (None, None)
            assert answer.other_world == OtherWorld(chosen, "step-40-of-3")
            assert (answer.n_slots > 0) == (limit is None)
        unusable = SnapshotUnusable(1, chosen, "its bytes have changed")
        assert node.arenas.answer(unusable) == (Ok(), ())
        assert node.arenas.refused() == [chosen]
    finally:
        node.arenas.close()
