"""The ranks, guards and coordinator of one restartable call, simulated, with faults.

The machines are those that run in production (``core/inprocess``); processes, connections and time
are simulated. The same seed gives the same history. Connections keep order; who dies takes what it
has not sent with it; a cut link holds everything back until it heals, as TCP does.

A rank's function works for a while and then waits in a collective until every rank of its epoch is
there, so one that is hung, lost or has raised keeps all others waiting.

Checked at every step:

- R-1: within an epoch no place has two owners, and all see the same world.
- R-2: every rank that lives and can be heard ends in the same way, in bounded time: it finishes
  with the others, or the call fails for all, or it left for a reason of its own.
- No rank runs the user's code of an epoch while one of another does; on a node that is cut off, not
  after the others may have gone on.
- H-1: nobody is called hung before its limit. H-2: whoever hangs does not go on running after it.
- Who hangs again and again by itself is ended; who only waits for others is not, however often.
- Nobody finishes an epoch that not all of its ranks have finished.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from holdfast.core.codec import decode, encode
from holdfast.core.common_events import TimePassed
from holdfast.core.inprocess import coordinator as coord
from holdfast.core.inprocess import guard as gd
from holdfast.core.inprocess import rank as rk
from holdfast.core.inprocess.escalation import Blocked, is_looked_at
from holdfast.core.inprocess.lease import RankLease, Step, rank_fence_s
from holdfast.core.inprocess.messages import (
    DOWN,
    UP,
    Cause,
    Commit,
    Down,
    Exit,
    Fault,
    Hello,
    Kind,
    Numbering,
    Standing,
    Stuck,
    Up,
)
from holdfast.core.kill_ladder import SIGKILL
from holdfast.core.never import assert_never
from holdfast.testing.clock import VirtualClock
from holdfast.testing.simulation import Violation

LIMITS = gd.Limits(soft_s=60.0, hard_s=90.0, grace_s=5.0, beat_s=1.0, silence_s=30.0)
PATIENCE = coord.Patience(barrier_s=120.0, completion_s=120.0, silence_s=30.0)
FOR_EVER_S = 1e6
HORIZON_S = 3600.0
"""Nothing that is simulated here may take an hour."""
_SLACK_S = 2.0
_WAKING_S = 0.01
"""After so long a process that was stopped has seen that its lease is over."""
_FENCE_S = 5.0
"""As in ``inprocess/session.py``."""


class What(enum.Enum):
    """What a rank does instead of its work, once."""

    RAISE = "raises"
    LEAVE = "leaves"
    HANG = "hangs, and can be interrupted"
    HANG_AGAIN = "the same, in each epoch from then on"
    HOLD = "holds the interpreter"
    DIE = "dies"
    SWALLOW = "swallows every interrupt"
    SLOW = "takes long to unwind"
    LATE_RAISE = "raises while others are done"


@dataclass(frozen=True)
class RankFault:
    """In ``epoch``, the rank that was born as ``rank`` does ``what`` after ``after_s`` of work."""

    epoch: int
    rank: int
    what: What
    after_s: float = 0.5


@dataclass(frozen=True)
class GuardDies:
    """The guard of a node dies; that of node 0 takes the coordinator with it."""

    at: float
    node: int


@dataclass(frozen=True)
class Cut:
    """Nothing passes between a node and the coordinator for a while."""

    at: float
    node: int
    for_s: float


@dataclass(frozen=True)
class GuardStops:
    """The guard of a node is stopped for a while; the coordinator with it, where it is there."""

    at: float
    node: int
    for_s: float


@dataclass(frozen=True)
class NodeStops:
    """All processes of a node are stopped for a while, as when a container is frozen."""

    at: float
    node: int
    for_s: float


NodeFault = GuardDies | Cut | GuardStops | NodeStops


@dataclass(frozen=True)
class Call:
    """A call of a wrapped function, and what goes wrong in it."""

    ranks: int
    per_node: int
    faults: tuple[RankFault, ...] = ()
    node_faults: tuple[NodeFault, ...] = ()
    drops_odd: bool = False
    """The assignment leaves out the last place of a world of odd size."""


def random_call(seed: int, ranks: int = 8) -> Call:
    """A call with one to four faults, often two at the same time."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    per_node = rng.choice([1, 2, 4])
    faults = []
    for _ in range(rng.randint(1, 4)):
        epoch = rng.choice([0, 0, 0, 1, 1, 2])
        after_s = rng.choice([0.0, 0.001, 0.5, 0.5, rng.random()])
        faults.append(RankFault(epoch, rng.randrange(ranks), rng.choice(list(What)), after_s))
        if rng.random() < 0.3:  # another, at the same time
            other = rng.randrange(ranks)
            faults.append(RankFault(epoch, other, rng.choice(list(What)), after_s))
    node_faults: list[NodeFault] = []
    if rng.random() < 0.4:
        node = rng.randrange((ranks + per_node - 1) // per_node)
        at = rng.choice([0.5, 1.0, rng.random() * 5])
        for_s = rng.choice([0.5, 5.0, 19.0, 22.0, 25.0, 27.0, 31.0, 200.0, FOR_EVER_S])
        kind = rng.choice([GuardDies, Cut, GuardStops, NodeStops])
        node_faults.append(GuardDies(at, node) if kind is GuardDies else kind(at, node, for_s))
    return Call(ranks, per_node, tuple(faults), tuple(node_faults), rng.random() < 0.2)


class _Process:
    """One rank's process."""

    def __init__(self, number: int, world: int, node: _Node) -> None:
        self.number = number
        self.node = node
        self.machine = rk.Rank(number)
        self.is_alive = True
        self.outcome = ""
        self.born = Numbering(-1, number, world)
        self.base = self.assigned = self.born
        self.proceed: rk.Proceed | None = None
        self.directive: rk.Directive | None = None
        self.is_waiting = True
        self.user_epoch: int | None = None
        self.works_until = 0.0
        self.at_collective: int | None = None
        self.hang: What | None = None
        self.hangs_since = 0.0
        self.is_interrupting = False
        self.is_slow = False
        self.hangs_again: float | None = None
        self.returned_in = -1
        self.lease = RankLease(rank_fence_s(LIMITS.silence_s))


@dataclass
class _Node:
    """A guard, and the two ends of its connection to the coordinator."""

    number: int
    guard: gd.Guard = field(default_factory=lambda: gd.Guard(LIMITS))
    is_alive: bool = True
    is_connected: bool = True
    cut_until: float = 0.0
    cut_from: float = 0.0
    up_at: float = 0.0
    down_at: float = 0.0
    armed: float | None = None
    messages: int = 0
    guard_stopped_until: float = 0.0
    ranks_stopped_until: float = 0.0
    lease_until: float | None = LIMITS.silence_s + 2 * PATIENCE.barrier_s
    """In the pages of its ranks."""

    @property
    def name(self) -> str:
        return f"node{self.number}"


class CallSimulation:
    """Runs one :class:`Call` to its end.

    Attributes:
        clock: Virtual.
        steps: Events handed to machines.
        transcript: What happened, where ``trace`` was asked for.
    """

    def __init__(self, call: Call, seed: int, *, trace: bool = False) -> None:
        self.call = call
        self.clock = VirtualClock()
        self.steps = 0
        self.transcript: list[str] = []
        self._trace = trace
        self._rng = random.Random(seed)  # noqa: S311 - not for secrets
        self._coordinator = coord.Coordinator(PATIENCE)
        self._is_coordinated = True
        self._armed: float | None = None
        n_nodes = (call.ranks + call.per_node - 1) // call.per_node
        self.nodes = [_Node(number) for number in range(n_nodes)]
        self.processes = [
            _Process(number, call.ranks, self.nodes[number // call.per_node])
            for number in range(call.ranks)
        ]
        self._faults = {(fault.epoch, fault.rank): fault for fault in call.faults}
        self._places: dict[int, dict[int, int]] = {}
        self._worlds: dict[int, int] = {}
        self._running: dict[int, set[int]] = {}
        self._arrived: dict[int, set[int]] = {}
        self._leaving: dict[int, str] = {}

    # ------------------------------------------------------------ running

    def run(self) -> None:
        """To the end of all ranks.

        Raises:
            Violation: A promise was broken; the text says which.
        """
        for process in self.processes:
            self.clock.call_in(self._rng.random() * 0.2, partial(self._begin, process))
        for fault in self.call.node_faults:
            self.clock.call_at(fault.at, partial(self._inflict, fault))
        while self.clock.next_at() is not None and not self._is_over():
            if self.clock.now > HORIZON_S:
                raise Violation(f"R-2: after {HORIZON_S:g} s {self._those_left()} still go on")
            self.clock.step()
        if not self._is_over():
            raise Violation(f"R-2: {self._those_left()} wait for ever")
        self._check_end()

    def _is_over(self) -> bool:
        return all(not p.is_alive or p.outcome or self._is_nobodys(p) for p in self.processes)

    def _is_nobodys(self, process: _Process) -> bool:
        """It holds its own interpreter or is stopped, and so is the guard that would kill it."""
        node = process.node
        guard_acts = node.is_alive and node.guard_stopped_until < HORIZON_S
        return not guard_acts and (process.hang is What.HOLD or not self._runs(process))

    def _runs(self, process: _Process) -> bool:
        return process.node.ranks_stopped_until < HORIZON_S

    def _those_left(self) -> str:
        left = [p for p in self.processes if p.is_alive and not p.outcome]
        return ", ".join(f"rank {p.number} ({p.machine.phase.value})" for p in left[:8])

    def _say(self, who: str, what: object) -> None:
        if self._trace:
            self.transcript.append(f"{self.clock.now:10.4f} {who:12} {what}")

    def _short(self) -> float:
        return self._rng.choice([0.0, 0.0001, 0.001, self._rng.random() * 0.02])

    # ------------------------------------------------------------ faults

    def _inflict(self, fault: NodeFault) -> None:
        node = self.nodes[fault.node]
        self._say(node.name, fault)
        match fault:
            case GuardDies():
                self._guard_dies(node)
            case Cut():
                node.cut_from, node.cut_until = self.clock.now, self.clock.now + fault.for_s
            case GuardStops() | NodeStops():
                node.guard_stopped_until = self.clock.now + fault.for_s
                if isinstance(fault, NodeStops):
                    node.ranks_stopped_until = node.guard_stopped_until
                    for process in self._of(node):
                        at = node.ranks_stopped_until + _WAKING_S
                        self.clock.call_at(at, partial(self._check_woken, process))
            case _:
                assert_never(fault)

    def _is_stopped(self, process: _Process, again: Callable[[], None]) -> bool:
        """It does that when it wakes up."""
        if process.node.ranks_stopped_until <= self.clock.now:
            return False
        self.clock.call_at(process.node.ranks_stopped_until, again)
        return True

    def _watches_lease(self, process: _Process) -> None:
        """In a thread of its own; it needs the interpreter, like all Python code."""
        again = partial(self._watches_lease, process)
        if not process.is_alive or process.outcome or self._is_stopped(process, again):
            return
        if process.hang is What.HOLD:
            self.clock.call_in(1.0, again)
            return
        until = process.node.lease_until
        step = process.lease.look(until, self.clock.now)
        if step is not Step.NOTHING and process.machine.has_left:
            self._feed_rank(process, rk.LeaseOver("the guard is stopped"))
            return
        if step is Step.LEAVE:
            self._feed_rank(process, rk.LeaseOver("the guard is stopped"))
        elif step is Step.END:
            self._dies(process, "its lease was over")
        at = process.lease.next_look(until)
        if at is not None:
            self.clock.call_at(at, again)

    def _guard_dies(self, node: _Node) -> None:
        if not node.is_alive:
            return
        node.is_alive = False
        self._disconnect(node)
        for process in self._of(node):
            self.clock.call_in(self._short(), partial(self._feed_rank, process, rk.GuardGone("?")))
            self.clock.call_in(_FENCE_S, partial(self._fences_itself, process))
        if node.number == 0:
            self._is_coordinated = False
            for other in self.nodes:
                if other is not node:
                    self._disconnect(other)

    def _fences_itself(self, process: _Process) -> None:
        if process.machine.is_in_user_code and process.hang is not What.HOLD:
            self._dies(process, "nobody else is left to end it")

    def _disconnect(self, node: _Node) -> None:
        """Both ends see it, unless the link is cut, or they are dead."""
        if not node.is_connected:
            return
        node.is_connected = False
        gone = coord.NodeGone(node.name, "closed")
        self.clock.call_at(self._up_at(node), partial(self._feed_coordinator, gone))
        lost = gd.CoordinatorGone("closed")
        self.clock.call_at(self._down_at(node), partial(self._feed_guard, node, lost))

    def _dies(self, process: _Process, how: str) -> None:
        if not process.is_alive:
            return
        self._say(f"rank{process.number}", f"dies: {how}")
        process.is_alive = False
        self._out_of_user_code(process)
        gone = gd.RankGone(process.number, how)
        self.clock.call_in(self._short(), partial(self._feed_guard, process.node, gone))

    def _of(self, node: _Node) -> list[_Process]:
        first = node.number * self.call.per_node
        return self.processes[first : first + self.call.per_node]

    # ------------------------------------------------------------ connections

    def _through_cut(self, node: _Node, at: float) -> float:
        return node.cut_until if node.cut_from <= at < node.cut_until else at

    def _up_at(self, node: _Node) -> float:
        node.up_at = max(node.up_at, self._through_cut(node, self.clock.now + self._short()))
        return node.up_at

    def _down_at(self, node: _Node) -> float:
        node.down_at = max(node.down_at, self._through_cut(node, self.clock.now + self._short()))
        return node.down_at

    def _tell_coordinator(self, node: _Node, message: Up) -> None:
        node.messages += 1
        if isinstance(message, Fault) and message.kind is Kind.SOFT_TIMEOUT:
            self._check_hang(message)
        if node.is_connected:
            heard = coord.Heard(node.name, decode(UP, encode(message)))
            self.clock.call_at(self._up_at(node), partial(self._feed_coordinator, heard))

    def _tell_guard(self, node: _Node, message: Down) -> None:
        if node.is_connected:
            said = gd.CoordinatorSaid(decode(DOWN, encode(message)))
            self.clock.call_at(self._down_at(node), partial(self._feed_guard, node, said))

    # ------------------------------------------------------------ the coordinator

    def _feed_coordinator(self, event: coord.Event) -> None:
        if not self._is_coordinated:
            return
        stopped_until = self.nodes[0].guard_stopped_until
        if stopped_until > self.clock.now:
            self.clock.call_at(stopped_until, partial(self._feed_coordinator, event))
            return
        self.steps += 1
        for effect in self._coordinator.handle(event, self.clock.now):
            self._say("coordinator", effect)
            match effect:
                case coord.TellAll():
                    self._check_told(effect.message)
                    for node in self.nodes:
                        self._tell_guard(node, effect.message)
                case coord.Tell():
                    self._tell_guard(self.nodes[int(effect.node[4:])], effect.message)
                case coord.HangUp():
                    self._disconnect(self.nodes[int(effect.node[4:])])
                case _:
                    assert_never(effect)
        deadline = self._coordinator.next_deadline()
        if deadline is not None and deadline != self._armed:
            self._armed = deadline
            self.clock.call_at(deadline, partial(self._coordinator_timer, deadline))

    def _coordinator_timer(self, at: float) -> None:
        if self._armed == at:
            self._armed = None
            deadline = self._coordinator.next_deadline()
            if deadline is not None and self.clock.now >= deadline:
                self._feed_coordinator(TimePassed())
            else:
                self._feed_coordinator_nothing()

    def _feed_coordinator_nothing(self) -> None:
        deadline = self._coordinator.next_deadline()
        if deadline is not None:
            self._armed = deadline
            self.clock.call_at(deadline, partial(self._coordinator_timer, deadline))

    # ------------------------------------------------------------ guards

    def _feed_guard(self, node: _Node, event: gd.Event) -> None:
        if not node.is_alive:
            return
        if node.guard_stopped_until > self.clock.now:
            self.clock.call_at(node.guard_stopped_until, partial(self._feed_guard, node, event))
            return
        self.steps += 1
        effects = list(node.guard.handle(event, self.clock.now))
        for effect in effects:
            self._say(node.name, effect)
            match effect:
                case gd.TellRank():
                    process = self.processes[effect.rank]
                    heard = rk.Heard(effect.message)
                    self._later_to_rank(process, heard)
                case gd.TellCoordinator():
                    self._tell_coordinator(node, effect.message)
                case gd.Look():
                    process = self.processes[effect.rank]
                    looked = gd.Looked(effect.rank, self._marks(process))
                    self._feed_guard(node, looked)
                case gd.TakeEvidence():
                    if self._rng.random() < 0.8:
                        taken = gd.EvidenceTaken(effect.rank)
                        self.clock.call_in(0.02, partial(self._feed_guard, node, taken))
                case gd.Signal():
                    self._signalled(self.processes[effect.rank], effect.signals)
                case gd.Renew():
                    node.lease_until = effect.until
                case gd.Quit():
                    self._disconnect(node)
                case _:
                    assert_never(effect)
        self._arm_guard(node)

    def _arm_guard(self, node: _Node) -> None:
        deadline = node.guard.next_deadline()
        if deadline is not None and deadline != node.armed:
            node.armed = deadline
            self.clock.call_at(deadline, partial(self._guard_timer, node, deadline))

    def _guard_timer(self, node: _Node, at: float) -> None:
        if node.armed != at or not node.is_alive:
            return
        node.armed = None
        deadline = node.guard.next_deadline()
        if deadline is not None and self.clock.now >= deadline:
            self._feed_guard(node, TimePassed())
        else:
            self._arm_guard(node)

    def _later_to_rank(self, process: _Process, event: rk.Event) -> None:
        # A local connection: order is kept because nothing is delayed differently.
        self.clock.call_in(0.0002, partial(self._feed_rank, process, event))

    def _signalled(self, process: _Process, signals: tuple[int, ...]) -> None:
        if SIGKILL in signals or self._rng.random() < 0.5:
            self.clock.call_in(self._short(), partial(self._dies, process, "a signal"))

    def _marks(self, process: _Process) -> gd.Marks:
        now = self.clock.now
        since = self._stuck_since(process)
        automatic = now if since is None else since
        holds = process.hang is What.HOLD
        waits = process.hang is None and process.at_collective is not None
        thread = process.hangs_since if holds else now
        return gd.Marks(automatic, thread=thread, waits=waits)

    def _stuck_since(self, process: _Process) -> float | None:
        """Since when its main thread runs no Python."""
        if process.hang in (What.HANG, What.HOLD):
            return process.hangs_since
        return process.works_until if process.at_collective is not None else None

    # ------------------------------------------------------------ a rank's two threads

    def _begin(self, process: _Process) -> None:
        node = process.node
        if not node.is_alive:
            process.outcome = "failed: no guard"
            return
        self._feed_guard(node, gd.RankCame(Hello(process.number, self.call.ranks)))
        self._watches_lease(process)

    def _feed_rank(self, process: _Process, event: rk.Event) -> None:
        if not process.is_alive or process.outcome:
            return
        if self._is_stopped(process, partial(self._feed_rank, process, event)):
            return
        self.steps += 1
        for effect in process.machine.handle(event):
            self._say(f"rank{process.number}", effect)
            match effect:
                case rk.Say():
                    if isinstance(effect.message, Stuck) and process.hang is None:
                        raise Violation(f"rank {process.number} only waits, and is to be ended")
                    said = gd.RankSaid(process.number, decode(UP, encode(effect.message)))
                    self.clock.call_in(0.0002, partial(self._feed_guard, process.node, said))
                case rk.RunAbort():
                    # Needs the interpreter: it waits where somebody holds it.
                    blocked = self._blocked(process, effect.causes)
                    self.clock.call_in(self._short(), partial(self._abort_done, process, blocked))
                case rk.Interrupt():
                    process.is_interrupting = True
                    self.clock.call_in(self._short(), partial(self._interrupted, process))
                case rk.StopInterrupt():
                    process.is_interrupting = False
                case rk.Wake():
                    if isinstance(effect.directive, rk.Proceed):
                        process.proceed = effect.directive
                    else:
                        process.directive = effect.directive
                case _:
                    assert_never(effect)
        # A thread that is woken does not run at once: more may come before it does.
        self.clock.call_in(self._short(), partial(self._main, process))

    def _blocked(self, process: _Process, causes: tuple[Cause, ...]) -> Blocked | None:
        since = self._stuck_since(process)
        if process.user_epoch is None or since is None:
            return None
        silent_s = self.clock.now - since
        if not is_looked_at(causes, silent_s, LIMITS.soft_s):
            return None
        worked_s = since - (process.works_until - 1.0)
        return Blocked(worked_s, silent_s, is_freed=process.hang is None)

    def _abort_done(self, process: _Process, blocked: Blocked | None) -> None:
        if self._is_stopped(process, partial(self._abort_done, process, blocked)):
            return
        if process.hang is What.HOLD and process.user_epoch is not None:
            return
        self._feed_rank(process, rk.AbortDone(blocked))

    def _interrupted(self, process: _Process) -> None:
        if self._is_stopped(process, partial(self._interrupted, process)):
            return
        if not process.is_alive or not process.is_interrupting or process.user_epoch is None:
            return
        if process.hang in (What.HOLD, What.SWALLOW):
            return
        self._out_of_user_code(process)
        process.is_waiting = True
        self._feed_rank(process, rk.Caught())

    def _main(self, process: _Process) -> None:
        """The main thread, where it waits and there is something for it to do."""
        if self._is_stopped(process, partial(self._main, process)):
            return
        if not process.is_waiting or not process.is_alive or process.outcome:
            return
        directive: rk.Directive | None
        if process.proceed is not None:
            directive, process.proceed = process.proceed, None
        else:
            directive, process.directive = process.directive, None
        match directive:
            case None:
                return
            case rk.Proceed():
                self._proceed(process, directive.commit)
            case rk.Unwind():
                process.is_waiting = False
                takes_s = 100.0 if process.is_slow else self._short()
                process.is_slow = False
                self.clock.call_in(takes_s, partial(self._unwound, process))
            case rk.Finish():
                self._check_finish(process)
                self._ends(process, "finished")
            case rk.Fail():
                self._ends_after_leaving(process, f"failed: {directive.text}")
            case rk.Go():
                self._ends(process, "left")
            case _:
                assert_never(directive)

    def _unwound(self, process: _Process) -> None:
        if self._is_stopped(process, partial(self._unwound, process)):
            return
        if process.is_alive:
            process.is_waiting = True
            standing = Standing(process.number, process.assigned, process.base)
            self._feed_rank(process, rk.Unwound(standing))

    def _proceed(self, process: _Process, commit: Commit) -> None:
        if commit.base == process.assigned.epoch:
            process.base = process.assigned
        if process.machine.must_unwind:
            self._main(process)
            return
        process.is_waiting = False
        self.clock.call_in(self._short(), partial(self._assign, process, commit))

    def _assign(self, process: _Process, commit: Commit) -> None:
        if self._is_stopped(process, partial(self._assign, process, commit)):
            return
        if not process.is_alive:
            return
        if process.machine.must_unwind and self._rng.random() < 0.5:
            process.is_waiting = True  # woken in the middle of it
            self._main(process)
            return
        base, lost = process.base, set(commit.terminated)
        world = base.world - len(lost)
        place = base.place - sum(other < base.place for other in lost)
        if self.call.drops_odd and world > 1 and world % 2:
            world -= 1
        if place >= world:
            self._leaves(process, "left: discarded", fault=False)
            return
        process.assigned = Numbering(commit.epoch, place, world)
        self._enter(process)

    def _enter(self, process: _Process) -> None:
        epoch, number = process.assigned.epoch, process.number
        self._check_enter(process)
        process.user_epoch = epoch
        self._running.setdefault(epoch, set()).add(number)
        fault = self._faults.pop((epoch, number), None)
        if process.hangs_again is not None:
            fault = RankFault(epoch, number, What.HANG_AGAIN, process.hangs_again)
        process.works_until = self.clock.now + 1.0
        late = fault is not None and fault.what is What.LATE_RAISE
        if fault is not None and not late:
            self.clock.call_in(fault.after_s, partial(self._acts, process, fault, epoch))
        else:
            at = process.works_until
            self.clock.call_at(at, partial(self._reach, process, epoch, late=late))
        self._feed_rank(process, rk.Entered())

    def _acts(self, process: _Process, fault: RankFault, epoch: int) -> None:
        if self._is_stopped(process, partial(self._acts, process, fault, epoch)):
            return
        if not process.is_alive or process.user_epoch != epoch:
            return
        self._say(f"rank{process.number}", fault.what.value)
        match fault.what:
            case What.RAISE | What.LATE_RAISE:
                self._raises(process)
            case What.SLOW:
                process.is_slow = True
                self._raises(process)
            case What.LEAVE:
                self._leaves(process, "left: by itself", fault=True)
            case What.DIE:
                self._dies(process, "SIGKILL")
            case What.HANG | What.HOLD | What.SWALLOW | What.HANG_AGAIN:
                process.hang, process.hangs_since = fault.what, self.clock.now
                if fault.what is What.HANG_AGAIN:
                    process.hang, process.hangs_again = What.HANG, fault.after_s
                if fault.what is not What.SWALLOW:
                    at = self.clock.now + LIMITS.soft_s + gd.VICTIM_S + _SLACK_S
                    self.clock.call_at(at, partial(self._check_found, process, epoch))
            case _:
                assert_never(fault.what)

    def _raises(self, process: _Process) -> None:
        self._out_of_user_code(process)
        process.is_waiting = True
        self._feed_rank(process, rk.Raised("boom"))

    def _reach(self, process: _Process, epoch: int, *, late: bool) -> None:
        """The work is done; the rest is a collective of the epoch's ranks."""
        if self._is_stopped(process, partial(self._reach, process, epoch, late=late)):
            return
        if not process.is_alive or process.user_epoch != epoch:
            return
        process.at_collective = epoch
        arrived = self._arrived.setdefault(epoch, set())
        arrived.add(process.number)
        if late:
            self._faults[epoch, process.number] = RankFault(epoch, process.number, What.LATE_RAISE)
        if len(arrived) == self._worlds[epoch]:
            for number in sorted(arrived):
                self.clock.call_in(self._short(), partial(self._returns, number, epoch))

    def _returns(self, number: int, epoch: int) -> None:
        process = self.processes[number]
        if self._is_stopped(process, partial(self._returns, number, epoch)):
            return
        if not process.is_alive or process.user_epoch != epoch:
            return
        fault = self._faults.pop((epoch, number), None)
        if fault is not None:
            self.clock.call_in(0.3, partial(self._acts, process, fault, epoch))
            return
        self._out_of_user_code(process)
        process.is_waiting = True
        process.returned_in = epoch
        self._feed_rank(process, rk.Returned())

    def _leaves(self, process: _Process, how: str, *, fault: bool) -> None:
        self._out_of_user_code(process)
        process.is_waiting = True
        self._leaving[process.number] = how
        self._feed_rank(process, rk.Leaving(how, fault))

    def _ends_after_leaving(self, process: _Process, how: str) -> None:
        if process.number in self._leaving:
            self._ends(process, self._leaving[process.number])
            return
        self._leaving[process.number] = how
        self._feed_rank(process, rk.Leaving(how))

    def _ends(self, process: _Process, how: str) -> None:
        how = self._leaving.get(process.number, how)
        self._feed_rank(process, rk.Gone())
        process.outcome = how
        self._say(f"rank{process.number}", how)

    def _out_of_user_code(self, process: _Process) -> None:
        if process.user_epoch is not None:
            self._running[process.user_epoch].discard(process.number)
        process.user_epoch = process.at_collective = None
        process.hang = None

    # ------------------------------------------------------------ promises

    def _check_enter(self, process: _Process) -> None:
        numbering = process.assigned
        places = self._places.setdefault(numbering.epoch, {})
        owner = places.setdefault(numbering.place, process.number)
        if owner != process.number:
            raise Violation(
                f"R-1: ranks {owner} and {process.number} are both {numbering.place} in epoch "
                f"{numbering.epoch}"
            )
        if self._worlds.setdefault(numbering.epoch, numbering.world) != numbering.world:
            raise Violation(f"R-1: two worlds in epoch {numbering.epoch}")
        for epoch in list(self._running):
            if epoch == numbering.epoch:
                continue
            for number in self._running[epoch]:
                self._check_alone(process, self.processes[number], epoch)
            if not self._running[epoch]:
                del self._running[epoch]

    def _check_alone(self, process: _Process, other: _Process, epoch: int) -> None:
        if not other.node.is_alive:
            return  # nobody is left who could end it; it has been told, and can't hear
        if other.hang is What.HOLD and other.node.guard_stopped_until > self.clock.now:
            return  # likewise; and none of its Python code runs
        if other.node.ranks_stopped_until > self.clock.now:
            until = other.node.lease_until
            if until is not None and until + rank_fence_s(LIMITS.silence_s) <= self.clock.now:
                return  # it will end itself when it wakes up: see _check_woken
        raise Violation(
            f"rank {process.number} enters epoch {process.assigned.epoch} while rank "
            f"{other.number} runs epoch {epoch}"
        )

    def _check_woken(self, process: _Process) -> None:
        """A rank that was stopped while the others went on does not go on where it was."""
        epoch = process.user_epoch
        newest = max((p.user_epoch or 0 for p in self.processes if p.is_alive), default=0)
        if process.is_alive and epoch is not None and epoch < newest:
            raise Violation(f"rank {process.number} wakes up in epoch {epoch} of {newest}")

    def _check_told(self, message: Down) -> None:
        if isinstance(message, Exit) and "different assignments" in message.text:
            raise Violation(f"R-1: the assignment here is the same for all, but: {message.text}")

    def _check_hang(self, fault: Fault) -> None:
        process = self.processes[fault.rank]
        since = self._stuck_since(process)
        if process.is_alive and (since is None or self.clock.now - since < LIMITS.soft_s - 1e-6):
            raise Violation(f"H-1: rank {fault.rank} is called hung, stuck since {since}")

    def _check_found(self, process: _Process, epoch: int) -> None:
        if process.user_epoch == epoch and process.machine.phase is rk.Phase.RUNNING:
            cut = process.node.cut_from <= self.clock.now < process.node.cut_until
            stops = (GuardStops, NodeStops)
            stopped = any(isinstance(fault, stops) for fault in self.call.node_faults)
            if process.node.is_alive and not cut and not stopped and process.hang is What.HANG:
                raise Violation(f"H-2: rank {process.number} hangs unnoticed")

    def _check_finish(self, process: _Process) -> None:
        epoch = process.machine.epoch
        for other in self.processes:
            if other.assigned.epoch == epoch and other.is_alive and other.returned_in != epoch:
                raise Violation(
                    f"rank {process.number} finishes epoch {epoch}, rank {other.number} has not"
                )

    def _check_end(self) -> None:
        finished = [p for p in self.processes if p.outcome == "finished"]
        if not finished:
            return
        epochs = {p.returned_in for p in finished}
        if len(epochs) != 1:
            raise Violation(f"R-2: ranks finished in epochs {sorted(epochs)}")
        for process in self.processes:
            told = process.outcome.startswith("left") or process.outcome == "finished"
            is_cut = any(fault.node == process.node.number for fault in self.call.node_faults)
            if process.is_alive and not told and not is_cut:
                raise Violation(f"R-2: rank {process.number} {process.outcome}, others finished")


def simulate_call(
    seed: int, ranks: int = 8, *, trace: bool = False
) -> tuple[CallSimulation, Violation | None]:
    """Run the random call of ``seed``; what it violated, if anything."""
    simulation = CallSimulation(random_call(seed, ranks), seed, trace=trace)
    try:
        simulation.run()
    except Violation as violation:
        return simulation, violation
    return simulation, None
