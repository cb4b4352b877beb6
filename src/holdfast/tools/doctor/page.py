"""How the doctor's findings and faults are shown. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from holdfast.base.pure.codec import encode_fields
from holdfast.base.pure.wording import count
from holdfast.health.pure.health import Finding, Fitness
from holdfast.tools.doctor.faults import PlantedFault
from holdfast.tools.doctor.losses import Loss

WIDTH = 80
_MARKS = {
    Fitness.HEALTHY: "ok",
    Fitness.SUSPECT: "WARN",
    Fitness.UNHEALTHY: "ERROR",
    Fitness.UNKNOWN: "?",
}
_MARK_WIDTH = 8


def as_text(
    title: str,
    findings: Sequence[Finding],
    faults: Sequence[PlantedFault],
    restart: str,
    losses: Sequence[Loss] = (),
) -> str:
    """For people, 80 columns wide; ``restart``: its description."""
    lines = [title]
    for probe, group in groupby(findings, key=lambda finding: finding.probe):
        lines += ["", probe]
        for finding in group:
            mark = f"  {_MARKS[finding.verdict]:<{_MARK_WIDTH - 2}}"
            text = f"{finding.subject}: {finding.text or finding.verdict.value}"
            lines.append(_wrapped(mark, text, _MARK_WIDTH))
    if faults:
        lines += ["", "a restart", _wrapped("  ", restart, 2), "", "what happens when ..."]
    for fault in faults:
        end = "" if fault.exit_code is None else f" Exit code {fault.exit_code}."
        lines += [
            "",
            _wrapped("  ", fault.name, 2),
            _wrapped("    noticed  ", fault.noticed, 13),
            _wrapped("    then     ", f"{fault.then}.{end}", 13),
        ]
    if losses:
        lines += ["", "steps that are computed again, with snapshots and without, when ..."]
    for loss in losses:
        lines += [
            "",
            _wrapped("  ", loss.fault, 2),
            _wrapped("    with     ", loss.with_snapshots, 13),
            _wrapped("    without  ", loss.without, 13),
        ]
    return "\n".join([*lines, "", summary(findings), ""])


def as_json(
    findings: Sequence[Finding], faults: Sequence[PlantedFault], losses: Sequence[Loss] = ()
) -> dict[str, Any]:
    """For programs. ``ok``: there is no error; keys are added in later versions, never changed."""
    return {
        "ok": is_ok(findings),
        "findings": [
            {
                "topic": finding.probe,
                "subject": finding.subject,
                "verdict": finding.verdict.value,
                "text": finding.text,
            }
            for finding in findings
        ],
        "faults": [
            {
                "fault": fault.name,
                "noticed": fault.noticed,
                "then": fault.then,
                "exit_code": fault.exit_code,
            }
            for fault in faults
        ],
        "losses": [encode_fields(loss) for loss in losses],
    }


def is_ok(findings: Sequence[Finding]) -> bool:
    """Nothing was found that keeps the job from running."""
    return not any(finding.verdict is Fitness.UNHEALTHY for finding in findings)


def summary(findings: Sequence[Finding]) -> str:
    """``1 error, 3 warnings``."""
    errors, warnings = (
        sum(finding.verdict is verdict for finding in findings)
        for verdict in (Fitness.UNHEALTHY, Fitness.SUSPECT)
    )
    return f"{count(errors, 'error')}, {count(warnings, 'warning')}"


def _wrapped(first: str, text: str, indent: int) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
