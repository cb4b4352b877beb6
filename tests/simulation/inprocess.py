"""The ranks, guards and coordinator of one restartable call, simulated, with faults.

The machines are those that run in production (``inplace/pure``); processes, connections and time
are simulated. The same seed gives the same history. Connections keep order; who dies takes what it
has not sent with it; a cut link holds everything back until it heals, as TCP does.

A rank's function works for a while and then waits in a collective until every rank of its epoch is
there, so one that is hung, lost or has raised keeps all others waiting. What must hold is in
``call_promises.py``, and checked at every step.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from holdfast.base.pure.codec import decode, encode
from holdfast.base.pure.common_events import TimePassed
from holdfast.base.pure.kill_ladder import SIGKILL
from holdfast.base.pure.never import assert_never
from holdfast.inplace.pure import coordinator as coord
from holdfast.inplace.pure import guard as gd
from holdfast.inplace.pure import rank as rk
from holdfast.inplace.pure.escalation import Blocked, is_looked_at
from holdfast.inplace.pure.lease import RankLease, Step, rank_fence_s
from holdfast.inplace.pure.messages import (
    DOWN,
    UP,
    Cause,
    Commit,
    Down,
    Fault,
    Hello,
    Kind,
    Numbering,
    Standing,
    Stuck,
    Up,
)
from holdfast.testing.clock import VirtualClock
from tests.simulation import describe
from tests.simulation.call_promises import LIMITS, SLACK_S, Outcome, Process, Promises
from tests.simulation.call_scenario import (
    Call,
    Cut,
    GuardDies,
    GuardStops,
    NodeFault,
    NodeStops,
    RankFault,
    What,
    random_call,
)
from tests.simulation.job_promises import Violation

PATIENCE = coord.Patience(barrier_s=120.0, completion_s=120.0, silence_s=LIMITS.silence_s)
HORIZON_S = 3600.0
"""Nothing that is simulated here may take an hour."""
_WAKING_S = 0.01
"""After so long a process that was stopped has seen that its lease is over."""
_FENCE_S = 5.0
"""As in ``inplace/session.py``."""
_LONG_WORK_S = 500.0
"""Longer than ranks are waited for."""
_LOCAL_S = 0.0002
"""From a rank to its guard, and back; order is kept because nothing is delayed differently."""


class _Timed(Protocol):
    def next_deadline(self) -> float | None: ...


@dataclass
class _Alarm:
    """Wakes a machine at its deadline, once, wherever that has moved to meanwhile."""

    clock: VirtualClock
    machine: _Timed
    wake: Callable[[], None]
    _armed: float | None = None

    def set(self) -> None:
        """After each event."""
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline != self._armed:
            self._armed = deadline
            self.clock.call_at(deadline, partial(self._ring, deadline))

    def _ring(self, at: float) -> None:
        if self._armed != at:
            return
        self._armed = None
        deadline = self.machine.next_deadline()
        if deadline is not None and self.clock.now >= deadline:
            self.wake()
        else:
            self.set()


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
    messages: int = 0
    guard_stopped_until: float = 0.0
    ranks_stopped_until: float = 0.0
    lease_until: float | None = LIMITS.silence_s + 2 * PATIENCE.barrier_s
    """In the pages of its ranks."""
    alarm: _Alarm = field(init=False)

    @property
    def name(self) -> str:
        return f"node{self.number}"


class _Process(Process):
    """One rank's process, with what only the simulation needs to know of it."""

    node: _Node

    def __init__(self, number: int, world: int, node: _Node) -> None:
        super().__init__(number, world, node)
        self.base = self.assigned
        self.proceed: rk.Proceed | None = None
        self.directive: rk.Directive | None = None
        self.is_waiting = True
        self.works_from = self.works_until = 0.0
        self.at_collective = False
        self.hangs_since = 0.0
        self.is_interrupting = False
        self.is_slow = False
        self.hangs_again: float | None = None
        self.leaving: Outcome | None = None
        """How, once it does,"""
        self.why = ""
        """and why, for people."""
        self.lease = RankLease(rank_fence_s(LIMITS.silence_s))

    @property
    def stuck_since(self) -> float | None:
        """Since when its main thread runs no Python."""
        if self.hang in (What.HANG, What.HOLD):
            return self.hangs_since
        return self.works_until if self.at_collective else None


