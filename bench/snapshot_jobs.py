"""What a fault and a step cost with snapshots, with checkpoints, and with neither.

Each in jobs of its own, one after the other, in rounds. Checkpoints are those of torch: ``save`` to
the local disk, and ``async_save``, every so many steps. A rank is killed at a random moment; it
counts until all ranks have ended a step that none had ended before.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from bench.figures import Bar, Report
from bench.processes import WARM, Launch, Stamp, launch

RANKS = 4
STEPS_BEFORE = 24
EVERY = 20
"""Steps from one checkpoint to the next."""
ROUNDS = 3
BOUND_S = 180.0
NOTHING, SNAPSHOTS = "nothing", "snapshots"
SAVED, ASYNC = "checkpoint to disk", "async_save"
KINDS = NOTHING, SNAPSHOTS, SAVED, ASYNC

_SCRIPT = """
import mmap
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from holdfast.snapshot import Snapshots

KIND, EVERY = {kind!r}, {every}
torch.set_num_threads(1)
dist.init_process_group("gloo")
beside = dist.new_group(backend="gloo")
model = torch.nn.Sequential(*(torch.nn.Linear(1670, 1670) for _ in range(3)))
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
rank = dist.get_rank()
with open(f"highest{{rank}}", "a+b") as file:
    file.truncate(8)
    highest = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")

def load():
    if KIND not in ("checkpoint to disk", "async_save") or not os.path.exists("last"):
        return 0
    step = int(open("last").read())
    weights, state = get_state_dict(model, optimizer)
    dcp.load({{"model": weights, "optimizer": state}}, checkpoint_id=f"out/{{step}}")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    return step

def done(step):
    if rank == 0:
        with open("last.new", "w") as file:
            file.write(str(step))
        os.replace("last.new", "last")

snapshots = Snapshots(model=model, optimizer=optimizer, every=1) if KIND == "snapshots" else None
step = snapshots.restore(otherwise=load) if snapshots else load()
saving = None
while True:
    ddp(torch.randn(4, 1670)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if snapshots:
        snapshots.take(step)
    if KIND in ("checkpoint to disk", "async_save") and step % EVERY == 0:
        weights, state = get_state_dict(model, optimizer)
        found = {{"model": weights, "optimizer": state}}
        if KIND == "async_save":
            if saving:
                saving[0].result()
                done(saving[1])
            where = f"out/{{step}}"
            saving = dcp.async_save(found, checkpoint_id=where, process_group=beside), step
        else:
            dcp.save(found, checkpoint_id=f"out/{{step}}")
            done(step)
    stamp("new" if step > highest[0] else "again")
    highest[0] = max(step, highest[0])
"""


def _first_of_all(launched: Launch, what: tuple[str, ...], cycle: int) -> list[Stamp] | bool:
    stamps = [each for kind in what for each in launched.stamps(kind) if each.cycle > cycle]
    first = {each.rank: each for each in sorted(stamps, key=lambda each: -each.at)}
    return len(first) == RANKS and list(first.values())


def _proportional_mb(pids: set[int]) -> float:
    """Memory of these processes; of what they share, each counts its share."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total * 1024 / 1e6


def _one(kind: str) -> tuple[float, float, int, float]:
    """Seconds from a kill to a new step (to the first step, where nothing is kept), and per step.

    Then the steps that were done again, and MB per rank.
    """
    script = _SCRIPT.format(kind=kind, every=EVERY)
    arguments = f"--nproc-per-node={RANKS}", "--max-restarts=3"
    with launch(WARM, script, *arguments) as launched:
        launched.wait_for_all("new", RANKS * STEPS_BEFORE, 0, BOUND_S)
        launched.wait_for_words("ranks can restart without importing", 1, BOUND_S)
        counted = launched.wait_for_all(
            "new", len(launched.stamps("new")) + RANKS * EVERY, 0, BOUND_S
        )
        of_one = [each.at for each in counted if each.rank == 0][-EVERY - 1 :]
        step_s = (of_one[-1] - of_one[0]) / (len(of_one) - 1)
        memory = _proportional_mb({each.pid for each in counted}) / RANKS
        time.sleep(random.uniform(0.0, EVERY * step_s))
        victim = next(each.pid for each in counted if each.rank == 1)
        killed_at = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        what = ("new", "again") if kind == NOTHING else ("new",)
        found = launched.wait_for(
            lambda: _first_of_all(launched, what, 0), "a step that none had done", BOUND_S
        )
        again = max(
            sum(each.rank == rank for each in launched.stamps("again")) for rank in range(RANKS)
        )
        return max(each.at for each in found) - killed_at, step_s, again, memory


def measure(rounds: int = ROUNDS) -> Report:
    """All kinds in turn, in rounds."""
    report = Report(f"{RANKS} ranks, DDP, 100 MB of state each, warm; checkpoints every {EVERY}")
    taken: dict[str, list[tuple[float, float, int, float]]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            taken[kind].append(_one(kind))
    for kind, rows in taken.items():
        faults, steps, again, memory = (list(column) for column in zip(*rows, strict=True))
        what = "the first step again" if kind == NOTHING else "a new step"
        report.add(f"{kind}: SIGKILL to {what} of all", "s", faults)
        report.add(f"{kind}: steps done again", "", [float(each) for each in again])
        report.add(f"{kind}: one step", "ms", [each * 1e3 for each in steps])
        report.add(f"{kind}: memory of a rank", "MB", memory)
    pairs = list(zip(taken[SNAPSHOTS], taken[NOTHING], strict=True))
    report.add(
        "new step with snapshots, against step 0 without",
        "x",
        [ours[0] / theirs[0] for ours, theirs in pairs],
        Bar(1.2),
    )
    report.add("one step with snapshots, against without", "x", [a[1] / b[1] for a, b in pairs])
    report.notes.append(
        "steps on cores that ranks share are noisy: the cost of a step is in snapshot"
    )
    return report
