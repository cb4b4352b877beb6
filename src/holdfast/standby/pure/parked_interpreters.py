"""Decide about parked interpreters: when to prepare one, and whether a rank may start from it.

                    steady               ready
    NONE -------------------> PREPARING -------> READY ----> a rank's process (wanted, and the same)
     ^                            |                |
     +----------------------------+----------------+  died, hung, unfit, too large, or a cycle ended

A cycle is *steady* when its ranks have reported to their monitors, or ``delay_s`` after it began
where none reports. A rank starts plainly whenever its process is not READY: no restart waits for
one. Memory belongs to the training (decision 43). Pure; times are seconds, monotonic.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.base.pure.common_events import Note, SignalArrived, TimePassed
from holdfast.base.pure.never import assert_never
from holdfast.base.pure.value import Value
from holdfast.base.pure.wording import count
from holdfast.node.pure.cycle_events import CycleEnding, Waiting
from holdfast.standby.pure.libraries import LATE, TORCH
from holdfast.standby.pure.parked_messages import ParkedReady, ParkedUnfit
from holdfast.watch.pure.monitor_messages import RankConnected

PREPARE_LIMIT_S = 300.0
"""Preparing may take this long; imports from a slow network file system take minutes."""
MEMORY_GUESS_KIB = 1 << 20
"""Taken for the memory of a parked process until one has been measured."""
IDLE_LIMIT_S = 30.0
"""A process with the lowest priority that is not ready by then gets a rank's in any case."""
LOOK_S = 0.25
"""Between looks at how much processor time a process with the lowest priority gets."""
REPORTED_IN_S = 1.0
"""Others may report in so much later."""
ROOM = 4
"""One is parked only where so many times its memory is free: training comes first."""
STAY = 2
"""All leave where less than so many times the memory of one is free."""
LEAVES_MAX = 3
"""So often they leave for lack of memory, until no more are prepared."""
SAFE_KIB = 32 << 20
"""Free besides, where the kernel may kill a rank although something is parked: no training uses so
much between two looks."""
USED_UP_KIB_PER_S = 4 << 20
"""Training uses more memory at this rate at most; it decides when memory is looked at again."""
LOOK_AT_MEMORY_S = 0.25, 5.0
"""Between two such looks, at least and at most."""
PATIENCE_S = 2.0
"""A rank that had imported nothing yet is looked at again after so long, then twice as long ..."""
LEFT_OUT_MAX = 3
"""So many packages are left out, one after the other, before only torch is tried."""
ASKS_TO_END = (1, 2, 3, 15)
"""SIGHUP, SIGINT, SIGQUIT, SIGTERM: a scheduler (Slurm) sends them to every process of a job, so
the launcher is about to get the same. A process that they ended has no fault."""
FAILURES_MAX = 3
"""Processes that die or hang while parked, until no more are prepared."""


@dataclass(frozen=True)
class Shape:
    """Properties that a process has from its start on, and cannot change later.

    Attributes:
        command: Program and arguments.
        env: Environment, without the variables that each cycle sets anew.
        inherited: From the launcher: limits, umask, working directory ... By name.
        cycle: The other part of the environment, set by its cycle.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    inherited: Mapping[str, object]
    cycle: Mapping[str, str] = field(default_factory=dict)


def why_cold(prepared: Shape, wanted: Shape, assumed: Mapping[str, str] = {}) -> str | None:
    """The difference of a prepared process from the rank that is wanted; None: there is none.

    Args:
        prepared: As it was started.
        wanted: As it is to be.
        assumed: Variables of the cycle that its libraries read while they were imported.
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
class RanksStarted(Value):
    """All ranks of a cycle have been started; ``is_last``: no restart is left."""

    is_last: bool = False


class Started(Value):
    """A process that was to be prepared has been started, and will have this shape."""

    local_rank: int
    shape: Shape


class Nothing(Value):
    """There is nothing to import ahead for this rank in this cycle."""

    local_rank: int


class NoRoom(Value):
    """The node has too little free memory for one; see :meth:`ParkedInterpreters.has_room`."""

    local_rank: int
    available_kib: int


