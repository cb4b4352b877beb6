"""When interpreters are parked, and when a rank may start from one."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.pure.common_events import Note, SignalArrived, TimePassed
from holdfast.node.pure.cycle_events import CycleEnding, Waiting
from holdfast.standby.pure.libraries import imported_libraries
from holdfast.standby.pure.parked_interpreters import (
    FAILURES_MAX,
    IDLE_LIMIT_S,
    LEAVES_MAX,
    LEFT_OUT_MAX,
    LOOK_AT_MEMORY_S,
    LOOK_S,
    PATIENCE_S,
    PREPARE_LIMIT_S,
    REPORTED_IN_S,
    ROOM,
    SAFE_KIB,
    STAY,
    USED_UP_KIB_PER_S,
    AllParked,
    BecomeRank,
    Discard,
    Effect,
    Hurry,
    KeepsOomScore,
    MeasureMemory,
    MeasureShare,
    MemoryLeft,
    MemoryPressure,
    NoRoom,
    Nothing,
    OutOfMemory,
    ParkedDied,
    ParkedInterpreters,
    ParkedSaid,
    ParkedState,
    Prepare,
    RanksStarted,
    RankWanted,
    Shape,
    Share,
    Started,
    StartedOver,
    StaysIdle,
    why_cold,
)
from holdfast.standby.pure.parked_messages import ParkedReady, ParkedUnfit
from holdfast.watch.pure.monitor_messages import RankConnected

SHAPE = Shape(["python", "-u", "train.py"], {"OMP_NUM_THREADS": "1"}, {"Umask": "0022"})
MIB = 1 << 10


def ready(rank: int, memory_kib: int, assumed: dict[str, str] | None = None) -> ParkedSaid:
    return ParkedSaid(rank, ParkedReady(memory_kib, assumed or {}))


def unfit(rank: int, reason: str, module: str | None = None) -> ParkedSaid:
    return ParkedSaid(rank, ParkedUnfit(reason, module))


def standby(
    nproc: int = 2,
    delay_s: float = 10.0,
    memory_kib_max: int = 1000 * MIB,
    is_idle: bool = False,
) -> ParkedInterpreters:
    return ParkedInterpreters(nproc, delay_s, memory_kib_max, is_idle)


def steady(machine: ParkedInterpreters, now: float = 0.0) -> list[Effect]:
    """A cycle begins, and the delay passes."""
    machine.handle(RanksStarted(), now)
    return machine.handle(TimePassed(), now + machine.delay_s)


def made_ready(
    machine: ParkedInterpreters, rank: int, now: float, memory_kib: int = MIB
) -> list[Effect]:
    machine.handle(Started(rank, SHAPE), now)
    return machine.handle(ready(rank, memory_kib), now)


def notes(effects: list[Effect]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, Note)]


def test_nothing_is_prepared_before_training_is_steady() -> None:
    """Imports would take time from the start that everybody waits for."""
    machine = standby()
    assert machine.next_deadline() is None
    machine.handle(RanksStarted(), 100.0)

    assert machine.handle(TimePassed(), 109.9) == []
    assert machine.next_deadline() == 110.0
    assert machine.handle(TimePassed(), 110.0) == [Prepare(0), Prepare(1)]


def test_where_no_restart_is_left_nothing_is_parked() -> None:
    """What is parked already leaves: its memory is the training's."""
    machine = standby()
    steady(machine)
    made_ready(machine, 0, 11.0)
    machine.handle(CycleEnding(), 20.0)

    assert machine.handle(RanksStarted(is_last=True), 21.0) == [Discard(0)]
    assert machine.next_deadline() is None
    assert machine.handle(RankConnected(0, 7), 22.0) == []
    assert machine.handle(TimePassed(), 60.0) == []


