"""Figures, the bars they are held against, and how people and programs read them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bar:
    """What was promised about one statistic of a figure.

    Attributes:
        limit: In the figure's unit.
        of: The statistic: ``p50``, ``p99``, ``min`` or ``max``.
        at_least: The figure has to reach the limit, rather than stay below it.
    """

    limit: float
    of: str = "p50"
    at_least: bool = False

    def __str__(self) -> str:
        return f"{self.of} {'>=' if self.at_least else '<='} {self.limit:g}"


@dataclass(frozen=True)
class Figure:
    """Samples of one quantity; ``samples`` is not empty unless nothing could be measured."""

    name: str
    unit: str
    samples: Sequence[float]
    bars: tuple[Bar, ...] = ()

    def statistic(self, of: str) -> float:
        """``p50``, ``p99``, ``min``, ``max``; not a number where there are no samples."""
        if not self.samples:
            return math.nan
        ordered = sorted(self.samples)
        if of == "p50":
            return statistics.median(ordered)
        rank = {"min": 0.0, "p99": 0.99, "max": 1.0}[of]
        return ordered[math.ceil(rank * (len(ordered) - 1))]

    def is_met(self, bar: Bar) -> bool:
        """The promise is kept; without samples it is not."""
        value = self.statistic(bar.of)
        return value >= bar.limit if bar.at_least else value <= bar.limit

    def to_json(self) -> dict[str, Any]:
        """Statistics and bars; samples are not kept."""
        statistics_of = {of: self.statistic(of) for of in ("p50", "p99", "min", "max")}
        return {
            "name": self.name,
            "unit": self.unit,
            "n": len(self.samples),
            **{of: None if math.isnan(x) else round(x, 6) for of, x in statistics_of.items()},
            "bars": [{"bar": str(bar), "met": self.is_met(bar)} for bar in self.bars],
        }


@dataclass
class Report:
    """What one measurement found.

    Attributes:
        title: What was measured, and how, in one line.
        figures: In the order in which they are read.
        notes: What the figures cannot say.
    """

    title: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self, name: str, unit: str, samples: float | Sequence[float], *bars: Bar
    ) -> Sequence[float]:
        """Add a figure; returns its samples."""
        listed = [samples] if isinstance(samples, (int, float)) else samples
        self.figures.append(Figure(name, unit, listed, bars))
        return listed

    def add_ratio(
        self, name: str, theirs: Sequence[float], ours: Sequence[float], *bars: Bar
    ) -> None:
        """Add how many times better ours is, sample by sample, as they were taken in turn."""
        pairs = zip(theirs, ours, strict=False)
        self.add(name, "x", [their / our for their, our in pairs], *bars)

    @property
    def is_met(self) -> bool:
        """Every bar is met."""
        return all(figure.is_met(bar) for figure in self.figures for bar in figure.bars)

    def to_json(self) -> dict[str, Any]:
        """For the result file."""
        return {
            "title": self.title,
            "figures": [figure.to_json() for figure in self.figures],
            "notes": self.notes,
        }


def table(name: str, report: Report) -> str:
    """For people."""
    width = max(len(figure.name) for figure in report.figures)
    lines = [
        f"\n{name}: {report.title}",
        f"  {'':{width}}  {'unit':5} {'p50':>9} {'p99':>9} {'min':>9} {'n':>5}  bar",
    ]
    for figure in report.figures:
        shown = (_number(figure.statistic(of)) for of in ("p50", "p99", "min"))
        columns = " ".join(f"{text:>9}" for text in shown)
        bars = ", ".join(
            f"{bar}: {'met' if figure.is_met(bar) else 'NOT MET'}" for bar in figure.bars
        )
        line = f"  {figure.name:{width}}  {figure.unit:5} {columns} {len(figure.samples):5}  {bars}"
        lines.append(line.rstrip())
    return "\n".join([*lines, *(f"  note: {note}" for note in report.notes)])


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    digits = 0 if abs(value) >= 1000 or value == int(value) else 1 if abs(value) >= 100 else 3
    return f"{value:.{digits}f}"
