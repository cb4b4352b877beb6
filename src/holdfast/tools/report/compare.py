"""Two runs side by side: the facts in which they differ. Pure.

Compared are results (goodput, its accounts, steps per second, restarts, faults) and inputs (command
line, commit, versions, environment). Equal facts are named in one line, so that a reader knows
that they were compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from itertools import zip_longest
from textwrap import wrap
from typing import Any

from holdfast.base import clock
from holdfast.base.pure.printable import one_line
from holdfast.base.pure.value import Value
from holdfast.base.pure.wording import count, duration, restarts
from holdfast.events.pure.schema import LaunchFacts
from holdfast.events.run.accounts import ACCOUNTS, LABELS
from holdfast.tools.report.report import SCHEMA_VERSION, Story, as_json
from holdfast.tools.report.report_html import marked_up, page_of
from holdfast.tools.report.report_text import end
from holdfast.tools.report.run_facts import commit
from holdfast.tools.report.snapshot_facts import RunSnapshots
from holdfast.tools.run.one_job import of_one_job
from holdfast.tools.run.run_files import Run
from holdfast.tools.run.step_rates import mean

_POINTS = 1.0
"""Shares of time that differ by less are equal."""
_RATE = 0.02
"""So are rates of steps whose ratio differs from 1 by less."""
_LABEL, _CELL = 20, 37
_NONE = "-"


class ComparedFact(Value):
    """One fact of both runs."""

    what: str
    a: str
    b: str
    is_equal: bool = False


def are_two_jobs(one: Run, other: Run) -> bool:
    """They have no cycle in common, so that they are no nodes of one job."""
    nodes = [*one.nodes, *other.nodes]
    starts = {index: node.starts for index, node in enumerate(nodes)}
    first, second = range(len(one.nodes)), range(len(one.nodes), len(nodes))
    if not all(any(starts[index] for index in some) for some in (first, second)):
        return one.run_id != other.run_id  # one of them never had ranks
    begin = next(index for index in first if starts[index])
    return set(of_one_job(begin, starts)).isdisjoint(second)


def rows_of(a: Story, b: Story) -> list[ComparedFact]:
    """All facts, results first."""
    return [*_results(a, b), *_faults(a, b), *_inputs(_facts(a), _facts(b))]


def _facts(story: Story) -> LaunchFacts:
    found = (node.facts for node in story.run.nodes if node.facts.versions)
    return next(found, LaunchFacts())


def _row(what: str, a: str, b: str) -> ComparedFact:
    return ComparedFact(what, a, b, is_equal=a == b)


def _results(a: Story, b: Story) -> Iterator[ComparedFact]:
    yield _row("result", end(a.run), end(b.run))
    yield _row("script", a.run.name, b.run.name)
    yield _row("size", *(_size(each) for each in (a, b)))
    yield _row("length", duration(a.length_s), duration(b.length_s))
    yield _row("goodput", *map(_goodput, (a, b)))
    rates = mean(a.run.steps), mean(b.run.steps)
    shown = [_NONE if rate is None else f"{rate:.3g}" for rate in rates]
    equal = shown[0] == shown[1]
    if rates[0] and rates[1]:
        equal = abs(rates[1] / rates[0] - 1.0) < _RATE
        shown[1] += "" if equal else f" ({rates[1] / rates[0]:.2f}x)"
    yield ComparedFact("steps per second", shown[0], shown[1], is_equal=equal)
    yield _row("restarts", *(restarts(each.restarts, len(each.in_place)) for each in (a, b)))
    yield from _snapshots(a.snapshots, b.snapshots)
    for account in ACCOUNTS:
        points = [_points(each, account) for each in (a, b)]
        if account != "steps" and abs(points[0] - points[1]) >= _POINTS:
            yield _row(f"time: {LABELS[account]}", *(f"{share:.1f} %" for share in points))


def _snapshots(a: RunSnapshots | None, b: RunSnapshots | None) -> Iterator[ComparedFact]:
    """Where one of them has used any."""
    if a is None and b is None:
        return
    yield _row("snapshots", *(_NONE if it is None else _cost(it) for it in (a, b)))
    lost = [None if it is None else it.steps_lost for it in (a, b)]
    yield _row("steps lost", *("not known" if n is None else str(n) for n in lost))


def _cost(found: RunSnapshots) -> str:
    share = "" if found.share is None else f", {100 * found.share:.1g} % of the steps' time"
    return f"{found.taken}{share}"


def _size(story: Story) -> str:
    return f"{count(len(story.run.nodes), 'node')}, {count(story.ledger.n_ranks, 'rank')}"


def _goodput(story: Story) -> str:
    return f"{100 * story.ledger.goodput:.1f} %" if story.is_watched else "not known"


def _points(story: Story, account: Any) -> float:
    total_s = story.ledger.total_s
    return 100 * story.ledger.seconds.get(account, 0.0) / total_s if total_s else 0.0


def _faults(a: Story, b: Story) -> Iterator[ComparedFact]:
    """The same fault may strike another rank, in another cycle."""
    times: list[dict[tuple[str, ...], int]] = []
    names: dict[tuple[str, ...], str] = {}
    for story in (a, b):
        times.append({fault.last.key: len(fault.failures) for fault in story.faults})
        names |= {fault.last.key: fault.last.what for fault in story.faults}
    for key, name in names.items():
        shown = [count(here[key], "time") if key in here else _NONE for here in times]
        yield _row(f"fault: {name}", *shown)


def _inputs(a: LaunchFacts, b: LaunchFacts) -> Iterator[ComparedFact]:
    if not (a.versions and b.versions):
        return  # of a version up to 0.6
    for name in dict.fromkeys((*a.versions, *b.versions)):
        yield _row(name, a.versions.get(name, _NONE), b.versions.get(name, _NONE))
    if commit(a) or commit(b):
        yield _row("commit", commit(a) or _NONE, commit(b) or _NONE)
    yield _row("folder", a.folder, b.folder)
    options = [list(_options(facts.command)) for facts in (a, b)]
    only = [
        " ".join(option for option in options[k] if option not in options[1 - k]) for k in (0, 1)
    ]
    yield _row("command", *(words or _NONE for words in only))
    for name in sorted({*a.environment, *b.environment}):
        values = (facts.environment.get(name, _NONE) for facts in (a, b))
        yield _row(name, *values)


def _options(words: Iterable[str]) -> Iterator[str]:
    """``--nnodes 2``, ``train.py``: an option with the words behind it."""
    found: list[str] = []
    for word in words:
        if found and (word.startswith("-") or not found[0].startswith("-") or len(found) > 1):
            yield " ".join(found)
            found = []
        found.append(word)
    yield " ".join(found)


def names_of(a: Story, b: Story) -> list[str]:
    """``A: run crash, began 2026-11-26 07:37:50, /logs/crash_...``."""
    return [
        f"{letter}: run {story.run.run_id}, began "
        f"{clock.local_time(story.run.began + story.run.offset_s, zone=False)}, "
        f"{story.run.nodes[0].folder}"
        for letter, story in (("A", a), ("B", b))
    ]


def _same(rows: Iterable[ComparedFact]) -> str:
    return ", ".join(row.what for row in rows if row.is_equal)


def compared_as_text(a: Story, b: Story) -> str:
    """At most 100 columns; the names of folders have lines of their own."""
    rows = rows_of(a, b)
    text = [*names_of(a, b), "", *_cells("", "A", "B")]
    for row in rows:
        text += [] if row.is_equal else _cells(row.what, row.a, row.b)
    if same := _same(rows):
        text += ["", *wrap(f"The same in both: {same}", 98)]
    return "\n".join(map(one_line, text)) + "\n"


def _cells(what: str, a: str, b: str) -> list[str]:
    widths = (_LABEL, _CELL, _CELL)
    cells = [
        wrap(text, width, break_on_hyphens=False)
        for text, width in zip((what, a, b), widths, strict=True)
    ]
    return [
        f"  {label:<{_LABEL}}  {one:<{_CELL}}  {other}".rstrip()
        for label, one, other in zip_longest(*cells, fillvalue="")
    ]


def compared_as_html(a: Story, b: Story) -> str:
    """One page; needs no network."""
    rows = rows_of(a, b)
    title = f"{' and '.join(dict.fromkeys([a.run.name, b.run.name]))}: two runs compared"
    body = [f"<h1>{escape(title)}</h1>"]
    body += [f"<p class='dim'>{escape(name)}</p>" for name in names_of(a, b)]
    body.append("<div class='card scroll'><table class='two'><thead><tr><th><th>A<th>B</thead>")
    for row in rows:
        if not row.is_equal:
            cells = "".join(f"<td>{marked_up(text)}" for text in (row.what, row.a, row.b))
            body.append(f"<tr>{cells}")
    body.append("</table></div>")
    if same := _same(rows):
        body.append(f"<p class='dim'>The same in both: {escape(same)}</p>")
    return page_of(title, body)


def compared_as_json(a: Story, b: Story) -> dict[str, Any]:
    """Both runs, and the facts in which they differ."""
    return {
        "schema_version": SCHEMA_VERSION,
        "runs": [as_json(a), as_json(b)],
        "differences": [
            {"what": row.what, "a": row.a, "b": row.b} for row in rows_of(a, b) if not row.is_equal
        ],
    }
