"""One codec for every message between processes: the form follows from a record's fields.

Pure: records in, JSON's types out, and back. A message is a frozen dataclass (in the rank monitor,
a :class:`~holdfast.base.pure.value.Value`); a family is the set that one end of a connection
accepts::

    UP = family(Hello | Fault)                          {"hello": Hello, "fault": Fault}
    encode(Hello(3, 8))                                 {"op": "hello", "rank": 3, "world": 8}
    decode(UP, {"op": "hello", "rank": 3, "world": 8})  Hello(3, 8), or MessageError

The type of a field decides which values are accepted::

    str              text that UTF-8 can express; Name: not empty; Raw: any, as names of files are;
                     Text: for people, so it is escaped and cut when it is encoded: it must not
                     cost the message it is in
    int              64 bits; Count: 0 or more; Annotated[int, Whole(1, 8)]: between these
    float            a finite number; Limit: of 0 or more, or infinity; Instant: seconds of the
                     host's monotonic clock
    bool, enums      true or false; the value of a member, a text
    X | None         null, too
    tuple[X, ...]    a list
    dict[str, X]     an object, whatever its keys
    another record   an object; where it says ``AS_LIST = True``, the list of its values; where it
                     says ``SPARSE = True``, without the fields that have their defaults, and
                     ``LIKE_LAST = True``: in a list, without those that the one before has as well;
                     where it names fields in ``RARE``, without those of them with their defaults
    object           whatever JSON can hold, unchecked

A key that is missing gets its field's default, and a key that no field has is ignored, so that
processes of two versions understand each other. Light: imported by the rank monitor. So ``typing``
and ``dataclasses`` are not imported, and a record is looked at when it is first used.
"""

# ruff: noqa: D102 - what reading and writing are is said once, in Form
from __future__ import annotations

import sys
from itertools import repeat

from holdfast.base.pure.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, TypeAlias, TypeVar

    T = TypeVar("T")

MAX_TEXT = 8192
"""Longest text accepted in a message, in characters: a message is no place for logs."""
_CUT = " ..."
_MOST = 2**63 - 1
_OP = "op"
_MISSING: Any = object()
"""In place of the value of a key that a body does not have."""


class MessageError(ValueError):
    """A body that is no message of a family: names the message, the key and the value."""


class _UnexpectedError(Exception):
    """A value is not ``expected``; each caller adds its key to ``path``, innermost first."""

    def __init__(self, expected: str, value: object) -> None:
        self.expected = expected
        self.value = value
        self.path: list[str | int] = []


def for_people(text: str, most: int = MAX_TEXT) -> str:
    """``text`` as a message may carry it: with another one, the whole message would be refused.

    A text may name a file or section whose bytes are not UTF-8 (lone surrogates: they are escaped),
    and may be put together from those of many nodes (the end of a long one is left out).
    """
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= most else f"{text[: most - len(_CUT)]}{_CUT}"


def shown(value: object) -> str:
    """The beginning of a value that may be anything, for a line of the log."""
    try:
        return ascii(value)[:200]
    except (ValueError, RecursionError):  # thousands of digits, or of lists within lists
        return f"a value of type {type(value).__name__}, too large to show"


# ---------------------------------------------------------------- forms of a field
class Form:
    """How the values of one field are encoded and checked."""

    is_plain = True  # they are encoded as they are

    def __or__(self, other: None) -> Form:
        return _OrNone(self)

    def read(self, value: Any) -> Any:
        """The value of the field, from JSON; raises if it is of another form."""
        return value

    def write(self, value: Any) -> Any:
        """The value for JSON."""
        return value

    def read_all(self, values: Any) -> list[Any]:
        """Several of them, from a list."""
        return _read_each(range(len(values)), repeat(self.read), values)

    def write_all(self, values: Any) -> Any:
        """Several of them."""
        return [*values] if self.is_plain else [*map(self.write, values)]


class Whole(Form):
    """A whole number between two others, both included."""

    def __init__(self, least: int = -_MOST - 1, most: int = _MOST) -> None:
        self.least = least
        self.most = most

    def read(self, value: Any) -> int:
        if type(value) is not int or not self.least <= value <= self.most:
            raise _UnexpectedError(f"a whole number from {self.least} to {self.most}", value)
        return value


