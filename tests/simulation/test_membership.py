"""Simulated jobs, checked at every step: fresh seeds each run, and every place to crash."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice, pairwise, product
from typing import Any

import pytest

from holdfast.base.pure.budget import Budget
from holdfast.health.pure.gate import HealthGate
from holdfast.job.pure import votes
from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.cycles import JobCycles
from holdfast.job.pure.leader import Leader
from holdfast.job.pure.leader_lease import LeaderLease
from holdfast.job.pure.leader_messages import Effect, Event, LauncherEnded
from holdfast.job.pure.leader_watch import LeaderWatch
from holdfast.job.pure.lost_leaders import LostLeaders
from holdfast.job.pure.member import Member, MemberPhase
from holdfast.job.pure.member_messages import LeaderMissing, LeaderReplaced
from holdfast.job.pure.membership import EXCLUDE, JobOutcome, Join, StopCycle, Successor, elector
from holdfast.job.pure.nodes import Nodes
from holdfast.job.pure.rounds import Rounds
from holdfast.job.pure.rules import RestartPolicy, Rules
from holdfast.job.pure.succession import Allegiance, Succession
from holdfast.job.pure.succession_by_key import SuccessionByKey
from holdfast.job.pure.succession_messages import (
    ClaimKey,
    Leads,
    Ready,
)
from holdfast.job.pure.timing import VERDICT_SHARE, Pace
from holdfast.job.pure.votes import Votes
from holdfast.node.pure.launcher import Launcher
from holdfast.node.pure.node import Node
from holdfast.node.pure.rank_life import RankLives
from holdfast.standby.pure import parked_interpreters
from tests.simulation.kernel import Violation
from tests.simulation.random_scenario import random_scenario, random_suspension
from tests.simulation.random_silences import random_bare, random_halved, random_silences
from tests.simulation.random_takeovers import (
    random_takeovers,
    random_takeovers_by_key,
    random_takeovers_witnessed,
)
from tests.simulation.scenario import (
    Ask,
    Crash,
    Cut,
    Hangs,
    Network,
    Partition,
    Pause,
    PowerLoss,
    RankFails,
    Return,
    Scenario,
    Signal,
    Store,
    Suspend,
)
from tests.simulation.simulate import main, one_restart
from tests.simulation.simulated_node import SimulatedNode
from tests.simulation.simulation import Result, Simulation

SEEDS = 300


def run(scenario: Scenario, seed: int = 0, crash_after: tuple[tuple[int, int], ...] = ()) -> Result:
    """Run it; when a promise is broken, say so with the history that led there."""
    try:
        return Simulation(scenario, seed, crash_after).run()
    except Violation as violation:
        again = Simulation(scenario, seed, crash_after, trace=True)
        with pytest.raises(Violation):
            again.run()
        history = "\n".join(again.transcript)
        pytest.fail(f"{scenario}\ncrash after {crash_after}\n{history}\n{violation}", pytrace=False)


def test_no_history_breaks_a_promise(first_seed: int) -> None:
    """R-1, R-2, B-1, K-1 hold in jobs of 8 nodes with several faults at once, whatever the seed."""
    for seed in range(first_seed, first_seed + SEEDS):
        try:
            run(random_scenario(seed), seed)
        except pytest.fail.Exception as failure:
            pytest.fail(f"{failure}\nmake sim SEED={seed}", pytrace=False)


def test_a_history_can_be_repeated(first_seed: int) -> None:
    """The same seed gives the same steps, words and times."""

    def history() -> list[str]:
        scenario = random_scenario(first_seed)
        simulation = Simulation(scenario, first_seed, trace=True)
        simulation.run()
        return simulation.transcript

    assert history() == history(), f"seed {first_seed}"


QUICK = Pace(silence_s=1.5, beat_s=0.3, fence_s=1.0, join_timeout_s=5.0)
"""Little waiting, so that there are few steps and each of them matters."""
CALM = Network(delay_s=(0.001, 0.003))


def small(restart: RestartPolicy = RestartPolicy.ANY_FAILED, **options: object) -> Scenario:
    """Two or three active nodes, one spare, one failure."""
    rules = Rules(
        NodePolicy(2, 3),
        restart=restart,
        max_restarts=3,
        first_last_call_s=0.0,
        grow_cooldown_s=0.1,
        linger_s=3.0,
    )
    scenario = Scenario(
        hosts=4,
        rules=rules,
        pace=QUICK,
        network=CALM,
        faults=(RankFails(0.2, 1, every=True), RankFails(0.2005, 2)),
        work_s=0.7,
    )
    return replace(scenario, **options)  # type: ignore[arg-type]


class Notes(Simulation):
    """Notes whose step each one is, and when."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.noted: list[tuple[int, float]] = []

    def survives_step(self, one: SimulatedNode) -> bool:
        self.noted.append((one.host, self.clock.now))
        return super().survives_step(one)


def deaths(scenario: Scenario, host: int) -> list[int]:
    """Steps after which the launcher of ``host`` can die with different outcomes.

    All of its own; of the others' the last at each instant, for within one instant nobody hears of
    another's steps.
    """
    simulation = Notes(scenario)
    simulation.run()
    noted = [*simulation.noted, (host, -1.0)]
    return [
        step
        for step, ((actor, at), (_, then)) in enumerate(pairwise(noted), start=1)
        if actor == host or at != then
    ]


@pytest.mark.parametrize("restart", list(RestartPolicy))
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_launcher_can_die_at_any_step(restart: RestartPolicy, comes_back: bool) -> None:
    """Whichever launcher dies, after whichever step: nobody hangs, the rest goes on or ends."""
    scenario = small(restart)
    steps = [(step, host) for host in range(4) for step in deaths(scenario, host)]
    if comes_back:
        faults = (*scenario.faults, *(Return(0.5, host) for host in range(4)))
        scenario = replace(scenario, faults=faults)
    for step, host in steps:
        result = run(scenario, step, ((step, host),))
        if host != 0 and not comes_back and restart is RestartPolicy.ANY_FAILED:
            # Three of four are left and two are enough: the job must not suffer.
            assert result.end is not None
            assert result.end.outcome is JobOutcome.SUCCEEDED


