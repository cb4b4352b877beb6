"""Whether a job can use warm standby, by parking one interpreter as its launcher would.

The script is read and its libraries are imported; it does not run.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping

from holdfast.base import clock
from holdfast.base.processes import child
from holdfast.health.pure.health import Finding, Fitness
from holdfast.net.loop import Loop
from holdfast.node.processes.worker_env import rank_env, unplaced
from holdfast.options.plan import LaunchPlan, WarmStandby
from holdfast.standby.pure.parked_interpreters import PREPARE_LIMIT_S
from holdfast.standby.standbys import LOGGER, Standbys

BOUND_S = 60.0
"""A launcher waits longer; a person who asks the doctor does not."""


def findings(plan: LaunchPlan, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Whether ranks will restart from parked interpreters, and which modules are left out."""
    if plan.warm is None:
        why = plan.why_cold or "there are no restarts, or it was switched off"
        yield _finding(Fitness.HEALTHY, f"off: {why}")
        return
    lines = _Lines()
    LOGGER.addHandler(lines)
    propagates, level = LOGGER.propagate, LOGGER.level
    LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)
    try:
        verdict, text = _try(plan, plan.warm, environ)
    except OSError as error:
        verdict, text = Fitness.UNKNOWN, f"a trial failed: {error}"
    finally:
        LOGGER.removeHandler(lines)
        LOGGER.propagate = propagates
        LOGGER.setLevel(level)
    yield _finding(verdict, text)
    for line in lines.texts:
        yield _finding(Fitness.SUSPECT, line)


def _try(plan: LaunchPlan, warm: WarmStandby, environ: Mapping[str, str]) -> tuple[Fitness, str]:
    def like(local_rank: int) -> tuple[list[str], dict[str, str], None]:
        place = unplaced(local_rank, plan.nproc_per_node)
        return plan.command_for(local_rank), rank_env(plan, place, environ, "", None), None

    began_at = clock.monotonic()
    with tempfile.TemporaryDirectory() as folder, Loop() as loop:
        job = f"{os.getpid()}-doctor"
        tie, hook = child.death_tie(), plan.start_hook
        standbys = _Trial(warm, 1, loop, tie, job, folder, like, start_hook=hook)

        def reap(_signum: int) -> None:
            for reaped in child.reap(standbys.pids()):
                standbys.died(reaped)

        loop.on_signals([signal.SIGCHLD], reap)
        standbys.begin()
        while not standbys.machine.is_settled and clock.monotonic() < began_at + BOUND_S:
            due = min(standbys.next_deadline() or began_at + BOUND_S, began_at + BOUND_S)
            loop.wait(max(0.0, due - clock.monotonic()))
            standbys.on_time()
        took_s = clock.monotonic() - began_at
        standbys.end()
        for pid in standbys.pids():
            os.waitpid(pid, 0)
    decided = standbys.machine
    if decided.given_up:
        return Fitness.SUSPECT, f"off: {decided.given_up}"
    if not decided.is_settled:
        text = (
            f"a parked process was not ready after {BOUND_S:g} s; a launcher waits for "
            f"{PREPARE_LIMIT_S:g} s, and starts ranks plainly until then"
        )
        return Fitness.UNKNOWN, text
    if not decided.memory_kib:
        return Fitness.SUSPECT, "off for now"
    text = (
        f"on: a trial with this script was ready after {took_s:.1f} s and takes "
        f"{decided.memory_kib >> 10} MiB; all of this node may take {warm.memory_mib_max} MiB"
    )
    if assumed := decided.assumed(0):
        names = ", ".join(sorted(assumed))
        text += f". Its libraries read {names}: a rank for which that changes is started plainly"
    return Fitness.HEALTHY, text


def _finding(verdict: Fitness, text: str) -> Finding:
    return Finding("configuration", "warm standby", verdict, text)


class _Trial(Standbys):
    """Parked interpreters whose success is the finding, and no line of the log."""

    def log_all_parked(self, ranks: int, memory_kib: int) -> None:
        """Log nothing."""


class _Lines(logging.Handler):
    """Lines that a launcher would log."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.texts.append(record.getMessage())