class ParkedSaid(Value):
    """A message of a parked process."""

    local_rank: int
    message: ParkedReady | ParkedUnfit


class MemoryLeft(Value):
    """So much memory is free, or can be freed; answers :class:`MeasureMemory`. None: not known."""

    available_kib: int | None


class MemoryPressure(Value):
    """The kernel reports that processes wait for memory."""


class OutOfMemory(Value):
    """The kernel ended a process of this job because memory ran out, or may have."""


class KeepsOomScore(Value):
    """The system does not let a process be the first victim of an out-of-memory kill for a while.

    Attributes:
        local_rank: Whose process it was.
        reason: In the system's words.
    """

    local_rank: int
    reason: str


class Share(Value):
    """A process's share of the processors since its start; answers :class:`MeasureShare`.

    Attributes:
        local_rank: Whose it is.
        ran_s: Time on a processor.
        waited_s: Time in which it could have run, and others did; the kernel adds a wait when it
            is over.
        is_runnable: It runs, or waits for a processor, now.
    """

    local_rank: int
    ran_s: float
    waited_s: float
    is_runnable: bool


class StaysIdle(Value):
    """A process that should get a rank's priority cannot: this system does not allow it."""

    local_rank: int


class ParkedDied(Value):
    """A process has ended by itself, or could not be started.

    Attributes:
        local_rank: Whose it was.
        signum: Of the signal that ended it; None: it exited, or was never there.
    """

    local_rank: int
    signum: int | None = None


class RankWanted(Value):
    """A rank is about to start; answered by :class:`BecomeRank`, or by nothing: a plain start."""

    local_rank: int
    shape: Shape


class StartedOver(Value):
    """A process that went on found that it differed from a plain start, and became one."""

    local_rank: int
    reason: str


Event = (
    Waiting
    | RanksStarted
    | RankConnected
    | CycleEnding
    | Started
    | Nothing
    | NoRoom
    | ParkedSaid
    | MemoryLeft
    | MemoryPressure
    | OutOfMemory
    | KeepsOomScore
    | Share
    | StaysIdle
    | ParkedDied
    | SignalArrived
    | RankWanted
    | StartedOver
    | TimePassed
)
"""``Waiting``: imports disturb no rank. ``RankConnected``: a rank is past its first lines.
``SignalArrived``: the launcher has passed it on to its ranks,
and nothing will be started again."""


# ---------------------------------------------------------------- effects
class Prepare(Value):
    """Start a process and have it import; report Started, or Nothing, or Died.

    Attributes:
        least: Import no more than torch: with more, a process turned out unfit.
        without: Do not import these packages, for the same reason.
    """

    local_rank: int
    least: bool = False
    without: tuple[str, ...] = ()


class BecomeRank(Value):
    """Have the process become the rank."""

    local_rank: int


class Discard(Value):
    """End the process, without waiting for its end."""

    local_rank: int


class Hurry(Value):
    """Give the process that is prepared the priority of a rank."""

    local_rank: int


class MeasureShare(Value):
    """Report :class:`Share`, where the kernel tells."""

    local_rank: int


class MeasureMemory(Value):
    """Report :class:`MemoryLeft`."""


class AllParked(Value):
    """Say that all is well: so many ranks can restart without importing, for so much memory."""

    ranks: int
    memory_kib: int


Effect = Prepare | BecomeRank | Discard | Hurry | MeasureShare | MeasureMemory | AllParked | Note


class ParkedState(enum.Enum):
    """Of the parked process of one local rank."""

    NONE = "none"
    PREPARING = "preparing"
    READY = "ready"
    SKIPPED = "skipped"
    """There is nothing to prepare, or no room for it, until it is looked at again."""