@pytest.mark.parametrize("part", range(6))
def test_two_launchers_can_die_at_any_two_steps(part: int) -> None:
    """Every pair of launchers, after every pair of steps of a job of three nodes that restarts."""
    scenario = small(hosts=3, faults=(RankFails(0.05, 1),), work_s=0.1, proofs=1.0)
    rules = replace(scenario.rules, nodes=NodePolicy(1, 3))
    scenario = replace(scenario, rules=rules)
    both = product(deaths(scenario, 1), deaths(scenario, 2))
    for one, other in islice(both, part, None, 6):
        result = run(scenario, min(one, other), ((one, 1), (other, 2)))
        assert result.end is not None
        assert result.end.outcome is JobOutcome.SUCCEEDED


def test_a_leader_that_dies_leaves_nobody_behind() -> None:
    """At any step, in silence or not: every other launcher stops its ranks and exits with 1."""
    scenario = small()
    for step in deaths(scenario, 0):
        result = run(scenario, step, ((step, 0),))
        if result.end is None:
            assert set(result.exit_codes.values()) <= {1}


def test_a_spare_takes_the_place_of_a_lost_node() -> None:
    """Four of four wanted, the fifth waits; one dies, and four run again."""
    rules = Rules(NodePolicy(4, 4), max_restarts=1)
    scenario = Scenario(5, rules, faults=(Crash(5.0, 2),))

    result = run(scenario)

    assert result.end is not None
    assert result.end.outcome is JobOutcome.SUCCEEDED
    assert (result.cycles, result.restarts_used) == (2, 1)


def test_ranks_that_take_long_to_end_on_a_signal_do_not_hold_up_the_other_nodes() -> None:
    """These wait for the grace of a stop, 15 s here and maybe 5 s that a rank had no processor.

    They do not wait for that of the signal.
    """
    faults = (Signal(0.1, 1, grace_s=50.0, well=True), RankFails(0.2, 2, every=True))
    job = small(faults=faults, pace=Pace(), hosts=3)
    result = run(replace(job, rules=replace(job.rules, first_last_call_s=0.01)))

    assert (result.cycles, result.exit_codes["n0"], result.exit_codes["n1"]) == (2, 0, 1)
    assert result.virtual_s < 25.0


def test_a_leader_that_overslept_buries_nobody() -> None:
    """A pause of the leader's launcher, one beat shorter than the fence, disturbs nobody."""
    rules = Rules(NodePolicy(4, 4))
    scenario = Scenario(4, rules, faults=(Pause(3.5, 0, 6.5),))

    result = run(scenario)

    assert (result.cycles, set(result.exit_codes.values())) == (1, {0})


def suspended(seed: int) -> Scenario:
    """A job without other faults: nodes sleep up to 60 s, together or in turn."""
    rng = random.Random(seed)
    hosts = rng.randint(2, 6)
    least = rng.choice((hosts, hosts, rng.randint(1, hosts)))
    rules = Rules(
        NodePolicy(least, hosts),
        max_restarts=rng.choice((0, 0, 20)),
        grow_cooldown_s=rng.choice((0.0, 5.0, 30.0)),
    )
    faults: list[Suspend] = []
    at = rng.choice((rng.uniform(0, 1), rng.uniform(0, 40)))
    for _time in range(rng.choice((1, 1, 2))):
        faults += random_suspension(rng, hosts, at)
        at = max(fault.at + fault.for_s for fault in faults) + rng.uniform(0, 30)
    network = Network(delay_s=(0.0005, rng.choice((0.001, 0.02, 0.3))), duplicate=0.02)
    work_s = rng.choice((20.0, 60.0))
    return Scenario(hosts, rules, network=network, faults=tuple(faults), work_s=work_s)


