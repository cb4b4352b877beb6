"""Records as ``dataclasses`` makes them, for processes that must start within milliseconds.

``dataclasses`` costs the rank monitor 3 ms, and each class made by it another 0.3 ms, because it
compiles the methods of each. Here all classes have the same ones.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_):  # noqa: ANN003, ANN201, D103 - it is for type checkers
        return lambda kind: kind


_MISSING = object()


@dataclass_transform(frozen_default=True)
class Value:
    """A frozen dataclass. A subclass says its fields and their defaults, as one would there."""

    __match_args__ = ()

    def __init_subclass__(cls) -> None:
        fields: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            fields.update(getattr(base, "__annotations__", {}))
        cls.__match_args__ = tuple(fields)  # type: ignore[misc, assignment]
        cls._defaults = tuple(getattr(cls, name, _MISSING) for name in fields)  # type: ignore[assignment]

    _defaults = ()

    def __init__(self, *args: Any, **named: Any) -> None:
        names: tuple[str, ...] = self.__match_args__
        if len(args) == len(names) and not named:
            self.__dict__.update(zip(names, args, strict=True))
            return
        defaults: tuple[Any, ...] = self._defaults[len(args) :]
        rest = zip(names[len(args) :], defaults, strict=True)
        values = (*args, *[named.pop(name, default) for name, default in rest])
        if named or len(values) != len(names) or _MISSING in values:
            kind = type(self).__name__
            raise TypeError(f"{kind}{args!r} {named!r}: expected {', '.join(names)}")
        self.__dict__.update(zip(names, values, strict=True))

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """The record of these: all that it has, in their order. It keeps the dict, unchecked."""
        record = cls.__new__(cls)
        object.__setattr__(record, "__dict__", fields)
        return record

    def but(self, **changed: Any) -> Self:
        """The same record with other values of these fields."""
        return type(self)(**{**vars(self), **changed})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set: it is frozen")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"
