"""Decide for a node's guard: relay, watch for progress, kill, and fence.

Pure: ``handle(event, now)`` returns effects, :meth:`Guard.next_deadline` says when it wants to be
woken. Times are seconds on the caller's monotonic clock, which the marks of the ranks share.

Messages of the node's ranks go up, those of the coordinator down; RanksReady once, when the last
local rank is ready. A rank whose process ends is reported dead.

Progress. Each rank marks its page: by its main thread every interval (*automatic*), and where its
function calls ``ping()`` (*manual*, once it has in this epoch). Any mark older than a limit counts;
the clock starts anew with each epoch, and where the rank comes back from waiting in the wrapper.

    older than soft_s     Fault(SOFT_TIMEOUT), once per epoch: all ranks are interrupted;
                          a moment later where the rank waits for others
    older than hard_s     evidence, SIGTERM, after grace_s SIGKILL (``base/pure/kill_ladder.py``);
                          Dead

    hung again and again  the same as after hard_s: its rank says so (``escalation.py``)

Tickless: the page is read when the earliest limit could run out, not before.

Snapshots of its ranks: ``guard_snapshots.py``.

Fencing. When the guard's lease runs out, or its connection ends, the others may go on without this
node: its ranks are asked to leave, and get SIGKILL if they do not (``inplace/pure/timing.py``).

Invariants: H-1 no rank is called hung before its earliest limit, by a page read after that instant.
H-2 it is, then. K-2 no signal before the evidence was asked for and came, or took too long.
"""

from __future__ import annotations

import enum

from holdfast.arena.pure.messages import SnapshotUnusable
from holdfast.arena.pure.snapshots import Restore
from holdfast.base.pure.common_events import TimePassed
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.kill_ladder import SIGNALLED, SIGTERM, STUCK, TAKING_EVIDENCE, KillLadder
from holdfast.base.pure.never import assert_never
from holdfast.base.pure.value import Value
from holdfast.evidence.pure.evidence import RankDigest
from holdfast.inplace.pure import messages as msg
from holdfast.inplace.pure.guard_snapshots import (
    GuardSnapshots,
    OfSnapshots,
    ReadSnapshots,
    SnapshotsRead,
)
from holdfast.inplace.pure.job_calls import (
    CAUSES_MAX,
    CallBegan,
    CallEnded,
    Cause,
    EndsHungRank,
    FaultKind,
    OfGuard,
    RestartedInPlace,
)
from holdfast.inplace.pure.timing import (
    LEASE_SHARE,
    guard_fence_s,
    guard_lease_until,
    moment_s,
    rank_lease_until,
)
from holdfast.page.pure.clocks import MAIN_THREAD, MainThreadMarks, RunningClock
from holdfast.watch.pure import hang

_CAUSE_CHARS_MAX = 500


# ---------------------------------------------------------------- events
class RankMessage(Value):
    """A message from a rank of this node."""

    rank: int
    message: msg.Up


class RankEnded(Value):
    """The process of a rank has ended, or its connection."""

    rank: int
    how: str


class CoordinatorGone(Value):
    """There is no connection to the coordinator, or none any more."""

    how: str


class MarksRead(Value):
    """The page of a rank was read; the answer to :class:`ReadPage`."""

    rank: int
    marks: MainThreadMarks


class RankEvidenceTaken(Value):
    """All evidence about a rank that will come has come; ``seen``: its digest."""

    rank: int
    seen: RankDigest | None = None


Event = (
    msg.JoinCall
    | RankMessage
    | RankEnded
    | msg.Down
    | CoordinatorGone
    | MarksRead
    | RankEvidenceTaken
    | SnapshotsRead
    | TimePassed
)
"""``JoinCall``: a rank of this node is connected. ``Down``: a message from the coordinator."""


# ---------------------------------------------------------------- effects
class TellRank(Value):
    """Send to a rank of this node."""

    rank: int
    message: msg.Down


class ReadPage(Value):
    """Read the page of a rank and feed :class:`MarksRead`, now."""

    rank: int


class TakeRankEvidence(Value):
    """Stacks and state of a rank that will be killed, until taken or the instant ``until``."""

    rank: int
    why: str
    until: float


