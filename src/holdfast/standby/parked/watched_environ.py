"""``os.environ`` while libraries are imported ahead of time: which variables they depend on.

A parked process does not know all variables of the cycle it will run in. So while it imports

    a library that                  sees                                   afterwards
    reads RANK by its name          the value of the running cycle         may start warm only
                                                                           where that is the value
    reads MASTER_PORT by its name   nothing                                unfit
    goes through all variables      stand-ins for those of the cycle,      unfit if anything
    (tqdm, ``dict(os.environ)``),   and decoys (``NCCL_583920174``)        holds one of them
    copies or shows them, or reads
    ``os.environb``

A stand-in is a number that occurs nowhere else, so that what keeps it, or a text or number made of
it, is found by looking at everything that the garbage collector knows. Nobody who only looks for
names (``TQDM_...``) keeps one. The C library's environment has neither stand-ins nor decoys.

``paused_start.py`` runs this file from its path; it does not import it by its name.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType
    from typing import Any, NoReturn

_LEAST_MARK = 10**11
"""Twelve digits: long enough to occur nowhere else in a process."""
_LONGEST_TRACE = 10**40
"""Longer numbers come from no variable, and are slow to write down."""


class EnvironWatch:
    """Variables that imports ask ``os.environ`` for, from :meth:`begin` to :meth:`end`.

    Args:
        per_cycle: Names of the variables that a cycle sets.
        likely: Values that some of them will probably have.
        prefixes: Of variables that libraries are expected not to read while they are imported.

    Attributes:
        read: Other variables that were asked for by name.
        assumed: Variables of the cycle that were asked for by name, and the answer.
        unknown: Names of those that could not be answered.
        is_listed: All variables were gone through.
    """

    def __init__(
        self, per_cycle: Sequence[str], likely: Mapping[str, str], prefixes: Sequence[str]
    ) -> None:
        self.read: set[str] = set()
        self.assumed: dict[str, str] = {}
        self.unknown: list[str] = []
        self.is_listed = False
        self._per_cycle = frozenset(per_cycle)
        self._likely = dict(likely)
        self._prefixes = tuple(prefixes)
        self._current: str | None = None
        self._to_copy: list[str] = []
        self._n_copied = 0
        # Backwards: this object must not hold what nothing may hold.
        self._kram = str(_LEAST_MARK + int.from_bytes(os.urandom(8), "big") % _LEAST_MARK)[::-1]
        self._before: dict[Any, Any] = {}
        self._plain: list[tuple[Any, Any]] = []

    def begin(self) -> None:
        """From now on imports see stand-ins."""
        environ: Any = os.environ
        self._before = dict(environ._data)  # noqa: SLF001 - putenv must not be called
        environ._data.update(self._stand_ins())  # noqa: SLF001
        _Watched.watch = self
        for each, watched in ((environ, _Watched), (os.environb, _WatchedBytes)):
            self._plain.append((each, type(each)))
            each.__class__ = watched

    def end(self) -> dict[str, str | None]:
        """What imports changed in the environment: new values.

        ``None`` for removed ones, and for variables of the cycle, which they must not set.
        """
        environ: Any = os.environ
        while self._plain:
            each, plain = self._plain.pop()
            each.__class__ = plain
        self._stop_copying()
        data = environ._data  # noqa: SLF001
        stand_ins = self._stand_ins()
        now = {key: value for key, value in data.items() if stand_ins.get(key) != value}
        then = {key: value for key, value in self._before.items() if key not in stand_ins}
        changed: dict[str, str | None] = {}
        for key in now.keys() | then.keys():
            if now.get(key) != then.get(key):
                value = now.get(key)
                name = environ.decodekey(key)
                changed[name] = None if value is None else environ.decodevalue(value)
        for key in stand_ins:
            if data.get(key) == stand_ins[key]:
                del data[key]
            else:
                changed[environ.decodekey(key)] = None
            if key in self._before:
                data[key] = self._before[key]
        return changed

    def is_kept(self) -> bool:
        """An object that the garbage collector reaches holds a stand-in, or a text made of it.

        Only after :meth:`end`. Takes a second where much is loaded.
        """
        return _find_trace(self._kram)

    def on_list(self, keys: Iterator[str]) -> Iterator[str]:
        """``keys``, while an import iterates over them."""
        self.is_listed = True
        self._stop_copying()
        listed = []
        try:
            for key in keys:
                self._current = key
                listed.append(key)
                yield key
            self._to_copy = listed
        finally:
            self._current = None

    def is_of_list(self, key: object) -> bool:
        """It is asked for because it is its turn in a list of all variables.

        Their values are asked for with the names, or after all names, as ``dict(environ)`` does.
        """
        if self._current is not None:
            return key == self._current
        if self._n_copied < len(self._to_copy) and key == self._to_copy[self._n_copied]:
            self._n_copied += 1
            return True
        self._stop_copying()
        return False

    def _stop_copying(self) -> None:
        if self._n_copied < len(self._to_copy):  # it was no copy
            for key in self._to_copy[: self._n_copied]:
                (self.unknown.append if self.is_of_cycle(key) else self.read.add)(key)
        self._to_copy, self._n_copied = [], 0

    def is_of_cycle(self, key: object) -> bool:
        """The cycle sets this variable."""
        return key in self._per_cycle

    def value(self, key: str) -> str:
        """The probable value of a variable of the cycle.

        Raises:
            KeyError: Nobody can tell.
        """
        if key not in self._likely:
            self.unknown.append(key)
            raise KeyError(key)
        self.assumed[key] = self._likely[key]
        return self._likely[key]

    def _stand_ins(self) -> dict[Any, Any]:
        environ: Any = os.environ
        mark = self._kram[::-1]
        names = [*sorted(self._per_cycle), *(prefix + mark for prefix in self._prefixes)]
        return {
            environ.encodekey(name): environ.encodevalue(f"{mark}{number:02}")
            for number, name in enumerate(names)
        }


class _Watched(os._Environ[str]):  # noqa: SLF001 - nothing else is what os.environ is
    """``os.environ`` that notes the variables it was asked for."""

    watch: EnvironWatch

    def __getitem__(self, key: Any) -> Any:
        watch = _Watched.watch
        if not watch.is_of_list(key):
            if watch.is_of_cycle(key):
                return watch.value(key)
            watch.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        watch = _Watched.watch
        if watch.is_of_cycle(key):
            return True
        watch.read.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        return _Watched.watch.on_list(super().__iter__())

    def __repr__(self) -> str:
        _Watched.watch.is_listed = True
        return super().__repr__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Asked for by code that makes a copy; the copy is no :class:`_Watched`."""
        _Watched.watch.is_listed = True
        return object.__new__, (os._Environ,), vars(self).copy()  # noqa: SLF001


