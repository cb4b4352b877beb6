"""The machine of one rank in a restart in place, between its main thread and its guard.

Pure: ``handle(event)`` returns effects; the guard keeps the deadlines. Two threads feed it, under
one lock: the *main* thread, which runs the user's function, and the *watcher*, which receives the
guard's messages and frees the main thread. Its records are those of ``messages.py``: a message
from the guard, or one that the main thread wants to send, is an event; each that passes is an
effect, and goes on unchanged.

    JOINING -Commit-> RUNNING(e) -Done-> DONE -Exit-> OVER
                        |  |  Fault        |
                        |  +-----> FAULTED | Abort: another rank's fault
                  Abort |             |    |
                        v             v    v
                       ABORTING: the watcher frees ranks that wait in a collective
                          | AbortDone: the main thread is interrupted, or woken where it waits
                          v
                       UNWINDING: the main thread is back, finalizes, checks its health
                          | Ready
                          v
                       READY -Commit-> RUNNING(e+1)

    any -Leave-> LEAVING -AbortDone, or nothing to wait for-> OVER

Rules kept here:

1. A rank reports its exception first and then holds it until Abort, so collectives are aborted
   exactly once and in one place.
2. An error that reaches the function after Abort is an echo of it, and is not reported.
3. A function that returns while it should restart was interrupted.
4. A rank that hung by itself too often in a row is not interrupted: its guard ends it.
5. The interrupt is repeated until the wrapper's own frame has seen it: code may swallow it.
6. The main thread is interrupted only in the user's code; in holdfast's own, it is woken.
"""

from __future__ import annotations

import enum

from holdfast.arena.pure.messages import SnapshotUnusable
from holdfast.base.pure.never import assert_never
from holdfast.base.pure.value import Value
from holdfast.inplace.pure import messages as msg
from holdfast.inplace.pure.escalation import Blocked, Hangs


# ---------------------------------------------------------------- events
class Entered(Value):
    """Main: the user's code is about to run; from now on it may be interrupted."""


class AbortDone(Value):
    """Watcher: ranks that waited in a collective are free.

    ``blocked``: how the main thread was found, where it had stood still for long.
    """

    blocked: Blocked | None = None


Event = (
    msg.JoinCall
    | msg.FaultReported
    | msg.Done
    | msg.RanksReady
    | msg.RanksPlaced
    | msg.OpenedArena
    | SnapshotUnusable
    | msg.RankLeaves
    | msg.RankReturned
    | Entered
    | AbortDone
    | msg.Down
)


# ---------------------------------------------------------------- effects
class Interrupt(Value):
    """Raise in the main thread, again and again while ``is_interrupting``."""


class Unwind(Value):
    """Main: collectives are aborted: finalize, and be ready."""


class MayLeave(Value):
    """Main, which is leaving: nothing more to wait for."""


Directive = msg.Commit | msg.Exit | Unwind | MayLeave
"""The main thread's next step. A later one replaces an earlier one that was not taken yet, except
``Commit``: that is taken first, since it says from which assignment all ranks start."""

Effect = msg.Up | msg.AbortEpoch | msg.BeginFrom | Interrupt | Directive
"""``Up`` goes to the guard. ``Abort`` is for the watcher, which carries it out and then feeds
:class:`AbortDone`. ``BeginFrom`` is for the user's code, where it restores a snapshot."""


class RankPhase(enum.Enum):
    """Where a rank is."""

    JOINING = "joining"
    RUNNING = "running"
    FAULTED = "faulted"
    DONE = "done"
    ABORTING = "aborting"
    UNWINDING = "unwinding"
    READY = "ready"
    OVER = "over"