def test_ranks_that_have_reported_in_have_done_their_imports() -> None:
    """A second after the latest, nobody's start is disturbed any more."""
    machine = standby(3)
    machine.handle(RanksStarted(), 0.0)
    machine.handle(RankConnected(0, 7), 2.0)
    machine.handle(RankConnected(0, 7), 2.5)

    assert machine.handle(TimePassed(), 3.4) == []
    assert machine.next_deadline() == 2.5 + REPORTED_IN_S
    due = machine.handle(TimePassed(), 2.5 + REPORTED_IN_S)
    assert due == [Prepare(0), Prepare(1), Prepare(2)]
    assert machine.handle(RankConnected(0, 7), 4.0) == []
    machine.handle(ParkedDied(0), 4.0)
    assert machine.handle(TimePassed(), 4.0) == [Prepare(0)], "once begun, it is not put off"


def test_nothing_is_waited_for_once_all_ranks_have_reported_in() -> None:
    machine = standby(2)
    machine.handle(RanksStarted(), 0.0)

    assert machine.handle(RankConnected(0, 7), 2.0) == []
    assert machine.handle(RankConnected(0, 7), 2.5) == [Prepare(0), Prepare(1)]


def test_the_ranks_of_each_cycle_are_counted_anew() -> None:
    machine = standby()
    for cycle_began_at in (0.0, 100.0):
        machine.handle(RanksStarted(), cycle_began_at)
        assert machine.handle(RankConnected(0, 7), cycle_began_at + 2.0) == []
        assert machine.next_deadline() == cycle_began_at + 2.0 + REPORTED_IN_S
        machine.handle(CycleEnding(), cycle_began_at + 3.0)


def test_a_rank_that_reports_in_late_puts_it_off() -> None:
    machine = standby()
    machine.handle(RanksStarted(), 0.0)
    machine.handle(RankConnected(0, 7), 9.5)

    assert machine.handle(TimePassed(), 10.0) == []
    assert machine.next_deadline() == 9.5 + REPORTED_IN_S


def test_a_shorter_delay_counts_for_ranks_that_report_in_as_well() -> None:
    machine = standby(delay_s=0.5)
    machine.handle(RanksStarted(), 0.0)
    machine.handle(RankConnected(0, 7), 0.25)

    assert machine.next_deadline() == 0.75


def test_they_are_prepared_together() -> None:
    """Ranks wait for each other: one after the other, each would slow all of them."""
    machine = standby()
    assert steady(machine) == [Prepare(0), Prepare(1)]
    assert machine.handle(TimePassed(), 11.0) == []

    assert made_ready(machine, 0, 12.0) == []
    assert AllParked(2, 2 << 10) in made_ready(machine, 1, 13.0)
    machine.handle(MemoryLeft(None), 13.0)
    assert machine.next_deadline() == 13.0 + LOOK_AT_MEMORY_S[1], "only to look at memory"


def test_at_the_lowest_priority_one_report_is_enough() -> None:
    """Early faults: the first rank that has done its imports is enough, and no second passes."""
    machine = standby(3, is_idle=True)
    machine.handle(RanksStarted(), 0.0)

    assert machine.handle(RankConnected(0, 7), 2.0) == [Prepare(0), Prepare(1), Prepare(2)]
    assert machine.handle(RankConnected(0, 7), 2.5) == []
    made_ready(machine, 2, 6.0)
    assert made_ready(machine, 0, 6.0) == []
    assert AllParked(3, 3 << 10) in made_ready(machine, 1, 6.0)
    machine.handle(MemoryLeft(None), 6.0)
    assert machine.next_deadline() == 6.0 + LOOK_AT_MEMORY_S[1], "only to look at memory"


def test_a_start_that_crashes_again_and_again_stays_plain() -> None:
    """It has reported nothing, and the delay has not passed."""
    machine = standby(is_idle=True)
    for crash in range(10):
        assert machine.handle(RanksStarted(), 9.0 * crash) == []
        assert machine.handle(TimePassed(), 9.0 * crash + 8.0) == []
        assert machine.handle(CycleEnding(), 9.0 * crash + 8.0) == []