class _WatchedBytes(os._Environ[bytes]):  # noqa: SLF001
    """``os.environb``, which hardly any module reads while it is imported."""

    def __getitem__(self, key: Any) -> Any:
        _Watched.watch.is_listed = True
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[bytes]:
        _Watched.watch.is_listed = True
        return super().__iter__()


class EarlyWatch:
    """``os.environ`` while a ``sitecustomize`` runs, which may act on a value.

    It runs beside the rank of the running cycle, so an answer would let it use that rank's files.
    The first question about a variable of the cycle ends the process.

    Args:
        per_cycle: Names of the variables that a cycle sets.
        own: Folder of holdfast's modules, which may ask: they know that there are none yet.
        refuse: Called with the variable that was read; does not return.
    """

    def __init__(
        self, per_cycle: Sequence[str], own: str, refuse: Callable[[str], NoReturn]
    ) -> None:
        self._per_cycle = frozenset(per_cycle)
        self._own = own
        self._refuse = refuse
        self._before: dict[Any, Any] = {}

    def begin(self) -> None:
        """From now on."""
        environ: Any = os.environ
        self._before = dict(environ._data)  # noqa: SLF001
        _Early.watch = self
        environ.__class__, os.environb.__class__ = _Early, _EarlyBytes

    def end(self) -> dict[str, str | None]:
        """No more. The variables that were set since, and ``None`` for those that were removed."""
        environ: Any = os.environ
        environ.__class__ = os._Environ  # noqa: SLF001
        os.environb.__class__ = os._Environ  # noqa: SLF001
        now, then = environ._data, self._before  # noqa: SLF001
        return {
            environ.decodekey(key): environ.decodevalue(now[key]) if key in now else None
            for key in now.keys() | then.keys()
            if now.get(key) != then.get(key)
        }

    def asked(self, key: object) -> None:
        """A variable is asked for by name."""
        name = os.fsdecode(key) if isinstance(key, bytes) else key
        if name in self._per_cycle and not self._is_own():
            self._refuse(f"reads {name}")

    def listed(self) -> None:
        """All variables are asked for."""
        if not self._is_own():
            self._refuse("goes through all variables of the environment")

    def _is_own(self) -> bool:
        """The innermost frame that is not the standard library's way to the environment."""
        frame: FrameType | None = sys._getframe(2)  # noqa: SLF001
        between = (__file__, os.__file__, "<frozen os>", "<frozen _collections_abc>")
        while frame is not None:
            path = frame.f_code.co_filename
            if path not in between and not path.endswith("/_collections_abc.py"):
                return path.startswith(self._own)
            frame = frame.f_back
        return False


