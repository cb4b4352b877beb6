"""Outcomes as a table for people and as JSON for programs. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.tools.chaos.explanation import Explanation
from holdfast.tools.chaos.trial import FaultOutcome, Result
from holdfast.tools.columns import columns

SCHEMA_VERSION = 1
ALL = "all"
_HEAD = ("kind", "faults", "recovered", "detected after", "recovered after", "lost", "explained")
_UNITS = ("", "", "", "s, worst", "s, worst", "steps, worst", "right")


@dataclass(frozen=True)
class Score:
    """One fault, what became of it, and how it was explained."""

    outcome: FaultOutcome
    explanation: Explanation

    @property
    def detected_after_s(self) -> float | None:
        """Seconds from the fault to the first symptom that the launcher saw."""
        at = self.explanation.detected_at
        return None if at is None else max(0.0, at - self.outcome.struck_at)

    @property
    def names_rank(self) -> bool:
        """The report names the rank."""
        return self.explanation.names_rank(self.outcome.planned)

    @property
    def names_kind(self) -> bool:
        """The report names the symptom."""
        return self.explanation.names_kind(self.outcome.planned)

    @property
    def had_effect(self) -> bool:
        """The rank had the fault, and did not survive it."""
        return self.outcome.result in (Result.RECOVERED, Result.NOT_RECOVERED)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        outcome = self.outcome
        return {
            "number": outcome.number,
            "kind": outcome.planned.fault.value,
            "rank": outcome.planned.rank,
            "pid": outcome.pid,
            "launch": outcome.launch,
            "cycle": outcome.cycle,
            "struck_at": outcome.struck_at,
            "result": outcome.result.value,
            "why": outcome.why,
            "step": outcome.step,
            "detected_after_s": self.detected_after_s if self.had_effect else None,
            "recovered_after_s": outcome.recovered_after_s,
            "steps_lost": outcome.steps_lost,
            "restarts": outcome.restarts,
            "explanation": {
                "ranks": list(self.explanation.ranks),
                "symptom": self.explanation.symptom,
                "text": self.explanation.text,
                "names_rank": self.names_rank,
                "names_kind": self.names_kind,
            },
        }

    def line(self, total: int) -> str:
        """For people, while the trial runs."""
        outcome = self.outcome
        head = (
            f"{outcome.number:3}/{total}  {outcome.planned.fault.value} in rank "
            f"{outcome.planned.rank}, cycle {outcome.cycle}"
        )
        if not self.had_effect:
            return f"{head}: {outcome.result.value}: {outcome.why}"
        parts = [f"detected after {_s(self.detected_after_s)}"]
        if outcome.recovered_after_s is None:
            parts = [f"{outcome.result.value}: {outcome.why}", *parts]
        else:
            parts.append(f"recovered after {_s(outcome.recovered_after_s)}")
        if outcome.steps_lost is not None:
            parts.append(f"steps lost: {outcome.steps_lost}")
        right = self.names_rank and self.names_kind
        said = "right" if right else f"wrong ({self.explanation.text or 'nothing reported'})"
        return f"{head}: {', '.join(parts)}, explanation {said}"


def _s(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


@dataclass(frozen=True)
class Row:
    """All faults of one kind."""

    kind: str
    scores: Sequence[Score]

    def to_json(self) -> dict[str, Any]:
        """Numbers of the table; medians and worst are ``None`` where nothing was measured."""
        acted = [score for score in self.scores if score.had_effect]
        right = [score for score in acted if score.names_rank and score.names_kind]
        return {
            "kind": self.kind,
            "faults": len(self.scores),
            "with_effect": len(acted),
            "recovered": sum(s.outcome.result is Result.RECOVERED for s in acted),
            "detected_after_s": _spread(score.detected_after_s for score in acted),
            "recovered_after_s": _spread(score.outcome.recovered_after_s for score in acted),
            "steps_lost": _spread(score.outcome.steps_lost for score in acted),
            "named_rank": sum(score.names_rank for score in acted),
            "named_kind": sum(score.names_kind for score in acted),
            "explained": len(right),
        }


def _spread(values: Iterable[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    return {"median": statistics.median(known), "worst": max(known)} if known else None


def rows(scores: Sequence[Score]) -> list[Row]:
    """One for each kind, in the order of names, and one for all."""
    kinds = sorted({score.outcome.planned.fault.value for score in scores})
    found = [
        Row(kind, [score for score in scores if score.outcome.planned.fault.value == kind])
        for kind in kinds
    ]
    return [*found, Row(ALL, scores)]


def as_json(scores: Sequence[Score]) -> dict[str, Any]:
    """Table and faults."""
    return {
        "rows": [row.to_json() for row in rows(scores)],
        "faults": [score.to_json() for score in scores],
    }


def as_text(title: str, scores: Sequence[Score], notes: Sequence[str]) -> str:
    """The table, and below it each fault that did not end well."""
    body = [_cells(row.to_json()) for row in rows(scores)]
    table = columns([_HEAD, _UNITS, *body], (0,))
    rule = "-" * max(map(len, table))
    kinds = [*table[2:-1], rule] if table[3:] else []
    lines = [title, "", *table[:2], rule, *kinds, table[-1]]
    bad = [s for s in scores if s.outcome.result is not Result.RECOVERED]
    wrong = [s for s in scores if s.had_effect and not (s.names_rank and s.names_kind)]
    lines += ["", *(s.line(len(scores)) for s in scores if s in bad or s in wrong)]
    return "\n".join([*lines, *notes]).rstrip() + "\n"


def compared(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Steps lost in several runs of the same faults, side by side, as a text; none of one run.

    Args:
        runs: By launcher, its rows as JSON.
    """
    if len(runs) < 2:
        return []
    kinds = dict.fromkeys(row["kind"] for rows_of_one in runs.values() for row in rows_of_one)
    lost = {
        name: {row["kind"]: _pair(row["steps_lost"], "{:.0f}") for row in rows_of_one}
        for name, rows_of_one in runs.items()
    }
    body = [(kind, *(cells.get(kind, "-") for cells in lost.values())) for kind in kinds]
    body.sort(key=lambda row: row[0] == ALL)
    table = columns([("steps lost: median, worst", *runs), *body], (0,))
    return ["\n".join(table).rstrip() + "\n"]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    n = row["with_effect"]
    return (
        row["kind"],
        str(row["faults"]),
        f"{row['recovered']}/{n}",
        _pair(row["detected_after_s"], "{:.2f}"),
        _pair(row["recovered_after_s"], "{:.2f}"),
        _pair(row["steps_lost"], "{:.0f}"),
        f"{row['explained']}/{n}",
    )


def _pair(spread: dict[str, float] | None, form: str) -> str:
    if spread is None:
        return "-"
    return ", ".join(form.format(spread[key]) for key in ("median", "worst"))
