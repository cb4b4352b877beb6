"""Which rank held up the others in a restart in place."""

from __future__ import annotations

import sys
import threading

import pytest

from holdfast.base.pure import codec
from holdfast.evidence.pure.evidence import ANSWERED, SILENT, GroupDigest, RankDigest
from holdfast.inplace import own_look
from holdfast.inplace.pure import messages as msg
from holdfast.inplace.pure.coordinator import (
    Coordinator,
    NodeMessage,
    verdict_of,
)
from holdfast.inplace.pure.job_calls import FaultKind

TIMEOUTS = msg.CoordinatorTimeouts(100.0, 40.0, 0.0, 30.0)
MEMBERS = "0-2"
BORN = [msg.Numbering(-1, rank, 5) for rank in range(5)]


def standing(rank: int, seen: RankDigest | None) -> msg.Standing:
    numbering = msg.Numbering(0, rank, 4)
    return msg.Standing(rank, numbering, numbering, seen)


def waits(number: int, members: str = MEMBERS) -> RankDigest:
    """In the second collective of all."""
    group = GroupDigest("0 gloo", members, 2, 1, "all_reduce Float[1]", 2)
    return RankDigest(
        number, "n", pid=90 + number, state="S", helper=ANSWERED, is_in_collective=True,
        place="train train.py:9", call="all_reduce", groups=(group,),
    )  # fmt: skip


def sleeps(number: int, members: str = MEMBERS) -> RankDigest:
    """It has not begun that."""
    group = GroupDigest("0 gloo", members, 1, 1)
    return RankDigest(
        number, "n", pid=90 + number, state="S", helper=ANSWERED, waits_for="lock",
        place="load data.py:4", groups=(group,),
    )  # fmt: skip


def test_the_rank_that_the_others_wait_for_is_named() -> None:
    verdict = verdict_of({0: waits(0), 1: sleeps(1), 2: waits(2)})
    assert verdict is not None
    assert (verdict.culprits, verdict.kind, verdict.confidence) == ((1,), "waiting", "high")
    assert verdict.reason == (
        "rank 1 (pid 91, node n) waits for a lock in `load` data.py:4; 2 other ranks wait for it "
        "in `all_reduce`"
    )


def test_after_a_loss_ranks_keep_the_names_they_were_born_with() -> None:
    """Rank 0 is lost, so torch calls ranks 1, 2, 3 by 0, 1, 2; number 1 is the one that sleeps."""
    verdict = verdict_of({1: waits(0), 2: sleeps(1), 3: waits(2)})
    assert verdict is not None
    assert verdict.culprits == (2,)


def test_one_that_has_returned_is_named_where_others_wait_for_it() -> None:
    seen = own_look.has_returned(1)
    verdict = verdict_of({0: waits(0), 1: seen, 2: waits(2)})
    assert verdict is not None
    assert verdict.culprits == (1,)
    assert "it has returned from the function" in verdict.reason


@pytest.mark.parametrize("seen", [None, waits(0, members="many")])
def test_where_nothing_of_use_was_seen_there_is_no_verdict(seen: RankDigest | None) -> None:
    assert verdict_of({0: seen}) is None