def test_on_busy_processors_all_get_the_priority_of_ranks() -> None:
    """One of them waits more than it runs: no processor is idle, and later none would be either."""
    machine = standby(3, is_idle=True)
    steady(machine)
    assert machine.next_deadline() == 10.0 + LOOK_S
    looks = [MeasureShare(rank) for rank in range(3)]
    assert machine.handle(TimePassed(), 10.0 + LOOK_S) == looks
    assert machine.next_deadline() == 10.0 + 2 * LOOK_S

    assert machine.handle(Share(0, ran_s=0.12, waited_s=0.12, is_runnable=True), 10.25) == []
    assert machine.handle(Share(1, ran_s=0.10, waited_s=0.12, is_runnable=True), 10.25) == [
        *(Hurry(0), Hurry(1), Hurry(2))
    ]
    assert machine.is_hurried(2)
    assert machine.handle(Share(2, ran_s=0.0, waited_s=0.2, is_runnable=True), 10.25) == []
    assert machine.next_deadline() == 10.25 + PREPARE_LIMIT_S, "their limit counts from now on"

    machine.handle(ParkedDied(1), 11.0)
    assert machine.handle(TimePassed(), 11.0) == [Prepare(1)]
    assert machine.is_hurried(1), "as long as this cycle lasts"
    machine.handle(CycleEnding(), 12.0)
    steady(machine, 20.0)
    assert not machine.is_hurried(1)


def test_what_counts_is_the_share_since_the_last_look() -> None:
    """Ranks that begin to train while an interpreter is prepared leave it nothing."""
    machine = standby(1, is_idle=True)
    steady(machine)

    assert machine.handle(Share(0, ran_s=0.25, waited_s=0.0, is_runnable=True), 10.25) == []
    assert machine.handle(Share(0, ran_s=0.25, waited_s=0.2, is_runnable=False), 10.5) == [Hurry(0)]


def test_a_process_that_could_run_and_never_did_has_waited() -> None:
    """The kernel counts a wait when it is over. One that waits for a disk may go on to do so."""
    machine = standby(1, is_idle=True)
    steady(machine)

    assert machine.handle(Share(0, 0.0, 0.0, is_runnable=False), 10.25) == []
    assert machine.handle(Share(0, 0.0, 0.0, is_runnable=True), 10.5) == [Hurry(0)]


def test_where_the_kernel_tells_nothing_the_lowest_priority_has_an_end() -> None:
    machine = standby(2, is_idle=True)
    steady(machine)
    for look in range(1, round(IDLE_LIMIT_S / LOOK_S)):
        machine.handle(TimePassed(), 10.0 + look * LOOK_S)
        assert not machine.is_hurried(0)

    assert machine.handle(TimePassed(), 10.0 + IDLE_LIMIT_S) == [Hurry(0), Hurry(1)]
    assert machine.next_deadline() == 10.0 + IDLE_LIMIT_S + PREPARE_LIMIT_S


def test_where_no_priority_may_be_raised_processes_have_that_of_ranks() -> None:
    """A container may refuse it although the process seems to be privileged."""
    machine = standby(2, is_idle=True)
    steady(machine)

    assert machine.handle(StaysIdle(0), 11.0) == [Discard(0)]
    assert machine.handle(StaysIdle(1), 11.0) == [Discard(1)]
    assert machine.handle(TimePassed(), 11.0) == [Prepare(0), Prepare(1)]
    assert machine.is_hurried(0)
    assert machine.is_hurried(1)


def test_after_one_was_unfit_the_next_is_tried_alone() -> None:
    """Else every rank would import for each library that is to be left out."""
    machine = standby(3)
    steady(machine)
    for rank in range(3):
        machine.handle(unfit(rank, "it prints", "lib"), 11.0)

    without = ("lib",)
    assert machine.handle(TimePassed(), 11.0) == [Prepare(0, without=without)]
    assert made_ready(machine, 0, 12.0) == [
        Prepare(1, without=without),
        Prepare(2, without=without),
    ]


