"""Hundreds of random faults in one call of a wrapped function: ``make soak-inprocess``.

Four ranks train, two stand by. Every iteration has one fault, or two at once, drawn from a seed
that all know; two of them take a rank away for good. In the end the weights must be those of an
undisturbed job, to the bit, and no rank may have more threads, descriptors or memory than it had
after its first restarts.

    python -m tests.inprocess_soak --faults 300 [--seed N]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.real.ranks import Ranks

ACTIVE, RANKS = 4, 6
KINDS = {
    # what: how often
    "raise": 40,
    "raise_two": 12,
    "raise_before_group": 6,
    "raise_in_atomic": 6,
    "raise_while_others_done": 6,
    "raise_in_clean_up": 6,
    "hang": 6,
    "hang_pinged": 4,
    "raise_and_hang": 3,
}
LETHAL = ("kill", "kill", "stop")
"""Twice in a job. A stopped rank is woken for its stacks; mostly it comes back, but it may die."""
LEAK_KIB = 40.0
"""Resident memory that a restart may cost. In the heaps of several threads it takes 800 restarts to
settle: 20 KiB each in the first hundreds, 2 from then on; plain torch takes 3 for a group that is
made and destroyed. A group that is not destroyed keeps 100, and six descriptors."""
LEAK_BLOCKS = 50.0
"""Objects of Python that a restart may leave; of one, code that was loaded late leaves 2,000."""
ENOUGH = 75
"""Restarts over which growth says something: allocators take memory by the half MiB."""
SETTLED = 0.5
"""Share of the restarts after which every kind of fault has been there: what is loaded only once,
for the first hang say, is loaded."""
COMPARED = 30
"""Restarts of which the least counts, there and at the end."""

JOB = """
import gc, hashlib, random, sys, threading
from holdfast.inprocess.rank_assignment import ActivateAllRanks, MaxActiveWorldSize, ShiftRanks

PLAN = json.loads(os.environ["PLAN"])
STEPS = int(os.environ["STEPS"])
SOFT_S = 1.0
KEPT = {}

class State:
    def __init__(self):
        generator = torch.Generator().manual_seed(11)
        self.weights = torch.randn(64, 64, dtype=torch.float64, generator=generator)
        self.step = 0

def fault(kind, call):
    note(fault=kind, iteration=call.iteration)
    if kind == "hang":
        time.sleep(1000)
    if kind == "hang_pinged":
        call.ping()
        while True:
            time.sleep(0.01)
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "raise_in_atomic":
        with call.atomic():
            raise ValueError(kind)
    if kind == "raise_in_clean_up":
        try:
            raise ValueError(kind)
        finally:
            time.sleep(0.01)
    raise ValueError(kind)

def agree(state):
    steps = [0] * dist.get_world_size()
    dist.all_gather_object(steps, state.step)
    furthest = max(steps)
    if min(steps) < furthest:
        step = torch.tensor([state.step])
        source = steps.index(furthest)
        dist.broadcast(step, source)
        dist.broadcast(state.weights, source)
        state.step = int(step)

def size():
    with open("/proc/self/statm") as file:
        kib = int(file.read().split()[1]) * 4
    counts = dict(fds=len(os.listdir("/proc/self/fd")), threads=threading.active_count())
    return dict(kib=kib, blocks=sys.getallocatedblocks(), **counts)

@wrapper(
    rank_assignment=Compose(MaxActiveWorldSize(4), ActivateAllRanks(), ShiftRanks()),
    soft_timeout=seconds(SOFT_S), hard_timeout=seconds(SOFT_S * 2),
    progress_watchdog_interval=seconds(0.1), monitor_process_interval=seconds(0.1),
    monitor_thread_interval=seconds(0.1), termination_grace_time=seconds(0.5),
    max_start_faults=None,
)
def train(call: CallWrapper):
    rank, world = now()
    note(size=size(), iteration=call.iteration)
    state = KEPT.setdefault("state", State())
    plan = PLAN[call.iteration] if call.iteration < len(PLAN) else {}
    mine = plan.get("ranks", {}).get(str(rank))
    if mine == "raise_before_group":
        fault(mine, call)
    dist.init_process_group("gloo")
    agree(state)
    at = state.step + plan.get("after", 0)
    last = STEPS if call.iteration >= len(PLAN) else min(STEPS - 1, at + 3)
    while state.step < last:
        if mine and state.step == at and mine != "raise_while_others_done":
            fault(mine, call)
        draw = torch.Generator().manual_seed(state.step * 64 + rank)
        x = torch.randn(64, 8, dtype=torch.float64, generator=draw)
        gradient = (state.weights @ x) @ x.T / 512
        dist.all_reduce(gradient)
        with call.atomic():
            state.weights -= 0.01 * gradient
            state.step += 1
    if mine == "raise_while_others_done":
        time.sleep(0.05)
        fault(mine, call)
    if call.iteration < len(PLAN):
        # Faults that came late must not let the call end early.
        dist.barrier()
        if rank == 0:
            raise ValueError("the end of an iteration")
        dist.barrier()
    dist.destroy_process_group()
    return hashlib.sha256(state.weights.numpy().tobytes()).hexdigest(), state.step

