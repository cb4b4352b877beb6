"""Kinds of settings: each checks values from files and programs, and reads text. Pure.

``check`` takes a value of YAML or of a program, ``parse`` text of a command line or an environment
variable; both give the normal form or raise :class:`Unacceptable`, which the caller words.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

NOT_YET = "not in this release"
"""Why an option is idle that a later release may act on."""
_NULL_WORDS = ("", "none", "null")
_TRUE_WORDS = ("true", "1", "yes", "on", "enable", "enabled")
_FALSE_WORDS = ("false", "0", "no", "off", "disable", "disabled")
_LEVELS = {
    "DEBUG": 10,
    "DBG": 10,
    "INFO": 20,
    "WARNING": 30,
    "WARN": 30,
    "ERROR": 40,
    "CRITICAL": 50,
}


class Unacceptable(ValueError):  # noqa: N818 - caught at once, and turned into a HoldfastError
    """A value that its setting does not take; the text completes the error, or is empty."""


class ValueKind:
    """The interface of all kinds; by default text is checked as the value that it is.

    Attributes:
        accepts: The accepted values, as the end of the sentence "it takes ...".
        unit: The value in help: a unit or a noun, upper case.
    """

    accepts: str
    unit: str

    def check(self, value: object) -> Any:
        """The normal form of a value that a program or a YAML file holds."""
        raise NotImplementedError

    def parse(self, text: str) -> Any:
        """The normal form of what text means."""
        return self.check(text)


class Numeric(ValueKind):
    """A finite number, as float; with ``whole`` as int."""

    def __init__(
        self,
        unit: str,
        *,
        counted: bool = True,
        above: float | None = None,
        least: float | None = None,
        most: float | None = None,
        whole: bool = False,
        null: str | None = None,
        blank: bool = False,
    ) -> None:
        """Make a kind of number.

        Args:
            unit: Plural of the unit ("seconds"); with ``counted=False`` a noun ("port").
            counted: There is one more or one less of the unit.
            above: Values must be greater than this.
            least: Values must be at least this.
            most: Values must be at most this.
            whole: Only whole numbers.
            null: What null means, where null is accepted.
            blank: Text for null means that nothing was given, where null itself is not accepted.
        """
        self.unit = unit.rsplit(maxsplit=1)[-1].upper()
        self._above, self._least, self._most = above, least, most
        self._whole = whole
        self._null = null
        self._blank = blank
        bounds = [
            f"{sign} {bound:g}"
            for sign, bound in ((">", above), (">=", least), ("<=", most))
            if bound is not None
        ]
        number = "whole number" if whole else "number"
        self.accepts = " ".join(
            [f"a {number} of {unit}" if counted else f"a {number}", " and ".join(bounds)]
        ).rstrip()
        if null is not None:
            self.accepts += f", or null for {null}"

    @property
    def takes_null(self) -> bool:
        """Null is a value; otherwise text for it means that nothing was given."""
        return self._null is not None

    def check(self, value: object) -> float | int | None:
        """Numbers; where null is accepted, infinity means null too."""
        if value is None and self._null is not None:
            return None
        if isinstance(value, str):
            raise Unacceptable(_text_hint(value))
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Unacceptable
        if value == math.inf and self._null is not None:
            return None
        if not math.isfinite(value) or (self._whole and not isinstance(value, int)):
            raise Unacceptable
        if (
            (self._above is not None and value <= self._above)
            or (self._least is not None and value < self._least)
            or (self._most is not None and value > self._most)
        ):
            raise Unacceptable
        return value if self._whole else float(value)

    def parse(self, text: str) -> float | int | None:
        """Decimal text; null, none and the empty text for null, or for nothing given."""
        if (self._null is not None or self._blank) and text.strip().lower() in _NULL_WORDS:
            return None
        try:
            return self.check(int(text) if self._whole else float(text))
        except (ValueError, OverflowError):
            raise Unacceptable from None


class Size(ValueKind):
    """Bytes, from text with a unit: ``8g``, ``512m``; ``0``."""

    unit = "SIZE"
    accepts = "a size with its unit (512m, 8g, 1.5t), or 0"

    def check(self, value: object) -> int:
        """Whole bytes."""
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise Unacceptable
        return value

    def parse(self, text: str) -> int:
        """Units are powers of 1024; ``8g``, ``8gb`` and ``8GiB`` are the same."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt])?(?:i?b)?", text.strip().lower(), re.ASCII)
        if match is None or (match[2] is None and float(match[1]) != 0):
            raise Unacceptable
        return int(float(match[1]) * 1024 ** " kmgt".index(match[2] or " "))


