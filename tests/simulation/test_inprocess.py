"""In-process restart, simulated: every promise checked at every step, fresh seeds each time."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.arena.pure import beginning, choice, trust
from holdfast.arena.pure.snapshots import SnapshotId
from holdfast.inplace.pure import guard
from holdfast.inplace.pure.coordinator import Coordinator
from holdfast.inplace.pure.escalation import MOST
from holdfast.inplace.pure.guard_snapshots import GuardSnapshots
from holdfast.inplace.pure.messages import BeginFrom
from tests.simulation.call_promises import Outcome
from tests.simulation.call_scenario import (
    FOR_EVER_S,
    Call,
    Cut,
    GuardDies,
    GuardStops,
    NodeStops,
    RankFault,
    What,
    random_call,
    random_end_by_launchers,
)
from tests.simulation.inprocess import CallSimulation
from tests.simulation.kernel import Violation
from tests.simulation.simulate import simulate_call
from tests.simulation.simulated_call_snapshots import Memory


def ends(call: Call, seed: int = 1) -> list[str]:
    """How each rank ended; "" for one that died."""
    simulation = CallSimulation(call, seed)
    simulation.run()
    outcomes = [process.outcome for process in simulation.processes]
    return ["" if outcome is None else outcome.value for outcome in outcomes]


def test_no_promise_is_broken_in_calls_with_faults(first_seed: int) -> None:
    """``make sim`` takes more of them."""
    for seed in range(first_seed, first_seed + 400):
        _, violation = simulate_call(seed)
        assert violation is None, (
            f"{violation}\nagain: python -m tests.simulation.simulate --inprocess --seed {seed}"
        )


@pytest.mark.parametrize("what", list(What))
@pytest.mark.parametrize("after_s", [0.0, 0.5])
def test_any_fault_of_any_one_rank_lets_the_others_finish(what: What, after_s: float) -> None:
    for rank in range(4):
        ended = ends(Call(4, 2, (RankFault(0, rank, what, after_s),)))
        assert ended.count("finished") >= 3
        ended.pop(rank)
        assert ended == ["finished"] * 3


@pytest.mark.parametrize("first", list(What))
@pytest.mark.parametrize("second", list(What))
def test_two_faults_at_the_same_moment_or_one_in_the_restart_after_the_other(
    first: What, second: What
) -> None:
    for epoch in (0, 1):
        faults = (RankFault(0, 0, first), RankFault(epoch, 3, second))
        assert ends(Call(5, 2, faults))[1:3] == ["finished"] * 2


def test_a_rank_that_hangs_again_and_again_is_ended_and_those_that_wait_for_it_are_not() -> None:
    for seed in range(5):
        call = Call(4, 2, (RankFault(0, 1, What.HANG_AGAIN),))
        simulation = CallSimulation(call, seed)
        simulation.run()
        ended = [process.outcome for process in simulation.processes]
        assert ended == [Outcome.FINISHED, None, Outcome.FINISHED, Outcome.FINISHED]
        assert simulation.processes[0].returned_in == MOST


def test_a_rank_that_the_assignment_leaves_out_goes_without_a_restart() -> None:
    ended = ends(Call(4, 2, (RankFault(0, 0, What.DIE),), drops_odd=True))
    assert ended == ["", "finished", "finished", "left"]


def test_a_lost_guard_takes_only_its_own_node() -> None:
    ended = ends(Call(6, 2, node_faults=(GuardDies(0.7, 1),)))
    assert ended == ["finished", "finished", "failed", "failed", "finished", "finished"]


def test_a_lost_coordinator_ends_the_call_for_all() -> None:
    assert set(ends(Call(6, 2, node_faults=(GuardDies(0.7, 0),)))) == {"failed"}


def test_a_node_that_is_cut_off_for_good_is_gone_before_the_others_go_on() -> None:
    """That its ranks are gone first is checked at every step."""
    ended = ends(Call(6, 2, (RankFault(0, 4, What.HOLD),), (Cut(0.6, 1, 1000.0),)))
    assert ended[:2] == ["finished"] * 2
    assert "finished" not in ended[2:4]


@pytest.mark.parametrize("for_s", [27.0, 31.0, 200.0, FOR_EVER_S])
@pytest.mark.parametrize("kind", [GuardStops, NodeStops])
def test_a_node_whose_guard_is_stopped_is_gone_before_the_others_go_on(
    kind: type[GuardStops | NodeStops], for_s: float
) -> None:
    """Nobody tells its ranks; the lease in their pages runs out. Checked at every step."""
    for seed in range(10):
        ended = ends(Call(4, 2, (RankFault(0, 2, What.SWALLOW),), (kind(0.7, 1, for_s),)), seed)
        assert ended[:2] == ["finished"] * 2
        assert set(ended[2:]) <= {"failed", ""}


@pytest.mark.parametrize("kind", [GuardStops, NodeStops])
def test_on_one_node_ranks_do_not_wait_for_a_stopped_guard_for_ever(
    kind: type[GuardStops | NodeStops],
) -> None:
    """Nor do other nodes for that of the coordinator."""
    for nodes in (1, 2):
        ended = ends(Call(2 * nodes, 2, node_faults=(kind(0.7, 0, FOR_EVER_S),)))
        left = [] if kind is GuardStops else [""] * 2  # those that are stopped never do anything
        assert ended == left + ["failed"] * (2 * nodes - len(left))


def test_a_rank_that_leaves_does_not_wait_for_a_stopped_guard_for_ever() -> None:
    """It waits for the word that the others stop, which nobody brings; then its lease runs out."""
    call = Call(4, 4, (RankFault(0, 0, What.LEAVE),), (GuardStops(0.1, 0, FOR_EVER_S),))
    for seed in range(10):
        assert "" not in ends(call, seed)


@pytest.mark.parametrize("kind", [GuardStops, NodeStops])
def test_a_short_stop_is_waited_for(kind: type[GuardStops | NodeStops]) -> None:
    """Shorter than the lease: nobody is lost."""
    call = Call(4, 2, (RankFault(0, 0, What.RAISE),), (kind(0.4, 1, 15.0),))
    assert ends(call) == ["finished"] * 4


def test_a_short_cut_is_waited_for() -> None:
    call = Call(4, 2, (RankFault(0, 0, What.RAISE),), (Cut(0.4, 1, 5.0),))
    assert ends(call) == ["finished"] * 4


def test_messages_per_node_do_not_grow_with_the_number_of_nodes() -> None:
    most = []
    for nodes in (2, 40):
        call = Call(nodes * 4, 4, (RankFault(0, 3, What.RAISE),))
        simulation = CallSimulation(call, 1)
        simulation.run()
        most.append(max(node.messages for node in simulation.nodes))
    assert most[0] == most[1]


def simulate_snapshots(first: int, n: int) -> int:
    """Calls whose ranks take snapshots; returns how many ranks have begun from one."""
    restored = 0
    for seed in range(first, first + n):
        call = random_call(seed, (2, 3, 4)[seed % 3]).but(snapshots=True)
        simulation = CallSimulation(call, seed)
        simulation.run()
        restored += simulation.epochs.restored
    return restored


def simulate_cycles(first: int, n: int) -> int:
    """Calls whose cycle began from a snapshot, every second time from a broken one."""
    restored = 0
    for seed in range(first, first + n):
        call = random_call(seed, (2, 3, 4)[seed % 3])
        began = {"began": 5, "is_broken": seed % 2 == 0, "drops_odd": False, "active": None}
        simulation = CallSimulation(call.but(snapshots=True, **began), seed)
        simulation.run()
        restored += simulation.epochs.restored
    return restored


def test_a_snapshot_that_leads_nowhere_is_not_used_for_ever(first_seed: int) -> None:
    """No third iteration in a row begins from it."""
    assert simulate_cycles(first_seed, 200) > 200


@pytest.mark.parametrize(
    ("kind", "name", "bug"),
    [
        (trust, "is_spent", lambda *_: False),
        (trust, "times", lambda *_: 1),
        (Coordinator, "_begins_as_the_cycle", lambda _: True),
        (Memory, "void", lambda *_: None),
    ],
    ids=["never spent", "not counted", "the cycle's choice for ever", "never void"],
)
def test_the_simulator_finds_a_snapshot_that_is_used_for_ever(
    monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, bug: Any
) -> None:
    monkeypatch.setattr(kind, name, bug)
    with pytest.raises(Violation):
        simulate_cycles(0, 300)


def test_all_ranks_of_an_iteration_begin_from_one_snapshot_or_all_from_none(
    first_seed: int,
) -> None:
    """T-1 and T-2, and the newest that is there."""
    assert simulate_snapshots(first_seed, 200) > 20


def any_state(self: GuardSnapshots, begins: BeginFrom, place: object) -> BeginFrom:
    """The one that was chosen, of whichever rank."""
    chosen = begins.restore and begins.restore.snapshot
    its = next((it for it in self._found if it.held.id == chosen), None)
    return begins.but(path=its.path, slot=its.slot) if its else begins


def newest_of_any(held: Any, *_: object, **__: object) -> choice.Chosen:
    return choice.Chosen(max((it.id for its in held.values() for it in its), default=None))


def never_void(self: Memory, but_until: object) -> None:
    pass


@pytest.mark.parametrize(
    ("kind", "name", "bug"),
    [
        (GuardSnapshots, "with_path", any_state),
        (beginning, "choose", newest_of_any),
        (Memory, "void", never_void),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_simulator_finds_a_bug_in_the_choice_of_a_snapshot(
    monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, bug: Any
) -> None:
    monkeypatch.setattr(kind, name, bug)
    with pytest.raises((Violation, KeyError)):
        simulate_snapshots(0, 600)


def simulate_ends(first: int, n: int) -> int:
    """Calls that launchers end; how often the next cycle went back behind a new beginning."""
    went_back = 0
    for seed in range(first, first + n):
        simulation = CallSimulation(random_end_by_launchers(seed), seed)
        simulation.run()
        went_back += simulation.epochs.went_back
    return went_back


def test_ranks_that_begin_anew_before_launchers_end_them_cost_no_snapshot(first_seed: int) -> None:
    """The next cycle begins from the newest that all had, until there is progress without it."""
    assert simulate_ends(first_seed, 300) > 20


def void_all(self: guard.Guard, message: BeginFrom) -> list[guard.Effect]:
    return BEGIN_FROM(self, message.but(fallback=None))


def takes_at_once(self: Memory) -> bool:
    return True


def never_voids(self: Memory) -> bool:
    self.to_prove = (self.to_prove or 1) - 1
    return self.to_prove <= 0


def newest_of_all(self: Coordinator) -> SnapshotId | None:
    held = (it for holdings in self._holdings.values() for it in holdings.held)
    return max((it.id for it in held), default=None)


BEGIN_FROM = guard.Guard._begin_from


@pytest.mark.parametrize(
    ("kind", "name", "bug"),
    [
        (guard.Guard, "_begin_from", void_all),
        (Memory, "proves", takes_at_once),
        (Memory, "proves", never_voids),
        (Coordinator, "_newest_not_given_up", newest_of_all),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_simulator_finds_a_bug_in_a_new_beginning(
    monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, bug: Any
) -> None:
    monkeypatch.setattr(kind, name, bug)
    with pytest.raises(Violation):
        simulate_ends(0, 600)