def test_no_fault_of_the_judge_ends_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has words for people; the ranks wait for the commit that carries them."""

    def fail(*_: object) -> None:
        raise KeyError("a rule")

    monkeypatch.setattr("holdfast.evidence.pure.verdict.judge", fail)
    assert verdict_of({0: waits(0)}) is None


@pytest.mark.parametrize(
    ("kinds", "is_judged"),
    [
        ((FaultKind.SOFT_TIMEOUT,), True),
        ((FaultKind.EXCEPTION,), False),
        ((FaultKind.SOFT_TIMEOUT, FaultKind.TERMINATED), False),
    ],
)
def test_a_verdict_goes_down_with_the_commit_after_a_hang_that_ended_nobody(
    kinds: tuple[FaultKind, ...], is_judged: bool
) -> None:
    """Whoever died of it was the one; an exception needs no judge."""
    machine = Coordinator(TIMEOUTS)
    ranks = range(4)
    for rank in ranks:
        machine.handle(NodeMessage("n", msg.JoinCall(rank, 4)), 0.0)
    for kind in kinds:
        died = kind is FaultKind.TERMINATED
        said = msg.Dead(3, kind) if died else msg.FaultReported(0, 0, kind)
        machine.handle(NodeMessage("n", said), 0.0)
    left = [rank for rank in ranks if rank in machine.members]
    shown = [standing(rank, sleeps(rank) if rank == 1 else waits(rank)) for rank in left]
    sent = codec.encode(msg.RanksReady(0, tuple(shown)))
    [tell] = machine.handle(NodeMessage("n", codec.decode(msg.UP, sent)), 0.0)  # type: ignore[arg-type]

    assert isinstance(tell, msg.Commit)
    verdict = tell.verdict
    assert (verdict is not None and verdict.culprits == (1,)) is is_judged
    assert codec.decode(msg.DOWN, codec.encode(tell)) == tell


HELD = RankDigest(2, "n", pid=93, state="R", helper=SILENT, place="match data.py:4", stack="x")
"""What the guard saw of rank 3, which torch knows by 2."""


@pytest.mark.parametrize(
    ("seen", "kind", "expected"),
    [
        (HELD, FaultKind.HARD_TIMEOUT, (3,)),
        (None, FaultKind.HARD_TIMEOUT, None),
        (HELD, FaultKind.TERMINATED, None),
    ],
    ids=["seen", "not seen", "another death"],
)
def test_a_rank_that_was_ended_for_its_hang_is_named_by_what_its_guard_saw(
    seen: RankDigest | None, kind: FaultKind, expected: tuple[int, ...] | None
) -> None:
    """Without it, those who wait for that rank would look as if they waited for each other."""
    machine = Coordinator(TIMEOUTS)
    for rank in (0, 1, 3, 4):
        machine.handle(NodeMessage("n", msg.JoinCall(rank, 5)), 0.0)
    machine.handle(NodeMessage("n", msg.JoinCall(2, 5)), 0.0)
    machine.handle(NodeMessage("n", msg.RankLeaves(0, 2, fault=True)), 0.0)
    before = [msg.Standing(rank, BORN[rank], BORN[rank]) for rank in (0, 1, 3, 4)]
    machine.handle(NodeMessage("n", msg.RanksReady(0, tuple(before))), 0.0)
    machine.handle(NodeMessage("n", msg.FaultReported(1, 0, FaultKind.SOFT_TIMEOUT)), 1.0)
    sent = codec.encode(msg.Dead(3, kind, "no progress", seen))
    machine.handle(NodeMessage("n", codec.decode(msg.UP, sent)), 2.0)  # type: ignore[arg-type]
    shown = {0: waits(0, "0-3"), 1: waits(1, "0-3"), 4: waits(3, "0-3")}
    ready = [msg.Standing(it, BORN[it], BORN[it], seen) for it, seen in shown.items()]
    [tell] = machine.handle(NodeMessage("n", msg.RanksReady(1, tuple(ready))), 3.0)

    assert isinstance(tell, msg.Commit)
    verdict = tell.verdict
    assert (None if verdict is None else verdict.culprits) == expected
    if verdict is not None:
        assert verdict.reason == (
            "rank 3 (pid 93, node n) holds the interpreter's lock in `match` data.py:4; 3 other "
            "ranks wait for it in `all_reduce`"
        )


def test_a_look_at_oneself_ends_with_its_pause() -> None:
    """The main thread has left the function meanwhile: nothing is waited for."""
    paused: list[float] = []
    digest = own_look.look_at_main(5, paused.append)
    assert paused == [0.02]
    assert digest.state


def test_the_main_thread_is_seen_where_it_waits() -> None:
    """From another thread, without torch's help: it has no groups."""
    found: list[RankDigest] = []
    seen = threading.Event()
    line = sys._getframe().f_lineno + 10
    place = f"test_the_main_thread_is_seen_where_it_waits test_hang_verdict.py:{line}"

    def look() -> None:
        while not seen.is_set():  # the main thread may not have come there yet
            found[:] = [own_look.look_at_main(5, threading.Event().wait)]
            if found[0].place == place:
                seen.set()

    threading.Thread(target=look).start()
    is_seen = seen.wait(30)
    seen.set()

    [digest] = found
    assert is_seen, digest
    assert (digest.rank, digest.helper) == (5, ANSWERED)
    assert digest.state in "SR"
