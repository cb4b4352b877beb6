"""From SIGKILL of a rank to torch imported and a process group ready on all new ranks.

Warm standby against a plain start of ours and against torchrun, in turn. To count restarts of warm
standby alone: ``python -m bench.warm --restarts 100``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import time

from bench.figures import Bar, Report, table
from bench.processes import (
    HOLDFAST,
    TORCHRUN_ALONE,
    TRAINERS_BIN,
    WARM,
    WARM_TRAINERS,
    BenchError,
    Launch,
    Stamp,
    launch,
)

KINDS = (WARM, HOLDFAST, TORCHRUN_ALONE)
SIZES = (2, 4)
RESTARTS = 5
PAUSE_S_MAX = 0.3
"""Before each fault: it must not come at the same moment of a launcher's polling every time."""
BOUND_S = 20.0
"""A restart whose ranks have no group after this long has failed."""

_SCRIPT = """
import torch
stamp("imported")
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
stamp("ready")
while True:
    signal.pause()
"""


_TRAINERS_SCRIPT = f"import tqdm, transformers, lightning\n{_SCRIPT}"


class _Job:
    """A launcher, and the ranks that have a group now."""

    def __init__(self, kind: str, ranks: int, launched: Launch) -> None:
        self.kind = kind
        self._ranks = ranks
        self._launched = launched
        self.ready = launched.wait_for_all("ready", ranks, 0)

    def await_standby(self) -> None:
        """Until its parked processes are ready, where it has any."""
        if self.kind in (WARM, WARM_TRAINERS):
            self._launched.wait_for_words("ranks can restart without importing", self.cycle + 1)

    @property
    def cycle(self) -> int:
        """The number of the cycle that has a group."""
        return self.ready[0].cycle

    def restart(self) -> tuple[float, float]:
        """Kill a rank; seconds until all ranks of a later cycle have torch, and a group.

        Raises:
            BenchError: They have no group within the bound.
        """
        self.await_standby()
        time.sleep(random.uniform(0, PAUSE_S_MAX))
        victim, before = self.ready[self.cycle % self._ranks], self.cycle
        killed_at = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)

        def all_ready() -> list[Stamp] | bool:
            stamps = [each for each in self._launched.stamps("ready") if each.cycle > before]
            found = [each for each in stamps if each.cycle == stamps[-1].cycle]
            return len(found) == self._ranks and found

        self.ready = self._launched.wait_for(all_ready, "a group after a restart", BOUND_S)
        imported = self._launched.stamps("imported", self.cycle)
        at = max(stamp.at for stamp in imported), max(stamp.at for stamp in self.ready)
        return at[0] - killed_at, at[1] - killed_at


def _measure(report: Report, ranks: int, restarts: int) -> None:
    imported: dict[str, dict[int, float]] = {kind: {} for kind in KINDS}
    grouped: dict[str, dict[int, float]] = {kind: {} for kind in KINDS}
    lost_cycles = dict.fromkeys(KINDS, 0)
    jobs: dict[str, _Job] = {}
    arguments = f"--nproc-per-node={ranks}", "--max-restarts=1000"
    with contextlib.ExitStack() as stack:
        for number in range(restarts):
            for kind in KINDS:
                if kind not in jobs:
                    launched = stack.enter_context(launch(kind, _SCRIPT, *arguments))
                    jobs[kind] = _Job(kind, ranks, launched)
                job = jobs.pop(kind)
                before = job.cycle
                try:
                    times = job.restart()
                except BenchError:
                    job._launched.end()  # noqa: SLF001 - the next is tried with a fresh launcher
                    continue
                imported[kind][number], grouped[kind][number] = times
                lost_cycles[kind] += job.cycle - before - 1
                job.await_standby()  # its imports must not disturb the others
                jobs[kind] = job
    for what, taken in ("torch imported", imported), ("gloo group", grouped):
        for kind in KINDS:
            name = f"{ranks} ranks, {kind}: SIGKILL to {what} in all"
            report.add(name, "ms", [seconds * 1e3 for seconds in taken[kind].values()])
    for kind in KINDS:
        failed = restarts - len(grouped[kind])
        report.add(f"{ranks} ranks, {kind}: no group within {BOUND_S:g} s", f"/{restarts}", failed)
        report.add(f"{ranks} ranks, {kind}: further cycles lost", "", lost_cycles[kind])
    for other, bars in (HOLDFAST, ()), (TORCHRUN_ALONE, (Bar(10, at_least=True),)):
        worked = [number for number in grouped[other] if number in grouped[WARM]]
        theirs, ours = ([grouped[kind][number] for number in worked] for kind in (other, WARM))
        name = f"{ranks} ranks, group faster than {other}"
        report.add_ratio(name, theirs, ours, *(bars if worked else ()))


