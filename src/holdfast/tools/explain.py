"""``holdfast explain``: the meaning of lines of a log, and the remedy."""

from __future__ import annotations

import io
import sys
import textwrap
from collections.abc import Iterable, Sequence

from holdfast.base.pure.printable import printable
from holdfast.options.option import UsageError
from holdfast.tools.command_words import run_command, without_options
from holdfast.tools.log_lines import KnownLine, found_in

_USAGE = """\
usage: holdfast explain [LINE ...]
       holdfast explain < LOG

Explains lines of the launcher's log: what happened, and what to do. A line may be
a part of one, with or without quotes. Without LINE, or with -, it reads stdin, and
explains each kind of line once.

Exit code: 0; 1 if no line is known; 2 if the command cannot be used this way.
"""
_SHOWN = 2
"""Explanations of one line: one more than the best may fit, too."""
_COLUMNS = 96


def main(command: str, words: Sequence[str]) -> int:
    """The command; returns the exit code."""
    return run_command(command, words, _USAGE, _run)


def _run(words: list[str]) -> int:
    if words == ["-"]:
        words = []
    elif not words and sys.stdin.isatty():
        raise UsageError("which line?", "")
    if isinstance(sys.stdin, io.TextIOWrapper):  # ranks write any encoding
        sys.stdin.reconfigure(errors="backslashreplace")
    parts = list(explained(_lines(without_options(words)) or sys.stdin))
    sys.stdout.write("\n".join(parts))
    if not parts:
        sys.stderr.write(
            "holdfast explain: no line of the launcher's log is known that has these words. All of "
            "them: docs/messages.md; what failed in a run: holdfast report\n"
        )
    return 0 if parts else 1


def _lines(words: Sequence[str]) -> Sequence[str]:
    """Words without quotes are one line."""
    return words if any(" " in word for word in words) else [" ".join(words)][: len(words)]


def explained(lines: Iterable[str]) -> Iterable[str]:
    """The first line of each kind, with its explanation."""
    seen: set[KnownLine] = set()
    for line in lines:
        new = [one for one in list(found_in(line))[:_SHOWN] if one not in seen]
        if new:
            seen.update(new)
            yield "\n".join([printable(line.strip()), *map(_in_words, new), ""])


def _in_words(one: KnownLine) -> str:
    more = f" (docs/{one.page})" if one.page else ""
    return textwrap.fill(
        f"{one.meaning}{more}",
        _COLUMNS,
        break_on_hyphens=False,
        initial_indent="    ",
        subsequent_indent="    ",
    )
