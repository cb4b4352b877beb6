"""The story of a run for a terminal: at most 100 columns, the answer first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.base import clock
from holdfast.base.pure.printable import one_line
from holdfast.base.pure.wording import count, duration
from holdfast.events.run.accounts import LABELS
from holdfast.events.run.run_words import done_in_short, named
from holdfast.tools.columns import columns
from holdfast.tools.report import snapshot_facts
from holdfast.tools.report.answer import answer_of, repeats
from holdfast.tools.report.failures import Failure, RepeatedFailure, in_words
from holdfast.tools.report.report import Story, as_shares, place
from holdfast.tools.report.run_facts import facts_of
from holdfast.tools.report.stragglers import slow_words
from holdfast.tools.report.thread_stacks import threads_in
from holdfast.tools.run.incident_files import Group, Incident
from holdfast.tools.run.run_files import CUT_OFF, FAILED, Run
from holdfast.tools.run.step_rates import StepRate, mean, thinned

_BAR = 30
_ROWS_SHOWN = 40
_FAULTS_SHOWN = 10
_TIMES_SHOWN = 5
_GROUPS_SHOWN = 4
STALLS = "Stalls: ranks made no optimizer steps, and none was killed"
_CLOCKS_SHOWN = 8
_FOLDERS_SHOWN = 3
_SKEW_S = 1.0
"""Of wall clocks, from which on it is reported."""
_SPARKS = "▁▂▃▄▅▆▇█"
_SPARKS_SHOWN = 60
_LABEL = 9
"""Columns of a label in the answer, in a failure and in the facts."""


def as_text(story: Story) -> str:
    """The report."""
    parts = [[*_title(story), *_answer(story)], _launchers(story), _goodput(story), _steps(story)]
    parts += [
        _cycles(story),
        _failures(story),
        _snapshots(story),
        _stalls(story.run.stalls),
        _slow(story),
        _facts(story),
    ]
    return "\n\n".join("\n".join(map(one_line, part)) for part in parts if part) + "\n"


def _title(story: Story) -> list[str]:
    in_place = f", {len(story.in_place)} in place" if story.in_place else ""
    past = f"{count(story.restarts, 'restart')}{in_place} and {duration(story.length_s)}"
    return [f"{story.run.name}: {end(story.run)} after {past}"]


def _launchers(story: Story) -> list[str]:
    run = story.run
    began = clock.local_time(run.began + run.offset_s, zone=False)
    text = [
        (
            f"run {run.run_id}, began {began}, {count(len(run.nodes), 'node')}, "
            f"{count(story.ledger.n_ranks, 'rank')}"
        ),
    ]
    for index, node in enumerate(run.nodes):
        bad = f"; {count(node.passed_over, 'line')} could not be read" if node.passed_over else ""
        text.append(f"  {place(run, index)}: {node.end or node.state}, {node.folder}{bad}")
    return text + [row for line in notes(run) for row in _wrap(line, "")]


def _answer(story: Story) -> list[str]:
    answer = answer_of(story)
    rows = [f"┌─ {row}" if at == 0 else f"│  {row}" for at, row in enumerate(_wrap(answer.title))]
    for label, text in answer.rows:
        rows += [f"│ {line}" for line in _labelled(label, text)]
    return [*rows, "└─"]


def _labelled(label: str, text: str, indent: str = "") -> list[str]:
    """A text behind its label, which has a column of its own."""
    head = f"{indent}{label:<{_LABEL}}"
    return _wrap(text, head, " " * len(head))


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
    if story.is_watched and not story.knows_steps_again and ledger.may_hide_steps_again:
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


def _steps(story: Story) -> list[str]:
    """A bar for each stretch of time, as high as steps were fast in it."""
    rates = story.run.steps
    if (per_s := mean(rates)) is None:
        return []
    highest = max(each.per_s for each in rates)
    return [
        f"Steps per second: {per_s:.3g} on average, {highest:.3g} at most",
        f"  {_sparks(thinned(rates, _SPARKS_SHOWN), story.run.began, story.length_s)}",
    ]


def _sparks(rates: Sequence[StepRate], began: float, length_s: float) -> str:
    highest = max(each.per_s for each in rates)
    cells = [" "] * _SPARKS_SHOWN
    for each in rates:
        share = _SPARKS_SHOWN / (length_s or 1.0)
        first, last = (min(_SPARKS_SHOWN - 1, int((t - began) * share)) for t in each.ends)
        mark = _SPARKS[round((len(_SPARKS) - 1) * each.per_s / highest)]
        cells[first : last + 1] = mark * (last + 1 - first)
    return "".join(cells).rstrip()


def _failures(story: Story) -> list[str]:
    """Each once: the answer has the line, the cause and the remedy of one of them."""
    in_answer = answer_of(story).fault
    shown = story.faults[-_FAULTS_SHOWN:]
    text = ["Failures"] if shown else []
    for number, fault in enumerate(shown):
        text += [""] * bool(number) + _fault(fault, is_known=fault is in_answer)
    hidden = len(story.faults) - len(shown)
    if hidden > 0:
        text.insert(1, f"  ({hidden} earlier: holdfast report --json has all)")
    return text


def _fault(fault: RepeatedFailure, *, is_known: bool) -> list[str]:
    last, times = fault.last, repeats(fault)
    text = _wrap(f"{last.what}{f': {times}' if times else ''}", "  ")
    rows: list[tuple[str, str]] = []
    if not is_known:
        rows += [("where", last.where), ("why", last.why), ("do", last.advice)]
    rows += [("at", _when(each)) for each in fault.failures[-_TIMES_SHOWN:]]
    rows += [("stack", _stack(each)) for each in last.groups[:_GROUPS_SHOWN]]
    if last.incident is not None:
        rows.append(("done", "; ".join(done_lines(last.incident))))
    for label, words in rows:
        text += _labelled(label, words, "    ") if words else []
    if last.stderr:
        text += [f"    {'stderr':<{_LABEL}}{_cut(last.stderr[0], 85)}"]
        text += [f"    {'':<{_LABEL}}{_cut(line, 85)}" for line in last.stderr[1:]]
    if last.incident is not None:
        text.append(f"    {'files':<{_LABEL}}{last.incident.path.parent}")
    return text


def _when(failure: Failure) -> str:
    after = f": {in_words(failure.times)}" if failure.times else ""
    source = f"; {failure.source}" if failure.source else ""
    return f"{duration(failure.at_s)}, cycle {failure.cycle}{after}{source}"


def _stack(group: Group) -> str:
    """Of the main thread, the user's frames."""
    threads = threads_in(group.stack)
    where = threads[0].path if threads else group.text or "no stack"
    return f"{named(group.ranks)}: {where}"


