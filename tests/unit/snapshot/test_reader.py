"""A snapshot of four ranks, loaded by one: as a checkpoint that DCP reads."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from holdfast.arena.pure.file_names import FileList, NamedSnapshot, RankFile, life_name, rank_file
from holdfast.arena.pure.messages import OtherWorld
from holdfast.arena.pure.snapshots import OF_A_FILE, SnapshotId
from holdfast.arena.sums import checksum
from holdfast.base.pure.codec import encode
from holdfast.errors import SnapshotError
from holdfast.snapshot import Snapshots, _tensors
from holdfast.snapshot._launcher_link import LauncherLink
from holdfast.snapshot._live_state import LiveState
from holdfast.snapshot._reader import SnapshotReader
from tests.unit.snapshot.one_rank import same

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
STEP, WORLD = 7, 4
SNAPSHOT = SnapshotId(OF_A_FILE, 0, STEP)


class Tied(nn.Module):
    """Tied weights; six rows, so that one of four ranks has none of them; extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight
        self.last = nn.Linear(6, 10)
        self.norm = nn.BatchNorm1d(10)
        self.seen = {"tokens": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.last(self.second(self.first(x))))
        return found

    def get_extra_state(self) -> Any:
        return self.seen

    def set_extra_state(self, state: Any) -> None:
        self.seen = state


def trained(steps: int) -> tuple[Tied, torch.optim.AdamW, dict[str, Any]]:
    torch.manual_seed(steps)
    model = Tied()
    groups = [{"params": [*model.first.parameters()], "lr": 0.25}, {"params": [
        *model.last.parameters(), *model.norm.parameters()]}]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=0.125, betas=(0.5, 0.75))
    for _ in range(steps):
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
    model.seen = {"tokens": 10 * steps}
    mean = {"w": torch.full((3,), 1.0 + steps), "best": (steps, torch.tensor([2.0]))}
    return model, optimizer, mean


