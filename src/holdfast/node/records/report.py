"""The failure report for people. Pure: facts in, text out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from holdfast.base.pure.rank_sets import text_of
from holdfast.base.pure.value import Value
from holdfast.evidence.pure import last_words
from holdfast.evidence.pure.evidence import Verdict
from holdfast.evidence.pure.failure import (
    RankEnd,
    describe_exit,
    explain,
    first_cause,
    rank_name,
)
from holdfast.evidence.pure.left_early import LeftEarly, gone_before, how_it_left, left_early
from holdfast.job.pure.membership import FailureReport

if TYPE_CHECKING:
    from holdfast.node.pure.node_evidence import IncidentOver

_WIDTH = 78
_LINES_SHOWN = (5, 15)
"""Of a rank's stderr: the first ones may hold the warning that explains the exception."""
_LINE_CHARS = 400
_TRACEBACK_SHOWN = 16
_OTHERS_SHOWN = 8


def failure_line(end: RankEnd, node: str = "", culprits: Collection[int] = ()) -> str:
    """``rank 1 (pid 4711): killed by SIGKILL, ...``; ``node``: for other nodes."""
    return f"{rank_name(end, node)}: {explain(end, culprits)}"


def hang_line(end: RankEnd, verdict: Verdict, node: str = "") -> str:
    """The failure of a rank that hung, after the ranks that held it up, if they are known."""
    line = failure_line(end, node, verdict.culprits)
    if not verdict.reason:
        return line
    return f"{verdict.reason}; {line}" if verdict.culprits else f"{line}; {verdict.reason}"


def cause_line(ends: Sequence[RankEnd], verdict: Verdict | None = None, node: str = "") -> str:
    """The first cause in one line, with the ranks that hung at the same time.

    ``verdict``: which ranks held up the others; None: it was no hang, or it is not known. ``node``:
    the name of this one, for others.
    """
    culprits = verdict.culprits if verdict is not None else ()
    hung = first_cause([end for end in ends if end.hang is not None], culprits)
    if verdict is not None and verdict.reason and (hung is not None or verdict.culprits):
        return verdict.reason if hung is None else hang_line(hung, verdict, node)
    cause = first_cause(ends)
    if cause is None:
        return "its ranks being stopped"
    if (left := left_early(ends, cause, node)) is not None:
        return str(left)
    hung_too = [end.rank for end in ends if end.hang is not None and end is not cause]
    if cause.hang is None or not hung_too:
        return failure_line(cause, node)
    ranks = ", ".join(map(str, sorted(hung_too)))
    return f"{failure_line(cause, node)}; hung at the same time: rank {ranks}"


def failure_report(
    ends: Sequence[RankEnd], over: IncidentOver | None, node: str = ""
) -> FailureReport | None:
    """The failure of a node's ranks; None: none has failed.

    ``over``: with the ranks that held up the others; None: it was no hang, or it is not known.
    """
    verdict = over.verdict if over is not None and over.verdict.reason else None
    culprits = verdict.culprits if verdict is not None else ()
    if (cause := first_cause(ends, culprits)) is None:
        return None
    text = cause_line(ends, verdict, node)
    hung = [end for end in ends if end.hang is not None]
    if over is not None and verdict is not None:
        return _report(cause, text, named=first_cause(hung, culprits), incident=over.incident)
    gone = [end for _, end in gone_before(ends, cause)]
    others = [*gone, *(hung if cause.hang is not None else ())]
    return _report(cause, text, [end.rank for end in others if end is not cause])


def seen_failure(end: RankEnd, over: IncidentOver | None, node: str) -> tuple[FailureReport, str]:
    """The same as soon as one rank has failed, and a line for this node's log."""
    if end.hang is None or over is None:
        return _report(end, failure_line(end, node)), failure_line(end)
    named = hang_line(end, over.verdict, node)
    incident = over.incident if over.verdict.reason else 0
    return _report(end, named, incident=incident), hang_line(end, over.verdict)


def _report(
    cause: RankEnd,
    text: str,
    others: Collection[int] = (),
    *,
    named: RankEnd | None = None,
    incident: int = 0,
) -> FailureReport:
    """``named``: the rank that the text is about, if that is another one."""
    end, signature = named or cause, cause.attribution.signature
    kind = end.attribution.kind or end.attribution.exception
    return FailureReport(
        text,
        end.rank,
        end.exit_code,
        kind,
        text_of(others),
        cause.names_a_peer,
        signature,
        incident,
    )


class FailureSummary(Value):
    """The summary of a failed cycle, as lines.

    Attributes:
        title: The job, the cycle, and why there is no restart.
        lines: The first cause, and the ends of other ranks.
    """

    title: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """For a log whose records may have several lines."""
        return "\n".join([self.title, *self.lines])

    @property
    def boxed(self) -> str:
        """For a console."""
        rule = "=" * _WIDTH
        return "\n".join([rule, self.title, "-" * _WIDTH, *self.lines, rule])


