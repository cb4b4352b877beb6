"""A snapshot that another number of ranks took, as a checkpoint that ``dcp.load`` reads.

    files of all ranks ──► heads ──► tensors with their shards, plain values by key
    dcp.load asks for blocks of tensors ──► bytes of the files that have them, checked once

Keys are those of ``{"model": ..., "optimizer": ...}`` with the results of ``get_state_dict``, as
DCP flattens them: a mapping by its keys, a list that has mappings or tensors in it by its numbers,
joined by dots. Nothing that a file holds is unpickled: DCP takes plain values as pickled bytes, and
these are made here, from JSON.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from holdfast.arena import snapshot_files
from holdfast.arena.pure.file_names import rank_file
from holdfast.arena.pure.messages import FileToRestore, OtherWorld
from holdfast.arena.pure.plain_data import decode
from holdfast.arena.pure.tiles import ShardOfRank, TilesError, tiles
from holdfast.snapshot import _files
from holdfast.snapshot._launcher_link import LauncherLink
from holdfast.snapshot._saved import RANDOM, MismatchError, Saved

_OF_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")
"""In names of parameters; ``get_state_dict`` leaves these out."""
_Unusable = (MismatchError, TilesError, OSError, ValueError, LookupError, TypeError, RecursionError)


class _Tensor(NamedTuple):
    """A place for a tensor in plain data: its name in the file."""

    name: str
    is_array: bool


class _Whole(NamedTuple):
    """A tensor, put together: rank and name in its file, by the offsets of the tile."""

    metadata: TensorStorageMetadata
    tiles: Mapping[tuple[int, ...], tuple[int, str]]


class _File:
    """The file of one rank."""

    def __init__(self, file: FileToRestore) -> None:
        self._file = file
        self._memory = _files.map_file(file)
        self.saved = Saved(self._memory)
        self._is_checked = False

    def checked(self) -> Saved:
        """All bytes are those that were written; raises MismatchError."""
        if not self._is_checked:
            _files.check(self._file, self._memory)
            self._is_checked = True
        return self.saved


class SnapshotReader(StorageReader):
    """See :meth:`holdfast.snapshot.Snapshots.reader`.

    Attributes:
        step: Number of steps done.
        world_size: Of the ranks that took the snapshot.
    """

    def __init__(self, other: OtherWorld, link: LauncherLink) -> None:
        """Read the heads of all files.

        Raises:
            SnapshotError: One cannot be read, or they do not fit each other.
        """
        self._snapshot, self._link = other.snapshot, link
        self.step = other.snapshot.step
        self._tensors: dict[str, _Whole] = {}
        self._values: dict[str, Any] = {}
        try:
            self._open(other.path)
            self._find()
        except _Unusable as error:
            raise link.unusable(self._snapshot, str(error)) from error

    # ------------------------------------------------------------ found
    def _open(self, path: str) -> None:
        filed = snapshot_files.read_one(path)
        self.world_size = filed.on_disk.world_size
        self._ranks: list[_File] = []
        for rank in range(self.world_size):
            if (it := filed.files.get(rank)) is None:
                why = "; ".join(filed.problems) or "no list has it"
                raise MismatchError(f"the file of rank {rank} is missing: {why}")
            name = f"{path}/{rank_file(rank)}"
            self._ranks.append(_File(FileToRestore(name, it.n_bytes, it.total, it.crc32)))
            if (step := self._ranks[-1].saved.step) != self.step:
                raise MismatchError(f"the head of rank {rank} is of step {step}")

    def _find(self) -> None:
        for file in self._ranks:
            saved = file.saved
            for name in (*saved.names(), *saved.aliases):
                if name.partition(".")[0] in saved.modules or name in saved.parts:
                    for key in {name, _without_wrappers(name)}:
                        self._add(key, _Tensor(saved.aliases.get(name, name), is_array=False))
            for name, structure in saved.optimizers.items():
                self._find_optimizer(saved, name, structure)
        first = self._ranks[0].saved
        for name, part in first.parts.items():
            if name in first.modules:
                for path, extra in part.items():
                    key = ".".join(filter(None, (name, path, "_extra_state")))
                    self._add_all(_without_wrappers(key), _plain(first, extra))
            elif name not in first.optimizers and name != RANDOM:
                self._add_all(name, _plain(first, part))

    def _find_optimizer(self, saved: Saved, name: str, structure: Mapping[str, Any]) -> None:
        """Its state as one rank has it, by the names that its parameters have in the module."""
        names_of: dict[str, list[str]] = {}
        for alias, own in saved.aliases.items():
            names_of.setdefault(own, []).append(alias)
        part = saved.parts[name]
        for parameter, own in structure.items():
            values = _plain(saved, part["values"].get(parameter, {}))
            for each in (parameter, *names_of.get(parameter, ())):
                for key, tensor in own.items():
                    found = values[key] if tensor is None else _Tensor(tensor, is_array=False)
                    self._add_all(f"{name}.state.{_in_module(saved, each)}.{key}", found)
        groups = _plain(saved, part["groups"])
        for number, (group, names) in enumerate(zip(groups, saved.parameters[name], strict=True)):
            in_module = [_in_module(saved, each) for each in names]
            self._add_all(f"{name}.param_groups.{number}", {**group, "params": in_module})
            for each in in_module:  # as get_state_dict has it when it flattens
                self._add_all(f"{name}.param_groups.{each}", group)

    def _add_all(self, key: str, value: Any) -> None:
        for path, leaf in _leaves(key, value):
            self._add(path, leaf)

    def _add(self, key: str, value: Any) -> None:
        if key in self._tensors or key in self._values:
            return
        if not isinstance(value, _Tensor) or value.is_array:
            self._values[key] = value
            return
        having = [
            (rank, it.saved) for rank, it in enumerate(self._ranks) if it.saved.has(value.name)
        ]
        rank, saved = having[0]
        shard = saved.facts.get(value.name, {}).get("shard")
        if shard is None:
            shape = saved.shape(value.name)
            found = [ShardOfRank(rank, (0,) * len(shape), shape)]
        else:
            shape = tuple(shard["shape"])
            found = [_shard(rank, it, value.name, shape) for rank, it in having]
        try:
            found = tiles(shape, found)
        except TilesError as error:
            raise TilesError(
                f"{value.name} cannot be put together from the shards of {self.world_size} ranks: "
                f"{error}"
            ) from error
        self._tensors[key] = _Whole(
            TensorStorageMetadata(
                TensorProperties(dtype=saved.dtype(value.name)),
                torch.Size(shape),
                [
                    ChunkStorageMetadata(torch.Size(it.offsets or ()), torch.Size(it.sizes))
                    for it in found
                ],
            ),
            {it.offsets or (): (it.rank, value.name) for it in found},
        )

    # ------------------------------------------------------------ as torch asks
    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """There is one snapshot: nothing is to be done."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003
        """Of none: a reader is made by :meth:`.Snapshots.reader`."""
        return False

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002
        """Keys, shapes and shards."""
        found: dict[str, Any] = {key: it.metadata for key, it in self._tensors.items()}
        return Metadata(found | dict.fromkeys(self._values, BytesStorageMetadata()))

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,  # noqa: FBT001 - as torch has it
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Nothing is to be done."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy blocks into live tensors. Raises SnapshotError for bytes that have changed."""
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._pickled(item.storage_index.fqn))
                continue
            found = self._block(item)
            into = planner.resolve_tensor(item).detach()
            into.copy_(found)
            planner.commit_tensor(item, into)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _block(self, item: ReadItem) -> torch.Tensor:
        index = item.storage_index
        rank, name = self._tensors[index.fqn].tiles[tuple(index.offset or ())]
        found = self._checked(rank).view(name)
        for dim, (begin, n) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            found = found.narrow(dim, begin, n)
        return found

    def _pickled(self, key: str) -> io.BytesIO:
        saved = self._checked(0)

        def tensor(found: _Tensor) -> Any:
            whole = saved.view(found.name).clone()
            return whole.numpy() if found.is_array else whole

        content = io.BytesIO()
        torch.save(_filled(self._values[key], tensor), content)
        content.seek(0)
        return content

    def _checked(self, rank: int) -> Saved:
        try:
            return self._ranks[rank].checked()
        except MismatchError as error:
            why = f"the file of rank {rank} of {self.world_size}: {error}"
            raise self._link.unusable(self._snapshot, why) from error


