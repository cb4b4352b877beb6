"""Decide about parked interpreters: when to prepare one, and whether a rank may start from it.

Pure. Times are seconds on the caller's monotonic clock.

             steady; one at a time        ready
    NONE -------------------> PREPARING -------> READY ----> a rank's process (wanted, all the same)
     ^                            |                |
     +----------------------------+----------------+  died, hung, unfit, too large, or a cycle ended

A cycle is *steady* when its ranks have come through their start: ``REPORTED_IN_S`` after the last
of them reported to its monitor, which it does when its imports are done; ``delay_s`` after the
cycle began, where none reports. Before that, and while ranks are being stopped, nothing is
prepared: imports would take time from what everybody waits for. Nor is anything once the launcher
was signalled, which ends those that are parked, too. A rank is started plainly whenever its process
is not READY; no restart waits for one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.core.common_events import Note, TimePassed
from holdfast.core.launch.libraries import TORCH
from holdfast.core.never import assert_never
from holdfast.core.wording import count

PREPARE_LIMIT_S = 300.0
"""Preparing may take this long; imports from a slow network file system take minutes."""
MEMORY_GUESS_KIB = 1 << 20
"""Taken for the memory of a parked process until one has been measured."""
REPORTED_IN_S = 1.0
"""Others may report in so much later."""
ROOM = 4
"""One is parked only where so many times its memory is free: training comes first."""
PATIENCE_S = 2.0
"""A rank that had imported nothing yet is looked at again after so long, then twice as long ..."""
LEFT_OUT_MAX = 3
"""So many packages are left out, one after the other, before only torch is tried."""
ASKS_TO_END = (1, 2, 3, 15)
"""SIGHUP, SIGINT, SIGQUIT, SIGTERM: a scheduler (Slurm) sends them to every process of a job, so
the launcher is about to hear the same. A process that they ended has no fault."""
FAILURES_MAX = 3
"""Processes that die or hang while parked, until no more are prepared."""


@dataclass(frozen=True)
class Shape:
    """What a process is from its start on, and cannot change later.

    Attributes:
        command: Program and arguments.
        env: Environment, without the variables that each cycle sets anew.
        inherited: What it has from the launcher: limits, umask, working directory ... By name.
        cycle: The other part of the environment: what its cycle sets.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    inherited: Mapping[str, object]
    cycle: Mapping[str, str] = field(default_factory=dict)


def why_cold(prepared: Shape, wanted: Shape, assumed: Mapping[str, str] = {}) -> str | None:
    """What tells a prepared process from the rank that is wanted; None: nothing does.

    Args:
        prepared: As it was started.
        wanted: As it is to be.
        assumed: What its libraries were told of the cycle while they were imported.
    """
    for name in sorted(assumed):
        now = wanted.cycle.get(name)
        if now != assumed[name]:
            return f"{name} is {now}, and was {assumed[name]} when a library was imported"
    if list(prepared.command) != list(wanted.command):
        return "the command changed"
    for name in sorted({*prepared.env, *wanted.env}):
        if prepared.env.get(name) != wanted.env.get(name):
            return f"{name} changed in the environment"
    for name in sorted({*prepared.inherited, *wanted.inherited}):
        if prepared.inherited.get(name) != wanted.inherited.get(name):
            return f"the launcher's {name} changed"
    return None


# ---------------------------------------------------------------- events
@dataclass(frozen=True)
class CycleStarted:
    """All ranks of a cycle have been started."""


@dataclass(frozen=True)
class RankReportedIn:
    """A rank has connected to its monitor: it is past its first lines."""


@dataclass(frozen=True)
class Waiting:
    """The node waits for a cycle to take part in: nobody is disturbed by imports."""


@dataclass(frozen=True)
class CycleEnding:
    """Ranks are being stopped, or have ended."""


@dataclass(frozen=True)
class Started:
    """A process that was to be prepared has been started, and will have this shape."""

    local_rank: int
    shape: Shape


