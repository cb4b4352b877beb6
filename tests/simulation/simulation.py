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
A launcher that leads takes its own messages and decisions from a deque, at once, before all others.
"""

from __future__ import annotations

import json
import random
from collections import Counter, deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from holdfast.base.pure.codec import decode, encode
from holdfast.base.pure.common_events import Begin, ControlRequested, SignalArrived
from holdfast.base.pure.never import assert_never
from holdfast.job.pure.leader import Leader
from holdfast.job.pure.leader_key import Claimed, KeyOver, LeaderKey, claim
from holdfast.job.pure.leader_messages import LauncherEnded, StepDown
from holdfast.job.pure.member import Member
from holdfast.job.pure.member_messages import LeaderLost, StartRanks
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
    Offer,
    Resigned,
    Round,
    StateChanged,
    StopCycle,
)
from holdfast.job.pure.succession import Succession
from holdfast.job.pure.succession_messages import (
    Approach,
    ClaimKey,
    Follows,
    Give,
    LeaderDied,
    Leads,
    LeaveLeader,
    NotReached,
    PeerDied,
    Reached,
    Release,
    Released,
)
from holdfast.job.pure.timing import Pace
from holdfast.job.pure.workload import Workload
from holdfast.node.pure.launcher import LeaveProcess, LedBy, Met, QuitProcess
from holdfast.node.pure.witness import Witness, WitnessLeaves
from tests.simulation import describe
from tests.simulation.job_promises import JobPromises
from tests.simulation.kernel import World
from tests.simulation.scenario import (
    Ask,
    Breaks,
    Crash,
    Cut,
    Fault,
    Hangs,
    HealthDies,
    MonitorDies,
    Partition,
    Pause,
    PowerLoss,
    RankFails,
    Return,
    Scenario,
    Sick,
    Signal,
    Stuck,
    Suspend,
)
from tests.simulation.simulated_kept_steps import Copies, SimulatedKeeping
from tests.simulation.simulated_node import (
    LONGEST_KILL_S,
    SIGTERM,
    SimulatedNode,
    launcher_of,
)
from tests.simulation.simulated_snapshots import (
    N_SLOTS,
    SimulatedArenas,
    SnapshotPromises,
    Trainings,
)
from tests.simulation.ways import NO_ANSWER_S, Ways

OPS_PER_MESSAGE = 2
"""Store operations of a message up: a number (``add``), then the text under it (``set``)."""
OPS_PER_DECISION = 1
"""Store operations of following one decision down: a blocking ``get``."""
WORKLOAD = Workload("script", "train.py", contents="1f", path="a0", is_named=True)
"""Of the job."""
OTHER_WORKLOAD = replace(WORKLOAD, name="eval.py", contents="2e", path="b1")
"""Of launchers that were started for another one."""


Steps = Generator[tuple[str, LeaderKey], str, Claimed]


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
        self._parts: list[tuple[Partition, float]] = []
        self._ways = Ways(self.clock, self.scenario.network, self._rng)
        self._home: SimulatedNode | None = None
        """The launcher that leads, or led last."""
        self.takeovers = 0
        self._key = ""
        """Of the store, where there is one."""
        self._log: list[Decision] = []
        self._promises = JobPromises(
            self.scenario, self.clock, self._launchers, self._by_node, self.check
        )
        self.snapshots = SnapshotPromises(self.scenario, self._by_node, self.check)
        self._trainings = Trainings(self, self.snapshots, seed)
        self._copies = Copies(
            self.clock, self._by_node, self.snapshots.kept, seed, self._trainings.arrived
        )
        self._restart_ops: dict[str, int] = {}
        self._proofs = random.Random(seed)
        starts = dict(enumerate(self.scenario.starts_at))
        for host in range(self.scenario.hosts + self.scenario.witnesses):
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
        leaders = [one for one in self._by_node.values() if one.leader is not None]
        is_there = any(one.alive and not one.has_quit for one in leaders)
        self.check(not is_there, "the leader never closes")
        self._promises.check_cycles()
        if self.scenario.must_succeed:
            # Launchers that are cut off at its end do not learn that.
            is_kept = self._promises.has_succeeded or self._promises.has_lost_majority
            self.check(is_kept, "a majority lives, and the job has not succeeded")
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
        """Of the job; None: it has not begun."""
        return self._home.leader if self._home is not None else None

    def start(self, host: int) -> None:
        """Start a launcher on a host, unless one lives there or the job is over."""
        before = self._launchers.get(host)
        if before is not None and (before.is_member or (not before.has_quit and before.alive)):
            return
        if self._home is not None and not self._may_have_leader():
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
            keeps=30000 if scenario.rules.snapshot_keep_s else 0,
        )
        is_witness = scenario.hosts <= host < scenario.hosts + scenario.witnesses
        if is_witness:
            desc = replace(desc, workload=None, is_witness=True)
        pace = Pace.of_one() if scenario.rules.is_of_one else scenario.pace
        one = SimulatedNode(
            self,
            host,
            Witness(Member(node, desc, pace), Succession(pace))
            if is_witness
            else launcher_of(
                Member(node, desc, pace),
                self._rules,
                scenario.nproc,
                by_key=scenario.store is not None,
            ),
            random.Random(self._rng.random()),
            scenario.work_s,
            scenario.slow_stop,
            scenario.standby and not is_witness,
            is_witness=is_witness,
            calls=scenario.calls,
            arenas=SimulatedArenas() if scenario.snapshots and not is_witness else None,
        )
        if one.arenas is not None and scenario.rules.snapshot_keep_s:
            one.arenas.n_slots = N_SLOTS + 2
            one.keeping = SimulatedKeeping(one, one.arenas, self._copies)
        self._launchers[host] = self._by_node[node] = one
        self._maybe_members.append(one)
        for cut, until in self._cuts:
            if until > self.clock.now:
                self._suffer(cut, one)
        for partition, until in self._parts:
            if until > self.clock.now:
                self._is_apart(one, until - self.clock.now, one_way=partition.one_way)
        one.tell(Begin())
        self._arriving.append(one)
        if self._home is None and host == 0:
            self._home = one
        self._meet_all()
        limit_s = self.scenario.pace.join_timeout_s
        self.clock.call_in(limit_s, partial(self._give_up, one))

    def _give_up(self, one: SimulatedNode) -> None:
        """Nobody is at the endpoint."""
        if one in self._arriving:
            self._arriving.remove(one)
            one.tell(LeaderLost("no launcher is there"))

    def _meet_all(self) -> None:
        """A launcher that is new finds the leader at the endpoint, or the launcher that is there.

        The first one of host 0 leads. One that comes there later is found by the leader.
        """
        home, at_endpoint = self._home, self._launchers.get(0)
        if home is None or not (home.alive and not home.has_quit):
            return
        if home.leader is None and (home.core.finished is not None or home not in self._arriving):
            return
        if at_endpoint is None or not at_endpoint.alive or at_endpoint.has_quit:
            return
        arriving, self._arriving = self._arriving, []
        for each in arriving:
            self._meet(each, home)

    def _meet(self, one: SimulatedNode, home: SimulatedNode) -> None:
        one.follows = home
        if one is home and not self._key:
            self._key = str(self._key_of(one, 0))
        if one is not home and home.admits_with is not None:
            read = partial(self._read, one, home, one.connections, home.admits_with)
            self._ways.send(home, one, read)
        one.tell(Met(leads=one is home, port=1 + one.host))
        leader = one.leader
        if leader is None or one is not home or self.takeovers:
            return
        self._promises.open_since = self.clock.now
        if self.make_leader is not Leader:
            one.core.leader = leader = self.make_leader(leader.rules, leader.pace, leader.home)
            leader.handle(Begin(), self.clock.now)
        one.watch(leader)

    def inflict(self, fault: Fault) -> None:
        """Let ``fault`` happen now, whatever its ``at`` says."""
        if isinstance(fault, Return):
            self.start(fault.host)
            return
        one = self._launchers.get(fault.host)
        if one is None or not one.alive or one.has_quit:
            return
        if one.clock.is_asleep and not isinstance(
            fault, (Crash, Cut, Partition, PowerLoss, Suspend)
        ):
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
            case PowerLoss():
                self.crash(one, is_dark=True)
            case Partition():
                self._part(fault)
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

    def crash(self, one: SimulatedNode, *, is_dark: bool = False) -> None:
        """The launcher is gone; its ranks follow when its monitors see it."""
        self.say(one.name, "** dies")
        one.is_dark = is_dark
        cycle = one.running
        leads = one is self._home
        others = [other for other in self._by_node.values() if other.is_member]
        proofs = 0.0 if is_dark else self.scenario.proofs
        proof = {id(other): self._proofs.random() < proofs for other in others}
        one.die(ranks_at_once=is_dark or any(proof.values()))
        for other in others:
            until = self._ways.dies(one, other)
            if not proof[id(other)]:
                continue
            if other.follows is one:
                self.clock.call_at(until, partial(self._lose_leader, other, one))
            if other.bound_to is one:
                self.clock.call_at(until, partial(other.tell, PeerDied(one.name)))
            if other is self._home and one.follows is other:
                at = self._ways.in_order(one, other)
                self.clock.call_at(at, partial(other.tell, LauncherEnded(one.core.member.node)))
        if cycle is not None:
            self._cascade(cycle)
        if leads:
            self._spare_the_signalled()

    def _spare_the_signalled(self) -> None:
        """Without the leader they keep the grace of the signal: they may be saving their work."""
        for other in self._launchers.values():
            if other.signalled:
                self._promises.break_rules(other)

    # ------------------------------------------------------------ what a node asks of its world
    def describe(self, effect: Any) -> str:
        """See :class:`.World`."""
        return describe.effect(effect)

    def outcome(self) -> str:
        """How the job ended."""
        end = self.leader.end if self.leader is not None else None
        outcome = end.outcome.value if end is not None else "leader lost"
        return f"{outcome} under another leader" if self.takeovers else outcome

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
                one.running_term = formed.term
                self._promises.start(one, formed.cycle)
                if one.arenas is not None:
                    self._trainings.start(one, formed)
                if formed.cycle:
                    self._restart_ops[one.name] = one.ops
            case LeaveProcess():
                self.say(one.name, effect)
                self._promises.finish(one, effect)
            case QuitProcess() | WitnessLeaves():
                self.say(one.name, effect)
                one.has_quit = True
                self._is_gone(one)
            case Approach(successor):
                self.say(one.name, effect)
                self._approach(one, successor.node)
            case Give(to, offer):
                self.say(one.name, effect)
                self._give(one, self._by_node[to], offer)
            case Release(nodes, term, asks, ahead):
                self.say(one.name, effect)
                for node in nodes:
                    released = Released(one.name, term, asks, ahead)
                    voter = self._by_node[node]
                    self._ways.send(one, voter, partial(self._released, one, voter, released))
            case ClaimKey(term, dead):
                self.say(one.name, effect)
                steps = claim(self._key_of(one, term), dead)
                self._ask_store(one, steps, *next(steps))
            case Leads():
                self.say(one.name, effect)
                self._take_over(one, effect)
            case StepDown():
                self.say(one.name, "steps down")
                one.follows = None
            case LeaveLeader():
                one.follows, one.has_left = None, True
            case _:
                self.say(one.name, effect)

    def ranks_gone(self, one: SimulatedNode) -> None:
        """See :class:`.simulated_node.World`."""
        self._promises.ranks_gone(one)
        one.running = None

    # ------------------------------------------------------------ network
    def _publish(self, home: SimulatedNode, decision: Decision) -> None:
        self._promises.check_decision(home, decision)
        self.snapshots.check_decision(decision)
        if self.scenario.codec:
            decision = decode(DECISIONS, json.loads(json.dumps(encode(decision))))
        self._log.append(decision)
        if isinstance(decision, Resigned):
            self._spare_the_signalled()
        if isinstance(decision, StopCycle | Resigned):
            home.admits_with = None
        elif isinstance(decision, Round) and not decision.again_for:
            home.admits_with = decision
        if self.scenario.rules.is_of_one:
            home.tell(decision, by_log=True)
            return
        if home.is_member and home.follows is home:
            self._read(home, home, home.connections, decision)
        for one in self._launchers.values():
            if one is not home and one.is_member and one.follows is home:
                read = partial(self._read, one, home, one.connections, decision)
                self._ways.send(home, one, read)

    def _send(self, sender: SimulatedNode, message: Message) -> None:
        if not isinstance(message, Beat):
            sender.ops += OPS_PER_MESSAGE
        unheard_s = message.unheard_s if isinstance(message, StateChanged) else 0.0
        if 0 < unheard_s < self.scenario.pace.fence_s - self.scenario.pace.beat_s:
            sender.was_held_up = True  # its leader has lost its lease
        if isinstance(message, Join):
            sender.joined_at = self.clock.now
            self._by_node[message.node] = sender  # it may be another, which comes back
        if self.scenario.codec:
            message = decode(MESSAGES, json.loads(json.dumps(encode(message))))
        home = sender if self.scenario.rules.is_of_one else sender.follows
        if home is None:
            return
        if home is sender:
            self._leader_reads += 1
            sender.tell(message, by_log=True)
            return
        self._put(sender, home, message)
        network = self.scenario.network
        if network.duplicate and self._rng.random() < network.duplicate:
            again_s = self._rng.choice((0.001, 1.0, 60.0)) * self._rng.random()
            again = partial(self._put_again, sender, home, sender.connections, message)
            self.clock.call_in(again_s, again)

    def _put_again(
        self, sender: SimulatedNode, home: SimulatedNode, connection: int, message: Message
    ) -> None:
        if sender.follows is home and sender.connections == connection:  # else it was closed
            self._put(sender, home, message)

    def _put(self, sender: SimulatedNode, home: SimulatedNode, message: Message) -> None:
        if sender.alive and not sender.has_quit:
            doomed = self._rng.random() < 0.5
            at = self._ways.arrives_at(sender, home)
            self.clock.call_at(at, partial(self._arrive, sender, home, message, doomed))

    def _arrive(
        self, sender: SimulatedNode, home: SimulatedNode, message: Message, doomed: bool
    ) -> None:
        if doomed and not sender.alive:
            return  # it died while it sent it
        self._leader_reads += 1
        home.tell(message)

    def _read(
        self, one: SimulatedNode, home: SimulatedNode, connection: int, decision: Decision
    ) -> None:
        if one.follows is not home or one.connections != connection:
            return  # the connection was closed
        if not isinstance(decision, LeaderBeat):
            one.ops += OPS_PER_DECISION
        if one.is_member:
            one.tell(decision, by_log=one is home)

    def _cut(self, cut: Cut) -> None:
        cut = Cut(self.clock.now, cut.host, cut.for_s, cut.up, cut.down)
        self._ways.cut(cut)
        self._cuts.append((cut, self.clock.now + cut.for_s))
        for one in self._launchers.values():
            self._suffer(cut, one)

    def _suffer(self, cut: Cut, one: SimulatedNode) -> None:
        home = 0 if self._home is None else self._home.host
        leaders = {it.host for it in self._by_node.values() if it.leader is not None}
        if cut.host in {one.host, home, *leaders}:
            self._is_apart(one, cut.for_s, one_way=not (cut.up and cut.down))

    def _is_apart(self, one: SimulatedNode, for_s: float, *, one_way: bool) -> None:
        # Cut off twice, what gets through in between is old and looks like news.
        fresh_s = self.scenario.pace.beat_s + 2 * self.longest_way_s
        is_twice = self.clock.now < one.cut_until + fresh_s or one.clock.is_asleep
        one.cut_until = max(one.cut_until, self.clock.now + for_s)
        one.audible = False
        if one.signalled or one.stuck or is_twice or one_way:
            self._promises.break_rules(one)

    def _part(self, partition: Partition) -> None:
        self._ways.part(partition)
        self._parts.append((partition, self.clock.now + partition.for_s))
        for one in self._launchers.values():
            self._is_apart(one, partition.for_s, one_way=partition.one_way)

    def _pause(self, one: SimulatedNode, for_s: float) -> None:
        one.paused_until = self.clock.now + for_s
        everyone = one is self._home  # nobody hears of the leader meanwhile
        for other in self._launchers.values() if everyone else [one]:
            other.audible = False
            self._promises.break_rules(other)
        self.clock.call_at(one.paused_until, one.resume)

    def _suspend(self, one: SimulatedNode, for_s: float) -> None:
        one.clock.sleep_until(max(one.paused_until, self.clock.now + for_s))
        one.paused_until = one.clock.asleep_until
        for other in self._launchers.values() if one is self._home else [one]:
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

    # ------------------------------------------------------------ leadership moves
    def _approach(self, one: SimulatedNode, node: str) -> None:
        target = self._by_node[node]
        one.follows = None  # the connection to that is closed
        at = None if target.is_dark else self._ways.answers_at(one, target)
        self.clock.call_at(
            self.clock.now + NO_ANSWER_S if at is None else at,
            partial(self._answer, one, target, node, late=at is None),
        )

    def _answer(self, one: SimulatedNode, target: SimulatedNode, node: str, *, late: bool) -> None:
        is_there = target.alive and not target.has_quit
        is_awake = self.clock.now >= target.paused_until
        if not is_there and not late and target.name in one.answered:
            one.tell(PeerDied(node))
            return
        if is_there and not is_awake and not late:
            again = partial(self._answer, one, target, node, late=True)
            self.clock.call_in(NO_ANSWER_S, again)
            return
        is_reached = is_there and is_awake and not late
        if is_reached:
            one.answered.add(target.name)
        one.tell(Reached(node) if is_reached else NotReached(node))

    def _give(self, one: SimulatedNode, target: SimulatedNode, offer: Offer) -> None:
        self._promises.check_vote(one, target)
        self._by_node[offer.node] = one  # as when it joins
        one.bound_to, one.follows, one.has_left = target, None, False
        one.joined_at = one.voted_at = self.clock.now
        self._ways.send(one, target, partial(self._offered, one, target, offer))
        if not target.alive or target.has_quit:
            at = self._ways.in_order(one, target)
            self.clock.call_at(at, partial(one.tell, PeerDied(target.name)))

    def _offered(self, voter: SimulatedNode, target: SimulatedNode, offer: Offer) -> None:
        is_there = target.leader is not None and target.alive and not target.has_quit
        if is_there and voter.bound_to is target:
            self._follows(voter, target)
        target.tell(offer)

    def _follows(self, voter: SimulatedNode, home: SimulatedNode) -> None:
        if voter.has_left:
            return
        voter.follows = home
        voter.connections += 1
        self._ways.send(home, voter, partial(self._found, voter, home))

    def _found(self, voter: SimulatedNode, home: SimulatedNode) -> None:
        if voter.follows is not home:
            return  # it has left that one, or gone to another
        voter.bound_to = None
        voter.was_held_up = self.clock.now - voter.voted_at >= self.scenario.pace.fence_s
        voter.tell(Follows())

    def _released(self, one: SimulatedNode, voter: SimulatedNode, released: Released) -> None:
        if voter.bound_to is one:
            voter.bound_to = None
            voter.tell(released)

    def _take_over(self, one: SimulatedNode, leads: Leads) -> None:
        self.takeovers += 1
        self._promises.check_takeover(one, leads)
        self.snapshots.check_takeover(leads)
        self._home = one.follows = one
        one.bound_to = None  # it closes the connection to the launcher that had its vote
        leader = one.leader
        assert leader is not None
        one.watch(leader)
        for cut, until in self._cuts:
            if until > self.clock.now and cut.host == one.host:
                for other in self._launchers.values():
                    other.audible = False
                    other.cut_until = max(other.cut_until, until)
        for offer in leads.offers:
            voter = self._by_node.setdefault(offer.node, one)  # its own, under a new name
            if voter is not one and voter.bound_to is one:
                self._follows(voter, one)
        self._meet_all()
        if self.scenario.store is None:
            for called in leads.called:
                self._call(one, self._by_node[called.node], leads.term, self.clock.now)

    def _call(self, one: SimulatedNode, before: SimulatedNode, term: int, since: float) -> None:
        """It may have slept, or know of no other leader: it is called until it answers."""
        are_there = all(it.alive and not it.has_quit for it in (one, before))
        leader, other = one.leader, before.leader  # None: it has stepped down, and looks for one
        if not are_there or leader is None or leader.term != term:
            return
        if other is not None and other.term >= term:
            return
        if self.clock.now >= before.paused_until and self._ways.are_open(one, before):
            before.tell(LedBy(one.core.member.desc.addr, 1 + one.host, term, one.name))
        else:
            pause_s = self.scenario.pace.call_pause_s(self.clock.now - since)
            self.clock.call_in(pause_s, partial(self._call, one, before, term, since))

    def _key_of(self, one: SimulatedNode, term: int) -> LeaderKey:
        return LeaderKey(one.core.member.desc.addr, 1 + one.host, term, one.name)

    def _ask_store(self, one: SimulatedNode, steps: Steps, expected: str, value: LeaderKey) -> None:
        """One `compare_set`; a launcher that dies meanwhile does not learn what came of it."""
        store = self.scenario.store
        assert store is not None
        arrive = partial(self._swap, one, steps, expected, str(value))
        self.clock.call_at(self._ways.to_store_at(store, one.host), arrive)
        if self._rng.random() < store.late:
            late_s = self._rng.choice((1.0, 60.0)) * self._rng.random()
            self.clock.call_in(late_s, partial(self._set_late, expected, str(value)))

    def _swap(self, one: SimulatedNode, steps: Steps, expected: str, value: str) -> None:
        store = self.scenario.store
        assert store is not None
        answer = partial(self._answered, one, steps, self.compare_set(expected, value))
        at = self._ways.to_store_at(store, one.host)
        self.clock.call_at(at, partial(one.clock.act, answer))

    def _set_late(self, expected: str, value: str) -> None:
        self.compare_set(expected, value)

    def compare_set(self, expected: str, value: str) -> str:
        """As each store does it."""
        if self._key == expected:
            self.say("store", f"{value} in the place of {expected}")
            self._key = value
        return self._key

    def _answered(self, one: SimulatedNode, steps: Steps, found: str) -> None:
        if not one.alive or one.has_quit:
            return
        try:
            self._ask_store(one, steps, *steps.send(found))
        except StopIteration as end:
            claimed: Claimed = end.value
            assert not isinstance(claimed, KeyOver)
            one.tell(claimed)

    def _is_gone(self, one: SimulatedNode) -> None:
        """A launcher has left: nobody reaches it any more."""
        for other in self._by_node.values():
            if other is one or not other.is_member:
                continue
            at = self._ways.in_order(one, other)
            if other.follows is one:
                self.clock.call_at(at, partial(self._lose_leader, other, one))
            if other.bound_to is one:
                self.clock.call_at(at, partial(other.tell, PeerDied(one.name)))

    def _lose_leader(self, one: SimulatedNode, leader: SimulatedNode) -> None:
        if one.follows is leader:
            one.tell(LeaderDied("its kernel says so"))

    def _may_have_leader(self) -> bool:
        """One leads, or may lead."""
        home = self._home
        if home is None or (home.alive and not home.has_quit):
            return True
        followers = (one for one in self._launchers.values() if one.is_member)
        return any(one.core.member.cycle >= 0 or one.bound_to for one in followers)

    # ------------------------------------------------------------ ranks
    def fail_ranks(self, one: SimulatedNode, cycle: int) -> None:
        """A rank of this cycle raises."""
        self._fail_ranks(one, cycle, every=False, may_restart=True)

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
        has_leader = one.follows is not None and one.follows.alive and not one.follows.has_quit
        if not one.audible or not has_leader:
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
        leads = (one for one in self._by_node.values() if one.leader is not None)
        has_gone = not any(one.alive and not one.has_quit for one in leads)
        return has_gone and self._home is not None and not any(self._promises.running.values())
