"""What must hold in each call of a wrapped function, checked at every step of its simulation.

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
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from holdfast.inplace.pure import rank as rk
from holdfast.inplace.pure.messages import CallTimeouts, Down, Exit, Numbering
from holdfast.inplace.pure.timing import rank_fence_s
from holdfast.testing.clock import VirtualClock
from tests.simulation.call_scenario import Call, GuardStops, NodeStops, What

LIMITS = CallTimeouts(soft_s=60.0, hard_s=90.0, grace_s=5.0, beat_s=3.0, silence_s=30.0)
SLACK_S = 2.0


class Node(Protocol):
    """Where processes are."""

    number: int
    is_alive: bool
    lease_until: float | None

    @property
    def is_cut(self) -> bool:
        """Nothing passes between it and the coordinator."""

    @property
    def guard_stopped_until(self) -> float:
        """Its guard does not get the processor before."""

    @property
    def ranks_stopped_until(self) -> float:
        """Its ranks do not."""


class Outcome(enum.Enum):
    """How a rank left the call."""

    FINISHED = "finished"
    LEFT = "left"
    FAILED = "failed"


class Process:
    """What can be seen of one rank's process.

    Attributes:
        outcome: How it left the call; None: it has not.
        assigned: What it is called.
        user_epoch: The epoch whose user's code it runs; None: none.
        hang: What keeps it there.
        returned_in: The last epoch whose function has returned.
    """

    def __init__(self, number: int, world: int, node: Node) -> None:
        self.number = number
        self.node = node
        self.machine = rk.RankMachine(number)
        self.is_alive = True
        self.outcome: Outcome | None = None
        self.assigned = Numbering(-1, number, world)
        self.user_epoch: int | None = None
        self.hang: What | None = None
        self.returned_in = -1

    @property
    def name(self) -> str:
        """In a transcript."""
        return f"rank{self.number}"

    @property
    def goes_on(self) -> bool:
        """It lives, and is in the call."""
        return self.is_alive and self.outcome is None


class Promises:
    """Of one call; ``fail`` raises a violation with a text."""

    def __init__(
        self,
        call: Call,
        clock: VirtualClock,
        processes: Sequence[Process],
        fail: Callable[[str], NoReturn],
    ) -> None:
        self._call = call
        self._clock = clock
        self._processes = processes
        self._fail = fail
        self._owners: dict[tuple[int, int], int] = {}
        self._worlds: dict[int, int] = {}
        self._running: dict[int, set[int]] = {}

    def enter(self, process: Process) -> None:
        """It runs the user's code of the epoch that it is assigned to, from now on."""
        it = process.assigned
        epoch, place, world = it.epoch, it.place, it.world
        owner = self._owners.setdefault((epoch, place), process.number)
        if owner != process.number:
            self._fail(f"R-1: ranks {owner} and {process.number} are both {place} in epoch {epoch}")
        if self._worlds.setdefault(epoch, world) != world:
            self._fail(f"R-1: two worlds in epoch {epoch}")
        for other_epoch in [it for it in self._running if it != epoch]:
            for number in self._running[other_epoch]:
                if not self._is_excused(self._processes[number]):
                    self._fail(
                        f"rank {process.number} enters epoch {epoch} while rank {number} runs "
                        f"epoch {other_epoch}"
                    )
            if not self._running[other_epoch]:
                del self._running[other_epoch]
        process.user_epoch = epoch
        self._running.setdefault(epoch, set()).add(process.number)

    def leave(self, process: Process) -> None:
        """It runs none any more."""
        if process.user_epoch is not None:
            self._running[process.user_epoch].discard(process.number)
        process.user_epoch = process.hang = None

    def _is_excused(self, other: Process) -> bool:
        """It runs another epoch, and nobody can see to it that it does not."""
        node, now = other.node, self._clock.now
        if not node.is_alive:
            return True  # nobody is left who could end it; it has been told, and can't hear
        if other.hang is What.HOLD and node.guard_stopped_until > now:
            return True  # likewise; and none of its Python code runs
        until = node.lease_until
        is_over = until is not None and until + rank_fence_s(LIMITS.silence_s) <= now
        return node.ranks_stopped_until > now and is_over  # it ends itself on waking: check_woken

    def check_woken(self, process: Process) -> None:
        """A rank that was stopped while the others went on does not go on where it was."""
        epoch = process.user_epoch
        newest = max((p.user_epoch or 0 for p in self._processes if p.is_alive), default=0)
        if process.is_alive and epoch is not None and epoch < newest:
            self._fail(f"rank {process.number} wakes up in epoch {epoch} of {newest}")

    def check_told(self, message: Down) -> None:
        """The coordinator tells all."""
        if isinstance(message, Exit) and message.disagree:
            self._fail(f"R-1: the assignment here is the same for all, but: {message.text}")

    def check_hang(self, process: Process, since: float | None) -> None:
        """It is called hung, and has been stuck ``since`` then."""
        now = self._clock.now
        if process.is_alive and (since is None or now - since < LIMITS.soft_s - 1e-6):
            self._fail(f"H-1: rank {process.number} is called hung, stuck since {since}")

    def check_found(self, process: Process, epoch: int) -> None:
        """It has hung in that epoch for as long as the limit."""
        if process.user_epoch == epoch and process.machine.phase is rk.RankPhase.RUNNING:
            cut = process.node.is_cut
            stops = (GuardStops, NodeStops)
            stopped = any(isinstance(fault, stops) for fault in self._call.node_faults)
            if process.node.is_alive and not cut and not stopped and process.hang is What.HANG:
                self._fail(f"H-2: rank {process.number} hangs unnoticed")

    def check_finish(self, process: Process) -> None:
        """It returns to the caller of the function."""
        epoch = process.machine.epoch
        for other in self._processes:
            if other.assigned.epoch == epoch and other.is_alive and other.returned_in != epoch:
                self._fail(
                    f"rank {process.number} finishes epoch {epoch}, rank {other.number} has not"
                )

    def check_end(self) -> None:
        """No rank goes on."""
        finished = [p for p in self._processes if p.outcome is Outcome.FINISHED]
        if not finished:
            return
        epochs = {p.returned_in for p in finished}
        if len(epochs) != 1:
            self._fail(f"R-2: ranks finished in epochs {sorted(epochs)}")
        for process in self._processes:
            told = process.outcome in (Outcome.LEFT, Outcome.FINISHED)
            is_cut = any(fault.node == process.node.number for fault in self._call.node_faults)
            if process.is_alive and not told and not is_cut:
                how = "goes on" if process.outcome is None else process.outcome.value
                self._fail(f"R-2: rank {process.number} {how}, others finished")
