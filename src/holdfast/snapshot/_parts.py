"""The parts of a training's state: how each is walked, and how it is put back.

    torch.nn.Module          parameters, persistent buffers, extra state; copied into the live ones
    torch.optim.Optimizer    state of each parameter, made anew where there is none yet; options
    torch.Tensor             copied into the live one
    a random generator       of torch, NumPy, Python: its state
    object                   the result of its state_dict(), for its load_state_dict()
    dict, list               plain data: emptied, and filled again

An object that several parts share is each part's own business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from holdfast.snapshot import _random_state, _tensors
from holdfast.snapshot._found import FoundTensors, WalkedTables
from holdfast.snapshot._saved import MismatchError, Saved


class StatePart(Protocol):
    """One value of ``Snapshots(name=value)``."""

    name: str

    def walk(self, found: FoundTensors, watch: WalkedTables, names: dict[int, str]) -> Any:
        """Find tensors that stay the same objects; returns the structure of all that is found.

        ``names``: of parameters, by identity.
        """

    def plain(self, found: FoundTensors) -> Any:
        """The rest, as JSON's types; tensors in it are found. Called at each snapshot."""

    def put_back(self, saved: Saved, plain: Any, names: dict[int, str]) -> None:
        """Have ``saved`` copy into this part; raises MismatchError."""

    def finish(self) -> None:
        """After the copies."""


