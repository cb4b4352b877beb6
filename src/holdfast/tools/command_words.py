"""Words of the commands that read runs: options with values, flags, and errors in them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.base.pure.printable import one_line, printable
from holdfast.base.pure.wording import nearest
from holdfast.options.option import UsageError
from holdfast.tools.run_list import NoSuchRunError, resolve, taken

WRONG = 2
"""Exit code of a command line that cannot be used."""


def run_command(
    name: str, words: Sequence[str], usage: str, act: Callable[[list[str]], int]
) -> int:
    """Print the usage, if it is asked for, else ``act`` on the words; returns the exit code."""
    if any(word in ("-h", "--help") for word in words):
        sys.stdout.write(usage)
        return 0
    try:
        return act(list(words))
    except UsageError as error:
        hint = _nearest(error.detail, usage)
        sys.stderr.write(f"holdfast {name}: error: {printable(str(error))}{hint}\n")
    except NoSuchRunError as error:
        sys.stderr.write(f"holdfast {name}: error: {printable(str(error))}\n")
    return WRONG


def _nearest(option: str, usage: str) -> str:
    """``: did you mean --html?``; empty: no option of the usage is spelled like this word."""
    if not option.startswith("-"):
        return ""
    known = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", usage)
    close = nearest(option.partition("=")[0], known)
    return f": did you mean {close}?" if close else ""


def take_option(words: list[str], *names: str) -> str | None:
    """Take an option with its value out of the words; None: it is not given.

    Raises:
        UsageError: It has no value.
    """
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name not in names:
            continue
        if not equals:
            if index + 1 == len(words):
                raise UsageError(f"{name} needs a value")
            value = words.pop(index + 1)
        del words[index]
        return value
    return None


def take_flag(words: list[str], name: str) -> bool:
    """Take a word out of the words, and say whether it was there."""
    found = name in words
    words[:] = [word for word in words if word != name]
    return found


def without_options(words: Sequence[str]) -> Sequence[str]:
    """The words that are left, which are to be no options.

    Raises:
        UsageError: One is.
    """
    if unknown := [word for word in words if word.startswith("-")]:
        raise UsageError(f"unknown option {unknown[0]!r}", unknown[0])
    return words


def named_runs(command: str, words: Sequence[str]) -> list[Path]:
    """The run folders that these words name; says on stderr which, where they do not say it.

    Raises:
        NoSuchRunError: There is none.
        OSError: It may not be read, or a newer version has written it.
    """
    folders = resolve(words)
    if text := taken(words, folders):
        sys.stderr.write(f"holdfast {command}: {one_line(text)}\n")
    return folders
