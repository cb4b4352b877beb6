"""The output of a command for people: whatever it leads to, the command ends with a line at most.

A closed pipe ("| head") ends it quietly, a full disk with an error; a terminal that lacks a
character gets the nearest that it has.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable
from contextlib import suppress

_PLAIN = {"█": "#", "▏": "|", "…": "...", "·": "-", "─": "-"}
_PLAIN |= dict(zip("▁▂▃▄▅▆▇", "_..--==", strict=True))
_NEAREST = "holdfast-nearest"
INTERRUPTED = 130
"""Exit code after Ctrl-C, as a shell has it."""


def _nearest(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    escaped = codecs.lookup_error("backslashreplace")
    text = ""
    for at in range(error.start, error.end):
        char = error.object[at]
        one = UnicodeEncodeError(error.encoding, error.object, at, at + 1, error.reason)
        text += _PLAIN.get(char) or str(escaped(one)[0])
    return text, error.end


def guarded(command: str, run: Callable[[], int]) -> int:
    """Run a command, which prints and returns its exit code; ``command`` is its name."""
    codecs.register_error(_NEAREST, _nearest)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # a test's, or closed
            stream.reconfigure(errors=_NEAREST)  # type: ignore[union-attr]
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:  # "| head" has seen enough
        _leave()
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        _leave()
        sys.stderr.write(f"{command}: error: {in_words(error)}\n")
        return 1
    return code


def in_words(error: OSError) -> str:
    """``/data/run: Permission denied``; without a file it is the output that failed."""
    if error.errno is None:
        return str(error)
    return f"{error.filename or 'stdout'}: {error.strerror}"


def _leave() -> None:
    """Bytes that are not written yet must not be tried again at the exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
