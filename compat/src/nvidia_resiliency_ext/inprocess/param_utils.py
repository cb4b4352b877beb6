"""Arguments of a function: checked, and with those of a given type replaced."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from holdfast.inprocess._inject import Injection, injection

__all__ = ["enforce_subclass", "enforce_type", "enforce_value", "substitute_param_value"]


def substitute_param_value(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    subs: Mapping[type, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments to call ``fn`` with, where each parameter of a type in ``subs`` has its value.

    A parameter has a type where its annotation is that type, or an Optional or Union with it. Its
    argument or default is replaced. Other defaults are filled in.

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


def enforce_type(argument: str, class_or_tuple: type | tuple[type, ...]) -> None:
    """The caller's local variable of this name is an instance of one of these classes.

    Args:
        argument: Name of an argument of the function that calls this one.
        class_or_tuple: As of ``isinstance``.

    Raises:
        TypeError: It is not; the message names the argument.
    """
    value = _caller().f_locals[argument]
    if not isinstance(value, class_or_tuple):
        raise TypeError(
            f"{argument} should be {_names(class_or_tuple)}, is {type(value).__name__}: {value!r}"
        )


def enforce_subclass(argument: str, class_or_tuple: type | tuple[type, ...]) -> None:
    """As :func:`enforce_type`, of a variable that holds a class derived from one of these."""
    value = _caller().f_locals[argument]
    if not (isinstance(value, type) and issubclass(value, class_or_tuple)):
        raise TypeError(
            f"{argument} should be a class derived from {_names(class_or_tuple)}, is {value!r}"
        )


def enforce_value(condition: object) -> None:
    """``condition`` holds.

    Raises:
        ValueError: It does not; the message has the line of the call, which shows the condition.
    """
    if not condition:
        info = inspect.getframeinfo(_caller(), context=1)
        line = "".join(info.code_context or ()).strip() or f"{info.filename}:{info.lineno}"
        raise ValueError(f"a condition does not hold: {line}")


def _caller() -> FrameType:
    """Of the function that calls this one."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    assert frame.f_back.f_back is not None
    return frame.f_back.f_back


def _names(class_or_tuple: type | tuple[type, ...]) -> str:
    classes = class_or_tuple if isinstance(class_or_tuple, tuple) else (class_or_tuple,)
    return " or ".join(each.__name__ for each in classes)
