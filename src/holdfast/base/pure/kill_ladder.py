"""The steps by which a process is ended, and when each is due.

    AT_REST ──► TAKING_EVIDENCE ──taken, or EVIDENCE_S──► SIGNALLED ──grace over──► KILLED ──► STUCK
                                                                       still there after stuck_s

The monitor, the node guard and the launcher decide which ranks end, and from which step on.

    K-2  a ladder has a reason from its beginning; evidence has its time, and no more than that
    each step is taken once, and none is taken back
    a stopped process takes no signal but SIGKILL: SIGCONT goes before the first signal
    a signal that is SIGKILL has no grace; nothing is sent after SIGKILL
    a grace is time in which the process could run: on a busy machine it lasts longer

Pure. Times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

from holdfast.base.pure.excuse import LATE_S, overslept

AT_REST = "at rest"
TAKING_EVIDENCE = "taking evidence"
SIGNALLED = "signalled"
KILLED = "killed"
STUCK = "stuck"

EVIDENCE_S = 1.0
"""How long evidence may take; then the kill goes on regardless."""
_WORTH_IT = 0.01
"""Of a grace: less is not given back."""
LONGEST_GRACE = 10
"""Times a grace may last where the process waits for a processor: its own threads may be too many.
"""
UNKILLABLE_S = 15.0
"""A process that outlives its SIGKILL for this long sits in the kernel (state D)."""

SIGKILL = 9
SIGTERM = 15
SIGCONT = 18
"""Numbers on Linux; importing ``signal`` for three integers costs 2 ms of start-up."""


class KillLadder:
    """The end of one process, or of several that are ended together.

    Args:
        why: The reason, for logs and reports.
        signal: The first signal.
        grace_s: Seconds from there to SIGKILL; not used where ``signal`` is SIGKILL.
        stuck_s: Seconds from SIGKILL until a process that is still there is stuck.
        looks: How often the caller comes until then. One that comes once may have slept until just
            before that, when it is not late, and the process has had no time to die.

    Attributes:
        step: Where it is.
        signals: Sent in this step, in order.
        due_at: When the next step, or look, is due; None: never.
    """

    __slots__ = (
        "_given_s",
        "_has_waited",
        "_looks_left",
        "due_at",
        "grace_s",
        "looks",
        "signal",
        "signals",
        "step",
        "stuck_s",
        "why",
    )

    def __init__(
        self, why: str, signal: int, grace_s: float, stuck_s: float = UNKILLABLE_S, looks: int = 1
    ) -> None:
        self.why = why
        self.signal = signal
        self.grace_s = grace_s
        self.stuck_s = stuck_s
        self.looks = looks
        self.step = AT_REST
        self.signals: tuple[int, ...] = ()
        self.due_at: float | None = None
        self._has_waited = False  # longer, once, because its caller slept in this step
        self._given_s = 0.0
        self._looks_left = looks

    @property
    def is_killed(self) -> bool:
        """It has come to SIGKILL."""
        return self.step in (KILLED, STUCK)

    def take_evidence(self, now: float, within_s: float = EVIDENCE_S) -> float:
        """Begin with evidence; until when it may take."""
        self.step, self.due_at = TAKING_EVIDENCE, now + within_s
        return self.due_at

    def evidence_taken(self, now: float) -> None:
        """All evidence that will come has come: the signal is due."""
        if self.step == TAKING_EVIDENCE:
            self.due_at = now

    def send(self, now: float) -> None:
        """Take the step of the first signal, with evidence or with none."""
        if self.signal == SIGKILL:
            self.kill(now)
        elif self.step in (AT_REST, TAKING_EVIDENCE):
            self.step, self.signals = SIGNALLED, (SIGCONT, self.signal)
            self.due_at, self._has_waited, self._given_s = now + self.grace_s, False, 0.0

    def shorten(self, now: float, grace_s: float) -> None:
        """Whoever has the signal gets no more than ``grace_s`` from now on."""
        if self.step == SIGNALLED and self.due_at is not None:
            self.due_at, self.grace_s = min(self.due_at, now + grace_s), min(self.grace_s, grace_s)

    def kill(self, now: float) -> None:
        """Take the step of SIGKILL, whatever it was waiting for."""
        if not self.is_killed:
            self.signals = (SIGKILL,) if self.step == SIGNALLED else (SIGCONT, SIGKILL)
            self.step, self._has_waited = KILLED, False
            self._look_after(now)

    def is_grace_over(self, now: float) -> bool:
        """SIGKILL is the next step, and due."""
        return self.step == SIGNALLED and self.due_at is not None and now >= self.due_at

    def climb(self, now: float, waited_s: float = 0.0) -> str | None:
        """Take the next step if it is due; which one that is.

        A caller that slept gives whom it ends that time, for they may have slept, too.

        Args:
            now: The time.
            waited_s: For how long the process was ready to run since the first signal, and had no
                processor.
        """
        if self.due_at is None or now < self.due_at:
            return None
        if self.step == SIGNALLED:
            waited_s = min(waited_s, (LONGEST_GRACE - 1) * self.grace_s)
            if waited_s - self._given_s > _WORTH_IT * self.grace_s:
                self.due_at += waited_s - self._given_s
                self._given_s = waited_s
                if now < self.due_at:
                    return None
        excuse = overslept(self.due_at, now, LATE_S)
        if self.step == KILLED and self._looks_left:
            self._look_after(self.due_at if excuse is None else now)
            return None
        if excuse is not None and self.step in (SIGNALLED, KILLED) and not self._has_waited:
            self._has_waited = True
            limit_s = self.grace_s if self.step == SIGNALLED else self.stuck_s
            self.due_at = excuse.extend(self.due_at, limit_s)
            return None
        if self.step == TAKING_EVIDENCE:
            self.send(now)
        elif self.step == SIGNALLED:
            self.kill(now)
        else:
            self.step, self.signals, self.due_at = STUCK, (), None
        return self.step

    def _look_after(self, at: float) -> None:
        self._looks_left, self.due_at = self._looks_left - 1, at + self.stuck_s / self.looks
