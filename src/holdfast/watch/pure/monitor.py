"""The watch of one rank, from armed to dead. Pure; instants are of the monotonic clock.

    IDLE ──armed──► WATCHING ──overdue, twice──► the steps of ``kill_ladder``, evidence first
    any state ──gone, disarmed──► IDLE          any state ──armed anew, left──► WATCHING

    H-1  a verdict needs a second look that agrees with the first: the page has no lock
    H-2  tickless: look again at ``min(next deadline, now + shortest limit)`` (``hang.py``)
    K-2  no rank is signalled before the evidence is concluded: ``TakeEvidence`` precedes
         ``Conclude`` precedes ``SendSignal``
    one verdict per watch; it is dropped where the rank dies or disarms in the meantime
    a monitor that woke late by itself gives the rank the delay back (``base/pure/excuse.py``)
    a learned limit never trips twice at the same value (``learned.TrippedLimits``)

A rank that has left its monitor is watched on, by one clock: its process is expected to end.
"""

from __future__ import annotations

from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.excuse import LATE_S, Excuse, overslept
from holdfast.base.pure.kill_ladder import (
    EVIDENCE_S,
    SIGCONT,
    SIGNALLED,
    STUCK,
    TAKING_EVIDENCE,
    KillLadder,
)
from holdfast.base.pure.value import Value
from holdfast.evidence.pure.evidence import Verdict as JobVerdict
from holdfast.page.pure import clocks
from holdfast.page.pure.clocks import RunningClock, Snapshot, Timeouts
from holdfast.watch.pure import hang
from holdfast.watch.pure.learned import TrippedLimits
from holdfast.watch.pure.steps import StepProgress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

IDLE = "idle"
WATCHING = "watching"

# Why a verdict is dropped
ARMED_ANEW = "was armed anew"  # a layer inside the rank restarted it in place
GOES_ON = "continues: it makes no steps, but nothing proves that it hangs"  # watched by steps alone
HAS_LEFT = "is not monitored any more"

HUNG = "hung"
GRACE_OVER = "grace over"


class PageRead(Value):
    """The page was read; ``snapshot`` is ``None`` when the rank is not armed.

    ``waited_s``: see :meth:`.KillLadder.climb`.
    """

    snapshot: Snapshot | None
    limits: Timeouts
    waited_s: float = 0.0


class EvidenceTaken(Value):
    """All evidence that will come has come. ``is_hang``: a rank without steps is to be ended."""

    is_hang: bool = False


class CollectivesCounted(Value):
    """The rank has said how many there were; see ``steps.StepProgress.counted``."""

    total: int


class RankGone(Value):
    """The rank is dead, or has left its monitor."""


class LookAgain(Value):
    """Read the page once more, now."""


class LookAtState(Value):
    """Look whether the rank is stopped; ``asks``: for its collectives, too."""

    asks: bool


class TakeEvidence(Value):
    """Collect traces of why, until ``EvidenceTaken`` or the instant ``until``."""

    overdue: RunningClock
    until: float


class Conclude(Value):
    """Write the evidence down, before any signal."""


class SendSignal(Value):
    """Send a signal to the rank's process alone; ``why`` is ``HUNG`` or ``GRACE_OVER``."""

    signal: int
    why: str


class Abandon(Value):
    """The verdict is dropped; ``why`` completes "abandoned: the rank ...". Nothing more is sent."""

    why: str


class ReportStuck(Value):
    """SIGKILL did not end the process."""


if TYPE_CHECKING:
    Event: TypeAlias = PageRead | EvidenceTaken | JobVerdict | CollectivesCounted | RankGone
    """``JobVerdict``: on a rank that is watched by its steps."""
    Effect: TypeAlias = (
        LookAgain | LookAtState | TakeEvidence | Conclude | SendSignal | Abandon | ReportStuck
    )


