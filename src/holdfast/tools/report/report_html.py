"""The story of a run as one HTML page that needs no network, and no script to be read.

Everything is drawn here; the page's script only zooms the timeline (wheel, drag, double click,
keys, or a click on a cycle). ``report_page.html`` has style and script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from holdfast.base import clock
from holdfast.base.pure.printable import printable
from holdfast.base.pure.wording import count, duration, restarts
from holdfast.events.run.accounts import ACCOUNTS, LABELS, meaning
from holdfast.events.run.rank_spans import Span
from holdfast.events.run.run_words import named
from holdfast.tools.report import snapshot_facts
from holdfast.tools.report.answer import answer_of, repeats
from holdfast.tools.report.failures import RepeatedFailure, in_words
from holdfast.tools.report.report import NodeSpans, Story, as_shares, place
from holdfast.tools.report.report_text import STALLS, done_lines, end, notes
from holdfast.tools.report.run_facts import facts_of
from holdfast.tools.report.stragglers import slow_words
from holdfast.tools.report.thread_stacks import ThreadStack, threads_in
from holdfast.tools.report.time_axis import ticks
from holdfast.tools.run.incident_files import Group, Incident
from holdfast.tools.run.step_rates import StepRate, mean

_ROW_PX, _FEW_ROWS_PX, _FEW_ROWS = 18, 30, 12
_ROWS_MAX = 128
_RECTS_MAX = 20_000
_STEPS_PX = 54
_FAULTS_MAX, _TIMES_MAX = 100, 20
_SHOWN_PX = 0.1


def as_html(story: Story) -> str:
    """The page."""
    rows = _rows(story)
    title = f"{story.run.name}: {end(story.run)}"
    body = [*_head(story), *_answer(story), *_goodput(story), *_timeline(story, rows)]
    body += [
        *_cycles(story),
        *_failures(story),
        *_snapshots(story),
        *_stalls(story.run.stalls),
        *_slow(story),
    ]
    body += [*_facts(story), *_nodes(story)]
    return page_of(title, body, _row_px(rows), _row_px(rows) * max(1, len(rows)) + _steps_px(story))


def marked_up(text: str) -> str:
    """A sentence, its `code` in the font of code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def page_of(title: str, body: Iterable[str], row_px: int = 0, height_px: int = 0) -> str:
    """A page with this body, in the style of a report."""
    page = Path(__file__).with_name("report_page.html").read_text(encoding="utf-8")
    rules = "\n".join(
        f".{account} {{ fill: var(--{account}); background: var(--{account}); }}"
        for account in ACCOUNTS
    )
    fillings = {
        "@TITLE@": escape(title),
        "@ROW@": str(row_px),
        "@HEIGHT@": str(height_px),
        "@RULES@": rules,
        "@BODY@": "\n".join(body),  # last: it holds what users have named
    }
    for mark, text in fillings.items():
        page = page.replace(mark, text, 1)
    return printable(page)


def _head(story: Story) -> Iterator[str]:
    run = story.run
    began = clock.local_time(run.began + run.offset_s)
    state = run.state.replace(" ", "-")
    yield f'<h1>{escape(run.name)} <span class="badge {state}">{escape(end(run))}</span></h1>'
    facts = [
        f"run {run.run_id}",
        f"began {began}",
        f"ran for {duration(story.length_s)}",
        count(len(run.nodes), "node"),
        count(story.ledger.n_ranks, "rank"),
        restarts(story.restarts, len(story.in_place)),
    ]
    shown = "".join(f"<span>{escape(fact)}</span>" for fact in facts)
    yield f'<div class="facts dim">{shown}</div>'
    for line in notes(run):
        yield f"<p>{escape(line)}</p>"


def _answer(story: Story) -> Iterator[str]:
    answer = answer_of(story)
    yield f'<div class="card answer {answer.look}"><h2>{marked_up(answer.title)}</h2>'
    if answer.rows:
        yield "<dl>"
        for label, text in answer.rows:
            yield f'<dt>{label}<dd class="{label}">{marked_up(text)}'
        yield "</dl>"
    yield "</div>"


