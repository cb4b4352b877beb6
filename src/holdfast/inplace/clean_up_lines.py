"""Which lines of a function are clean-up: bodies of ``finally`` and of ``except``.

An exception from outside must not come there: the file would stay half-written, the lock taken.
From the source of the function, parsed once for each code object (0.2 ms for a usual function; a
file of 5,000 lines would take 80 ms).
"""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass
from types import CodeType
from typing import Any


@dataclass(frozen=True)
class _Try:
    first: int
    last: int
    handler: int
    """Line of its first ``except``; 0: it has none."""


@dataclass(frozen=True)
class CleanUp:
    """The clean-up in one function: line numbers within bodies of ``finally`` and ``except``."""

    lines: frozenset[int] = frozenset()
    _tries: tuple[_Try, ...] = ()

    def catcher(self, line: int) -> int:
        """Line of the ``except`` that an exception at ``line`` comes to first; 0: none."""
        around = [t for t in self._tries if t.handler and t.first <= line <= t.last]
        return max(around, key=lambda t: t.first).handler if around else 0


_NONE = CleanUp()
_known: dict[int, tuple[CodeType, CleanUp]] = {}
"""By identity: the hash of a code object looks at all of it."""


def clean_up_of(code: CodeType, module: dict[str, Any] | None = None) -> CleanUp:
    """The clean-up in the function, class body or module of ``code``; empty without source.

    ``module``: its globals, for sources that are not files (zip archives).
    """
    known = _known.get(id(code))
    if known is None:
        # Kept with its code object, so that the identity is not given to another one.
        known = _known[id(code)] = (code, _read(code, module))
    return known[1]


def _read(code: CodeType, module: dict[str, Any] | None) -> CleanUp:
    is_module = code.co_name == "<module>"
    if code.co_name.startswith("<") and not is_module:
        return _NONE  # lambdas and comprehensions have no statements
    if getattr(code, "co_exceptiontable", b"?") == b"":  # from Python 3.11 on
        return _NONE  # it catches nothing
    lines = linecache.getlines(code.co_filename, module)
    if not lines:
        return _NONE
    if not is_module:
        first, last = code.co_firstlineno, _last_line(code)
        tree = _parse("if 1:\n" + "".join(lines[first - 1 : last]), shift=first - 2)
        if tree is None and lines[first - 1 : first]:  # it is not indented
            tree = _parse("".join(lines[first - 1 : last]), shift=first - 1)
        if tree is not None:
            return tree
    return _parse("".join(lines), shift=0) or _NONE


def _last_line(code: CodeType) -> int:
    ends = [code.co_firstlineno]
    if hasattr(code, "co_positions"):  # from Python 3.11 on
        ends += [end for _, end, _, _ in code.co_positions() if end]
        ends += [_last_line(inner) for inner in code.co_consts if isinstance(inner, CodeType)]
    else:
        return 1 << 30  # to the end of the file, which then seldom parses: the whole file does
    return max(ends)


def _parse(source: str, shift: int) -> CleanUp | None:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    lines: set[int] = set()
    tries = []
    for node in ast.walk(tree):
        handlers = getattr(node, "handlers", None)
        if handlers is None:  # neither Try nor TryStar
            continue
        body: list[ast.stmt] = node.body  # type: ignore[attr-defined]
        final: list[ast.stmt] = node.finalbody  # type: ignore[attr-defined]
        for block in (*(handler.body for handler in handlers), final):
            if block:
                last = block[-1].end_lineno or block[-1].lineno
                lines.update(range(block[0].lineno + shift, last + shift + 1))
        tries.append(
            _Try(
                first=body[0].lineno + shift,
                last=(body[-1].end_lineno or body[-1].lineno) + shift,
                handler=handlers[0].lineno + shift if handlers else 0,
            )
        )
    return CleanUp(frozenset(lines), tuple(tries))
