"""What a person reads after a failure. Pure: facts in, text out."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.failure import RankEnd, describe_exit, explain, first_cause

WIDTH = 78
_LAST_LINES_SHOWN = 15
_OTHERS_SHOWN = 8


def failure_line(end: RankEnd) -> str:
    """``rank 1 (local rank 1, pid 4711): killed by SIGKILL, ...``."""
    return f"{who(end)}: {explain(end)}"


def cause_line(ends: Sequence[RankEnd]) -> str:
    """The first cause in one line, with the ranks that hung at the same time.

    Which of several hung ranks keeps the others waiting is for their stacks to say.
    """
    cause = first_cause(ends)
    if cause is None:
        return "its ranks being stopped"
    hung_too = [end.rank for end in ends if end.hang is not None and end is not cause]
    if cause.hang is None or not hung_too:
        return failure_line(cause)
    ranks = ", ".join(map(str, sorted(hung_too)))
    return f"{failure_line(cause)}; hung at the same time: rank {ranks}"


def who(end: RankEnd) -> str:
    """``rank 9 (local rank 1, pid 4711)``."""
    return f"rank {end.rank} (local rank {end.local_rank}, pid {end.pid})"


def failure_summary(
    name: str, node: str, cycle: int, ends: Sequence[RankEnd], verdict: str, run_dir: str
) -> str:
    """The boxed summary at the end of a failed cycle.

    Args:
        name: Of the script or program.
        node: Host name.
        cycle: Which cycle failed.
        ends: Of all ranks of this node.
        verdict: What follows ("no restarts left", ...).
        run_dir: Where logs and evidence are.
    """
    cause = first_cause(ends)
    lines = ["=" * WIDTH, f"{name} FAILED in cycle {cycle} on {node}: {verdict}", "-" * WIDTH]
    if cause is None:
        lines.append("No rank of this node failed by itself.")
    else:
        lines += _cause(cause)
        others = [end for end in ends if end is not cause and end.exit_code != 0]
        lines += _others(others, cause)
    lines += [f"Logs and evidence: {run_dir}", "=" * WIDTH]
    return "\n".join(lines)


def _cause(cause: RankEnd) -> list[str]:
    lines = [f"First cause: {who(cause)}", f"  {explain(cause)}"]
    if cause.error:
        lines.append(f"  {cause.error}")
    if cause.names_a_peer:
        lines.append("  This error names another rank, which may have failed first.")
    if cause.traceback:
        lines += ["  traceback:"]
        lines += [f"    {line}" for line in cause.traceback.rstrip().splitlines()[-2 * 8 :]]
    elif shown := [line for line in cause.last_lines if line.strip()][-_LAST_LINES_SHOWN:]:
        lines += ["  last lines of its stderr:"]
        lines += [f"    {line}" for line in shown]
    return lines


def _others(others: Sequence[RankEnd], cause: RankEnd) -> list[str]:
    lines = []
    for end in sorted(others, key=lambda end: end.ended_at)[:_OTHERS_SHOWN]:
        if end.is_stuck:
            lines.append(f"Not ended:   {who(end)} {explain(end)}")
            continue
        how = "stopped by holdfast" if end.asked else describe_exit(end.exit_code)
        after_ms = (end.ended_at - cause.ended_at) * 1e3
        if not end.asked and end.names_a_peer:
            how += ", because of another rank"
        when = f", +{after_ms:.0f} ms" if after_ms >= 0 else ""  # it may be seen to end first
        lines.append(f"Also ended:  {who(end)} {how}{when}")
    if len(others) > _OTHERS_SHOWN:
        lines.append(f"             and {len(others) - _OTHERS_SHOWN} more")
    return lines