class Number(Form):
    """A number of ``least`` or more; with ``most``: infinity, too."""

    def __init__(
        self, least: float = -sys.float_info.max, most: float = sys.float_info.max
    ) -> None:
        self.least = least
        self.most = most

    def read(self, value: Any) -> float:
        # Comparing does not overflow, and is false for NaN.
        is_finite = type(value) in (int, float) and self.least <= value <= sys.float_info.max
        if is_finite or (type(value) is float and value == self.most):
            return float(value)
        kind = "a number" if self.most > sys.float_info.max else "a finite number"
        least = f" of {self.least:g} or more" if self.least > -sys.float_info.max else ""
        raise _UnexpectedError(f"{kind}{least}", value)


class Characters(Form):
    """A text of ``least`` to ``most`` characters; ``is_cut``: for people, any text can be sent."""

    def __init__(self, least: int = 0, most: int = MAX_TEXT, *, is_cut: bool = False) -> None:
        self.least = least
        self.most = most
        self.is_plain = not is_cut

    def read(self, value: Any) -> str:
        if type(value) is not str or not self.least <= len(value) <= self.most:
            raise _UnexpectedError(f"text of {self.least} to {self.most} characters", value)
        if not value.isascii():
            try:
                value.encode()  # logs, files and terminals will want to
            except UnicodeEncodeError:
                raise _UnexpectedError("text that can be written as UTF-8", value) from None
        return value

    def write(self, value: str) -> str:
        return value if self.is_plain else for_people(value, self.most)


class _Exactly(Form):
    """A value of this type; ``object``: any value at all."""

    def __init__(self, kind: type[object], expected: str) -> None:
        self.kind = kind
        self._expected = expected

    def read(self, value: Any) -> Any:
        if (self.kind is not object and type(value) is not self.kind) or value is _MISSING:
            raise _UnexpectedError(self._expected, value)
        return value


class _OneOf(Form):
    is_plain = False

    def __init__(self, kind: Any) -> None:
        self.members = {member.value: member for member in kind}

    def read(self, value: Any) -> Any:
        member = self.members.get(value) if type(value) is str else None
        if member is None:
            raise _UnexpectedError(f"one of {', '.join(self.members)}", value)
        return member

    def write(self, value: Any) -> object:
        return value.value


class _Of(Form):
    """A form that has other values in it, of one form each."""

    is_plain = False

    def __init__(self, form: Form) -> None:
        self.form = form


class _OrNone(_Of):
    def __init__(self, form: Form) -> None:
        super().__init__(form)
        self.is_plain = form.is_plain

    def read(self, value: Any) -> Any:
        return None if value is None else self.form.read(value)

    def write(self, value: Any) -> Any:
        return None if value is None else self.form.write(value)


