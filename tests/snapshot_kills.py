"""Kill a rank that does nothing but take snapshots, again and again, and look at what it left.

``python -m tests.snapshot_kills --kills 1000 --mode beside`` prints a line of JSON. Half of the
kills come at any moment, the others while a slot is being written. After each kill every committed
slot must hold one step and nothing else, and the newest must not be older than the
last step that was reported as taken; then the next rank restores it, and goes on.

The rank is forked from a process that has imported torch, so that a kill costs 50 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.arena.arena import ArenaMemory, HeldSlot
from holdfast.arena.pure import layout
from holdfast.arena.pure.tensors_head import parse
from holdfast.snapshot import Snapshots
from tests.snapshot_launcher import SnapshotLauncher
from tests.waiting import BOUND_S, until

SIZES = (1, 150_000, 200_003, 250_000)
"""Elements of four bytes: of each parameter."""
STEP, RESTORED = 0, 1
"""Words that the rank writes: the last step that is taken; the step that it began from, plus 1."""


# ---------------------------------------------------------------- the rank
class Counting(nn.Module):
    """All weights are the number of steps; so is the buffer, which changes in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(n)) for n in SIZES)
        self.register_buffer("count", torch.zeros(1000))


class FatalWords:
    """Words of an arena: the process is killed before one of its stores into slots."""

    def __init__(self, words: memoryview, stores: int) -> None:
        self._words, self._left = words, stores

    def __getitem__(self, index: Any) -> Any:
        return self._words[index]

    def __setitem__(self, index: int, value: int) -> None:
        if index >= layout.SLOTS:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1
        self._words[index] = value


def rank(path: str, report: str, beside: bool, stores: int) -> None:
    """Train for ever. ``stores``: killed before this store of the fifth snapshot; -1: not."""
    os.environ.update({"FT_LAUNCHER_IPC_SOCKET": path, "RANK": "0", "WORLD_SIZE": "1"})
    with Path(report).open("r+b") as file:
        words = memoryview(mmap.mmap(file.fileno(), 4096)).cast("q")
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.0)
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, -1.0)
    snapshots = Snapshots(beside=beside, model=model, optimizer=optimizer)
    step = snapshots.restore()
    tensors = [*model.parameters(), model.count]
    if not all(bool((tensor == step).all()) for tensor in tensors):
        words[RESTORED] = -1
        os._exit(3)
    words[RESTORED] = step + 1
    taking: Any = snapshots._taking
    n_bytes = taking._live.capture(step).head.n_bytes
    until(lambda: taking._ring.is_prepared(n_bytes, taking._n_slots), "memory")
    taken = 0
    while True:
        model.count += 1.0
        optimizer.step()
        step += 1
        before = step - 1 if beside else step
        if taken == 4 and stores >= 0:
            taking._end_copy()
            taking._helper.close(20.0)  # the stores of its sums are not counted
            taking._arena.words = FatalWords(taking._arena.words, stores)
        if snapshots.take(step):
            taken += 1
            if not beside or taken > 1:
                words[STEP] = before  # the copy before this one is committed


def zygote() -> None:
    """Fork a rank for each line on stdin; its pid is the answer, and its status the next one."""
    torch.set_num_threads(1)
    importlib.import_module("tests.real.light_torch")
    importlib.import_module("holdfast.snapshot._taking")
    for line in sys.stdin:
        path, report, beside, stores = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                rank(path, report, beside, stores)
            finally:
                os._exit(4)
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)


# ---------------------------------------------------------------- who kills it
@dataclass
class Kills:
    """What was found.

    Attributes:
        in_mid_copy: Kills that left a slot void which was being written.
        not_reported: Kills after a commit that the rank had not reported yet.
    """

    mode: str
    kills: int = 0
    in_mid_copy: int = 0
    not_reported: int = 0
    inconsistent: int = 0
    lost: int = 0
    wrongly_restored: int = 0
    steps: int = 0
    seconds: float = 0.0


