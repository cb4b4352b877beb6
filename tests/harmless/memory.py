"""Memory that gets short: warm standby never costs a rank its life.

A control group for memory of 4.7 GB (4,700 MiB; smaller ones for the random part) holds a launcher,
its rank and, mostly, another process. Both follow a *history*: how much memory each takes at which
moment, up to all that the group has but for the room of a launcher. Parked interpreters are what
does not fit. A rank that ends otherwise than with 0 runs once more, with warm standby off: if it
then ends with 0, holdfast has killed a rank that would have lived.

    python -m tests.harmless.memory --histories 50    # needs root, and 5 GB of memory

Needs a control group in which this process may make others (version 1 or 2).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20
LIMIT_MIB = 4700
SMALL_MIB = 1700
"""For random histories: to use 4.7 GB takes half a minute."""
ROOM_MIB = 350
"""Of launcher, monitor, page tables, and the rank's interpreter with torch: a rank that takes all
else has 4.5 GB, and just fits."""
LONGEST_S = 120.0
_ROOT = Path("/sys/fs/cgroup")

TAKES_MEMORY = """
import ctypes, json, mmap, os, sys, time
if sys.argv[0] != "-c":
    import torch
steps, blocks, size = json.loads(sys.argv[1]), [], 32 << 20
began = time.monotonic()
for at, mib in steps:
    time.sleep(max(0.0, began + at - time.monotonic()))
    while len(blocks) * 32 > mib:
        blocks.pop().close()
    while (len(blocks) + 1) * 32 <= mib:
        block = mmap.mmap(-1, size)
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(block)), 1, size)
        blocks.append(block)
