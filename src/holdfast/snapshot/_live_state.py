"""The live state of a training: walked, and described so that it can be put back.

The walk is made anew only where a dictionary that it went through holds other objects; otherwise a
snapshot costs a comparison and the JSON of plain data, less than a millisecond for 400 tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from holdfast.arena.pure.plain_data import NotPlainError
from holdfast.arena.pure.tensors_head import Head
from holdfast.snapshot import _random_state, _tensors
from holdfast.snapshot._found import FoundTensors, UnsupportedTensorError, WalkedTables
from holdfast.snapshot._parts import ModulePart, OptimizerPart, StatePart, ValuePart, part_of
from holdfast.snapshot._saved import CHANGING, FIXED, RANDOM, MismatchError, Saved


class Captured(NamedTuple):
    """The live state at one moment: tensors to be copied, and the head of the file.

    Attributes:
        head: The same object as long as tensors have the same names, types and shapes.
        first_bytes: The head, rendered.
        names: Of all tensors, in the order of the two lists below.
        fenced: Those that change in an optimizer's step alone.
        changing: Those that may change earlier.
    """

    head: Head
    first_bytes: bytes
    names: Sequence[str]
    fenced: Sequence[torch.Tensor]
    changing: Sequence[torch.Tensor]


class StateChangedError(ValueError):
    """Modules or groups of an optimizer are not those of the beginning, which a restart has."""


class LiveState:
    """Modules, optimizers and other parts, by the names that the user gave them."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        """Raises TypeError for a value that cannot be put back."""
        self._parts: list[StatePart] = [part_of(name, value) for name, value in state.items()]
        # Modules give parameters their names, which the optimizers use.
        self._parts.sort(
            key=lambda part: (isinstance(part, ValuePart), isinstance(part, OptimizerPart))
        )
        self._parts.append(ValuePart(RANDOM, _random_state.read, _random_state.write))
        self._watch: WalkedTables | None = None
        self._head: Head | None = None
        self._signature: Any = None
        self._made: dict[str, object] | None = None
        """Modules and groups of the first walk: a restarted program makes the same."""

    # ------------------------------------------------------------ taken
    def capture(self, step: int) -> Captured:
        """Find all of it. Nothing is copied.

        Raises:
            NotPlainError: An object's state holds a value that a snapshot cannot.
            UnsupportedTensorError: A tensor's bytes cannot be copied.
            StateChangedError: The program has made other modules or groups since the first call.
            HeadError: There are too many names.
        """
        fenced, changing = self._static()
        dynamic = FoundTensors(self._names)
        parts = {part.name: part.plain(dynamic) for part in self._parts}
        more = [_tensors.local(entry.tensor) for entry in dynamic.entries]
        changing = [*changing, *more]
        facts = {
            entry.name: found
            for entry in dynamic.entries
            if (found := _tensors.described(entry.tensor))
        }
        rest = _as_json({"parts": parts, "tensors": facts, "arrays": dynamic.arrays})
        metadata = (
            f'{{"format":"pt","step":"{step}","{FIXED}":{self._fixed},'
            f'"{CHANGING}":{_as_json(rest)}}}'
        )
        signature = [
            (entry.name, tensor.dtype, tensor.shape)
            for entry, tensor in zip(dynamic.entries, more, strict=True)
        ]
        first = None
        if self._head is not None and signature == self._signature:
            first = self._head.render(metadata)
        if first is None or self._head is None:
            self._signature = signature
            self._all_names = [*self._static_names, *(entry.name for entry in dynamic.entries)]
            tensors = [*fenced, *changing]
            rows = map(_tensors.placed_as, self._all_names, tensors)
            n_bytes = len(metadata)
            self._head = Head(list(rows), n_bytes + n_bytes // 4 + 1024)
            first = self._head.render(metadata)
            assert first is not None
        return Captured(
            self._head,
            first,
            self._all_names,
            _tensors.stored_of(fenced),
            _tensors.stored_of(changing),
        )

    def _static(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Local tensors that stay the same objects: fenced ones, and others."""
        if self._watch is None or not self._watch.is_same():
            self._walk()
        tensors = self._locals()
        shapes = [(tensor.shape, tensor.dtype) for tensor in tensors]
        if shapes != self._shapes:
            self._walk()
            tensors = self._locals()
        return tensors[: self._n_fenced], tensors[self._n_fenced :]

    def _locals(self) -> list[torch.Tensor]:
        if not self._has_shards:
            return self._tensors
        return [_tensors.local(tensor) for tensor in self._tensors]

    def _walk(self) -> None:
        self._watch, found, names = WalkedTables(), FoundTensors(), dict[int, str]()
        optimizers, made = {}, dict[str, object]()
        for part in self._parts:
            n_before = len(found.entries)
            structure = part.walk(found, self._watch, names)
            if structure is not None:
                optimizers[part.name] = structure
            if isinstance(part, ModulePart):
                made |= {it.name: (*it.tensor.shape,) for it in found.entries[n_before:]}
            elif isinstance(part, OptimizerPart):
                made[f"groups of {part.name}"] = part.groups(names)
        self._note_made(made)
        entries = sorted(found.entries, key=lambda entry: not entry.is_fenced)
        self._tensors = [entry.tensor for entry in entries]
        self._n_fenced = sum(entry.is_fenced for entry in entries)
        self._static_names = [entry.name for entry in entries]
        self._names = found.names
        local = [_tensors.local(tensor) for tensor in self._tensors]
        self._has_shards = any(a is not b for a, b in zip(local, self._tensors, strict=True))
        self._shapes = [(tensor.shape, tensor.dtype) for tensor in local]
        facts = {e.name: f for e in entries if (f := _tensors.described(e.tensor))}
        fixed = {
            "tensors": facts,
            "aliases": found.aliases,
            "optimizers": optimizers,
            "modules": [part.name for part in self._parts if isinstance(part, ModulePart)],
            "parameters": {
                part.name: made[f"groups of {part.name}"]
                for part in self._parts
                if isinstance(part, OptimizerPart)
            },
        }
        # A text in a JSON object of texts, as safetensors wants it.
        self._fixed, self._head = _as_json(_as_json(fixed)), None

    def _note_made(self, made: dict[str, object]) -> None:
        before, self._made = self._made, self._made or made
        if before is None or before == made:
            return
        name = next(name for name in {**before, **made} if made.get(name) != before.get(name))
        did = "was removed" if name not in made else "changed" if name in before else "was added"
        raise StateChangedError(
            f"{name} {did} since restore(), and a program that starts anew would not fit to it"
        )

    def device_types(self) -> set[str]:
        """Of modules, optimizers and tensors: ``cpu``, ``cuda``."""
        fenced, changing = self._static()
        return {tensor.device.type for tensor in (*fenced, *changing)}

    # ------------------------------------------------------------ restored
    def put_back(self, memory: memoryview) -> Saved:
        """Check that the snapshot in ``memory`` fits, and plan its copies: ``pairs()`` of it.

        Tensors have their values only after the copies and :meth:`finish`.

        Raises:
            MismatchError: It does not fit. The live state is not to be used.
        """
        saved, names = Saved(memory), dict[int, str]()
        for part in self._parts:
            if part.name not in saved.parts:
                raise MismatchError(f"{part.name} is in this program, and not in the snapshot")
            part.put_back(saved, saved.parts[part.name], names)
        more = sorted(set(saved.parts) - {part.name for part in self._parts}) or saved.unused()
        if more:
            raise MismatchError(f"{more[0]} is in the snapshot, and not in this program")
        return saved

    def finish(self) -> None:
        """After the copies."""
        for part in self._parts:
            part.finish()
        self._watch = None


def _as_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


__all__ = [
    "Captured",
    "LiveState",
    "MismatchError",
    "NotPlainError",
    "StateChangedError",
    "UnsupportedTensorError",
]
