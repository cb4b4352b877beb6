"""Ticks of a time axis: round instants, all in one unit. Pure.

``report_page.html`` has the same for the part of the axis that a reader has zoomed into.
"""

from __future__ import annotations

import math

_UNITS = (
    ("ms", 0.001, ()),
    ("s", 1.0, ()),
    ("min", 60.0, (1, 2, 5, 10, 15, 30)),
    ("h", 3600.0, (1, 2, 3, 6, 12)),
    ("d", 86400.0, ()),
)
"""Name, seconds, and its round numbers, where these are not 1, 2 and 5 times a power of 10."""
_LEAST, _MOST = 2.5, 8.0
"""How many ticks there are: between the two."""


def ticks(start: float, length: float) -> list[tuple[float, str]]:
    """Instants between ``start`` and ``start + length``, in seconds, with their labels.

    >>> ticks(0.0, 21.1)
    [(0.0, '0'), (5.0, '5'), (10.0, '10'), (15.0, '15'), (20.0, '20 s')]
    """
    if not 0.0 < length < math.inf:
        return []
    fitting = [unit for unit in _UNITS if length >= _LEAST * unit[1]] or [_UNITS[0]]
    name, unit_s, rounds = fitting[-1]
    step_s = _step(length / unit_s, rounds) * unit_s
    first, last = math.ceil(start / step_s - 1e-9), math.floor((start + length) / step_s + 1e-9)
    digits = max(0, -math.floor(math.log10(step_s / unit_s) + 1e-9))
    labels = [f"{n * step_s / unit_s:.{digits}f}" for n in range(first, last + 1)]
    labels[-1:] = [f"{label} {name}" for label in labels[-1:]]
    return [(n * step_s, label) for n, label in zip(range(first, last + 1), labels, strict=True)]


def _step(length: float, rounds: tuple[int, ...]) -> float:
    """The smallest round number that ``length`` holds no more than ``_MOST`` times."""
    power = 10.0 ** math.floor(math.log10(length / _MOST))
    powers = [factor * power for factor in (1.0, 2.0, 5.0, 10.0)]
    return next(step for step in (*rounds, *powers) if length / step <= _MOST)