open(sys.argv[2], "a").write("done\\n")
"""
BUSY = "while True: pass"
LAUNCHER = """
from holdfast.standby.pure import parked_interpreters
parked_interpreters.MEMORY_GUESS_KIB = parked_interpreters.MEMORY_GUESS_KIB * {limit} // 4700
from holdfast.fault_tolerance.launcher import command
command()
"""
"""In a small group, it expects interpreters that are smaller by as much, until it has one."""


class Group:
    """A control group for memory, of the version that this host has; removed at the end."""

    def __init__(self, limit_bytes: int) -> None:
        v1 = _own("memory")
        self.is_v1 = v1 is not None
        own = v1 if v1 is not None else _own("")
        if own is None:
            raise SystemExit("holdfast: this host has no control groups for memory")
        top = _ROOT / ("memory" if self.is_v1 else "")
        self.path = top / own.lstrip("/") / f"holdfast-memory-{os.getpid()}"
        try:
            self.path.mkdir()
            limit = "memory.limit_in_bytes" if self.is_v1 else "memory.max"
            (self.path / limit).write_text(str(limit_bytes))
        except OSError as error:
            raise SystemExit(f"holdfast: no control group can be made: {error}") from None

    def kills(self) -> int:
        """Processes that the kernel ended in it for lack of memory."""
        name = "memory.oom_control" if self.is_v1 else "memory.events"
        lines = (self.path / name).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def start(self, command: list[str], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
        """Start a process in it."""
        enter = f'echo $$ > {self.path}/cgroup.procs && exec "$@"'
        with log.open("ab") as file:
            return subprocess.Popen(
                ["sh", "-c", enter, "sh", *command],
                env={**os.environ, **env},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def close(self) -> None:
        """Remove it, once what ran in it has ended."""
        deadline = time.monotonic() + 30.0
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.1)


def _own(controller: str) -> str | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


@dataclass(frozen=True)
class History:
    """How much memory a rank and a process beside it take: seconds, and MiB from then on.

    Attributes:
        rank: Of the rank.
        other: Of the other process; empty: there is none.
        n_busy: Processes that take all of a processor meanwhile.
        limit_mib: Of the control group.
    """

    rank: list[tuple[float, int]]
    other: list[tuple[float, int]] = field(default_factory=list)
    n_busy: int = 0
    limit_mib: int = SMALL_MIB


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    exit_code: int
    kills: int
    parked: int
    left: int
    log: str


def a_rank_of_4500_mib() -> History:
    """A rank that takes 4.5 GB of 4.7 GB, once something is parked."""
    return History([(6.0, LIMIT_MIB - ROOM_MIB), (9.0, 0)], limit_mib=LIMIT_MIB)


def drawn(rng: random.Random) -> History:
    """Peaks that leave no room for a parked interpreter, at moments before, while and after it."""
    room = SMALL_MIB - ROOM_MIB
    has_other = rng.random() < 0.6
    rank, other = [(0.0, 0)], [(0.0, 0)]
    at, held = rng.uniform(0.0, 6.0), [0, 0]
    for _ in range(rng.randint(2, 6)):
        who = rng.randrange(2) if has_other else 0
        most = room - held[1 - who] - (50 if has_other else 0)
        share = rng.choice([1.0, 1.0, rng.random()])
        held[who] = int(most * share)
        (rank, other)[who].append((round(at, 2), held[who]))
        at += rng.choice([0.0, rng.uniform(0.0, 0.5), rng.uniform(0.5, 3.0)])
        if held[who] == most:  # nothing else fits: it gives back before another one takes
            at += 4.0
    end = round(at + rng.uniform(0.2, 2.0), 2)
    rank.append((end, 0))
    other.append((end, 0))
    return History(rank, other if has_other else [], rng.choice([0, 0, 2]))


@contextlib.contextmanager
def _beside(group: Group, history: History, log: Path) -> Iterator[None]:
    others = [[sys.executable, "-c", BUSY] for _ in range(history.n_busy)]
    if history.other:
        steps = json.dumps(history.other)
        others.append([sys.executable, "-c", TAKES_MEMORY, steps, os.devnull])
    started = [group.start(command, {"OMP_NUM_THREADS": "1"}, log) for command in others]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run(history: History, *, warm: bool) -> Outcome:
    """Run one job in a control group of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder, group = Path(name), Group(history.limit_mib * MIB)
        script, log, done = folder / "train.py", folder / "log", folder / "done"
        script.write_text(TAKES_MEMORY)
        command = [
            *(sys.executable, "-c", LAUNCHER.format(limit=history.limit_mib)),
            *("--nproc-per-node=1", "--max-restarts=1", f"--ft-warm-standby={str(warm).lower()}"),
            *("--ft-warm-standby-delay=0", f"--log-dir={folder}/logs"),
            *(str(script), json.dumps(history.rank), str(done)),
        ]
        env = {"OMP_NUM_THREADS": "1"}
        with _beside(group, history, folder / "others"):
            job = group.start(command, env, log)
            try:
                exit_code = job.wait(LONGEST_S)
            except subprocess.TimeoutExpired:
                job.kill()
                exit_code = job.wait()
        kills = group.kills()
        text = log.read_text(errors="replace")
        lives = done.read_text().count("done") if done.exists() else 0
        group.close()
        is_whole = exit_code == 0 and lives == 1 and "restart 1 of 1" not in text
        parked, left = text.count("ranks can restart"), text.count("left: ")
        return Outcome(0 if is_whole else exit_code or 1, kills, parked, left, text)


def wrongly_killed(history: History) -> tuple[bool, Outcome]:
    """Whether the rank was killed, and lives with warm standby off; and how the job went."""
    outcome = run(history, warm=True)
    if outcome.exit_code == 0:
        return False, outcome
    return run(history, warm=False).exit_code == 0, outcome


def main() -> None:
    """Run as many histories as asked for; exit code 1: a rank was killed that would have lived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--histories", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    wrong = parked = left = spared = both = 0
    for number in range(args.histories + 1):
        history = drawn(random.Random(args.seed + number)) if number else a_rank_of_4500_mib()
        is_wrong, outcome = wrongly_killed(history)
        wrong += is_wrong
        parked += outcome.parked > 0
        left += outcome.left > 0
        spared += outcome.kills > 0 and outcome.exit_code == 0
        both += outcome.exit_code != 0 and not is_wrong
        print(
            f"{number:3} exit {outcome.exit_code} kills {outcome.kills} parked {outcome.parked} "
            f"left {outcome.left} {'WRONG ' + str(history) if is_wrong else ''}",
            flush=True,
        )
        if is_wrong:
            print(outcome.log)
    print(
        f"{args.histories + 1} histories: {wrong} ranks killed that live without warm standby; "
        f"{both} killed either way; interpreters parked in {parked}, left by themselves in {left}, "
        f"ended by the kernel for the rank in {spared}"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
