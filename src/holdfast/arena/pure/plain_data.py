"""Plain data as JSON, with its Python types: the part of a snapshot that is no tensor. Pure.

None, bool, int, float (infinite, too), complex, str, bytes; list, tuple, dict with plain keys,
OrderedDict, Counter, defaultdict of a builtin type, set, frozenset of these. Leaves of another kind
(tensors) are the caller's: ``leaf`` names each by a text, and :func:`decode` asks for it by that
name.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, defaultdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_TAG = "$"
_PLAIN = (type(None), bool, int, float, str)
_KEYED: dict[type[Any], str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_LISTED: dict[type[Any], str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_BY_TAG: dict[str, type[Any]] = {tag: kind for kind, tag in (_KEYED | _LISTED).items()}
_FACTORIES: dict[str, Any] = {
    kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)
}
"""Of a defaultdict: a script asks for keys that are not there after a restart, too."""
MAX_DEPTH = 100


class NotPlainError(ValueError):
    """A value that a snapshot cannot hold; ``path``: where it is."""

    def __init__(self, path: str, value: object, why: str = "") -> None:
        kind = type(value)
        super().__init__(f"{path} {why or f'is a {kind.__module__}.{kind.__qualname__}'}")
        self.path = path


def encode(value: Any, path: str, leaf: Callable[[str, Any], str | None]) -> Any:
    """``value`` as JSON's types.

    Args:
        value: Plain data.
        path: Its name, for errors and for ``leaf``.
        leaf: Called with path and value of each that is not plain; None: it is not known there.

    Raises:
        NotPlainError: A value is neither.
    """
    return _encode(value, path, leaf, MAX_DEPTH)


def _encode(value: Any, path: str, leaf: Callable[[str, Any], str | None], depth: int) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if depth == 0:
        raise NotPlainError(f"{path:.60}...", value, f"is nested more than {MAX_DEPTH} deep")
    if kind is list:
        return [_encode(x, f"{path}[{i}]", leaf, depth - 1) for i, x in enumerate(value)]
    if (name := leaf(path, value)) is not None:
        return {_TAG: "leaf", "of": name}
    if kind is bytes or kind is bytearray:
        return {_TAG: kind.__name__, "of": b64encode(value).decode()}
    if kind is complex:
        return {_TAG: "complex", "of": [value.real, value.imag]}
    if kind in _LISTED:
        of = [_encode(x, f"{path}[{i}]", leaf, depth - 1) for i, x in enumerate(value)]
        return {_TAG: _LISTED[kind], "of": of}
    # Of other mappings the plain dict is kept, as load_state_dict takes it.
    if isinstance(value, dict):
        made = getattr(value, "default_factory", None) if kind is defaultdict else None
        factory = getattr(made, "__name__", "")
        is_known = made is not None and _FACTORIES.get(factory) is made
        if (
            not is_known
            and kind not in (OrderedDict, Counter)
            and all(type(key) is str and key != _TAG for key in value)
        ):
            return {
                key: _encode(item, f"{path}.{key}", leaf, depth - 1) for key, item in value.items()
            }
        of = [
            [
                _encode(key, f"{path} key", leaf, depth - 1),
                _encode(item, f"{path}.{key}", leaf, depth - 1),
            ]
            for key, item in value.items()
        ]
        if is_known:
            return {_TAG: "default", "factory": factory, "of": of}
        return {_TAG: _KEYED.get(kind, "dict"), "of": of}
    # Subclasses of numbers and texts (enums of int), and NumPy's scalars, are their values.
    for base in (int, float, str):
        if isinstance(value, base):
            return base(value) if base is not str else str.__str__(value)
    is_scalar = kind.__module__ == "numpy" and kind.__name__ != "ndarray"
    if is_scalar and type(item := value.item()) in _PLAIN:
        return item
    raise NotPlainError(path, value)


def decode(found: Any, leaf: Callable[[str], Any]) -> Any:
    """The value that :func:`encode` was given.

    Raises:
        ValueError: It is of another form.
    """
    if isinstance(found, list):
        return [decode(each, leaf) for each in found]
    if not isinstance(found, dict):
        return found
    if _TAG not in found:
        return {key: decode(each, leaf) for key, each in found.items()}
    match found:
        case {"$": "leaf", "of": str(name)}:
            return leaf(name)
        case {"$": "bytes", "of": str(text)}:
            return b64decode(text)
        case {"$": "bytearray", "of": str(text)}:
            return bytearray(b64decode(text))
        case {"$": "complex", "of": [real, imaginary]}:
            return complex(real, imaginary)
        case {"$": ("tuple" | "set" | "frozenset") as tag, "of": list(of)}:
            return _BY_TAG[tag](decode(each, leaf) for each in of)
        case {"$": ("dict" | "ordered" | "counter") as tag, "of": list(of)}:
            pairs = [(decode(key, leaf), decode(item, leaf)) for key, item in of]
            return _BY_TAG[tag](dict(pairs) if tag == "counter" else pairs)
        case {"$": "default", "factory": str(factory), "of": list(of)} if factory in _FACTORIES:
            pairs = [(decode(key, leaf), decode(item, leaf)) for key, item in of]
            return defaultdict(_FACTORIES[factory], pairs)
    raise ValueError(f"plain data of no known form: {found!r:.100}")
