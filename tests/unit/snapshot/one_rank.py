"""A training of one rank, and what tests do with its snapshots."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from holdfast.snapshot import Snapshots
from tests.snapshot_launcher import SnapshotLauncher
from tests.waiting import until


def take(snapshots: Snapshots, step: int) -> None:
    """As soon as there is memory: the same step may not be taken twice, so it is waited for."""
    taking = snapshots._taking
    assert taking is not None
    n_bytes = taking._live.capture(step).head.n_bytes
    if not taking._ring.is_prepared(n_bytes, taking._n_slots):
        taking._prepare(n_bytes)
        until(lambda: taking._ring.is_prepared(n_bytes, taking._n_slots), "memory")
    assert snapshots.take(step)


def again(launcher: SnapshotLauncher, snapshots: Snapshots) -> Any:
    """The rank has ended, and the job restarts; returns the snapshot that was chosen."""
    snapshots.close()
    return launcher.next_cycle(1)


OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True, amsgrad=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=1e-2, max_iter=3),
}


class Training:
    """Batch norm, dropout, tied weights, a schedule, and a history that grows."""

    def __init__(self, optimizer: str = "adamw") -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(8, 16),
            nn.BatchNorm1d(16),
            nn.Dropout(0.3),
            nn.Linear(16, 8, bias=False),
            nn.Linear(8, 16, bias=False),
            nn.Linear(16, 8, bias=False),
        )
        self.model[5].weight = self.model[3].weight
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [3, 6])
        self.history: dict[str, Any] = {"losses": [], "best": None}

    @property
    def parts(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "history": self.history,
        }

    def step(self) -> None:
        batch = torch.randn(5, 8)

        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss: torch.Tensor = self.model(batch).square().mean()
            loss.backward()
            return loss

        loss = self.optimizer.step(closure)
        self.schedule.step()
        self.history["losses"].append(loss.item())
        self.history["best"] = (len(self.history["losses"]), loss.detach().clone())

    def state(self) -> Any:
        """All of it, to be compared bit by bit."""
        return (
            [x.detach().clone() for x in self.model.state_dict().values()],
            clone(self.optimizer.state_dict()),
            clone(self.schedule.state_dict()),
            clone(self.history),
            torch.get_rng_state(),
        )


def clone(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: clone(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(clone(each) for each in value)
    return value


def same(a: Any, b: Any) -> bool:
    """Equal, of the same types, tensors bit by bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
