"""Train with FSDP2 under ft_launcher; DCP checkpoints that are complete or not there.

    ft_launcher --nproc-per-node 2 --max-restarts 3 \
        --ft-rank-section-timeouts setup:60,step:10,checkpointing:60 \
        --ft-rank-out-of-section-timeout 30 \
        examples/train_fsdp2.py --run-dir runs/fsdp2

On CPUs with gloo, so that it runs anywhere; with GPUs, write "cuda" and "nccl". Lines marked (*)
are all that fault tolerance adds.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holdfast.fault_tolerance as ft
from faults import FaultPlan


def newest(folder: Path) -> int:
    """Step of the newest complete checkpoint; DCP writes ``.metadata`` last. 0: there is none."""
    complete = [path.parent.name for path in folder.glob("*/.metadata")]
    return max(map(int, complete), default=0)


def states(model: Any, optimizer: Any) -> dict[str, Any]:
    """What a checkpoint holds, each rank its shards."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, default=Path("runs/fsdp2"))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--checkpoint-every", type=int, default=20)
    args = parser.parse_args()

    client = ft.client()  # (*) its calls do nothing under plain python or torchrun
    with client.section("setup"):  # (*)
        dist.init_process_group("gloo")
        torch.manual_seed(7)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
        for layer in (*model, model):
            fully_shard(layer, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if step := newest(args.run_dir):
            state = states(model, optimizer)
            load(state, checkpoint_id=str(args.run_dir / str(step)))
            weights, moments = state["model"], state["optimizer"]
            set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        print(f"rank {dist.get_rank()} goes on from step {step}", flush=True)
        args.run_dir.mkdir(parents=True, exist_ok=True)
        faults = FaultPlan(args.run_dir)  # for the tests; leave it out

    loss = torch.zeros(())
    while step < args.steps:
        with client.section("step"):  # (*)
            faults.maybe(step, dist.get_rank())
            batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(step))
            loss = model(batch).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        if step % args.checkpoint_every == 0:
            with client.section("checkpointing"):  # (*)
                save(states(model, optimizer), checkpoint_id=str(args.run_dir / str(step)))

    print(f"rank {dist.get_rank()} is done after step {step}, loss {loss.item():.6f}", flush=True)
    client.shutdown_workload_monitoring()  # (*)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
