"""How a job's state is written, in a terminal and as plain text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.base.pure.printable import one_line
from holdfast.base.pure.wording import count, duration, restarts
from holdfast.tools.columns import columns
from holdfast.tools.view.history import sparkline
from holdfast.tools.view.job_view import WAITING, JobView, RankView

COLUMNS = (
    "rank",
    "node",
    "pid",
    "state",
    "section",
    "used",
    "heartbeat",
    "step",
    "/s",
    "slow",
)
SORTS: dict[str, Callable[[RankView], tuple[float, int]]] = {
    "rank": lambda one: (0.0, one.rank),
    "used": lambda one: (-(one.used or 0.0), one.rank),
    "iterations per second": lambda one: (one.per_s if one.per_s is not None else 1e9, one.rank),
    "slow": lambda one: (-(one.slow[1] if one.slow else 0.0), one.rank),
}
"""What rows can be ordered by; the first row is the one to look at."""


_RUN_ID_CHARS_MAX = 12
_COPIES_MAX = 8
_IN_SECONDS = 600
"""A timeout below is written in seconds."""


def seconds(s: float | None) -> str:
    """``0.3``, ``12``, ``4:05``, ``2:00:00``; a dash for none."""
    if s is None:
        return "-"
    if s < 10:
        return f"{s:.1f}"
    minutes, rest = divmod(int(s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else str(rest)


def of_limit(age_s: float | None, limit_s: float | None) -> str:
    """``12 of 60 s``, ``4:05 of 1:00:00``; without a limit the age alone."""
    if age_s is None:
        return ""
    if limit_s is None:
        return seconds(age_s)
    if limit_s < _IN_SECONDS:
        return f"{age_s:.1f} of {limit_s:g} s" if age_s < 10 else f"{int(age_s)} of {limit_s:g} s"
    return f"{seconds(age_s)} of {seconds(limit_s)}"


def cells(one: RankView) -> list[str]:
    """One rank, in the order of ``COLUMNS``."""
    section = f"{one.section} {of_limit(one.section_age_s, one.section_limit_s)}"
    step = f"optimizer step {of_limit(one.step_age_s, one.step_limit_s)}"
    number = one.steps if one.iteration is None else one.iteration
    row = [
        str(one.rank),
        one.node,
        str(one.pid or ""),
        one.state,
        section if one.section else step if one.step_age_s is not None else "",
        f"{one.used:.0%}" if one.used is not None else "",
        of_limit(one.heartbeat_age_s, one.heartbeat_limit_s),
        "" if number is None else str(number),
        "" if one.per_s is None else f"{one.per_s:.3g}",
        f"{one.slow[0]} x{one.slow[1]:g}" if one.slow else "",
    ]
    return [one_line(cell) for cell in row]


def headline(job: JobView) -> str:
    """Name, state, age, size, restarts and steps per second in one line."""
    if job.state == WAITING:
        return "no run yet: waiting for one of yours on this host"
    left = "" if job.restarts_left is None else f", {job.restarts_left} left"
    run = job.run_id[:_RUN_ID_CHARS_MAX]
    return one_line(
        f"{job.name or '?'} ({run})  {job.state}  {duration(job.age_s)}  "
        f"{count(len(job.ranks), 'rank')} on {count(len(job.nodes), 'node')}  "
        f"{restarts(job.restarts, job.restarts_in_place)}{left}  "
        f"{count(len(job.incidents), 'incident')}{_speed(job)}"
    )


def _speed(job: JobView) -> str:
    """The last value and those before it; empty: none is known."""
    values = [value for _, value in job.history]
    known = [value for value in values if value is not None]
    return f"  {known[-1]:.3g} steps/s {sparkline(values, 10)}" if known else ""


def snapshot_line(job: JobView) -> str:
    """The state that a restart would begin from; empty: the job takes no snapshots."""
    if (found := job.snapshots) is None:
        return ""
    if found["off"]:
        return one_line(f"snapshots are off: {found['off']}")
    if found["step"] is None:
        return "snapshots: none yet that all ranks have"
    every = f", one step of {found['every']}" if found["every"] > 1 else ""
    newest_one = f"snapshots: step {found['step']}{_old(found['age_s'])}{every}"
    if not found["copies"]:
        return newest_one
    failed = sum(bool(it["why"]) for it in found["copies"])
    fail = f" (copies of {count(failed, 'node')} fail)" if failed else ""
    if found["kept_step"] is None:
        return f"{newest_one}; no step is kept at other nodes{fail}"
    kept = f"step {found['kept_step']}{_old(found['kept_age_s'])}"
    return f"{newest_one}; kept at other nodes: {kept}{fail}"


def copy_lines(job: JobView) -> list[str]:
    """Of each node, the one that has copies of its snapshots, and of which step."""
    copies = job.snapshots["copies"] if job.snapshots is not None else []
    return [one_line(_copy_line(it)) for it in copies]


def _copy_line(copy: Mapping[str, Any]) -> str:
    where = "not copied yet"
    if not copy["peer"]:
        where = "no other node takes them"
    elif copy["step"] is not None:
        where = f"step {copy['step']} at {copy['peer']}{_old(copy['age_s'])}"
    failed = f"; the last one failed: {copy['why']}" if copy["why"] else ""
    return f"copies of {copy['node']}: {where}{failed}"


def _old(age_s: float | None) -> str:
    return "" if age_s is None else f", {duration(age_s)} old"


def verdict_line(job: JobView) -> str:
    """The last thing that went wrong, and what followed; empty: nothing did."""
    if (last := job.verdict) is None:
        return ""
    ago = duration(max(0.0, job.wall - last["wall"])) if last["wall"] else ""
    then = f"; {job.state} in cycle {job.restarts}" if job.restarts > last["cycle"] else ""
    when = f"cycle {last['cycle']}{f', {ago} ago' if ago else ''}{then}"
    return one_line(f"last failure: {last['text']} ({when})")


def incident_line(incident: dict[str, object]) -> str:
    """``cycle 3: lock: rank 5 waits ...``; a reason names the culprits, by rank or by node."""
    return one_line(f"cycle {incident['cycle']}: {incident['kind']}: {incident['reason']}")


def newest(lines: Sequence[str], rows: int, columns: int) -> list[str]:
    """The last of these lines, as many as fit when they are wrapped; one at least."""
    shown: list[str] = []
    for line in reversed(lines):
        rows -= max(1, -(-len(line) // columns))
        if shown and rows < 0:
            break
        shown.insert(0, line)
    return shown


def as_text(job: JobView, sort: str = "rank") -> str:
    """The whole view, once."""
    rows = [list(COLUMNS), *(cells(one) for one in sorted(job.ranks, key=SORTS[sort]))]
    verdict = [verdict_line(job)] if job.verdict else []
    verdict += filter(None, [snapshot_line(job)])
    verdict += copy_lines(job)[:_COPIES_MAX]
    lines = [headline(job), *verdict, "", *columns(rows, range(len(COLUMNS)))]
    if len(job.incidents) > 1:
        lines += ["", "incidents", *(f"  {incident_line(each)}" for each in job.incidents)]
    return "\n".join(lines) + "\n"