def _goodput(story: Story) -> Iterator[str]:
    ledger = story.ledger
    if not ledger.seconds:
        return
    ranks = max(1, ledger.n_ranks)
    shares = as_shares(ledger.seconds)
    yield "<h2>Goodput</h2>"
    yield '<div class="card goodput"><div>'
    if story.is_watched:
        yield f'<div class="big">{100 * ledger.goodput:.1f} %</div>'
        yield '<div class="dim">of the time of the ranks<br>were productive steps</div>'
    else:
        yield '<div class="big">?</div><div class="dim">no rank reports progress</div>'
    if story.is_watched and not story.knows_steps_again and ledger.may_hide_steps_again:
        yield '<div class="dim">Steps done again are not known: no section saves checkpoints.</div>'
    yield '</div><div><div class="bar">'
    for account, s, share in shares:
        words = escape(f"{LABELS[account]}: {duration(s / ranks)}, {100 * share:.2f} %")
        yield f'<i class="{account}" style="width:{100 * share:.3f}%" title="{words}"></i>'
    yield '</div><table><thead><tr><th>account<th class="n">per rank<th class="n">share</thead>'
    for account, s, share in shares:
        yield (
            f'<tr title="{escape(meaning(account))}">'
            f'<td><span class="key {account}"></span>{escape(LABELS[account])}'
            f'<td class="n">{duration(s / ranks)}<td class="n">{100 * share:.2f} %'
        )
    yield "</table></div></div>"


# ---------------------------------------------------------------- timeline
Row = tuple[str, NodeSpans, list[Span]]


def _rows(story: Story) -> list[Row]:
    """A row for each rank; where they are too many, of each node the rank that lost most."""
    rows: list[Row] = []
    for index, each in enumerate(story.nodes):
        by_rank: dict[int, list[Span]] = {}
        for span in each.spans:
            by_rank.setdefault(span.local_rank, []).append(span)
        node = place(story.run, index)
        rows += [(f"{node} {_rank_name(spans)}", each, spans) for spans in by_rank.values()]
    if len(rows) <= _ROWS_MAX:
        return rows
    worst = [
        min((row for row in rows if row[1] is each), key=lambda row: _steps_s(row[2]))
        for each in story.nodes
        if any(row[1] is each for row in rows)
    ]
    return sorted(worst, key=lambda row: _steps_s(row[2]))[:_ROWS_MAX]


def _row_px(rows: list[Row]) -> int:
    return _FEW_ROWS_PX if len(rows) <= _FEW_ROWS else _ROW_PX


def _rank_name(spans: Iterable[Span]) -> str:
    ranks = sorted({span.rank for span in spans if span.rank is not None})
    return f"rank {'/'.join(map(str, ranks)) or '?'}"


def _steps_s(spans: Iterable[Span]) -> float:
    return sum(span.shares.get("steps", 0.0) for span in spans)


def _timeline(story: Story, rows: list[Row]) -> Iterator[str]:
    if not rows:
        return
    length = story.length_s or 1.0
    keys = "ctrl + wheel: zoom, drag: move, double click: all; keys: + - ← → 0"
    yield f'<h2>Timeline <span class="zoom hint">{keys}</span></h2>'
    yield '<div class="card"><div class="lanes"><div class="names">'
    yield "".join(f"<div>{escape(name)}</div>" for name, _, _ in rows)
    rates = story.run.steps
    if (per_s := mean(rates)) is not None:
        highest = max(each.per_s for each in rates)
        yield f'<div class="pace">steps/s<br>mean {per_s:.3g}<br>max {highest:.3g}</div>'
    height = _row_px(rows) * len(rows)
    full = height + _steps_px(story)
    # How to zoom stands above; in it a screen reader finds the name.
    yield '</div><div><svg class="time" tabindex="0" role="img" aria-label="Timeline of all ranks" '
    yield f'data-length="{length:.6f}" viewBox="0 0 {length:.6f} {full}" '
    yield 'preserveAspectRatio="none">'
    yield from _rects(rows, length)
    for recovery in story.recoveries:
        at = recovery.detected_at - story.run.began
        words = f"cycle {recovery.cycle}: {recovery.symptom}"
        yield f'<line class="mark" x1="{at:.6f}" x2="{at:.6f}" y1="0" y2="{height}">'
        yield f"<title>{escape(words)}</title></line>"
    yield from _step_bars(rates, story.run.began, height)
    yield '</svg><div class="axis" id="axis">'
    for at, label in ticks(0.0, length):
        yield f'<span style="left:{100 * at / length:.4f}%">{label}</span>'
    yield '</div></div></div><p class="dim">'
    for account in ACCOUNTS:
        if account in story.ledger.seconds:
            key = f'<span class="key {account}"></span>'
            yield f"<span style='white-space:nowrap'>{key}{escape(LABELS[account])}</span>&ensp; "
    yield "</p><p class='dim'>While a rank is at work, heights are shares of that time.</p></div>"


