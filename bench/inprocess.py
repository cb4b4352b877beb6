"""In-process restart: from a fault to every rank in the function again, and to its process group.

All ranks share this machine's cores, so with more of them than cores it is the scheduler that is
measured. Default arguments, gloo; healthy ranks are blocked in an all_reduce when the fault comes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Bar, Report

RESTARTS = 30
KILLS = 3
"""Of one job of four ranks."""
KILL_JOBS = 5
HANGS = 5
SOFT_S = 1.0
"""The limit of a step, as in ``inprocess_rank.py``."""
BOUND_S = 240.0
_BARS_MS = {2: (Bar(20.0),), 4: (), 8: (Bar(60.0),)}

Stamps = dict[tuple[str, int], dict[int, float]]


def measure() -> Report:
    """See the module."""
    report = Report("in-process restart; default arguments, gloo, ranks blocked in all_reduce")
    for n in (2, 4, 8):
        stamps, guard_kib = _run(n, "exception", RESTARTS)
        entered = _after_fault(stamps, "entered", RESTARTS)
        report.add(f"exception, {n} ranks: all in the function again", "ms", entered, *_BARS_MS[n])
        for what, name in (("group", "all have a group"), ("reduced", "first all_reduce")):
            report.add(f"  {n} ranks: {name}", "ms", _after_fault(stamps, what, RESTARTS))
        if n == 2:
            report.add("ping()", "us", list(stamps["ping_us", 0].values()), Bar(1.0))
            report.add("atomic()", "us", list(stamps["atomic_us", 0].values()))
            report.add("empty call", "ms", list(stamps["empty_call_ms", 0].values()))
            report.add("node guard: resident", "MiB", guard_kib / 1024, Bar(25.0))
    jobs = [_run(4, "kill", KILLS)[0] for _ in range(KILL_JOBS)]
    entered, reduced = (
        [ms for job in jobs for ms in _after_fault(job, what, KILLS)]
        for what in ("entered", "reduced")
    )
    report.add("SIGKILL, 4 ranks down to 1: all in the function again", "ms", entered, Bar(60.0))
    report.add("  first all_reduce", "ms", reduced)
    hangs = _after_fault(_run(2, "hang", HANGS)[0], "entered", HANGS)
    over = [ms - SOFT_S * 1e3 for ms in hangs]
    report.add("soft hang, 2 ranks: all in the function again, less the limit", "ms", over)
    return report


def _after_fault(stamps: Stamps, what: str, restarts: int) -> list[float]:
    """Milliseconds from each fault until the last rank said ``what`` in the next iteration."""
    taken = []
    for iteration in range(restarts):
        (fault,) = stamps["fault", iteration].values()
        taken.append((max(stamps[what, iteration + 1].values()) - fault) * 1e3)
    return taken


def _run(n: int, fault: str, restarts: int) -> tuple[Stamps, int]:
    """Run a job to its end; what its ranks stamped, and the memory of its guard in KiB."""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast_bench_") as folder,
        _ranks(n, fault, restarts, Path(folder)) as (ranks, file),
    ):
        guard_kib = 0
        until = time.monotonic() + BOUND_S
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < until:
            guard_kib = max(guard_kib, _guard_kib(str(file)))
            time.sleep(0.5)
        codes = [rank.wait(1) for rank in ranks]
        killed = restarts if fault == "kill" else 0
        if sum(code != 0 for code in codes) != killed:
            raise RuntimeError(f"{n} ranks, {fault}: exit codes {codes}")
        stamps: Stamps = {}
        for line in file.read_text().splitlines():
            what, iteration, born, at = line.split()
            stamps.setdefault((what, int(iteration)), {})[int(born)] = float(at)
        return stamps, guard_kib


@contextlib.contextmanager
def _ranks(
    n: int, fault: str, restarts: int, folder: Path
) -> Iterator[tuple[list[subprocess.Popen[bytes]], Path]]:
    file = folder / "stamps"
    env = {
        **os.environ,
        "WORLD_SIZE": str(n),
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "HOLDFAST_BENCH_STAMPS": str(file),
    }
    script = Path(__file__).with_name("inprocess_rank.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(file), fault, str(restarts)],
            env={**env, "RANK": str(rank)},
            stderr=subprocess.DEVNULL,
        )
        for rank in range(n)
    ]
    try:
        yield ranks, file
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()


def _guard_kib(stamps: str) -> int:
    """Resident memory of the guard of the job with this file of stamps; 0: there is none (yet)."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"guard_main" not in (entry / "cmdline").read_bytes():
                continue
            if stamps.encode() not in (entry / "environ").read_bytes():
                continue
            status = (entry / "status").read_text()
            return int(status.partition("VmRSS:")[2].split()[0])
    return 0
