"""Rows of text as a table of aligned columns. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def columns(rows: Iterable[Sequence[str]], left: Collection[int], indent: str = "") -> list[str]:
    """A line for each row; the columns ``left`` are aligned left, the others right."""
    listed = list(rows)
    widths = [max(len(row[k]) for row in listed) for k in range(len(listed[0]))]
    return [
        indent
        + "  ".join(
            cell.ljust(width) if k in left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in listed
    ]
