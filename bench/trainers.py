"""From SIGKILL of a rank to the next training step of all, in scripts of the big trainers.

Those of which the package is installed: ``make trainers`` installs them all. Warm standby against a
plain start of ours and against torchrun, in turn, each in a job of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from importlib.util import find_spec

from bench.figures import Report
from bench.processes import HOLDFAST, TORCHRUN_ALONE, WARM, BenchError, Launch, Stamp, launch
from bench.trainer_scripts import SCRIPTS

KINDS = (WARM, HOLDFAST, TORCHRUN_ALONE)
RANKS = 2
RESTARTS = 3
STEPS_BEFORE = 30
"""More than the interval between checkpoints: there is one to go on from."""
BOUND_S = 120.0


class _Job:
    """A training under a launcher."""

    def __init__(self, kind: str, launched: Launch) -> None:
        self._kind = kind
        self._launched = launched
        self._cycle = 0
        self._steps()

    def restart(self) -> float:
        """Kill a rank; seconds until all ranks have made a step again.

        Raises:
            BenchError: They have not within the bound.
        """
        if self._kind == WARM:
            words = "ranks can restart without importing"
            self._launched.wait_for_words(words, self._cycle + 1, BOUND_S)
        steps = self._launched.stamps("step", self._cycle)
        victim = next(step.pid for step in reversed(steps) if step.rank == RANKS - 1)
        before, killed_at = self._cycle, time.monotonic()
        os.kill(victim, signal.SIGKILL)

        def all_ranks() -> list[Stamp] | bool:
            later = [step for step in self._launched.stamps("step") if step.cycle > before]
            if not later:
                return False
            last = max(step.cycle for step in later)
            first = {s.rank: s for s in reversed(later) if s.cycle == last}
            return len(first) == RANKS and list(first.values())

        found = self._launched.wait_for(all_ranks, "a step after a restart", BOUND_S)
        self._cycle = found[0].cycle
        self._steps()
        return max(step.at for step in found) - killed_at

    def _steps(self) -> None:
        wanted = RANKS * STEPS_BEFORE
        self._launched.wait_for_all("step", wanted, self._cycle, BOUND_S)


def _measure(report: Report, name: str, script: str, restarts: int) -> None:
    taken: dict[str, list[float]] = {}
    for kind in KINDS:
        times = taken[kind] = []
        arguments = f"--nproc-per-node={RANKS}", "--max-restarts=1000"
        with launch(kind, script, *arguments) as launched, contextlib.suppress(BenchError):
            job = _Job(kind, launched)
            for _ in range(restarts):
                times.append(job.restart())  # noqa: PERF401 - those before a failure count
        report.add(f"{name}, {kind}: SIGKILL to the next step of all", "s", times)
        report.add(
            f"{name}, {kind}: no step again within {BOUND_S:g} s",
            f"/{restarts}",
            restarts - len(times),
        )
    report.add_ratio(f"{name}: faster than a plain start", taken[HOLDFAST], taken[WARM])


def measure(restarts: int = RESTARTS) -> Report:
    """All that are installed."""
    report = Report(f"{RANKS} ranks, a checkpoint every 20 steps; {restarts} faults of each")
    for name, (package, script) in SCRIPTS.items():
        if find_spec(package) is None:
            report.notes.append(f"{name}: {package} is not installed (make trainers)")
        else:
            _measure(report, name, script, restarts)
    return report
