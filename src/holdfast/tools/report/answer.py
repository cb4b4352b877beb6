"""The answer of a report: one box with the failure, its line, its cause and the remedy. Pure.

A reader who sees it for five seconds knows the state of the job and the fault to look at: of a job
that failed the last one, of one that recovered the one that cost most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.base.pure.value import Value
from holdfast.base.pure.wording import count, duration
from holdfast.events.run.run_words import named
from holdfast.tools.report.failures import Failure, RepeatedFailure
from holdfast.tools.report.stragglers import slow_words
from holdfast.tools.run.run_files import CUT_OFF, FAILED, RUNNING, SUCCEEDED

if TYPE_CHECKING:
    from holdfast.tools.report.report import Story

GOOD, RECOVERED, BAD = "good", "recovered", "bad"
"""How a box looks."""
_LISTED = 6


class ReportAnswer(Value):
    """The box.

    Attributes:
        look: ``GOOD``, ``RECOVERED`` or ``BAD``.
        title: The state of the job.
        rows: What, where, why, do, then: a label and a text.
        fault: The one that the rows are about; None: nothing failed.
    """

    look: str
    title: str
    rows: tuple[tuple[str, str], ...] = ()
    fault: RepeatedFailure | None = None


def answer_of(story: Story) -> ReportAnswer:
    """The answer of a run."""
    faults, state = story.faults, story.run.state
    n = sum(len(fault.failures) for fault in faults)
    if state == CUT_OFF:
        rest = _rows(faults[-1]) if faults else ()
        title = "Cut off: the launcher was killed, or writes elsewhere"
        return ReportAnswer(BAD, title, rest, faults[-1] if faults else None)
    if state == FAILED:
        return _failed(story)
    if not faults:
        return _nothing_failed(story)
    lost_s = sum(fault.lost_s for fault in faults)
    cost = f", which cost {duration(lost_s)} of each rank" if lost_s > 0.0 else ""
    if state == RUNNING:
        fault, which = max(faults, key=lambda each: each.last.at_s), "The last one"
        title = f"Running, after {count(n, 'failure')}{cost}"
    else:
        fault, which = max(faults, key=lambda each: each.lost_s), "The most expensive fault"
        title = f"Succeeded, after {count(n, 'failure')}{cost}"
    more = f". {which}:" if len(faults) > 1 else ""
    return ReportAnswer(RECOVERED, title + more, _rows(fault), fault)


def _failed(story: Story) -> ReportAnswer:
    """A job that a signal or the end of its budget has ended may have failed for no rank."""
    ends = list(dict.fromkeys(node.end for node in story.run.nodes if node.end))
    how = ", ".join(ends[:_LISTED]) or "failed"
    past = f"after {count(story.restarts, 'restart')}" if story.restarts else "without a restart"
    title = f"{how[:1].upper()}{how[1:]}, {past}"
    last_cycle = max((row["cycle"] for row in story.cycles), default=0)
    here = [fault for fault in story.faults if fault.last.cycle == last_cycle]
    if not here:
        return ReportAnswer(BAD, title, (("what", "no rank failed in the last cycle"),))
    fault = max(here, key=lambda each: each.last.at_s)
    return ReportAnswer(BAD, title, _rows(fault), fault)


def _nothing_failed(story: Story) -> ReportAnswer:
    state = "Succeeded" if story.run.state == SUCCEEDED else "Running"
    if story.run.stalls:
        stall = story.run.stalls[-1]
        rows = [("what", stall.reason or stall.kind), ("do", stall.next)]
        return ReportAnswer(
            RECOVERED,
            f"{state}; ranks made no optimizer steps for long, and none was killed",
            tuple((label, text) for label, text in rows if text),
        )
    rows = [("slow", slow_words(*each)) for each in story.slow[:1]]
    return ReportAnswer(GOOD, f"{state}; nothing failed", tuple(rows))


def _rows(fault: RepeatedFailure) -> tuple[tuple[str, str], ...]:
    last = fault.last
    times = repeats(fault)
    rows = [
        ("what", f"{last.what}{f' ({times})' if times else ''}"),
        ("where", last.where),
        ("why", last.why),
        ("do", last.advice),
        ("then", _then(last)),
    ]
    return tuple((label, text) for label, text in rows if text)


def repeats(fault: RepeatedFailure) -> str:
    """``3 times, in cycles 0, 1, 2``; empty for one time."""
    n = len(fault.failures)
    if n < 2:
        return ""
    cycles = list(dict.fromkeys(each.cycle for each in fault.failures))
    which = "cycle" if len(cycles) == 1 else "cycles"
    return f"{count(n, 'time')}, in {which} {named(cycles).partition(' ')[2]}"


def _then(last: Failure) -> str:
    started = [each for each in last.times if not each[0].endswith(("named", "written"))]
    if not started:
        return "no rank was started again"
    (first, first_s), *others = started
    where = " in the same processes" if last.in_place else ""
    more = "".join(f", {name} after {duration(s)}" for name, s in others)
    lost = f"; it cost {duration(last.lost_s)} of each rank" if last.lost_s > 0.0 else ""
    source = f", {last.source}" if last.source else ""
    return f"{first}{where} {duration(first_s)} after the detection{more}{source}{lost}"