def test_a_library_that_is_unfit_in_several_is_left_out_once() -> None:
    machine = standby(3, is_idle=True)
    steady(machine)
    made_ready(machine, 0, 11.0)

    assert len(notes(machine.handle(unfit(1, "it prints", "lib"), 12.0))) == 1
    assert machine.handle(unfit(2, "it prints", "lib"), 12.0) == []
    due = machine.handle(TimePassed(), 12.0)
    assert [each for each in due if each != MeasureMemory()] == [Prepare(1, without=("lib",))]
    made_ready(machine, 1, 12.5)
    machine.handle(unfit(2, "a reason"), 13.0)
    assert not machine.given_up, "it was not of torch alone"


def test_those_that_are_prepared_together_need_room_for_all() -> None:
    machine = standby(3)
    steady(machine)
    made_ready(machine, 0, 11.0, 100 * MIB)
    assert machine.has_room(400 * MIB)

    machine.handle(Started(1, SHAPE), 11.0)
    assert not machine.has_room(450 * MIB)
    assert machine.has_room(500 * MIB)


def test_a_rank_starts_from_a_process_that_is_ready_once() -> None:
    machine = standby(1)
    steady(machine)
    made_ready(machine, 0, 11.0)

    assert machine.handle(RankWanted(0, SHAPE), 20.0) == [BecomeRank(0)]
    assert machine.handle(RankWanted(0, SHAPE), 20.0) == []
    assert steady(machine, 30.0) == [Prepare(0)], "and the next cycle gets one of its own"


def test_a_restart_while_one_is_prepared_does_not_wait_for_it() -> None:
    machine = standby()
    steady(machine)

    assert machine.handle(CycleEnding(), 11.0) == [Discard(0), Discard(1)]
    assert machine.handle(RankWanted(0, SHAPE), 11.1) == []
    assert machine.handle(ready(0, MIB), 11.2) == [], "a word on the way means nothing any more"
    assert machine.next_deadline() is None


def test_those_that_are_ready_outlast_a_restart_that_does_not_want_them() -> None:
    """A node may stand by for a cycle."""
    machine = standby(1)
    steady(machine)
    made_ready(machine, 0, 11.0)

    assert machine.handle(CycleEnding(), 12.0) == []
    assert machine.handle(RankWanted(0, SHAPE), 13.0) == [BecomeRank(0)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: replace(s, command=["python", "other.py"]), "the command changed"),
        (lambda s: replace(s, env={"OMP_NUM_THREADS": "2"}), "OMP_NUM_THREADS changed"),
        (lambda s: replace(s, env={}), "OMP_NUM_THREADS changed"),
        (lambda s: replace(s, env={**s.env, "NEW": ""}), "NEW changed"),
        (lambda s: replace(s, inherited={"Umask": "0077"}), "the launcher's Umask changed"),
    ],
)
def test_a_rank_that_differs_is_started_plainly(
    change: Callable[[Shape], Shape], reason: str
) -> None:
    """Warm only if provably the same, else cold, and it says what differed."""
    machine = standby(1)
    steady(machine)
    made_ready(machine, 0, 11.0)

    effects = machine.handle(RankWanted(0, change(SHAPE)), 20.0)

    assert effects[0] == Discard(0)
    assert reason in notes(effects)[0]
    assert why_cold(SHAPE, SHAPE) is None


def test_a_process_that_dies_is_replaced_and_told_of_once() -> None:
    machine = standby(1)
    steady(machine)
    said = machine.handle(ParkedDied(0), 11.0)
    for _ in range(FAILURES_MAX - 1):
        assert machine.handle(TimePassed(), 12.0) == [Prepare(0)]
        said += machine.handle(ParkedDied(0), 13.0)

    assert machine.handle(TimePassed(), 14.0) == []
    assert len(notes(said)) == 2
    assert notes(said)[1] == (
        "no more warm standby, ranks start plainly: 3 parked processes ended or hung"
    )


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_process_that_a_scheduler_told_to_end_has_no_fault(signum: int) -> None:
    """Slurm signals every process of a job; the launcher's own signal may be a moment later."""
    machine = standby(2)
    steady(machine)
    made_ready(machine, 0, 11.0)

    assert machine.handle(ParkedDied(0, signum), 12.0) == []
    assert machine.handle(ParkedDied(1, signum), 12.0) == []
    assert machine.handle(TimePassed(), 20.0) == []
    assert steady(machine, 50.0) == [Prepare(0), Prepare(1)], "in the next cycle, if there is one"