@dataclass(frozen=True)
class Nothing:
    """There is nothing to import ahead for this rank in this cycle."""

    local_rank: int


@dataclass(frozen=True)
class NoRoom:
    """The node has too little free memory to prepare one; see :meth:`Standby.has_room`."""

    local_rank: int
    available_kib: int


@dataclass(frozen=True)
class Ready:
    """A process has imported what it should and waits."""

    local_rank: int
    memory_kib: int
    assumed: Mapping[str, str] = field(default_factory=dict)
    """Variables of the cycle that libraries have read, and the values that they were given."""


@dataclass(frozen=True)
class Unfit:
    """A process cannot be made to equal a plain start; it has left."""

    local_rank: int
    reason: str
    library: str | None = None
    """The installed package that makes the difference, where it is one."""


@dataclass(frozen=True)
class Died:
    """A process is gone although we did not end it, or could not be started.

    Attributes:
        local_rank: Whose it was.
        signum: Of the signal that ended it; None: it exited, or was never there.
    """

    local_rank: int
    signum: int | None = None


@dataclass(frozen=True)
class JobEnding:
    """The launcher has passed a signal on to its ranks: nothing will be started again."""


@dataclass(frozen=True)
class Wanted:
    """A rank is about to start; answered by :class:`GoOn`, or by nothing: a plain start."""

    local_rank: int
    shape: Shape


@dataclass(frozen=True)
class StartedOver:
    """A process that went on found that it differed from a plain start, and became one."""

    local_rank: int
    reason: str


Event = (
    Waiting
    | CycleStarted
    | RankReportedIn
    | CycleEnding
    | Started
    | Nothing
    | NoRoom
    | Ready
    | Unfit
    | Died
    | JobEnding
    | Wanted
    | StartedOver
    | TimePassed
)


# ---------------------------------------------------------------- effects
@dataclass(frozen=True)
class Prepare:
    """Start a process and have it import; report Started, or Nothing, or Died.

    Attributes:
        least: Import no more than torch: with more, a process turned out unfit.
        without: Do not import these packages, for the same reason.
    """

    local_rank: int
    least: bool = False
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class GoOn:
    """Have the process become the rank."""

    local_rank: int


@dataclass(frozen=True)
class Discard:
    """End the process, without waiting for its end."""

    local_rank: int


Effect = Prepare | GoOn | Discard | Note


class State(enum.Enum):
    """Of the parked process of one local rank."""

    NONE = "none"
    PREPARING = "preparing"
    READY = "ready"
    SKIPPED = "skipped"
    """There is nothing to prepare, or no room for it, until it is looked at again."""


