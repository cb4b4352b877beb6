"""What ranks, node guards and the coordinator of an in-process restart say to each other.

Pure: plain values and their JSON form.

    up     Hello Fault Leave Done Ready Dead Bye Beat Stuck         rank -> guard -> coordinator
    down   Abort Commit Kill Exit Refused Echo Lost           coordinator -> guard -> rank

Connections keep order and lose nothing while they last; when one is lost, so is whoever was behind
it. *Epoch*: one call of the wrapped function by all ranks, counted 0, 1, 2 ... (the user's
``iteration``). A message of another epoch means nothing, except where a member is gone for good.

*Rank* alone means the number a process was born with (``RANK`` at its start): the name by which
machines know it for ever. What it is called in an epoch is its *place*, and that is the business of
the rank assignment, which every rank computes by itself: see :class:`Standing`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar

MAX_TEXT = 8192
"""Longest text accepted in a message, in characters; the whole of it is in the rank's own log."""


MAX_WHOLE = 1 << 53
"""Largest whole number accepted: every one below it has its own floating-point number."""
MAX_WORLD = 1 << 20
"""Largest job accepted, in ranks."""


class MessageError(ValueError):
    """A body that is no message of ours: names the message, the key and the value."""


class Kind(enum.Enum):
    """What interrupted an epoch, by the names that users of the field know."""

    EXCEPTION = "EXCEPTION"
    """The function raised; the rank stays."""
    BASE_EXCEPTION = "BASE_EXCEPTION"
    """The rank leaves: SystemExit, KeyboardInterrupt, RestartAbort, or it is not well."""
    SOFT_TIMEOUT = "SOFT_TIMEOUT"
    """No progress for the soft limit; the rank is interrupted where it stands."""
    HARD_TIMEOUT = "HARD_TIMEOUT"
    """No progress for the hard limit; the rank is killed."""
    TERMINATED = "TERMINATED"
    """Its process ended without a word."""
    UNRESPONSIVE = "UNRESPONSIVE"
    """Its node is not heard of any more."""
    MONITOR_PROCESS_EXCEPTION = "MONITOR_PROCESS_EXCEPTION"
    """Its node guard failed."""


# ---------------------------------------------------------------- reading
_Reader = Callable[[str, str, object], object]


def shown(value: object) -> str:
    """``value`` from outside, for people; of what is nested too deep, its type."""
    try:
        return repr(value)[:200]
    except (RecursionError, ValueError):
        return f"a {type(value).__name__} that cannot be shown"


def _wrong(op: str, key: str, expected: str, value: object) -> MessageError:
    return MessageError(f"{op}: {key!r} should be {expected}, is {shown(value)}")