class Flag(ValueKind):
    """True or false; also null, where ``null`` says what null means."""

    unit = "BOOL"

    def __init__(self, null: str | None = None) -> None:
        self._null = null
        self.accepts = "true or false" if null is None else f"true or false, or null: {null}"

    def check(self, value: object) -> bool | None:
        """Only booleans: a number or word in their place is a mistake more often than not."""
        if isinstance(value, bool) or (value is None and self._null is not None):
            return value
        raise Unacceptable

    def parse(self, text: str) -> bool | None:
        """true, 1, yes, on, enabled; false, 0, no, off, disabled; in any case."""
        word = text.strip().lower()
        if word in _TRUE_WORDS:
            return True
        if word in _FALSE_WORDS:
            return False
        return self.check(None if word in _NULL_WORDS else text)


class WordFlag(Flag):
    """True or false, where one answer has a few words and every other word is the opposite.

    nvidia-resiliency-ext reads some of its options so, and scripts rely on it. An unknown word is
    taken by the same rule, and :meth:`doubt` says so.
    """

    def __init__(self, *, otherwise: bool) -> None:
        """``otherwise``: meaning of every word that is not one of the opposite's."""
        super().__init__()
        self._otherwise = otherwise
        self._opposite = ("false", "0", "no") if otherwise else ("true", "1", "yes")
        self._rule = (
            f"only {', '.join(self._opposite)} are {_name(not otherwise)}, every other word is "
            f"{_name(otherwise)}"
        )

    def parse(self, text: str) -> bool:
        """False iff ``false``, ``0``, ``no`` (or true iff ``true``, ``1``, ``yes``); any case."""
        return self._otherwise is not (text.strip().lower() in self._opposite)

    def doubt(self, text: str) -> str:
        """A warning where the user may have meant the opposite; empty: there is no doubt."""
        value = self.parse(text)
        if text.strip().lower() in (_TRUE_WORDS if value else _FALSE_WORDS):
            return ""
        return f"{text!r} is read as {_name(value)}: {self._rule}"


def _name(value: bool) -> str:  # noqa: FBT001 - it is all that there is
    return "true" if value else "false"


class Text(ValueKind):
    """Any text; with ``null`` nothing, too."""

    def __init__(self, unit: str = "TEXT", *, null: bool = True) -> None:
        self.unit = unit
        self.accepts = "text, or null for none" if null else "text"
        self._null = null

    def check(self, value: object) -> str | None:
        """Text only: YAML makes numbers and dates of what looks like them."""
        if isinstance(value, str) or (value is None and self._null):
            return value
        raise Unacceptable("put it in quotes" if value is not None else "")

    def parse(self, text: str) -> str:
        """The text itself, also where a value of null is accepted."""
        self.check(text)
        return text


class PathTemplate(Text):
    """A path with a place for a name; empty: as if not given."""

    def __init__(self, metavar: str, place: str) -> None:
        super().__init__(metavar)
        self._place = place
        self.accepts = f"an absolute path with {place} in it"

    def check(self, value: object) -> str | None:
        """Without the place, one file would answer for all cards."""
        text = super().check(value)
        if text and (self._place not in text or not text.startswith("/")):
            raise Unacceptable
        return text


class AbsolutePaths(Text):
    """Comma-separated absolute paths, as one text."""

    def __init__(self, *, many: bool) -> None:
        super().__init__("PATHS" if many else "PATH")
        self._many = many
        self.accepts = "absolute paths, separated by commas" if many else "an absolute path"

    def check(self, value: object) -> str | None:
        """Every path must start at the root."""
        text = super().check(value)
        if text:
            for path in text.split(",") if self._many else [text]:
                if not path.strip().startswith("/"):
                    raise Unacceptable
        return text