@dataclass
class Standby:
    """The parked processes of one node.

    Attributes:
        nproc: Ranks of this node.
        delay_s: Until a cycle counts as steady whose ranks do not report in.
        memory_kib_max: All parked processes together may have so much.
        given_up: Why nothing more is prepared; None: it is.
    """

    nproc: int
    delay_s: float
    memory_kib_max: int
    given_up: str | None = None
    _states: dict[int, State] = field(default_factory=dict)
    _shapes: dict[int, Shape] = field(default_factory=dict)
    _memory_kib: dict[int, int] = field(default_factory=dict)
    _steady_at: float | None = None
    _has_begun: bool = False
    _ready_by: float | None = None
    _expected_kib: int = MEMORY_GUESS_KIB
    _has_told_of_room: bool = False
    _again_at: float | None = None
    _patience_s: float = PATIENCE_S
    _failures: int = 0
    _least: bool = False
    _left_out: tuple[str, ...] = ()
    _assumed: dict[int, Mapping[str, str]] = field(default_factory=dict)

    def next_deadline(self) -> float | None:
        """When to send :class:`TimePassed`; None: not before the next event."""
        if self._ready_by is not None:
            return self._ready_by
        if self._next() is not None:
            return self._steady_at
        if self._again_at is None or self._steady_at is None:
            return None
        return max(self._again_at, self._steady_at)  # nothing is done before either

    def has_room(self, available_kib: int) -> bool:
        """Whether one more may be parked where this much memory is free."""
        return available_kib >= ROOM * self._expected_kib

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What to do about ``event``, in order."""
        effects: list[Effect] = []
        match event:
            case Waiting():
                self._steady_at = now
                self._on_time(now, effects)
            case CycleStarted():
                self._steady_at = now + self.delay_s
                self._has_begun = False
                self._patience_s = PATIENCE_S
                self._look_again()
            case RankReportedIn():
                if self._steady_at is not None and not self._has_begun:
                    self._steady_at = now + min(self.delay_s, REPORTED_IN_S)
            case CycleEnding():
                self._steady_at = self._again_at = None
                if (unfinished := self._preparing()) is not None:
                    self._drop(unfinished, effects)
            case Started(local_rank, shape):
                self._shapes[local_rank] = shape
            case Nothing(local_rank):
                self._skip(local_rank, now, effects)
            case NoRoom(local_rank, available_kib):
                self._tell_of_room(available_kib, effects)
                self._skip(local_rank, now, effects)
            case Ready(local_rank, memory_kib, assumed):
                self._assumed[local_rank] = assumed
                self._on_ready(local_rank, memory_kib, effects)
                self._on_time(now, effects)
            case Unfit(local_rank, reason, library):
                self._on_unfit(local_rank, reason, library, effects)
            case Died(local_rank, signum):
                if signum in ASKS_TO_END:
                    self._put_off(local_rank)
                else:
                    self._on_failure(local_rank, "ended unexpectedly", effects)
            case JobEnding():
                self.given_up = self.given_up or "the job is ending"
                self._steady_at = self._again_at = None
                for local_rank in range(self.nproc):
                    if self._state(local_rank) in (State.PREPARING, State.READY):
                        self._drop(local_rank, effects)
            case Wanted(local_rank, shape):
                self._on_wanted(local_rank, shape, effects)
            case StartedOver(local_rank, reason):
                self._give_up(f"the script {reason}", effects)
            case TimePassed():
                self._on_time(now, effects)
            case _:
                assert_never(event)
        return effects

    # ------------------------------------------------------------ inside
    def _state(self, local_rank: int) -> State:
        return self._states.get(local_rank, State.NONE)

    def _preparing(self) -> int | None:
        return next((k for k, s in self._states.items() if s is State.PREPARING), None)

    def _next(self) -> int | None:
        """Whose turn it is, once the cycle is steady."""
        if self.given_up is not None or self._preparing() is not None:
            return None
        return next((k for k in range(self.nproc) if self._state(k) is State.NONE), None)

    def _settle(self, local_rank: int, state: State) -> None:
        if self._preparing() == local_rank:
            self._ready_by = None
        self._states[local_rank] = state
        if state is not State.READY:
            self._memory_kib.pop(local_rank, None)

    def _drop(self, local_rank: int, effects: list[Effect]) -> None:
        self._settle(local_rank, State.NONE)
        effects.append(Discard(local_rank))

    def _give_up(self, reason: str, effects: list[Effect]) -> None:
        if self.given_up is not None:
            return
        self.given_up = reason
        effects.append(Note("info", f"no more warm standby, ranks start plainly: {reason}"))

    def _on_ready(self, local_rank: int, memory_kib: int, effects: list[Effect]) -> None:
        if self._state(local_rank) is not State.PREPARING:
            return
        self._settle(local_rank, State.READY)
        self._memory_kib[local_rank] = self._expected_kib = memory_kib
        total = sum(self._memory_kib.values())
        if total > self.memory_kib_max:
            self._drop(local_rank, effects)
            self._give_up(
                f"{count(len(self._memory_kib) + 1, 'parked process', 'es')} with {total >> 10} "
                "MiB, the limit "
                f"is {self.memory_kib_max >> 10} MiB (--ft-warm-standby-memory-mb)",
                effects,
            )
        elif self._next() is None:
            effects.append(
                Note(
                    "info",
                    f"warm standby: {len(self._memory_kib)} of {self.nproc} ranks can restart "
                    f"without importing; their parked processes take {total >> 10} MiB",
                )
            )

    def _skip(self, local_rank: int, now: float, effects: list[Effect]) -> None:
        if self._state(local_rank) is not State.PREPARING:
            return
        self._settle(local_rank, State.SKIPPED)
        if self._again_at is None and self._steady_at is not None:
            self._again_at = now + self._patience_s
            self._patience_s *= 2
        self._on_time(now, effects)

    def _put_off(self, local_rank: int) -> None:
        """Until the next cycle, if there is one."""
        if self._state(local_rank) in (State.PREPARING, State.READY):
            self._settle(local_rank, State.SKIPPED)

    def _look_again(self) -> None:
        self._again_at = None
        for local_rank, state in self._states.items():
            if state is State.SKIPPED:
                self._states[local_rank] = State.NONE

    def _tell_of_room(self, available_kib: int, effects: list[Effect]) -> None:
        if not self._has_told_of_room:
            self._has_told_of_room = True
            text = (
                f"no warm standby for now: {available_kib >> 10} MiB of memory are free, a "
                f"parked process would need {self._expected_kib >> 10} MiB and {ROOM} times as "
                "much has to be free"
            )
            effects.append(Note("info", text))

    def _on_unfit(
        self, local_rank: int, reason: str, library: str | None, effects: list[Effect]
    ) -> None:
        if self._state(local_rank) is not State.PREPARING:
            return
        self._settle(local_rank, State.NONE)
        may_try = len(self._left_out) < LEFT_OUT_MAX
        if self._least:
            self._give_up(reason, effects)
        elif library and library not in (TORCH, *self._left_out) and may_try:
            self._left_out = (*self._left_out, library)
            effects.append(Note("info", f"warm standby leaves out {library}: {reason}"))
        else:
            self._least = True
            effects.append(Note("info", f"warm standby imports no more than torch: {reason}"))

    def _on_failure(self, local_rank: int, how: str, effects: list[Effect]) -> None:
        if self._state(local_rank) not in (State.PREPARING, State.READY):
            return
        self._settle(local_rank, State.NONE)
        self._failures += 1
        if self._failures == 1:
            text = f"the parked process of local rank {local_rank} {how}; trying again"
            effects.append(Note("warning", text))
        elif self._failures >= FAILURES_MAX:
            self._give_up(f"{count(self._failures, 'parked process', 'es')} ended or hung", effects)

    def _on_wanted(self, local_rank: int, shape: Shape, effects: list[Effect]) -> None:
        state = self._state(local_rank)
        if state is State.PREPARING:
            self._drop(local_rank, effects)
        if state is not State.READY:
            return
        assumed = self._assumed.get(local_rank, {})
        reason = why_cold(self._shapes[local_rank], shape, assumed)
        if reason is None:
            self._settle(local_rank, State.NONE)
            effects.append(GoOn(local_rank))
        else:
            self._drop(local_rank, effects)
            effects.append(Note("info", f"local rank {local_rank} starts plainly: {reason}"))

    def _on_time(self, now: float, effects: list[Effect]) -> None:
        if self._ready_by is not None and now >= self._ready_by:
            local_rank = self._preparing()
            assert local_rank is not None
            how = f"was not ready after {PREPARE_LIMIT_S:.0f} s"
            self._on_failure(local_rank, how, effects)
            effects.append(Discard(local_rank))
        if self._steady_at is None or now < self._steady_at:
            return
        if self._again_at is not None and now >= self._again_at and self._preparing() is None:
            self._look_again()
        following = self._next()
        if following is not None:
            self._has_begun = True
            self._states[following] = State.PREPARING
            self._ready_by = now + PREPARE_LIMIT_S
            effects.append(Prepare(following, self._least, self._left_out))