def _steps_px(story: Story) -> int:
    return _STEPS_PX if mean(story.run.steps) is not None else 0


def _step_bars(rates: Sequence[StepRate], began: float, top: int) -> Iterator[str]:
    """As high as steps were fast."""
    highest = max((each.per_s for each in rates), default=0.0)
    for each in rates if highest else ():
        height = (_STEPS_PX - 6) * each.per_s / highest
        yield (
            f'<rect class="rate" x="{each.start - began:.6f}" y="{top + _STEPS_PX - height:.2f}" '
            f'width="{each.end - each.start:.6f}" height="{height:.2f}">'
            f"<title>{each.per_s:.3g} steps per second, cycle {each.cycle}</title></rect>"
        )


def _rects(rows: list[Row], length: float) -> Iterator[str]:
    """Too many cannot be shown: then the shortest are left out, which are invisible."""
    spans = sorted((span.end - span.start for _, _, some in rows for span in some), reverse=True)
    shortest = spans[_RECTS_MAX] if len(spans) > _RECTS_MAX else length * 1e-7
    for index, (_, each, some) in enumerate(rows):
        y, full = index * _row_px(rows) + 2, _row_px(rows) - 3
        for span in some:
            length_s = span.end - span.start
            if length_s < shortest:
                continue
            x, bottom = max(0.0, each.at(span.start)), float(y + full)
            width = each.at(span.end) - x
            yield f"<g><title>{escape(_span_words(span))}</title>"
            for account, s in span.shares.items():  # the height is the share
                height = full * s / length_s
                if height < _SHOWN_PX:
                    continue
                bottom -= height
                yield (
                    f'<rect class="{account}" x="{x:.6f}" y="{bottom:.2f}" width="{width:.6f}" '
                    f'height="{height:.2f}"/>'
                )
            yield "</g>"


def _span_words(span: Span) -> str:
    parts = ""
    if len(span.shares) > 1:
        shown = [f"{LABELS[a]} {duration(s)}" for a, s in span.shares.items() if s > 0.0]
        parts = f" ({', '.join(shown)})"
    rank = "" if span.rank is None else f"rank {span.rank}, "
    return (
        f"{rank}cycle {span.cycle}: {LABELS[span.account]} {duration(span.end - span.start)}{parts}"
    )


# ---------------------------------------------------------------- tables
def _cycles(story: Story) -> Iterator[str]:
    yield "<h2>Cycles</h2><div class='card scroll'><table class='cycles'>"
    yield "<thead><tr><th class='n'>cycle"
    heads = ("began", "length", "ranks", "steps", "productive")
    yield "".join(f'<th class="n">{head}' for head in heads)
    yield '<th>ended by<th class="n">ranks started again<th class="n">steps again</thead>'
    for row in story.cycles:
        failure: dict[str, Any] = row["failure"] or {}
        seconds = row["rank_seconds"]
        share = seconds.get("steps", 0.0) / (sum(seconds.values()) or 1.0)
        cells = (
            duration(row["at_s"]),
            duration(row["until_s"] - row["at_s"]),
            str(row["ranks"]),
            "" if row["steps"] is None else str(row["steps"]),
            f"{100 * share:.1f} %" if story.is_watched else "",
        )
        yield (
            f'<tr data-from="{row["at_s"]}" data-until="{row["until_s"]}">'
            f'<td class="n">{row["cycle"]}' + "".join(f'<td class="n">{cell}' for cell in cells)
        )
        yield f"<td>{marked_up(failure.get('fault') or failure.get('ended_by') or '')}"
        for key in ("ranks_started_after_s", "steps_after_s"):
            after = failure.get(key)
            yield f'<td class="n">{"" if after is None else "+" + duration(after)}'
    yield "</table></div>"


def _failures(story: Story) -> Iterator[str]:
    """Each once: the answer has the line, the cause and the remedy of one of them."""
    if not story.faults:
        return
    known = answer_of(story).fault
    yield "<h2>Failures</h2><div class='card'>"
    for fault in story.faults[-_FAULTS_MAX:]:
        yield from _fault(fault, is_known=fault is known)
    yield "</div>"


