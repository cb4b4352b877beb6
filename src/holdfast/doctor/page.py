"""How the doctor's findings and stories are shown. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from holdfast.core.health import Finding, Verdict
from holdfast.core.wording import count
from holdfast.doctor.faults import Story

WIDTH = 80
_MARKS = {
    Verdict.HEALTHY: "ok",
    Verdict.SUSPECT: "WARN",
    Verdict.UNHEALTHY: "ERROR",
    Verdict.UNKNOWN: "?",
}
_MARK_WIDTH = 8


def as_text(title: str, findings: Sequence[Finding], stories: Sequence[Story], restart: str) -> str:
    """For people, 80 columns wide; ``restart``: what one is."""
    lines = [title]
    for probe, group in groupby(findings, key=lambda finding: finding.probe):
        lines += ["", probe]
        for finding in group:
            mark = f"  {_MARKS[finding.verdict]:<{_MARK_WIDTH - 2}}"
            text = f"{finding.subject}: {finding.text or finding.verdict.value}"
            lines.append(_wrapped(mark, text, _MARK_WIDTH))
    if stories:
        lines += ["", "a restart", _wrapped("  ", restart, 2), "", "what happens when ..."]
    for story in stories:
        end = "" if story.end is None else f" Exit code {story.end}."
        lines += [
            "",
            _wrapped("  ", story.fault, 2),
            _wrapped("    noticed  ", story.noticed, 13),
            _wrapped("    then     ", f"{story.then}.{end}", 13),
        ]
    return "\n".join([*lines, "", summary(findings), ""])


def as_json(findings: Sequence[Finding], stories: Sequence[Story]) -> dict[str, Any]:
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
                "fault": story.fault,
                "noticed": story.noticed,
                "then": story.then,
                "exit_code": story.end,
            }
            for story in stories
        ],
    }


def is_ok(findings: Sequence[Finding]) -> bool:
    """Nothing was found that keeps the job from running."""
    return not any(finding.verdict is Verdict.UNHEALTHY for finding in findings)


def summary(findings: Sequence[Finding]) -> str:
    """``1 error, 3 warnings``."""
    errors, warnings = (
        sum(finding.verdict is verdict for finding in findings)
        for verdict in (Verdict.UNHEALTHY, Verdict.SUSPECT)
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
