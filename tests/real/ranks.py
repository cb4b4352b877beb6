"""Start the ranks of a job by hand, as ``srun`` would, and look at what they leave."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.net.port import ReservedPort
from tests.processes import all_pids, command_line, environ
from tests.real.forked_ranks import Fork, Forks
from tests.real.scripts import write_script
from tests.waiting import BOUND_S, until

PREAMBLE = """
import ctypes, datetime, json, os, signal, sys, time
import light_torch
import torch
import torch.distributed as dist
import holdfast.inprocess as inprocess
from holdfast.inprocess import CallWrapper, Compose

RANK = int(os.environ["RANK"])  # the number this process was born with

def seconds(s):
    return datetime.timedelta(seconds=s)

def note(**facts):
    with open(f"{os.environ['OUT']}/rank{RANK}.jsonl", "a") as file:
        file.write(json.dumps(facts) + "\\n")

def now():
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def all_reduce():
    ones = torch.ones(1)
    dist.all_reduce(ones)
    return int(ones.item())

# Where nothing hangs, what a busy machine holds up for seconds is neither restarted nor ended.
QUICK = dict(
    soft_timeout=seconds(40), hard_timeout=seconds(50), progress_watchdog_interval=seconds(0.2),
    monitor_process_interval=seconds(0.5), monitor_thread_interval=seconds(0.5),
    heartbeat_interval=seconds(0.5), heartbeat_timeout=seconds(30),
    termination_grace_time=seconds(10),
)
IMPATIENT = dict(
    QUICK, soft_timeout=seconds(2), hard_timeout=seconds(4), termination_grace_time=seconds(0.5)
)

wrapper = inprocess.Wrapper

def run(function, *args):
    try:
        result = function(*args)
    except BaseException as error:
        note(raised=type(error).__name__, text=str(error))
        raise SystemExit(5)
    note(returned=result)
"""


class Ranks:
    """Processes of one job."""

    def __init__(
        self, folder: Path, source: str, n: int, env: Mapping[str, str], forks: Forks | None = None
    ) -> None:
        self.folder = folder
        self._forks = forks
        self._port = ReservedPort()
        script = write_script(folder / "job.py", PREAMBLE + textwrap.dedent(source))
        self.processes = [self._start(script, rank, n, env) for rank in range(n)]

    def _start(
        self, script: Path, rank: int, n: int, env: Mapping[str, str]
    ) -> subprocess.Popen[bytes] | Fork:
        whole = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OUT": str(self.folder),
            "RANK": str(rank),
            "WORLD_SIZE": str(n),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._port.number),
            **env,
        }
        output = self.folder / f"rank{rank}.out"
        if self._forks is not None and self._forks.can_start(env):
            return self._forks.start(script, whole, output)
        with output.open("wb") as out:
            return subprocess.Popen(
                [sys.executable, script],
                env=whole,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def wait(self, bound_s: float = BOUND_S * 2) -> list[int]:
        """Exit codes, by rank."""
        try:
            return [process.wait(bound_s) for process in self.processes]
        except subprocess.TimeoutExpired:
            output = "\n".join(self.output(rank) for rank in range(len(self.processes)))
            raise AssertionError(f"ranks still run after {bound_s:g} s\n{output}") from None

    def output(self, rank: int) -> str:
        return (self.folder / f"rank{rank}.out").read_text(errors="replace")

    def notes(self, rank: int, key: str | None = None) -> list[Any]:
        """What a rank wrote down; only the values of ``key``."""
        path = self.folder / f"rank{rank}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        notes = [json.loads(line) for line in lines]
        return notes if key is None else [note[key] for note in notes if key in note]

    def guards(self) -> list[int]:
        """Pids of node guards that this job's ranks started."""
        guards = [pid for pid in all_pids() if b"guard_main" in command_line(pid)]
        return [pid for pid in guards if environ(pid).get("OUT") == str(self.folder)]

    def said(self, rank: int, pattern: str) -> re.Match[str] | None:
        return re.search(pattern, self.output(rank))

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._port.release()
        until(lambda: not self.guards(), "the guards have ended with the last of their ranks")


class RankStarter:
    """Starts jobs; whatever they leave ends with the test."""

    def __init__(self, folder: Path, forks: Forks | None = None) -> None:
        self._folder = folder
        self._forks = forks
        self._jobs: list[Ranks] = []

    def __call__(self, n: int, source: str, **env: str) -> Ranks:
        folder = self._folder / f"ranks{len(self._jobs)}"
        folder.mkdir()
        job = Ranks(folder, source, n, env, self._forks)
        self._jobs.append(job)
        return job

    def close(self) -> None:
        for job in self._jobs:
            job.close()


@contextmanager
def rank_starter(folder: Path, forks: Forks | None = None) -> Iterator[RankStarter]:
    """A starter whose jobs are ended with the block. Ranks are processes of their own, or forks."""
    starter = RankStarter(folder, forks)
    try:
        yield starter
    finally:
        starter.close()


SIGKILLED = -signal.SIGKILL