class Watch:
    """Watches one rank at a time; the same object serves every rank and cycle.

    Args:
        signal: Sent on a verdict, after SIGCONT.
        grace_s: Seconds until SIGKILL follows, infinite for never; not used where ``signal`` is
            SIGKILL.
        tripped: Remembers learned limits that tripped; shared by all watches of the monitor.
        exit_s: How long a process may go on after its rank has left; ``None``: for ever.
        evidence_s: How long evidence may take; 0: as by default.
        step_floor_s: Least limit of a rank that is watched by its optimizer's steps.

    Attributes:
        stopping_at: When the launcher asked the rank to end, which it ends after its grace; None:
            it has not.
    """

    def __init__(
        self,
        signal: int,
        grace_s: float,
        tripped: TrippedLimits,
        exit_s: float | None = None,
        evidence_s: float = EVIDENCE_S,
        step_floor_s: float = 0.0,
    ) -> None:
        self.signal = signal
        self.grace_s = grace_s
        self.tripped = tripped
        self.exit_s = exit_s
        self.evidence_s = evidence_s or EVIDENCE_S
        self.progress = StepProgress(step_floor_s)
        self.stopping_at: float | None = None
        self.verdict: RunningClock | None = None
        self._kill: KillLadder | None = None
        self._is_hang = False
        self._judged: JobVerdict | None = None
        self._armed_at: float | None = None
        self._suspect: RunningClock | None = None
        self._excuse: Excuse | None = None
        self._wake_at: float | None = None

    @property
    def state(self) -> str:
        """``IDLE``, ``WATCHING``, or a step of ``kill_ladder``."""
        if self._kill is not None:
            return self._kill.step
        return IDLE if self._armed_at is None else WATCHING

    def next_deadline(self) -> float | None:
        """When to look at the page again at the latest; ``None``: whenever something happens."""
        return self._wake_at if self._kill is None else self._kill.due_at

    def is_late(self, verdict: JobVerdict) -> bool:
        """It says that the job hangs; for want of it, this rank was not ended.

        The rank is found overdue again at once, and the launcher sends the same verdict again.
        """
        return verdict.is_hang and self._kill is None and self.progress.is_given_longer

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in an event; return the effects, in order."""
        if isinstance(event, PageRead):
            return self._looked(event.snapshot, event.limits, event.waited_s, now)
        if isinstance(event, RankGone):
            return self._leave("died or left its monitor")
        if isinstance(event, CollectivesCounted):
            self.progress.counted(event.total, now)
            return []
        if isinstance(event, JobVerdict):
            if self.is_late(event):
                self.progress.proved()
            elif event.is_stall or event.is_pause:
                self._goes_on(event, now)
            elif event.is_hang and self._kill is not None:
                self._is_hang = True  # from now on: a rank that is woken for its stacks may move
            return []
        if self._kill is not None:
            self._is_hang = event.is_hang
            # Not at once: the caller looks first whether the rank is still armed.
            self._kill.evidence_taken(now)
        return []

    def _looked(
        self, snapshot: Snapshot | None, limits: Timeouts, waited_s: float, now: float
    ) -> list[Effect]:
        if snapshot is None:
            return self._leave(HAS_LEFT)
        if snapshot.left_at is not None:
            limits = Timeouts(exit=self.exit_s)
        elif snapshot.steps:
            snapshot, limits = self._with_progress(snapshot, limits)
        effects: list[Effect] = []
        if snapshot.steps and self.progress.is_look_due(now):
            effects += [LookAtState(self.progress.is_question_due(now))]
        if snapshot.armed_at != self._armed_at:
            effects += self._leave(ARMED_ANEW if snapshot.left_at is None else HAS_LEFT)
            self._armed_at = snapshot.armed_at
        if self.verdict is None or self._kill is None:
            return effects + self._judge(snapshot, self.tripped.raised(limits), now)
        if self._has_moved(self.verdict, snapshot):
            return [*effects, *self._leave(GOES_ON), LookAgain()]
        return effects + self._go_on(self.verdict, self._kill, waited_s, now)

    def _has_moved(self, verdict: RunningClock, snapshot: Snapshot) -> bool:
        """A pause that has ended before its verdict needs none; a section may be open by now."""
        is_open = verdict.clock in clocks.OF_STEPS and self.state == TAKING_EVIDENCE
        return is_open and not self._is_hang and snapshot.last_sign_at > verdict.since

    def _judge(self, snapshot: Snapshot, limits: Timeouts, now: float) -> list[Effect]:
        if self.stopping_at is not None:
            snapshot, limits = _while_stopping(snapshot, limits, self.stopping_at)
        self._excuse = overslept(self._wake_at, now, LATE_S) or self._excuse
        found = hang.overdue(snapshot, limits, now, self._excuse)
        if found is None:
            self._suspect = None
            self._wake_at = self._plan(snapshot, limits, now)
            return []
        # Until the second look there is nothing to be late for.
        self._wake_at = now
        if found != self._suspect:
            self._suspect = found
            return [LookAgain()]
        if limits.learned.has(found.clock, found.name):
            self.tripped.tripped(found.clock, found.name, found.limit_s)
        self.verdict, self._kill = found, KillLadder(HUNG, self.signal, self.grace_s)
        return [TakeEvidence(found, self._kill.take_evidence(now, self.evidence_s))]

    def _with_progress(self, snapshot: Snapshot, limits: Timeouts) -> tuple[Snapshot, Timeouts]:
        """Of a rank with steps, as known until now."""
        progress = self.progress
        progress.looked(snapshot)
        limit_s = progress.limit_s(limits.subsequent)
        is_known = progress.is_pause_known
        seen = snapshot.but(stepped_at=progress.sign_at, is_pause_known=is_known)
        return seen, limits.but(steps=limit_s)

    def is_by_steps(self, snapshot: Snapshot | None, limits: Timeouts) -> bool:
        """See :func:`.hang.is_by_steps`; takes in the page."""
        if snapshot is None or not snapshot.steps:
            return False
        return hang.is_by_steps(*self._with_progress(snapshot, limits))

    def _plan(self, snapshot: Snapshot, limits: Timeouts, now: float) -> float | None:
        every = [hang.shortest_limit(limits)]
        if limits.steps is not None:
            # While a timeout that was chosen counts, no look is made for a line of the log.
            is_by_steps = hang.is_by_steps(snapshot, limits)
            every.append(self.progress.every_s if is_by_steps else self.progress.floor_s)
        shortest_s = earliest(*every)
        if shortest_s is None:
            return None
        return earliest(hang.next_deadline(snapshot, limits, self._excuse), now + shortest_s)

    def _go_on(
        self, verdict: RunningClock, kill: KillLadder, waited_s: float, now: float
    ) -> list[Effect]:
        """The rank is still there and armed: take the next step of its verdict, if it is due."""
        step = kill.climb(now, waited_s)
        if step == STUCK:
            return [ReportStuck()]
        if step is None:
            return []
        if verdict.clock in clocks.OF_STEPS and not self._is_hang:
            judged = self._judged or JobVerdict(is_pause=verdict.clock == clocks.PAUSE)
            self.progress.judged(now, judged.again_s, is_pause=judged.is_pause)
            self._leave(GOES_ON)
            written = [] if judged.is_pause else [Conclude()]
            # Or the page would not be read again.
            return [*written, Abandon(GOES_ON), LookAgain()]
        is_first = SIGCONT in kill.signals
        why = HUNG if is_first else GRACE_OVER
        signals = [SendSignal(signal, why) for signal in kill.signals]
        return [Conclude(), *signals] if is_first else [*signals]

    def _goes_on(self, judged: JobVerdict, now: float) -> None:
        if self._kill is None:
            self.progress.judged(now, judged.again_s, is_pause=judged.is_pause)
        else:
            self._judged = judged

    def _leave(self, why: str) -> list[Effect]:
        is_dropped = self.state in (TAKING_EVIDENCE, SIGNALLED)
        self.verdict = self._kill = None
        self._is_hang, self._judged = False, None
        self._armed_at = self._suspect = self._excuse = self._wake_at = None
        return [Abandon(why)] if is_dropped else []


def _while_stopping(
    snapshot: Snapshot, limits: Timeouts, stopping_at: float
) -> tuple[Snapshot, Timeouts]:
    """A rank that was asked to end then: sections that it opens have limits of their own."""
    opened = {name: at for name, at in snapshot.sections.items() if at >= stopping_at}
    seen = Snapshot(**{**vars(snapshot), "sections": opened})
    return seen, Timeouts(sections=limits.sections, learned=limits.learned)