run(train)
"""


def draw_plan(faults: int, seed: int) -> list[dict[str, object]]:
    """What happens in each iteration, until there were so many faults."""
    rng = random.Random(seed)
    plan: list[dict[str, object]] = []
    drawn = 0
    kills = sorted(rng.sample(range(faults // 10, faults * 9 // 10), 2)) if faults >= 10 else []
    while drawn < faults:
        if kills and drawn >= kills[0]:
            kills.pop(0)
            kind = rng.choice(LETHAL)
        else:
            (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
        ranks = rng.sample(range(ACTIVE), 2)
        given = {str(ranks[0]): kind}
        if kind == "raise_two":
            given = {str(rank): "raise" for rank in ranks}
        elif kind == "raise_and_hang":
            given = {str(ranks[0]): "raise", str(ranks[1]): "hang"}
        elif kind in LETHAL and rng.random() < 0.5:
            given[str(ranks[1])] = "raise"
        plan.append({"after": rng.randrange(3), "ranks": given})
        drawn += len(given)
    return plan


def run(folder: Path, plan: list[dict[str, object]], bound_s: float) -> Ranks:
    """A job to its end."""
    folder.mkdir()
    env = {"PLAN": json.dumps(plan), "STEPS": "4000", "PYTHONFAULTHANDLER": "1"}
    job = Ranks(folder, JOB, RANKS, env)
    try:
        job.wait(bound_s)
    finally:
        job.close()
    return job


def problems(quiet: Ranks, stormy: Ranks) -> list[str]:
    """What is not as it should be."""
    found = []
    codes = [process.returncode for process in stormy.processes]
    if sum(code != 0 for code in codes) > 2 or any(code > 0 for code in codes):
        found.append(f"exit codes {codes}")
    expected = quiet.notes(0, "returned")
    for rank in range(RANKS):
        if codes[rank] < 0:
            continue
        returned = [one for one in stormy.notes(rank, "returned") if one is not None]
        if returned != expected and not (not returned and stormy.notes(rank, "returned") == [None]):
            found.append(f"rank {rank} returned {returned}, the undisturbed job {expected}")
        sizes = [note for note in stormy.notes(rank) if "size" in note]
        settled = int(len(sizes) * SETTLED)
        if settled > COMPARED:
            first, last = _least(sizes[settled:][:COMPARED]), _least(sizes[-COMPARED:])
            restarts = sizes[-1]["iteration"] - sizes[settled]["iteration"]
            grown, blocks = ((last[k] - first[k]) / max(1, restarts) for k in ("kib", "blocks"))
            print(
                f"rank {rank}: {first} -> {last} over {restarts} restarts, {grown:.1f} KiB and "
                f"{blocks:.1f} objects each"
            )
            if last["fds"] > first["fds"] or last["threads"] > first["threads"]:
                found.append(f"rank {rank} leaks: {first} -> {last}")
            if (grown > LEAK_KIB or blocks > LEAK_BLOCKS) and restarts >= ENOUGH:
                more = f"{grown:.1f} KiB and {blocks:.1f} objects"
                found.append(f"rank {rank} grows by {more} per restart")
    return found


def _least(notes: list[Any]) -> dict[str, int]:
    """Of each quantity: the group of the iteration before may still be on its way out."""
    return {key: min(note["size"][key] for note in notes) for key in notes[0]["size"]}


def main(arguments: list[str] | None = None) -> int:
    """Both jobs, and what was wrong; 0 if nothing was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=None)
    parsed = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 30) if parsed.seed is None else parsed.seed
    plan = draw_plan(parsed.faults, seed)
    print(f"{parsed.faults} faults in {len(plan)} iterations, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="holdfast_soak_") as name:
        quiet = run(Path(name) / "quiet", [], 300)
        began = time.monotonic()
        stormy = run(Path(name) / "stormy", plan, 60 + 3.0 * parsed.faults)
        took_s = time.monotonic() - began
        found = problems(quiet, stormy)
        seen: dict[str, int] = {}
        for rank in range(RANKS):
            for kind in stormy.notes(rank, "fault"):
                seen[kind] = seen.get(kind, 0) + 1
        print(f"{sum(seen.values())} faults happened in {took_s:.0f} s: {seen}")
        for rank in range(RANKS if found else 0):
            last = stormy.notes(rank)[-1:]
            print(f"--- rank {rank}\n{stormy.output(rank)[-1500:]}\nlast note: {last}")
    print("\n".join(found) or "all is as it should be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
