"""Restarts in place, in the story of a run."""

import json

import pytest
from prometheus_client import generate_latest

from holdfast.events.run.ledger import Ledger
from holdfast.events.run.rank_spans import spans_of
from holdfast.tools.calls import restarts_in_place, why
from holdfast.tools.observer.metrics import Metrics
from holdfast.tools.outages import Outages
from holdfast.tools.report.report import as_json, story_of
from holdfast.tools.report.report_html import as_html
from holdfast.tools.report.report_text import as_text
from holdfast.tools.run.run_files import read_run
from tests.unit.made_events import HANG, THEN_WELL, event, typed

RAISED = {"rank": 1, "kind": "EXCEPTION", "text": "ValueError: boom (train.py:3)"}
LATE = {"rank": 0, "kind": "SOFT_TIMEOUT", "text": "no progress for 9.0 s"}


def restarted(call, *causes, progress=95.0, noticed=95.0, entered=95.5, **fields):
    times = {"progress_at": progress, "noticed_at": noticed, "entered_at": entered}
    told = {"call": call, "causes": list(causes), "n_causes": len(causes), **times, **fields}
    return event(entered, "restarted_in_place", 1, **told)


EXCEPTION = restarted(1, RAISED, LATE)
HUNG = restarted(
    2, LATE, progress=100.0, noticed=109.0, entered=110.0, culprits=[1], reason="rank 1 waits"
)
EVENTS = sorted([*HANG, EXCEPTION, HUNG, *THEN_WELL], key=lambda one: one["t"])


def test_of_a_job_each_is_told_once_with_its_first_and_last_instant() -> None:
    """Every node tells it, of its own ranks."""
    other = {**EXCEPTION, "noticed_at": 94.9, "entered_at": 95.7}
    (_, first), (_, second) = restarts_in_place(typed([other, HUNG, EXCEPTION]))
    assert (first.call, first.noticed_at, first.entered_at) == (1, 94.9, 95.7)
    assert why(first) == "rank 1 raised: ValueError: boom (train.py:3); 1 more"
    assert (why(second), second.culprits) == ("rank 1 waits", (1,))
    ended = {**HUNG, "causes": [{**LATE, "kind": "HARD_TIMEOUT"}, LATE]}
    [(_, restart)] = restarts_in_place(typed([ended]))
    assert why(restart) == "rank 1 waits; rank 0 was killed"


@pytest.mark.parametrize(
    "broken",
    [
        {"noticed_at": None},
        {"entered_at": 1.0},
        {"causes": 3},
        {"causes": [{}]},
        {"call": "x"},
        {"progress_at": "?"},
    ],
)
def test_what_has_not_the_form_of_one_is_passed_over(broken) -> None:
    assert restarts_in_place(typed([{**EXCEPTION, **broken}])) == []


def test_its_seconds_are_no_steps() -> None:
    """From the last progress to the abort it was stalled, until the next call it restarted."""
    _, spans = spans_of(typed(EVENTS))
    _, without = spans_of(typed(HANG + THEN_WELL))
    ledger, before = Ledger(), Ledger()
    ledger.add("n0", spans)
    before.add("n0", without)
    for place, seconds in ledger.by_rank.items():
        assert seconds["stalled"] == pytest.approx(before.by_rank[place]["stalled"] + 9.0)
        assert seconds["restarting"] == pytest.approx(before.by_rank[place]["restarting"] + 1.5)
        assert seconds["steps"] == pytest.approx(before.by_rank[place]["steps"] - 10.5)
    assert ledger.total_s == pytest.approx(before.total_s)


def test_a_report_tells_of_them_in_all_its_forms(tmp_path) -> None:
    lines = "".join(f"{json.dumps(one)}\n" for one in EVENTS)
    (tmp_path / "events-launcher.jsonl").write_text(lines)
    story = story_of(read_run([tmp_path]))

    text = as_text(story)
    assert ": succeeded after 1 restart, 2 in place and 2 min 12 s" in text
    assert "1 restart and 2 in place" in as_html(story)
    told = "rank 1 raised: ValueError: boom (train.py:3); 1 more"
    assert told in " ".join(text.split())
    assert "cycle 1: all ranks in call 1 +0.5 s" in text
    first, second = as_json(story)["restarts_in_place"]
    assert (first["noticed_s"], first["stalled_s"], first["took_s"]) == (95.0, 0.0, 0.5)
    assert (second["stalled_s"], second["took_s"], second["culprits"]) == (9.0, 1.0, [1])
    assert told in as_html(story)


def test_metrics_count_them(tmp_path) -> None:
    metrics = Metrics(Outages(2), str(tmp_path), {"node": "n0"}, "0")
    for one in typed([EXCEPTION, HUNG]):
        metrics.take(one, [])
    assert (
        'holdfast_restarts_in_place_total{node="n0"} 2.0'
        in generate_latest(metrics.registry).decode().splitlines()
    )
