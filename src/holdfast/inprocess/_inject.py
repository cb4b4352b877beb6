"""Which parameters of the function get the CallWrapper.

Those whose annotation is the class, or an Optional or Union with it, as an object or a string, also
under ``TYPE_CHECKING`` only. A value that was passed for them is replaced.

Besides, a parameter ``inprocess_call_wrapper``, the name that a large user has for it, where
nothing was passed for it and its annotation fits (none, ``Any``, ``Optional[Any]``, ``object``, or
a string that cannot be evaluated here).
"""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

BY_NAME = "inprocess_call_wrapper"
"""A parameter of this name gets the CallWrapper where nothing was passed for it."""


@dataclass(frozen=True)
class Injection:
    """The parameters of one function that get the CallWrapper.

    ``names`` get it whatever was passed for them, ``by_name`` where nothing was passed; without
    either, ``signature`` is ``None``.
    """

    signature: inspect.Signature | None
    names: tuple[str, ...]
    by_name: str | None = None

    def bind(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], value: object
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments to call the function with: those given, defaults, and over all that, ``value``.

        A first parameter for ``value`` may be left out, as type checkers see the function: then
        ``args`` begin with the second. Programs also pass ``None`` or another value for it.
        Arguments that are missing stay so: the function's own TypeError says it best.
        """
        if self.signature is None:
            return args, dict(kwargs)
        if self._first_is_left_out(self.signature, args, kwargs, value):
            args = (value, *args)
        bound = self.signature.bind_partial(*args, **kwargs)
        names = self.names
        if self.by_name is not None and self.by_name not in bound.arguments:
            names = (*names, self.by_name)
        bound.apply_defaults()
        bound.arguments.update(dict.fromkeys(names, value))
        return bound.args, bound.kwargs

    @property
    def remaining(self) -> inspect.Signature | None:
        """What callers see; ``None`` where nothing is injected."""
        if self.signature is None:
            return None
        parameters = self.signature.parameters.values()
        return self.signature.replace(
            parameters=[each for each in parameters if each.name not in self.names]
        )

    def _first_is_left_out(
        self,
        signature: inspect.Signature,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        value: object,
    ) -> bool:
        first = next(iter(signature.parameters.values()))
        if (
            not args
            or first.name not in self.names
            or first.name in kwargs
            or first.kind is first.KEYWORD_ONLY
            or isinstance(args[0], type(value))
        ):
            return False
        if args[0] is None and _fits(signature.bind, args, kwargs):
            return False  # None for it, and values for all others that need one
        return _fits(signature.bind_partial, (value, *args), kwargs)


def _fits(bind: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    try:
        bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def injection(function: Callable[..., Any], kind: type) -> Injection:
    """Where ``function`` wants an object of class ``kind``."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return Injection(None, ())
    space = _namespace(function)
    annotations = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    fits = {name: _fits_class(annotation, kind, space) for name, annotation in annotations.items()}
    names = tuple(name for name, it in fits.items() if it is True)
    by_name = BY_NAME if fits.get(BY_NAME, False) is None else None
    return Injection(signature if names or by_name else None, names, by_name)


def _namespace(function: Callable[..., Any]) -> dict[str, Any]:
    """Names that the function's annotations can refer to, as far as they still exist."""
    inner: Any = inspect.unwrap(function)
    while hasattr(inner, "func"):  # functools.partial
        inner = inspect.unwrap(inner.func)
    if not isinstance(inner, (types.FunctionType, types.MethodType)):
        inner = type(inner).__call__
    inner = inspect.unwrap(getattr(inner, "__func__", inner))
    if not isinstance(inner, types.FunctionType):
        return {}
    names = dict(inner.__globals__)
    for name, cell in zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # it has not been assigned yet
            continue
    return names


def _fits_class(annotation: Any, kind: type, space: dict[str, Any]) -> bool | None:
    """Whether a parameter is for an object of this class; ``None``: it may be for anything."""
    if annotation is inspect.Parameter.empty:
        return None
    try:
        resolved = typing.get_type_hints(_Annotated(annotation), globalns=space)["it"]
    except Exception:  # noqa: BLE001 - evaluating a user's annotation can raise anything
        return _mentions(annotation, kind.__name__) or None
    alternatives = list(_alternatives(resolved))
    if any(part is kind for part in alternatives):
        return True
    is_open = all(part in (Any, object, type(None)) for part in alternatives)
    return None if is_open else False


class _Annotated:
    """Something with one annotation, as ``get_type_hints`` wants it."""

    def __init__(self, annotation: Any) -> None:
        self.__annotations__ = {"it": annotation}


def _alternatives(annotation: Any) -> list[Any]:
    """Members of a Union, those of Unions in it included."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [part for arg in typing.get_args(annotation) for part in _alternatives(arg)]
    return [annotation]


def _mentions(annotation: Any, class_name: str) -> bool:
    """An annotation that cannot be evaluated is, by its text, the class, or a Union with it."""
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if not isinstance(annotation, str):
        parts = _alternatives(annotation)
        return len(parts) > 1 and any(_mentions(part, class_name) for part in parts)
    try:
        return _is_alternative(ast.parse(annotation.strip(), mode="eval").body, class_name)
    except (SyntaxError, ValueError):
        return False


def _is_alternative(node: ast.expr, class_name: str) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == class_name
        case ast.Constant(value=str() as text):
            return _mentions(text, class_name)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_alternative(left, class_name) or _is_alternative(right, class_name)
        case ast.Subscript(
            value=ast.Name(id="Optional" | "Union") | ast.Attribute(attr="Optional" | "Union"),
            slice=inner,
        ):
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return any(_is_alternative(part, class_name) for part in parts)
    return False
