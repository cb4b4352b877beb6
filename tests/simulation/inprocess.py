"""The ranks, guards and coordinator of one restartable call, simulated, with faults.

The machines are those that run in production (``inplace/pure``); processes, connections and time
are simulated. The same seed gives the same history. Connections keep order; who dies takes what it
has not sent with it; a cut link holds everything back until it heals, as TCP does.

A rank's function works for a while and then waits in a collective until every rank of its epoch is
there, so one that is hung, lost or has raised keeps all others waiting. What must hold is in
``call_promises.py``, and checked at every step; of snapshots, in ``simulated_call_snapshots.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.arena.pure.messages import SnapshotUnusable
from holdfast.arena.pure.snapshots import Held, SnapshotId
from holdfast.arena.pure.trust import PROGRESS
from holdfast.base.pure.codec import decode, encode
from holdfast.base.pure.common_events import TimePassed
from holdfast.base.pure.kill_ladder import SIGKILL
from holdfast.base.pure.never import assert_never
from holdfast.inplace.pure import coordinator as coord
from holdfast.inplace.pure import guard as gd
from holdfast.inplace.pure import rank as rk
from holdfast.inplace.pure.escalation import Blocked, is_looked_at
from holdfast.inplace.pure.guard_snapshots import (
    HoldArena,
    ReadSnapshots,
    SnapshotsRead,
    VoidSnapshots,
)
from holdfast.inplace.pure.job_calls import Cause, FaultKind, OfGuard
from holdfast.inplace.pure.messages import (
    DOWN,
    UP,
    AbortEpoch,
    BeginFrom,
    Commit,
    CoordinatorTimeouts,
    Done,
    Down,
    Exit,
    FaultReported,
    HungAgain,
    JoinCall,
    Numbering,
    OpenedArena,
    Place,
    RankLeaves,
    RankReturned,
    RanksPlaced,
    RanksReady,
    Standing,
    Up,
)
from holdfast.inplace.pure.timing import (
    GUARD_GONE_FENCE_S,
    RankLease,
    Step,
    moment_s,
    rank_fence_s,
)
from holdfast.page.pure.clocks import MainThreadMarks
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
)
from tests.simulation.kernel import Alarm, Link, ProcessClock, World
from tests.simulation.simulated_call_snapshots import CYCLE, Epochs, Memory, Slot, State

PATIENCE = CoordinatorTimeouts(
    barrier_s=120.0, completion_s=120.0, silence_s=LIMITS.silence_s, join_s=120.0
)
HORIZON_S = 3600.0
"""Nothing that is simulated here may take an hour."""
_WAKING_S = 0.01
"""After so long a process that was stopped has seen that its lease is over."""
_LONG_WORK_S = 500.0
"""Longer than ranks are waited for."""
_LOCAL_S = 0.0002
"""From a rank to its guard, and back; order is kept because nothing is delayed differently."""


class _Node:
    """A guard, and the two ends of its connection to the coordinator."""

    def __init__(self, number: int, clock: VirtualClock) -> None:
        self.number = number
        self.guard = gd.Guard(LIMITS)
        self.guard_clock, self.ranks_clock = ProcessClock(clock), ProcessClock(clock)
        self.is_alive = True
        self.is_connected = True
        self.up = Link()
        self.down = Link(self.up.cuts)
        self.messages = 0
        self.lease_until: float | None = LIMITS.silence_s + 2 * PATIENCE.barrier_s
        """In the pages of its ranks."""
        self.memories: dict[str, Memory] = {}
        """Of its ranks' snapshots; the guard keeps those of the dead."""

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def is_cut(self) -> bool:
        return self.up.is_cut(self.guard_clock.now)

    @property
    def guard_stopped_until(self) -> float:
        return self.guard_clock.asleep_until

    @property
    def ranks_stopped_until(self) -> float:
        return self.ranks_clock.asleep_until


