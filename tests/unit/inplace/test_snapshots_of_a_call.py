"""Which snapshot the iterations of a call begin from, when the launchers had chosen one before."""

from __future__ import annotations

import os

import pytest

from holdfast.arena.arena import ArenaMemory, create
from holdfast.arena.pure.lineage import ANY
from holdfast.arena.pure.snapshots import OF_A_FILE, Held, Holdings, Refused, Restore, SnapshotId
from holdfast.inplace.kept_arenas import KeptArenas
from holdfast.inplace.pure import messages as msg
from holdfast.inplace.pure.coordinator import Coordinator, Effect, NodeMessage
from holdfast.inplace.pure.guard import Effect as GuardEffect
from holdfast.inplace.pure.guard import Guard, RankMessage
from holdfast.inplace.pure.guard_snapshots import (
    FoundSnapshot,
    HoldArena,
    ReadSnapshots,
    SnapshotsRead,
    VoidSnapshots,
)
from holdfast.inplace.pure.job_calls import Cause, FaultKind, RestartedInPlace

RANKS = range(2)
EIGHT, NINE = SnapshotId(0, 0, 8), SnapshotId(0, 0, 9)
FROM_NINE = Restore(NINE, 2)
CYCLES = tuple(Held(rank, 2, 0, 0, step) for rank in RANKS for step in (8, 9))
"""What the memory of a second cycle still has of the first."""


class CallFromSnapshot:
    """Two ranks on one node; the launchers have chosen ``began`` for the cycle."""

    def __init__(self, began: Restore | None = FROM_NINE, progress: int = 10) -> None:
        self.machine = Coordinator(msg.CoordinatorTimeouts())
        self.began, self.progress = began, progress
        self.held = CYCLES
        self.void_until: SnapshotId | None = None
        self.now = 0.0
        for rank in RANKS:
            self.say(msg.JoinCall(rank, 2))

    def say(self, message: msg.Up) -> list[Effect]:
        return self.machine.handle(NodeMessage("a", message), self.now)

    def commit(self, last_step: int, *refused: Refused) -> msg.Commit:
        """An iteration fails after this step, and the next one begins."""
        epoch = self.machine.epoch
        self.now += 1.0
        self.say(msg.FaultReported(epoch, 0, FaultKind.EXCEPTION))
        own = [msg.Numbering(epoch, rank, 2) for rank in RANKS]
        standings = tuple(msg.Standing(rank, own[rank], own[rank]) for rank in RANKS)
        holdings = Holdings(self.held, last_step, refused, void_until=self.void_until)
        (commit,) = self.say(msg.RanksReady(epoch, standings, holdings, self.began, self.progress))
        assert isinstance(commit, msg.Commit)
        return commit

    def restart(self, last_step: int, *refused: Refused) -> msg.BeginFrom | None:
        """The same, with what it begins from; None: as the cycle did."""
        commit = self.commit(last_step, *refused)
        if not commit.snapshots:
            return None
        places = tuple(msg.Place(rank, rank, 2) for rank in RANKS)
        (begins,) = self.say(msg.RanksPlaced(commit.epoch, places))
        assert isinstance(begins, msg.BeginFrom)
        chosen = None if begins.restore is None else begins.restore.snapshot
        self.held = tuple(it for it in self.held if chosen is not None and it.id <= chosen)
        return begins


def test_an_iteration_that_fails_before_the_choice_does_not_bring_a_snapshot_back() -> None:
    """It has not begun from the one that was given up."""
    call = CallFromSnapshot()
    assert call.restart(9) is None
    assert call.commit(9).snapshots
    begins = call.restart(-1)
    assert begins is not None
    assert begins.restore is not None
    assert begins.restore.snapshot == EIGHT


def test_a_snapshot_of_the_cycle_that_leads_nowhere_twice_is_given_up_for_an_older_one() -> None:
    call = CallFromSnapshot()
    assert call.restart(last_step=9) is None
    begins = call.restart(last_step=12)
    assert begins is not None
    assert begins.restore == Restore(EIGHT, 2, lost_steps=4)
    assert begins.why == "two restarts from it made fewer than 10 new steps each"


def test_it_never_comes_back() -> None:
    """The older one is counted likewise, and then all begin from the checkpoint."""
    call = CallFromSnapshot()
    begun = [call.restart(last_step) for last_step in (9, 9, 8, 8, 0, 0)]
    assert [None if it is None or it.restore is None else it.restore.snapshot for it in begun] == [
        *(None, EIGHT),
        *(EIGHT, None),
        *(None, None),
    ]
    assert [it is None for it in begun] == [True, *[False] * 5], "the cycle's choice holds once"


def test_one_on_disk_is_given_up_for_the_checkpoint() -> None:
    call = CallFromSnapshot(Restore(SnapshotId(OF_A_FILE, 0, 50), 2, file="a"))
    call.held = ()
    assert call.restart(last_step=50) is None
    begins = call.restart(last_step=50)
    assert begins is not None
    assert begins.restore is None


