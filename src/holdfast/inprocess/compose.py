"""Several plug-ins as one: ``Compose(a, b, c)`` calls c, then b, then a."""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable
from typing import Any

from holdfast.base.pure.wording import count


def positional_capacity(function: Callable[..., Any]) -> tuple[int, float]:
    """How many positional arguments ``function`` needs, and how many it takes at most.

    A callable that does not say takes any number.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return 0, float("inf")
    needed, most = 0, 0.0
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            most = float("inf")
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            most += 1
            needed += parameter.default is parameter.empty
    return needed, most


class Compose:
    """Call each instance with the result of the one after it: ``Compose(a, b)(x)`` is ``a(b(x))``.

    A tuple is spread over the parameters of the next; a callable without parameters gets none. A
    composition is an instance of the most derived class that all its instances share, and so
    passes where any of them would.

    Attributes:
        instances: In the order given.

    Raises:
        TypeError: No instance, or one that cannot be called.
    """

    instances: tuple[Callable[..., Any], ...]

    def __new__(cls, *instances: Callable[..., Any]) -> Compose:  # noqa: PYI034 - a class made for it
        """An object of a class made for the bases that the instances share."""
        if not instances:
            raise TypeError("Compose needs at least one instance")
        for instance in instances:
            if not callable(instance):
                raise TypeError(f"Compose calls its instances, and {instance!r} cannot be called")
        kind: Any = cls  # mypy finds classes with __call__ unhashable
        made: Compose = object.__new__(_class_for(kind, _shared_bases(instances)))
        made.instances = instances
        return made

    def __init__(self, *instances: Callable[..., Any]) -> None:
        pass  # of the shared base, none is to run

    def __call__(self, *args: Any) -> Any:
        """Result of the first instance, which is called last."""
        result: Any = args
        for instance in reversed(self.instances):
            given = result if isinstance(result, tuple) else (result,)
            _, most = positional_capacity(instance)
            if not most:
                given = ()
            result = instance(*given)
            warn_if_none(instance, given, result)
        return result

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.instances))})"


def warn_if_none(instance: object, given: tuple[Any, ...], result: object) -> None:
    """A plug-in that was given something and returned nothing has forgotten its ``return``."""
    if result is None and given and given != (None,):
        warnings.warn(
            f"{instance!r} was given {count(len(given), 'argument')} and returned None: return "
            "the arguments for the next one in Compose",
            UserWarning,
            stacklevel=3,
        )


def _shared_bases(instances: tuple[object, ...]) -> tuple[type, ...]:
    """Classes that all instances have, the most derived first; Compose itself says nothing."""
    lines = [
        [base for base in type(instance).__mro__ if not issubclass(base, Compose)]
        for instance in instances
    ]
    return tuple(base for base in lines[0] if all(base in line for line in lines[1:]))


@functools.cache
def _class_for(cls: type, shared: tuple[type, ...]) -> Any:
    derived = [
        base
        for base in shared
        if not any(other is not base and issubclass(other, base) for other in shared)
    ]
    if derived in ([], [object]):
        return cls
    try:
        made = types.new_class(cls.__name__, (cls, *derived), exec_body=_in_this_module)
    except TypeError:  # nothing can be derived from them: function, say
        return _class_for(cls, tuple(base for base in shared if base not in derived))
    made.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return made


def _in_this_module(namespace: dict[str, Any]) -> None:
    namespace["__module__"] = __name__
