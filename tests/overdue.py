"""A section that ran out, as a monitor reports it."""

from __future__ import annotations

from holdfast.evidence.pure.evidence import Overdue


def overdue_section(age_s: float, limit_s: float, found_at: float = 0.0) -> Overdue:
    """Section ``step`` of rank 0, in cycle 0."""
    return Overdue(
        cycle=0,
        rank=0,
        local_rank=0,
        pid=0,
        clock="section",
        name="step",
        age_s=age_s,
        limit_s=limit_s,
        learned=False,
        at=0.0,
        detected_at=found_at,
    )
