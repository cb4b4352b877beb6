"""Several facts about one thing make one finding: a thing has one verdict at a time. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.health import Finding, Verdict

Fact = tuple[Verdict, str]

_FROM_WORST = (Verdict.UNHEALTHY, Verdict.SUSPECT, Verdict.UNKNOWN, Verdict.HEALTHY)


def finding(probe: str, subject: str, facts: Iterable[Fact], device: int | None = None) -> Finding:
    """The worst of ``facts`` decides, and comes first in the text; none: healthy."""
    ordered = sorted(facts, key=lambda fact: _FROM_WORST.index(fact[0]))
    verdict = ordered[0][0] if ordered else Verdict.HEALTHY
    return Finding(probe, subject, verdict, "; ".join(text for _, text in ordered if text), device)