class CallSimulation:
    """Runs one :class:`Call` to its end.

    Args:
        call: The call.
        seed: Of everything that is left to chance.
        trace: Whether to keep a transcript.
        rng: In the place of one from the seed.

    Attributes:
        clock: Virtual.
        steps: Events handed to machines.
        transcript: What happened, where ``trace`` was asked for.
    """

    def __init__(
        self, call: Call, seed: int, *, trace: bool = False, rng: random.Random | None = None
    ) -> None:
        self.call = call
        self.clock = VirtualClock()
        self.steps = 0
        self.transcript: list[str] = []
        self._trace = trace
        self._rng = rng or random.Random(seed)
        self._coordinator = coord.Coordinator(PATIENCE)
        self._is_coordinated = True
        wake = partial(self._feed_coordinator, TimePassed())
        self._alarm = _Alarm(self.clock, self._coordinator, wake)
        n_nodes = (call.ranks + call.per_node - 1) // call.per_node
        self.nodes = [_Node(number) for number in range(n_nodes)]
        for node in self.nodes:
            wake = partial(self._feed_guard, node, TimePassed())
            node.alarm = _Alarm(self.clock, node.guard, wake)
        self.processes = [
            _Process(number, call.ranks, self.nodes[number // call.per_node])
            for number in range(call.ranks)
        ]
        self._promises = Promises(call, self.clock, self.processes)
        self._faults = {(fault.epoch, fault.rank): fault for fault in call.faults}
        self._arrived: dict[int, set[int]] = {}

    # ------------------------------------------------------------ running

    def run(self) -> None:
        """To the end of all ranks.

        Raises:
            Violation: A promise was broken; the text says which.
        """
        self.start()
        while self.clock.next_at() is not None and not self._is_over():
            if self.clock.now > HORIZON_S:
                raise Violation(f"R-2: after {HORIZON_S:g} s {self._those_left()} still go on")
            self.clock.step()
        if not self._is_over():
            raise Violation(f"R-2: {self._those_left()} wait for ever")
        self._promises.check_end()

    def start(self) -> None:
        """Have all processes begin; the clock does the rest."""
        for process in self.processes:
            self.clock.call_in(self._rng.random() * 0.2, partial(self._begin, process))
        for fault in self.call.node_faults:
            self.clock.call_at(fault.at, partial(self.inflict, fault))

    def _is_over(self) -> bool:
        return all(not p.goes_on or self._is_nobodys(p) for p in self.processes)

    def _is_nobodys(self, process: _Process) -> bool:
        """It holds its own interpreter or is stopped, and so is the guard that would kill it."""
        node = process.node
        guard_acts = node.is_alive and node.guard_stopped_until < HORIZON_S
        is_stopped = node.ranks_stopped_until >= HORIZON_S
        return not guard_acts and (process.hang is What.HOLD or is_stopped)

    def _those_left(self) -> str:
        left = [p for p in self.processes if p.goes_on]
        return ", ".join(f"rank {p.number} ({p.machine.phase.value})" for p in left[:8])

    def _say(self, who: str, what: object) -> None:
        """A line, or an effect, which may be worth none."""
        if self._trace and (text := what if isinstance(what, str) else describe.of_call(what)):
            self.transcript.append(f"{self.clock.now:10.4f}  {who}: {text}")

    def _short(self) -> float:
        return self._rng.choice([0.0, 0.0001, 0.001, self._rng.random() * 0.02])

    def _does(
        self, process: _Process, delay_s: float, action: Callable[..., None], *args: Any
    ) -> None:
        """A process does that later; when it wakes up, if it is stopped; never, if it has ended."""

        def act() -> None:
            if not process.goes_on:
                return
            if process.node.ranks_stopped_until > self.clock.now:
                self.clock.call_at(process.node.ranks_stopped_until, act)
            else:
                action(process, *args)

        self.clock.call_in(delay_s, act)

    # ------------------------------------------------------------ faults of nodes

    def inflict(self, fault: NodeFault) -> None:
        """Now."""
        node = self.nodes[fault.node]
        self._say(node.name, f"** {fault}")
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
                        self.clock.call_at(at, partial(self._promises.check_woken, process))
            case _:
                assert_never(fault)

    def _watches_lease(self, process: _Process) -> None:
        """In a thread of its own; it needs the interpreter, like all Python code."""
        if process.hang is What.HOLD:
            self._does(process, 1.0, self._watches_lease)
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
            self._does(process, at - self.clock.now, self._watches_lease)

    def _guard_dies(self, node: _Node) -> None:
        if not node.is_alive:
            return
        node.is_alive = False
        self._disconnect(node)
        for process in self._of(node):
            self._does(process, self._short(), self._feed_rank, rk.GuardGone("?"))
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
            process = self.processes[message.rank]
            self._promises.check_hang(process, process.stuck_since)
        if node.is_connected:
            heard = coord.Heard(node.name, decode(UP, encode(message)))
            self.clock.call_at(self._up_at(node), partial(self._feed_coordinator, heard))

    def _tell_guard(self, node: _Node, message: Down) -> None:
        if node.is_connected:
            said = gd.CoordinatorSaid(decode(DOWN, encode(message)))
            self.clock.call_at(self._down_at(node), partial(self._feed_guard, node, said))

    # ------------------------------------------------------------ the coordinator and the guards

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
                    self._promises.check_told(effect.message)
                    for node in self.nodes:
                        self._tell_guard(node, effect.message)
                case coord.Tell():
                    self._tell_guard(self.nodes[int(effect.node[4:])], effect.message)
                case coord.HangUp():
                    self._disconnect(self.nodes[int(effect.node[4:])])
                case _:
                    assert_never(effect)
        self._alarm.set()

    def _feed_guard(self, node: _Node, event: gd.Event) -> None:
        if not node.is_alive:
            return
        if node.guard_stopped_until > self.clock.now:
            self.clock.call_at(node.guard_stopped_until, partial(self._feed_guard, node, event))
            return
        self.steps += 1
        for effect in list(node.guard.handle(event, self.clock.now)):
            self._say(node.name, effect)
            match effect:
                case gd.TellRank():
                    heard = rk.Heard(effect.message)
                    self._does(self.processes[effect.rank], _LOCAL_S, self._feed_rank, heard)
                case gd.TellCoordinator():
                    self._tell_coordinator(node, effect.message)
                case gd.TellLauncher():
                    pass
                case gd.Look():
                    process = self.processes[effect.rank]
                    self._feed_guard(node, gd.Looked(effect.rank, self._marks(process)))
                case gd.TakeEvidence():
                    if self._rng.random() < 0.8:
                        taken = gd.EvidenceTaken(effect.rank)
                        self.clock.call_in(0.02, partial(self._feed_guard, node, taken))
                case gd.Signal():
                    if SIGKILL in effect.signals or self._rng.random() < 0.5:
                        dies = partial(self._dies, self.processes[effect.rank], "a signal")
                        self.clock.call_in(self._short(), dies)
                case gd.Renew():
                    node.lease_until = effect.until
                case gd.Quit():
                    self._disconnect(node)
                case _:
                    assert_never(effect)
        node.alarm.set()

    def _marks(self, process: _Process) -> gd.Marks:
        now, since = self.clock.now, process.stuck_since
        automatic = now if since is None else since
        thread = process.hangs_since if process.hang is What.HOLD else now
        waits = process.hang is None and process.at_collective
        return gd.Marks(automatic, thread=thread, waits=waits)

    # ------------------------------------------------------------ a rank's two threads

    def _begin(self, process: _Process) -> None:
        node = process.node
        if not node.is_alive:
            process.outcome, process.why = Outcome.FAILED, "no guard"
            return
        self._feed_guard(node, gd.RankCame(Hello(process.number, self.call.ranks)))
        self._does(process, 0.0, self._watches_lease)

    def _feed_rank(self, process: _Process, event: rk.Event) -> None:
        self.steps += 1
        for effect in process.machine.handle(event):
            self._say(process.name, effect)
            match effect:
                case rk.Say():
                    if isinstance(effect.message, Stuck) and process.hang is None:
                        raise Violation(f"rank {process.number} only waits, and is to be ended")
                    said = gd.RankSaid(process.number, decode(UP, encode(effect.message)))
                    self.clock.call_in(_LOCAL_S, partial(self._feed_guard, process.node, said))
                case rk.RunAbort():
                    # Needs the interpreter: it waits where somebody holds it.
                    blocked = self._blocked(process, effect.causes)
                    self._does(process, self._short(), self._abort_done, blocked)
                case rk.Interrupt():
                    process.is_interrupting = True
                    self._does(process, self._short(), self._interrupted)
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
        self._does(process, self._short(), self._main)

    def _blocked(self, process: _Process, causes: tuple[Cause, ...]) -> Blocked | None:
        since = process.stuck_since
        if process.user_epoch is None or since is None:
            return None
        silent_s = self.clock.now - since
        if not is_looked_at(causes, silent_s, LIMITS.soft_s):
            return None
        return Blocked(since - process.works_from, silent_s, is_freed=process.hang is None)

    def _abort_done(self, process: _Process, blocked: Blocked | None) -> None:
        if process.hang is not What.HOLD or process.user_epoch is None:
            self._feed_rank(process, rk.AbortDone(blocked))

    def _interrupted(self, process: _Process) -> None:
        if not process.is_interrupting or process.user_epoch is None:
            return
        if process.hang not in (What.HOLD, What.SWALLOW):
            self._comes_back(process, rk.Caught())

    def _main(self, process: _Process) -> None:
        """The main thread, where it waits and there is something for it to do."""
        if not process.is_waiting:
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
                self._does(process, takes_s, self._unwound)
            case rk.Finish():
                self._promises.check_finish(process)
                self._ends(process, Outcome.FINISHED)
            case rk.Fail():
                self._fails(process, directive.text)
            case rk.Go():
                self._ends(process, Outcome.LEFT)
            case _:
                assert_never(directive)

    def _unwound(self, process: _Process) -> None:
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
        self._does(process, self._short(), self._assign, commit)

    def _assign(self, process: _Process, commit: Commit) -> None:
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
            self._leaves(process, "discarded", fault=False)
            return
        process.assigned = Numbering(commit.epoch, place, world)
        self._enter(process)

    def _enter(self, process: _Process) -> None:
        epoch, number = process.assigned.epoch, process.number
        self._promises.enter(process)
        is_active = process.assigned.place < self._n_active(process)
        of = f"rank {process.assigned.place} of {process.assigned.world} in iteration {epoch}"
        self._say(process.name, f"{'calls the function' if is_active else 'stands by'} as {of}")
        process.works_from = self.clock.now
        process.works_until = self.clock.now + self.call.work_s
        if not is_active:
            self._feed_rank(process, rk.Entered())
            self._comes_back(process, rk.Returned(active=False))
            return
        fault = self._faults.pop((epoch, number), None)
        if process.hangs_again is not None:
            fault = RankFault(epoch, number, What.HANG_AGAIN, process.hangs_again)
        late = fault is not None and fault.what is What.LATE_RAISE
        if fault is not None and not late:
            self._does(process, fault.after_s, self._acts, fault, epoch)
        else:
            self._does(process, self.call.work_s, self._reach, epoch, late)
        self._feed_rank(process, rk.Entered())

    def _n_active(self, process: _Process) -> int:
        world = process.assigned.world
        return world if self.call.active is None else min(world, self.call.active)

    def strike(self, rank: int, what: What) -> None:
        """Have a rank that works do that now."""
        process = self.processes[rank]
        assert process.user_epoch is not None
        self._acts(process, RankFault(process.user_epoch, rank, what), process.user_epoch)

    def _acts(self, process: _Process, fault: RankFault, epoch: int) -> None:
        if process.user_epoch != epoch:
            return
        self._say(process.name, f"** {fault.what.value}")
        match fault.what:
            case What.RAISE | What.LATE_RAISE | What.SLOW:
                process.is_slow = fault.what is What.SLOW
                self._comes_back(process, rk.Raised("boom"))
            case What.LEAVE:
                self._leaves(process, "not healthy", fault=True)
            case What.DIE:
                self._dies(process, "SIGKILL")
            case What.HANG | What.HOLD | What.SWALLOW | What.HANG_AGAIN:
                process.hang, process.hangs_since = fault.what, self.clock.now
                if fault.what is What.HANG_AGAIN:
                    process.hang, process.hangs_again = What.HANG, fault.after_s
                if fault.what is What.SWALLOW:  # and works on: for others that wait, it is hung
                    self._does(process, _LONG_WORK_S, self._reach, epoch, False)
                else:
                    at = self.clock.now + LIMITS.soft_s + gd.VICTIM_S + SLACK_S
                    self.clock.call_at(at, partial(self._promises.check_found, process, epoch))
            case _:
                assert_never(fault.what)

    def _reach(self, process: _Process, epoch: int, late: bool) -> None:
        """The work is done; the rest is a collective of the epoch's ranks."""
        if process.user_epoch != epoch or process.hang not in (None, What.SWALLOW):
            return
        process.at_collective = True
        process.hang = None
        arrived = self._arrived.setdefault(epoch, set())
        arrived.add(process.number)
        if late:
            self._faults[epoch, process.number] = RankFault(epoch, process.number, What.LATE_RAISE)
        if len(arrived) == self._n_active(process):
            for number in sorted(arrived):
                self._does(self.processes[number], self._short(), self._returns, epoch)

    def _returns(self, process: _Process, epoch: int) -> None:
        if process.user_epoch != epoch or process.hang is not None:
            return
        fault = self._faults.pop((epoch, process.number), None)
        if fault is not None:
            self._does(process, 0.3, self._acts, fault, epoch)
        else:
            self._comes_back(process, rk.Returned())

    # ------------------------------------------------------------ a rank is out of the function

    def _comes_back(self, process: _Process, event: rk.Event) -> None:
        if isinstance(event, rk.Returned):
            process.returned_in = process.assigned.epoch
        self._out_of_user_code(process)
        process.is_waiting = True
        self._feed_rank(process, event)

    def _leaves(self, process: _Process, how: str, *, fault: bool) -> None:
        process.leaving, process.why = Outcome.LEFT, how
        self._comes_back(process, rk.Leaving(how, fault))

    def _fails(self, process: _Process, why: str) -> None:
        if process.leaving is not None:
            self._ends(process, Outcome.FAILED)
            return
        process.leaving, process.why = Outcome.FAILED, why
        self._feed_rank(process, rk.Leaving(f"failed: {why}"))

    def _ends(self, process: _Process, how: Outcome) -> None:
        self._feed_rank(process, rk.Gone())
        process.outcome = how = process.leaving or how
        self._say(process.name, f"{how.value}: {process.why}" if process.why else how.value)

    def _dies(self, process: _Process, how: str) -> None:
        if not process.goes_on:
            return
        self._say(process.name, f"dies: {how}")
        process.is_alive = False
        self._out_of_user_code(process)
        gone = gd.RankGone(process.number, how)
        self.clock.call_in(self._short(), partial(self._feed_guard, process.node, gone))

    def _out_of_user_code(self, process: _Process) -> None:
        self._promises.leave(process)
        process.at_collective = False


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