class Signal(Value):
    """Send these signals, in order, to the process of a rank alone."""

    rank: int
    signals: tuple[int, ...]
    why: str


class Renew(Value):
    """Write into the page of every rank that it may run until then; ``None``: without an end."""

    until: float | None


class GuardQuits(Value):
    """No rank of this node is left: nothing more to do."""


Effect = (
    TellRank
    | msg.Up
    | OfGuard
    | ReadPage
    | TakeRankEvidence
    | Signal
    | Renew
    | OfSnapshots
    | GuardQuits
)
"""``Up`` goes to the coordinator. ``OfGuard`` goes to the launchers of these ranks, where there are
some; nothing depends on it."""


class _At(enum.Enum):
    """Where a rank is, as far as its guard can tell."""

    WAITING = "waiting"
    """For the next epoch, or the end: in the wrapper, no limits."""
    RUNNING = "running"
    UNWINDING = "unwinding"
    """It was sent an abort, and is not ready yet."""
    OUT = "out"
    """It has left, or returned: its process is not watched any more."""


class _GuardedRank:
    def __init__(self, number: int) -> None:
        self.number = number
        self.at = _At.WAITING
        self.standing: msg.Standing | None = None
        self.place: msg.Place | None = None
        self.has_reported_place = False
        """The coordinator knows its place."""
        self.clock_from = 0.0
        self.epoch_from = 0.0
        self.has_soft_fault = False
        self.spared = False
        self.look_at: float | None = None
        self.kill: KillLadder | None = None
        self.seen: RankDigest | None = None

    def deadlines(self) -> tuple[float | None, ...]:
        return (self.look_at, self.kill.due_at if self.kill else None)

    @property
    def is_killed(self) -> bool:
        return self.kill is not None and self.kill.is_killed


class _Restart:
    """A restart, for the launcher of this node: from its first abort to the next call.

    Attributes:
        began: Its first cause; None: not known.
        noticed_at: The abort reached this node.
        awaited: Ranks of this node in the function with unknown last progress: only their pages
            have it, until they are freed. Empty where no rank hangs.
    """

    def __init__(self, abort: msg.AbortEpoch, running: list[int], now: float) -> None:
        self.noticed_at = now
        self.began = _shortened(abort.causes[0]) if abort.causes else None
        self._progress_at = now
        self.awaited = set(running) if abort.is_hang else set()

    def saw(self, rank: int, progress_at: float) -> None:
        if rank in self.awaited:
            self.awaited.discard(rank)
            self._progress_at = min(self._progress_at, progress_at)

    def ended(self, commit: msg.Commit, now: float) -> RestartedInPlace:
        return RestartedInPlace(
            call=commit.epoch,
            causes=tuple(_shortened(cause) for cause in commit.causes[:CAUSES_MAX]),
            n_causes=len(commit.causes),
            progress_at=self._progress_at,
            noticed_at=self.noticed_at,
            entered_at=now,
            verdict=commit.verdict,
        )


def _shortened(cause: Cause) -> Cause:
    """All of them have to fit into a request to a launcher."""
    return Cause(cause.rank, cause.kind, cause.text[:_CAUSE_CHARS_MAX])


