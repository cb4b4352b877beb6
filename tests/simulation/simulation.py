"""Launchers of a job on a virtual clock and network, with faults, checked at each step.

The machines are the ones that run in production, those of every launcher whole
(:mod:`holdfast.node.pure.launcher`: node, member, leader, lives of ranks), with its gate to the
health process and its parked interpreters. Processes (:mod:`tests.simulation.simulated_node`),
network and time are simulated. The same scenario and seed give the same history, to the last step.
A *step* is one event handed to a launcher, or one of its effects carried out: a launcher can die
between any two of them. A job of one launcher (``Rules.is_of_one``) runs the same way, with a deque
for the connections.

``job_promises.py`` checks what must hold. A connection between launchers carries all in order or
not at all (:mod:`holdfast.job.pure.link`); here messages may also come late, twice or out of order.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from holdfast.base.pure.codec import decode, encode
from holdfast.base.pure.common_events import Begin, ControlRequested, SignalArrived
from holdfast.base.pure.never import assert_never
from holdfast.job.pure.leader import LauncherEnded, Leader
from holdfast.job.pure.member import LeaderLost, Member, StartRanks
from holdfast.job.pure.membership import (
    DECISIONS,
    MESSAGES,
    Beat,
    Decision,
    Descriptor,
    End,
    Join,
    LeaderBeat,
    Message,
)
from holdfast.job.pure.timing import Pace
from holdfast.job.pure.workload import Workload
from holdfast.node.pure.launcher import LeaveProcess, Met, QuitProcess
from tests.simulation import describe
from tests.simulation.job_promises import JobPromises
from tests.simulation.kernel import Link, World
from tests.simulation.scenario import (
    Ask,
    Breaks,
    Crash,
    Cut,
    Fault,
    Hangs,
    HealthDies,
    MonitorDies,
    Pause,
    RankFails,
    Return,
    Scenario,
    Sick,
    Signal,
    Stuck,
    Suspend,
)
from tests.simulation.simulated_node import (
    LONGEST_KILL_S,
    SIGTERM,
    SimulatedNode,
    launcher_of,
)

OPS_PER_MESSAGE = 2
"""Store operations of a message up: a number (``add``), then the text under it (``set``)."""
OPS_PER_DECISION = 1
"""Store operations of following one decision down: a blocking ``get``."""
WORKLOAD = Workload("script", "train.py", contents="1f", path="a0", is_named=True)
"""Of the job."""
OTHER_WORKLOAD = replace(WORKLOAD, name="eval.py", contents="2e", path="b1")
"""Of launchers that were started for another one."""


@dataclass(frozen=True)
class Result:
    """What a simulated job came to.

    Attributes:
        end: How the leader ended it; None: the leader died first.
        exit_codes: Of every launcher that left by itself, by node.
        restart_ops: Per node that takes part in the last cycle: store operations from the last
            Stop to the start of its ranks, without beats.
    """

    steps: int
    virtual_s: float
    cycles: int
    restarts_used: int
    end: End | None
    exit_codes: dict[str, int]
    restart_ops: dict[str, int]
    leader_reads: int
    published: int


class Simulation(World):
    """One history of one scenario.

    Args:
        scenario: The job, its network, its faults.
        seed: Of everything that is left to chance: delays, losses, how long things take.
        crash_after: (step, host): the launcher of this host dies right after this step.
        trace: Keep a transcript.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int = 0,
        crash_after: Iterable[tuple[int, int]] = (),
        *,
        trace: bool = False,
    ) -> None:
        super().__init__(seed, trace=trace)
        self.scenario = scenario
        self._delays = (*self.scenario.network.delay_s,)
        self.longest_way_s = self.scenario.network.longest_way_s
        self._crashes: dict[int, list[int]] = {}
        for step, host in crash_after:
            self._crashes.setdefault(step, []).append(host)
        self.make_leader = Leader
        """For tests: a leader with a bug."""
        self.others = set(self.scenario.others)
        self._rules = replace(self.scenario.rules, workload=WORKLOAD)
        self._leader_reads = 0
        self._launchers: dict[int, SimulatedNode] = {}
        self._by_node: dict[str, SimulatedNode] = {}
        self._incarnations: Counter[int] = Counter()
        self._arriving: list[SimulatedNode] = []
        self._maybe_members: deque[SimulatedNode] = deque()
        self._cuts: list[tuple[Cut, float]] = []
        self._cuts_up: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self._cuts_down: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self._log: list[Decision] = []
        self._promises = JobPromises(
            self.scenario, self.clock, self._launchers, self._by_node, self.check
        )
        self._restart_ops: dict[str, int] = {}
        self._store_dies_loudly = self._rng.random() < 0.5
        self._proofs = random.Random(seed)
        starts = dict(enumerate(self.scenario.starts_at))
        for host in range(self.scenario.hosts):
            self.clock.call_at(starts.get(host, 0.0), partial(self.start, host))
        for fault in self.scenario.faults:
            self.clock.call_at(fault.at, partial(self.inflict, fault))

    # ------------------------------------------------------------ from outside
    def run(self) -> Result:
        """Run until nothing is left to happen, or the job should have been over.

        Raises:
            Violation: A promise was broken.
        """
        over_by = self.scenario.over_by
        while (at := self.clock.next_at()) is not None and at <= over_by:
            self.clock.step()
            if self._is_over():
                break
        self._promises.check_over()
        self.check(not self._has_store(), "the leader never closes")
        return Result(
            steps=self.steps,
            virtual_s=self.clock.now,
            cycles=len(self._promises.rounds),
            restarts_used=0 if self.leader is None else self.leader.restarts_used,
            end=self._promises.end,
            exit_codes={
                node: one.core.finished.exit_code
                for node, one in self._by_node.items()
                if one.core.finished is not None
            },
            restart_ops=self._restart_ops,
            leader_reads=self._leader_reads,
            published=len(self._log),
        )

    @property
    def leader(self) -> Leader | None:
        """Of the job, in the launcher of host 0; None: it has not begun."""
        home = self._launchers.get(0)
        return home.core.leader if home is not None else None

    def start(self, host: int) -> None:
        """Start a launcher on a host, unless one lives there or the store is gone."""
        before = self._launchers.get(host)
        if before is not None and (host == 0 or before.is_member or not self._has_store()):
            return  # that of host 0 serves the store, and leads
        if host != 0 and 0 in self._launchers and not self._has_store():
            return
        self._incarnations[host] += 1
        again = self._incarnations[host]
        node = f"n{host}" if again == 1 else f"n{host}#{again}"
        scenario = self.scenario
        desc = Descriptor(
            addr=f"10.0.{host >> 8}.{host & 255}",
            hostname=f"n{host}",
            nproc=scenario.nproc,
            pid=1000 + again,
            infra_rank=host if scenario.infra_ranks else None,
            port=20000 + again,
            workload=OTHER_WORKLOAD if host in self.others else WORKLOAD,
        )
        pace = Pace.of_one() if scenario.rules.is_of_one else scenario.pace
        one = SimulatedNode(
            self,
            host,
            launcher_of(Member(node, desc, pace), self._rules, scenario.nproc),
            random.Random(self._rng.random()),
            scenario.work_s,
            scenario.slow_stop,
            scenario.standby,
            calls=scenario.calls,
        )
        one.up.cuts, one.down.cuts = self._cuts_up[host], self._cuts_down[host]
        one.down.last_at = self.clock.now
        self._launchers[host] = self._by_node[node] = one
        self._maybe_members.append(one)
        for cut, until in self._cuts:
            if until > self.clock.now:
                self._suffer(cut, one)
        one.tell(Begin())
        self._arriving.append(one)
        if 0 in self._launchers:
            arriving, self._arriving = self._arriving, []
            for each in arriving:
                self._meet(each)

    def _meet(self, one: SimulatedNode) -> None:
        one.down.last_at = self.clock.now
        one.tell(Met(leads=one.host == 0))
        leader = one.core.leader
        if leader is not None:
            self._promises.open_since = self.clock.now
        if leader is not None and self.make_leader is not Leader:
            one.core.leader = leader = self.make_leader(leader.rules, leader.pace)
            leader.handle(Begin(), self.clock.now)
        if leader is not None:
            one.watch(leader)

    def inflict(self, fault: Fault) -> None:
        """Let ``fault`` happen now, whatever its ``at`` says."""
        if isinstance(fault, Return):
            self.start(fault.host)
            return
        one = self._launchers.get(fault.host)
        if one is None or not one.alive or one.has_quit:
            return
        if one.clock.is_asleep and not isinstance(fault, (Crash, Cut, Suspend)):
            one.clock.call_at(one.clock.asleep_until, partial(self.inflict, fault))
            return
        self.say(one.name, f"** {fault}")
        match fault:
            case Suspend(for_s=for_s):
                self._suspend(one, for_s)
            case RankFails(every=every, may_restart=may_restart):
                self._fail_ranks(one, one.running, every, may_restart)
            case Crash():
                self.crash(one)
            case Cut():
                self._cut(fault)
            case Pause(for_s=for_s):
                self._pause(one, for_s)
            case Ask(action=action):
                if one.running is not None:
                    one.tell(ControlRequested(0, action, "as planned"))
                    fail = partial(self._fail_ranks, one, one.running, True, True)
                    one.clock.call_in(0.01, fail)
            case Signal(grace_s=grace_s, well=well):
                self._signal(one, grace_s, well)
            case Sick():
                one.sick = True
            case Breaks():
                self._promises.note_failure(one)
                one.breaks()
            case Stuck():
                one.stuck = one.running is not None
                if not one.audible:
                    self._promises.break_rules(one)
            case Hangs(every=every):
                if one.stuck:
                    self._promises.break_rules(one)
                self._promises.note_failure(one)
                one.monitors.hang(every=every)
            case MonitorDies():
                one.monitors.die()
            case HealthDies(times=times):
                one.health_dies = times
            case _:
                assert_never(fault)

    def crash(self, one: SimulatedNode) -> None:
        """The launcher is gone; its ranks follow when its monitors see it."""
        self.say(one.name, "** dies")
        cycle = one.running
        is_proved = one.host != 0 and self._proofs.random() < self.scenario.proofs
        one.die(ranks_at_once=is_proved)
        if is_proved:
            at = one.up.in_order(self._arrives_at(one.up, one.host))
            self.clock.call_at(at, partial(self._tell_leader, LauncherEnded(one.core.member.node)))
        if cycle is not None:
            self._cascade(cycle)
        if one.host == 0:
            for other in self._launchers.values():
                if other.signalled:
                    self._promises.break_rules(other)
            if self._store_dies_loudly:
                self._lose_store("connection reset")

    # ------------------------------------------------------------ what a node asks of its world
    def describe(self, effect: Any) -> str:
        """See :class:`.World`."""
        return describe.effect(effect)

    def outcome(self) -> str:
        """How the job ended."""
        end = self.leader.end if self.leader is not None else None
        return end.outcome.value if end is not None else "leader lost"

    def survives_step(self, one: SimulatedNode) -> bool:
        """See :class:`.simulated_node.World`."""
        self.steps += 1
        for host in self._crashes.get(self.steps, ()):
            doomed = self._launchers.get(host)
            if doomed is not None and doomed.alive and not doomed.has_quit:
                self.crash(doomed)
        return one.alive

    def carry_out(self, one: SimulatedNode, effect: Any) -> None:
        """See :class:`.simulated_node.World`."""
        if isinstance(effect, Message):
            if not isinstance(effect, Beat):
                self.say(one.name, effect)
            self._send(one, effect)
            return
        if isinstance(effect, Decision):
            if not isinstance(effect, LeaderBeat):
                self.say("leader", effect)
            self._publish(one, effect)
            return
        match effect:
            case StartRanks(formed):
                self.say(one.name, effect)
                self._promises.start(one, formed.cycle)
                if formed.cycle:
                    self._restart_ops[one.name] = one.ops
            case LeaveProcess():
                self.say(one.name, effect)
                self._promises.finish(one, effect)
            case QuitProcess():
                self.say(one.name, effect)
                one.has_quit = True
                if one.host == 0:
                    self._lose_store("the leader has closed")
            case _:
                self.say(one.name, effect)

    def ranks_gone(self, one: SimulatedNode) -> None:
        """See :class:`.simulated_node.World`."""
        self._promises.ranks_gone(one)
        one.running = None

    # ------------------------------------------------------------ network
    def _publish(self, home: SimulatedNode, decision: Decision) -> None:
        self._promises.check_decision(decision)
        if self.scenario.codec:
            decision = decode(DECISIONS, json.loads(json.dumps(encode(decision))))
        self._log.append(decision)
        if self.scenario.rules.is_of_one:
            home.tell(decision, by_log=True)
            return
        for one in self._launchers.values():
            if one.is_member:
                self._deliver(one, decision)

    def _delay_s(self) -> float:
        network = self.scenario.network
        if network.spike and self._rng.random() < network.spike:
            return self._rng.uniform(0, network.spike_s)
        return self._rng.uniform(*self._delays)

    def _arrives_at(self, link: Link, host: int) -> float:
        """When something sent now arrives; the store is next door to the launcher of host 0."""
        now = self.clock.now
        return now + self._delay_s() if host == 0 else link.arrives_at(now, self._delay_s)

    def _send(self, sender: SimulatedNode, message: Message) -> None:
        if not isinstance(message, Beat):
            sender.ops += OPS_PER_MESSAGE
        if isinstance(message, Join):
            sender.joined_at = self.clock.now
            self._by_node[message.node] = sender  # it may be another, which comes back
        if self.scenario.codec:
            message = decode(MESSAGES, json.loads(json.dumps(encode(message))))
        if self.scenario.rules.is_of_one:
            self._leader_reads += 1
            sender.tell(message, by_log=True)
            return
        self._put(sender, message)
        network = self.scenario.network
        if network.duplicate and self._rng.random() < network.duplicate:
            again_s = self._rng.choice((0.001, 1.0, 60.0)) * self._rng.random()
            self.clock.call_in(again_s, partial(self._put, sender, message))

    def _put(self, sender: SimulatedNode, message: Message) -> None:
        if sender.alive and not sender.has_quit:
            doomed = self._rng.random() < 0.5
            at = self._arrives_at(sender.up, sender.host)
            self.clock.call_at(at, partial(self._arrive, sender, message, doomed))

    def _arrive(self, sender: SimulatedNode, message: Message, doomed: bool) -> None:
        if doomed and not sender.alive:
            return  # it died between taking a number and writing under it
        self._leader_reads += 1
        self._tell_leader(message)

    def _tell_leader(self, message: Message | LauncherEnded) -> None:
        home = self._launchers.get(0)
        if home is not None:
            home.tell(message)

    def _deliver(self, one: SimulatedNode, decision: Decision) -> None:
        at = one.down.in_order(self._arrives_at(one.down, one.host))
        self.clock.call_at(at, partial(self._read, one, decision))

    def _read(self, one: SimulatedNode, decision: Decision) -> None:
        if not isinstance(decision, LeaderBeat):
            one.ops += OPS_PER_DECISION
        if one.is_member:
            one.tell(decision)

    def _cut(self, cut: Cut) -> None:
        cut = Cut(self.clock.now, cut.host, cut.for_s, cut.up, cut.down)
        during = self.clock.now, self.clock.now + cut.for_s
        self._cuts.append((cut, during[1]))
        for host in range(self.scenario.hosts) if cut.host == 0 else [cut.host]:
            if cut.up:
                self._cuts_up[host].append(during)
            if cut.down:
                self._cuts_down[host].append(during)
        for one in self._launchers.values():
            self._suffer(cut, one)

    def _suffer(self, cut: Cut, one: SimulatedNode) -> None:
        if one.host != 0 and cut.host in (one.host, 0):
            # Cut off twice, what gets through in between is old and looks like news.
            helpless = one.signalled or one.stuck or not one.audible
            one.audible = False
            if helpless or not (cut.up and cut.down):
                self._promises.break_rules(one)

    def _pause(self, one: SimulatedNode, for_s: float) -> None:
        one.paused_until = self.clock.now + for_s
        everyone = one.host == 0  # nobody hears of the leader meanwhile
        for other in self._launchers.values() if everyone else [one]:
            other.audible = False
            self._promises.break_rules(other)
        self.clock.call_at(one.paused_until, one.resume)

    def _suspend(self, one: SimulatedNode, for_s: float) -> None:
        until = max(one.clock.asleep_until, self.clock.now + for_s)
        one.clock.asleep_until = one.paused_until = max(one.paused_until, until)
        for other in self._launchers.values() if one.host == 0 else [one]:
            other.audible = False
        if one.signalled or one.stuck:
            self._promises.break_rules(one)
        self._promises.falls_asleep(one)
        self.clock.call_at(one.paused_until, partial(self._wake, one))

    def _wake(self, one: SimulatedNode) -> None:
        one.resume()
        if not one.clock.is_asleep:
            pace = self.scenario.pace
            answer_s = 2 * self.longest_way_s + LONGEST_KILL_S
            bound_s = pace.ask_s + pace.lease_s + answer_s
            self.clock.call_in(bound_s, partial(self._promises.is_awake, one, self.clock.now))

    def _has_store(self) -> bool:
        home = self._launchers.get(0)
        return home is None or (home.alive and not home.has_quit)

    def _lose_store(self, why: str) -> None:
        for one in self._launchers.values():
            if one.is_member and one.host != 0:
                at = max(self.clock.now + self._delay_s(), one.down.last_at)
                self.clock.call_at(at, partial(one.tell, LeaderLost(why)))

    # ------------------------------------------------------------ ranks
    def _fail_ranks(
        self,
        one: SimulatedNode,
        cycle: int | None,
        every: bool,
        may_restart: bool,
    ) -> None:
        if cycle is None or one.running != cycle or one.told_to_stop or not one.alive:
            return
        was_failing = one.failing
        self._promises.note_failure(one)
        one.fail(every, may_restart)
        if not was_failing:
            self._cascade(cycle)

    def _cascade(self, cycle: int) -> None:
        if not self.scenario.cascade:
            return
        for one in self._launchers.values():
            may_follow = one.running == cycle and one.is_member and not one.failing
            if may_follow and one.rng.random() < self.scenario.cascade:
                after_s = one.rng.choice((0.001, 0.1, 5.0)) * one.rng.random()
                one.clock.call_in(after_s, partial(self._follow_suit, one, cycle))

    def _follow_suit(self, one: SimulatedNode, cycle: int) -> None:
        if not one.failing:
            self._fail_ranks(one, cycle, every=True, may_restart=True)

    def _signal(self, one: SimulatedNode, grace_s: float, well: bool) -> None:
        one.signalled = True
        if not one.audible:
            self._promises.break_rules(one)
        if one.running is not None and not one.told_to_stop:
            one.signal_grace = (grace_s, 0 if well else -SIGTERM)
            for rank in one.ranks.values():
                rank.is_stubborn = False
        one.tell(SignalArrived(SIGTERM))

    # ------------------------------------------------------------ promises
    def _is_over(self) -> bool:
        while self._maybe_members and not self._maybe_members[0].is_member:
            self._maybe_members.popleft()  # who has left stays away, so that each is asked once
        if self._arriving or self._maybe_members:
            return False
        return not self._has_store() and not any(self._promises.running.values())