def _shard(rank: int, saved: Saved, name: str, shape: tuple[int, ...]) -> ShardOfRank:
    shard = saved.facts.get(name, {}).get("shard")
    if shard is None or tuple(shard["shape"]) != shape:
        raise MismatchError(f"{name} is of shape {list(shape)} on other ranks than rank {rank}")
    offsets = shard["offsets"]
    return ShardOfRank(rank, None if offsets is None else tuple(offsets), saved.shape(name))


def _in_module(saved: Saved, parameter: str) -> str:
    """The name of a parameter without that of the part."""
    part, _, rest = parameter.partition(".")
    return _without_wrappers(rest if part in saved.modules else parameter)


def _without_wrappers(name: str) -> str:
    for each in _OF_WRAPPERS:
        name = name.replace(each, "")
    return name


def _plain(saved: Saved, found: Any) -> Any:
    """Plain data, with a :class:`_Tensor` in the place of each."""
    return decode(found, lambda name: _Tensor(name, saved.is_array(name)))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What DCP reads separately."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(f"{path}.{key}", each)
    elif isinstance(value, list) and _is_traversed(value):
        for number, each in enumerate(value):
            yield from _leaves(f"{path}.{number}", each)
    else:
        yield path, value


def _is_traversed(values: list[Any]) -> bool:
    return any(
        isinstance(each, Mapping)
        or (isinstance(each, list) and _is_traversed(each))
        or (isinstance(each, _Tensor) and not each.is_array)
        for each in values
    )


def _filled(value: Any, tensor: Callable[[_Tensor], Any]) -> Any:
    if isinstance(value, _Tensor):
        return tensor(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_filled(each, tensor) for each in value)
    if isinstance(value, Mapping):
        made: Any = type(value)
        return made({key: _filled(each, tensor) for key, each in value.items()})
    return value