@dataclass
class _Parked:
    """The parked process of one local rank.

    Attributes:
        state: Where it stands.
        shape: Its properties from its start on.
        assumed: Variables of the cycle that its libraries read.
        memory_kib: Its memory, once it is ready.
        least: It imports no more than torch.
        began_at: When it was to be prepared.
        normal_since: When it got the priority of a rank; None: it has the lowest.
        look_at: When its share of the processors is measured next.
        share: The last that was measured.
    """

    state: ParkedState = ParkedState.NONE
    shape: Shape = field(default_factory=lambda: Shape([], {}, {}))
    assumed: Mapping[str, str] = field(default_factory=dict)
    memory_kib: int = 0
    least: bool = False
    began_at: float = 0.0
    normal_since: float | None = None
    look_at: float = 0.0
    share: Share = field(default_factory=lambda: Share(0, 0.0, 0.0, is_runnable=True))


@dataclass
class ParkedInterpreters:
    """The parked processes of one node.

    Attributes:
        nproc: Ranks of this node.
        delay_s: Until a cycle counts as steady whose ranks do not report in.
        memory_kib_max: All parked processes together may have so much.
        is_idle: While ranks run, they are prepared with the lowest priority.
        reserve_kib: Has to be free besides: ``SAFE_KIB`` where the kernel may kill a rank although
            something is parked.
        why_reserve: Why it may.
        given_up: Why nothing more is prepared; None: it is.
    """

    nproc: int
    delay_s: float
    memory_kib_max: int
    is_idle: bool = False
    reserve_kib: int = 0
    why_reserve: str | None = None
    given_up: str | None = None
    _parked: list[_Parked] = field(default_factory=list)
    _steady_at: float | None = None
    _has_ranks: bool = False
    _has_begun: bool = False
    _n_reported: int = 0
    _is_busy: bool = False
    _is_doubtful: bool = False
    _expected_kib: int = field(default_factory=lambda: MEMORY_GUESS_KIB)
    _has_noted_room: bool = False
    _leaves: int = 0
    _look_at_memory_at: float | None = None
    _again_at: float | None = None
    _patience_s: float = PATIENCE_S
    _failures: int = 0
    _least: bool = False
    _left_out: tuple[str, ...] = ()
    _effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._parked = [_Parked() for _ in range(self.nproc)]

    def next_deadline(self) -> float | None:
        """When to send :class:`TimePassed`; None: not before the next event."""
        due = [
            each.normal_since + PREPARE_LIMIT_S
            for each in self._of(ParkedState.PREPARING)
            if each.normal_since is not None
        ]
        for _, each in self._idle():
            due += [each.look_at, each.began_at + IDLE_LIMIT_S]
        if self._look_at_memory_at is not None and self.is_any_parked:
            due.append(self._look_at_memory_at)
        if self._steady_at is not None:
            if self._next() is not None:
                due.append(self._steady_at)
            if self._again_at is not None:
                due.append(max(self._again_at, self._steady_at))
        return min(due, default=None)

    def has_room(self, available_kib: int) -> bool:
        """Whether one more may be parked where this much memory is free."""
        # Those that were started before it have not taken theirs yet.
        others = [each for each in self._of(ParkedState.PREPARING) if each.shape.command]
        return available_kib >= self.reserve_kib + (ROOM + len(others)) * self._expected_kib

    @property
    def is_any_parked(self) -> bool:
        """A process is parked, or is being prepared."""
        return any(
            self._parked[rank].shape.command for rank in self._in(ParkedState.PREPARING)
        ) or bool(self._in(ParkedState.READY))

    @property
    def memory_kib(self) -> int:
        """Of all processes that are ready."""
        return sum(each.memory_kib for each in self._of(ParkedState.READY))

    @property
    def is_settled(self) -> bool:
        """All processes that can be parked now are."""
        return self._next() is None and not self._in(ParkedState.PREPARING)

    def assumed(self, local_rank: int) -> Mapping[str, str]:
        """Variables of the cycle that a process's libraries read while they were imported."""
        return self._parked[local_rank].assumed

    def is_preparing(self, local_rank: int) -> bool:
        """Its process is to be prepared, or is; others may have failed since that was said."""
        return self._parked[local_rank].state is ParkedState.PREPARING

    def is_hurried(self, local_rank: int) -> bool:
        """Its process is to have the priority of a rank while it is prepared."""
        return self._parked[local_rank].normal_since is not None

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Effects of ``event``, in order."""
        self._effects = []
        match event:
            case Waiting():
                self._steady_at, self._has_ranks = now, False
                self._on_time(now)
            case RanksStarted(is_last=True):
                self._steady_at, self._has_ranks = None, True
                for local_rank in self._in(ParkedState.PREPARING, ParkedState.READY):
                    self._drop(local_rank)
            case RanksStarted():
                self._steady_at, self._has_ranks = now + self.delay_s, True
                self._has_begun = self._is_busy = False
                self._n_reported = 0
                self._patience_s = PATIENCE_S
                self._look_again()
            case RankConnected():
                if self._steady_at is not None and not self._has_begun:
                    self._n_reported += 1
                    is_last = self._n_reported >= self.nproc
                    # With the lowest priority it takes no time from ranks that still import.
                    pause_s = 0.0 if self.is_idle or is_last else REPORTED_IN_S
                    self._steady_at = now + min(self.delay_s, pause_s)
                    self._on_time(now)
            case CycleEnding():
                self._steady_at = self._again_at = None
                self._drop_unfinished()
            case Started(local_rank, shape):
                self._parked[local_rank].shape = shape
                if self._look_at_memory_at is None:
                    self._look_at_memory_at = now + LOOK_AT_MEMORY_S[0]
            case Nothing(local_rank):
                self._skip(local_rank, now)
            case NoRoom(local_rank, available_kib):
                self._note_room(available_kib)
                self._skip(local_rank, now)
            case ParkedSaid(local_rank, message):
                if isinstance(message, ParkedUnfit):
                    self._on_unfit(local_rank, message.reason, message.module)
                else:
                    self._parked[local_rank].assumed = message.assumed
                    self._on_ready(local_rank, message.memory_kib)
                    self._on_time(now)
            case MemoryLeft(available_kib):
                self._on_memory(available_kib, now)
            case MemoryPressure():
                self._leave("processes wait for memory (memory pressure of the kernel)")
            case OutOfMemory():
                self._leave(None)
                self._give_up("the kernel killed a process of this job for lack of memory")
            case KeepsOomScore(local_rank, reason):
                self._put_off(local_rank)
                self._give_up(
                    "a parked interpreter cannot be made the first process that the kernel ends "
                    f"when memory runs out ({reason})"
                )
            case Share():
                self._on_share(event, now)
            case StaysIdle(local_rank):
                self.is_idle = False
                if self._parked[local_rank].state is ParkedState.PREPARING:
                    self._drop(local_rank)
            case ParkedDied(local_rank, signum):
                if signum in ASKS_TO_END:
                    self._put_off(local_rank)
                else:
                    self._on_failure(local_rank, "ended unexpectedly")
            case SignalArrived():
                self.given_up = self.given_up or "the job is ending"
                self._steady_at = self._again_at = None
                for local_rank in self._in(ParkedState.PREPARING, ParkedState.READY):
                    self._drop(local_rank)
            case RankWanted(local_rank, shape):
                self._on_wanted(local_rank, shape)
            case StartedOver(local_rank, reason):
                self._give_up(f"the script {reason}")
            case TimePassed():
                self._on_time(now)
            case _:
                assert_never(event)
        return self._effects

    # ------------------------------------------------------------ inside
    def _in(self, *states: ParkedState) -> list[int]:
        return [rank for rank, each in enumerate(self._parked) if each.state in states]

    def _of(self, *states: ParkedState) -> list[_Parked]:
        return [each for each in self._parked if each.state in states]

    def _next(self) -> int | None:
        """The next local rank to prepare, once the cycle is steady."""
        at_once = 1 if self._is_doubtful else self.nproc
        if self.given_up is not None or len(self._of(ParkedState.PREPARING)) >= at_once:
            return None
        return next(iter(self._in(ParkedState.NONE)), None)

    def _idle(self) -> list[tuple[int, _Parked]]:
        """Those that are prepared with the lowest priority."""
        parked = [(rank, self._parked[rank]) for rank in self._in(ParkedState.PREPARING)]
        return [(rank, each) for rank, each in parked if each.normal_since is None]

    def _hurry(self, now: float) -> None:
        for local_rank, parked in self._idle():
            parked.normal_since = now
            self._effects.append(Hurry(local_rank))

    def _on_share(self, share: Share, now: float) -> None:
        parked = self._parked[share.local_rank]
        before, parked.share = parked.share, share
        ran_s = share.ran_s - before.ran_s
        if share.waited_s - before.waited_s > ran_s or (ran_s <= 0 and share.is_runnable):
            # The ranks leave no processor idle: waiting would only put the imports off.
            self._is_busy = True
            self._hurry(now)

    def _note(self, text: str, level: str = "info") -> None:
        self._effects.append(Note(level, text))

    def _drop(self, local_rank: int) -> None:
        self._parked[local_rank].state = ParkedState.NONE
        self._effects.append(Discard(local_rank))

    def _drop_unfinished(self) -> None:
        for local_rank in self._in(ParkedState.PREPARING):
            self._drop(local_rank)

    def _give_up(self, reason: str) -> None:
        if self.given_up is not None:
            return
        self.given_up = reason
        self._drop_unfinished()
        self._note(f"no more warm standby, ranks start plainly: {reason}")

    def _on_ready(self, local_rank: int, memory_kib: int) -> None:
        parked = self._parked[local_rank]
        if parked.state is not ParkedState.PREPARING:
            return
        parked.state = ParkedState.READY
        parked.memory_kib = self._expected_kib = memory_kib
        self._is_doubtful = False
        ready = self._of(ParkedState.READY)
        total = self.memory_kib
        if total > self.memory_kib_max:
            self._drop(local_rank)
            self._give_up(
                f"{count(len(ready), 'parked process', 'es')} with {total >> 10} "
                f"MiB, the limit is {self.memory_kib_max >> 10} MiB "
                "(--ft-warm-standby-memory-mb)",
            )
        elif self.is_settled:
            self._effects.append(AllParked(len(ready), total))

    def _skip(self, local_rank: int, now: float) -> None:
        if self._parked[local_rank].state is not ParkedState.PREPARING:
            return
        self._parked[local_rank].state = ParkedState.SKIPPED
        if self._again_at is None and self._steady_at is not None:
            self._again_at = now + self._patience_s
            self._patience_s *= 2
        self._on_time(now)

    @property
    def _least_kib(self) -> int:
        """With less free memory, all leave."""
        return self.reserve_kib + STAY * self._expected_kib

    def _on_memory(self, available_kib: int | None, now: float) -> None:
        shortest, longest = LOOK_AT_MEMORY_S
        pause_s = longest
        if available_kib is not None:
            spare_s = (available_kib - self._least_kib) / USED_UP_KIB_PER_S
            pause_s = min(max(spare_s, shortest), longest)
            if spare_s < 0:
                self._leave(
                    f"{available_kib >> 10} MiB of memory are free, and {self._least_kib >> 10} "
                    "MiB have to be while one is parked"
                )
        self._look_at_memory_at = now + pause_s if self.is_any_parked else None

    def _leave(self, reason: str | None) -> None:
        """Give their memory to the training, until the next cycle; None: nothing is logged."""
        leaving = self._in(ParkedState.PREPARING, ParkedState.READY)
        for local_rank in leaving:
            self._drop(local_rank)
            self._parked[local_rank].state = ParkedState.SKIPPED
        if not leaving or reason is None:
            return
        self._leaves += 1
        self._note(f"{count(len(leaving), 'parked interpreter')} left: {reason}")
        if self._leaves >= LEAVES_MAX:
            self._give_up(f"memory got short {count(self._leaves, 'time')}")

    def _put_off(self, local_rank: int) -> None:
        """Until the next cycle, if there is one."""
        if local_rank in self._in(ParkedState.PREPARING, ParkedState.READY):
            self._parked[local_rank].state = ParkedState.SKIPPED

    def _look_again(self) -> None:
        self._again_at = None
        for each in self._of(ParkedState.SKIPPED):
            each.state = ParkedState.NONE

    @property
    def _besides(self) -> str:
        if not self.reserve_kib:
            return ""
        return (
            f", and {self.reserve_kib >> 20} GiB besides, as the kernel may kill a rank before a "
            f"parked process ({self.why_reserve})"
        )

    def _note_room(self, available_kib: int) -> None:
        are_others_coming = len(self._of(ParkedState.PREPARING)) > 1  # it is tried again after them
        if not self._has_noted_room and not are_others_coming:
            self._has_noted_room = True
            self._note(
                f"no warm standby for now: {available_kib >> 10} MiB of memory are free, a "
                f"parked process would need {self._expected_kib >> 10} MiB and {ROOM} times as "
                f"much has to be free{self._besides}"
            )

    def _on_unfit(self, local_rank: int, reason: str, module: str | None) -> None:
        library = module if module is None or module in LATE else module.partition(".")[0]
        parked = self._parked[local_rank]
        if parked.state is not ParkedState.PREPARING:
            return
        parked.state = ParkedState.NONE
        self._is_doubtful = True
        if parked.least:
            self._give_up(reason)
        elif self._least or library in self._left_out:
            return  # it was started before another one showed that
        elif library and library != TORCH and len(self._left_out) < LEFT_OUT_MAX:
            self._left_out = (*self._left_out, library)
            self._note(f"warm standby leaves out {library}: {reason}")
        else:
            self._least = True
            self._note(f"warm standby imports no more than torch: {reason}")

    def _on_failure(self, local_rank: int, how: str) -> None:
        if local_rank not in self._in(ParkedState.PREPARING, ParkedState.READY):
            return
        self._parked[local_rank].state = ParkedState.NONE
        self._failures += 1
        if self._failures == 1:
            text = f"the parked process of local rank {local_rank} {how}; trying again"
            self._note(text, level="warning")
        elif self._failures >= FAILURES_MAX:
            self._give_up(f"{count(self._failures, 'parked process', 'es')} ended or hung")

    def _on_wanted(self, local_rank: int, shape: Shape) -> None:
        parked = self._parked[local_rank]
        if parked.state is ParkedState.PREPARING:
            self._drop(local_rank)
        if parked.state is not ParkedState.READY:
            return
        reason = why_cold(parked.shape, shape, parked.assumed)
        if reason is None:
            parked.state = ParkedState.NONE
            self._effects.append(BecomeRank(local_rank))
        else:
            self._drop(local_rank)
            self._note(f"local rank {local_rank} starts plainly: {reason}")

    def _on_time(self, now: float) -> None:
        for local_rank in self._in(ParkedState.PREPARING):
            since = self._parked[local_rank].normal_since
            if since is not None and now >= since + PREPARE_LIMIT_S:
                how = f"was not ready after {PREPARE_LIMIT_S:.0f} s"
                self._on_failure(local_rank, how)
                self._effects.append(Discard(local_rank))
        if self._look_at_memory_at is not None and now >= self._look_at_memory_at:
            self._look_at_memory_at = None
            if self.is_any_parked:
                self._look_at_memory_at = now + LOOK_AT_MEMORY_S[0]
                self._effects.append(MeasureMemory())
        for local_rank, parked in self._idle():
            if now >= parked.began_at + IDLE_LIMIT_S:
                self._hurry(now)
                break
            if now >= parked.look_at:
                parked.look_at = now + LOOK_S
                self._effects.append(MeasureShare(local_rank))
        if self._steady_at is None or now < self._steady_at:
            return
        if self._again_at is not None and now >= self._again_at:
            self._look_again()
        # All together: ranks wait for each other, so one that is slowed slows all (decision 35). A
        # process that was unfit is tried again alone, before the others (see _next).
        while (following := self._next()) is not None:
            self._has_begun = True
            is_idle = self.is_idle and self._has_ranks and not self._is_busy
            self._parked[following] = _Parked(
                ParkedState.PREPARING,
                least=self._least,
                began_at=now,
                normal_since=None if is_idle else now,
                look_at=now + LOOK_S,
            )
            self._effects.append(Prepare(following, self._least, self._left_out))