def test_nothing_is_parked_once_a_signal_was_passed_on() -> None:
    """What is parked gives its memory back to ranks that save their work; nothing is said."""
    machine = standby(2)
    steady(machine)
    made_ready(machine, 0, 11.0)

    assert machine.handle(SignalArrived(signal.SIGTERM), 12.0) == [Discard(0), Discard(1)]
    assert machine.next_deadline() is None
    assert machine.handle(ParkedDied(0, signal.SIGTERM), 12.0) == []
    for event in (RankConnected(0, 7), Waiting(), CycleEnding(), RanksStarted()):
        assert machine.handle(event, 13.0) == []
    assert machine.handle(TimePassed(), 100.0) == []
    assert machine.handle(RankWanted(0, SHAPE), 101.0) == []


def test_a_process_that_hangs_is_ended() -> None:
    machine = standby(1)
    steady(machine)
    assert machine.next_deadline() == 10.0 + PREPARE_LIMIT_S

    effects = machine.handle(TimePassed(), 10.0 + PREPARE_LIMIT_S)

    assert Discard(0) in effects
    assert "was not ready after 300 s" in notes(effects)[0]


def test_beyond_the_memory_limit_no_more_are_parked() -> None:
    machine = standby(3, memory_kib_max=100 * MIB)
    steady(machine)
    made_ready(machine, 0, 11.0, 60 * MIB)

    effects = made_ready(machine, 1, 12.0, 60 * MIB)

    assert effects[0] == Discard(1)
    assert "2 parked processes with 120 MiB, the limit is 100 MiB" in notes(effects)[0]
    assert machine.handle(TimePassed(), 13.0) == [MeasureMemory()]
    assert machine.handle(RankWanted(0, SHAPE), 14.0) == [BecomeRank(0)], "the first one stays good"


def with_two_ready(memory_kib: int = 100 * MIB, **more: Any) -> ParkedInterpreters:
    machine = ParkedInterpreters(2, 10.0, 1000 * MIB, **more)
    steady(machine)
    made_ready(machine, 0, 11.0, memory_kib)
    made_ready(machine, 1, 11.0, memory_kib)
    return machine


def test_they_leave_when_memory_gets_short() -> None:
    """Before the kernel has to end one: it may take long over that, or end a whole container."""
    machine = with_two_ready()
    assert machine.handle(MemoryLeft(STAY * 100 * MIB), 12.0) == []

    effects = machine.handle(MemoryLeft(STAY * 100 * MIB - 1), 12.5)

    assert effects[:2] == [Discard(0), Discard(1)]
    assert (
        "2 parked interpreters left: 199 MiB of memory are free, and 200 MiB" in notes(effects)[0]
    )
    assert machine.next_deadline() is None, "and nothing is looked at any more"
    assert machine.handle(TimePassed(), 500.0) == [], "not again in this cycle"
    assert machine.handle(RankWanted(0, SHAPE), 501.0) == []
    assert steady(machine, 600.0) == [Prepare(0), Prepare(1)], "the next may need less"


def test_memory_is_looked_at_the_more_often_the_less_is_free() -> None:
    """Training that used all that is free between two looks would meet a parked interpreter."""
    shortest, longest = LOOK_AT_MEMORY_S
    free_s = {0.0: shortest, 1.0: 1.0, 60.0: longest}
    for seconds, expected in free_s.items():
        machine = with_two_ready()
        least = STAY * 100 * MIB
        assert machine.handle(MemoryLeft(least + int(seconds * USED_UP_KIB_PER_S)), 20.0) == []

        assert machine.next_deadline() == 20.0 + expected
        assert machine.handle(TimePassed(), 20.0 + expected) == [MeasureMemory()]


def test_one_that_is_being_prepared_leaves_as_well() -> None:
    machine = standby(1)
    steady(machine)
    machine.handle(Started(0, SHAPE), 10.0)

    assert machine.handle(TimePassed(), 10.25) == [MeasureMemory()]
    assert machine.handle(MemoryLeft(MIB), 10.25)[0] == Discard(0)