def test_ranks_that_begin_from_none_leave_the_newest_one_that_was_not_given_up() -> None:
    """The launchers may still go back to it; what was refused or spent is void."""
    call = CallFromSnapshot()
    call.held = tuple(it for it in CYCLES if it.step == 9 or it.rank == 0)
    begins = call.restart(9, Refused(NINE, 1, "its sum is wrong"))
    assert begins is not None
    assert (begins.restore, begins.fallback) == (None, EIGHT)


@pytest.mark.parametrize("began", [FROM_NINE, Restore(SnapshotId(OF_A_FILE, 0, 50), 2, file="a")])
@pytest.mark.parametrize(
    "held",
    [(), CYCLES[2:], (Held(1, 2, 1, 0, 11),), tuple(Held(rank, 2, 1, 0, 9) for rank in RANKS)],
)
def test_when_a_rank_has_given_its_snapshots_up_all_go_at_once(
    began: Restore, held: tuple[Held, ...]
) -> None:
    """Those of the other ranks, and the one that the launchers have chosen for the cycle.

    Its own are there still, if it is killed in that moment.
    """
    call = CallFromSnapshot(began)
    call.held, call.void_until = held, SnapshotId(1, 0, ANY)
    begins = call.restart(last_step=52)
    assert begins is not None
    assert (begins.restore, begins.fallback) == (None, None)
    call.held = tuple(Held(rank, 2, 1, 1, 3) for rank in RANKS)
    begins = call.restart(last_step=3)
    assert begins is not None
    assert begins.restore == Restore(SnapshotId(1, 1, 3), 2, lost_steps=0), "and they take others"


def test_a_call_does_not_go_back_to_what_an_iteration_has_left_behind() -> None:
    """Not even when all ranks have it again."""
    call = CallFromSnapshot(None)
    call.held = CYCLES[:2]
    begins = call.restart(9)
    assert begins is not None
    assert (begins.restore, begins.fallback) == (None, NINE)
    call.held = CYCLES
    begins = call.restart(2)
    assert begins is not None
    assert (begins.restore, begins.fallback) == (None, NINE)
    call.held = (*CYCLES, *(Held(rank, 2, 0, 2, 11) for rank in RANKS))
    begins = call.restart(11)
    assert begins is not None
    assert begins.restore == Restore(SnapshotId(0, 2, 11), 2, lost_steps=0)


@pytest.mark.parametrize("restore", [None, Restore(EIGHT, 2)])
def test_a_guard_voids_what_is_newer_than_the_snapshot_or_the_fallback(
    restore: Restore | None,
) -> None:
    guard = Guard(msg.CallTimeouts())
    guard.handle(msg.JoinCall(0, 1), 0.0)
    guard.handle(msg.Commit(0, -1, (), ()), 0.0)
    guard.handle(RankMessage(0, msg.OpenedArena(0, 7)), 0.0)
    begins = msg.BeginFrom(0, restore, fallback=None if restore else EIGHT)
    assert VoidSnapshots(EIGHT) in guard.handle(begins, 0.0)


@pytest.mark.parametrize(
    ("places", "restore", "stays"),
    [
        ((-1, -1), None, None),
        ((-1, 0), None, EIGHT),
        ((-1, -1), Restore(EIGHT, 2), EIGHT),
    ],
)
def test_a_guard_whose_ranks_are_not_called_voids_at_once_where_none_will(
    places: tuple[int, int], restore: Restore | None, stays: SnapshotId | None
) -> None:
    """No rank of it takes a snapshot, and with it the copies of other nodes' ranks count no more.

    Otherwise a node that keeps steps of its own and of its neighbour would bring the job back to
    them, after any number of steps and checkpoints.
    """
    guard = Guard(msg.CallTimeouts())
    for rank in RANKS:
        guard.handle(msg.JoinCall(rank, 2), 0.0)
    guard.handle(msg.Commit(0, -1, (), ()), 0.0)
    for rank, place in zip(RANKS, places, strict=True):
        guard.handle(RankMessage(rank, msg.OpenedArena(rank, 7)), 0.0)
        guard.handle(RankMessage(rank, msg.RanksPlaced(0, (msg.Place(rank, place, 1),))), 0.0)
    begins = msg.BeginFrom(0, restore, fallback=None if restore else EIGHT)
    assert VoidSnapshots(stays) in guard.handle(begins, 0.0)


def test_the_launchers_count_of_lives_goes_on() -> None:
    begins = CallFromSnapshot(FROM_NINE.but(times=2)).restart(last_step=9)
    assert begins is not None
    assert begins.restore is not None
    assert begins.restore.snapshot == EIGHT