def _stalls(stalls: Sequence[Incident]) -> list[str]:
    text = []
    for one in stalls[-_ROWS_SHOWN:]:
        text += [f"  cycle {one.cycle}", *_wrap(one.reason, "    "), *_wrap(one.next, "    ")]
        for each in one.groups[:_GROUPS_SHOWN]:
            text += _labelled("stack", _stack(each), "    ")
        text.append(f"    {one.path.parent}")
    return [STALLS, *text] if text else []


def _snapshots(story: Story) -> list[str]:
    if story.snapshots is None:
        return []
    first, *others = snapshot_facts.lines(story.snapshots)
    return [*_wrap(first), *(row for line in others for row in _wrap(line.strip(), "  ", "    "))]


def _slow(story: Story) -> list[str]:
    rows = [f"  {slow_words(cycle, one)}" for cycle, one in story.slow[-_ROWS_SHOWN:]]
    return ["Slow ranks", *rows] if rows else []


def _facts(story: Story) -> list[str]:
    rows = [row for label, text in facts_of(story.run) for row in _labelled(label, text, "  ")]
    return ["The start of the job", *rows] if rows else []


def done_lines(one: Incident) -> list[str]:
    """Signals, equal ones together, and the restart; the texts of a file that has no such facts."""
    return done_in_short(one.signals, one.next_cycle) or one.done


def _wrap(text: str, indent: str = "", further: str | None = None) -> list[str]:
    from textwrap import wrap  # noqa: PLC0415 - where it is used

    return wrap(
        text,
        96,
        initial_indent=indent,
        subsequent_indent=indent if further is None else further,
        break_on_hyphens=False,
    )


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
