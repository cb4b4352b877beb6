"""From the end of one rank to the first line of all new ranks, and to their process group."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time

from bench.figures import Bar, Report
from bench.processes import BOTH, HOLDFAST, TORCHRUN, BenchError, Launch, Stamp, launch

RANKS = 2
RESTARTS = 15
GLOO_RESTARTS = 4
PAUSE_S_MAX = 0.3
"""Before each fault: it must not come at the same moment of a launcher's polling every time."""
GLOO_BOUND_S = 20.0
"""A restart whose ranks have no group after this long has failed."""

_SCRIPT = """
def leave(*_):
    stamp("end")
    sys.exit(1)
signal.signal(signal.SIGUSR1, leave)
stamp("ready")
while True:
    signal.pause()
"""
_GLOO_SCRIPT = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
stamp("ready")
while True:
    signal.pause()
"""


def _kill(victim: Stamp) -> float:
    killed_at = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    return killed_at


def _raise(launched: Launch, victim: Stamp) -> float:
    os.kill(victim.pid, signal.SIGUSR1)
    return launched.wait_for_all("end", 1, victim.cycle)[0].at


def _restart_ms(launched: Launch, cycle: int, fault: str) -> float:
    """End one rank of ``cycle``; milliseconds to the first line of all ranks of the next."""
    ranks = launched.wait_for_all("ready", RANKS, cycle)
    victim = next(stamp for stamp in ranks if stamp.rank == cycle // 2 % RANKS)
    time.sleep(random.uniform(0, PAUSE_S_MAX))
    ended_at = _kill(victim) if fault == "kill" else _raise(launched, victim)
    firsts = launched.wait_for_all("first", RANKS, cycle + 1)
    return (max(stamp.at for stamp in firsts) - ended_at) * 1e3


def _plain(report: Report, restarts: int) -> None:
    faults = {"kill": "SIGKILL", "exit": "sys.exit(1)"}
    taken: dict[tuple[str, str], list[float]] = {(k, f): [] for k in BOTH for f in faults}
    arguments = f"--nproc-per-node={RANKS}", f"--max-restarts={2 * restarts}"
    with contextlib.ExitStack() as stack:
        jobs = {kind: stack.enter_context(launch(kind, _SCRIPT, *arguments)) for kind in BOTH}
        for cycle in range(2 * restarts):
            fault = list(faults)[cycle % 2]
            for kind, launched in jobs.items():
                taken[kind, fault].append(_restart_ms(launched, cycle, fault))
    for fault, name in faults.items():
        for kind in BOTH:
            report.add(f"{kind}: {name} to first line of all", "ms", taken[kind, fault])
        report.add_ratio(
            "faster", taken[TORCHRUN, fault], taken[HOLDFAST, fault], Bar(2, at_least=True)
        )


def _group_s(launched: Launch, ready: list[Stamp]) -> tuple[float, list[Stamp]]:
    """Kill a rank; seconds until all ranks of some later cycle have a group, and those ranks."""
    victim = ready[0]
    killed_at = _kill(victim)

    def all_ready() -> list[Stamp] | bool:
        stamps = [stamp for stamp in launched.stamps("ready") if stamp.cycle > victim.cycle]
        found = [stamp for stamp in stamps if stamp.cycle == stamps[-1].cycle]
        return len(found) == RANKS and found

    ready = launched.wait_for(all_ready, "a process group after a restart", GLOO_BOUND_S)
    return max(stamp.at for stamp in ready) - killed_at, ready


def _with_gloo(report: Report, restarts: int) -> None:
    taken: dict[str, dict[int, float]] = {kind: {} for kind in BOTH}
    lost_cycles = dict.fromkeys(BOTH, 0)
    jobs: dict[str, tuple[Launch, list[Stamp]]] = {}
    arguments = f"--nproc-per-node={RANKS}", "--max-restarts=100"
    with contextlib.ExitStack() as stack:
        for number in range(restarts):
            for kind in BOTH:
                if kind not in jobs:
                    launched = stack.enter_context(launch(kind, _GLOO_SCRIPT, *arguments))
                    jobs[kind] = launched, launched.wait_for_all("ready", RANKS, 0)
                launched, ready = jobs.pop(kind)
                before = ready[0].cycle
                try:
                    taken[kind][number], ready = _group_s(launched, ready)
                except BenchError:
                    launched.end()  # the next one is tried with a fresh launcher
                    continue
                lost_cycles[kind] += ready[0].cycle - before - 1
                jobs[kind] = launched, ready
    for kind in BOTH:
        report.add(f"{kind}: SIGKILL to gloo group of all", "s", list(taken[kind].values()))
        failed = restarts - len(taken[kind])
        report.add(f"{kind}: no group within {GLOO_BOUND_S:g} s", f"of {restarts}", failed)
        report.add(f"{kind}: further cycles lost on the way", "", lost_cycles[kind])
    worked = [number for number in range(restarts) if all(number in taken[k] for k in BOTH)]
    theirs, ours = ([taken[kind][number] for number in worked] for kind in (TORCHRUN, HOLDFAST))
    report.add_ratio("faster, where both worked", theirs, ours)
    report.notes.append(
        "torchrun's ranks meet keys of the dead cycle in a store that all cycles share; holdfast "
        "gives every cycle its own"
    )


def measure(restarts: int = RESTARTS, gloo_restarts: int = GLOO_RESTARTS) -> Report:
    """Both launchers side by side, a fault in each in turn."""
    report = Report(
        f"{RANKS} ranks; {restarts} restarts per launcher and fault, in turn; "
        f"{gloo_restarts} with a gloo group"
    )
    _plain(report, restarts)
    if gloo_restarts:
        _with_gloo(report, gloo_restarts)
    return report
