"""Nested dicts and lists, as checkpoints are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["dict_list_map_inplace"]


def dict_list_map_inplace(f: Callable[[Any], Any], x: Any) -> Any:
    """Replace every leaf of nested dicts and lists by ``f(leaf)``; the containers stay the same.

    A leaf is what is neither a dict nor a list: a tuple is one.

    Args:
        f: Called once with each leaf, in order.
        x: Container to change, or a leaf.

    Returns:
        ``x`` itself, or ``f(x)`` where ``x`` is a leaf.
    """
    if isinstance(x, dict):
        for key, value in x.items():
            x[key] = dict_list_map_inplace(f, value)
    elif isinstance(x, list):
        x[:] = [dict_list_map_inplace(f, value) for value in x]
    else:
        return f(x)
    return x