def test_the_kernels_word_that_processes_wait_for_memory_is_enough() -> None:
    machine = with_two_ready()

    effects = machine.handle(MemoryPressure(), 12.0)

    assert effects[:2] == [Discard(0), Discard(1)]
    assert machine.handle(MemoryPressure(), 12.1) == [], "said once"


def test_a_job_in_which_memory_gets_short_again_and_again_parks_no_more() -> None:
    """Each time costs the training the work of an import."""
    machine = standby(1)
    for number in range(LEAVES_MAX):
        assert machine.given_up is None
        assert steady(machine, 100.0 * number) == [Prepare(0)]
        made_ready(machine, 0, 100.0 * number + 20.0)
        machine.handle(MemoryPressure(), 100.0 * number + 30.0)

    assert machine.given_up == "memory got short 3 times"
    assert steady(machine, 1000.0) == []


@pytest.mark.parametrize("was_given_up", [False, True])
def test_after_an_out_of_memory_kill_nothing_is_parked_any_more(was_given_up: bool) -> None:
    """Nor does what is parked stay: the rank that starts again needs as much memory."""
    machine = with_two_ready()
    if was_given_up:
        machine.handle(StartedOver(0, "changes KEPT before it imports"), 11.5)

    effects = machine.handle(OutOfMemory(), 12.0)

    assert effects[:2] == [Discard(0), Discard(1)]
    assert machine.given_up is not None
    assert machine.handle(RankWanted(0, SHAPE), 13.0) == []
    assert steady(machine, 20.0) == []


def test_where_the_kernel_may_end_a_rank_first_much_has_to_be_free() -> None:
    """In a control group that ends as a whole, for one: the score of a process decides nothing."""
    machine = with_two_ready(reserve_kib=SAFE_KIB, why_reserve="memory.oom.group is 1")
    enough = SAFE_KIB + ROOM * 100 * MIB
    assert machine.has_room(enough)
    assert not machine.has_room(enough - 1)

    assert machine.handle(MemoryLeft(SAFE_KIB + STAY * 100 * MIB), 12.0) == []
    assert machine.handle(MemoryLeft(SAFE_KIB), 12.0)[0] == Discard(0)
    steady(machine, 20.0)
    machine.handle(NoRoom(0, SAFE_KIB), 30.0)
    said = notes(machine.handle(NoRoom(1, SAFE_KIB), 30.0))[0]
    assert "32 GiB besides" in said
    assert "memory.oom.group is 1" in said


def test_a_process_that_keeps_its_score_is_not_parked() -> None:
    machine = standby(2)
    steady(machine)

    effects = machine.handle(KeepsOomScore(0, "Permission denied"), 11.0)

    assert Discard(1) in effects
    assert "cannot be made the first process that the kernel ends" in notes(effects)[0]
    assert steady(machine, 50.0) == []


def test_a_node_with_little_memory_left_parks_nothing() -> None:
    """Said once; it is asked again later."""
    machine = standby(2)
    steady(machine)
    assert not machine.has_room(3 << 20)
    assert machine.has_room(4 << 20)

    first = machine.handle(NoRoom(0, 3 << 20), 11.0)
    second = machine.handle(NoRoom(1, 3 << 20), 11.0)

    assert first == [], "the other one may find room"
    assert "3072 MiB of memory are free" in notes(second)[0]
    assert machine.handle(NoRoom(0, 3 << 20), 12.0) == []
    assert steady(machine, 50.0) == [Prepare(0), Prepare(1)]


def test_a_node_that_waits_prepares_at_once() -> None:
    """No rank runs that it would disturb: the lowest priority would only take longer."""
    machine = standby(1, is_idle=True)

    assert machine.handle(Waiting(), 5.0) == [Prepare(0)]
    assert machine.is_hurried(0)


