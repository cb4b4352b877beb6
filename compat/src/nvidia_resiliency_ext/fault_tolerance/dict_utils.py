"""Nested dicts and lists, as checkpoints are made of.

All but dicts and lists are leaves, also tuples. A path is the tuple of keys and indices
that lead to a place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["dict_list_map_inplace", "dict_list_map_outplace", "diff", "merge", "nested_values"]

_Path = tuple[Any, ...]


def dict_list_map_inplace(f: Callable[[Any], Any], x: Any) -> Any:
    """Replace every leaf of nested dicts and lists by ``f(leaf)``; the containers stay the same.

    Args:
        f: Called once with each leaf, in order.
        x: Container to change, or a leaf.

    Returns:
        ``x`` itself, or ``f(x)`` where ``x`` is a leaf.
    """
    if isinstance(x, (dict, list)):
        for key, value in _items(x):
            x[key] = dict_list_map_inplace(f, value)
        return x
    return f(x)


def dict_list_map_outplace(f: Callable[[Any], Any], x: Any) -> Any:
    """As :func:`dict_list_map_inplace`, into new containers; ``x`` stays as it is."""
    if isinstance(x, dict):
        return {key: dict_list_map_outplace(f, value) for key, value in x.items()}
    if isinstance(x, list):
        return [dict_list_map_outplace(f, value) for value in x]
    return f(x)


def nested_values(x: Any) -> Iterator[Any]:
    """All leaves of nested dicts and lists, in order."""
    if isinstance(x, (dict, list)):
        for _, value in _items(x):
            yield from nested_values(value)
    else:
        yield x


def merge(x1: Any, x2: Any, key: tuple[Any, ...] = ()) -> Any:
    """Add to ``x1`` what ``x2`` has besides; lists are merged place by place.

    Args:
        x1: Changed, and returned.
        x2: Stays as it is.
        key: Path of both, for the error.

    Raises:
        ValueError: Both have a leaf at one place, or different containers; the message names it.
            Places before that one are merged already.
    """
    if isinstance(x1, dict) and isinstance(x2, dict):
        for name, value in x2.items():
            x1[name] = merge(x1[name], value, (*key, name)) if name in x1 else value
    elif isinstance(x1, list) and isinstance(x2, list):
        for at, value in enumerate(x2[: len(x1)]):
            x1[at] = merge(x1[at], value, (*key, at))
        x1.extend(x2[len(x1) :])
    else:
        raise ValueError(  # noqa: TRY004 - of the places, not of the arguments
            f"cannot merge {type(x1).__name__} and {type(x2).__name__} at {key}: only dicts with "
            "dicts and lists with lists can be merged"
        )
    return x1


def diff(
    x1: Any, x2: Any, prefix: tuple[Any, ...] = ()
) -> tuple[list[_Path], list[_Path], list[tuple[_Path, type, type]]]:
    """Where two nested containers differ.

    Args:
        x1: One of them, or a leaf.
        x2: The other.
        prefix: Put before all paths.

    Returns:
        Paths that only ``x1`` has; that only ``x2`` has; and those at which both have something
        that is not equal, each with the two types.
    """
    only_1: list[_Path] = []
    only_2: list[_Path] = []
    unequal: list[tuple[_Path, type, type]] = []
    if type(x1) is type(x2) and isinstance(x1, (dict, list)):
        there, here = dict(_items(x1)), dict(_items(x2))
        only_1 = [(*prefix, key) for key in there if key not in here]
        only_2 = [(*prefix, key) for key in here if key not in there]
        for key, value in there.items():
            if key in here:
                below = diff(value, here[key], (*prefix, key))
                only_1 += below[0]
                only_2 += below[1]
                unequal += below[2]
    elif type(x1) is not type(x2) or not _are_equal(x1, x2):
        unequal.append((prefix, type(x1), type(x2)))
    return only_1, only_2, unequal


def _items(x: dict[Any, Any] | list[Any]) -> list[tuple[Any, Any]]:
    return list(x.items() if isinstance(x, dict) else enumerate(x))


def _are_equal(x1: Any, x2: Any) -> bool:
    """Also of tensors and arrays, which compare element by element."""
    if getattr(x1, "shape", None) != getattr(x2, "shape", None):
        return False
    equal = x1 == x2
    return bool(equal.all() if hasattr(equal, "all") else equal)
