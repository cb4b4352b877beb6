"""The story of a run for a terminal: at most 100 columns, most important first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.base import clock
from holdfast.base.pure.printable import one_line
from holdfast.base.pure.wording import count, duration
from holdfast.events.run.accounts import LABELS
from holdfast.events.run.run_words import done_in_short, named
from holdfast.tools.calls import why
from holdfast.tools.columns import columns
from holdfast.tools.report.report import Story, as_shares, place
from holdfast.tools.report.stragglers import Slow
from holdfast.tools.report.timeline import lines
from holdfast.tools.run.incident_files import Incident
from holdfast.tools.run.run_files import CUT_OFF, FAILED, Run

_BAR = 30
_ROWS_SHOWN = 40
STALLS = "Stalls: ranks made no optimizer steps, and none was ended"
_CLOCKS_SHOWN = 8
_FOLDERS_SHOWN = 3
_SKEW_S = 1.0
"""Of wall clocks, from which on it is reported."""
_WORDS_AT = " " * 30
"""Indent of the second and further lines of an instant."""
_IN_PLACE_AT = " " * 6


def as_text(story: Story) -> str:
    """The report."""
    parts = [_title(story), _goodput(story), _cycles(story), _recoveries(story)]
    parts += [_in_place(story), _incidents("Incidents", story.run.incidents)]
    parts += [_incidents(STALLS, story.run.stalls), _slow(story)]
    return "\n\n".join("\n".join(map(one_line, part)) for part in parts if part) + "\n"


def _title(story: Story) -> list[str]:
    run = story.run
    began = clock.local_time(run.began + run.offset_s, zone=False)
    in_place = f", {len(story.in_place)} in place" if story.in_place else ""
    text = [
        (
            f"{run.name}: {end(run)} after {count(story.restarts, 'restart')}{in_place} and "
            f"{duration(story.length_s)}"
        ),
        (
            f"run {run.run_id}, began {began}, {count(len(run.nodes), 'node')}, "
            f"{count(story.ledger.n_ranks, 'rank')}"
        ),
    ]
    for index, node in enumerate(run.nodes):
        bad = f"; {count(node.passed_over, 'line')} could not be read" if node.passed_over else ""
        text.append(f"  {place(run, index)}: {node.end or node.state}, {node.folder}{bad}")
    return text + [row for line in notes(run) for row in _wrap(line, "")]


def end(run: Run) -> str:
    """How it stands; of a job that failed, how it ended, where that is the same on all nodes."""
    ends = {node.end for node in run.nodes if node.end}
    return ends.pop() if len(ends) == 1 and run.state == FAILED else run.state


def notes(run: Run) -> list[str]:
    """Doubts about its files."""
    lines = []
    if run.state == CUT_OFF:
        lines.append("A launcher was killed, or its folder is a copy: its last words are missing.")
    if others := [node.folder.name for node in run.of_other_jobs]:
        shown = ", ".join(others[:_FOLDERS_SHOWN]) + (", ..." if others[_FOLDERS_SHOWN:] else "")
        lines.append(
            f"These folders may be of several jobs, or starts of one: {shown} had no cycle in "
            "common with the rest. Times and sums here are of all of them."
        )
    return lines + clock_lines(run)


def clock_lines(run: Run) -> list[str]:
    """Which wall clocks were wrong, or were set; times in a report have no part in that."""
    nodes = [(place(run, index), node) for index, node in enumerate(run.nodes)]
    right = min(nodes, key=lambda named: abs(named[1].axis.ahead_s))[0]
    lines = []
    for name, node in nodes:
        ahead_s, set_by_s = node.axis.ahead_s, node.marks.set_by_s
        if abs(ahead_s) > _SKEW_S:
            side = "ahead of" if ahead_s > 0 else "behind"
            lines.append(
                f"The wall clock of node {name} was {abs(ahead_s):.1f} s {side} that of node "
                f"{right}; times here do not depend on it. Check NTP on these nodes"
            )
        if abs(set_by_s) > _SKEW_S:
            or_slept = ", or the node was suspended" if set_by_s > 0 else ""
            lines.append(
                f"The wall clock of node {name} was set by {set_by_s:+.1f} s during the run"
                f"{or_slept}; times here do not depend on it"
            )
    hidden = len(lines) - _CLOCKS_SHOWN
    return lines[:_CLOCKS_SHOWN] + (
        [f"{hidden} more lines on clocks: holdfast report --json has all"] if hidden > 0 else []
    )


def _goodput(story: Story) -> list[str]:
    ledger = story.ledger
    if not ledger.seconds:
        return []
    ranks = max(1, ledger.n_ranks)
    title = f"Goodput {100 * ledger.goodput:.1f} %"
    if not story.is_watched:
        title = "Goodput: not known, no rank reports progress; the time of ranks counts as steps"
    text = [f"{title} (per rank, on average)"]
    for account, s, share in as_shares(ledger.seconds):
        bar = "█" * round(_BAR * share) or "▏"
        text.append(
            f"  {LABELS[account]:<32} {duration(s / ranks):>12} {100 * share:6.2f} %  {bar}"
        )
    if story.is_watched and not story.saves and ledger.may_hide_steps_again:
        text.append(
            "  Steps done again are not known: no section saves checkpoints (docs/report.md)"
        )
    return text


def _cycles(story: Story) -> list[str]:
    rows = story.cycles
    table = [("cycle", "at", "length", "steps", "ended by", "ranks again", "steps again")]
    for row in rows[-_ROWS_SHOWN:]:
        failure = row["failure"]
        table.append(
            (
                str(row["cycle"]),
                duration(row["at_s"]),
                duration(row["until_s"] - row["at_s"]),
                "" if row["steps"] is None else str(row["steps"]),
                "" if failure is None else _cut(failure["ended_by"], 42),
                _after(failure, "ranks_started_after_s"),
                _after(failure, "steps_after_s"),
            )
        )
    text = columns(table, (4,), "  ")
    hidden = len(rows) - _ROWS_SHOWN
    if hidden > 0:
        text.insert(1, f"  ({hidden} earlier: holdfast report --json has all)")
    return text


def _after(failure: dict[str, Any] | None, key: str) -> str:
    return "" if failure is None or failure[key] is None else f"+{duration(failure[key])}"


def _recoveries(story: Story) -> list[str]:
    found = story.recoveries[-_ROWS_SHOWN:]
    rows = [_wrap(line, "", _WORDS_AT) for line in lines(found, story.run.began)]
    return ["What happened", *(line for row in rows for line in row)] if found else []


def _in_place(story: Story) -> list[str]:
    found = in_place_lines(story)[-_ROWS_SHOWN:]
    rows = [_wrap(f"  {words}", "", _IN_PLACE_AT) for words in found]
    return ["Restarts in place", *(line for row in rows for line in row)] if found else []


def in_place_lines(story: Story) -> list[str]:
    """``at 1.23 s, cycle 0: rank 1 raised: ValueError: boom; all in call 1 after 0.009 s``."""
    return [
        f"at {duration(one.noticed_at - story.run.began)}, cycle {cycle}: {why(one)}; "
        f"all in call {one.call} after {duration(one.entered_at - one.noticed_at)}"
        for cycle, one in story.in_place
    ]


def _incidents(title: str, incidents: Sequence[Incident]) -> list[str]:
    text = []
    for one in incidents[-_ROWS_SHOWN:]:
        text += ["", *_incident(one)]
    return [title, *text[1:]] if text else []


def _slow(story: Story) -> list[str]:
    rows = [f"  {slow_words(cycle, one)}" for cycle, one in story.slow[-_ROWS_SHOWN:]]
    return ["Slow ranks", *rows] if rows else []


def slow_words(cycle: int, one: Slow) -> str:
    """``cycle 0: rank 2 in data, 31.0 ms on average, 2.9x the median of all ranks``."""
    return (
        f"cycle {cycle}: rank {one.rank} in {one.section}, {duration(one.mean_s)} on average, "
        f"{one.factor:.1f}x the median of all ranks"
    )


def _incident(one: Incident) -> list[str]:
    head = f"{named(one.culprits)}: {one.kind}" if one.culprits else one.kind
    sure = f" ({one.confidence} confidence)" if one.culprits and one.confidence else ""
    text = [f"  cycle {one.cycle}, {head}{sure}", *_wrap(one.reason, "    ")]
    for each in one.groups:
        text += _wrap(f"{named(each.ranks)}: {each.text or 'no stack'}", "    ")
    if lines := done_lines(one):
        text += _wrap(f"done: {'; '.join(lines)}", "    ")
    return [*text, *_wrap(one.next, "    "), f"    {one.path}"]


def done_lines(one: Incident) -> list[str]:
    """Signals, equal ones together, and the restart; the texts of a file that has no such facts."""
    return done_in_short(one.signals, one.next_cycle) or one.done


def _wrap(text: str, indent: str, further: str | None = None) -> list[str]:
    from textwrap import wrap  # noqa: PLC0415 - where it is used

    return wrap(
        text,
        98,
        initial_indent=indent,
        subsequent_indent=indent if further is None else further,
        break_on_hyphens=False,
    )


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def runs_table(runs: Iterable[Run]) -> str:
    """One line for each run, its folder last."""
    table = [("began", "length", "state", "restarts", "run id", "script", "folder")]
    for run in runs:
        restarts = max((event.cycle for event in run.events), default=0)
        began = clock.local_time(run.began + run.offset_s, zone=False)
        length = duration(run.ended - run.began)
        folder = str(run.nodes[0].folder)
        shown = (_cut(run.run_id, 16), _cut(run.name.rsplit("/", 1)[-1], 20), folder)
        table.append((began, length, end(run), str(restarts), *shown))
    return "\n".join(map(one_line, columns(table, (0, 2, 4, 5, 6), "  "))) + "\n"
