"""A rank of a DDP or FSDP2 job that takes snapshots: its fingerprints of each step, to a file.

``python -m tests.real.snapshot_rank`` forks the ranks of a job for each line on stdin, with the
variables that torchrun gives them; so that a life costs no imports.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from holdfast.snapshot import Snapshots

OPTIMIZERS: dict[str, Any] = {
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
}


class Tied(nn.Module):
    """Batch norm, dropout, tied weights; one parameter has fewer rows than there are ranks."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(32, 64, bias=False)
        self.middle = nn.Sequential(
            nn.Linear(64, 64),
            nn.BatchNorm1d(64) if norm else nn.LayerNorm(64),
            nn.Dropout(0.2),
            nn.Linear(64, 1),
        )
        self.out = nn.Linear(32, 64, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.middle(self.embed(x)) + self.out(x).mean()
        return found


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Any) -> str:
    """Of all bytes of this rank's state."""
    digest = hashlib.blake2b(digest_size=8)
    moments = [
        x
        for group in optimizer.param_groups
        for p in group["params"]
        for _, x in sorted(optimizer.state.get(p, {}).items())
    ]
    for each in (*model.parameters(), *model.buffers(), *moments, torch.get_rng_state()):
        part = getattr(each, "_local_tensor", each).detach().contiguous().reshape(-1)
        digest.update(bytes(part.view(torch.uint8).tolist()))
    digest.update(repr(schedule.state_dict()).encode())
    return digest.hexdigest()


def main(kind: str, optimizer_name: str, mode: str, steps: str, file: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank() if kind == "ddp" else 0)
    inner = Tied(norm=kind == "ddp")
    if kind == "ddp":
        # Otherwise it sums in other buckets in the first step of a process than in later ones: more
        # than two ranks would then add in another order, restored or not.
        model: nn.Module = nn.parallel.DistributedDataParallel(inner, find_unused_parameters=True)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(inner.middle, mesh=mesh)
        fully_shard(inner, mesh=mesh)
        model = inner
    torch.manual_seed(100 + dist.get_rank())
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    snapshots = Snapshots(
        beside=mode == "beside", model=model, optimizer=optimizer, schedule=schedule
    )
    step = snapshots.restore()
    with Path(file).open("a") as out:
        print("restored", step, fingerprint(model, optimizer, schedule), file=out, flush=True)
        while step < int(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 32)).square().mean().backward()
            optimizer.step()
            schedule.step()
            step += 1
            print("step", step, fingerprint(model, optimizer, schedule), file=out, flush=True)
            print("taken", step, int(snapshots.take(step)), file=out, flush=True)
    snapshots.close()
    leave(dist.distributed_c10d._get_default_store())


def leave(store: Any) -> None:
    """Return when no rank needs this one any more.

    In place of ``destroy_process_group``: a job of four ranks that ended with it once never ended.
    """
    rank, others = dist.get_rank(), range(1, dist.get_world_size())
    store.set(f"done/{rank}", "")
    store.wait([f"done/{each}" for each in (0, *others)])
    store.set(f"left/{rank}", "")
    if rank == 0:  # it serves the store
        store.wait([f"left/{each}" for each in others])


def forked(env: dict[str, str], arguments: list[str], errors: str) -> int:
    """Its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.environ.update(env)
        with Path(errors).open("wb") as file:
            os.dup2(file.fileno(), 2)
        main(*arguments)
    except BaseException:  # noqa: BLE001 - the process must not go on as its parent
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def zygote() -> None:
    """Each line is a list of ranks; answers are their pids, and, when all have ended, statuses."""
    torch.set_num_threads(1)
    warm = nn.Parameter(torch.zeros(1))
    warm.grad = torch.zeros(1)
    torch.optim.AdamW([warm]).step()  # imports modules, which costs seconds
    for name in ("torch.distributed.fsdp", "holdfast.snapshot._taking"):
        importlib.import_module(name)
    for line in sys.stdin:
        pids = [forked(*each) for each in json.loads(line)]
        print(json.dumps(pids), flush=True)
        for pid in pids:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        print(json.dumps([os.waitpid(pid, 0)[1] for pid in pids]), flush=True)


if __name__ == "__main__":
    zygote()