class _Tuple(_Of):
    def read(self, value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _UnexpectedError("a list", value)
        return tuple(self.form.read_all(value))

    def write(self, value: Any) -> Any:
        return self.form.write_all(value)


class _Named(_Of):
    def read(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _UnexpectedError("an object", value)
        return dict(
            zip(value, _read_each(value, repeat(self.form.read), value.values()), strict=True)
        )

    def write(self, value: Any) -> dict[str, Any]:
        return {key: self.form.write(item) for key, item in value.items()}


def _read_each(keys: Iterable[int | str], reads: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Each value by its own function; one that is unexpected is named by its key."""
    done: list[Any] = []
    key: int | str = 0
    try:
        for key, read, value in zip(keys, reads, values, strict=False):  # noqa: B007 - for the error
            done.append(read(value))
    except _UnexpectedError as error:
        error.path.append(key)
        raise
    return done


class _Record(Form):
    """A message, or a record in one: an object with a key for each field."""

    is_plain = False

    def __init__(self, kind: type[Any]) -> None:
        names = vars(sys.modules[kind.__module__])
        texts: dict[str, str] = {}
        for base in reversed(kind.__mro__):
            texts.update(getattr(base, "__annotations__", {}))
        # An annotation is a text of holdfast's own source.
        forms = {name: _form(eval(texts[name], names)) for name in kind.__match_args__}  # noqa: S307
        self.kind = kind
        self.forms = forms
        self._reads = {name: form.read for name, form in forms.items()}
        self._needed = [name for name in forms if not hasattr(kind, name)]
        self._defaults = {name: getattr(kind, name, _MISSING) for name in forms}
        self._made_of = kind.of if issubclass(kind, Value) else lambda it: kind(*it.values())
        self._rare = [name for name in forms if name in getattr(kind, "RARE", ())]

    def read(self, value: Any) -> Any:
        return self._made_of(self._fields(value, self._defaults))

    def _fields(self, value: Any, others: dict[str, Any]) -> dict[str, Any]:
        """All that a record has, in order; what ``value`` lacks is as in ``others``."""
        if type(value) is not dict:
            raise _UnexpectedError("an object", value)
        reads = self._reads
        fields = others.copy()
        name = ""
        try:
            for name, item in value.items():
                read = reads.get(name)
                if read is not None:
                    fields[name] = read(item)
            for name in self._needed:
                if fields[name] is _MISSING:
                    reads[name](_MISSING)
        except _UnexpectedError as error:
            error.path.append(name)
            raise
        return fields

    def write(self, value: Any) -> Any:
        written = {name: form.write(getattr(value, name)) for name, form in self.forms.items()}
        for name in self._rare:
            if getattr(value, name) == getattr(self.kind, name):
                del written[name]
        return written


class _Sparse(_Record):
    """A record of which a message may hold many; most of their fields have their defaults."""

    def write(self, value: Any) -> Any:
        return {
            name: self.forms[name].write(one)
            for name, one in vars(value).items()
            if one != getattr(self.kind, name, _MISSING)
        }


class _Alike(_Sparse):
    """A record of which a message may hold many that have most of their values in common."""

    def read_all(self, values: Any) -> list[Any]:
        fields = self._defaults

        def read(value: Any) -> Any:
            nonlocal fields
            fields = self._fields(value, fields)
            return self._made_of(fields)

        return _read_each(range(len(values)), repeat(read), values)

    def write_all(self, values: Any) -> Any:
        written, last = [], self._defaults
        for value in values:
            fields = vars(value)
            changed = [name for name, one in fields.items() if one != last[name]]
            written.append({name: self.forms[name].write(fields[name]) for name in changed})
            last = fields
        return written


class _Row(_Record):
    """A record of which a message may hold thousands: the list of its values, in their order."""

    def __init__(self, kind: type[Any]) -> None:
        super().__init__(kind)
        if not all(form.is_plain for form in self.forms.values()):
            raise TypeError(f"{kind.__name__}: AS_LIST is for plain values")
        values = ", ".join(f"row.{name}" for name in self.forms)
        # As if it were written here: three times as fast as a loop over the names.
        self._write_all = eval(f"lambda rows: [[{values}] for row in rows]")  # noqa: S307

    def read(self, value: Any) -> Any:
        if type(value) is not list or len(value) != len(self.forms):
            raise _UnexpectedError(f"a list of {', '.join(self.forms)}", value)
        return self.kind(*_read_each(self.forms, self._reads.values(), value))

    def write(self, value: Any) -> Any:
        return self._write_all([value])[0]

    def write_all(self, values: Any) -> Any:
        return self._write_all(values)


_STR = Characters()
_SIMPLE: dict[object, Form] = {
    str: _STR,
    int: Whole(),
    float: Number(),
    bool: _Exactly(bool, "true or false"),
    object: _Exactly(object, "there"),
}
_RECORDS: dict[type[Any], _Record] = {}


def _record(kind: type[Any]) -> _Record:
    known = _RECORDS.get(kind)
    if known is None:
        ways = {"AS_LIST": _Row, "LIKE_LAST": _Alike, "SPARSE": _Sparse}
        form = next((form for way, form in ways.items() if getattr(kind, way, False)), _Record)
        known = _RECORDS[kind] = form(kind)
    return known


def _form(wanted: Any) -> Form:
    """The form of an annotation, told apart without ``typing``."""
    if isinstance(wanted, Form):
        return wanted
    if wanted in _SIMPLE:
        return _SIMPLE[wanted]
    if hasattr(wanted, "__metadata__"):  # Annotated
        return next(one for one in wanted.__metadata__ if isinstance(one, Form))
    if hasattr(wanted, "__supertype__"):  # NewType
        return _form(wanted.__supertype__)
    match getattr(wanted, "__origin__", None), getattr(wanted, "__args__", ()):
        case origin, (item, end) if origin is tuple and end is ...:
            return _Tuple(_form(item))
        case origin, (key, item) if origin is dict and key is str:
            return _Named(_form(item))
        case _, (item, nothing) if nothing is type(None):
            return _OrNone(_form(item))
    if hasattr(wanted, "__members__"):
        return _OneOf(wanted)
    if isinstance(wanted, type) and wanted.__module__ != "builtins":
        return _record(wanted)
    raise TypeError(f"no message can hold a {wanted!r}")


# ---------------------------------------------------------------- types of a field
if TYPE_CHECKING:
    Count: TypeAlias = int
    OrMinusOne: TypeAlias = int
    Instant: TypeAlias = float
    Limit: TypeAlias = float
    Name: TypeAlias = str
    Raw: TypeAlias = str
    Text: TypeAlias = str
else:
    Count = Whole(0)
    OrMinusOne = Whole(-1)
    Instant = Number()
    Limit = Number(0.0, float("inf"))
    Name = Characters(1)
    Raw = _Exactly(str, "text")
    Text = Characters(is_cut=True)


# ---------------------------------------------------------------- messages
def family(kinds: Any) -> Mapping[str, type[Any]]:
    """The table of messages that :func:`decode` takes, of a union of classes or of one."""
    return {_op(kind): kind for kind in getattr(kinds, "__args__", (kinds,))}


def _op(kind: type[object]) -> str:
    return kind.__name__.lower()


def encode(message: object) -> dict[str, object]:
    """``message`` as a JSON object."""
    return {_OP: _op(type(message)), **_record(type(message)).write(message)}


def decode(kinds: Mapping[str, type[T]], body: object) -> T:
    """The message of a JSON object; :class:`MessageError`: it is none of these kinds."""
    if not isinstance(body, dict):
        raise MessageError(f"a message is a JSON object, not {shown(body)}")
    op = body.get(_OP)
    kind = kinds.get(op) if isinstance(op, str) else None
    if kind is None:
        raise MessageError(f"unknown message {shown(op)}; known are {', '.join(kinds)}")
    return _read(kind, body, str(op))


def encode_fields(record: object) -> dict[str, object]:
    """The fields of ``record`` as a JSON object, which does not say what record it is."""
    fields: dict[str, object] = _record(type(record)).write(record)
    return fields


def decode_fields(kind: type[T], fields: Mapping[str, object]) -> T:
    """The record with these fields; :class:`MessageError`: one is missing, or of another form."""
    return _read(kind, fields, kind.__name__)


def _read(kind: type[T], fields: Mapping[str, object], name: str) -> T:
    try:
        record: T = _record(kind).read(fields)
    except _UnexpectedError as error:
        raise MessageError(f"{name}{_as_text(error)}") from None
    return record


def well_formed(kind: type[object], fields: Mapping[str, object]) -> dict[str, object]:
    """Those of ``fields`` that a record of this kind has, without any of another form."""
    found = {}
    for name, form in _record(kind).forms.items():
        if name in fields:
            try:
                form.read(fields[name])
            except _UnexpectedError:
                continue
            found[name] = fields[name]
    return found


def instants(kind: type[object]) -> list[str]:
    """Names of the fields that are an :data:`Instant`, or one or None."""
    forms = _record(kind).forms.items()
    return [name for name, form in forms if getattr(form, "form", form) is Instant]


def _as_text(error: _UnexpectedError) -> str:
    key, *outer = error.path
    where = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in reversed(outer))
    item = f"item {key}" if isinstance(key, int) else shown(key)
    is_there = "is missing" if error.value is _MISSING else f"is {shown(error.value)}"
    return f"{where}: {item} should be {error.expected}, {is_there}"
