"""Decide what one rank does in an in-process restart, between its main thread and its guard.

Pure: ``handle(event)`` returns effects; there are no deadlines here, the guard keeps them. Two
threads feed it, under one lock: the *main* thread, which runs the user's function, and the
*watcher*, which hears the guard and frees the main thread.

    JOINING -Commit-> RUNNING(e) -returned-> DONE -Exit-> OVER
                        |  |  raised              |
                        |  +-----> FAULTED        | Abort: somebody else's fault
                  Abort |             | Abort     |
                        v             v           v
                       ABORTING: the watcher frees whoever waits in a collective
                          | done: the main thread is interrupted, or woken where it waits
                          v
                       UNWINDING: the main thread is back, finalizes, looks after its health
                          | Ready
                          v
                       READY -Commit-> RUNNING(e+1)

    any -main thread leaves-> LEAVING -Abort done, or nothing to wait for-> OVER

Rules kept here:

1. A rank's exception is told first and then held until Abort, so collectives are aborted exactly
   once and in one place.
2. An error that reaches the function after Abort is an echo of it, and is told to nobody.
3. A function that returns while it should restart was interrupted.
4. A rank that hung by itself too often in a row is not interrupted: its guard ends it.
5. The interrupt is repeated until the wrapper's own frame has seen it: code may swallow it.
6. The main thread is interrupted only in the user's code; where it waits in ours, it is woken.
"""

from __future__ import annotations

import enum

from holdfast.base.pure.never import assert_never
from holdfast.base.pure.value import Value
from holdfast.inplace.pure import messages as msg
from holdfast.inplace.pure.escalation import Blocked, Hangs


# ---------------------------------------------------------------- events
class Begin(Value):
    """The guard is connected."""

    world: int


class Entered(Value):
    """Main: the user's code is about to run; from now on it may be interrupted."""


class Returned(Value):
    """Main: the user's code has returned; ``active`` False: there was none to call."""

    active: bool = True


class Raised(Value):
    """Main: the user's code has raised an ``Exception``; ``at_start``: see :class:`Fault`."""

    text: str
    at_start: bool = False


class Caught(Value):
    """Main: the interrupt has arrived in the wrapper's own frame."""


class Unwound(Value):
    """Main: finalized, well, and waiting for the next epoch."""

    standing: msg.Standing


class Leaving(Value):
    """Main: this rank leaves the call. ``fault`` False: left out by the assignment of all."""

    text: str
    fault: bool = True


class Gone(Value):
    """Main: nothing more will come from it."""


class Heard(Value):
    """Watcher: a message from the guard."""

    message: msg.Down


class GuardGone(Value):
    """Watcher: the guard is gone."""

    how: str


class LeaseOver(Value):
    """Watcher: the guard is there, but has not renewed this rank's lease."""

    how: str


class AbortDone(Value):
    """Watcher: whoever waited in a collective is free.

    ``blocked``: what became of the main thread, where it had stood still for long.
    """

    blocked: Blocked | None = None


Event = (
    Begin
    | Entered
    | Returned
    | Raised
    | Caught
    | Unwound
    | Leaving
    | Gone
    | Heard
    | GuardGone
    | LeaseOver
    | AbortDone
)


# ---------------------------------------------------------------- effects
class Say(Value):
    """Send to the guard."""

    message: msg.Up


class RunAbort(Value):
    """Watcher: free whoever waits in a collective or a store; then feed :class:`AbortDone`."""

    causes: tuple[msg.Cause, ...]


class Interrupt(Value):
    """Raise in the main thread, again and again until :class:`StopInterrupt`."""

    causes: tuple[msg.Cause, ...]


class StopInterrupt(Value):
    """The main thread has seen it, or is out of the user's code."""


class Proceed(Value):
    """Main: compute the assignment for this epoch, and call the function."""

    commit: msg.Commit


class Unwind(Value):
    """Main: collectives are aborted: finalize, and be ready."""

    causes: tuple[msg.Cause, ...]