class RankMachine:
    """One per rank and call of the wrapped function.

    Attributes:
        phase: Where it is.
        epoch: The one it is in or has left last; -1 before the first.
        is_in_user_code: The main thread is where it may be interrupted.
        is_interrupting: It is to be interrupted, and has not seen that yet.
        hangs: Of this rank by itself.
    """

    def __init__(self, rank: int, soft_s: float = 60.0) -> None:
        self._rank = rank
        self.hangs = Hangs(soft_s)
        self.phase = RankPhase.JOINING
        self.epoch = -1
        self.is_in_user_code = False
        self.is_interrupting = False
        self._is_leaving = False
        self._failure: msg.Exit | None = None

    @property
    def must_unwind(self) -> bool:
        """Whether the user's code should not begin, or go on."""
        return self.phase in (RankPhase.ABORTING, RankPhase.UNWINDING) or self._failure is not None

    @property
    def has_left(self) -> bool:
        """Whether the main thread is out of all user's code of this call but its last hook."""
        return self._is_leaving or self.phase is RankPhase.OVER

    def handle(self, event: Event) -> list[Effect]:
        """The effects of ``event``, in order."""
        match event:
            case msg.JoinCall() | msg.RanksPlaced() | msg.OpenedArena() | SnapshotUnusable():
                return [event]
            case Entered():
                return self._enter()
            case msg.Done():
                return self._come_back(event, RankPhase.DONE)
            case msg.FaultReported():
                return self._come_back(event, RankPhase.FAULTED)
            case msg.RanksReady():
                return self._be_ready(event)
            case msg.RankLeaves():
                return self._leave(event)
            case msg.RankReturned():
                self.phase = RankPhase.OVER
                return [event]
            case AbortDone():
                return self._abort_done(event.blocked)
            case msg.Commit():
                return self._commit(event)
            case msg.AbortEpoch():
                return self._abort(event)
            case msg.Exit():
                return self._exit(event)
            case msg.RankRefused():
                return self._fail(event.text)
            case msg.BeginFrom():
                return [event] if event.epoch == self.epoch else []
            case msg.KillLateRanks() | msg.Echo():
                return []
            case _:
                assert_never(event)

    # ------------------------------------------------------------ the main thread

    def _enter(self) -> list[Effect]:
        """With an abort under way, the interrupt comes as soon as it is done; or it is now."""
        self.is_in_user_code = True
        return self._interrupt() if self.phase is RankPhase.UNWINDING else []

    def _come_back(self, message: msg.Done | msg.FaultReported, then: RankPhase) -> list[Effect]:
        self.is_in_user_code = self.is_interrupting = False
        if self.phase is RankPhase.RUNNING:
            self.hangs.did_not_hang()
            self.phase = then
            return [message]
        return self._direct()

    def _be_ready(self, ready: msg.RanksReady) -> list[Effect]:
        if self._failure is not None:
            return [self._failure]
        self.phase = RankPhase.READY
        return [ready]

    def _leave(self, leave: msg.RankLeaves) -> list[Effect]:
        self.is_in_user_code = self.is_interrupting = False
        effects: list[Effect] = [] if self._is_leaving else [leave]
        self._is_leaving = True
        waits_for_abort = self.phase is RankPhase.ABORTING or (
            leave.fault and self.phase in (RankPhase.RUNNING, RankPhase.FAULTED, RankPhase.DONE)
        )
        return effects if waits_for_abort else [*effects, MayLeave()]

    # ------------------------------------------------------------ the guard

    def _commit(self, commit: msg.Commit) -> list[Effect]:
        if self._is_leaving or self._failure is not None:
            return []  # refused, say, when the others were about to begin
        if self.phase not in (RankPhase.JOINING, RankPhase.READY):
            return []
        self.phase = RankPhase.RUNNING
        self.epoch = commit.epoch
        return [commit]

    def _abort(self, abort: msg.AbortEpoch) -> list[Effect]:
        if abort.epoch != self.epoch:
            return []
        if self.phase not in (RankPhase.RUNNING, RankPhase.FAULTED, RankPhase.DONE):
            return []
        self.phase = RankPhase.ABORTING
        return [abort]

    def _exit(self, end: msg.Exit) -> list[Effect]:
        if end.finished and self.phase is RankPhase.DONE and not self._is_leaving:
            self.phase = RankPhase.OVER
            return [end]
        text = end.text or "the others have completed without this rank"
        return self._fail(text, gave_up=end.gave_up)

    def _fail(self, text: str, *, gave_up: bool = False) -> list[Effect]:
        """The call is over for this rank, in any phase."""
        if self._failure is not None or self.phase is RankPhase.OVER:
            return []
        self._failure = msg.Exit(False, text, gave_up)
        if self.phase in (RankPhase.RUNNING, RankPhase.FAULTED, RankPhase.DONE):
            self.phase = RankPhase.ABORTING
            return [msg.AbortEpoch(self.epoch, ())]
        if self.phase in (RankPhase.JOINING, RankPhase.READY) or self._is_leaving:
            return self._direct()
        return []

    # ------------------------------------------------------------ the watcher

    def _abort_done(self, blocked: Blocked | None) -> list[Effect]:
        if self.phase is not RankPhase.ABORTING:
            return []
        self.phase = RankPhase.UNWINDING
        why = None
        if blocked is not None:
            why = self.hangs.looked(blocked)
        else:
            self.hangs.did_not_hang()
        if not self.is_in_user_code:
            return self._direct()
        if why is not None and self._failure is None:
            return [msg.HungAgain(self.epoch, self._rank, why)]
        return self._interrupt()

    def _interrupt(self) -> list[Effect]:
        self.is_interrupting = True
        return [Interrupt()]

    def _direct(self) -> list[Effect]:
        """The next step of a main thread outside the user's code; none during the abort."""
        if self.phase is RankPhase.ABORTING:
            return []
        if self._is_leaving:
            return [MayLeave()]
        return [self._failure or Unwind()]
