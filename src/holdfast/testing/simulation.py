"""One leader and many members on a virtual clock and network, with faults, checked at each step.

The machines are the ones that run in production; launchers, ranks, network and time are simulated.
The same scenario and seed give the same history, to the last step. A *step* is one event handed to
a machine, or one of its effects carried out: a launcher can die between any two of them.

Checked, with the names of the invariants:

- R-1: one round per cycle; within it ranks 0 ... n-1 without holes, one owner each, and all owners
  start what the round says. No ranks of a cycle start while ranks of an older one run, on any node
  that can keep to it (one whose launcher gets no processor, which is heard in one direction only,
  which is cut off twice, or while it ends on a signal, or whose ranks cannot be killed, can't).
- R-2: after a Stop, every survivor that can be heard is in the next round, or a spare, or has left,
  and the round or the end comes in bounded time. Nobody who can be heard is called gone.
- B-1: restarts never exceed the budget.
- K-1: nobody leaves while its ranks run, unless they cannot be killed.
- The job ends the same for all, for a reason that is true, by :attr:`Scenario.over_by`.
- No machine asks to be woken in the past (it would spin).

Messages of strangers (:class:`Stranger`) are signed without the job's secret, and given to the same
code as all others: a promise that is broken because of one is broken.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from holdfast.core import leader as lead
from holdfast.core import member as mem
from holdfast.core.actions import SHUTDOWN
from holdfast.core.codec import decode, encode
from holdfast.core.common_events import Begin, ControlRequested, Note, TimePassed
from holdfast.core.leader import Leader, RestartPolicy
from holdfast.core.member import How, Member
from holdfast.core.membership import (
    DECISIONS,
    MESSAGES,
    Beat,
    Control,
    Decision,
    Descriptor,
    End,
    LeaderBeat,
    Leave,
    LeaveWhy,
    Message,
    NodeState,
    Outcome,
    Place,
    Refused,
    Round,
    State,
    Stop,
)
from holdfast.core.never import assert_never
from holdfast.core.node import RanksStopped, RanksStuck, RanksSucceeded, Unhealthy
from holdfast.testing import describe
from holdfast.testing.clock import VirtualClock
from holdfast.testing.scenario import (
    Ask,
    Crash,
    Cut,
    Fault,
    Forgery,
    Pause,
    RankFails,
    Return,
    Scenario,
    Sick,
    Signal,
    Stranger,
    Stuck,
)
from holdfast.wire.sealed import Sealer, SealError

OPS_PER_MESSAGE = 2
"""Store operations of a message up: a number (``add``), then the text under it (``set``)."""
OPS_PER_DECISION = 1
"""Store operations of following one decision down: a blocking ``get``."""
STOP_GRACE_S = 15.0
UNKILLABLE_S = 45.0
SESSION = "5e55"
RANKS_OUTLIVE_LAUNCHER_S = 0.05


class Violation(AssertionError):  # noqa: N818 - reads as what it is
    """The machines broke a promise; the text says which, when and where."""


@dataclass
class _Launcher:
    """One incarnation of the launcher of a host, and its ranks."""

    host: int
    member: Member
    rng: random.Random
    alive: bool = True
    finish: mem.Finish | None = None
    timer_at: float | None = None
    # ranks
    running: int | None = None
    ranks_token: int = 0
    ending: bool = False
    failing: bool = False
    last_started: int = -1
    # faults
    lawful: bool = True
    audible: bool = True
    paused_until: float = 0.0
    held: list[mem.Event] = field(default_factory=list)
    signalled: bool = False
    sick: bool = False
    stuck: bool = False
    # network
    reads_at: float = 0.0
    ops: int = 0

    @property
    def name(self) -> str:
        return self.member.node

    @property
    def is_member(self) -> bool:
        return self.alive and self.finish is None


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


@dataclass
class Simulation:
    """One history of one scenario.

    Args:
        scenario: The job, its network, its faults.
        seed: Of everything that is left to chance: delays, losses, how long things take.
        crash_after: (step, host): the launcher of this host dies right after this step.
        trace: Keep a transcript in :attr:`transcript`; costs time.
    """

    scenario: Scenario
    seed: int = 0
    crash_after: Iterable[tuple[int, int]] = ()
    trace: bool = False

    transcript: list[str] = field(default_factory=list, init=False)
    steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self._rng = random.Random(self.seed)  # noqa: S311 - repeatable is the point
        self._delays = (*self.scenario.network.delay_s,)
        self._crashes: dict[int, list[int]] = {}
        for step, host in self.crash_after:
            self._crashes.setdefault(step, []).append(host)
        self.leader = Leader(self.scenario.rules, self.scenario.pace)
        self.sealer = Sealer("of the job", "j1")
        self._leader_timer_at: float | None = None
        self._leader_held: list[lead.Event] = []
        self._leader_closed = False
        self._leader_reads = 0
        self._launchers: dict[int, _Launcher] = {}
        self._by_node: dict[str, _Launcher] = {}
        self._incarnations: Counter[int] = Counter()
        self._members = 0
        self._cuts: list[tuple[Cut, float]] = []
        self._log: list[Decision] = []
        self._rounds: list[Round] = []
        self._stopped = True
        self._open_since = 0.0
        self._end: End | None = None
        self._growths = 0
        self._running: Counter[int] = Counter()
        self._succeeded: set[tuple[int, str]] = set()
        self._failed: set[tuple[int, str]] = set()
        self._restart_ops: dict[str, int] = {}
        self._store_dies_loudly = self._rng.random() < 0.5
        starts = dict(enumerate(self.scenario.starts_at))
        self.clock.call_at(0.0, partial(self._tell_leader, Begin()))
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
        self._check_end()
        return Result(
            steps=self.steps,
            virtual_s=self.clock.now,
            cycles=len(self._rounds),
            restarts_used=self.leader.restarts_used,
            end=self._end,
            exit_codes={
                node: launcher.finish.exit_code
                for node, launcher in self._by_node.items()
                if launcher.finish is not None
            },
            restart_ops=self._restart_ops,
            leader_reads=self._leader_reads,
            published=len(self._log),
        )

    def start(self, host: int) -> None:
        """Start a launcher on a host, unless one lives there or the store is gone."""
        before = self._launchers.get(host)
        if (before is not None and before.alive and before.finish is None) or not self._has_store():
            return
        if host == 0 and before is not None:
            return  # it still serves the store, and leads
        self._incarnations[host] += 1
        again = self._incarnations[host]
        node = f"n{host}" if again == 1 else f"n{host}#{again}"
        desc = Descriptor(
            addr=f"10.0.{host >> 8}.{host & 255}",
            hostname=f"n{host}",
            nproc=1,
            pid=1000 + again,
            infra_rank=host if self.scenario.infra_ranks else None,
            port=20000 + again,
        )
        member = Member(node, desc, self.scenario.pace)
        seed = self._rng.random()
        launcher = _Launcher(host, member, random.Random(seed))  # noqa: S311 - repeatable
        launcher.reads_at = self.clock.now
        self._members += 1
        self._launchers[host] = self._by_node[node] = launcher
        for cut, until in self._cuts:
            if until > self.clock.now:
                self._suffer(cut, launcher)
        self._tell(launcher, Begin())

    def inflict(self, fault: Fault) -> None:
        """Let ``fault`` happen now, whatever its ``at`` says."""
        if isinstance(fault, Return):
            self.start(fault.host)
            return
        if isinstance(fault, Stranger):
            self._forge(fault)
            return
        launcher = self._launchers.get(fault.host)
        if launcher is None or not launcher.alive:
            return
        self._say(launcher.name, f"** {fault}")
        match fault:
            case RankFails(every=every, may_restart=may_restart):
                self._fail_ranks(launcher, launcher.running, "a rank failed", every, may_restart)
            case Crash():
                self.crash(launcher)
            case Cut():
                self._cut(fault)
            case Pause(for_s=for_s):
                self._pause(launcher, for_s)
            case Ask(action=action):
                if launcher.running is not None:
                    self._tell(launcher, ControlRequested(0, action, "as planned"))
                    self.clock.call_in(
                        0.01,
                        partial(
                            self._fail_ranks, launcher, launcher.running, "as planned", True, True
                        ),
                    )
            case Signal(grace_s=grace_s, well=well):
                self._signal(launcher, grace_s, well)
            case Sick():
                launcher.sick = True
            case Stuck():
                launcher.stuck = launcher.running is not None
                if not launcher.audible:
                    self._break_rules(launcher)
            case _:
                assert_never(fault)

    def crash(self, launcher: _Launcher) -> None:
        """The launcher is gone; its ranks follow when its monitors see it."""
        self._members -= launcher.is_member
        launcher.alive = False
        self._say(launcher.name, "** dies")
        cycle = launcher.running
        outlive_s = launcher.rng.uniform(0, RANKS_OUTLIVE_LAUNCHER_S)
        self.clock.call_in(outlive_s, partial(self._ranks_are_gone, launcher))
        if cycle is not None:
            self._cascade(launcher, cycle)
        if launcher.host == 0:
            for other in self._launchers.values():
                if other.signalled:
                    self._break_rules(other)
            if self._store_dies_loudly:
                self._lose_store("connection reset")

    # ------------------------------------------------------------ machines
    def _tell(self, launcher: _Launcher, event: mem.Event) -> None:
        if not launcher.is_member:
            return
        if self.clock.now < launcher.paused_until:
            if not isinstance(event, TimePassed):
                launcher.held.append(event)
            return
        if not self._survives_step(launcher):
            return
        for effect in launcher.member.handle(event, self.clock.now):
            self._do(launcher, effect)
            if not self._survives_step(launcher):
                return
        self._check_sleep(launcher.member.next_deadline(), launcher.name)
        self._arm(launcher)

    def _tell_leader(self, event: lead.Event) -> None:
        if not self._has_store():
            return
        home = self._launchers.get(0)
        if home is not None and self.clock.now < home.paused_until:
            if not isinstance(event, TimePassed):
                self._leader_held.append(event)
            return
        self._count_step()
        if not self._has_store():
            return
        for effect in self.leader.handle(event, self.clock.now):
            self._do_leader(effect)
            self._count_step()
            if not self._has_store():
                return
        self._check_sleep(self.leader.next_deadline(), "the leader")
        self._arm_leader()

    def _survives_step(self, launcher: _Launcher) -> bool:
        self._count_step()
        return launcher.alive

    def _count_step(self) -> None:
        self.steps += 1
        for host in self._crashes.get(self.steps, ()):
            launcher = self._launchers.get(host)
            if launcher is not None and launcher.alive:
                self.crash(launcher)

    def _arm(self, launcher: _Launcher) -> None:
        at = launcher.member.next_deadline()
        if at is not None and (launcher.timer_at is None or at < launcher.timer_at):
            launcher.timer_at = at
            self.clock.call_at(at, partial(self._timer, launcher, at))

    def _timer(self, launcher: _Launcher, at: float) -> None:
        if launcher.timer_at != at or not launcher.is_member:
            return
        launcher.timer_at = None
        due = launcher.member.next_deadline()
        if due is not None and due <= self.clock.now:
            self._tell(launcher, TimePassed())
        else:
            self._arm(launcher)

    def _arm_leader(self) -> None:
        at = self.leader.next_deadline()
        if at is not None and (self._leader_timer_at is None or at < self._leader_timer_at):
            self._leader_timer_at = at
            self.clock.call_at(at, partial(self._leader_timer, at))

    def _leader_timer(self, at: float) -> None:
        if self._leader_timer_at != at:
            return
        self._leader_timer_at = None
        due = self.leader.next_deadline()
        if due is not None and due <= self.clock.now:
            self._tell_leader(TimePassed())
        else:
            self._arm_leader()

    # ------------------------------------------------------------ effects
    def _do(self, launcher: _Launcher, effect: mem.Effect) -> None:
        is_beat = isinstance(effect, mem.Send) and isinstance(effect.message, Beat)
        if not is_beat and not isinstance(effect, mem.CycleStopping):
            self._say(launcher.name, effect)
        match effect:
            case mem.Send(message):
                self._send(launcher, message)
            case mem.StartRanks(formed, place):
                self._check_start(launcher, formed, place.group_rank)
                self._start_ranks(launcher, formed.cycle)
            case mem.StopRanks(cycle, how):
                self._check(
                    launcher.running in (cycle, None), f"{launcher.name} stops another cycle"
                )
                if launcher.running is not None:  # else word of their end is on its way
                    self._stop_ranks(launcher, how)
            case mem.Finish():
                self._on_finish(launcher, effect)
            case mem.Standby() | mem.CycleStopping() | Note():
                pass
            case _:
                assert_never(effect)

    def _do_leader(self, effect: lead.Effect) -> None:
        if not (isinstance(effect, lead.Publish) and isinstance(effect.decision, LeaderBeat)):
            self._say("leader", effect)
        match effect:
            case lead.Publish(decision):
                self._check_decision(decision)
                if self.scenario.codec:
                    slot = f"down/{len(self._log) + 1}"
                    sealed = self.sealer.seal(slot, SESSION, encode(decision))
                    decision = decode(DECISIONS, self.sealer.open(slot, SESSION, sealed))
                self._log.append(decision)
                for launcher in self._launchers.values():
                    if launcher.is_member:
                        self._deliver(launcher, decision)
            case lead.Close():
                self._leader_closed = True
                self._lose_store("the leader has closed")
            case lead.ReadIteration() | Note():
                pass
            case _:
                assert_never(effect)

    # ------------------------------------------------------------ network
    def _delay_s(self) -> float:
        network = self.scenario.network
        if network.spike and self._rng.random() < network.spike:
            return self._rng.uniform(0, network.spike_s)
        return self._rng.uniform(*self._delays)

    def _arrives_at(self, host: int, sent_at: float, *, up: bool) -> float:
        """When something under way arrives, given who is cut off when."""
        at = sent_at + self._delay_s()
        if host == 0:
            return at  # the store is next door
        for cut, until in self._cuts:
            if cut.host in (host, 0) and cut.at <= at < until and (cut.up if up else cut.down):
                at = until + self._delay_s()
        return at

    def _send(self, sender: _Launcher, message: Message) -> None:
        if not isinstance(message, Beat):
            sender.ops += OPS_PER_MESSAGE
        if self.scenario.codec:
            sealed = self.sealer.seal("up/1", SESSION, encode(message))
            message = decode(MESSAGES, self.sealer.open("up/1", SESSION, sealed))
        self._put(sender, message)
        network = self.scenario.network
        if network.duplicate and self._rng.random() < network.duplicate:
            again_s = self._rng.choice((0.001, 1.0, 60.0)) * self._rng.random()
            self.clock.call_in(again_s, partial(self._put, sender, message))

    def _put(self, sender: _Launcher, message: Message) -> None:
        if sender.is_member:
            doomed = self._rng.random() < 0.5
            at = self._arrives_at(sender.host, self.clock.now, up=True)
            self.clock.call_at(at, partial(self._arrive, sender, message, doomed))

    def _arrive(self, sender: _Launcher, message: Message, doomed: bool) -> None:  # noqa: FBT001
        if doomed and not sender.alive:
            return  # it died between taking a number and writing under it
        self._leader_reads += 1
        self._tell_leader(lead.Arrived(message))

    def _deliver(self, launcher: _Launcher, decision: Decision) -> None:
        at = self._arrives_at(launcher.host, self.clock.now, up=False)
        launcher.reads_at = at = max(at, launcher.reads_at)
        self.clock.call_at(at, partial(self._read, launcher, decision))

    def _read(self, launcher: _Launcher, decision: Decision) -> None:
        if not isinstance(decision, LeaderBeat):
            launcher.ops += OPS_PER_DECISION
        self._tell(launcher, mem.Heard(decision))

    # ------------------------------------------------------------ strangers
    def _forge(self, fault: Stranger) -> None:
        """Write what is said there; all read it, and should not believe it."""
        if not self._has_store():
            return
        named = self._launchers.get(fault.host)
        node = named.name if named is not None else "n99"
        self._say("a stranger", f"** writes {fault.writes.value}, naming {node}")
        slot_down, slot_up = f"down/{len(self._log) + 1}", f"up/{self._leader_reads + 1}"
        for slot, sealed in self._forged(fault.writes, node, slot_down, slot_up):
            try:
                body = self.sealer.open(slot, SESSION, sealed)
            except SealError:
                continue
            if slot == slot_up:
                self._tell_leader(lead.Arrived(decode(MESSAGES, body)))
                continue
            for launcher in self._launchers.values():
                if launcher.is_member:
                    self._deliver(launcher, decode(DECISIONS, body))

    def _forged(self, what: Forgery, node: str, down: str, up: str) -> list[tuple[str, bytes]]:
        guess = Sealer("a guess", "j1")
        cycle = max(0, len(self._rounds) - 1)
        words: dict[Forgery, Decision | Message] = {
            Forgery.END: End(Outcome.SUCCEEDED, 0, "a stranger says so"),
            Forgery.STOP: Stop(cycle, "a stranger says so", node),
            Forgery.ROUND: Round(cycle + 1, (Place(node, 0, 1, 0, ""),), world_size=1),
            Forgery.REFUSED: Refused(node, "a stranger says so"),
            Forgery.LEAVE: Leave(node, LeaveWhy.SIGNALLED),
            Forgery.FAILED: State(node, cycle, NodeState.FAILED, "so", may_restart=False),
            Forgery.SHUT_DOWN: Control(node, SHUTDOWN, -1),
        }
        if what is Forgery.REPLAY:
            end = encode(words[Forgery.END])
            return [
                (down, self.sealer.seal(down, "01d5", end)),
                (down, self.sealer.seal("down/0", SESSION, end)),
                (up, self.sealer.seal("up/0", SESSION, encode(words[Forgery.SHUT_DOWN]))),
            ]
        said = words[what]
        slot = up if isinstance(said, (Leave, State, Control)) else down
        return [(slot, guess.seal(slot, SESSION, encode(said)))]

    def _cut(self, cut: Cut) -> None:
        cut = Cut(self.clock.now, cut.host, cut.for_s, cut.up, cut.down)
        self._cuts.append((cut, self.clock.now + cut.for_s))
        for launcher in self._launchers.values():
            self._suffer(cut, launcher)

    def _suffer(self, cut: Cut, launcher: _Launcher) -> None:
        if launcher.host != 0 and cut.host in (launcher.host, 0):
            # Cut off twice, what gets through in between is old and looks like news.
            helpless = launcher.signalled or launcher.stuck or not launcher.audible
            launcher.audible = False
            if helpless or not (cut.up and cut.down):
                self._break_rules(launcher)

    def _pause(self, launcher: _Launcher, for_s: float) -> None:
        launcher.paused_until = self.clock.now + for_s
        everyone = launcher.host == 0  # nobody hears of the leader meanwhile
        for other in self._launchers.values() if everyone else [launcher]:
            other.audible = False
            self._break_rules(other)
        self.clock.call_at(launcher.paused_until, partial(self._resume, launcher))

    def _resume(self, launcher: _Launcher) -> None:
        if self.clock.now < launcher.paused_until or not launcher.alive:
            return
        if launcher.host == 0:
            messages, self._leader_held = self._leader_held, []
            for message in messages:
                self._tell_leader(message)
            self._tell_leader(TimePassed())
        held, launcher.held = launcher.held, []
        for event in held:
            self._tell(launcher, event)
        self._tell(launcher, TimePassed())

    def _has_store(self) -> bool:
        home = self._launchers.get(0)
        return not self._leader_closed and (home is None or home.alive)

    def _lose_store(self, why: str) -> None:
        for launcher in self._launchers.values():
            if launcher.is_member and launcher.host != 0:
                at = max(self.clock.now + self._delay_s(), launcher.reads_at)
                self.clock.call_at(at, partial(self._tell, launcher, mem.LeaderLost(why)))

    # ------------------------------------------------------------ ranks
    def _start_ranks(self, launcher: _Launcher, cycle: int) -> None:
        launcher.last_started = launcher.running = cycle
        launcher.ending = launcher.failing = False
        launcher.ranks_token += 1
        if launcher.lawful:
            self._running[cycle] += 1
        if cycle:
            self._restart_ops[launcher.name] = launcher.ops
        takes_s = self.scenario.work_s * launcher.rng.uniform(0.8, 1.2)
        done = partial(self._ranks_succeed, launcher, launcher.ranks_token)
        self.clock.call_in(takes_s, done)

    def _ranks_succeed(self, launcher: _Launcher, token: int) -> None:
        if launcher.ranks_token != token or launcher.running is None or not launcher.alive:
            return
        cycle = launcher.running
        self._succeeded.add((cycle, launcher.name))
        self._say(launcher.name, f"** ranks of cycle {cycle} succeed")
        self._ranks_are_gone(launcher)
        self._tell(launcher, RanksSucceeded(cycle))

    def _fail_ranks(
        self,
        launcher: _Launcher,
        cycle: int | None,
        why: str,
        every: bool,  # noqa: FBT001
        may_restart: bool,  # noqa: FBT001
    ) -> None:
        if cycle is None or launcher.running != cycle or launcher.ending or not launcher.alive:
            return
        launcher.ranks_token += 1  # they will not succeed any more
        self._failed.add((cycle, launcher.name))
        self._tell(launcher, mem.RanksFailed(cycle, why, every, may_restart))
        if not launcher.failing:
            launcher.failing = True
            self._cascade(launcher, cycle)

    def _cascade(self, source: _Launcher, cycle: int) -> None:
        if not self.scenario.cascade:
            return
        why = f"lost a peer on {source.name}"
        for launcher in self._launchers.values():
            if launcher.running == cycle and launcher.is_member and not launcher.failing:
                token = launcher.ranks_token
                if launcher.rng.random() < self.scenario.cascade:
                    self.clock.call_in(
                        launcher.rng.choice((0.001, 0.1, 5.0)) * launcher.rng.random(),
                        partial(self._follow_suit, launcher, token, why),
                    )

    def _follow_suit(self, launcher: _Launcher, token: int, why: str) -> None:
        if launcher.ranks_token == token and not launcher.ending and not launcher.failing:
            self._fail_ranks(launcher, launcher.running, why, every=True, may_restart=True)

    def _stop_ranks(self, launcher: _Launcher, how: How) -> None:
        rng = launcher.rng
        launcher.ending = True
        launcher.ranks_token += 1
        token = launcher.ranks_token
        if launcher.stuck:
            takes_s = UNKILLABLE_S
        elif how is How.AT_ONCE:
            takes_s = rng.uniform(0.005, 0.2)
        elif rng.random() < self.scenario.slow_stop:
            takes_s = STOP_GRACE_S + rng.uniform(0.005, 0.2)
        else:
            takes_s = rng.uniform(0.001, 0.3)
        self.clock.call_in(takes_s, partial(self._ranks_stopped, launcher, token, failed=True))

    def _ranks_stopped(self, launcher: _Launcher, token: int, *, failed: bool) -> None:
        if launcher.ranks_token != token or launcher.running is None or not launcher.alive:
            return
        cycle = launcher.running
        if launcher.stuck:
            self._break_rules(launcher)
            self._tell(launcher, RanksStuck(cycle, "rank 0 does not die of SIGKILL"))
            return
        self._ranks_are_gone(launcher)
        if launcher.sick:
            self._tell(launcher, Unhealthy("a GPU fell off the bus"))
        self._tell(launcher, RanksStopped(cycle, failed))

    def _signal(self, launcher: _Launcher, grace_s: float, well: bool) -> None:  # noqa: FBT001
        launcher.signalled = True
        if not launcher.audible:
            self._break_rules(launcher)
        if launcher.running is not None and not launcher.ending:
            launcher.ending = True
            launcher.ranks_token += 1
            stopped = partial(self._ranks_stopped, launcher, launcher.ranks_token, failed=not well)
            self.clock.call_in(grace_s, stopped)
        self._tell(launcher, mem.ToldToEnd("SIGTERM"))

    def _ranks_are_gone(self, launcher: _Launcher) -> None:
        if launcher.running is not None and launcher.lawful:
            self._running[launcher.running] -= 1
        launcher.running = None

    def _break_rules(self, launcher: _Launcher) -> None:
        """From now on this one may overlap with others through no fault of the machines."""
        if launcher.lawful and launcher.running is not None:
            self._running[launcher.running] -= 1
        launcher.lawful = False

    # ------------------------------------------------------------ promises
    def _check(self, holds: bool, otherwise: str) -> None:  # noqa: FBT001
        if not holds:
            self._say("violation", otherwise)
            raise Violation(
                f"{otherwise}, at {self.clock.now:.4f} s, step {self.steps}, seed {self.seed}"
            )

    def _check_sleep(self, deadline: float | None, who: str) -> None:
        if deadline is not None and deadline <= self.clock.now:
            self._check(False, f"{who} wants to be woken at {deadline}, in the past")

    def _check_decision(self, decision: Decision) -> None:
        if isinstance(decision, LeaderBeat):
            return
        if self._end is not None:
            fine = decision == self._end or isinstance(decision, Refused)
            self._check(fine, f"the job had ended, then: {describe.decision(decision)}")
            return
        match decision:
            case Round():
                self._check_round(decision)
            case Stop(cycle=cycle):
                self._check(
                    not self._stopped and cycle == self._rounds[-1].cycle,
                    f"stop of cycle {cycle}, which does not run",
                )
                self._check_cause(decision)
                self._stopped = True
                self._open_since = self.clock.now
                self._growths += "growing" in decision.cause
                for launcher in self._launchers.values():
                    launcher.ops = 0
            case End():
                self._check_verdict(decision)
                self._end = decision
            case Refused(node=node):
                launcher = self._by_node[node]
                heard = launcher.is_member and launcher.audible and launcher.lawful
                self._check(not heard, f"{node} is alive and can be heard, but was refused")

    def _check_cause(self, stop: Stop) -> None:
        """The node that a cycle was stopped for has failed in it, or can't be heard, or is new."""
        cause = self._by_node[stop.node or ""]
        self._check(
            (stop.cycle, cause.name) in self._failed
            or not (cause.is_member and cause.audible and cause.lawful)
            or cause.signalled
            or self._rounds[-1].place_of(cause.name) is None,
            f"cycle {stop.cycle} was stopped for {cause.name}, where nothing happened",
        )

    def _check_round(self, formed: Round) -> None:
        rules = self.scenario.rules
        names = [place.node for place in formed.places]
        number = len(self._rounds)
        self._check(self._stopped, "R-1: a round while a cycle runs")
        self._check(formed.cycle == number, f"R-1: cycle {formed.cycle} follows {number - 1}")
        self._check(
            [place.group_rank for place in formed.places] == list(range(len(names)))
            and len({*names, *formed.spares}) == len(names) + len(formed.spares),
            "R-1: a group rank or a node twice, or a hole",
        )
        offset = 0
        for place in formed.places:
            self._check(place.rank_offset == offset, "R-1: global ranks overlap or have a hole")
            offset += place.nproc
        self._check(offset == formed.world_size, "the world size is wrong")
        self._check(
            rules.nodes.min_nodes <= len(names) <= rules.nodes.wanted, "too few or too many nodes"
        )
        self._check(
            formed.restarts_used == number - self._growths
            and (rules.restarts_period_s is not None or formed.restarts_used <= rules.max_restarts),
            f"B-1: {formed.restarts_used} restarts used of {rules.max_restarts}",
        )
        self._check_time_to_decide()
        if self._rounds:
            taken = {*names, *formed.spares}
            for place in self._rounds[-1].places:
                launcher = self._by_node[place.node]
                survives = launcher.is_member and launcher.audible and launcher.lawful
                leaves = launcher.sick or launcher.signalled
                self._check(
                    not survives or place.node in taken or leaves,
                    f"R-2: {place.node} survived cycle {number - 1} and is not in the next",
                )
        self._check_alone(formed.cycle, "a round was formed")
        self._rounds.append(formed)
        self._stopped = False

    def _check_time_to_decide(self) -> None:
        """R-2: a cycle that was stopped is followed by the next in bounded time."""
        rules, pace = self.scenario.rules, self.scenario.pace
        limit_s = pace.join_timeout_s + (rules.backoff_max_s if rules.backoff_s else 0.0)
        took_s = self.clock.now - self._open_since
        home = self._launchers.get(0)
        if home is None or home.lawful:
            self._check(took_s <= limit_s + 0.001, f"R-2: undecided for {took_s:.1f} s")

    def _check_verdict(self, end: End) -> None:
        """The reason that the leader gives for the end is true."""
        rules = self.scenario.rules
        if self._stopped:
            self._check_time_to_decide()
        if end.outcome is Outcome.SUCCEEDED:
            names = [place.node for place in self._rounds[-1].places]
            cycle = self._rounds[-1].cycle
            done = sum((cycle, name) in self._succeeded for name in names)
            needed = len(names)
            if rules.restart is RestartPolicy.MIN_HEALTHY:
                needed = rules.nodes.min_nodes
            self._check(done >= needed, f"{done} nodes succeeded, the job needs {needed}")
        elif "joined within" in end.cause or "no other can take a place" in end.cause:
            there = sum(
                launcher.is_member
                and launcher.lawful
                and launcher.audible
                and launcher.running is None
                and not launcher.signalled
                for launcher in self._launchers.values()
            )
            least = rules.nodes.min_nodes
            self._check(there < least, f"gave up, though {there} of {least} nodes are waiting")
        elif "no restart is left" in end.why and rules.restarts_period_s is None:
            used = self.leader.restarts_used
            self._check(used == rules.max_restarts, f"gave up after {used} restarts")

    def _check_start(self, launcher: _Launcher, formed: Round, group_rank: int) -> None:
        self._check(
            launcher.running is None,
            f"R-1: {launcher.name} starts cycle {formed.cycle} while {launcher.running} runs",
        )
        self._check(
            formed.cycle > launcher.last_started, f"R-1: {launcher.name} starts a cycle again"
        )
        self._check(
            formed.cycle < len(self._rounds),
            f"R-1: {launcher.name} starts cycle {formed.cycle}, which nobody has formed",
        )
        true_one = self._rounds[formed.cycle]
        self._check(
            true_one.places[group_rank].node == launcher.name,
            f"R-1: {launcher.name} takes group rank {group_rank} of another",
        )
        if launcher.lawful:
            self._check_alone(formed.cycle, f"{launcher.name} starts")

    def _check_alone(self, cycle: int, what: str) -> None:
        """R-1 between nodes: no ranks of two cycles at a time."""
        for other, count in self._running.items():
            self._check(
                count == 0 or other == cycle,
                f"R-1: {what} in cycle {cycle}, ranks of cycle {other} run on {count} nodes",
            )

    def _on_finish(self, launcher: _Launcher, finish: mem.Finish) -> None:
        self._check(
            launcher.running is None or launcher.stuck,
            f"K-1: {launcher.name} leaves, and its ranks run",
        )
        if finish.outcome is not None:
            end = self._end
            self._check(
                end is not None
                and finish.outcome is end.outcome
                and (end.exit_code is None or finish.exit_code == end.exit_code),
                f"{launcher.name} ends otherwise than the job",
            )
        launcher.finish = finish
        self._members -= 1
        if launcher.host == 0 and finish.why is LeaveWhy.SIGNALLED:
            self._tell_leader(lead.Abdicate("SIGTERM"))

    def _is_over(self) -> bool:
        return not self._members and not self._has_store() and not any(self._running.values())

    def _check_end(self) -> None:
        for launcher in self._by_node.values():
            self._check(not launcher.is_member, f"{launcher.name} never comes to an end")
        self._check(not self._has_store(), "the leader never closes")
        self._check(
            all(count == 0 for count in self._running.values()), "ranks outlive their launchers"
        )

    # ------------------------------------------------------------ words
    def _say(self, who: str, what: mem.Effect | lead.Effect | str) -> None:
        if self.trace:
            text = what if isinstance(what, str) else describe.effect(what)
            self.transcript.append(f"{self.clock.now:10.4f}  {who}: {text}")