class Choice(ValueKind):
    """One of some words."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self.unit = "|".join(words)
        self.accepts = " or ".join([", ".join(words[:-1]), words[-1]]) if words[1:] else words[0]

    def check(self, value: object) -> str:
        """One of the words, spelled so."""
        if value in self.words:
            return str(value)
        raise Unacceptable


PROOF, NEVER = "proof", "never"


class AutoKill(ValueKind):
    """When ranks without chosen timeouts are ended."""

    unit = "proof|never|after=SECONDS"
    accepts = "proof, never, or after= and a number of seconds > 0"

    def __init__(self) -> None:
        self._seconds = Numeric("seconds", above=0)

    def check(self, value: object) -> str:
        """``proof``, ``never`` or ``after=1800``."""
        if not isinstance(value, str):
            raise Unacceptable
        if value not in (PROOF, NEVER):
            self.after_s(value)
        return value

    def after_s(self, value: str) -> float | None:
        """Seconds; None: it says something else.

        Raises:
            Unacceptable: It is no number of seconds > 0.
        """
        if value in (PROOF, NEVER):
            return None
        word, _, number = value.partition("=")
        if word != "after":
            raise Unacceptable
        after_s = self._seconds.parse(number.removesuffix("s"))
        return None if after_s is None else float(after_s)


class SignalName(ValueKind):
    """A signal by its full name in any case or, outside command lines, its number."""

    unit = "SIGNAL"
    accepts = "the name of a signal, such as SIGKILL, SIGTERM or SIGUSR1"

    def check(self, value: object) -> signal.Signals:
        """A ``signal.Signals``, a number or a name."""
        try:
            if isinstance(value, str):
                return signal.Signals[value.strip().upper()]
            if isinstance(value, int) and not isinstance(value, bool):
                return signal.Signals(value)
        except (KeyError, ValueError):
            pass
        raise Unacceptable


LEVEL_NAMES = {10: "debug", 20: "info", 30: "warning", 40: "error", 50: "critical"}


class LogLevel(ValueKind):
    """A level of the logging package, 10 to 50, or its name in any case."""

    unit = "LEVEL"
    accepts = "debug, info, warning, error, critical, or a number from 10 to 50"

    def check(self, value: object) -> int:
        """A name, or a number outside command lines."""
        if isinstance(value, str):
            level = _LEVELS.get(value.strip().upper())
            if level is not None:
                return level
        elif isinstance(value, int) and not isinstance(value, bool) and 10 <= value <= 50:
            return value
        raise Unacceptable


class Sections(ValueKind):
    """Limits per section name."""

    unit = "NAME:SECONDS,..."
    accepts = "names of sections, each with a number of seconds > 0, or null for no timeout"

    def __init__(self) -> None:
        self._limit = Numeric("seconds", above=0, null="no timeout")

    def check(self, value: object) -> dict[str, float | None]:
        """A mapping; null for an empty one."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise Unacceptable
        limits: dict[str, float | None] = {}
        for name, limit in value.items():
            if not isinstance(name, str) or not name:
                raise Unacceptable(f"{name!r} is not a name")
            try:
                limits[name] = self._limit.check(limit)
            except Unacceptable as error:
                raise Unacceptable(str(error) or f"section {name!r} has {limit!r}") from None
        return limits

    def parse(self, text: str) -> dict[str, float | None]:
        """``setup:600,step:180,checkpoint:null``; the empty text for no sections."""
        limits: dict[str, float | None] = {}
        for part in text.split(",") if text.strip() else ():
            name, colon, limit = part.rpartition(":")
            name = name.strip()
            if not colon or not name or name in limits:
                why = "is given twice" if name and name in limits else "is not NAME:SECONDS"
                raise Unacceptable(f"{part.strip()!r} {why}")
            try:
                limits[name] = self._limit.parse(limit)
            except Unacceptable:
                raise Unacceptable(f"section {name!r} has {limit.strip()!r}") from None
        return limits


def _text_hint(value: str) -> str:
    """YAML 1.1 takes ``1e3`` and quoted numbers for text."""
    try:
        number = float(value)
    except ValueError:
        return ""
    return f"it is text, write {number!r} without quotes"