def _fault(fault: RepeatedFailure, *, is_known: bool) -> Iterator[str]:
    last, times = fault.last, repeats(fault)
    more = f" <b>{times}</b>" if times else ""
    sure = ""
    if last.incident is not None and last.incident.culprits and last.incident.confidence:
        kind = f"{last.incident.kind}, {last.incident.confidence} confidence"
        sure = f' <span class="dim">{escape(kind)}</span>'
    yield f"<details{' open' if is_known else ''}>"
    yield f"<summary>{marked_up(last.what)}{more}{sure}</summary>"
    rows = [("where", last.where), ("why", last.why), ("do", last.advice)] if not is_known else []
    if last.incident is not None:
        rows.append(("done", "; ".join(done_lines(last.incident))))
    yield "<dl>"
    for label, text in rows:
        yield f"<dt>{label}<dd>{marked_up(text)}" if text else ""
    for each in fault.failures[-_TIMES_MAX:]:
        after = "; ".join(filter(None, [in_words(each.times), escape(each.source)]))
        yield f"<dt>cycle {each.cycle}<dd>at {duration(each.at_s)} <span class='dim'>{after}</span>"
    yield "</dl>"
    if last.stderr:
        lines = escape("\n".join(last.stderr))
        yield f"<div><b>stderr</b></div><pre class='output'>{lines}</pre>"
    yield from _groups(last.groups)
    if last.incident is not None:
        yield f"<code class='dim'>{escape(str(last.incident.path))}</code>"
    yield "</details>"


def _groups(groups: Iterable[Group]) -> Iterator[str]:
    for group in groups:
        where = f": {group.text}" if group.text else ""
        yield f"<div><b>{named(group.ranks)}</b>{marked_up(where)}</div>"
        threads = threads_in(group.stack)
        if not threads:
            yield f"<pre>{escape(group.stack)}</pre>" if group.stack else ""
            continue
        of_holdfast = [one for one in threads if one.is_holdfasts]
        own = "\n\n".join(_thread(one) for one in threads if not one.is_holdfasts)
        yield f"<pre>{own}</pre>"
        if of_holdfast:
            n = count(len(of_holdfast), "thread")
            frames = "\n\n".join(map(_thread, of_holdfast))
            yield f"<details class='own'><summary>{n} of holdfast</summary><pre>{frames}</pre>"
            yield "</details>"


def _thread(one: ThreadStack) -> str:
    """Its frames, the user's in bold."""
    lines = [f"<i>{escape(one.name)}</i>"]
    for frame in one.frames:
        text = escape(f"{frame.function}  {frame.file}:{frame.line}")
        lines.append(f"  {text}" if frame.is_library else f"<b>&gt; {text}</b>")
    return "\n".join(lines)


def _stalls(stalls: Sequence[Incident]) -> Iterator[str]:
    if not stalls:
        return
    yield f"<h2>{STALLS}</h2><div class='card'>"
    for one in stalls:
        yield f"<details{' open' if one is stalls[0] else ''}>"
        yield f"<summary>cycle {one.cycle}: {marked_up(one.reason)}</summary>"
        yield f"<p>{marked_up(one.next)}</p>" if one.next else ""
        yield from _groups(one.groups)
        yield f"<code class='dim'>{escape(str(one.path))}</code></details>"
    yield "</div>"


def _facts(story: Story) -> Iterator[str]:
    if rows := facts_of(story.run):
        yield "<h2>The start of the job</h2><div class='card'><dl>"
        yield "".join(f"<dt>{label}<dd><code>{escape(text)}</code>" for label, text in rows)
        yield "</dl></div>"


def _snapshots(story: Story) -> Iterator[str]:
    if story.snapshots is None:
        return
    first, *others = snapshot_facts.lines(story.snapshots)
    title, _, cost = first.partition(": ")
    yield f"<h2>{escape(title)}</h2><div class=card><p>{escape(cost)}</p>"
    yield f"<ul>{''.join(f'<li>{escape(line.strip())}' for line in others)}</ul></div>"


def _slow(story: Story) -> Iterator[str]:
    if story.slow:
        yield "<h2>Slow ranks</h2><div class='card'>"
        yield "".join(f"<div>{escape(slow_words(*each))}</div>" for each in story.slow)
        yield "</div>"


def _nodes(story: Story) -> Iterator[str]:
    yield "<h2>Launchers</h2><div class='card scroll'><table><thead><tr><th>node<th>state"
    heads = ("exit code", "events", "unreadable lines")
    yield "".join(f"<th class='n'>{head}" for head in heads) + "<th>folder</thead>"
    for index, node in enumerate(story.run.nodes):
        code = "" if node.exit_code is None else str(node.exit_code)
        yield (
            f"<tr><td>{escape(place(story.run, index))}<td>{escape(node.end or node.state)}"
            f"<td class='n'>{code}<td class='n'>{node.n_events}<td class='n'>{node.passed_over}"
            f"<td><code>{escape(str(node.folder))}</code>"
        )
    yield "</table></div>"
