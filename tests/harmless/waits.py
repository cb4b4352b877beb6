"""Healthy scenarios: ranks wait for one that is away, each time in another call of torch."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

from tests.harmless.scenario import AT, Scenario, healthy, pause_s

HOURS = timedelta(hours=2)


class _Waits(Scenario):
    """Rank 0 is away; ``others`` is what the others do, and rank 0 when it is back."""

    def step(self, number: int) -> None:
        if number == AT:
            self.together()

    def together(self) -> None:
        self.away()
        self.meet()

    def away(self) -> None:
        if self.rank == 0:
            time.sleep(pause_s())

    def meet(self) -> None:
        raise NotImplementedError


@healthy
class OthersWaitInABarrier(_Waits):
    """Rank 0 saves a checkpoint; the others are in ``dist.barrier``."""

    fast = True

    def meet(self) -> None:
        import torch.distributed as dist

        dist.barrier()


@healthy
class OthersWaitForObjects(_Waits):
    """``broadcast_object_list`` of what rank 0 has read."""

    def meet(self) -> None:
        import torch.distributed as dist

        objects = ["x" if self.rank == 0 else None]
        dist.broadcast_object_list(objects, src=0)
        assert objects == ["x"]


@healthy
class OthersGather(_Waits):
    """``all_gather_object`` of results."""

    def meet(self) -> None:
        import torch.distributed as dist

        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, self.rank)
        assert gathered == list(range(len(gathered)))


@healthy
class OthersReceive(_Waits):
    """``recv`` of a tensor from rank 0."""

    def meet(self) -> None:
        import torch
        import torch.distributed as dist

        if self.rank == 0:
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.zeros(1), 0)


@healthy
class OthersReceiveInABatch(_Waits):
    """``batch_isend_irecv``, both ways."""

    def meet(self) -> None:
        import torch
        import torch.distributed as dist

        peer = 1 - self.rank
        tensors = torch.ones(1), torch.zeros(1)
        operations = [dist.P2POp(dist.isend, tensors[0], peer)]
        operations.append(dist.P2POp(dist.irecv, tensors[1], peer))
        for work in dist.batch_isend_irecv(operations):
            work.wait()


@healthy
class OthersWaitInAnotherGroup(_Waits):
    """A group of its own for checkpoints, with its own timeout."""

    def joined(self) -> None:
        import torch.distributed as dist

        self.group = dist.new_group(timeout=HOURS)

    def meet(self) -> None:
        import torch.distributed as dist

        dist.barrier(self.group)


@healthy
class OthersWaitAsynchronously(_Waits):
    """A collective with ``async_op``, waited for later."""

    def together(self) -> None:
        import torch
        import torch.distributed as dist

        if self.rank == 0:
            time.sleep(pause_s())
        work = dist.all_reduce(torch.ones(1), async_op=True)
        work.wait()


@healthy
class OthersWaitForAKey(_Waits):
    """Rank 0 sets a key of the job's store."""

    def meet(self) -> None:
        import torch.distributed as dist

        store = dist.distributed_c10d._get_default_store()
        if self.rank == 0:
            store.set("ready", "x")
        else:
            store.wait(["ready"], HOURS)


@healthy
class OthersPollForAFile(_Waits):
    """No collective at all: rank 1 looks for the file of rank 0."""

    def meet(self) -> None:
        path = Path(os.environ["OUT"]) / "ready"
        if self.rank == 0:
            path.touch()
        while not path.exists():
            time.sleep(0.1)


@healthy
class TheOthersPauseInTurn(Scenario):
    """Rank 0 is away, and then rank 1."""

    def step(self, number: int) -> None:
        if (number, self.rank) in ((AT, 0), (AT + 2, 1)):
            time.sleep(pause_s())


@healthy
class OthersWaitAtTheEnd(Scenario):
    """Rank 1 is done, and waits in a barrier while rank 0 writes the model."""

    def end(self) -> None:
        import torch.distributed as dist

        if self.rank == 0:
            time.sleep(pause_s())
        dist.barrier()


@healthy
class OneRankEndsLater(Scenario):
    """Rank 1 has exited; rank 0 works on for long, by itself."""

    def end(self) -> None:
        import torch.distributed as dist

        dist.barrier()
        if self.rank == 0:
            dist.destroy_process_group()
            time.sleep(2 * pause_s())
            self.mark("uploaded")


@healthy
class FourRanks(_Waits):
    """Three ranks wait for the first one."""

    nproc = 4
    kinds = ("plain",)

    def meet(self) -> None:
        import torch.distributed as dist

        dist.barrier()


@healthy
class ASubgroupWaits(_Waits):
    """Ranks 0 and 1 of four wait for each other in a group of two."""

    nproc = 4
    kinds = ("plain",)

    def joined(self) -> None:
        import torch.distributed as dist

        self.groups = [dist.new_group(pair, timeout=HOURS) for pair in ([0, 1], [2, 3])]

    def meet(self) -> None:
        import torch.distributed as dist

        dist.barrier(self.groups[self.rank // 2])
