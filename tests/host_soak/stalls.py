"""Launchers that stand still for 3 s, of many jobs side by side: it must cost no rank."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.job.pure.timing import Pace
from tests.host_soak.hosts import TRAINING, wait_for
from tests.host_soak.lives import lives, noted
from tests.real.harness import Job, Launcher, launcher
from tests.real.nodes import Nodes

LAUNCHERS = 3
BEATS_BETWEEN = (1.0, 3.0)
"""Between two stalls of a job, beyond the time in which a launcher that slept asks the leader."""


@dataclass
class _Stalled:
    """One job, and what was done to it."""

    name: str
    nodes: Nodes
    jobs: list[Job]
    rng: random.Random
    done: int = 0
    longest_s: float = 0.0
    error: str = ""
    stalls: list[str] = field(default_factory=list)

    def pids(self) -> list[int]:
        return [job.process.pid for job in self.jobs]

    def trains(self) -> bool:
        return all(map(_trains, self.jobs))


def _start(ft: Launcher, folder: Path, silence_s: float, seed: int) -> _Stalled:
    folder.mkdir()
    nodes = Nodes(ft, folder)
    nodes.silence_s = silence_s
    source = TRAINING.read_text()
    jobs = [
        nodes.add(source, str(LAUNCHERS), "--ft-warm-standby=false", monitors=True)
        for _ in range(LAUNCHERS)
    ]
    return _Stalled(folder.name, nodes, jobs, random.Random(seed))


def _end(one: _Stalled) -> None:
    """All launchers exit with 0, and nothing is left of them."""
    try:
        wait_for(lambda: all(it.process.poll() is not None for it in one.jobs), "the end", 60)
    except AssertionError as error:
        one.error = one.error or str(error)
        return
    codes = [job.process.poll() for job in one.jobs]
    if any(codes):
        one.error = f"exit codes {codes}"
    if any(job.leftovers() for job in one.jobs):
        one.error = one.error or "processes are left"
    if why := _why_not_healthy(one):
        one.error = f"{one.error} {why} after {one.stalls[-6:]}"
    one.nodes.close()


def _hold(pid: int, stall_s: float) -> float:
    began_at = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    time.sleep(stall_s)
    os.kill(pid, signal.SIGCONT)
    return time.monotonic() - began_at


def _stall(one: _Stalled, stall_s: float, silence_s: float) -> int:
    """The leader, another, or two of them; how many stalls.

    Two at once, or, if both together are no silence, one in the middle of the other: then one of
    them does not know of the other how old its last message is.
    """
    leader, *others = one.pids()
    rng = one.rng
    first = rng.choice([leader, *others]) if rng.random() < 0.5 else leader
    victims = [first]
    if rng.random() < 0.3:
        victims.append(rng.choice([pid for pid in one.pids() if pid != first]))
    later_s = rng.choice([0.0, rng.uniform(0, min(stall_s, max(0.0, 0.4 * silence_s - stall_s)))])
    took: list[float] = []

    def second() -> None:
        time.sleep(later_s)
        took.append(_hold(victims[1], stall_s))

    thread = threading.Thread(target=second) if len(victims) > 1 else None
    if thread:
        thread.start()
    took.append(_hold(victims[0], stall_s))
    if thread:
        thread.join()
    one.longest_s = max(one.longest_s, *took)
    who = ["the leader" if pid == leader else f"launcher {pid}" for pid in victims]
    both = f"{' and '.join(who)}, {later_s:.2f} s later" if thread else who[0]
    one.stalls.append(f"{time.strftime('%H:%M:%S')}.{time.time() % 1 * 1000:03.0f} {both}")
    print(f"stalls: {one.name}, {stall_s:g} s: {both}", flush=True)
    return len(victims)


def _trains(job: Job) -> bool:
    assert job.process.poll() is None, job.stderr
    return any(it.what == "step" for it in noted(job.folder / "lives"))


def _keep_stalling(one: _Stalled, until: int, stall_s: float, silence_s: float) -> None:
    pace = Pace.of(silence_s)
    while one.done < until and not one.error:
        time.sleep(pace.ask_s + one.rng.uniform(*BEATS_BETWEEN) * pace.beat_s)
        one.done += _stall(one, stall_s, silence_s)
        if any(job.process.poll() is not None for job in one.jobs):
            one.error = "a launcher has ended"


def _why_not_healthy(one: _Stalled) -> str:
    """What the stalls have cost; empty: nothing."""
    found = []
    for number, job in enumerate(one.jobs):
        cycles = {life.cycle for life in lives(number, noted(job.folder / "lives"))}
        if cycles != {0}:
            found.append(f"launcher {number} had ranks in cycles {sorted(cycles)}")
        found += [line for line in job.stderr.splitlines() if "[ERROR]" in line]
    return "; ".join(found[:6])


def run(
    folder: Path,
    stalls: int,
    jobs: int,
    stall_s: float,
    silence_s: float,
    seed: int,
    keep: str = "",
) -> dict[str, Any]:
    """Stall launchers so often, in so many jobs side by side."""
    with launcher(folder) as ft:
        all_jobs = []
        for number in range(jobs):  # one by one: to start all at once is a stall of the machine
            one = _start(ft, folder / f"job_{number}", silence_s, seed + number)
            wait_for(one.trains, "ranks train", 120)
            all_jobs.append(one)
        each = -(-stalls // jobs)
        threads = [
            threading.Thread(target=_keep_stalling, args=(one, each, stall_s, silence_s))
            for one in all_jobs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(silence_s)  # whatever a last stall would cost comes within that
        for one in all_jobs:
            one.nodes.end()
        for one in all_jobs:
            _end(one)
            if one.error and keep:
                for job in one.jobs:
                    kept = Path(keep) / one.name / job.folder.name
                    shutil.copytree(job.folder, kept, dirs_exist_ok=True)
    return {
        "stall_s": stall_s,
        "silence_s": silence_s,
        "jobs": jobs,
        "stalls": sum(one.done for one in all_jobs),
        "longest_s": round(max(one.longest_s for one in all_jobs), 2),
        "harmed": sum(bool(one.error) for one in all_jobs),
        "errors": [one.error for one in all_jobs if one.error],
    }
