"""DDP and FSDP2 jobs whose ranks are killed: each step is bit by bit that of an undisturbed run."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.real.snapshot_rank import OPTIMIZERS
from tests.snapshot_launcher import SnapshotLauncher
from tests.waiting import BOUND_S, until

STEPS = 30
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def zygote() -> Iterator[subprocess.Popen[bytes]]:
    """The process that has imported torch, and forks ranks."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.real.snapshot_rank"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
    ) as process:
        yield process


class Job:
    """Ranks, started together as often as needed, with one launcher of snapshots."""

    def __init__(
        self, folder: Path, zygote: subprocess.Popen[bytes], ranks: int, *arguments: str
    ) -> None:
        self.launcher = SnapshotLauncher(folder)
        self._folder, self._ranks, self._arguments = folder, ranks, arguments
        self._lives = 0
        self._pids: list[int] = []
        self._zygote = zygote

    def start(self, steps: int, snapshots: bool = True) -> list[Path]:
        """Their files."""
        self._lives += 1
        files = [self._folder / f"{self._lives}.{rank}" for rank in range(self._ranks)]
        from torch.distributed import TCPStore

        port = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port
        ranks = []
        for rank, file in enumerate(files):
            env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            env |= self.launcher.env(rank, self._ranks)
            if not snapshots:
                env["FT_LAUNCHER_IPC_SOCKET"] = ""
            arguments = [*self._arguments, str(steps), str(file)]
            ranks.append((env, arguments, str(self._folder / f"{self._lives}.{rank}.err")))
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(json.dumps(ranks).encode() + b"\n")
        self._zygote.stdin.flush()
        self._pids = self._answer()
        return files

    def _answer(self) -> list[int]:
        assert self._zygote.stdout is not None
        found: list[int] = json.loads(self._zygote.stdout.readline())
        return found

    def wait(self) -> None:
        codes, self._pids = self._answer(), []
        assert codes == [0] * self._ranks, self.errors()

    def kill(self, victim: int) -> None:
        os.kill(self._pids[victim], signal.SIGKILL)
        self._kill_all()
        codes, self._pids = self._answer(), []
        assert codes[victim] == signal.SIGKILL, self.errors()

    def _kill_all(self) -> None:
        for pid in self._pids:  # their numbers are free only when all have ended
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def errors(self) -> str:
        return "".join(p.read_text()[-2000:] for p in self._folder.glob(f"{self._lives}.*.err"))

    def close(self) -> None:
        if self._pids:
            self._kill_all()
            self._answer()
        self.launcher.close()


def rows(file: Path, kind: str) -> dict[int, str]:
    text = file.read_text() if file.exists() else ""
    lines = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return {int(step): value for name, step, value in lines if name == kind}


def all_have_taken(files: list[Path]) -> bool:
    return all(sum(map(int, rows(file, "taken").values())) >= 3 for file in files)


@pytest.mark.parametrize(
    ("kind", "ranks", "optimizer", "mode"),
    [
        ("ddp", 2, "adamw-foreach", "step"),
        ("ddp", 4, "sgd", "beside"),
        ("fsdp", 2, "adamw-fused", "step"),
        ("fsdp", 4, "adamw-foreach", "beside"),
    ],
)
def test_each_step_after_kills_is_that_of_an_undisturbed_run(
    tmp_path: Path,
    zygote: subprocess.Popen[bytes],
    kind: str,
    ranks: int,
    optimizer: str,
    mode: str,
) -> None:
    """At most one step is lost where it is copied in the step, two beside it."""
    assert optimizer in OPTIMIZERS
    job = Job(tmp_path, zygote, ranks, kind, optimizer, mode)
    order = random.Random(ranks)
    try:
        files = job.start(STEPS, snapshots=False)
        job.wait()
        undisturbed = [rows(file, "step") for file in files]
        restored = 0
        for life in range(3):
            is_last = life == 2
            files = job.start(STEPS)
            if is_last:
                job.wait()
            else:
                until(partial(all_have_taken, files), job.errors, BOUND_S * 3)
                time.sleep(order.uniform(0.0, 0.1))
                job.kill(order.randrange(ranks))
            for rank, file in enumerate(files):
                for step, value in rows(file, "step").items():
                    assert undisturbed[rank][step] == value, (rank, step)
                [(at, value)] = rows(file, "restored").items()
                assert at == restored
                if at:
                    assert undisturbed[rank][at] == value
            if not is_last:
                done = max(max(rows(file, "step")) for file in files)
                chosen = job.launcher.next_cycle(ranks)
                assert chosen is not None
                assert chosen.step >= done - (2 if mode == "beside" else 1) - 1
                restored = chosen.step
    finally:
        job.close()