@pytest.mark.parametrize("last_step", [-1, 0])
def test_an_iteration_in_which_no_rank_came_to_restore_it_says_nothing_about_it(
    last_step: int,
) -> None:
    """A network that is not back yet fails many times in a row, and costs no snapshot."""
    call = CallFromSnapshot()
    assert [call.restart(last_step) for _ in range(5)] == [None] * 5
    assert call.restart(last_step=9) is None
    assert call.restart(last_step=9) is not None


@pytest.mark.parametrize(("progress", "is_given_up"), [(3, False), (4, True)])
def test_enough_new_steps_make_up_for_it(progress: int, is_given_up: bool) -> None:
    call = CallFromSnapshot(progress=progress)
    assert call.restart(last_step=12) is None
    assert (call.restart(last_step=12) is not None) == is_given_up


def test_one_that_a_rank_could_not_use_is_given_up_at_once() -> None:
    begins = CallFromSnapshot().restart(9, Refused(NINE, 1, "its sum is wrong"))
    assert begins is not None
    assert begins.restore is not None
    assert begins.restore.snapshot == EIGHT


def test_a_snapshot_of_the_call_takes_its_place() -> None:
    call = CallFromSnapshot()
    call.held = (*CYCLES, *(Held(rank, 2, 1, 0, 11) for rank in RANKS))
    begins = call.restart(last_step=11)
    assert begins is not None
    assert begins.restore == Restore(SnapshotId(1, 0, 11), 2, lost_steps=0)


def test_without_a_choice_for_the_cycle_nothing_is_counted() -> None:
    call = CallFromSnapshot(None)
    call.held = ()
    assert [call.restart(last_step=1) for _ in range(5)] == [None] * 5


def test_a_guard_passes_on_what_the_cycle_began_from() -> None:
    guard = Guard(msg.CallTimeouts(), cycle=1)
    for rank in RANKS:
        guard.handle(msg.JoinCall(rank, 2), 0.0)
    guard.handle(msg.Commit(0, -1, (), ()), 0.0)
    for rank in RANKS:
        opened = msg.OpenedArena(rank, 7, FROM_NINE, progress=3)
        assert guard.handle(RankMessage(rank, opened), 0.0) == [HoldArena(rank, 7)]
    guard.handle(msg.AbortEpoch(0, (Cause(0, FaultKind.EXCEPTION, "boom"),)), 0.0)
    own = msg.Numbering(0, 0, 2)
    standings = tuple(msg.Standing(rank, own, own) for rank in RANKS)
    for standing in standings:
        effects = guard.handle(RankMessage(standing.rank, msg.RanksReady(0, (standing,))), 0.0)
    assert effects == [ReadSnapshots()]
    found = tuple(FoundSnapshot(it, "/memory", 0) for it in CYCLES)
    void = SnapshotId(0, 0, 8)
    assert guard.handle(SnapshotsRead(found, 9, void), 0.0) == [
        msg.RanksReady(0, standings, Holdings(CYCLES, 9, void_until=void), FROM_NINE, 3)
    ]


def test_a_guard_reads_that_a_rank_has_given_its_snapshots_up() -> None:
    kept, fds = KeptArenas(), [create("test") for _ in RANKS]
    try:
        for fd in fds:
            kept.keep(os.getpid(), fd)
        assert kept.read().void_until is None
        ArenaMemory(fds[1]).give_up(0, 3)
        assert kept.read().void_until == SnapshotId(0, 3, ANY)
    finally:
        for fd in fds:
            os.close(fd)


def restarts_of(effects: list[GuardEffect]) -> list[tuple[int | None, int]]:
    return [(it.step, it.lost_steps) for it in effects if isinstance(it, RestartedInPlace)]


@pytest.mark.parametrize(
    ("then", "reported"),
    [
        (msg.BeginFrom(1, Restore(EIGHT, 2, lost_steps=4)), (8, 4)),
        (msg.BeginFrom(1), (None, -1)),
        (msg.AbortEpoch(1, (Cause(0, FaultKind.EXCEPTION, "boom"),)), (None, -1)),
        (msg.Exit(finished=False, text="no rank is left"), (None, -1)),
    ],
)
def test_a_launcher_learns_of_a_restart_when_its_snapshot_is_known_and_once(
    then: msg.Down, reported: tuple[int | None, int]
) -> None:
    guard = Guard(msg.CallTimeouts())
    guard.handle(msg.JoinCall(0, 1), 0.0)
    guard.handle(msg.Commit(0, -1, (), ()), 0.0)
    guard.handle(msg.AbortEpoch(0, (Cause(0, FaultKind.EXCEPTION, "boom"),)), 0.0)
    assert restarts_of(guard.handle(msg.Commit(1, 0, (), (), snapshots=True), 1.0)) == []
    assert restarts_of(guard.handle(then, 2.0)) == [reported]
    assert restarts_of(guard.handle(msg.Exit(finished=True), 3.0)) == []
