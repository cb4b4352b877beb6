"""Faults at random moments of a function that is in ``call.atomic()`` half of its time.

In each iteration one rank raises, and all others are wherever they are then. Each rank notes what
must never be: an exception in a section, a section that begins while the rank's abort runs, half of
a section, a call that did not come back.

    python -m tests.atomic_soak --faults 1000 --ranks 3 [--seed N]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.real.ranks import Ranks

JOB = """
import random, threading

FAULTS, SEED, WORLD = (int(os.environ[name]) for name in ("FAULTS", "SEED", "RANKS"))
KEPT = {"begun": 0, "ended": 0, "iterations": 0}
ABORTS = threading.Event()

class SlowAbort(inprocess.abort.AbortTorchDistributed):
    def __call__(self, state):
        ABORTS.set()
        rng = random.Random(f"{SEED} {state.iteration} {RANK} abort")
        time.sleep(rng.choice([0, 0, 0.01, 0.05]))
        return super().__call__(state)

def spin(s):
    until = time.monotonic() + s
    while time.monotonic() < until:
        pass

@wrapper(abort=SlowAbort(), max_start_faults=None, **QUICK)
def train(call: CallWrapper):
    ABORTS.clear()  # this iteration is not aborted yet: its function has just been entered
    rng = random.Random(f"{SEED} {call.iteration} {RANK}")
    victim = random.Random(f"{SEED} {call.iteration}").randrange(WORLD)
    KEPT["iterations"] += 1
    if call.iteration >= FAULTS:
        dist.init_process_group("gloo")
        sums = [None] * WORLD
        dist.all_gather_object(sums, KEPT["iterations"])
        dist.destroy_process_group()
        return KEPT, sums
    pause_s, end = rng.uniform(0.0005, 0.004), time.monotonic() + rng.uniform(0, 0.05)
    while True:
        if RANK == victim and time.monotonic() >= end:
            raise ValueError("drawn")
        with call.atomic():
            if ABORTS.is_set():
                note(violation="a section began during an abort", iteration=call.iteration)
            try:
                KEPT["begun"] += 1
                spin(pause_s)
                if rng.random() < 0.2:
                    time.sleep(pause_s)
                KEPT["ended"] += 1
            except BaseException as error:
                note(violation=f"{type(error).__name__} in a section", iteration=call.iteration)
                raise
        if KEPT["begun"] != KEPT["ended"]:
            note(violation="half a section", iteration=call.iteration)
        spin(pause_s)

run(train)
"""


def violations(folder: Path, faults: int, ranks: int, seed: int) -> list[str]:
    """Run a job to its end; what must never be and was."""
    env = {"FAULTS": str(faults), "RANKS": str(ranks), "SEED": str(seed)}
    job = Ranks(folder, JOB, ranks, env)
    try:
        codes = job.wait(60 + 1.0 * faults)
    finally:
        job.close()
    found = [f"rank {r}: {text}" for r in range(ranks) for text in job.notes(r, "violation")]
    if codes != [0] * ranks:
        found.append(f"exit codes {codes}: {job.output(0)[-2000:]}")
    for rank in range(ranks):
        for kept, sums in job.notes(rank, "returned"):
            # Where a fault comes before a rank has been called, that one misses an iteration.
            if kept["begun"] != kept["ended"] or len(sums) != ranks:
                found.append(f"rank {rank} returned {kept}, {sums}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """0 if nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None)
    parsed = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 30) if parsed.seed is None else parsed.seed
    print(f"{parsed.faults} faults, {parsed.ranks} ranks, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="holdfast_atomic_") as name:
        found = violations(Path(name), parsed.faults, parsed.ranks, seed)
    print("\n".join(found[:20]) or "no section was broken, or entered during an abort")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