class Killer:
    """One arena, and one rank after the other that uses it."""

    def __init__(self, folder: Path, mode: str, zygote: subprocess.Popen[str]) -> None:
        self.found = Kills(mode)
        self._launcher = SnapshotLauncher(folder)
        self._report = folder / "report"
        self._report.write_bytes(bytes(4096))
        with self._report.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 4096)).cast("q")
        self._zygote = zygote

    def close(self) -> None:
        self._launcher.close()

    def kill(self, delay_s: float | None, stores: int = -1, into_copy_s: float = -1.0) -> None:
        """One life.

        ``delay_s``: from its first report on; None: it kills itself. ``into_copy_s``: so long after
        the next copy has begun that voids an older snapshot; negative: at any moment.
        """
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        found, arena = self.found, self._launcher.arena(0)
        chosen = self._launcher.next_cycle(1)
        began_at = chosen.step if chosen else 0
        self._words[STEP], self._words[RESTORED] = 0, 0
        order = (self._launcher.path, str(self._report), found.mode == "beside", stores)
        print(json.dumps(order), file=self._zygote.stdin, flush=True)
        pid = int(self._zygote.stdout.readline())
        if delay_s is not None:
            until(lambda: self._words[STEP] or self._words[RESTORED] < 0, "the first snapshot")
            time.sleep(delay_s)
            if into_copy_s >= 0.0:
                late = time.monotonic() + BOUND_S
                while not self._is_copying(arena):  # a copy takes less than a sleep
                    assert time.monotonic() < late, "no copy has begun"
                began = time.perf_counter()
                while time.perf_counter() - began < into_copy_s:
                    pass
            os.kill(pid, signal.SIGKILL)
        status = int(self._zygote.stdout.readline())
        assert status == signal.SIGKILL or self._words[RESTORED] < 0, status
        reported = self._words[STEP] or began_at
        held = list(arena.all_held())
        found.kills += 1
        found.steps += max(0, reported - began_at)
        found.wrongly_restored += self._words[RESTORED] != began_at + 1
        found.inconsistent += sum(not is_consistent(arena, each) for each in held)
        newest = max((each.held.step for each in held), default=0)
        found.lost += newest < reported
        found.not_reported += newest > reported
        found.in_mid_copy += self._is_copying(arena)

    def _is_copying(self, arena: ArenaMemory) -> bool:
        """A slot that held a snapshot is void."""
        n_slots = 3 if self.found.mode == "beside" else 2
        firsts = [layout.slot(index) for index in range(n_slots)]
        is_full = all(arena.words[at + layout.STEP] for at in firsts)
        return is_full and any(arena.words[at + layout.COMMIT] == 0 for at in firsts)


def is_consistent(arena: ArenaMemory, found: HeldSlot) -> bool:
    """Whether all of the file is of its step, and its sum, if there is one, is right."""
    with contextlib.suppress(ValueError):
        mapped = arena.map_slot(found.slot)
        head = parse(memoryview(mapped)[: found.n_bytes])
        file = torch.frombuffer(mapped, dtype=torch.uint8)[: found.n_bytes]
        names = [f"model.weights.{i}" for i in range(len(SIZES))] + ["model.count"]
        parts = [
            file[head.data_at + p.begin : head.data_at + p.end].view(torch.float32)
            for p in (head.placed[name] for name in names)
        ]
        expected = arena.sum_of(found.slot)
        whole = file[: len(file) // 8 * 8].view(torch.int64).sum().item()
        rest = int.from_bytes(bytes(file[len(file) // 8 * 8 :].tolist()), "little")
        return (
            head.metadata["step"] == str(found.held.step)
            and all(bool((part == found.held.step).all()) for part in parts)
            and (expected is None or (expected - whole - rest) % (1 << 64) == 0)
        )
    return False


def started_zygote() -> subprocess.Popen[str]:
    """The process that has imported torch, and forks ranks."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.snapshot_kills", "--zygote"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def killer(mode: str, zygote: subprocess.Popen[str]) -> Iterator[Killer]:
    with tempfile.TemporaryDirectory(prefix="holdfast_kills_") as folder:
        one = Killer(Path(folder), mode, zygote)
        try:
            yield one
        finally:
            one.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--mode", choices=["step", "beside"], default="step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--zygote", action="store_true")
    chosen = parser.parse_args()
    if chosen.zygote:
        zygote()
        return 0
    order = random.Random(chosen.seed)
    began = time.monotonic()
    with started_zygote() as forks, killer(chosen.mode, forks) as one:
        for _ in range(chosen.kills):
            is_aimed = order.random() < 0.5
            into_copy_s = order.uniform(0.0, 0.0002) if is_aimed else -1.0
            one.kill(order.uniform(0.0, 0.02), into_copy_s=into_copy_s)
        one.found.seconds = round(time.monotonic() - began, 1)
        print(json.dumps(asdict(one.found)))
        bad = one.found.inconsistent + one.found.lost + one.found.wrongly_restored
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
