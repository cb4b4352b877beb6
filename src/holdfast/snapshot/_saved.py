"""A snapshot that is being restored: its tensors, copied into live ones once all of it is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from holdfast.arena.arena import ArenaMemory
from holdfast.arena.pure.plain_data import decode
from holdfast.arena.pure.snapshots import SnapshotId
from holdfast.arena.pure.tensors_head import HeadError, parse
from holdfast.snapshot import _tensors

FIXED, CHANGING = "holdfast.fixed", "holdfast.changing"
"""Keys of the head's metadata: facts about the tensors, and those that may differ at each step."""
RANDOM = "random"
"""Name of the part with the random number generators."""


class MismatchError(Exception):
    """A snapshot does not fit the live state; the text says what, with shapes."""


class DamagedError(MismatchError):
    """Its bytes are not those that were taken."""


def is_damaged(arena: ArenaMemory, index: int, snapshot: SnapshotId, rank: int) -> bool:
    """Whether slot ``index`` does not hold the bytes of a rank's snapshot: another copy may."""
    found = arena.held(index) if index < arena.max_slots else None
    if found is None or (found.held.id, found.held.rank) != (snapshot, rank):
        return True
    if (expected := arena.sum_of(index)) is None:
        return False
    try:
        memory = torch.frombuffer(arena.map_slot(index), dtype=torch.uint8)
    except OSError:
        return True
    return _tensors.sum_of(memory, found.n_bytes) != expected


class Saved:
    """A snapshot in memory, read.

    Attributes:
        parts: Plain data by the name of the part of the state.
        optimizers: The structure of their states, by name of the part.
        parameters: Names of the parameters in each of their groups, by name of the part.
        modules: Names of the parts that are modules.
        aliases: Further names of tensors: the name that each has in the file.
        facts: Of tensors by name: device, type, and the whole that it is a shard of.
        step: Number of steps that were computed.
        memory: All bytes of it.
    """

    def __init__(self, memory: memoryview) -> None:
        """Read the head of the file in ``memory``.

        Raises:
            MismatchError: The bytes are no snapshot of holdfast.
        """
        try:
            head = parse(memory)
            fixed = json.loads(head.metadata[FIXED])
            changing = json.loads(head.metadata[CHANGING])
            self.facts: dict[str, dict[str, Any]] = fixed["tensors"]
            self.aliases: dict[str, str] = fixed["aliases"]
            self.optimizers: dict[str, Any] = fixed["optimizers"]
            self.modules: list[str] = fixed["modules"]
            self.parameters: dict[str, list[list[str]]] = fixed["parameters"]
            self.parts: dict[str, Any] = changing["parts"]
            self._arrays = frozenset(changing["arrays"])
            self.facts.update(changing["tensors"])
            self.step = int(head.metadata["step"])
        except (HeadError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise MismatchError(f"its head cannot be read: {error}") from error
        self._head = head
        self.memory = torch.frombuffer(memory, dtype=torch.uint8)
        self._used: set[str] = set()
        self._into: list[torch.Tensor] = []
        self._of: list[torch.Tensor] = []

    def has(self, name: str) -> bool:
        """Whether it holds a tensor of this name."""
        return self.aliases.get(name, name) in self._head.placed

    def put_into(self, name: str, live: torch.Tensor) -> None:
        """Copy it into a live tensor of the same shape and type, at :meth:`copy`."""
        found, part = self._view(name), _tensors.local(live)
        if found.shape != part.shape or found.dtype != part.dtype:
            raise MismatchError(
                f"{name} is {found.dtype} of shape {list(found.shape)} in the snapshot, and "
                f"{part.dtype} of shape {list(part.shape)} in this program"
            )
        self._schedule(part, found)

    def tensor(
        self, name: str, live: object = None, like: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``live`` if it is such a tensor, or a new one; filled at :meth:`copy`.

        ``like``: of the tensors that a new one is made as: device, order of elements, shards.
        """
        found, facts = self._view(name), self.facts.get(name, {})
        device = facts.get("device", "cpu")
        if isinstance(live, torch.Tensor):
            part = _tensors.local(live)
            is_such = part.shape == found.shape and part.dtype == found.dtype
            if is_such and part.device.type == device and (part is not live) == ("shard" in facts):
                self._schedule(part, found)
                return live
        part = _tensors.new_like(like, found.shape, found.dtype, device)
        self._schedule(part, found)
        if "shard" not in facts:
            return part
        if like is None or _tensors.local(like) is like:
            raise MismatchError(f"{name} is a shard in the snapshot, and not in this program")
        return _tensors.wrapped_as(like, part)

    def plain(self, found: Any) -> Any:
        """Plain data, with new tensors in it, which :meth:`copy` fills."""
        try:
            return decode(found, self._leaf)
        except (ValueError, TypeError, RecursionError) as error:
            raise MismatchError(f"its plain data cannot be read: {error}") from error

    def names(self) -> list[str]:
        """Of all tensors, without aliases."""
        return list(self._head.placed)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the part of a tensor that this file has."""
        return tuple(self.facts.get(name, {}).get("shape", self._head.placed[name].shape))

    def dtype(self, name: str) -> torch.dtype:
        """Raises ValueError: this torch does not know it."""
        known = self.facts.get(name, {}).get("dtype")
        placed = self._head.placed[name].dtype
        return _tensors.named_in_file(placed) if known is None else _tensors.dtype_named(known)

    def is_array(self, name: str) -> bool:
        """Whether it was an array of NumPy."""
        return name in self._arrays

    def view(self, name: str) -> torch.Tensor:
        """A tensor over the bytes of the file. Raises MismatchError."""
        return self._view(name)

    def unused(self) -> list[str]:
        """Names of tensors that the live state has not asked for."""
        return [name for name in self._head.placed if name not in self._used]

    def pairs(self) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        """Live tensors, and those of the snapshot that are copied into them."""
        return self._into, self._of

    def _leaf(self, name: str) -> Any:
        found = self.tensor(name)
        if name not in self._arrays:
            return found
        return found.numpy()  # shares its memory, which is filled later

    def _schedule(self, into: torch.Tensor, of: torch.Tensor) -> None:
        if of.numel():
            into, of = _tensors.copyable(into.detach(), of)
            self._into.append(into)
            self._of.append(of)

    def _view(self, name: str) -> torch.Tensor:
        own = self.aliases.get(name, name)
        if own not in self._head.placed:
            raise MismatchError(f"{name} is in this program, and not in the snapshot")
        self._used.add(own)
        [found] = _tensors.views(self.memory, self._head.data_at, [own], self._head.placed)
        facts = self.facts.get(own, {})
        try:
            if "dtype" in facts:
                dtype = _tensors.dtype_named(facts["dtype"])
                found = found.clone().view(dtype).view(facts["shape"])  # of any alignment
        except (RuntimeError, ValueError, TypeError) as error:
            raise MismatchError(f"{name} cannot be read: {error}") from error
        return found
