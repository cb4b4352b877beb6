"""Simulated jobs of which all hosts sleep at the same time: they go on without a restart."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest

from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.beats import ANSWERING_NODES, Beats
from holdfast.job.pure.leader_watch import LeaderWatch
from holdfast.job.pure.member import Member
from holdfast.job.pure.membership import LeaderBeat
from holdfast.job.pure.rules import Rules
from tests.simulation.kernel import Violation
from tests.simulation.random_silences import random_silences
from tests.simulation.random_sleeps import random_asleep
from tests.simulation.scenario import Fault, Network, PowerLoss, Scenario, Suspend
from tests.simulation.simulation import Simulation


def asleep(hosts: int, seeds: Iterable[int]) -> None:
    for seed in seeds:
        try:
            Simulation(random_asleep(seed, hosts), seed).run()
        except Violation as violation:
            raise Violation(f"{violation} (random_asleep({seed}, {hosts}))") from None


@pytest.mark.parametrize(("hosts", "seeds"), [(1, 20), (2, 60), (3, 30), (4, 20), (8, 10)])
def test_a_job_that_sleeps_as_a_whole_and_loses_nobody_uses_no_restart(
    hosts: int, seeds: int, first_seed: int
) -> None:
    """For half a second or for hours, once or several times; and no launcher fails.

    A rank that fails as its node falls asleep or wakes costs two restarts at most. A host that is
    lost about that time ends no job that can do without it.
    """
    asleep(hosts, range(first_seed, first_seed + seeds))


def test_some_scenarios_of_silences_are_of_such_jobs() -> None:
    for hosts in (2, 4):
        same = [random_silences(seed, hosts) == random_asleep(seed, hosts) for seed in range(400)]
        assert 0.02 <= sum(same) / 400 <= 0.1


grant = LeaderWatch._grant


def grants_by_its_own_messages(
    self: LeaderWatch, lease_s: float | None, came_at: float, until: float
) -> None:
    """Also to the node in whose launcher the leader lives, as that wakes."""
    grant(self, lease_s, came_at, self._age.granted_until(came_at))


def test_the_simulator_finds_a_leader_whose_node_is_held_to_its_own_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds = range(50, 65)
    asleep(2, seeds)
    monkeypatch.setattr(LeaderWatch, "_grant", grants_by_its_own_messages)
    with pytest.raises(Violation, match=r"2 cycles|exits with 1"):
        asleep(2, seeds)


def large_job_of_which_one_wakes_first() -> None:
    """It asks, and only a leader that has a lease can give it more time."""
    hosts = range(ANSWERING_NODES + 2)
    rules = Rules(NodePolicy(len(hosts), len(hosts)), max_restarts=20, first_last_call_s=1.0)
    sleeps = tuple(Suspend(8.0, host, 38.0 if host == hosts[-1] else 42.0) for host in hosts)
    scenario = Scenario(
        len(hosts), rules, faults=sleeps, work_s=20.0, must_succeed=True, most_cycles=1
    )
    Simulation(scenario).run()


def answers_in_turn(self: Beats, beat: LeaderBeat, now: float) -> None:
    answer(self, beat.but(lease_s=1.0), now)


answer = Beats.on_leader_beat


def test_in_a_large_job_too_a_launcher_that_wakes_first_keeps_its_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large_job_of_which_one_wakes_first()
    monkeypatch.setattr(Beats, "on_leader_beat", answers_in_turn)
    with pytest.raises(Violation, match="2 cycles"):
        large_job_of_which_one_wakes_first()


def asleep_without_a_leader() -> None:
    """Its host is lost as all sleep; the others sleep again, while they look for another one."""
    rules = Rules(NodePolicy(3, 4), max_restarts=20, first_last_call_s=1.0)
    before = [Suspend(12.0, host, 20.0) for host in range(4)]
    for after_s, for_s in product((4.6, 4.8, 5.0), (122.0, 130.0, 3600.0)):
        again = [Suspend(32.0 + after_s, host, for_s) for host in range(1, 4)]
        faults: tuple[Fault, ...] = (*before, PowerLoss(20.0, 0), *again)
        slow = Network(delay_s=(0.2, 0.3))
        scenario = Scenario(4, rules, network=slow, faults=faults, work_s=60.0, must_succeed=True)
        Simulation(scenario).run()


def forgets_later_sleeps(self: LeaderWatch) -> float:
    return self.fence_at + self.pace.return_s


@pytest.mark.parametrize(
    ("machine", "part", "bug"),
    [
        (LeaderWatch, "leaves_at", property(forgets_later_sleeps)),
        (Member, "_look_at", property(lambda _: float("inf"), lambda _, __: None)),
    ],
)
def test_launchers_that_look_for_a_leader_leave_out_what_they_slept(
    monkeypatch: pytest.MonkeyPatch, machine: type, part: str, bug: property
) -> None:
    asleep_without_a_leader()
    monkeypatch.setattr(machine, part, bug)
    with pytest.raises(Violation, match="the job has not succeeded"):
        asleep_without_a_leader()
