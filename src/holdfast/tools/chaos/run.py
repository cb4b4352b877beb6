"""Carry a trial out: one loop, which looks at the job fifty times a second."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from holdfast.base import clock
from holdfast.base.processes import reaper
from holdfast.net.loop import Loop
from holdfast.tools.chaos.explanation import Explanation
from holdfast.tools.chaos.job import GRACE_S, Job, Setup
from holdfast.tools.chaos.scorecard import Score
from holdfast.tools.chaos.trial import (
    Effect,
    FaultOutcome,
    Launch,
    Result,
    StopJob,
    Strike,
    Trial,
    TrialOver,
)

LOOK_S = 0.02
"""Between two looks. Instants of steps and faults are stamped by the ranks themselves."""
_SETTLE_S = 0.3
"""A launcher writes events and incidents within this time after its ranks make steps again."""


class TrialRun:
    """One trial under one launcher."""

    def __init__(self, setup: Setup, trial: Trial, on_line: Callable[[str], object]) -> None:
        self._setup = setup
        self._trial = trial
        self._on_line = on_line
        self._job: Job | None = None
        self._loop: Loop | None = None
        self._kill_at: float | None = None
        self.scores: list[Score] = []
        self.was_interrupted = False

    def go(self) -> None:
        """Until all faults are done, or the user stops it; no process stays.

        Raises:
            OSError: The command cannot be started.
        """
        try:
            with Loop() as self._loop:
                self._loop.on_signals(
                    (signal.SIGHUP, signal.SIGINT, signal.SIGTERM), self._interrupt
                )
                self._act(self._trial.begin(clock.monotonic()))
                self._loop.run(lambda: clock.monotonic() + LOOK_S, self._look)
        finally:
            self._end_job()

    def _interrupt(self, _signum: int) -> None:
        if self.was_interrupted:  # the user has no patience
            self._kill_at = clock.monotonic()
            return
        self.was_interrupted = True
        self._on_line("interrupted: ending the job; again to kill it at once")
        self._act(self._trial.end("interrupted"))

    def _look(self) -> None:
        assert self._job is not None
        now = clock.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._end_job()
            self._kill_at = None
        seen = self._job.look()
        effects = self._trial.look(seen, now)
        self._score(now, is_over=bool(effects))
        self._act(effects)

    def _score(self, now: float, *, is_over: bool) -> None:
        """Read the explanation of each fault, when it has had the time to be written."""
        job = self._job
        assert job is not None
        for outcome in self._trial.outcomes[len(self.scores) :]:
            job.withdraw()
            ended_at = outcome.recovered_at or now
            if not is_over and now < ended_at + _SETTLE_S:
                return
            self.scores.append(Score(outcome, _explanation(job, outcome)))
            self._on_line(self.scores[-1].line(len(self._trial.plan)))

    def _act(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Launch():
                    self._end_job()
                    self._job = Job(self._setup)
                case Strike(planned, pid):
                    assert self._job is not None
                    self._job.strike(planned.fault, pid)
                case StopJob():
                    assert self._job is not None
                    self._job.ask_to_end()
                    self._kill_at = clock.monotonic() + GRACE_S
                case TrialOver():
                    assert self._loop is not None
                    self._loop.stop()

    def _end_job(self) -> None:
        if self._job is not None and (left := self._job.kill()):
            self._on_line(f"not ended by SIGKILL: {reaper.describe(left)}")
        self._kill_at = None


def _explanation(job: Job, outcome: FaultOutcome) -> Explanation:
    if outcome.result in (Result.NO_EFFECT, Result.NOT_INJECTED):
        return Explanation()
    return job.explain(outcome.cycle)