class _Process(Process):
    """One rank's process, with what only the simulation needs to know of it."""

    node: _Node

    def __init__(self, number: int, world: int, node: _Node) -> None:
        super().__init__(number, world, node)
        self.base = self.assigned
        self.commit: Commit | None = None
        self.directive: rk.Directive | None = None
        self.is_waiting = True
        self.works_from = self.works_until = 0.0
        self.at_collective = False
        self.hangs_since = 0.0
        self.is_slow = False
        self.hangs_again: float | None = None
        self.leaving: Outcome | None = None
        """How, once it does,"""
        self.why = ""
        """and why, for people."""
        self.lease = RankLease(rank_fence_s(LIMITS.silence_s))
        self.memory: Memory | None = None
        self.expects: bool = False
        """A message says what this epoch begins from;"""
        self.begins: BeginFrom | None = None
        """this one."""

    @property
    def stuck_since(self) -> float | None:
        """Since when its main thread runs no Python."""
        if self.hang in (What.HANG, What.HOLD):
            return self.hangs_since
        return self.works_until if self.at_collective else None


class CallSimulation(World):
    """Runs one :class:`Call` to its end.

    Args:
        call: The call.
        seed: Of everything that is left to chance.
        trace: Keep a transcript.
        rng: In the place of one from the seed.
    """

    def __init__(
        self, call: Call, seed: int, *, trace: bool = False, rng: random.Random | None = None
    ) -> None:
        super().__init__(seed, trace=trace, rng=rng)
        self.call = call
        self._coordinator = coord.Coordinator(PATIENCE)
        self._is_coordinated = True
        wake = partial(self._feed_coordinator, TimePassed())
        self._alarm = Alarm(self.clock, self._coordinator.next_deadline, wake)
        n_nodes = (call.ranks + call.per_node - 1) // call.per_node
        self.nodes = [_Node(number, self.clock) for number in range(n_nodes)]
        self._guard_alarms = [
            Alarm(
                self.clock, node.guard.next_deadline, partial(self._feed_guard, node, TimePassed())
            )
            for node in self.nodes
        ]
        self.processes = [
            _Process(number, call.ranks, self.nodes[number // call.per_node])
            for number in range(call.ranks)
        ]
        self._promises = Promises(call, self.clock, self.processes, self.fail)
        self._faults = {(fault.epoch, fault.rank): fault for fault in call.faults}
        self._arrived: dict[int, set[int]] = {}
        self.epochs = Epochs(self.fail, call.ranks, call.began, keeps_guards=not call.node_faults)

    # ------------------------------------------------------------ running

    def run(self) -> None:
        """To the end of all ranks.

        Raises:
            Violation: A promise was broken; the text says which.
        """
        self.start()
        while self.clock.next_at() is not None and not self._is_over():
            if self.call.ends_at and self.clock.now >= self.call.ends_at:
                self._end_by_launchers()
                return
            if self.clock.now > HORIZON_S:
                self.fail(f"R-2: after {HORIZON_S:g} s {self._those_left()} still go on")
            self.clock.step()
        if not self._is_over():
            self.fail(f"R-2: {self._those_left()} wait for ever")
        self._promises.check_end()

    def start(self) -> None:
        """Have all processes begin; the clock does the rest."""
        for process in self.processes:
            self.clock.call_in(self._rng.random() * 0.2, partial(self._begin, process))
        for fault in self.call.node_faults:
            self.clock.call_at(fault.at, partial(self.inflict, fault))

    def _end_by_launchers(self) -> None:
        """They end all ranks now, wherever those are, and the leader chooses for the next cycle."""
        self.say("launchers", "end all ranks")
        self.epochs.check_next_cycle(
            {node.name: [(p.number, p.memory) for p in self._of(node)] for node in self.nodes}
        )

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

    def describe(self, effect: Any) -> str:
        """See :class:`.World`."""
        return describe.of_rank(effect)

    def _short(self) -> float:
        return self._rng.choice([0.0, 0.0001, 0.001, self._rng.random() * 0.02])

    def _does(
        self, process: _Process, delay_s: float, action: Callable[..., None], *args: Any
    ) -> None:
        """A process does that later; when it wakes up, if it is stopped; never, if it has ended."""

        def act() -> None:
            if process.goes_on:
                action(process, *args)

        process.node.ranks_clock.call_in(delay_s, act)

    # ------------------------------------------------------------ faults of nodes

    def inflict(self, fault: NodeFault) -> None:
        """Now."""
        node = self.nodes[fault.node]
        self.say(node.name, f"** {fault}")
        match fault:
            case GuardDies():
                self._guard_dies(node)
            case Cut():
                node.up.cuts.append((self.clock.now, self.clock.now + fault.for_s))
            case GuardStops() | NodeStops():
                until = node.guard_clock.asleep_until = self.clock.now + fault.for_s
                if isinstance(fault, NodeStops):
                    node.ranks_clock.asleep_until = until
                    for process in self._of(node):
                        at = until + _WAKING_S
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
            self._feed_rank(process, Exit(False, "the guard is stopped"))
            return
        if step is Step.LEAVE:
            self._feed_rank(process, Exit(False, "the guard is stopped"))
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
            self._does(
                process,
                self._short(),
                self._feed_rank,
                Exit(False, "the guard of this node is gone: ?"),
            )
            self.clock.call_in(GUARD_GONE_FENCE_S, partial(self._fences_itself, process))
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

    def _up_at(self, node: _Node) -> float:
        return node.up.in_order(node.up.arrives_at(self.clock.now, self._short, lambda: 0.0))

    def _down_at(self, node: _Node) -> float:
        return node.down.in_order(node.down.arrives_at(self.clock.now, self._short, lambda: 0.0))

    def _tell_coordinator(self, node: _Node, message: Up) -> None:
        node.messages += 1
        if isinstance(message, FaultReported) and message.kind is FaultKind.SOFT_TIMEOUT:
            process = self.processes[message.rank]
            self._promises.check_hang(process, process.stuck_since)
        if node.is_connected:
            said = coord.NodeMessage(node.name, decode(UP, encode(message)))
            self.clock.call_at(self._up_at(node), partial(self._feed_coordinator, said))

    def _tell_guard(self, node: _Node, message: Down) -> None:
        if node.is_connected:
            said = decode(DOWN, encode(message))
            self.clock.call_at(self._down_at(node), partial(self._feed_guard, node, said))

    # ------------------------------------------------------------ the coordinator and the guards

    def _feed_coordinator(self, event: coord.Event) -> None:
        if not self._is_coordinated:
            return
        home = self.nodes[0].guard_clock
        if home.is_asleep:
            home.act(partial(self._feed_coordinator, event))
            return
        self.steps += 1
        for effect in self._coordinator.handle(event, self.clock.now):
            self.say("coordinator", describe.of_coordinator(effect))
            match effect:
                case coord.Tell():
                    self._tell_guard(self.nodes[int(effect.node[4:])], effect.message)
                case coord.HangUp():
                    self._disconnect(self.nodes[int(effect.node[4:])])
                case _:
                    self._promises.check_told(effect)
                    if isinstance(effect, BeginFrom):
                        self._check_choice(effect)
                    for node in self.nodes:
                        self._tell_guard(node, effect)
        self._alarm.set()

    def _feed_guard(self, node: _Node, event: gd.Event) -> None:
        if not node.is_alive:
            return
        if node.guard_clock.is_asleep:
            node.guard_clock.act(partial(self._feed_guard, node, event))
            return
        self.steps += 1
        for effect in list(node.guard.handle(event, self.clock.now)):
            self.say(node.name, describe.of_guard(effect))
            if isinstance(effect, Up):
                self._tell_coordinator(node, effect)
                continue
            if isinstance(effect, OfGuard):
                continue
            match effect:
                case gd.TellRank():
                    process = self.processes[effect.rank]
                    self._does(process, _LOCAL_S, self._feed_rank, effect.message)
                case gd.ReadPage():
                    process = self.processes[effect.rank]
                    self._feed_guard(node, gd.MarksRead(effect.rank, self._marks(process)))
                case gd.TakeRankEvidence():
                    if self._rng.random() < 0.8:
                        taken = gd.RankEvidenceTaken(effect.rank)
                        self.clock.call_in(0.02, partial(self._feed_guard, node, taken))
                case gd.Signal():
                    if SIGKILL in effect.signals or self._rng.random() < 0.5:
                        dies = partial(self._dies, self.processes[effect.rank], "a signal")
                        self.clock.call_in(self._short(), dies)
                case gd.Renew():
                    node.lease_until = effect.until
                case HoldArena():
                    memory = self.processes[effect.rank].memory
                    assert memory is not None
                    node.memories[memory.path] = memory
                case ReadSnapshots():
                    kept = node.memories.values()
                    found = tuple(it for memory in kept for it in memory.found())
                    last_step = max((memory.last_step for memory in kept), default=-1)
                    for memory in kept:
                        memory.last_step = -1
                    self._feed_guard(node, SnapshotsRead(found, last_step))
                case VoidSnapshots():
                    for memory in node.memories.values():
                        memory.void(effect.but_until)
                case gd.GuardQuits():
                    self._disconnect(node)
                case _:
                    assert_never(effect)
        self._guard_alarms[node.number].set()

    def _marks(self, process: _Process) -> MainThreadMarks:
        now, since = self.clock.now, process.stuck_since
        automatic = now if since is None else since
        thread = process.hangs_since if process.hang is What.HOLD else now
        waits = process.hang is None and process.at_collective
        return MainThreadMarks(automatic, thread=thread, waits=waits)

    # ------------------------------------------------------------ a rank's two threads

    def _begin(self, process: _Process) -> None:
        node = process.node
        if not node.is_alive:
            process.outcome, process.why = Outcome.FAILED, "no guard"
            return
        self._feed_guard(node, JoinCall(process.number, self.call.ranks))
        self._does(process, 0.0, self._watches_lease)

    def _feed_rank(self, process: _Process, event: rk.Event) -> None:
        self.steps += 1
        for effect in process.machine.handle(event):
            self.say(process.name, effect)
            match effect:
                case Commit():
                    process.commit = effect
                    process.begins = None
                case BeginFrom():
                    process.begins = effect
                case Exit() | rk.Unwind() | rk.MayLeave():
                    process.directive = effect
                case AbortEpoch():
                    # Needs the interpreter: it waits where another thread holds it.
                    blocked = self._blocked(process, effect.causes)
                    self._does(process, self._short(), self._abort_done, blocked)
                case rk.Interrupt():
                    self._does(process, self._short(), self._interrupted)
                case _:
                    if isinstance(effect, HungAgain) and process.hang is None:
                        self.fail(f"rank {process.number} only waits, and is to be ended")
                    said = gd.RankMessage(process.number, decode(UP, encode(effect)))
                    self.clock.call_in(_LOCAL_S, partial(self._feed_guard, process.node, said))
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
        if not process.machine.is_interrupting or process.user_epoch is None:
            return
        if process.hang not in (What.HOLD, What.SWALLOW):
            self._raises(process, "an interrupt that no process has asked for")

    def _main(self, process: _Process) -> None:
        """The main thread, where it waits and there is something for it to do."""
        if not process.is_waiting:
            return
        directive: rk.Directive | None
        if process.commit is not None:
            directive, process.commit = process.commit, None
        else:
            directive, process.directive = process.directive, None
        match directive:
            case None:
                return
            case Commit():
                self._proceed(process, directive)
            case rk.Unwind():
                process.is_waiting = False
                takes_s = 100.0 if process.is_slow else self._short()
                process.is_slow = False
                self._does(process, takes_s, self._unwound)
            case Exit(finished=True):
                self._promises.check_finish(process)
                self._ends(process, Outcome.FINISHED)
            case Exit():
                self._fails(process, directive.text)
            case rk.MayLeave():
                self._ends(process, Outcome.LEFT)
            case _:
                assert_never(directive)

    def _unwound(self, process: _Process) -> None:
        process.is_waiting = True
        standing = Standing(process.number, process.assigned, process.base)
        self._feed_rank(process, RanksReady(process.machine.epoch, (standing,)))

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
        process.expects = commit.snapshots
        if commit.snapshots:
            active = self._n_active(process)
            own = Place(process.number, place if place < active else -1, active)
            self._feed_rank(process, RanksPlaced(commit.epoch, (own,)))
        self._enter(process)

    def _enter(self, process: _Process) -> None:
        epoch, number = process.assigned.epoch, process.number
        self._promises.enter(process)
        is_active = process.assigned.place < self._n_active(process)
        of = f"rank {process.assigned.place} of {process.assigned.world} in iteration {epoch}"
        self.say(process.name, f"{'calls the function' if is_active else 'stands by'} as {of}")
        if is_active and self.call.snapshots:
            self._does(process, self._short(), self._restores, epoch)
        process.works_from = self.clock.now
        process.works_until = self.clock.now + self.call.work_s
        if not is_active:
            self._feed_rank(process, rk.Entered())
            self._comes_back(process, Done(epoch, number, active=False))
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

    # ------------------------------------------------------------ snapshots
    def _check_choice(self, begins: BeginFrom) -> None:
        """No newer state is there for all, unless a reason is given."""
        members = [self.processes[number] for number in self._coordinator.members]
        placed = [p for p in members if p.assigned.epoch == begins.epoch]
        active = [p for p in placed if p.assigned.place < self._n_active(p)]
        theirs = [
            {
                it.held.id
                for memory in p.node.memories.values()
                for it in memory.found()
                if (it.held.rank, it.held.world_size) == (p.assigned.place, self._n_active(p))
            }
            for p in active
        ]
        newest = max(set[SnapshotId]().union(*theirs[:1]).intersection(*theirs), default=None)
        chosen = None if begins.restore is None else begins.restore.snapshot
        if "different assignments" in begins.why:
            self.fail(f"epoch {begins.epoch}: not all ranks were asked for their places")
        if chosen != newest and not begins.why:
            self.fail(f"epoch {begins.epoch} begins from {chosen}, and all have {newest}")
        is_spent = begins.why.startswith("two restarts")
        if is_spent:
            self.epochs.spends(begins.epoch)
        if chosen is None:
            common = self._common_of_cycle()
            self.epochs.begins_from_none(begins.epoch, common, is_spent=is_spent)

    def _common_of_cycle(self) -> State | None:
        """The newest state that the memories of all ranks hold, dead or alive, as they were born.

        For a cycle whose ranks have all had a number of their own.
        """
        theirs = [
            {
                slot.held.id: slot.state
                for slot in (p.memory.slots if p.memory is not None else ())
                if slot.held is not None
                and (slot.held.rank, slot.held.world_size) == (p.number, self.call.ranks)
            }
            for p in self.processes
        ]
        common = set(theirs[0]).intersection(*theirs[1:])
        return theirs[0][max(common)] if common else None

    def _restores(self, process: _Process, epoch: int) -> None:
        if process.user_epoch != epoch or process.hang is not None:
            return
        if process.expects and process.begins is None:
            self._does(process, 0.01, self._restores, epoch)
            return
        if process.memory is None:
            process.memory = self._new_memory(process)
            self._feed_rank(process, OpenedArena(process.number, 0, self.epochs.cycle_began))
        chosen, slot, begins = None, None, process.begins
        if begins is None and self.call.began and self._n_active(process) == self.call.ranks:
            chosen, slot = SnapshotId(CYCLE - 1, 0, self.call.began), process.memory.slots[0]
        if begins is not None and begins.restore is not None:
            chosen = begins.restore.snapshot
            slot = process.node.memories[begins.path].slots[begins.slot]
        if begins is not None and begins.restore is None:
            may_go_back = self.call.ends_at > 0 and begins.fallback is not None
            process.memory.to_prove = PROGRESS if may_go_back else 1
        place, world = process.assigned.place, self._n_active(process)
        step = self.epochs.begins(epoch, place, world, slot, chosen)
        process.memory.last_step = step
        if chosen is not None and self._rng.random() < self.call.bad:
            self.epochs.refuses(epoch, slot)
            self._feed_rank(process, SnapshotUnusable(process.number, chosen, "its sum is wrong"))
            self._raises(process, "the snapshot cannot be restored")
            return
        if self.call.is_broken and slot is not None and slot.state is self.epochs.cycle_state:
            self._does(process, self._short(), self._fails_at_once, epoch)
            return
        self._does(process, self._short(), self._steps, epoch)

    def _new_memory(self, process: _Process) -> Memory:
        """That of a launcher holds what the cycle before has left."""
        memory = Memory(process.name)
        if (began := self.epochs.cycle_began) is not None:
            held = Held(process.number, self.call.ranks, CYCLE - 1, 0, began.snapshot.step)
            memory.slots[0] = Slot(held, self.epochs.cycle_state)
        return memory

    def _fails_at_once(self, process: _Process, epoch: int) -> None:
        if process.user_epoch == epoch and process.hang is None:
            self._raises(process, "the loss is not finite")

    def _steps(self, process: _Process, epoch: int) -> None:
        """One step, and the snapshot of it, unless the step's collective waits for another rank."""
        place, active = process.assigned.place, self._n_active(process)
        if process.user_epoch != epoch or process.hang is not None:
            return
        if not self.epochs.may_step(epoch, place, active):
            self._does(process, 0.02, self._steps, epoch)
            return
        step = self.epochs.done[epoch][place] + 1
        assert process.memory is not None
        process.memory.last_step = step
        state, slot = self.epochs.state(epoch, step), None
        if process.memory.proves():
            slot = process.memory.begin()
            slot.state = state
        copies_s = self._rng.random() * self.call.work_s * 0.1
        self._does(process, copies_s, self._copied, epoch, step, slot)

    def _copied(self, process: _Process, epoch: int, step: int, slot: Slot | None) -> None:
        """``slot``: None: no snapshot is taken of this step."""
        if process.user_epoch != epoch:
            return  # interrupted in the middle of it
        place, active = process.assigned.place, self._n_active(process)
        if slot is not None:
            slot.held = Held(place, active, CYCLE, epoch, step)
        self.epochs.done[epoch][place] = step
        self._does(process, self._short(), self._steps, epoch)

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
        self.say(process.name, f"** {fault.what.value}")
        match fault.what:
            case What.RAISE | What.LATE_RAISE | What.SLOW:
                process.is_slow = fault.what is What.SLOW
                self._raises(process, "boom")
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
                    at = self.clock.now + LIMITS.soft_s + moment_s(LIMITS.soft_s) + SLACK_S
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
            self._comes_back(process, Done(epoch, process.number, active=True))

    # ------------------------------------------------------------ a rank is out of the function

    def _comes_back(self, process: _Process, event: rk.Event) -> None:
        if isinstance(event, Done):
            process.returned_in = process.assigned.epoch
        self._out_of_user_code(process)
        process.is_waiting = True
        self._feed_rank(process, event)

    def _raises(self, process: _Process, text: str) -> None:
        fault = FaultReported(process.machine.epoch, process.number, FaultKind.EXCEPTION, text)
        self._comes_back(process, fault)

    def _leaves(self, process: _Process, how: str, *, fault: bool) -> None:
        process.leaving, process.why = Outcome.LEFT, how
        leave = RankLeaves(process.machine.epoch, process.number, fault, how)
        self._comes_back(process, leave)

    def _fails(self, process: _Process, why: str) -> None:
        if process.leaving is not None:
            self._ends(process, Outcome.FAILED)
            return
        process.leaving, process.why = Outcome.FAILED, why
        leave = RankLeaves(process.machine.epoch, process.number, True, f"failed: {why}")
        self._feed_rank(process, leave)

    def _ends(self, process: _Process, how: Outcome) -> None:
        self._feed_rank(process, RankReturned(process.number))
        process.outcome = how = process.leaving or how
        self.say(process.name, f"{how.value}: {process.why}" if process.why else how.value)

    def _dies(self, process: _Process, how: str) -> None:
        if not process.goes_on:
            return
        self.say(process.name, f"dies: {how}")
        process.is_alive = False
        self._out_of_user_code(process)
        gone = gd.RankEnded(process.number, how)
        self.clock.call_in(self._short(), partial(self._feed_guard, process.node, gone))

    def _out_of_user_code(self, process: _Process) -> None:
        self._promises.leave(process)
        process.at_collective = False
