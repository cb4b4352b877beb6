"""Names of the files of events in a run folder, and their order. Pure.

    events-launcher.jsonl, events-launcher.2.jsonl, events-launcher.3.jsonl, ...

A launcher continues a file that has grown to ``PART_BYTES_MAX`` in the next one. The first one has
no number. A part is complete before the next one exists.
"""

from __future__ import annotations

PART_BYTES_MAX = 64 << 20
"""A file of events that has this size is continued in the next one."""
_END = ".jsonl"


def part_name(name: str, part: int) -> str:
    """``events-launcher.jsonl``, 2 -> ``events-launcher.2.jsonl``; part 1 has the name itself."""
    return name if part == 1 else f"{name.removesuffix(_END)}.{part}{_END}"


def order(name: str) -> tuple[str, int]:
    """To sort by: the name of the first part, and the number of this one."""
    stem, dot, number = name.removesuffix(_END).rpartition(".")
    return (stem + _END, int(number)) if dot and number.isdecimal() else (name, 1)