def failure_summary(
    name: str,
    node: str,
    cycle: int,
    ends: Sequence[RankEnd],
    verdict: str,
    hang: Verdict | None = None,
) -> FailureSummary:
    """The summary at the end of a failed cycle, with the ends of all ranks of this node.

    ``verdict``: why there is no restart ("no restarts left", ...). ``hang``: which ranks held up
    the others; None: it was no hang, or it is not known.
    """
    culprits = hang.culprits if hang is not None else ()
    cause = first_cause(ends, culprits)
    lines = []
    if cause is None:
        lines.append("No rank of this node failed by itself.")
    else:
        left, label = left_early(ends, cause), "First cause: "
        if hang is not None and hang.reason:
            lines.append(f"First cause: {hang.short or hang.reason}")
            label = "Culprit:     " if cause.rank in culprits else "This node:   "
        elif left is not None:
            lines += _left(ends, left)
            label = "Then failed: "
        lines += _cause(cause, label, culprits, has_left=left is not None)
        lines += _gone_before(ends, cause)
        named = {cause.rank, *(left.ranks if left is not None else ())}
        others = [end for end in ends if end.rank not in named and end.exit_code != 0]
        lines += _others(others, cause)
    return FailureSummary(f"{name} FAILED in cycle {cycle} on {node}: {verdict}", tuple(lines))


def _left(ends: Sequence[RankEnd], left: LeftEarly) -> list[str]:
    [last] = [end for end in ends if end.rank == left.ranks[0]]
    lines = [f"First cause: {left.how}", f"  Advice: {left.advice}"]
    if shown := stderr_shown(last):
        lines += ["  its stderr:", *(f"    {line}" for line in shown)]
    return lines


def _cause(cause: RankEnd, label: str, culprits: Collection[int], *, has_left: bool) -> list[str]:
    began_restart = cause.began_restart is not None
    failed_by_itself = began_restart or cause.is_stuck or cause.exception_when_asked is not None
    is_asked = cause.asked and not failed_by_itself
    how = "stopped by holdfast" if is_asked else explain(cause, culprits)
    lines = [f"{label}{rank_name(cause)}: {how}"]
    if cause.error:
        lines.append(f"  {cause.error}")
    if (advice := cause.attribution.advice) and not has_left:
        lines.append(f"  Advice: {advice}")
    if cause.names_a_peer and not has_left:
        lines.append("  This error names another rank, which may have failed first.")
    if began_restart:
        lines.append("  Its traceback is in its output, where it was raised.")
    elif not cause.traceback and (shown := stderr_shown(cause)):
        lines += ["  its stderr:", *(f"    {line}" for line in shown)]
    elif traceback := cause.traceback or cause.raised:
        shown = traceback.rstrip().splitlines()[-_TRACEBACK_SHOWN:]
        lines += ["  traceback:", *(f"    {line}" for line in shown)]
    return lines


def stderr_shown(cause: RankEnd) -> list[str]:
    """The first and the last lines of its stderr to its exception, or to their end."""
    end = cause.last_words.end or len(cause.last_lines)
    after = len(cause.last_lines[end:])
    n_lines = max(cause.n_lines, len(cause.last_lines)) - after
    before = cause.last_lines[:end]
    lines = last_words.first_and_last(cause.first_lines, before, n_lines, _LINES_SHOWN)
    return [line[:_LINE_CHARS] for line in lines]


def _gone_before(ends: Sequence[RankEnd], cause: RankEnd) -> list[str]:
    """Those that had left before the last one that had."""
    lines = []
    for left_at, end in gone_before(ends, cause)[1:]:
        before_ms = (cause.ended_at - left_at) * 1e3
        lines.append(f"Had left:    {rank_name(end)} {how_it_left(end)}, {before_ms:.0f} ms before")
    return _first(lines)


def _others(others: Sequence[RankEnd], cause: RankEnd) -> list[str]:
    lines = []
    for end in sorted(others, key=lambda end: end.ended_at):
        if end.is_stuck:
            lines.append(f"Not ended:   {rank_name(end)} {explain(end)}")
            continue
        how = "stopped by holdfast" if end.asked else describe_exit(end.exit_code)
        after_ms = (end.ended_at - cause.ended_at) * 1e3
        if not end.asked and end.names_a_peer:
            how += ", because of another rank"
        when = f", +{after_ms:.0f} ms" if after_ms >= 0 else ""  # it may be seen to end first
        lines.append(f"Also ended:  {rank_name(end)} {how}{when}")
    return _first(lines)


def _first(lines: list[str]) -> list[str]:
    more = len(lines) - _OTHERS_SHOWN
    return lines if more <= 0 else [*lines[:_OTHERS_SHOWN], f"             and {more} more"]