def measure(sizes: tuple[int, ...] = SIZES, restarts: int = RESTARTS) -> Report:
    """All three, a fault in each in turn."""
    report = Report(f"SIGKILL of a rank that has torch and a gloo group; {restarts} of each")
    for ranks in sizes:
        _measure(report, ranks, restarts)
    _measure_trainers(report, restarts)
    report.notes.append(
        "torchrun's figures are of the restarts that it finished, with the setting that lets most "
        "of them work (see restart for the usual one); parked processes were ready"
    )
    return report


def _measure_trainers(report: Report, restarts: int) -> None:
    """The bare environment and one with the big trainers' libraries, a fault in each in turn."""
    if not (TRAINERS_BIN / "ft_launcher").exists():
        report.notes.append("transformers and Lightning: not measured (first: make trainers)")
        return
    taken: dict[str, list[float]] = {WARM: [], WARM_TRAINERS: []}
    with contextlib.ExitStack() as stack:
        jobs = {}
        for kind, script in ((WARM, _SCRIPT), (WARM_TRAINERS, _TRAINERS_SCRIPT)):
            launched = stack.enter_context(
                launch(kind, script, "--nproc-per-node=2", f"--max-restarts={restarts}")
            )
            jobs[kind] = _Job(kind, 2, launched)
        for _ in range(restarts):
            for kind, job in jobs.items():
                for other in jobs.values():
                    other.await_standby()  # its imports must not disturb this one
                taken[kind].append(job.restart()[1])
        warm, started = jobs[WARM_TRAINERS]._launched.count_warm_starts()  # noqa: SLF001
    report.add(f"{WARM_TRAINERS}: ranks that were not started warm", "", started - warm, Bar(0))
    for kind, times in taken.items():
        report.add(
            f"in turn, 2 ranks, {kind}: SIGKILL to gloo group", "ms", [t * 1e3 for t in times]
        )
    report.add_ratio(
        "2 ranks, gloo group: slower beside transformers and Lightning",
        taken[WARM_TRAINERS],
        taken[WARM],
        Bar(1.5),
    )


def count(restarts: int, ranks: int) -> Report:
    """Restarts of warm standby alone, one after the other in one job."""
    report = Report(f"{restarts} warm restarts of {ranks} ranks in one job")
    times, lost = [], 0
    with launch(WARM, _SCRIPT, f"--nproc-per-node={ranks}", f"--max-restarts={restarts}") as job:
        running = _Job(WARM, ranks, job)
        for _ in range(restarts):
            before = running.cycle
            times.append(running.restart()[1] * 1e3)
            lost += running.cycle - before - 1
        warm, started = job.count_warm_starts()
    report.add("SIGKILL to gloo group of all", "ms", times)
    report.add("restarts that needed another one", f"/{restarts}", lost, Bar(0))
    report.add("ranks that were not started warm", f"/{started}", started - warm, Bar(0))
    return report


def _main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.warm", description=__doc__)
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--nproc", type=int, default=2)
    parsed = parser.parse_args(arguments)
    report = count(parsed.restarts, parsed.nproc)
    print(table("warm", report))
    return 0 if report.is_met else 1


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