def test_no_suspension_ends_a_job(first_seed: int) -> None:
    """D-1: all of it, some nodes or the leader's, at once or one after the other, restarts or none.

    It goes on or restarts; R-1 and B-1 hold. A launcher may sleep through the end of a job, and
    finds none of the others.
    """
    for seed in range(first_seed, first_seed + SEEDS // 2):
        job = suspended(seed)
        result = run(job, seed)
        assert result.end is not None, f"seed {seed}"
        assert result.end.outcome is JobOutcome.SUCCEEDED, f"seed {seed}"
        if job.rules.nodes.min_nodes == job.hosts:
            late = [node for node, code in result.exit_codes.items() if code]
            assert len(late) <= 1, f"seed {seed}"


def test_a_job_that_is_suspended_as_a_whole_restarts_nothing() -> None:
    """Whatever the budget; nodes wake within two seconds of each other."""
    for restarts, for_s in product((0, 3), (12.0, 25.0, 60.0)):
        faults = tuple(Suspend(5.0, host, for_s + 0.5 * host) for host in range(4))
        rules = Rules(NodePolicy(4, 4), max_restarts=restarts)
        assert run(Scenario(4, rules, faults=faults)).cycles == 1


def test_a_job_that_is_suspended_as_a_whole_restarts_nothing_if_its_leader_wakes_first() -> None:
    """When its lease is nearly over: it waits for answers as the others would for it."""
    rules = Rules(NodePolicy(3, 3), max_restarts=20, first_last_call_s=1.0)
    for for_s, later_s, phase in product((10.0, 12.0, 14.0), (0.5, 1.0, 3.0), (0.0, 1.0, 2.0)):
        at = 20.0 + phase
        faults = (Suspend(at, 0, for_s), *(Suspend(at, it, for_s + later_s) for it in (1, 2)))
        together = (0.0, 0.1, 0.2)
        about = {"faults": faults, "network": CALM, "work_s": 60.0, "starts_at": together}
        assert run(Scenario(3, rules, **about)).restarts_used == 0, faults


@pytest.mark.parametrize("silence_s", [5.0, 15.0])
def test_a_second_stall_costs_no_more_than_the_first(silence_s: float) -> None:
    """Of the leader, of another launcher, or of all of them, however soon it follows."""
    pace = Pace.of(silence_s, 120.0)
    for hosts, share, beats in product(
        ((0,), (1,), (0, 1, 2)), (0.25, 0.35, 0.45), (0.1, 0.6, 1.6)
    ):
        for_s, pause_s = share * silence_s, beats * pace.beat_s
        for phase in (0.0, 0.5):
            at = 20.0 + phase * pace.beat_s
            again = at + for_s + pause_s
            stalls = [Suspend(t, host, for_s) for t in (at, again) for host in hosts]
            rules = Rules(NodePolicy(3, 3), max_restarts=20, first_last_call_s=1.0)
            scenario = Scenario(3, rules, faults=tuple(stalls), network=CALM, work_s=60.0)
            result = run(replace(scenario, pace=pace))
            assert result.restarts_used == 0, stalls


def test_the_simulator_finds_launchers_that_do_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """As all did that found on waking that they had received nothing for so long."""
    monkeypatch.setattr(LeaderWatch, "woke", lambda _self, _now: None)
    rules = Rules(NodePolicy(2, 2), max_restarts=3)
    faults = (Suspend(5.0, 0, 25.0), Suspend(5.0, 1, 25.0))
    assert run(Scenario(2, rules, faults=faults)).cycles > 1


@pytest.mark.parametrize("nodes", [8, 100, 1000])
def test_the_cost_of_a_restart_does_not_grow_with_the_job(nodes: int) -> None:
    """A node sends one message and reads two decisions; the one that failed sends one more."""
    ops = sorted(one_restart(nodes).restart_ops.values())

    assert ops == [4] * nodes


def test_spares_of_a_large_job_that_come_one_by_one_all_stay() -> None:
    """The leader has news of each, so it beats often; launchers answer one after the other."""
    rules = Rules(NodePolicy(65, 65))
    starts_at = (*[0.0] * 66, *[2.0 + 1.05 * k for k in range(20)])
    result = run(Scenario(86, rules, network=CALM, starts_at=starts_at, work_s=30.0))
    assert (result.cycles, {*result.exit_codes.values()}) == (1, {0})


def test_many_nodes_whose_ranks_all_hang_are_one_incident_and_few_of_them_speak() -> None:
    """Two launchers get no processor: they are named, and the verdict waits no longer for them."""
    nodes, silent = 400, (40, 64)
    hang = [Hangs(5.0, host, every=True) for host in range(nodes)]
    pauses = [Pause(4.9, host, 5.0) for host in silent]
    rules = Rules(NodePolicy(nodes, nodes), max_restarts=1, evidence_s=1.0)
    faults = (*pauses, *hang)
    scenario = Scenario(nodes, rules, network=CALM, faults=faults, work_s=10.0, nproc=2)
    simulation = Simulation(scenario, trace=True)
    assert simulation.run().cycles == 2

    lines = [line for line in simulation.transcript if "**" not in line]
    assert sum("is overdue in cycle" in line for line in lines) < nodes / 3
    assert sum("evidence for incident 1" in line for line in lines) == nodes - len(silent)
    [opened] = [line for line in lines if "look at all ranks" in line]
    [judged] = [line for line in lines if "leader: => incident 1 is judged" in line]
    assert float(judged[:10]) - float(opened[:10]) <= VERDICT_SHARE + 0.001
    late = "; ".join(f"n{host}: did not answer within 0.8 s" for host in silent)
    assert judged.endswith(f"without {late}")


def test_a_node_that_was_cut_off_may_hear_of_an_incident_and_its_verdict_together() -> None:
    """It had no time to look, and says so: that breaks no promise."""
    rules = Rules(NodePolicy(3, 3), max_restarts=1, evidence_s=1.0)
    faults = (Cut(0.011, 2, 1.2, up=False, down=True), Hangs(0.2, 1, every=True))
    simulation = Simulation(Scenario(3, rules, network=CALM, faults=faults), trace=True)
    assert simulation.run().cycles == 2
    lacks = "rank 2 lacks it: its monitor had not answered when the verdict came"
    assert any(lacks in line for line in simulation.transcript)


class BelievesBrokenConnections(Simulation):
    """A connection that breaks is taken for the end of its launcher."""

    def _cut(self, cut: Cut) -> None:
        super()._cut(cut)
        one = self._launchers.get(cut.host)
        if one is not None and cut.host != 0 and one.follows is not None:
            one.follows.tell(LauncherEnded(one.core.member.node))


def test_the_simulator_notices_a_broken_connection_that_is_taken_for_a_death() -> None:
    """Ranks of two cycles run at a time: only a kernel proves that a launcher has ended."""
    cut = Cut(0.25, 1, 0.5)
    run(small(faults=(cut,)))
    with pytest.raises(Violation, match=r"R-[12]|refused"):
        BelievesBrokenConnections(small(faults=(cut,))).run()


@dataclass
class ForgetsSurvivors(Leader):
    """Forms the next round without waiting for the ranks of the last to be gone."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        self.cycles._forming.awaited.clear()
        return super().handle(event, now)


@dataclass
class CountsWrong(Leader):
    """Has one restart more than it was given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules, restarts = self.rules, self.cycles._restarts
        restarts._budget = Budget(rules.max_restarts + 1, rules.restarts_period_s)


@dataclass
class HearsNobody(Leader):
    """Takes only the first word of a node for a sign of life."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        heard = self.cycles.nodes._last_at
        before = dict(heard)
        effects = super().handle(event, now)
        for node, last_byte_at in before.items():
            if node in heard:
                heard[node] = last_byte_at
        return effects


class TakesAnyJob(Leader):
    """Lets a launcher in, whatever it was started to run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cycles._admission.workload = None


def first_violation(hosts: int, seeds: int, **options: object) -> Violation | None:
    for seed in range(seeds):
        simulation = Simulation(random_scenario(seed, hosts), seed)
        for name, value in options.items():
            setattr(simulation, name, value)
        try:
            simulation.run()
        except Violation as violation:
            return violation
    return None


@pytest.mark.parametrize("broken", [ForgetsSurvivors, CountsWrong, HearsNobody, TakesAnyJob])
def test_the_simulator_finds_planted_bugs(broken: Callable[..., Leader]) -> None:
    """Within a few dozen seeds."""
    assert first_violation(8, 60, make_leader=broken) is not None


def joins_at_once(self: Member, stop: StopCycle) -> None:
    self.phase = MemberPhase.STOPPING
    self._cycle_over()


def sweeps_beside_ranks(self: Node, local_rank: int, exit_code: int, now: float) -> None:
    self.alive.discard(local_rank)
    self._exit_codes[local_rank] = exit_code
    self._fail(local_rank)
    self._sweep(now)


def tells_at_once(self: RankLives) -> None:
    return None


def forgets_its_question(self: HealthGate, how: str, now: float, effects: list[object]) -> None:
    self._is_running = False
    self._asked = self._deadline = None


def never_settles(self: parked_interpreters.ParkedInterpreters, now: float) -> None:
    pass


def feeds_at_once(self: Launcher, machine: Any, event: Any, now: float) -> None:
    for effect in machine.handle(event, now):
        for other, inner in self._route(machine, effect):
            self._run(other, inner, now)


@pytest.mark.parametrize(
    ("kind", "method", "bug", "hosts"),
    [
        (Member, "_on_stop", joins_at_once, 8),
        (Node, "_on_exit", sweeps_beside_ranks, 1),
        (RankLives, "_held_until", tells_at_once, 1),
        (HealthGate, "_on_death", forgets_its_question, 1),
        (parked_interpreters.ParkedInterpreters, "_on_time", never_settles, 1),
        (Launcher, "_run", feeds_at_once, 1),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_simulator_finds_a_bug_in_each_machine(
    monkeypatch: pytest.MonkeyPatch, kind: type, method: str, bug: Callable[..., None], hosts: int
) -> None:
    monkeypatch.setattr(kind, method, bug)
    assert first_violation(hosts, 1500 if hosts == 1 else 60) is not None


# ---------------------------------------------------------------- leadership moves
def takeover(seed: int, hosts: int) -> tuple[Scenario, Result, int]:
    scenario = random_takeovers(seed, hosts)
    simulation = Simulation(scenario, seed)
    result = simulation.run()
    return scenario, result, simulation.takeovers


@pytest.mark.parametrize(("hosts", "seeds"), [(3, 150), (5, 150), (9, 60), (33, 4)])
def test_no_leader_that_dies_breaks_a_promise_or_ends_a_job(
    hosts: int, seeds: int, first_seed: int
) -> None:
    """R-1, R-2, B-1, L-1 hold; and a majority that lives and has the proof always continues.

    Several die, at the same time or one after the other, in the middle of a restart or of the
    search for the next one; some return.
    """
    moved = 0
    for seed in range(first_seed, first_seed + seeds):
        again = f"simulate --takeovers --nodes {hosts} --seed {seed}"
        try:
            scenario, result, takeovers = takeover(seed, hosts)
        except Violation as violation:
            pytest.fail(f"{violation}\n{again}", pytrace=False)
        moved += takeovers
        if scenario.proofs == 1.0:
            assert result.end is not None, again
            assert result.end.outcome is JobOutcome.SUCCEEDED, again
    assert moved >= seeds / 3


def starts_at_once(self: JobCycles, before: Leads, now: float) -> None:
    """The next cycle does not wait for launchers from which no word came."""
    inherit(self, before, now)
    self.takeover.formed()
    self.takeover.start_early_if_sure()


def votes_with_ranks(self: Launcher, event: Any, why: str) -> list[Any]:
    """A launcher votes while its ranks run."""
    addressed = on_leader_gone(self, event, why)
    member = self.member
    join = Join(member.node, member.desc, member.cycle)
    is_moving = any(isinstance(event, LeaderReplaced) for _, event in addressed)
    return [*addressed, (self.succession, Ready(join))] if is_moving else addressed


def votes_twice(self: Succession, node: str, now: float) -> None:
    """A launcher that has voted votes for the next one as well."""
    on_reached(self, node, now)
    self.allegiance = Allegiance.SEEKING
    self._seek(now)


on_reached = Succession._on_reached
inherit, on_leader_gone = JobCycles._inherit, Launcher._on_leader_gone


@pytest.mark.parametrize(
    ("kind", "method", "bug"),
    [
        (Succession, "_on_reached", votes_twice),
        (JobCycles, "_inherit", starts_at_once),
        (Launcher, "_on_leader_gone", votes_with_ranks),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_simulator_finds_a_bug_in_the_succession(
    monkeypatch: pytest.MonkeyPatch, kind: Any, method: str, bug: Any
) -> None:
    monkeypatch.setattr(kind, method, bug)
    with pytest.raises(Violation):
        many_takeovers()


def many_takeovers() -> None:
    each_death_of_a_leader()
    for seed, hosts in product(range(400), (4, 6)):
        takeover(seed, hosts)


def each_death_of_a_leader() -> None:
    """At each step of a job of five that restarts: one dies, or its successor as well."""
    scenario = small(hosts=5, faults=(RankFails(0.05, 1),), work_s=0.2, proofs=1.0)
    rules = replace(scenario.rules, nodes=NodePolicy(2, 5), first_last_call_s=0.02)
    scenario = replace(scenario, rules=rules)
    for step in deaths(scenario, 0):
        Simulation(scenario, 0, ((step, 0),)).run()
        Simulation(scenario, 0, ((step, 0), (step + 40, 1))).run()


def test_a_leader_can_die_at_any_step_and_so_can_the_next() -> None:
    each_death_of_a_leader()


# ---------------------------------------------------------------- leadership moves by silence
def silence(seed: int, hosts: int) -> int:
    simulation = Simulation(random_silences(seed, hosts), seed)
    simulation.run()  # which checks that a job that must succeed does
    return simulation.takeovers


@pytest.mark.parametrize(("hosts", "seeds"), [(2, 60), (3, 100), (4, 40), (5, 40), (8, 20)])
def test_a_majority_that_lives_and_can_talk_always_goes_on(
    hosts: int, seeds: int, first_seed: int
) -> None:
    """R-1, R-2, B-1, L-1, L-2 hold, whoever is silent, of what cause, for how long.

    Links are cut, the network is parted, hosts sleep or lose their power; witnesses and spares are
    among them. Where more than half live and the network heals, the job succeeds.
    """
    moved = 0
    for seed in range(first_seed, first_seed + seeds):
        try:
            moved += silence(seed, hosts)
        except Violation as violation:
            again = f"simulate --silences --nodes {hosts} --seed {seed}"
            pytest.fail(f"{violation}\n{again}", pytrace=False)
    assert moved >= seeds / 20


def decides_without_a_lease(self: LeaderLease, now: float) -> bool:
    return True


def grants_too_much(self: LeaderLease, now: float) -> float:
    return 60.0


def takes_over_at_once(self: Leader) -> None:
    """It does not wait for the lease of the leader before, nor for its ranks."""
    if self.inherited is not None:
        self.inherited = self.inherited.but(leases_until=0.0, ranks_until=0.0)
    become_leader(self)


def votes_at_once(self: Launcher, missing: LeaderMissing) -> list[Any]:
    """A launcher votes while its ranks are being killed."""
    addressed = on_leader_missing(self, missing)
    member = self.member
    ready = Ready(Join(member.node, member.desc, member.cycle))
    return [*addressed, (self.succession, ready)] if addressed else []


on_leader_missing, become_leader = Launcher._on_leader_missing, Leader.__post_init__


@pytest.mark.parametrize(
    ("kind", "method", "bug"),
    [
        (LeaderLease, "is_held", decides_without_a_lease),
        (Leader, "__post_init__", takes_over_at_once),
        (Launcher, "_on_leader_missing", votes_at_once),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_simulator_finds_a_bug_about_leases(
    monkeypatch: pytest.MonkeyPatch, kind: type, method: str, bug: Any
) -> None:
    monkeypatch.setattr(kind, method, bug)
    with pytest.raises(Violation):
        many_silences()


def many_silences() -> None:
    for seed, hosts in product(range(400, 430), (3, 5)):
        silence(seed, hosts)


def follower_of_a_leader_without_a_lease() -> None:
    """It is apart from the three others with its leader, and then, at any second, alone."""
    rules = Rules(NodePolicy(3, 5), max_restarts=20, first_last_call_s=1.0)
    apart = Partition(17.0, 1, frozenset({1, 2, 3}), 60.0)
    for second in range(20):
        faults = apart, Cut(17.0 + second, 4, 40.0)
        Simulation(Scenario(5, rules, faults=faults, network=CALM, work_s=60.0)).run()


def test_no_ranks_outlive_the_lease_of_their_leader_by_its_own_beats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R-1, for those who have not voted for the next one."""
    follower_of_a_leader_without_a_lease()
    monkeypatch.setattr(LeaderLease, "left_s", grants_too_much)
    with pytest.raises(Violation):
        follower_of_a_leader_without_a_lease()


def test_a_new_leader_finds_those_that_look_for_one_among_themselves() -> None:
    """They wake with a leader that formed no round; it steps down, and each asks the others."""
    silence(305350963, 16)


@pytest.mark.parametrize(("seed", "hosts"), [(1020009077, 22), (1050014074, 27)])
def test_groups_that_are_a_bare_majority_together_find_each_other(seed: int, hosts: int) -> None:
    """Half are lost without a word, and those that live begin to look for a leader apart."""
    silence(seed, hosts)


def send_voters_away(self: Succession, now: float) -> None:
    """They go each its own way, and ask hosts that are off at different times."""
    for term, voters in self._votes.due(now):
        others = [node for node in voters if node != self._own]
        self._votes.drop(self._own)
        self._effects += self._votes.release(others, term + 1)
        if others != voters and self._is_candidate(self._own):
            self._seek_after_vote(now)


def test_the_simulator_finds_a_candidate_that_sends_its_voters_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Succession, "_give_back", send_voters_away)
    monkeypatch.setattr(Votes, "would_elect", lambda self, own, electorates: False)
    with pytest.raises(Violation, match="a majority lives"):
        silence(1050014074, 27)


def test_a_host_that_comes_back_as_its_leader_is_lost_is_missed_by_no_majority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a spare that knows no round, and so cannot vote, it does not count a second time."""
    silence(1410032050, 11)
    monkeypatch.setattr(Rounds, "_is_learner", lambda self, node: False)
    with pytest.raises(Violation, match="a majority lives"):
        silence(1410032050, 11)


def test_a_candidate_learns_of_a_voter_that_knows_a_later_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those who know less than the voter are bound to it, and send that one on to it."""
    silence(1940000327, 40)
    monkeypatch.setattr(Succession, "_bound_to", None)
    with pytest.raises(Violation, match="a majority lives"):
        silence(1940000327, 40)


def moved_in(kind: Callable[[int, int], Scenario], hosts: int, seeds: Iterable[int]) -> int:
    """In how many of these jobs another launcher has led."""
    moved = 0
    for seed in seeds:
        simulation = Simulation(kind(seed, hosts), seed)
        try:
            simulation.run()
        except Violation as violation:
            raise Violation(f"{violation} ({kind.__name__}({seed}, {hosts}))") from None
        moved += simulation.takeovers > 0
    return moved


@pytest.mark.parametrize(("hosts", "seeds"), [(3, 40), (7, 40), (12, 20), (24, 6)])
def test_launchers_that_are_all_needed_find_together(
    hosts: int, seeds: int, first_seed: int
) -> None:
    """The others, and the leader, lose their power about one time."""
    assert moved_in(random_bare, hosts, range(first_seed, first_seed + seeds)) == seeds


def test_a_new_leader_hears_nothing_that_was_sent_to_the_one_before() -> None:
    """The join of a launcher that has had ranks since, on a connection that is closed."""
    silence(1540021305, 3)


def test_a_leader_before_that_follows_brings_the_number_of_cycles_that_none_knew_of() -> None:
    """It formed two, cut off from all; the next leader formed one of the same number since."""
    simulation = Simulation(random_takeovers_witnessed(1030026395, 2), 1030026395)
    simulation.run()
    assert simulation.takeovers == 2


def leader_that_dies_when_half_have_lost_it() -> None:
    """It leads the other half, until one of these votes with the proof; another still has ranks."""
    rules = Rules(NodePolicy(3, 4), max_restarts=20)
    half = Partition(10.0, 2, frozenset({2, 3, 5}), 11.0)
    about = {"faults": (half, Crash(21.6, 0)), "network": CALM, "work_s": 60.0, "proofs": 0.5}
    for seed in range(40, 60):
        Simulation(Scenario(6, rules, **about), seed).run()


def forgets_when_others_died(self: LostLeaders, nodes: Any, now: float) -> None:
    """A candidate learns of a death, and not that ranks may have that leader's word."""
    self.ended.update(nodes)


def test_ranks_of_a_leader_that_has_died_are_waited_for_by_those_that_had_lost_it_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R-1: a leader by the votes of launchers that had heard nothing for long, and of one more."""
    leader_that_dies_when_half_have_lost_it()
    monkeypatch.setattr(LostLeaders, "note_ended", forgets_when_others_died)
    with pytest.raises(Violation):
        leader_that_dies_when_half_have_lost_it()


@pytest.mark.parametrize(("hosts", "seeds"), [(4, 40), (6, 40), (8, 20)])
def test_a_leader_that_half_have_lost_may_be_lost_by_the_others_at_any_moment(
    hosts: int, seeds: int, first_seed: int
) -> None:
    """R-1, R-2, B-1, L-1, L-2 hold, and the job succeeds where three or more were left."""
    assert moved_in(random_halved, hosts, range(first_seed, first_seed + seeds)) >= seeds / 3


@pytest.mark.parametrize(("kind", "smallest"), [(random_halved, 4), (random_bare, 3)])
def test_some_scenarios_of_silences_are_of_these_kinds(
    kind: Callable[[int, int], Scenario], smallest: int
) -> None:
    for hosts in (smallest, 8):
        same = [random_silences(seed, hosts) == kind(seed, hosts) for seed in range(400)]
        assert 0.02 <= sum(same) / 400 <= 0.1


def test_such_scenarios_find_a_candidate_that_forgets_when_others_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved_in(random_halved, 6, range(50))
    monkeypatch.setattr(LostLeaders, "note_ended", forgets_when_others_died)
    with pytest.raises(Violation, match="R-1"):
        moved_in(random_halved, 6, range(50))


def takes_a_third(votes: Any, electorate: frozenset[str]) -> bool:
    return 3 * len(electorate.intersection(votes)) >= len(electorate)


def test_such_scenarios_find_two_leaders_that_a_third_each_have_elected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(votes, "is_majority", takes_a_third)
    with pytest.raises(Violation, match="L-1"):
        moved_in(random_halved, 8, range(30))


@pytest.mark.parametrize(("hosts", "apart"), [(16, 8), (70, 32)])
def test_launchers_that_were_apart_are_back_with_their_leader_soon_after(
    hosts: int, apart: int
) -> None:
    """All of its successors, and too few to elect one; the job needs them all."""
    cut_s, work_s = 20.0, 20.0
    rules = Rules(NodePolicy(hosts, hosts), max_restarts=1)
    parted = Partition(10.0, 1, frozenset(range(1, 1 + apart)), cut_s)
    result = run(Scenario(hosts, rules, faults=(parted,), network=CALM, work_s=work_s))
    assert ({*result.exit_codes.values()}, result.cycles) == ({0}, 2)
    assert result.virtual_s < 10.0 + cut_s + Pace().silence_s + 1.2 * work_s


def test_a_launcher_that_was_awake_while_the_others_slept_keeps_its_place() -> None:
    """Each of them, once awake, tells it that they have their leader again."""
    hosts, rules = 40, Rules(NodePolicy(4, 8), max_restarts=1)
    asleep = tuple(Suspend(10.0, host, 30.0) for host in range(hosts - 1))
    slow = Network(delay_s=(0.2, 0.3))
    result = run(Scenario(hosts, rules, faults=asleep, network=slow, work_s=60.0))
    assert result.exit_codes == {f"n{host}": 0 for host in range(hosts)}


def test_a_leader_that_is_cut_off_when_the_job_has_shrunk_by_silence_leads_again() -> None:
    """The launcher and the witness that have no vote in its last round wait for it."""
    rules = Rules(NodePolicy(1, 2), max_restarts=20, first_last_call_s=1.5)
    asleep = Suspend(13.64, 1, 14.0)
    for second in range(12):
        cut = Cut(17.0 + second, 0, 30.0, up=False)
        starts_at = (0.0, 0.0, 0.1)
        about = {"faults": (asleep, cut), "network": CALM, "starts_at": starts_at, "witnesses": 1}
        run(Scenario(2, rules, must_succeed=True, **about))


def test_a_leader_that_has_shrunk_the_job_to_itself_finds_the_one_that_the_others_elected() -> None:
    """It knows that one by its call alone, and comes back to the job."""
    rules = Rules(NodePolicy(1, 2), max_restarts=20, first_last_call_s=1.0)
    stopped = Pause(22.0, 2, 10.4), Pause(22.0, 0, 8.0)
    cuts = Cut(32.9, 1, 16.5), Cut(32.9, 2, 16.5)
    about = {"faults": (*stopped, *cuts), "network": CALM, "work_s": 60.0, "witnesses": 1}
    result = run(Scenario(2, rules, starts_at=(0.0, 0.1, 0.2), **about))
    assert set(result.exit_codes.values()) == {0}


@pytest.mark.parametrize("slept_s", [0.0, 60.0])
def test_a_launcher_that_only_hosts_the_leader_ends_no_job_by_a_signal(slept_s: float) -> None:
    """The others elect the next leader; or have done so while it slept."""
    rules = Rules(NodePolicy(2, 3), max_restarts=5, first_last_call_s=1.0)
    faults = Ask(5.0, 0, EXCLUDE), Suspend(12.0, 0, slept_s)
    for after_s in (0.0, 0.1, 0.5, 1.0, 4.0):
        signal = Signal(12.0 + slept_s + after_s, 0, 0.1, well=True)
        about = {"network": CALM, "proofs": 1.0, "work_s": 20.0, "must_succeed": True}
        result = run(Scenario(3, rules, faults=(*faults, signal), **about))
        assert (result.exit_codes["n1"], result.exit_codes["n2"]) == (0, 0)


def test_a_job_that_loses_most_launchers_of_a_round_ends_although_most_hosts_live() -> None:
    """Those that were started anew have no vote."""
    rules = Rules(NodePolicy(1, 3), max_restarts=20, first_last_call_s=1.0)
    lost = PowerLoss(10.0, 1), PowerLoss(10.0, 2), Return(10.1, 1), Return(10.1, 2)
    result = run(Scenario(3, rules, faults=lost, network=CALM, work_s=60.0, must_succeed=True))
    assert result.exit_codes["n0"] == 1


def test_a_host_that_is_stopped_as_it_is_cut_off_ends_its_ranks_in_time() -> None:
    """A beat that it reads late was sent before; it is late by less than a sleep is known from."""
    rules = Rules(NodePolicy(1, 4), max_restarts=20, first_last_call_s=1.5)
    asleep = Suspend(9.7846, 0, 0.5), Suspend(9.7846, 1, 0.5), Suspend(9.7846, 3, 3.4156)
    faults = (Partition(9.722, 0, frozenset({0, 1, 2}), 17.0), *asleep)
    slow = Network(delay_s=(0.0005, 0.3), duplicate=0.05)
    starts_at = (0.2442, 0.0, 0.0, 0.0697)
    about = {"network": slow, "slow_stop": 0.5, "proofs": 1.0, "starts_at": starts_at}
    for seed in range(20):
        run(Scenario(4, rules, faults=faults, must_succeed=True, **about), seed)


@pytest.mark.parametrize(("hosts", "witnesses"), [(2, 1), (3, 0), (4, 1), (5, 0)])
def test_a_leader_that_was_cut_off_gives_the_others_time_to_answer(
    hosts: int, witnesses: int
) -> None:
    """A majority answers first; the rest are as alive as that, and keep their places."""
    rules = Rules(NodePolicy(1, hosts), max_restarts=20, first_last_call_s=1.0)
    for cut_s in (13.0, 15.0, 17.0):
        cut = Cut(20.5, 0, cut_s, up=False)
        together = (0.0,) * (hosts + witnesses)
        about = {"faults": (cut,), "work_s": 60.0, "witnesses": witnesses, "starts_at": together}
        result = run(Scenario(hosts, rules, must_succeed=True, **about))
        assert result.exit_codes == {f"n{number}": 0 for number in range(hosts + witnesses)}
        assert result.cycles == 2


def newcomers_without_a_vote() -> None:
    """A launcher is started anew, and no round names it yet when the leader is cut off.

    With it half of the launchers could elect another one; the other half follows the leader.
    """
    for hosts, tenth in product((4, 6), range(8)):
        rules = Rules(NodePolicy(1, hosts), max_restarts=20, first_last_call_s=1.0, grow=False)
        lost = Crash(10.0, hosts - 1), Return(10.3, hosts - 1)
        apart = Partition(10.3 + tenth / 10, 0, frozenset(range(hosts // 2)), 60.0)
        about = {"faults": (*lost, apart), "network": CALM, "work_s": 30.0, "proofs": 1.0}
        Simulation(Scenario(hosts, rules, **about)).run()


def test_a_launcher_that_is_admitted_has_no_vote_before_a_round_says_so() -> None:
    newcomers_without_a_vote()


def counts_each_vote(votes: Any, electorate: frozenset[str]) -> bool:
    return 2 * len({*map(elector, votes)}) > len(electorate)


def counts_each_answer(self: LeaderLease, one: Any, node: str, number: int, more: int) -> None:
    if node != self.home:
        one.answers[number] = one.answers.get(number, 0) + more


@pytest.mark.parametrize("has_lease", [False, True])
def test_the_simulator_finds_launchers_that_vote_because_they_are_admitted(
    monkeypatch: pytest.MonkeyPatch, has_lease: bool
) -> None:
    """With the answers of such launchers two leaders have a lease; without, none ever has one."""
    monkeypatch.setattr(votes, "is_majority", counts_each_vote)
    if has_lease:
        monkeypatch.setattr(LeaderLease, "_count_in", counts_each_answer)
    expected = "L-2: n2 decides, and n0 has a lease" if has_lease else "never comes to an end"
    with pytest.raises(Violation, match=expected):
        newcomers_without_a_vote()


# ---------------------------------------------------------------- witnesses
def takeover_witnessed(seed: int, hosts: int) -> tuple[Scenario, Result, int]:
    scenario = random_takeovers_witnessed(seed, hosts)
    simulation = Simulation(scenario, seed)
    result = simulation.run()
    return scenario, result, simulation.takeovers


@pytest.mark.parametrize(("hosts", "seeds"), [(2, 200), (3, 80), (4, 80), (5, 50)])
def test_with_a_witness_half_of_the_launchers_are_enough(
    hosts: int, seeds: int, first_seed: int
) -> None:
    """R-1, R-2, B-1, L-1 hold; no witness leads, has ranks, or keeps a job waiting.

    One of two goes on. A witness that comes late, dies, returns, sleeps or is cut off costs a job
    nothing that it had without it.
    """
    moved = 0
    for seed in range(first_seed, first_seed + seeds):
        again = f"simulate --witnessed --nodes {hosts} --seed {seed}"
        try:
            scenario, result, takeovers = takeover_witnessed(seed, hosts)
        except Violation as violation:
            pytest.fail(f"{violation}\n{again}", pytrace=False)
        moved += takeovers
        faulty = {it.host for it in scenario.faults if isinstance(it, Crash | Signal | Suspend)}
        lost = sum(host < hosts for host in faulty)
        has_witness = lost == len(faulty) and scenario.starts_at[hosts] < 1.0
        if scenario.proofs == 1.0 and (has_witness or 2 * lost < hosts):
            assert result.end is not None, again
            assert result.end.outcome is JobOutcome.SUCCEEDED, again
    assert moved >= seeds / 3


def witness_votes_twice(self: Succession, node: str, now: float) -> None:
    on_reached(self, node, now)
    if self._ready is not None and self._ready.join.desc.is_witness:
        self.allegiance = Allegiance.SEEKING
        self._seek(now)


def has_always_a_vote(self: Nodes, launchers: int) -> str:
    return next(iter(self.witnesses), "")


def names_witnesses(self: Rounds, nodes: Any) -> tuple[Successor, ...]:
    """They would lead."""
    witnesses = self.nodes.witnesses.values()
    return (*(Successor(it.id, it.addr, 1) for it in witnesses), *successors(self, nodes))


def gets_a_place(self: JobCycles, join: Join, now: float) -> None:
    on_witness_join(self, join, now)
    self.nodes.alive[join.node] = self.nodes.witnesses.pop(join.node)
    self.nodes.ready[join.node] = None


successors, on_witness_join = Rounds.successors, JobCycles._on_witness_join


def many_takeovers_witnessed() -> None:
    for seed, hosts in product(range(200), (2, 3, 4)):
        takeover_witnessed(seed, hosts)


@pytest.mark.parametrize(
    ("kind", "method", "bug"),
    [
        (Succession, "_on_reached", witness_votes_twice),
        (Nodes, "witness_for", has_always_a_vote),
        (Rounds, "successors", names_witnesses),
        (JobCycles, "_on_witness_join", gets_a_place),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_simulator_finds_a_bug_about_witnesses(
    monkeypatch: pytest.MonkeyPatch, kind: type, method: str, bug: Any
) -> None:
    monkeypatch.setattr(kind, method, bug)
    with pytest.raises(Violation):
        many_takeovers_witnessed()


def test_the_job_of_two_goes_on_at_each_step_at_which_its_leader_dies() -> None:
    """Once the first cycle has begun; and at no step the death of the witness costs anything."""
    scenario = small(hosts=2, faults=(RankFails(0.05, 1),), work_s=0.2, proofs=1.0, witnesses=1)
    rules = replace(scenario.rules, nodes=NodePolicy(1, 2), first_last_call_s=0.02)
    scenario = replace(scenario, rules=rules)
    for step in deaths(scenario, 2):
        result = Simulation(scenario, 0, ((step, 2),)).run()
        assert result.end is not None
        assert result.end.outcome is JobOutcome.SUCCEEDED
        assert result.restarts_used == 1
    moved = 0
    for step in deaths(scenario, 0):
        simulation = Simulation(scenario, 0, ((step, 0),))
        result = simulation.run()
        moved += simulation.takeovers
        if simulation.takeovers:
            assert result.end is not None
            assert result.end.outcome is JobOutcome.SUCCEEDED
    assert moved > 30


# ---------------------------------------------------------------- by a key
def takeover_by_key(
    seed: int, hosts: int, kind: type[Simulation] = Simulation
) -> tuple[Scenario, Result, int]:
    scenario = random_takeovers_by_key(seed, hosts)
    simulation = kind(scenario, seed)
    result = simulation.run()
    return scenario, result, simulation.takeovers


@pytest.mark.parametrize(("hosts", "seeds"), [(2, 150), (3, 150), (5, 80), (12, 15)])
def test_with_a_key_the_last_launcher_that_lives_leads(
    hosts: int, seeds: int, first_seed: int
) -> None:
    """R-1, R-2, B-1, L-1 hold; and as long as one lives and has the proof, the job continues.

    The store is slow or away, carries changes out late, and is claimed by several at once.
    """
    moved = 0
    for seed in range(first_seed, first_seed + seeds):
        again = f"simulate --by-key --nodes {hosts} --seed {seed}"
        try:
            scenario, result, takeovers = takeover_by_key(seed, hosts)
        except Violation as violation:
            pytest.fail(f"{violation}\n{again}", pytrace=False)
        moved += takeovers
        if scenario.proofs == 1.0:
            assert result.end is not None, again
            assert result.end.outcome is JobOutcome.SUCCEEDED, again
    assert moved >= seeds / 3


class SetsAlways(Simulation):
    """The store ignores what the key was expected to be."""

    def compare_set(self, expected: str, value: str) -> str:
        return super().compare_set(self._key if expected else expected, value)


def claims_from_the_living(self: SuccessionByKey) -> None:
    """Whatever launcher has the key."""
    elect(self)
    everyone = tuple(it.node for it in self.round.successors) if self.round is not None else ()
    self._effects = [
        it.but(dead=(*it.dead, *everyone)) if isinstance(it, ClaimKey) else it
        for it in self._effects
    ]


elect = SuccessionByKey._elect


def many_takeovers_by_key(kind: type[Simulation] = Simulation) -> None:
    for seed, hosts in product(range(400), (3, 5)):
        takeover_by_key(seed, hosts, kind)


def test_the_simulator_finds_a_store_that_compares_nothing() -> None:
    with pytest.raises(Violation):
        many_takeovers_by_key(SetsAlways)


def test_the_simulator_finds_a_claim_against_the_living(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SuccessionByKey, "_elect", claims_from_the_living)
    with pytest.raises(Violation):
        many_takeovers_by_key()


def test_a_leader_with_a_key_can_die_at_any_step_and_so_can_the_next() -> None:
    """One of two, and two of three: the last one always completes the job."""
    for hosts in (2, 3):
        faults = (RankFails(0.05, 1),)
        scenario = small(hosts=hosts, faults=faults, work_s=0.2, proofs=1.0, store=Store())
        rules = replace(scenario.rules, nodes=NodePolicy(1, hosts), first_last_call_s=0.02)
        scenario = replace(scenario, rules=rules)
        for step in deaths(scenario, 0):
            Simulation(scenario, 0, ((step, 0),)).run()
            if hosts == 3:
                Simulation(scenario, 0, ((step, 0), (step + 40, 1))).run()


def test_no_history_of_one_node_breaks_a_promise(first_seed: int) -> None:
    """The same machines, with a deque for the connections."""
    for seed in range(first_seed, first_seed + 3 * SEEDS):
        try:
            run(random_scenario(seed, 1), seed)
        except pytest.fail.Exception as failure:
            pytest.fail(f"{failure}\nsimulate --nodes 1 --seed {seed}", pytrace=False)


# ---------------------------------------------------------------- the command
def test_the_command_replays_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    """``--seed`` prints the history, ``--seeds`` only its summary."""
    assert main(["--seed", "1", "--nodes", "3"]) == 0
    shown = capsys.readouterr().out
    assert "-> join" in shown
    assert "0 violations" in shown
    assert main(["--seeds", "3", "--nodes", "3"]) == 0
    assert "3 seeds from" in capsys.readouterr().out
    assert main(["--inprocess", "--seed", "1", "--nodes", "3"]) == 0
    assert "rank0: " in capsys.readouterr().out
    assert main(["--inprocess", "--seeds", "3", "--nodes", "3"]) == 0
    assert "3 ranks of a restart in place" in capsys.readouterr().out
