"""Texts of others for a terminal: what would move its cursor or change colours is escaped. Pure.

A rank's exception, a name of a section or a run, and a copied event file may hold anything, and a
terminal obeys it: hides lines, renames windows, on some puts words into the command line.
"""

from __future__ import annotations

_HARMLESS = "\t\n"
_DIRECTIONS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that make a terminal show others in another order."""
_ESCAPES = {
    code: f"\\x{code:02x}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in _HARMLESS
} | {code: f"\\u{code:04x}" for code in (0x2028, 0x2029, *_DIRECTIONS)}
_OF_ONE_LINE = {**_ESCAPES, 0x09: "\\t", 0x0A: "\\n"}


def printable(text: str) -> str:
    """``text`` with its lines and tabs; all other control characters escaped."""
    return text.translate(_ESCAPES)


def one_line(text: str) -> str:
    """The same, in one line."""
    return text.translate(_OF_ONE_LINE)
