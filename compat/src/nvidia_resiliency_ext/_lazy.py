"""Packages whose names and submodules are loaded when they are first used (PEP 562)."""

from collections.abc import Callable, Collection, Mapping
from importlib import import_module


def lazy(
    package: str, submodules: Collection[str], home: Mapping[str, str] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for a package.

    Args:
        package: Its name.
        submodules: Names of those that are its attributes.
        home: The submodule of each other name.
    """
    homes = home or {}

    def get(name: str) -> object:
        if name in submodules:
            return import_module(f"{package}.{name}")
        if name in homes:
            value: object = getattr(import_module(f"{package}.{homes[name]}"), name)
            return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *homes, *submodules})

    return get, names
