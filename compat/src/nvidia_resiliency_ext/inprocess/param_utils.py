"""Arguments of a function, with those of a given type replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.inprocess.inject import Injection, injection

__all__ = ["substitute_param_value"]


def substitute_param_value(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    subs: Mapping[type, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments to call ``fn`` with, where each parameter of a type in ``subs`` has its value.

    A parameter has a type where its annotation is that type, or an Optional or Union with it. What
    was passed for it, or its default, is replaced. Other defaults are filled in.

    Args:
        fn: Not called.
        args: Positional arguments.
        kwargs: Keyword arguments.
        subs: Type to the value of all parameters of that type.

    Returns:
        Positional and keyword arguments.

    Raises:
        TypeError: There are more arguments than parameters, or two for one.
    """
    for kind, value in subs.items():
        found = injection(fn, kind)
        by_annotation = Injection(found.signature if found.names else None, found.names)
        args, kwargs = by_annotation.bind(args, kwargs, value)
    return args, dict(kwargs)
