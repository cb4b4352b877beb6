"""From the launcher's start to the user's first line, and from the last rank's end to its exit."""

from __future__ import annotations

import time

from bench.figures import Bar, Report
from bench.processes import BOTH, BOUND_S, HOLDFAST, TORCHRUN, launch

LAUNCHES = 10
RANKS = 2
_SCRIPT = """
import random
time.sleep(random.uniform(0, 0.2))  # ends come at any moment of a launcher's polling
stamp("end")
os._exit(0)
"""


def _once(kind: str) -> tuple[float, float]:
    """Milliseconds to the first line of all ranks, and from the end of all to the exit."""
    with launch(kind, _SCRIPT, f"--nproc-per-node={RANKS}") as launched:
        exit_code = launched.process.wait(BOUND_S)
        exited_at = time.monotonic()
        assert exit_code == 0, launched.console_tail()
        first_at = max(stamp.at for stamp in launched.stamps("first"))
        end_at = max(stamp.at for stamp in launched.stamps("end"))
    return (first_at - launched.started_at) * 1e3, (exited_at - end_at) * 1e3


def measure(launches: int = LAUNCHES) -> Report:
    """Ours and torchrun in turn."""
    start: dict[str, list[float]] = {kind: [] for kind in BOTH}
    leave: dict[str, list[float]] = {kind: [] for kind in BOTH}
    for _ in range(launches):
        for kind in BOTH:
            start_ms, leave_ms = _once(kind)
            start[kind].append(start_ms)
            leave[kind].append(leave_ms)

    report = Report(f"{RANKS} ranks of plain Python, {launches} launches in turn with torchrun")
    for kind in BOTH:
        report.add(f"{kind}: start to first line of all ranks", "ms", start[kind])
    report.add_ratio("faster", start[TORCHRUN], start[HOLDFAST], Bar(8, at_least=True))
    for kind in BOTH:
        report.add(f"{kind}: last rank's end to exit", "ms", leave[kind])
    report.add_ratio("faster", leave[TORCHRUN], leave[HOLDFAST], Bar(8, at_least=True))
    return report
