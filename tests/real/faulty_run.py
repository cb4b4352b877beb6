"""A job in which faults of many kinds follow each other, and what its ranks themselves say of it.

Ranks write down each section with the instants around its two calls, so that what holdfast tells of
a run can be compared with what was done, not only with holdfast's own events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.real.harness import Job, Launcher
from tests.real.nodes import SECRET
from tests.waiting import SCALE, until

STEP_LIMIT_S = 2.0 * SCALE
"""Of thousands of steps of 10 ms: no pause of a busy machine may be taken for a hang."""
CRASHES = ("killed", "leaves", "raises", "aborts", "exits", "both")
HANGS = ("hangs", "stopped", "busy", "skips")
KINDS = (
    *("killed", "hangs", "leaves", "stopped", "raises", "skips", "aborts", "both"),
    *("exits", "busy"),
)

SCRIPT = """
import json, os, pathlib, signal, sys, time
from holdfast.fault_tolerance import RankMonitorClient

rank, cycle = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
shared, faults = pathlib.Path(sys.argv[1]), sys.argv[2].split(",")
steps, well = int(sys.argv[3]), int(sys.argv[4])
kind, _, whose = faults[cycle].partition(":") if cycle < len(faults) else ("", "", "")
fails = kind and (kind == "both" or int(whose) == rank)
told = os.open(shared / f"told-{cycle}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
client = RankMonitorClient()
client.init_workload_monitoring()
torch = None

class Timed:
    def __init__(self, name):
        self.name, self.section = name, client.section(name)
    def __enter__(self):
        before = time.monotonic()
        self.section.__enter__()
        self.note("opened", before)
    def __exit__(self, *why):
        before = time.monotonic()
        self.section.__exit__(*why)
        self.note("closed", before)
    def note(self, what, before):
        line = [what, self.name, before, time.monotonic()]
        os.write(told, (json.dumps(line) + "\\n").encode())

def load_batch():
    time.sleep(600)

def meet():
    time.sleep(0.005)  # sections below a thousandth of a second are published later
    torch.distributed.all_reduce(torch.ones(1))

def fail():
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "leaves":
        os._exit(3)
    elif kind == "aborts":
        os.abort()
    elif kind == "exits":
        sys.exit(4)
    elif kind in ("raises", "both"):
        raise RuntimeError("planted")
    with step:
        if kind == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind == "busy":
            while True:
                pass
        load_batch()

setup, data, step = Timed("setup"), Timed("data"), Timed("step")
save, evaluate = Timed("checkpoint"), Timed("eval")
with setup:
    saved = shared / "saved"
    begin = int(saved.read_text()) if saved.exists() else 0
    if kind == "skips":
        import torch, torch.distributed
        torch.distributed.init_process_group("gloo")
number = begin - 1
while cycle < len(faults) or number < begin + steps:
    number += 1
    if fails and number == begin + well + cycle % 3:
        fail()
    with data:
        time.sleep(0.002)
    with step:
        meet() if torch else time.sleep(0.01)
    if number % 3 == 2:
        with save:
            time.sleep(0.005)
            if rank == 0:
                saved.with_suffix(".new").write_text(str(number + 1))
                saved.with_suffix(".new").rename(saved)
    if number % 10 == 9:
        with evaluate:
            time.sleep(0.005)
(shared / f"done-{rank}").touch()
while not (shared / "end").exists():
    time.sleep(0.01)
client.shutdown_workload_monitoring()
"""
"""Ranks that save every third step; in each cycle one of them, or both, fails as planned."""


def plan(faults: int, kinds: Sequence[str] = KINDS) -> list[str]:
    """``kind:rank`` for each cycle that fails; of two ranks in turn."""
    return [f"{kinds[k % len(kinds)]}:{k % 2}" for k in range(faults)]


@dataclass
class Told:
    """A section as its rank saw it: it was opened and closed within these pairs of instants.

    Attributes:
        closed: None: it never was.
    """

    name: str
    opened: tuple[float, float]
    closed: tuple[float, float] | None = None

    @property
    def inside(self) -> float:
        """An instant at which it was open."""
        return self.opened[1] if self.closed is None else (self.opened[1] + self.closed[0]) / 2


class FaultyRun:
    """Starts it; on several nodes, each has one rank.

    Attributes:
        jobs: A launcher for each node.
        faults: As planned.

    Args:
        ft: Starts launchers.
        faults: For each cycle that fails, its kind and whose it is.
        endpoint: Where two launchers of one rank meet; None: there is one, of ``nproc`` ranks.
        nproc: Ranks.
        well: Steps before each fault.
    """

    def __init__(
        self,
        ft: Launcher,
        faults: Sequence[str],
        *,
        endpoint: str | None = None,
        nproc: int = 2,
        well: int = 4,
    ) -> None:
        self.shared = ft.folder / "shared"
        self.shared.mkdir()
        self.faults = list(faults)
        script = ft.script(SCRIPT, "train_gpt.py")
        limits = f"setup:120,data:60,step:{STEP_LIMIT_S:g},checkpoint:60,eval:60"
        options = [
            *(f"--max-restarts={len(faults)}", "--log-dir=logs", "--rdzv-id=told"),
            *("--ft-rank-section-timeouts", limits, "--ft-metrics-port=0"),
            *("--ft-metrics-host=127.0.0.1", "--workers-stop-timeout=5"),
        ]
        words = [str(self.shared), ",".join(faults), str(max(60, 3 * well)), str(well)]
        if endpoint is None:
            self.jobs = [ft.start(f"--nproc-per-node={nproc}", *options, script, *words)]
            return
        together = ["--nnodes=2", "--nproc-per-node=1", f"--rdzv-endpoint={endpoint}"]
        self.jobs = [
            ft.start(
                *(*together, f"--rdzv-conf=is_host={is_host}", *options, script, *words),
                env={"HOLDFAST_JOB_SECRET": SECRET},
            )
            for is_host in (1, 0)
        ]

    def has_done_its_steps(self) -> None:
        """Wait for that; the ranks wait for :meth:`end`."""

        def is_done() -> bool:
            for job in self.jobs:
                assert job.process.poll() is None, job.stderr
            return all((self.shared / f"done-{rank}").exists() for rank in (0, 1))

        until(is_done, "all steps", (30 + 8 * len(self.faults)) * SCALE)

    def end(self) -> None:
        """Let the job end well."""
        (self.shared / "end").touch()
        for job in self.jobs:
            assert job.wait() == 0, job.stderr

    @property
    def folders(self) -> list[Path]:
        """Run folders, a launcher's each."""
        return [job.run_dir for job in self.jobs]

    def told(self, cycle: int, rank: int) -> list[Told]:
        """What a rank did in a cycle; nothing, if the other one failed before it began."""
        path = self.shared / f"told-{cycle}-{rank}"
        return list(_told(path.read_text().splitlines())) if path.exists() else []

    def metrics_port(self, job: Job) -> int:
        """Where its launcher is scraped."""
        pattern = r"metrics are at http://\S+:(\d+)/metrics"
        return int(until(lambda: job.said(pattern), "an address of metrics")[1])


def _told(lines: Sequence[str]) -> Iterator[Told]:
    being: dict[str, Told] = {}
    for line in lines:
        what, name, before, after = json.loads(line)
        if what == "opened":
            being[name] = Told(name, (before, after))
        else:
            being[name].closed = before, after
            yield being.pop(name)
    yield from being.values()