def _text(op: str, key: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise _wrong(op, key, f"text of at most {MAX_TEXT} characters", value)
    return value


def _flag(op: str, key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(op, key, "true or false", value)
    return value


def _whole(op: str, key: str, value: object) -> int:
    most = MAX_WORLD if key == "world" else MAX_WHOLE
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value <= most:
        raise _wrong(op, key, f"a whole number from -1 to {most}", value)
    return value


def _number(op: str, key: str, value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _wrong(op, key, "a number", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _wrong(op, key, "a finite number", value)
    return number


def _kind(op: str, key: str, value: object) -> Kind:
    try:
        return Kind(value)
    except ValueError:
        raise _wrong(op, key, "one of " + ", ".join(kind.value for kind in Kind), value) from None


def _items(op: str, key: str, value: object) -> list[object]:
    if not isinstance(value, list):
        raise _wrong(op, key, "a list", value)
    return value


def _wholes(op: str, key: str, value: object) -> tuple[int, ...]:
    return tuple(_whole(op, key, item) for item in _items(op, key, value))


def _causes(op: str, key: str, value: object) -> tuple[Cause, ...]:
    return tuple(_parts(Cause, f"{op}.{key}", item) for item in _items(op, key, value))


def _standings(op: str, key: str, value: object) -> tuple[Standing, ...]:
    return tuple(_parts(Standing, f"{op}.{key}", item) for item in _items(op, key, value))


def _numbering(op: str, key: str, value: object) -> Numbering:
    return _parts(Numbering, f"{op}.{key}", value)


_READERS: Mapping[str, _Reader] = {
    "str": _text,
    "bool": _flag,
    "int": _whole,
    "float": _number,
    "Kind": _kind,
    "tuple[int, ...]": _wholes,
    "tuple[Cause, ...]": _causes,
    "tuple[Standing, ...]": _standings,
    "Numbering": _numbering,
}
"""By the annotation of a field, as it is written."""

_T = TypeVar("_T", bound="_Parts")


def _parts(kind: type[_T], op: str, body: object) -> _T:
    """A value from its JSON object; unknown keys are ignored, so that versions can differ."""
    if not isinstance(body, dict):
        raise MessageError(f"{op} should be a JSON object, is {shown(body)}")
    return kind(
        **{
            part.name: _READERS[str(part.type)](op, part.name, body.get(part.name))
            for part in fields(kind)
        }
    )


def _plain(value: object) -> object:
    if isinstance(value, _Parts):
        return value.parts()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


@dataclass(frozen=True)
class _Parts:
    """A value whose JSON form follows from its fields."""

    def parts(self) -> dict[str, object]:
        return {part.name: _plain(getattr(self, part.name)) for part in fields(self)}


# ---------------------------------------------------------------- values
@dataclass(frozen=True)
class Cause(_Parts):
    """Why an epoch ended: ``rank`` did, or had done to it, ``kind``; ``text`` is for people."""

    rank: int
    kind: Kind
    text: str = ""


@dataclass(frozen=True)
class Numbering(_Parts):
    """What a rank was called in ``epoch``: its place among ``world``. Epoch -1: as it was born."""

    epoch: int
    place: int
    world: int


@dataclass(frozen=True)
class Standing(_Parts):
    """What a rank knows of its own numbering when it is ready for the next epoch.

    Assignments may exchange data, so a fault can catch some ranks before theirs is made and some
    after. ``assigned`` is the last one this rank made, ``base`` the one it started from.
    """

    rank: int
    assigned: Numbering
    base: Numbering


@dataclass(frozen=True)
class _Message(_Parts):
    OP: ClassVar[str]

    def to_wire(self) -> dict[str, object]:
        """As JSON."""
        return {"op": self.OP, **self.parts()}


# ---------------------------------------------------------------- up
@dataclass(frozen=True)
class Hello(_Message):
    """A rank is here and ready for epoch 0, of a job of ``world`` ranks."""

    OP: ClassVar[str] = "hello"
    rank: int
    world: int


@dataclass(frozen=True)
class Fault(_Message):
    """Something is wrong with a rank that stays a member."""

    OP: ClassVar[str] = "fault"
    epoch: int
    rank: int
    kind: Kind
    text: str = ""

    @property
    def cause(self) -> Cause:
        """As others hear of it."""
        return Cause(self.rank, self.kind, self.text)


@dataclass(frozen=True)
class Leave(_Message):
    """A rank goes, in words. ``fault`` False: the assignment that all compute left it out."""

    OP: ClassVar[str] = "leave"
    epoch: int
    rank: int
    fault: bool
    text: str = ""


@dataclass(frozen=True)
class Done(_Message):
    """The function has returned; ``active`` False: there was none to call on this rank."""

    OP: ClassVar[str] = "done"
    epoch: int
    rank: int
    active: bool


@dataclass(frozen=True)
class Ready(_Message):
    """These ranks have left ``epoch`` behind and wait for the next."""

    OP: ClassVar[str] = "ready"
    epoch: int
    standings: tuple[Standing, ...]


@dataclass(frozen=True)
class Dead(_Message):
    """A rank is gone without a word of its own."""

    OP: ClassVar[str] = "dead"
    rank: int
    kind: Kind
    text: str = ""


@dataclass(frozen=True)
class Bye(_Message):
    """A rank has returned to its caller after Exit, or has left: nothing more comes from it."""

    OP: ClassVar[str] = "bye"
    rank: int


@dataclass(frozen=True)
class Beat(_Message):
    """A guard is alive; ``sent_at`` is the guard's own clock, and comes back."""

    OP: ClassVar[str] = "beat"
    sent_at: float


@dataclass(frozen=True)
class Stuck(_Message):
    """To a guard from its rank: it hung again, and should be ended instead of interrupted."""

    OP: ClassVar[str] = "stuck"
    epoch: int
    rank: int
    text: str


# ---------------------------------------------------------------- down
@dataclass(frozen=True)
class Abort(_Message):
    """Leave ``epoch``: free whoever waits in a collective, and come back."""

    OP: ClassVar[str] = "abort"
    epoch: int
    causes: tuple[Cause, ...]


@dataclass(frozen=True)
class Commit(_Message):
    """Everybody who is left enters ``epoch``.

    ``terminated``: the places, as numbered in epoch ``base``, that nobody holds any more: what the
    rank assignment starts from. ``causes``: of the epoch before.
    """

    OP: ClassVar[str] = "commit"
    epoch: int
    base: int
    terminated: tuple[int, ...]
    causes: tuple[Cause, ...]


@dataclass(frozen=True)
class Kill(_Message):
    """These did not come back in time; their guards kill those of them that still have not."""

    OP: ClassVar[str] = "kill"
    epoch: int
    ranks: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Exit(_Message):
    """The call is over for all. ``finished`` False: it failed, for the reason in ``text``."""

    OP: ClassVar[str] = "exit"
    finished: bool
    text: str = ""


@dataclass(frozen=True)
class Refused(_Message):
    """This one rank can't take part; nobody else is concerned."""

    OP: ClassVar[str] = "refused"
    rank: int
    text: str


@dataclass(frozen=True)
class Echo(_Message):
    """The coordinator has heard the beat that was sent at ``sent_at``."""

    OP: ClassVar[str] = "echo"
    sent_at: float


@dataclass(frozen=True)
class Lost(_Message):
    """From a guard to its ranks: the coordinator is gone; leave, the others may go on without."""

    OP: ClassVar[str] = "lost"
    text: str


Up = Hello | Fault | Leave | Done | Ready | Dead | Bye | Beat | Stuck
Down = Abort | Commit | Kill | Exit | Refused | Echo | Lost

_UP: Mapping[str, type[Up]] = {
    kind.OP: kind for kind in (Hello, Fault, Leave, Done, Ready, Dead, Bye, Beat, Stuck)
}
_DOWN: Mapping[str, type[Down]] = {
    kind.OP: kind for kind in (Abort, Commit, Kill, Exit, Refused, Echo, Lost)
}


def up_from_wire(body: Mapping[str, object]) -> Up:
    """The message of a JSON body.

    Raises:
        MessageError: It is none.
    """
    return _open(_UP, body)


def down_from_wire(body: Mapping[str, object]) -> Down:
    """The message of a JSON body.

    Raises:
        MessageError: It is none.
    """
    return _open(_DOWN, body)


def _open(kinds: Mapping[str, type[_T]], body: Mapping[str, object]) -> _T:
    op = body.get("op")
    kind = kinds.get(op) if isinstance(op, str) else None
    if kind is None:
        raise MessageError(f"unknown message {shown(op)}")
    return _parts(kind, str(op), body)
