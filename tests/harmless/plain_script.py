"""A plain training loop: DDP over gloo. It reports nothing by itself."""

import os
import sys
import threading
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from tests.harmless import scenario as s

SCENARIO = s.chosen()

if "HARMLESS_LIGHT_TORCH" in os.environ:
    from tests.real import light_torch  # noqa: F401
import torch  # noqa: E402 - a scenario may act before
import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader, Dataset, Subset  # noqa: E402

step_section = nullcontext
"""Around each step, but not what the scenario does before it."""
TIMEOUT = timedelta(seconds=getattr(SCENARIO, "timeout_s", 7200.0))
BATCH = 2


class Samples(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        SCENARIO.item(index)
        drawn = torch.randn(5, generator=torch.Generator().manual_seed(index))
        return drawn[:4], drawn[4:]


def batches(rank, world):
    """Sample 2 * BATCH * step and the next one are those of rank 0 of two, as elsewhere."""
    own = [i for i in range(len(Samples())) if i // BATCH % world == rank]
    return DataLoader(Subset(Samples(), own), batch_size=BATCH, num_workers=SCENARIO.workers)


def join(**where):
    dist.init_process_group("gloo", timeout=TIMEOUT, **where)
    SCENARIO.joined()
    torch.manual_seed(1)
    return torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    )


def train(model, steps=s.STEPS, first=0):
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1)]
    if SCENARIO.loop == "several optimizers":
        halves = model.module[0].parameters(), model.module[2].parameters()
        optimizers = [torch.optim.SGD(half, lr=0.1) for half in halves]
    elif SCENARIO.loop == "no optimizer":
        optimizers = []
    loader = iter(batches(dist.get_rank(), dist.get_world_size()))
    for number in range(first, first + steps):
        SCENARIO.step(number)
        with step_section():
            step(model, loader, optimizers)
    return steps


def step(model, loader, optimizers):
    for _ in range(SCENARIO.accumulate):
        given, wanted = next(loader)
        torch.nn.functional.mse_loss(model(given), wanted).backward()
    for optimizer in optimizers:
        optimizer.step()
    if not optimizers:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.1 * parameter.grad)
    model.zero_grad()


def weights(model):
    return b"".join(each.detach().numpy().tobytes() for each in model.parameters())


def spawned(number, port):
    """In a process that the rank has started."""
    os.environ.update(MASTER_PORT=port, RANK=str(number), WORLD_SIZE="2")
    dist.init_process_group("gloo", timeout=TIMEOUT)
    total = torch.ones(1)
    for _ in range(s.STEPS):
        dist.all_reduce(total)
    SCENARIO.mark(f"spawned {number} {total.item()}")
    dist.destroy_process_group()


def main():
    if SCENARIO.loop == "spawned ranks":
        import socket

        import torch.multiprocessing as mp

        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        mp.spawn(spawned, (port,), nprocs=2)
    model = join()
    if SCENARIO.loop == "in a thread":
        worker = threading.Thread(target=train, args=(model,))
        worker.start()
        worker.join()
        steps = s.STEPS
    elif SCENARIO.loop == "group made again":
        steps = train(model, s.STEPS // 2)
        state = model.module.state_dict()
        dist.destroy_process_group()
        again = f"file://{os.environ['OUT']}/again"  # the first store has the first group's keys
        model = join(init_method=again, rank=SCENARIO.rank, world_size=SCENARIO.nproc)
        model.module.load_state_dict(state)
        steps += train(model, s.STEPS - steps, steps)
    else:
        steps = train(model)
    s.finished(SCENARIO, steps, weights(model))
    if SCENARIO.loop != "group left open" and dist.is_initialized():
        del model  # first, or its group may hang (torch 2.13)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