def test_where_a_library_is_unfit_torch_alone_is_tried() -> None:
    machine = standby(1)
    steady(machine)
    assert (
        "scipy starts threads" in notes(machine.handle(unfit(0, "scipy starts threads"), 11.0))[0]
    )

    assert machine.handle(TimePassed(), 12.0) == [Prepare(0, least=True)]
    said = notes(machine.handle(unfit(0, "torch starts threads"), 13.0))

    assert said == ["no more warm standby, ranks start plainly: torch starts threads"]
    assert machine.next_deadline() is None


def test_packages_that_make_a_difference_are_left_out_one_by_one() -> None:
    """The others are imported all the same; only torch, when too many are; nothing, if torch is."""
    machine = standby(nproc=1)
    assert steady(machine) == [Prepare(0)]
    left_out: tuple[str, ...] = ()
    for number in range(LEFT_OUT_MAX):
        machine.handle(Started(0, SHAPE), 11.0)
        machine.handle(unfit(0, "it prints", f"lib{number}"), 12.0)
        left_out += (f"lib{number}",)
        assert machine.handle(TimePassed(), 12.0) == [Prepare(0, without=left_out)]

    machine.handle(Started(0, SHAPE), 13.0)
    machine.handle(unfit(0, "it prints", "one more"), 13.0)
    assert machine.handle(TimePassed(), 13.0) == [Prepare(0, least=True, without=left_out)]
    machine.handle(Started(0, SHAPE), 14.0)
    assert "it prints" in notes(machine.handle(unfit(0, "it prints", "torch"), 14.0))[0]
    assert machine.given_up


def test_torch_is_never_left_out() -> None:
    """Another package may have made it unfit; without it a parked process is of no use."""
    machine = standby(nproc=1)
    steady(machine)
    machine.handle(unfit(0, "it prints", "torch"), 12.0)

    assert machine.handle(TimePassed(), 12.0) == [Prepare(0, least=True)]


@pytest.mark.parametrize(("rank", "goes_on"), [("3", True), ("4", False), (None, False)])
def test_a_process_that_was_told_its_rank_is_used_for_that_rank(
    rank: str | None, goes_on: bool
) -> None:
    """A library that reads RANK while it is imported may keep it."""
    machine = standby(nproc=1)
    steady(machine)
    machine.handle(Started(0, SHAPE), 10.0)
    machine.handle(ready(0, MIB, {"RANK": "3"}), 11.0)
    cycle = {"MASTER_PORT": "1"} | ({} if rank is None else {"RANK": rank})

    effects = machine.handle(RankWanted(0, replace(SHAPE, cycle=cycle)), 12.0)

    assert (BecomeRank(0) in effects) == goes_on
    assert (Discard(0) in effects) != goes_on
    if not goes_on:
        assert f"RANK is {rank}, and was 3" in notes(effects)[0]


def test_a_script_that_started_over_is_not_started_warm_again() -> None:
    machine = standby(1)
    said = notes(machine.handle(StartedOver(0, "changes OMP_NUM_THREADS before it imports"), 1.0))

    assert "the script changes OMP_NUM_THREADS" in said[0]
    assert steady(machine) == []


def test_a_rank_that_has_imported_nothing_yet_is_looked_at_again() -> None:
    """Seldom, and seldomer: it may never."""
    machine = standby(2)
    steady(machine)

    assert machine.handle(Nothing(0), 10.0) == []
    assert machine.handle(Nothing(1), 10.0) == []
    assert machine.next_deadline() == 10.0 + PATIENCE_S
    assert machine.handle(TimePassed(), 10.0 + PATIENCE_S) == [Prepare(0), Prepare(1)]
    machine.handle(Nothing(0), 12.0)
    machine.handle(Nothing(1), 12.0)
    assert machine.next_deadline() == 12.0 + 2 * PATIENCE_S
    assert steady(machine, 50.0) == [Prepare(0), Prepare(1)], "and in the next cycle"
    machine.handle(Nothing(0), 61.0)
    machine.handle(Nothing(1), 61.0)
    assert machine.next_deadline() == 61.0 + PATIENCE_S, "which begins anew"


