"""Forms of text that torchrun's options take, and their meanings. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping

from holdfast.options.values import Text, Unacceptable, ValueKind

WORDS_FOR_PROCESSES = ("auto", "cpu", "gpu")
"""What ``--nproc-per-node`` takes besides numbers."""
_SECONDS_MAX = 1e7


class Shaped(Text):
    """Text of a certain form; ``read`` gives its meaning, ``parse`` the text itself."""

    def __init__(self, unit: str, accepts: str, read: Callable[[str], object]) -> None:
        super().__init__(unit, null=False)
        self.accepts = accepts
        self.read = read

    def parse(self, text: str) -> str:
        """The text, once it is sure to be readable."""
        self.read(text)
        return text


class CommaList(ValueKind):
    """Texts separated by commas; a doubled comma is a comma within a text."""

    unit = "TEXT,..."
    accepts = "texts separated by commas (write ,, for a comma within one)"

    def check(self, value: object) -> list[str]:
        """A list of texts."""
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return list(value)
        raise Unacceptable

    def parse(self, text: str) -> list[str]:
        """Same result as torchrun's."""
        mark = "\0"
        return [part.replace(mark, ",") for part in text.replace(",,", mark).split(",")]


def read_nnodes(text: str) -> tuple[int, int]:
    """Least and greatest number of nodes."""
    match = re.fullmatch(r"\s*(\d+)\s*(?::\s*(\d+)\s*)?", text, re.ASCII)
    if match:
        low = int(match[1])
        high = int(match[2]) if match[2] else low
        if 0 < low <= high:
            return low, high
    raise Unacceptable


def read_nproc(text: str) -> int | str:
    """Number of ranks, or one of ``WORDS_FOR_PROCESSES``."""
    if text in WORDS_FOR_PROCESSES:
        return text
    if re.fullmatch(r"\s*\d+\s*", text, re.ASCII) and int(text) > 0:
        return int(text)
    raise Unacceptable


def read_streams(text: str) -> int | dict[int, int]:
    """Bits of streams (1 stdout, 2 stderr) for all ranks, or by local rank.

    torch's own reader takes one-digit ranks only.
    """
    if re.fullmatch(r"[0-3]", text):
        return int(text)
    if re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text, re.ASCII):
        pairs = (part.split(":") for part in text.split(","))
        return {int(rank): int(bits) for rank, bits in pairs}
    raise Unacceptable


def read_ranks(text: str) -> frozenset[int] | None:
    """Local ranks; the empty text for all."""
    if not text:
        return None
    if re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", text, re.ASCII):
        return frozenset(int(rank) for rank in text.split(","))
    raise Unacceptable


def read_signals(text: str) -> tuple[int, ...]:
    """Numbers of signals given by name, of those that are; the empty text for none."""
    numbers = []
    for name in _names_of_signals(text):
        number = signal.Signals.__members__.get(name.upper())
        if number is None:  # of another system, or a slip: torchrun goes on, too
            continue
        if number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            raise Unacceptable(f"{number.name} cannot be handled")
        numbers.append(int(number))
    return tuple(dict.fromkeys(numbers))


def unknown_signals(text: str) -> list[str]:
    """Names of no signal that this system has."""
    return [it for it in _names_of_signals(text) if it.upper() not in signal.Signals.__members__]


def _names_of_signals(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")] if text.strip() else []


def read_rdzv_conf(text: str) -> dict[str, str]:
    """Keys and values; the empty text for none."""
    conf = {}
    for part in text.split(",") if text.strip() else ():
        key, _, value = part.partition("=")
        if not key.strip() or not value.strip():
            shown = part.strip() if "secret" not in text else "a part of it"
            raise Unacceptable(f"{shown!r} is not KEY=VALUE")
        conf[key.strip()] = value.strip()
    return conf


def conf_seconds(conf: Mapping[str, str], key: str, default: float) -> float:
    """A number of seconds of ``--rdzv-conf``.

    Raises:
        ValueError: It is none.
    """
    text = conf.get(key)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _SECONDS_MAX:  # neither is nan
        raise ValueError(f"{key}={text} is not a number of seconds from 0 to {_SECONDS_MAX:g}")
    return seconds


def read_uds(text: str) -> str:
    """Path of a Unix socket."""
    path = text.removeprefix("unix://").removeprefix("unix:")
    if path.startswith(("/", "./", "../")):
        return path
    raise Unacceptable
