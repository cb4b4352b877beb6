"""One simulated node: a launcher with the machines of production, and the processes around it.

Ranks, their monitors, the health process and parked interpreters are as bad as the scenario wants
them. What a launcher does with the network is :mod:`tests.simulation.simulation`'s business.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from holdfast.base.pure.common_events import IterationRead, Note, TimePassed
from holdfast.base.pure.deadlines import earliest
from holdfast.health.pure import gate as gating
from holdfast.health.pure.gate import HealthGate
from holdfast.health.pure.health import Finding, Fitness
from holdfast.inplace.pure.job_calls import CallBegan, CallEnded
from holdfast.job.pure.leader import Leader
from holdfast.job.pure.leader_messages import ReadIteration
from holdfast.job.pure.member_messages import (
    HoldingsRead,
    KeepStep,
    RanksFailed,
    SetCadence,
    StartRanks,
    StepKept,
)
from holdfast.job.pure.membership import FailureReport, Round
from holdfast.job.pure.succession import Allegiance, Succession
from holdfast.job.pure.succession_by_key import SuccessionByKey
from holdfast.node.pure import launcher as machine
from holdfast.node.pure import node, rank_life
from holdfast.node.pure.cycle_events import CycleEnding
from holdfast.node.pure.launcher import Launcher, PortReserved
from holdfast.node.pure.node_evidence import IncidentOver, NodeEvidence
from holdfast.standby.pure import parked_interpreters
from holdfast.standby.pure.parked_messages import ParkedReady
from holdfast.testing.clock import VirtualClock
from tests.simulation.kernel import Alarm, ProcessClock
from tests.simulation.simulated_kept_steps import SimulatedKeeping
from tests.simulation.simulated_monitors import SimulatedMonitors
from tests.simulation.simulated_snapshots import SimulatedArenas

RANKS_OUTLIVE_LAUNCHER_S = 0.05
SIGTERM, SIGKILL = 15, 9
_DIES_S = (0.001, 0.2)
"""How long SIGKILL takes, by the memory that the kernel frees."""
LONGEST_KILL_S = _DIES_S[1]
_SHAPE = parked_interpreters.Shape(["train.py"], {}, {})


class World(Protocol):
    """What a node needs of the simulation."""

    clock: VirtualClock
    longest_way_s: float
    """Of a message, when nothing is cut off."""

    @property
    def leader(self) -> Leader | None:
        """Of the job; None: its launcher is gone."""

    def say(self, who: str, what: object) -> None:
        """Write a line of the transcript."""

    def check(self, holds: bool, otherwise: str) -> None:
        """Raise a violation if it does not hold."""

    def survives_step(self, one: SimulatedNode) -> bool:
        """Count a step; False: the launcher died of it."""

    def carry_out(self, one: SimulatedNode, effect: Any) -> None:
        """What is no business of processes: messages, and the beginning and end of cycles."""

    def ranks_gone(self, one: SimulatedNode) -> None:
        """No rank of the node is alive any more."""


@dataclass
class Rank:
    """One process."""

    is_stubborn: bool = False
    """It does not heed SIGTERM."""
    is_stuck: bool = False
    """SIGKILL does not end it."""
    hung_at: float | None = None
    ends_with: int = -SIGTERM
    """After SIGTERM."""
    ends_in_s: float | None = None
    is_ending: bool = False
    is_done: bool = False
    """Its function has returned; others may still be in theirs."""


@dataclass
class SimulatedNode:
    """One incarnation of the launcher of a host.

    Attributes:
        running: The cycle whose ranks are alive; None: none is.
        lawful: It can keep to R-1; see the simulation.
        audible: The leader hears it, and it hears the leader.
        dozes: It was suspended, and may not have heard what the others did meanwhile.
    """

    world: World
    host: int
    core: Any
    """Its machines: a Launcher's, or a Witness's."""
    rng: random.Random
    work_s: float
    slow_stop: float
    uses_standby: bool = False
    is_witness: bool = False
    alive: bool = True
    has_quit: bool = False
    # ranks
    running: int | None = None
    running_term: int = 0
    """Of the leader that formed that cycle."""
    ranks: dict[int, Rank] = field(default_factory=dict)
    last_started: int = -1
    failing: bool = False
    calls: bool = False
    """Its ranks are in a call of the Wrapper; their guard tells the launcher."""
    in_call: bool = False
    arenas: SimulatedArenas | None = None
    """None: the ranks of the job keep no snapshots."""
    keeping: SimulatedKeeping | None = None
    """None: no steps are kept at peers."""
    has_completed: bool = False
    """The call of its last cycle has, on all ranks that were left."""
    told_to_stop: bool = False
    iteration: int = 0
    # faults
    lawful: bool = True
    audible: bool = True
    has_lapsed: bool = False
    """It leads, and has had no lease for a while."""
    is_dark: bool = False
    """Its host has no power: its kernel says nothing."""
    cut_until: float = -math.inf
    """When it was cut off from some others last."""
    paused_until: float = 0.0
    dozes: bool = False
    held: list[Any] = field(default_factory=list)
    signalled: bool = False
    signal_grace: tuple[float, int] | None = None
    sick: bool = False
    stuck: bool = False
    health_dies: int = 0
    # network
    joined_at: float = math.inf
    """When it sent its last join."""
    follows: SimulatedNode | None = None
    """The launcher that it is connected to, as its leader."""
    connections: int = 0
    """How many to leaders it has had, but for the first: what one carried dies with it."""
    bound_to: SimulatedNode | None = None
    """The launcher that has its vote."""
    has_left: bool = False
    """It has closed the connection to that one since."""
    voted_at: float = 0.0
    answered: set[str] = field(default_factory=set)
    """Launchers that have accepted its connection: from then on a refusal is proof."""
    was_held_up: bool = False
    """What its new leader decided may have been old when it came."""
    admits_with: Round | None = None
    """It leads, and this is the round of its cycle: a launcher that is new gets it at once."""
    heard_until: dict[int, float] = field(default_factory=dict)
    """When the last thing of this launcher, which has died, arrived at each other one."""
    ops: int = 0
    # inside
    gate: HealthGate = field(default_factory=lambda: HealthGate(5.0))
    parked: parked_interpreters.ParkedInterpreters | None = None
    _inbox: deque[Any] = field(default_factory=deque)
    _log: deque[Any] = field(default_factory=deque)
    _is_at_work: bool = False
    _due_at: float | None = None
    """Its deadline after the last event."""
    _unpassed: dict[int, int] = field(default_factory=dict)
    _sweeping: int | None = None
    _health: int = 0
    """The question that the health process works on; it may die of it."""

    def __post_init__(self) -> None:
        self.clock = ProcessClock(self.world.clock)
        self._alarm = Alarm(self.clock, self._alarm_at, self._on_time)
        if self.uses_standby:
            self.parked = parked_interpreters.ParkedInterpreters(self.core.node.nproc, 5.0, 1 << 40)
        self.monitors = SimulatedMonitors(self)
        self._watch_machines()

    @property
    def belongs(self) -> bool:
        """It was started for the job, and not for another one."""
        if self.is_witness:
            return True
        return bool(self.core.member.desc.workload == self.core.rules.workload)

    @property
    def name(self) -> str:
        """Of its member."""
        return str(self.core.member.node)

    @property
    def leader(self) -> Leader | None:
        """It lives here; None: it does not."""
        leads: Leader | None = None if self.is_witness else self.core.leader
        return leads

    @property
    def will_vote(self) -> bool:
        """It looks for a leader, and what it has now goes there with its vote."""
        succession = self.core.succession
        if succession is None or self.world.clock.now < self.paused_until:
            return False
        votes_for_itself = succession.allegiance is Allegiance.BOUND and self.bound_to is None
        return succession.allegiance is Allegiance.SEEKING or votes_for_itself

    @property
    def is_member(self) -> bool:
        """It lives, and has not left the job."""
        return self.alive and self.core.finished is None and not self._has_last_words

    @property
    def _has_last_words(self) -> bool:
        return bool(self.core.member.phase.value == "done")

    # ------------------------------------------------------------ the launcher's loop
    def tell(self, event: Any, *, by_log: bool = False) -> None:
        """As the agent does: one event after the other, what the log brings first."""
        if not self.alive or self.has_quit:
            return
        if self.world.clock.now < self.paused_until:
            if not isinstance(event, TimePassed):
                self.held.append(event)
            return
        (self._log if by_log else self._inbox).append(event)
        self._work()

    def _work(self) -> None:
        if self._is_at_work:
            return
        self._is_at_work = True
        try:
            while (self._log or self._inbox) and self.alive and not self.has_quit:
                event = (self._log or self._inbox).popleft()
                if not self.world.survives_step(self):
                    return
                for effect in self.core.handle(event, self.world.clock.now):
                    self._do(effect)
                    if not self.world.survives_step(self):
                        return
        finally:
            self._is_at_work = False
        self.arm()

    def resume(self) -> None:
        """It gets the processor again."""
        if self.world.clock.now < self.paused_until or not self.alive:
            return
        held, self.held = self.held, []
        self._inbox += held
        self._on_time()

    def next_deadline(self) -> float | None:
        """Of all its machines."""
        machines = (self.core, self.gate, self.parked)
        return earliest(*(one.next_deadline() for one in machines if one is not None))

    def _alarm_at(self) -> float | None:
        """Not while it is paused: then when it is not."""
        is_paused = self.world.clock.now < self.paused_until
        may_wake = self.alive and not self.has_quit and not is_paused
        self._due_at = self.next_deadline() if may_wake else None
        return self._due_at

    def arm(self) -> None:
        """Have it woken in time."""
        self._alarm.set()

    def _on_time(self) -> None:
        self._inbox.append(TimePassed())
        self._is_at_work = True
        self._tell_gate(TimePassed())
        self._tell_parked(TimePassed())
        self._is_at_work = False
        self._work()
        at = self._due_at if self.alive and not self.has_quit else None
        self.world.check(
            at is None or at > self.world.clock.now,
            f"{self.name} wants to be woken at {at}, in the past",
        )

    def _watch_machines(self) -> None:
        """What one of them decided is passed on before it is told anything else."""
        core = self.core
        node_machine = None if self.is_witness else core.node
        for one in (node_machine, core.member, core.succession):
            if one is not None:
                self.watch(one)
        route = core._route

        def routed(*args: Any) -> Any:
            self._unpassed.pop(id(args[-1]), None)
            return route(*args)

        core._route = routed

    def watch(self, one: Any) -> None:
        """Check that it is told nothing while what it decided is still to be passed on."""
        handle: Callable[[Any, float], list[Any]] = one.handle

        def watched(event: Any, now: float) -> list[Any]:
            waits = id(one) in self._unpassed.values()
            self.world.check(not waits, f"{type(one).__name__} of {self.name} is fed too early")
            effects = handle(event, now)
            self._unpassed.update((id(effect), id(one)) for effect in effects)
            return effects

        one.handle = watched

    # ------------------------------------------------------------ effects
    def _do(self, effect: Any) -> None:
        match effect:
            case StartRanks(formed, place):
                if self.arenas is not None:
                    self.arenas.begin(formed, place)
                if self.keeping is not None:
                    self.keeping.begin(formed, place)
                self.world.carry_out(self, effect)
                self._start(formed.cycle)
            case KeepStep() | StepKept():
                if self.keeping is not None:
                    self.keeping.on(effect)
            case SetCadence():
                if self.arenas is not None:
                    self.arenas.every, self.arenas.from_step = effect.every, effect.from_step
            case node.SignalRanks(local_ranks, signum):
                is_stopping = self.core.node.phase is node.NodePhase.STOPPING
                self.told_to_stop = self.told_to_stop or (is_stopping and signum != SIGKILL)
                self.world.say(self.name, effect)
                self._send(local_ranks, signum)
            case node.MeasureWaits():
                self.tell(node.RanksWaited(self.rng.choice((0.0, 0.0, 5.0))))
            case node.EndRank(local_rank):
                self.world.say(self.name, effect)
                self.signal(local_rank, SIGKILL)
            case node.Sweep(cycle):
                self.world.check(not self.ranks, f"K-1: {self.name} sweeps, and its ranks run")
                self.tell(PortReserved(20001 + cycle))
                self._sweeping = cycle
                self.clock.call_in(self.rng.choice((0.0, 0.02)), partial(self._swept, cycle))
            case rank_life.ToMonitors() | IncidentOver():
                self.world.say(self.name, effect)
                self.monitors.carry_out(effect)
            case rank_life.StartMonitor(local_rank):
                self.monitors.start(local_rank)
            case RanksFailed():
                self._on_failure(effect)
            case node.CheckHost():
                self.world.check(not self.ranks, f"{self.name} checks its host beside its ranks")
                self._tell_gate(gating.Asked(effect.after_ranks))
            case ReadIteration():
                reached = self.rng.choice((None, self.iteration, self.iteration))
                takes_s = self.rng.choice((0.0, 0.01, 7.0))
                self.clock.call_in(takes_s, partial(self.tell, IterationRead(reached)))
            case _:
                self.world.carry_out(self, effect)

    def _on_failure(self, failed: RanksFailed) -> None:
        now = self.world.clock.now
        lives = self.core.node.lives.ranks
        waits = [
            k
            for k, life in lives.items()
            if life.suspected_at is not None
            and not life.is_gone
            and now < life.suspected_at + self.core.node.lives.held_s
            and k != failed.local_rank
        ]
        self.world.check(
            not waits or self.told_to_stop or lives[failed.local_rank].host_problem is not None,
            f"K-2: {self.name} tells of rank {failed.local_rank} while {waits} give evidence",
        )
        failure = FailureReport("a rank failed")
        self.tell(RanksFailed(**{**vars(failed), "failure": failure}))

    # ------------------------------------------------------------ ranks
    def _start(self, cycle: int) -> None:
        self.last_started = self.running = cycle
        self.failing = self.told_to_stop = self.in_call = self.has_completed = False
        self._sweeping = None
        self.ranks = {
            k: Rank(is_stubborn=self.rng.random() < self.slow_stop)
            for k in range(self.core.node.nproc)
        }
        self.core.node.ranks_started({local_rank: 100 + local_rank for local_rank in self.ranks})
        for local_rank, rank in self.ranks.items():
            takes_s = self.work_s * self.rng.uniform(0.8, 1.2)
            self.clock.work(takes_s, partial(self.rank_exits, cycle, local_rank, 0, rank))
        if self.calls:
            self.clock.call_in(self.work_s * self.rng.uniform(0.1, 0.4), partial(self._call, cycle))
        if self.parked is not None:
            self._tell_parked(parked_interpreters.RankWanted(0, _SHAPE))
            self._tell_parked(parked_interpreters.RanksStarted())
        self.iteration += self.rng.choice((0, 1))

    def _call(self, cycle: int) -> None:
        """All ranks enter the function, if all have come."""
        if self.running == cycle and len(self.ranks) == self.core.node.nproc and not self.failing:
            self.in_call = True
            self.tell(CallBegan(cycle, self._global(self.ranks)))

    def _global(self, local_ranks: Iterable[int]) -> tuple[int, ...]:
        place = self.core.node.place
        return tuple((place.rank_offset if place else 0) + k for k in local_ranks)

    def _complete_if_all_are_done(self) -> None:
        """Of those that are left: who is stuck is given up by its guard."""
        left = {k: rank for k, rank in self.ranks.items() if not rank.is_stuck}
        if not self.in_call or not left or not all(rank.is_done for rank in left.values()):
            return
        self.in_call, self.has_completed = False, True
        self.tell(CallEnded(self.running or 0, self._global(left), finished=True))
        for local_rank, rank in left.items():
            end = partial(self.rank_exits, self.running, local_rank, 0, rank)
            self.clock.call_in(self.rng.choice((0.0, 0.01)), end)

    def rank_exits(
        self, cycle: int | None, local_rank: int, code: int, who: Rank | None = None
    ) -> None:
        """A rank of this cycle ends by itself, if it still runs."""
        rank = self.ranks.get(local_rank)
        if self.running != cycle or rank is None or (who is not None and rank is not who):
            return
        if rank.is_stuck:
            return
        if who is not None and code == 0:
            if rank.is_ending or rank.hung_at is not None:
                return
            if self.in_call:
                rank.is_done = True
                self._complete_if_all_are_done()
                return
            if self.failing and not self.has_completed:
                return  # it does not succeed any more: it waits for a rank that is gone
        self._reap(local_rank, code)

    def fail(self, every: bool, may_restart: bool) -> None:
        """One rank exits, or all of them."""
        cycle, code = self.running, 1 if may_restart else 93
        if cycle is None or not self.alive:
            return
        self.failing, self.has_completed = True, False
        for local_rank in list(self.ranks)[0 if every else -1 :]:
            self.rank_exits(cycle, local_rank, code)

    def _send(self, local_ranks: tuple[int, ...], signum: int) -> None:
        for local_rank in local_ranks:
            self.world.check(
                local_rank in self.core.node.alive,
                f"K-1: {self.name} signals local rank {local_rank}, and knows that it has ended",
            )
            self.signal(local_rank, signum)
        self.tell(rank_life.Sent(local_ranks, signum))

    def signal(self, local_rank: int, signum: int) -> None:
        """As the kernel does, if the rank is still there."""
        rank = self.ranks.get(local_rank)
        if rank is None or self.running is None:
            return  # it has ended, and the launcher has not heard of it
        if self.stuck and not rank.is_stuck:
            rank.is_stuck = True
            self._complete_if_all_are_done()
        if rank.is_stuck or (rank.is_stubborn and signum != SIGKILL):
            return
        code, takes_s = -signum, self.rng.uniform(*_DIES_S)
        if signum != SIGKILL and self.signal_grace is not None and not rank.is_ending:
            takes_s, code = self.signal_grace
        rank.is_ending = True
        end = partial(self.rank_exits, self.running, local_rank, code)
        self.clock.call_in(takes_s, end)

    def _reap(self, local_rank: int, code: int) -> None:
        del self.ranks[local_rank]
        if not self.ranks:
            self.world.ranks_gone(self)
        if self.parked is not None:
            self._tell_parked(CycleEnding())
        self.tell(rank_life.Exited(local_rank, code))
        self._complete_if_all_are_done()

    def _swept(self, cycle: int) -> None:
        if self._sweeping == cycle:
            self._sweeping = None
            if self.keeping is not None:
                self.keeping.end()
            if self.arenas is not None:
                of_all = self.arenas if self.keeping is None else self.keeping
                self.tell(HoldingsRead(cycle, of_all.holdings()))
            self.tell(node.Swept())

    def die(self, *, ranks_at_once: bool = False) -> None:
        """The launcher is gone; its ranks follow: its kernel ends them, or its monitors do."""
        self.alive = False
        if ranks_at_once:
            self._ranks_follow()
            return
        self.world.clock.call_in(self.rng.uniform(0, RANKS_OUTLIVE_LAUNCHER_S), self._ranks_follow)

    def _ranks_follow(self) -> None:
        if self.ranks:
            self.ranks = {}
            self.world.ranks_gone(self)

    # ------------------------------------------------------------ the health process
    def _tell_gate(self, event: gating.Event) -> None:
        for effect in self.gate.handle(event, self.world.clock.now):
            match effect:
                case gating.Ask(number):
                    self._health = number
                    self.clock.call_in(0.01, partial(self._answer, number))
                case gating.Checked(problem):
                    self.tell(node.HostChecked(problem))
                case gating.HostUnhealthy(finding):
                    self.tell(node.HostBroke(str(finding), finding.device))
                case gating.Start() | gating.KillHealthProcess() | Note():
                    pass
        if not self._is_at_work:
            self.arm()

    def _answer(self, number: int) -> None:
        if not self.alive or self.has_quit or number != self._health:
            return
        if self.health_dies > 0:
            self.health_dies -= 1
            self._tell_gate(gating.HealthProcessDied("killed"))
            return
        if self.sick:
            lost = Finding("gpu", "GPU 0", Fitness.UNHEALTHY, "lost")
            self._tell_gate(gating.Found(number, lost))
        self._tell_gate(gating.Answered(number))

    def breaks(self) -> None:
        """Its health process reports something unasked."""
        self.sick = True
        lost = Finding("gpu", "GPU 0", Fitness.UNHEALTHY, "lost", device=0)
        if self.alive and not self.has_quit:
            self._tell_gate(gating.Noticed(lost))

    # ------------------------------------------------------------ parked interpreters
    def _tell_parked(self, event: parked_interpreters.Event) -> None:
        if self.parked is None or not self.alive or self.has_quit:
            return
        for effect in self.parked.handle(event, self.world.clock.now):
            match effect:
                case parked_interpreters.Prepare(local_rank):
                    self.world.check(
                        self.running is not None, f"{self.name} prepares beside no ranks"
                    )
                    started = parked_interpreters.Started(local_rank, _SHAPE)
                    ready = parked_interpreters.ParkedSaid(local_rank, ParkedReady(1 << 18, {}))
                    self.clock.call_in(0.0, partial(self._tell_parked, started))
                    self.clock.call_in(2.0, partial(self._tell_parked, ready))
                case (
                    parked_interpreters.BecomeRank()
                    | parked_interpreters.Discard()
                    | parked_interpreters.AllParked()
                    | Note()
                ):
                    pass
        if not self._is_at_work:
            self.arm()


def launcher_of(member: Any, rules: Any, nproc: int, *, by_key: bool = False) -> Launcher:
    """The machines of one launcher."""
    succession = SuccessionByKey(member.pace) if by_key else Succession(member.pace)
    return machine.Launcher(
        node.Node(
            nproc,
            stop_grace_s=15.0,
            signal_grace_s=60.0,
            checks_host=True,
            measures_waits=True,
            evidence=NodeEvidence(rules.evidence_s, member.desc.hostname),
        ),
        member,
        rules,
        None if rules.is_of_one else succession,
    )
