"""The state of a rank in this iteration: its numbers, its mode, and the exception before.

Rank assignments change :class:`State`, which has the fields of both generations of the interface.
Other plug-ins see a :class:`FrozenState`.
"""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


class Mode(enum.Enum):
    """The mode of a rank; ``Status`` is the same."""

    INITIALIZED = "initialized"
    """It has no part yet."""
    ACTIVE = "active"
    """It calls the function."""
    INACTIVE = "inactive"
    """It waits, until others complete or are lost."""
    TERMINATED = "terminated"
    """It is out of the job."""
    ABORTING = "aborting"
    """Its collectives are being aborted."""
    ABORTED = "aborted"
    """Its collectives are aborted, and the function is being left."""


Status = Mode

_UNSET: Any = None
"""Where a number comes from the environment, or from another number."""


@dataclass(frozen=True)
class FrozenState:
    """A picture of a :class:`State`; to assign raises :class:`dataclasses.FrozenInstanceError`.

    Attributes:
        rank: Number among the ranks that are left, from 0; inactive ones are numbered, too.
        world_size: How many ranks are left.
        active_rank: ``RANK`` that the function sees; ``None`` where it is not called.
        active_world_size: ``WORLD_SIZE`` that the function sees; ``None`` before any assignment.
        initial_rank: Number at the start of the job; ``rank`` unless given.
        initial_world_size: Number of ranks at the start of the job; ``world_size`` unless given.
        iteration: How many times the function was called before.
        mode: Whether it is active, inactive, aborting ...
        fn_exception: Exception of the function on *this* rank, while it is being handled.
        store: The store of this iteration, where there is one.
    """

    rank: int
    world_size: int
    active_rank: int | None = None
    active_world_size: int | None = None
    initial_rank: int = _UNSET
    initial_world_size: int = _UNSET
    iteration: int = 0
    mode: Mode = Mode.INITIALIZED
    fn_exception: Exception | None = None
    store: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.initial_rank is _UNSET:
            object.__setattr__(self, "initial_rank", self.rank)
        if self.initial_world_size is _UNSET:
            object.__setattr__(self, "initial_world_size", self.world_size)

    @property
    def status(self) -> Mode:
        """``mode`` by the first generation's name."""
        return self.mode


FIELDS = tuple(part.name for part in dataclasses.fields(FrozenState))
"""Of both kinds of state, in the order of the constructor."""


@dataclass
class State:
    """The fields of :class:`FrozenState`, open to change.

    Without arguments, ``rank`` and ``world_size`` come from the environment, as by
    :meth:`from_env`. Initial numbers default to the present ones.

    Raises:
        ValueError: The environment has no number where one is needed.
    """

    rank: int = _UNSET
    world_size: int = _UNSET
    active_rank: int | None = None
    active_world_size: int | None = None
    initial_rank: int = _UNSET
    initial_world_size: int = _UNSET
    iteration: int = 0
    mode: Mode = Mode.INITIALIZED
    fn_exception: Exception | None = None
    store: Any = field(default=None, repr=False, compare=False)
    kept: Mapping[object, object] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Values that assignments keep from one iteration to the next, by plug-in. Replaced, never
    changed: an earlier state still has its own."""
    mode_was_set: bool = field(default=False, init=False, repr=False, compare=False)
    """``mode`` was assigned since this was last made False."""

    def __post_init__(self) -> None:
        if self.rank is _UNSET:
            self.rank = _number(os.environ, "RANK", 0)
        if self.world_size is _UNSET:
            self.world_size = _number(os.environ, "WORLD_SIZE", 1)
        if self.initial_rank is _UNSET:
            self.initial_rank = self.rank
        if self.initial_world_size is _UNSET:
            self.initial_world_size = self.world_size
        self.mode_was_set = False

    def __setattr__(self, name: str, value: object) -> None:
        if name == "mode":
            object.__setattr__(self, "mode_was_set", True)
        object.__setattr__(self, name, value)

    @property
    def status(self) -> Mode:
        """``mode`` by the first generation's name."""
        return self.mode

    @status.setter
    def status(self, status: Mode) -> None:
        self.mode = status

    @classmethod
    def from_env(cls) -> State:
        """From ``RANK`` (default 0) and ``WORLD_SIZE`` (default 1).

        Raises:
            ValueError: One of them is no whole number.
        """
        return cls()

    def freeze(self) -> FrozenState:
        """A frozen copy."""
        return FrozenState(**{name: getattr(self, name) for name in FIELDS})

    def copy(self) -> State:
        """Another state that is the same, kept things included."""
        return dataclasses.replace(self).copy_from(self)

    def copy_from(self, other: State | FrozenState, fields: Iterable[str] | None = None) -> State:
        """Take these fields of ``other``; ``None``: all. Returns this state.

        Raises:
            AttributeError: ``other`` has no such field.
        """
        if fields is None:
            fields = (*FIELDS, "kept", "mode_was_set") if isinstance(other, State) else FIELDS
        for name in fields:
            setattr(self, name, getattr(other, name))
        return self

    def advance(self) -> None:
        """To the next iteration; the exception of the function is dropped."""
        self.iteration += 1
        self.fn_exception = None

    def activate_all_ranks(self) -> None:
        """This rank works, and so do all others: its active numbers are its numbers."""
        self.mode = Mode.ACTIVE
        self.active_rank = self.rank
        self.active_world_size = self.world_size

    def get_distributed_vars(self) -> None:
        """Take the numbers of ``RANK`` (default 0) and ``WORLD_SIZE`` (default 1).

        The reverse of :meth:`set_distributed_vars`; initial and active numbers stay.

        Raises:
            ValueError: One of them is no whole number.
        """
        rank, world_size = _number(os.environ, "RANK", 0), _number(os.environ, "WORLD_SIZE", 1)
        self.rank, self.world_size = rank, world_size

    def set_distributed_vars(self) -> None:
        """Export ``RANK`` and ``WORLD_SIZE`` for the function.

        The active rank and the active world size; an inactive rank keeps its own number.
        """
        rank = self.rank if self.active_rank is None else self.active_rank
        size = self.world_size if self.active_world_size is None else self.active_world_size
        os.environ["RANK"] = str(rank)
        os.environ["WORLD_SIZE"] = str(size)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"environment variable {name} should be a whole number, is {text!r}"
        ) from None