_EVENTS = st.one_of(
    st.sampled_from(
        [
            Waiting(),
            RanksStarted(),
            RanksStarted(is_last=True),
            RankConnected(0, 7),
            CycleEnding(),
            TimePassed(),
        ]
    ),
    st.builds(Started, st.integers(0, 1), st.just(SHAPE)),
    st.builds(Nothing, st.integers(0, 1)),
    st.builds(NoRoom, st.integers(0, 1), st.just(MIB)),
    st.builds(ready, st.integers(0, 1), st.integers(0, 400 * MIB)),
    st.builds(unfit, st.integers(0, 1), st.just("a reason")),
    st.builds(ParkedDied, st.integers(0, 1), st.sampled_from([None, 9, 15])),
    st.builds(StaysIdle, st.integers(0, 1)),
    st.builds(Share, st.integers(0, 1), st.floats(0, 9), st.floats(0, 9), st.booleans()),
    st.sampled_from([SignalArrived(15), MemoryPressure(), OutOfMemory(), MemoryLeft(None)]),
    st.builds(MemoryLeft, st.integers(0, 8 << 20)),
    st.builds(RankWanted, st.integers(0, 1), st.just(SHAPE)),
    st.builds(StartedOver, st.integers(0, 1), st.just("a reason")),
)


@given(st.lists(st.tuples(_EVENTS, st.floats(0, 400)), max_size=40), st.booleans())
def test_no_order_of_events_confuses_it(
    events: list[tuple[object, float]],
    is_idle: bool,
) -> None:
    """No rank has two, each goes on at most once, and the deadline is never behind."""
    machine = standby(2, is_idle=is_idle)
    now, parked = 0.0, set[int]()

    def feed(event: object) -> None:
        for effect in machine.handle(event, now):
            match effect:
                case Prepare(local_rank):
                    assert local_rank not in parked
                    parked.add(local_rank)
                    machine.handle(Started(local_rank, SHAPE), now)
                case BecomeRank(local_rank) | Discard(local_rank):
                    parked.discard(local_rank)
                case Hurry(local_rank):
                    assert local_rank in parked
                    assert is_idle

    for event, passed in events:
        now += passed
        if isinstance(event, Started) and event.local_rank not in parked:
            continue  # only what was asked for is started
        if isinstance(event, ParkedDied) or isinstance(
            getattr(event, "message", None), ParkedUnfit
        ):
            parked.discard(event.local_rank)
        if isinstance(event, Nothing | NoRoom) and event.local_rank in machine._in(
            ParkedState.PREPARING
        ):
            parked.discard(event.local_rank)  # an answer to Prepare: nobody was parked
        feed(event)
        feed(TimePassed())
        deadline = machine.next_deadline()
        assert deadline is None or deadline > now


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/v/site-packages/torch/_C.cpython-311-x86_64-linux-gnu.so", ["torch"]),
        ("/v/dist-packages/numpy/linalg/_u.cpython-311-x86.so", ["numpy", "numpy.linalg"]),
        ("/v/site-packages/zmq/backend/_zmq.abi3.so", ["zmq", "zmq.backend"]),
        ("/v/site-packages/torch/lib/libtorch_cpu.so", []),
        ("/v/site-packages/numpy.libs/libgfortran.cpython-311.so", []),
        ("/v/site-packages/_cffi_backend.cpython-311-x86_64-linux-gnu.so", []),
        ("/home/me/own/_fast.cpython-311-x86_64-linux-gnu.so", []),
        ("/usr/lib/python3.11/lib-dynload/_json.cpython-311-x86_64-linux-gnu.so", []),
        ("[heap]", []),
    ],
)
def test_what_a_rank_has_imported_shows_in_its_memory(path: str, names: list[str]) -> None:
    assert imported_libraries([path]) == names


def test_torch_comes_first() -> None:
    """It is what nearly everybody imports first, and the order may matter to shared libraries."""
    mapped = [f"/v/site-packages/{name}/_c.cpython-311.so" for name in ("numpy", "torch", "av")]

    assert imported_libraries(mapped) == ["torch", "av", "numpy"]