class Finish(Value):
    """Main: all have completed; return to the caller."""


class Fail(Value):
    """Main: the call is over for this rank; raise. ``gave_up``: see :class:`Exit`."""

    text: str
    gave_up: bool = False


class Go(Value):
    """Main, which is leaving: nothing more to wait for."""


Directive = Proceed | Unwind | Finish | Fail | Go


class Wake(Value):
    """What the main thread is waiting for, or will find when it next waits.

    A later one replaces an earlier one that was not taken yet, except :class:`Proceed`: that is
    taken first, since it says from which assignment everybody starts.
    """

    directive: Directive


Effect = Say | RunAbort | Interrupt | StopInterrupt | Wake


class Phase(enum.Enum):
    """Where a rank is."""

    JOINING = "joining"
    RUNNING = "running"
    FAULTED = "faulted"
    DONE = "done"
    ABORTING = "aborting"
    UNWINDING = "unwinding"
    READY = "ready"
    OVER = "over"


class Rank:
    """One per rank and call of the wrapped function.

    Attributes:
        phase: Where it is.
        epoch: The one it is in or has left last; -1 before the first.
    """

    def __init__(self, rank: int, soft_s: float = 60.0) -> None:
        self._rank = rank
        self._hangs = Hangs(soft_s)
        self.phase = Phase.JOINING
        self.epoch = -1
        self._in_user_code = False
        self._is_interrupting = False
        self._is_leaving = False
        self._failure: str | None = None
        self._gave_up = False
        self._causes: tuple[msg.Cause, ...] = ()

    @property
    def must_unwind(self) -> bool:
        """Whether the user's code should not begin, or go on."""
        return self.phase in (Phase.ABORTING, Phase.UNWINDING) or self._failure is not None

    @property
    def is_in_user_code(self) -> bool:
        """Whether the main thread is where it may be interrupted."""
        return self._in_user_code

    @property
    def hangs_in_a_row(self) -> int:
        """Iterations before this one in which it hung by itself, one after the other."""
        return self._hangs.in_a_row

    @property
    def has_left(self) -> bool:
        """Whether the main thread is out of all user's code of this call but its last hook."""
        return self._is_leaving or self.phase is Phase.OVER

    def handle(self, event: Event) -> list[Effect]:
        """What follows from ``event``."""
        match event:
            case Begin():
                return [Say(msg.Hello(self._rank, event.world))]
            case Entered():
                return self._enter()
            case Returned():
                return self._come_back(msg.Done(self.epoch, self._rank, event.active), Phase.DONE)
            case Raised():
                fault = msg.Fault(
                    self.epoch, self._rank, msg.Kind.EXCEPTION, event.text, event.at_start
                )
                return self._come_back(fault, Phase.FAULTED)
            case Caught():
                fault = msg.Fault(
                    self.epoch,
                    self._rank,
                    msg.Kind.EXCEPTION,
                    "an interrupt that no process has asked for",
                )
                return self._come_back(fault, Phase.FAULTED)
            case Unwound():
                return self._be_ready(event.standing)
            case Leaving():
                return self._leave(event)
            case Gone():
                self.phase = Phase.OVER
                return [Say(msg.Bye(self._rank))]
            case Heard():
                return self._hear(event.message)
            case GuardGone():
                return self._fail(f"the guard of this node is gone: {event.how}")
            case LeaseOver():
                return self._fail(event.how)
            case AbortDone():
                return self._abort_done(event.blocked)
            case _:
                assert_never(event)

    # ------------------------------------------------------------ the main thread

    def _enter(self) -> list[Effect]:
        """With an abort under way, the interrupt comes as soon as it is done; or it is now."""
        self._in_user_code = True
        if self.phase is Phase.UNWINDING:
            return self._interrupt()
        return []

    def _out_of_user_code(self) -> list[Effect]:
        self._in_user_code = False
        if not self._is_interrupting:
            return []
        self._is_interrupting = False
        return [StopInterrupt()]

    def _come_back(self, message: msg.Done | msg.Fault, then: Phase) -> list[Effect]:
        effects = self._out_of_user_code()
        if self.phase is Phase.RUNNING:
            self._hangs.did_not_hang()
            self.phase = then
            return [*effects, Say(message)]
        return effects + self._direct()

    def _be_ready(self, standing: msg.Standing) -> list[Effect]:
        if self._failure is not None:
            return [Wake(Fail(self._failure, self._gave_up))]
        self.phase = Phase.READY
        return [Say(msg.Ready(self.epoch, (standing,)))]

    def _leave(self, leaving: Leaving) -> list[Effect]:
        effects = self._out_of_user_code()
        if not self._is_leaving:
            effects.append(Say(msg.Leave(self.epoch, self._rank, leaving.fault, leaving.text)))
        self._is_leaving = True
        waits_for_abort = self.phase is Phase.ABORTING or (
            leaving.fault and self.phase in (Phase.RUNNING, Phase.FAULTED, Phase.DONE)
        )
        return effects if waits_for_abort else [*effects, Wake(Go())]

    # ------------------------------------------------------------ the guard

    def _hear(self, message: msg.Down) -> list[Effect]:
        match message:
            case msg.Commit():
                return self._commit(message)
            case msg.Abort():
                return self._abort(message)
            case msg.Exit():
                if message.finished and self.phase is Phase.DONE and not self._is_leaving:
                    self.phase = Phase.OVER
                    return [Wake(Finish())]
                self._gave_up = message.gave_up
                return self._fail(message.text or "the others have completed without this rank")
            case msg.Refused() | msg.Lost():
                return self._fail(message.text)
            case msg.Kill() | msg.Echo():
                return []
            case _:
                assert_never(message)

    def _commit(self, commit: msg.Commit) -> list[Effect]:
        if self._is_leaving or self._failure is not None:
            return []  # refused, say, when the others were about to begin
        if self.phase not in (Phase.JOINING, Phase.READY):
            return []
        self.phase = Phase.RUNNING
        self.epoch = commit.epoch
        self._causes = ()
        return [Wake(Proceed(commit))]

    def _abort(self, abort: msg.Abort) -> list[Effect]:
        if abort.epoch != self.epoch:
            return []
        if self.phase not in (Phase.RUNNING, Phase.FAULTED, Phase.DONE):
            return []
        self.phase = Phase.ABORTING
        self._causes = abort.causes
        return [RunAbort(abort.causes)]

    def _fail(self, text: str) -> list[Effect]:
        """The call is over for this rank, whatever it is doing."""
        if self._failure is not None or self.phase is Phase.OVER:
            return []
        self._failure = text
        if self.phase in (Phase.RUNNING, Phase.FAULTED, Phase.DONE):
            self.phase = Phase.ABORTING
            return [RunAbort(self._causes)]
        if self.phase in (Phase.JOINING, Phase.READY) or self._is_leaving:
            return self._direct()
        return []

    # ------------------------------------------------------------ the watcher

    def _abort_done(self, blocked: Blocked | None) -> list[Effect]:
        if self.phase is not Phase.ABORTING:
            return []
        self.phase = Phase.UNWINDING
        why = None
        if blocked is not None:
            why = self._hangs.looked(blocked)
        else:
            self._hangs.did_not_hang()
        if not self._in_user_code:
            return self._direct()
        if why is not None and self._failure is None:
            return [Say(msg.Stuck(self.epoch, self._rank, why))]
        return self._interrupt()

    def _interrupt(self) -> list[Effect]:
        self._is_interrupting = True
        return [Interrupt(self._causes)]

    def _direct(self) -> list[Effect]:
        """What the main thread, which is in our own code, is to do; nothing while we abort."""
        if self.phase is Phase.ABORTING:
            return []
        if self._is_leaving:
            return [Wake(Go())]
        if self._failure is not None:
            return [Wake(Fail(self._failure, self._gave_up))]
        return [Wake(Unwind(self._causes))]