class Rank:
    """One of four ranks that have the rows of each parameter, as FSDP2 has."""

    def __init__(self, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
        model, self.optimizer, mean = trained(STEP)
        full, self.model = model, model
        facts: dict[int, Any] = {}

        def shard(whole: torch.Tensor) -> torch.Tensor:
            n = -(-len(whole) // WORLD)
            begin = min(rank * n, len(whole))
            part = whole.detach()[begin : begin + n].clone()
            offsets = [begin, *[0] * (whole.dim() - 1)]
            facts[id(part)] = {"shape": list(whole.shape), "offsets": offsets}
            self.kept.append(part)
            return part

        self.kept: list[torch.Tensor] = []
        for parameter in full.parameters():
            own = self.optimizer.state[parameter]
            for key in ("exp_avg", "exp_avg_sq"):
                own[key] = shard(own[key])
            part = shard(parameter)
            facts[id(parameter)] = facts[id(part)]
            parameter.data = part
        described = _tensors.described

        def with_shards(tensor: torch.Tensor) -> dict[str, Any]:
            found = described(tensor)
            return found | ({"shard": facts[id(tensor)]} if id(tensor) in facts else {})

        monkeypatch.setattr(_tensors, "described", with_shards)
        live = LiveState(
            {"model": self.model, "optimizer": self.optimizer, "mean": mean, "rank": {"of": rank}}
        )
        captured = live.capture(STEP)
        monkeypatch.undo()
        self.content = bytearray(captured.head.n_bytes)
        self.content[: len(captured.first_bytes)] = captured.first_bytes
        tensors = [*captured.fenced, *captured.changing]
        for name, tensor in zip(captured.names, tensors, strict=True):
            at = captured.head.data_at + captured.head.placed[name].begin
            bytes_ = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            self.content[at : at + len(bytes_)] = bytes_


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A snapshot of four ranks on disk."""
    path = tmp_path / str(NamedSnapshot(STEP, WORLD, life_name("a", 0, 0)))
    path.mkdir()
    files = []
    for rank in range(WORLD):
        content = Rank(rank, monkeypatch).content
        (path / rank_file(rank)).write_bytes(content)
        files.append(RankFile(rank, len(content), checksum(memoryview(content))))
    listed = FileList(STEP, WORLD, tuple(files))
    (path / "ranks-0.json").write_text(json.dumps(encode(listed)))
    return path


class Link(LauncherLink):
    """Notes what the launcher gets to know."""

    def __init__(self) -> None:
        super().__init__("none", 0)
        self.sent: list[tuple[SnapshotId, str]] = []

    def send_unusable(self, snapshot: SnapshotId, why: str, *, is_damaged: bool = False) -> None:
        assert not is_damaged, "a file has no other copy"
        self.sent.append((snapshot, why))


@pytest.fixture
def link() -> Link:
    return Link()


def reader(folder: Path, link: Link) -> SnapshotReader:
    return SnapshotReader(OtherWorld(SNAPSHOT, str(folder)), link)


def loaded(found: SnapshotReader, *, flat: bool = False) -> tuple[Tied, torch.optim.AdamW]:
    model, optimizer, _ = trained(1)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    weights, moments = get_state_dict(model, optimizer, options=options)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, storage_reader=found, no_dist=True)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"],
        options=options,
    )  # fmt: skip
    return model, optimizer


@pytest.mark.parametrize("flat", [False, True])
def test_shards_of_four_ranks_become_the_state_of_one(folder: Path, link: Link, flat: bool) -> None:
    found = reader(folder, link)
    assert (found.step, found.world_size) == (STEP, WORLD)
    model, optimizer = loaded(found, flat=flat)
    expected, trained_optimizer, _ = trained(STEP)
    assert same(dict(model.state_dict()), dict(expected.state_dict()))
    assert same(optimizer.state_dict()["state"], trained_optimizer.state_dict()["state"])
    groups = [
        {key: group[key] for key in ("lr", "betas", "weight_decay", "params")}
        for it in (optimizer, trained_optimizer)
        for group in it.state_dict()["param_groups"]
    ]
    assert groups[:2] == groups[2:]
    assert link.sent == []


def test_plain_parts_are_those_of_rank_0(folder: Path, link: Link) -> None:
    state = {"mean": {"w": torch.zeros(3), "best": (0, torch.zeros(1))}, "rank": {"of": -1}}
    dcp.load(state, storage_reader=reader(folder, link), no_dist=True)
    assert same(state, {"mean": trained(STEP)[2], "rank": {"of": 0}})


def test_nothing_that_a_file_holds_is_unpickled(folder: Path, link: Link) -> None:
    """Bytes that DCP unpickles are made in this process, of plain data."""
    found = reader(folder, link)
    on_disk = b"".join(it.read_bytes() for it in folder.iterdir())
    assert b"PK\x03\x04" not in on_disk, "no archive of torch.save"
    value = torch.load(found._pickled("optimizer.param_groups.0.betas"), weights_only=True)
    assert value == (0.5, 0.75)
    assert isinstance(found._pickled("rank.of"), io.BytesIO)


@pytest.mark.parametrize("rank", range(WORLD))
def test_bytes_that_have_changed_are_not_used_and_the_launcher_knows_it(
    folder: Path, link: Link, rank: int
) -> None:
    """One byte of the last tensor of the file."""
    file = folder / rank_file(rank)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    found = reader(folder, link)
    with pytest.raises(
        BaseException, match=f"the file of rank {rank} of 4: its bytes have changed"
    ):
        loaded(found)
    [(snapshot, why)] = link.sent
    assert snapshot == SNAPSHOT
    assert "its bytes have changed" in why


def test_a_file_that_is_missing_is_named(folder: Path, link: Link) -> None:
    (folder / rank_file(2)).unlink()
    with pytest.raises(SnapshotError, match="the file of rank 2 is missing"):
        reader(folder, link)
    assert link.sent[0][0] == SNAPSHOT


def test_what_the_program_has_and_the_snapshot_has_not_is_named(folder: Path, link: Link) -> None:
    with pytest.raises(BaseException, match=r"schedule\.last_epoch"):
        dcp.load({"schedule": {"last_epoch": 0}}, storage_reader=reader(folder, link), no_dist=True)


def test_without_such_a_snapshot_there_is_no_reader() -> None:
    snapshots = Snapshots(done={})
    assert snapshots.restore(otherwise=lambda: 3) == 3
    assert not snapshots.world_changed
    with pytest.raises(RuntimeError, match="there is no snapshot of another number of ranks"):
        snapshots.reader()
