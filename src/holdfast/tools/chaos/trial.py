"""Decide when each fault of a schedule comes, and its result. Pure.

    WAITING ──► PAUSING ──► STRIKING ──► RECOVERING ──► PAUSING ...
    all ranks    its pause    the rank     all ranks of a later
    have made    is over      has it       cycle have made a step
    a step                                    │ in vain
                                              ▼
                                           STOPPING ──► WAITING, of the same job started again

Instants are seconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.tools.chaos.schedule import ScheduledFault

STRIKE_LIMIT_S = 30.0
"""A rank that has not carried out its order by then is left alone: it does not run Python code."""
NO_EFFECT_S = 10.0
"""A rank that still makes steps so long after its fault has survived it."""


@dataclass(frozen=True)
class Steps:
    """Steps of the training that one rank has made in one cycle.

    Attributes:
        first_at: When the first one ended; ``None``: there is none.
        first: Its number, counted over restarts; ``None``: not known.
    """

    pid: int
    first_at: float | None = None
    first: int | None = None
    last_at: float | None = None
    last: int | None = None


@dataclass(frozen=True)
class Struck:
    """A rank has got its fault, or says why it cannot have it."""

    at: float
    refusal: str = ""


@dataclass(frozen=True)
class JobSeen:
    """A job at one instant.

    Attributes:
        cycles: Steps by rank, of the newest cycle with all ranks started, and of the one that the
            last :class:`Strike` met.
        struck: Result of the last :class:`Strike`.
        exit_code: Of the launcher; ``None``: it runs.
    """

    cycles: Mapping[int, Mapping[int, Steps]]
    struck: Struck | None = None
    exit_code: int | None = None

    @property
    def cycle(self) -> int:
        """The newest; -1 before the first."""
        return max(self.cycles, default=-1)

    @property
    def trains_since(self) -> float | None:
        """When the last rank of the newest cycle had made its first step."""
        firsts = [steps.first_at for steps in self.cycles.get(self.cycle, {}).values()]
        known = [at for at in firsts if at is not None]
        return max(known) if known and len(known) == len(firsts) else None


# ---------------------------------------------------------------- effects
@dataclass(frozen=True)
class Launch:
    """Start the job."""


@dataclass(frozen=True)
class Strike:
    """Inject a fault into a process."""

    planned: ScheduledFault
    pid: int


@dataclass(frozen=True)
class StopJob:
    """End the job, and all processes of it."""


@dataclass(frozen=True)
class TrialOver:
    """There is nothing more to do; the job has ended."""


Effect = Launch | Strike | StopJob | TrialOver


class Result(enum.Enum):
    """Result of a fault."""

    RECOVERED = "recovered"
    NOT_RECOVERED = "not recovered"
    NO_EFFECT = "no effect"
    NOT_INJECTED = "not injected"


@dataclass(frozen=True)
class FaultOutcome:
    """One fault, and what followed.

    Attributes:
        number: Of the fault, from 1.
        launch: How often the job had been started, from 1.
        step: Steps done before it; ``None``: not known.
        steps_lost: Steps that were done and had to be done again; ``None``: not known.
    """

    number: int
    planned: ScheduledFault
    launch: int
    cycle: int
    pid: int
    struck_at: float = 0.0
    step: int | None = None
    result: Result = Result.NOT_RECOVERED
    why: str = ""
    recovered_at: float | None = None
    steps_lost: int | None = None
    restarts: int = 0

    @property
    def recovered_after_s(self) -> float | None:
        """Seconds from the fault to the next step of all ranks."""
        return None if self.recovered_at is None else self.recovered_at - self.struck_at


class TrialState(enum.Enum):
    """Where a trial stands."""

    WAITING = "waiting"
    PAUSING = "pausing"
    STRIKING = "striking"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    FINISHED = "finished"


@dataclass
class Trial:
    """All faults of one schedule in one job.

    Args:
        plan: The faults.
        start_timeout_s: The job must have made its first step by then.
        recovery_timeout_s: And the next step after a fault.

    Attributes:
        trouble: Why the trial ended early; empty: it did not.
        unplanned: Restarts that no fault had caused.
    """

    plan: Sequence[ScheduledFault]
    start_timeout_s: float
    recovery_timeout_s: float
    outcomes: list[FaultOutcome] = field(default_factory=list)
    trouble: str = ""
    unplanned: int = 0
    _state: TrialState = TrialState.WAITING
    _since: float = 0.0
    _launches: int = 0
    _cycle: int = -1
    _due: float = 0.0
    _open: FaultOutcome | None = None
    _has_trained: bool = False

    def begin(self, now: float) -> list[Effect]:
        """Before the first event."""
        return self._launch(now)

    def end(self, why: str) -> list[Effect]:
        """Stop early, because the user asks for it."""
        self.trouble = self.trouble or why
        return self._stop()

    def look(self, seen: JobSeen, now: float) -> list[Effect]:
        """Something may have changed."""
        if self._state is TrialState.FINISHED:
            return []
        if seen.exit_code is not None:
            return self._ended(seen, seen.exit_code, now)
        match self._state:
            case TrialState.WAITING:
                return self._wait(seen, now)
            case TrialState.PAUSING:
                return self._pause(seen, now)
            case TrialState.STRIKING:
                return self._strike(seen, now)
            case TrialState.RECOVERING:
                return self._recover(seen, now)
        return []

    # ------------------------------------------------------------ states
    def _wait(self, seen: JobSeen, now: float) -> list[Effect]:
        if seen.trains_since is not None:
            return self._train(seen, now)
        if now - self._since > self.start_timeout_s:
            self.trouble = f"not all ranks have made a step within {self.start_timeout_s:g} s"
            return self._stop()
        return []

    def _train(self, seen: JobSeen, now: float) -> list[Effect]:
        """All ranks make steps: the next fault has its pause."""
        self._cycle, self._has_trained = seen.cycle, True
        if len(self.outcomes) == len(self.plan):
            return self._stop()
        self._state = TrialState.PAUSING
        self._due = now + self.plan[len(self.outcomes)].pause_s
        return []

    def _pause(self, seen: JobSeen, now: float) -> list[Effect]:
        if seen.cycle != self._cycle:
            self.unplanned += seen.cycle - self._cycle
            self._state, self._since, self._cycle = TrialState.WAITING, now, seen.cycle
            return []
        if now < self._due:
            return []
        number = len(self.outcomes)
        planned = self.plan[number]
        pid = seen.cycles[seen.cycle][planned.rank].pid
        self._open = FaultOutcome(number + 1, planned, self._launches, seen.cycle, pid)
        self._state, self._since = TrialState.STRIKING, now
        return [Strike(planned, pid)]

    def _strike(self, seen: JobSeen, now: float) -> list[Effect]:
        assert self._open is not None
        if seen.struck is not None:
            if seen.struck.refusal:
                return self._close(seen, now, Result.NOT_INJECTED, seen.struck.refusal)
            self._open = replace(self._open, struck_at=seen.struck.at)
            self._state, self._since = TrialState.RECOVERING, now
            return self._recover(seen, now)
        if seen.cycle != self._open.cycle:
            self.unplanned += 1
            return self._close(seen, now, Result.NOT_INJECTED, "the cycle ended before the fault")
        if now - self._since > STRIKE_LIMIT_S:
            why = f"its main thread has run no Python code for {STRIKE_LIMIT_S:g} s"
            return self._close(seen, now, Result.NOT_INJECTED, why)
        return []

    def _recover(self, seen: JobSeen, now: float) -> list[Effect]:
        fault = self._open
        assert fault is not None
        if seen.cycle > fault.cycle and seen.trains_since is not None:
            before, after = seen.cycles.get(fault.cycle, {}), seen.cycles[seen.cycle]
            lasts = {rank: steps.last for rank, steps in before.items() if steps.last is not None}
            lost = [
                last - (first - 1)
                for rank, last in lasts.items()
                if (first := after[rank].first) is not None
            ]
            self._open = replace(
                fault,
                step=max(lasts.values(), default=None),
                recovered_at=seen.trains_since,
                steps_lost=max(lost, default=None),
                restarts=seen.cycle - fault.cycle,
            )
            return self._close(seen, now, Result.RECOVERED)
        if seen.cycle == fault.cycle:
            last_at = seen.cycles[fault.cycle][fault.planned.rank].last_at or 0.0
            if last_at - fault.struck_at > NO_EFFECT_S:
                return self._close(seen, now, Result.NO_EFFECT, "the rank trains on")
        if now - self._since > self.recovery_timeout_s:
            why = f"not all ranks have made a step within {self.recovery_timeout_s:g} s"
            self._settle(Result.NOT_RECOVERED, why)
            return self._stop()
        return []

    def _close(self, seen: JobSeen, now: float, result: Result, why: str = "") -> list[Effect]:
        """The fault is over, and the job still runs."""
        self._settle(result, why)
        self._state, self._since = TrialState.WAITING, now
        return self._wait(seen, now)

    def _settle(self, result: Result, why: str = "") -> None:
        assert self._open is not None
        self.outcomes.append(replace(self._open, result=result, why=why))
        self._open = None

    # ------------------------------------------------------------ the job begins and ends
    def _launch(self, now: float) -> list[Effect]:
        self._launches += 1
        self._state, self._since, self._cycle = TrialState.WAITING, now, -1
        self._has_trained = False
        return [Launch()]

    def _stop(self) -> list[Effect]:
        self._state = TrialState.STOPPING
        return [StopJob()]

    def _ended(self, seen: JobSeen, exit_code: int, now: float) -> list[Effect]:
        if self._state is not TrialState.STOPPING:
            self._note_end(seen.struck, exit_code)
        if not self.trouble and len(self.outcomes) < len(self.plan):
            return self._launch(now)
        self._state = TrialState.FINISHED
        return [TrialOver()]

    def _note_end(self, struck: Struck | None, exit_code: int) -> None:
        why = f"the launcher exited with code {exit_code}"
        if self._open is not None and struck is not None and not struck.refusal:
            self._open = replace(self._open, struck_at=struck.at)
            self._settle(Result.NOT_RECOVERED, why)
        elif self._open is not None:
            self._settle(Result.NOT_INJECTED, why)
        elif not self._has_trained:
            self.trouble = f"{why} before all of its ranks had made a step"
        if exit_code == 0:
            self.trouble = "the training is complete; give it more steps to do"