class Guard:
    """One per node and call of the wrapped function.

    Args:
        limits: How long ranks may take.
        cycle: Of the launcher of this node, if there is one.
    """

    def __init__(self, limits: msg.CallTimeouts, cycle: int = 0) -> None:
        self._limits = limits
        self._cycle = cycle
        self._ranks: dict[int, _GuardedRank] = {}
        self._epoch = -1
        self._beat_at: float | None = None
        self._answered_at: float | None = None
        """When the last beat that was answered was sent; None: there is no lease."""
        self._is_over = False
        self._is_lost = False
        self._fence_at: float | None = None
        self._restart: _Restart | None = None
        self._restarted: RestartedInPlace | None = None
        """For the launcher, when it is known which snapshot the epoch begins from."""
        self._snapshots = GuardSnapshots()
        self._standings: tuple[msg.Standing, ...] = ()

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks of this node whose processes are, as far as known, alive and in the call."""
        return frozenset(rank for rank, it in self._ranks.items() if it.at is not _At.OUT)

    def next_deadline(self) -> float | None:
        """When to feed :class:`TimePassed`, at the latest."""
        ranks = (at for rank in self._ranks.values() for at in rank.deadlines())
        return earliest(self._beat_at, self._lease_until(), self._fence_at, *ranks)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in an event; return the effects, in order."""
        match event:
            case msg.JoinCall():
                return self._greet(event, now)
            case RankMessage():
                return self._relay_up(event.rank, event.message, now)
            case RankEnded():
                return self._lose_rank(event.rank, event.how)
            case (
                msg.AbortEpoch()
                | msg.Commit()
                | msg.BeginFrom()
                | msg.KillLateRanks()
                | msg.Exit()
                | msg.RankRefused()
                | msg.Echo()
            ):
                return self._relay_down(event, now)
            case CoordinatorGone():
                return self._lose_coordinator(event.how, now)
            case MarksRead():
                if self._restart is not None:
                    self._restart.saw(event.rank, event.marks.last_progress)
                return self._judge(event.rank, event.marks, now)
            case RankEvidenceTaken():
                return self._conclude_evidence(event.rank, event.seen, now)
            case SnapshotsRead():
                return [self._ready_with(event)]
            case TimePassed():
                return self._pass_time(now)
            case _:
                assert_never(event)

    # ------------------------------------------------------------ up

    def _greet(self, hello: msg.JoinCall, now: float) -> list[Effect]:
        rank = hello.rank
        if self._is_lost or self._is_over:
            return [TellRank(rank, msg.RankRefused(rank, "the call has ended on this node"))]
        if rank in self._ranks:
            return [
                TellRank(rank, msg.RankRefused(rank, f"there are two processes with RANK {rank}"))
            ]
        self._ranks[rank] = _GuardedRank(rank)
        if self._beat_at is None:
            self._beat_at = now + self._limits.beat_s
            self._answered_at = now
        return [self._renew(), hello]

    def _lease_until(self) -> float | None:
        if self._answered_at is None:
            return None
        return guard_lease_until(self._answered_at, self._limits.silence_s)

    def _renew(self) -> Renew:
        if self._answered_at is None:
            return Renew(None)
        return Renew(rank_lease_until(self._answered_at, self._limits.silence_s))

    def _relay_up(self, number: int, message: msg.Up, now: float) -> list[Effect]:
        rank = self._ranks.get(number)
        if rank is None or rank.at is _At.OUT:
            return []
        match message:
            case msg.RanksReady():
                if message.epoch != self._epoch or rank.at is not _At.UNWINDING:
                    return []
                self._rest(rank)
                rank.standing = message.standings[0]
                return self._ready_if_all_are()
            case msg.RanksPlaced():
                if message.epoch != self._epoch or rank.at is not _At.RUNNING:
                    return []
                rank.place = message.places[0]
                return self._placed_if_all_are()
            case msg.OpenedArena():
                return [self._snapshots.hold(number, message)]
            case SnapshotUnusable():
                self._snapshots.refuse(message)
                return []
            case msg.FaultReported() | msg.Done():
                if message.epoch == self._epoch and rank.at is _At.RUNNING:
                    self._rest(rank)
            case msg.RankLeaves():
                self._rest(rank, _At.OUT)
                return [message, *self._ready_if_all_are(), *self._placed_if_all_are()]
            case msg.RankReturned():
                return self._drop(number)
            case msg.HungAgain():
                is_due = message.epoch == self._epoch and rank.at is _At.UNWINDING
                if not is_due or rank.kill:
                    return []
                return self._condemn(rank, message.text, now)
            case msg.JoinCall() | msg.Dead() | msg.GuardBeat():
                return []
            case _:
                assert_never(message)
        return [message]

    def _rest(self, rank: _GuardedRank, at: _At = _At.WAITING) -> None:
        """It is in the wrapper, or out: no limits, and a verdict not carried out yet is dropped."""
        rank.at = at
        rank.look_at = None
        if rank.kill is not None and rank.kill.step == TAKING_EVIDENCE:
            rank.kill = None

    def _ready_if_all_are(self) -> list[Effect]:
        """Ready goes up once for the node, when the last of its ranks is."""
        here = [rank for rank in self._ranks.values() if rank.at is not _At.OUT]
        standings = tuple(rank.standing for rank in here if rank.standing is not None)
        if self._is_lost or not standings or len(standings) < len(here):
            return []
        for rank in here:
            rank.standing = None
        self._standings = standings
        return [
            ReadSnapshots() if self._snapshots.are_held else self._ready_with(SnapshotsRead(()))
        ]

    def _ready_with(self, read: SnapshotsRead) -> msg.RanksReady:
        standings, self._standings = self._standings, ()
        return self._snapshots.add_to(msg.RanksReady(self._epoch, standings), read)

    def _placed_if_all_are(self) -> list[Effect]:
        """Places go up once for the node, when the last of its ranks has one."""
        here = self._here()
        places = tuple(
            rank.place for rank in here if rank.place is not None and not rank.has_reported_place
        )
        if self._is_lost or not places or len(places) < len(here):
            return []
        for rank in here:
            rank.has_reported_place = True
        return [msg.RanksPlaced(self._epoch, places)]

    def _begin_from(self, message: msg.BeginFrom) -> list[Effect]:
        """Void newer snapshots first: a rank that gets the message takes new ones."""
        if message.epoch != self._epoch:
            return []
        places = {number: rank.place for number, rank in self._ranks.items()}
        effects: list[Effect] = [*self._snapshots.begin_from(message, places.values())]
        for number, place in places.items():
            effects.append(TellRank(number, self._snapshots.with_path(message, place)))
        return effects + self._report_restart(message.restore)

    def _report_restart(self, restore: Restore | None = None) -> list[Effect]:
        """Once; ``restore``: None: it is not known, or there is none."""
        restarted, self._restarted = self._restarted, None
        if restarted is None or restore is None:
            return [] if restarted is None else [restarted]
        return [restarted.but(step=restore.snapshot.step, lost_steps=restore.lost_steps)]

    def _lose_rank(self, number: int, how: str) -> list[Effect]:
        rank = self._ranks.get(number)
        if rank is None:
            return []
        if rank.kill is None:
            return self._report_gone(rank, FaultKind.TERMINATED, how)
        return self._report_gone(rank, FaultKind.HARD_TIMEOUT, rank.kill.why)

    def _report_gone(self, rank: _GuardedRank, kind: FaultKind, how: str) -> list[Effect]:
        """Report a rank that was still in the call, and expect nothing more from it."""
        effects: list[Effect] = []
        if rank.at is not _At.OUT and not self._is_over and not self._is_lost:
            effects.append(msg.Dead(rank.number, kind, how, rank.seen))
        return effects + self._drop(rank.number)

    def _drop(self, number: int) -> list[Effect]:
        """Nothing more comes from this rank."""
        rank = self._ranks.pop(number)
        effects: list[Effect] = []
        if rank.at is not _At.OUT:
            effects = [*self._ready_if_all_are(), *self._placed_if_all_are()]
        if not self._ranks:
            self._beat_at = self._answered_at = self._fence_at = None
            self._is_over = True
            effects.append(GuardQuits())
        return effects

    # ------------------------------------------------------------ down

    def _relay_down(self, message: msg.Down, now: float) -> list[Effect]:
        if self._is_lost or self._is_over:
            return []
        match message:
            case msg.Echo():
                if self._answered_at is None or message.sent_at <= self._answered_at:
                    return []
                self._answered_at = message.sent_at
                return [self._renew()]
            case msg.Commit():
                self._epoch = message.epoch
                for rank in self._here():
                    self._start(rank, now)
                effects = self._send_ranks(message)
                if message.epoch == 0:
                    effects.insert(0, CallBegan(self._cycle, self._in_call()))
                if self._restart is not None:
                    self._restarted = self._restart.ended(message, now)
                    self._restart = None
                return effects if message.snapshots else [*effects, *self._report_restart()]
            case msg.BeginFrom():
                return self._begin_from(message)
            case msg.AbortEpoch():
                if message.epoch != self._epoch:
                    return []
                looks = self._report_restart()
                if self._restart is None:
                    running = [n for n, rank in self._ranks.items() if rank.at is _At.RUNNING]
                    self._restart = _Restart(message, running, now)
                    looks += [ReadPage(number) for number in self._restart.awaited]
                for rank in self._here():
                    if rank.at is _At.WAITING:
                        rank.clock_from = now
                        self._look_in(rank, self._limits.hard_s, now)
                    rank.at = _At.UNWINDING
                return [*looks, *self._send_ranks(message)]
            case msg.KillLateRanks():
                return self._kill_those_not_back(message, now)
            case msg.RankRefused():
                if message.rank not in self._ranks:
                    return []
                self._rest(self._ranks[message.rank], _At.OUT)
                return [TellRank(message.rank, message)]
            case msg.Exit():
                self._is_over = True
                self._beat_at = self._answered_at = None
                if not message.finished:
                    self._fence_at = now + self._fence_s()
                for rank in self._here():
                    self._rest(rank)
                # First: a rank that gets the message may end, and its launcher judges by this.
                ended = CallEnded(self._cycle, self._in_call(), message.finished)
                done = self._report_restart()
                return [*done, ended, self._renew(), *self._send_ranks(message)]
            case _:
                assert_never(message)

    def _send_ranks(self, message: msg.Down) -> list[Effect]:
        """Ranks that leave get an abort, too, to free their own collectives."""
        return [TellRank(n, message) for n, rank in self._ranks.items() if not rank.is_killed]

    def _in_call(self) -> tuple[int, ...]:
        return tuple(sorted(self.ranks))

    def _here(self) -> list[_GuardedRank]:
        return [rank for rank in self._ranks.values() if rank.at is not _At.OUT]

    def _start(self, rank: _GuardedRank, now: float) -> None:
        rank.at = _At.RUNNING
        rank.standing = rank.place = None
        rank.has_reported_place = False
        rank.clock_from = rank.epoch_from = now
        rank.has_soft_fault = rank.spared = False
        self._look_in(rank, self._limits.soft_s, now)

    def _look_in(self, rank: _GuardedRank, after_s: float, now: float) -> None:
        """There is nothing to look for where the verdict is being carried out."""
        rank.look_at = None if rank.kill else now + after_s

    def _lose_coordinator(self, how: str, now: float) -> list[Effect]:
        if self._is_lost or self._is_over:
            return []
        self._is_lost = True
        # A guard that was stopped finds that its lease was over before: no more time is given.
        over_at = min(now, self._lease_until() or now)
        self._beat_at = self._answered_at = None
        self._fence_at = over_at + self._fence_s()
        for rank in self._here():
            rank.look_at = None
        # Those that leave wait for an abort, which does not come any more.
        return [TellRank(number, msg.Exit(False, how)) for number in self._ranks]

    def _fence_s(self) -> float:
        return guard_fence_s(self._limits.silence_s, self._limits.grace_s)

    # ------------------------------------------------------------ progress

    def _judge(self, number: int, marks: MainThreadMarks, now: float) -> list[Effect]:
        rank = self._ranks.get(number)
        if rank is None or rank.look_at is None:
            return []
        hard = self._first_to_run_out(rank, marks, self._limits.hard_s)
        soft = self._first_to_run_out(rank, marks, self._limits.soft_s)
        if hard is None or soft is None:
            rank.clock_from = now
            rank.look_at = now + self._limits.soft_s
            return []
        age = hard.age_s(now)
        held = now - max(marks.thread, rank.clock_from) > age / 2
        how = "it can be interrupted"
        if rank.at is _At.UNWINDING:
            how = "a restart waits for it: it has not left the function"
        if held:
            how = "the interpreter is held or the process is stopped"
        elif marks.waits:
            how = "it waits for other ranks or for its device"
        which = "its main thread" if hard.clock == MAIN_THREAD else hard.clock
        text = f"no progress of {which} for {age:.1f} s; {how}"
        # Instants are compared, not ages: rounding must not delay a verdict that is due now.
        if now >= hard.deadline:
            why = f"{text} (hard_timeout {self._limits.hard_s:g} s)"
            return self._condemn(rank, why, now)
        rank.look_at = hard.deadline
        if rank.at is not _At.RUNNING or rank.has_soft_fault:
            return []
        if now < soft.deadline:
            rank.look_at = soft.deadline
            return []
        if marks.waits and not held and not rank.spared:
            # The rank that keeps it waiting is as late, and should be named instead.
            rank.spared = True
            rank.look_at = now + moment_s(self._limits.soft_s)
            return []
        rank.has_soft_fault = True
        text = f"{text} (soft_timeout {self._limits.soft_s:g} s)"
        return [msg.FaultReported(self._epoch, number, FaultKind.SOFT_TIMEOUT, text)]

    def _first_to_run_out(
        self, rank: _GuardedRank, marks: MainThreadMarks, limit_s: float
    ) -> RunningClock | None:
        clocks = hang.running_in_place(marks, rank.clock_from, rank.epoch_from, limit_s)
        return hang.first_to_run_out(clocks)

    # ------------------------------------------------------------ killing

    def _kill_those_not_back(self, kill: msg.KillLateRanks, now: float) -> list[Effect]:
        if kill.epoch != self._epoch:
            return []
        effects: list[Effect] = []
        for number in kill.ranks:
            rank = self._ranks.get(number)
            if rank is not None and rank.at is _At.UNWINDING and not rank.kill:
                effects += self._condemn(rank, kill.text, now)
        return effects

    def _condemn(self, rank: _GuardedRank, why: str, now: float) -> list[Effect]:
        rank.look_at = rank.seen = None
        rank.kill = self._ladder(why)
        return [TakeRankEvidence(rank.number, why, rank.kill.take_evidence(now))]

    def _ladder(self, why: str) -> KillLadder:
        return KillLadder(why, SIGTERM, self._limits.grace_s)

    def _conclude_evidence(self, number: int, seen: RankDigest | None, now: float) -> list[Effect]:
        rank = self._ranks.get(number)
        if rank is None or rank.kill is None:
            return []
        rank.seen = seen
        rank.kill.evidence_taken(now)
        return self._go_on(rank, rank.kill, now)

    def _go_on(self, rank: _GuardedRank, kill: KillLadder, now: float) -> list[Effect]:
        """Take the next step of its end, if that is due."""
        step = kill.climb(now)
        if step is None:
            return []
        if step == STUCK:
            # It sits in the kernel. Whatever it was doing, it does no more in user space.
            return self._report_gone(
                rank, FaultKind.HARD_TIMEOUT, f"{kill.why}; it cannot be killed"
            )
        signal = Signal(rank.number, kill.signals, kill.why)
        return [self._ends_hung(rank, kill.why), signal] if step == SIGNALLED else [signal]

    def _ends_hung(self, rank: _GuardedRank, why: str) -> EndsHungRank:
        restart = self._restart
        if restart is None or restart.began is None or restart.began.rank == rank.number:
            return EndsHungRank(rank.number, why, rank.seen)
        return EndsHungRank(rank.number, why, rank.seen, restart.began, restart.noticed_at)

    # ------------------------------------------------------------ time

    def _pass_time(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        lease_until = self._lease_until()
        if lease_until is not None and now >= lease_until:
            silence = self._limits.silence_s * LEASE_SHARE
            how = f"the coordinator has not answered for {silence:g} s"
            effects += self._lose_coordinator(how, now)
        if self._beat_at is not None and now >= self._beat_at:
            self._beat_at = now + self._limits.beat_s
            effects.append(msg.GuardBeat(now))
        if self._fence_at is not None and now >= self._fence_at:
            self._fence_at = None
            for number, rank in self._ranks.items():
                if rank.at is not _At.OUT and not rank.is_killed:
                    rank.look_at = None
                    rank.kill = rank.kill or self._ladder("it did not leave a call that is over")
                    rank.kill.kill(now)
                    effects.append(Signal(number, rank.kill.signals, rank.kill.why))
        for number, rank in list(self._ranks.items()):
            if rank.look_at is not None and now >= rank.look_at:
                effects.append(ReadPage(number))
            elif rank.kill is not None:
                effects += self._go_on(rank, rank.kill, now)
        return effects