class _Early(os._Environ[str]):  # noqa: SLF001
    """``os.environ`` of an :class:`EarlyWatch`."""

    watch: EarlyWatch

    def __getitem__(self, key: Any) -> Any:
        _Early.watch.asked(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        _Early.watch.asked(key)
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        _Early.watch.listed()
        return super().__iter__()

    def __repr__(self) -> str:
        _Early.watch.listed()
        return super().__repr__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        _Early.watch.listed()
        return super().__reduce_ex__(protocol)


class _EarlyBytes(os._Environ[bytes]):  # noqa: SLF001
    """``os.environb`` of an :class:`EarlyWatch`."""

    def __getitem__(self, key: Any) -> Any:
        _Early.watch.asked(key)
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[bytes]:
        _Early.watch.listed()
        return super().__iter__()


def _find_trace(kram: str) -> bool:
    import gc  # noqa: PLC0415 - nothing is imported without orders

    mark = kram[::-1]
    as_bytes = mark.encode()
    own = _own_frames()
    for owner in gc.get_objects():
        if id(owner) in own:
            continue
        waiting = [owner]
        while waiting:
            holder = waiting.pop()
            # Of a dict whose keys are all texts, the collector knows the values alone.
            keys = list(holder) if type(holder) is dict else ()
            for held in (*gc.get_referents(holder), *keys):
                kind = type(held)
                if issubclass(kind, str):  # isinstance would ask lazy objects for their class
                    found = str.find(held, mark) >= 0
                elif issubclass(kind, (bytes, bytearray)):
                    found = as_bytes in held
                elif issubclass(kind, (int, float)):
                    found = _LEAST_MARK <= held < _LONGEST_TRACE and mark in str(int(held))
                else:
                    found = False
                    # The collector leaves out tuples and dicts that hold texts and numbers alone.
                    if (kind is tuple or kind is dict) and not gc.is_tracked(held):
                        waiting.append(held)
                if found:
                    return True
    return False


def _own_frames() -> set[int]:
    """Before Python 3.11, the collector knows the frames that run, and their objects."""
    found = set()
    frame: FrameType | None = sys._getframe()  # noqa: SLF001
    while frame is not None:
        found.add(id(frame))
        frame = frame.f_back
    return found