class ModulePart:
    """A module, without wrappers of torch around it."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self._module = _tensors.unwrapped(module)
        self._extra: list[tuple[str, nn.Module]] = []
        self._later: list[Callable[[], object]] = []

    def walk(self, found: FoundTensors, watch: WalkedTables, names: dict[int, str]) -> None:
        """Parameters are fenced; buffers change in forward."""
        self._extra.clear()
        modules = list(self._module.named_modules(remove_duplicate=False))
        _tensors.reshard(module for _, module in modules)
        for path, module in modules:
            prefix = f"{self.name}.{path}." if path else f"{self.name}."
            parameters, buffers, children = _tensors.tables(module)
            for table in (parameters, buffers, children):
                if table:
                    watch.note(table)
            for key, parameter in parameters.items():
                if parameter is not None:
                    names[id(parameter)] = found.tensor(prefix + key, parameter, is_fenced=True)
            for key, buffer in buffers.items():
                if buffer is not None and _tensors.is_kept(module, key):
                    found.tensor(prefix + key, buffer)
            if _tensors.has_extra_state(module):
                self._extra.append((path, module))

    def plain(self, found: FoundTensors) -> Any:
        """Extra state, by path."""
        return {
            path: found.plain(module.get_extra_state(), f"{self.name}.{path}._extra_state")
            for path, module in self._extra
        }

    def put_back(self, saved: Saved, plain: Any, names: dict[int, str]) -> None:
        """Each tensor must be there, of the same shape."""
        live = FoundTensors()
        self.walk(live, WalkedTables(), names)
        for entry in live.entries:
            saved.put_into(entry.name, entry.tensor)
        for path, module in self._extra:
            if path not in plain:
                raise MismatchError(f"{self.name}.{path} has extra state in this program alone")
            self._later.append(_call(module.set_extra_state, saved.plain(plain[path])))

    def finish(self) -> None:
        """Extra state."""
        for call in self._later:
            call()
        self._later.clear()


class OptimizerPart:
    """An optimizer of torch's kind."""

    def __init__(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        self.name = name
        self._optimizer = optimizer
        self._values: list[tuple[str, str, dict[str, Any]]] = []
        self._options: list[tuple[torch.Tensor, torch.Tensor]] = []

    def _parameters(self, names: dict[int, str]) -> list[tuple[str, torch.Tensor]]:
        """Each with the name that its module gives it, or else with its place in the groups."""
        return [
            (names.get(id(parameter), f"{group}.{index}"), parameter)
            for group, options in enumerate(self._optimizer.param_groups)
            for index, parameter in enumerate(options["params"])
        ]

    def groups(self, names: dict[int, str]) -> list[list[str]]:
        """Names of the parameters of each group."""
        of_all = iter(self._parameters(names))
        return [
            [next(of_all)[0] for _ in options["params"]] for options in self._optimizer.param_groups
        ]

    def walk(self, found: FoundTensors, watch: WalkedTables, names: dict[int, str]) -> Any:
        """Structure: of each parameter's state; values that are no tensors are read each time."""
        state, structure = self._optimizer.state, {}
        self._values.clear()
        watch.note(state, {})
        for name, parameter in self._parameters(names):
            if (own := state.get(parameter)) is None:
                continue
            prefix = f"{self.name}.state.{name}"
            tensors = {key: x for key, x in own.items() if isinstance(x, torch.Tensor)}
            watch.note(own, tensors)
            structure[name] = {
                key: found.tensor(f"{prefix}.{key}", tensors[key], is_fenced=True)
                if key in tensors
                else None
                for key in own
            }
            if len(tensors) != len(own):
                self._values.append((name, prefix, own))
        return structure

    def plain(self, found: FoundTensors) -> Any:
        """Options of each group, and the state that is no tensor."""
        groups = [
            {key: x for key, x in group.items() if key != "params"}
            for group in self._optimizer.param_groups
        ]
        values = {
            name: found.plain(
                {key: x for key, x in own.items() if not isinstance(x, torch.Tensor)}, prefix
            )
            for name, prefix, own in self._values
        }
        return {"groups": found.plain(groups, f"{self.name}.param_groups"), "values": values}

    def put_back(self, saved: Saved, plain: Any, names: dict[int, str]) -> None:
        """State goes into the tensors that are there; others are made as they were.

        That is: on the kind of device, and of the type, that the optimizer had given them.
        """
        structure = saved.optimizers[self.name]
        groups, live = saved.plain(plain["groups"]), self._optimizer.param_groups
        if len(groups) != len(live):
            raise MismatchError(
                f"groups of parameters of {self.name}: {len(groups)} in the snapshot, "
                f"{len(live)} in this program"
            )
        parameters = self._parameters(names)
        if unknown := set(structure) - {name for name, _ in parameters}:
            raise MismatchError(f"{self.name} has no parameter {min(unknown)} in this program")
        for name, parameter in parameters:
            if name not in structure:
                self._optimizer.state.pop(parameter, None)
                continue
            own = self._optimizer.state[parameter]
            rest = saved.plain(plain["values"].get(name, {}))
            values = {
                key: rest[key] if tensor is None else saved.tensor(tensor, own.get(key), parameter)
                for key, tensor in structure[name].items()
            }
            own.clear()
            own.update(values)
        for options, group in zip(groups, live, strict=True):
            for key, value in options.items():
                known = group.get(key)
                if isinstance(known, torch.Tensor) and isinstance(value, torch.Tensor):
                    self._options.append((known, value))
                else:
                    group[key] = value

    def finish(self) -> None:
        """Options that are tensors, as a learning rate in a CUDA graph."""
        for known, value in self._options:
            known.detach().copy_(value)
        self._options.clear()


class TensorPart:
    """A tensor."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name = name
        self._tensor = tensor

    def walk(self, found: FoundTensors, watch: WalkedTables, names: dict[int, str]) -> None:  # noqa: ARG002
        """It may change at any time."""
        found.tensor(self.name, self._tensor)

    def plain(self, found: FoundTensors) -> Any:  # noqa: ARG002
        """Nothing."""
        return None

    def put_back(self, saved: Saved, plain: Any, names: dict[int, str]) -> None:  # noqa: ARG002
        """Into the live one."""
        saved.put_into(self.name, self._tensor)

    def finish(self) -> None:
        """Nothing is left."""


class ValuePart:
    """A value that is read at each snapshot, and handed back whole after the copies."""

    def __init__(self, name: str, read: Callable[[], Any], write: Callable[[Any], object]) -> None:
        self.name = name
        self._read = read
        self._write = write
        self._value: Any = None

    def walk(self, found: FoundTensors, watch: WalkedTables, names: dict[int, str]) -> None:
        """Nothing stays the same."""

    def plain(self, found: FoundTensors) -> Any:
        """All of it."""
        return found.plain(self._read(), self.name)

    def put_back(self, saved: Saved, plain: Any, names: dict[int, str]) -> None:  # noqa: ARG002
        """As new objects."""
        self._value = saved.plain(plain)

    def finish(self) -> None:
        """Hand it back."""
        self._write(self._value)
        self._value = None


def part_of(name: str, value: Any) -> StatePart:
    """The part for a value of the user's.

    Raises:
        TypeError: A snapshot cannot put such a value back.
    """
    if isinstance(value, nn.Module):
        return ModulePart(name, value)
    if isinstance(value, torch.optim.Optimizer):
        return OptimizerPart(name, value)
    if isinstance(value, torch.Tensor):
        return TensorPart(name, value)
    if (generator := _random_state.accessors(value)) is not None:
        return ValuePart(name, *generator)
    if isinstance(value, type):
        raise TypeError(f"Snapshots({name}=...): {value.__qualname__} is a class; give an object")
    if callable(getattr(value, "state_dict", None)) and callable(
        getattr(value, "load_state_dict", None)
    ):
        return ValuePart(name, value.state_dict, value.load_state_dict)
    if isinstance(value, dict):
        return ValuePart(name, lambda: value, lambda found: _fill(value, found))
    if isinstance(value, list):
        return ValuePart(name, lambda: value, lambda found: value.__setitem__(slice(None), found))
    raise TypeError(refusal(name, value))


def check_kinds(state: Mapping[str, Any]) -> None:
    """Raise TypeError for a value that cannot be put back."""
    for name, value in state.items():
        part_of(name, value)


def refusal(name: str, value: object) -> str:
    """Why a value cannot be part of a snapshot."""
    return (
        f"Snapshots({name}=...): a {type(value).__qualname__} cannot be put back. Give a module, "
        "an optimizer, a tensor, a generator, an object with state_dict() and load_state_dict(), "
        "or a dict or list of plain data, which is filled again in place"
    )


def _fill(mapping: dict[Any, Any], found: Mapping[Any, Any]) -> None:
    mapping.clear()
    mapping.update(found)


def _call(function: Callable[[Any], object], argument: Any) -> Callable[[], object]:
    return lambda: function(argument)
