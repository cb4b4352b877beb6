"""The finds of a walk through the live state: tensors with stable names, and where they were."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from holdfast.arena.pure.plain_data import encode
from holdfast.snapshot._tensors import Entry, refusal


class UnsupportedTensorError(ValueError):
    """A tensor whose bytes a snapshot cannot hold; the text names it, and has the remedy."""


class FoundTensors:
    """Tensors of a walk, in its order.

    Attributes:
        entries: One per tensor.
        aliases: A further name of a tensor: the name that it has in ``entries``.
        arrays: Names of those that are arrays of NumPy.
    """

    def __init__(self, taken: Mapping[str, object] | None = None) -> None:
        """``taken``: names that another walk has used."""
        self.entries: list[Entry] = []
        self.aliases: dict[str, str] = {}
        self.arrays: list[str] = []
        self._taken = taken or {}
        self._names: dict[str, None] = {}
        self._by_identity: dict[int, str] = {}

    @property
    def names(self) -> Mapping[str, object]:
        """Of all tensors of this walk."""
        return self._names

    def tensor(self, name: str, tensor: torch.Tensor, *, is_fenced: bool = False) -> str:
        """Add it; returns its name in the snapshot. One that was found before gets an alias.

        Raises:
            UnsupportedTensorError: Its bytes cannot be copied.
        """
        known = self._by_identity.get(id(tensor))
        if known is not None:
            self.aliases[name] = known
            return known
        if why := refusal(tensor):
            raise UnsupportedTensorError(f"{name} {why}")
        while name in self._names or name in self._taken:
            name += "_"
        self._names[name] = None
        self._by_identity[id(tensor)] = name
        self.entries.append(Entry(name, tensor, is_fenced))
        return name

    def plain(self, value: Any, path: str) -> Any:
        """Plain data with tensors and arrays in it, as JSON's types.

        Raises:
            NotPlainError: A value is neither.
            UnsupportedTensorError: A tensor's bytes cannot be copied.
        """
        return encode(value, path, self._leaf)

    def _leaf(self, path: str, value: Any) -> str | None:
        if isinstance(value, torch.Tensor):
            return self.tensor(path, value)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            try:
                tensor = torch.from_numpy(numpy.array(value))  # a copy: of any order, writable
            except TypeError:  # of a type that torch has not
                return None
            name = self.tensor(path, tensor)
            self.arrays.append(name)
            return name
        return None


class WalkedTables:
    """Dictionaries that were walked, and whether they still hold the same objects."""

    def __init__(self) -> None:
        self._noted: list[tuple[Mapping[Any, Any], int, list[tuple[Any, Any]]]] = []

    def note(self, mapping: Mapping[Any, Any], values: Mapping[Any, Any] | None = None) -> None:
        """``values``: those of it that must stay the same objects; None: all."""
        pairs = list((mapping if values is None else values).items())
        self._noted.append((mapping, len(mapping), pairs))

    def is_same(self) -> bool:
        """About 0.1 ms for 100 modules of 300 dictionaries."""
        for mapping, n, pairs in self._noted:
            if len(mapping) != n:
                return False
            for key, value in pairs:
                if mapping.get(key) is not value:
                    return False
        return True
