"""Every second of every rank is in exactly one account, whatever the events say."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base.pure.wording import duration
from holdfast.events.run import rank_spans
from holdfast.events.run.accounts import ACCOUNTS, account_of
from holdfast.events.run.ledger import Ledger, LiveLedger, two_lines
from holdfast.events.run.rank_spans import RankSpans
from tests.unit.made_events import (
    HANG,
    NAMES,
    THEN_WELL,
    event,
    made_up,
    of_rank,
    progress,
    shown,
    typed,
)


def spans_of(events, now=None):
    return rank_spans.spans_of(typed(events), now)


def _ledger(events, now=None):
    made, spans = spans_of(events, now)
    ledger = Ledger()
    ledger.add("n0", spans)
    return made, ledger


def test_a_hang_and_its_restart_are_in_their_accounts() -> None:
    """Each rank: the mark where one account ends is the mark where the next begins."""
    _, ledger = _ledger(HANG + THEN_WELL)
    for seconds in ledger.by_rank.values():
        assert seconds == pytest.approx(
            {
                "starting": 2.0,
                "importing": 4.0 + 4.0,
                "setup": 4.0 + 2.0,
                "steps": 35.0 + 30.0,
                "checkpointing": 5.0,
                "stalled": 30.0,
                "stopping": 2.0,
                "finishing": 2.0,
                "restarting": 2.0,
                # From the checkpoint at 40 to the last sign at 50.
                "steps_again": 10.0,
            }
        )
    assert ledger.total_s == pytest.approx(2 * 132.0)
    assert ledger.goodput == pytest.approx(65.0 / 132.0)


def test_steps_are_done_again_until_they_are_saved() -> None:
    """A second failure before a checkpoint: the same steps are lost twice."""
    dies = [
        shown(
            1,
            96.0,
            {"0": progress({"step": 94.0}, {"step": [4, 4.0, 1.0, 90.0, 94.0]}), "1": progress()},
        ),
        of_rank(95.0, "worker_exited", 1, 0, exit_code=1),
        event(95.0, "cycle_stopped", 1),
        event(95.0, "cycle_started", 2),
        of_rank(95.0, "worker_started", 2, 0),
        of_rank(95.0, "rank_armed", 2, 0, armed_at=95.0, sections=NAMES),
        of_rank(115.0, "worker_exited", 2, 0, exit_code=0),
        event(115.0, "cycle_stopped", 2),
        shown(
            2, 115.0, {"0": progress(None, {"step": [20, 20.0, 1.0, 95.0, 115.0]}, left_at=115.0)}
        ),
        event(115.0, "job_succeeded", 2),
    ]
    _, ledger = _ledger(HANG + dies)
    seconds = ledger.by_cycle
    assert seconds[1]["steps_again"] == pytest.approx(5.0)  # 90 to 95, of the ten that were lost
    assert seconds[2]["steps_again"] == pytest.approx(10.0)


ENDED = {"step": [10, 10.0, 2.0, 10.0, 20.0]}
BEATS = {"first_heartbeat_at": 10.0, "heartbeat_at": 20.0, "longest_gap_s": 2.0}


@pytest.mark.parametrize(
    "shows",
    [progress({"step": 20.0}, ENDED), progress(outside_since=6.0, **BEATS)],
    ids=["section", "heartbeats"],
)
def test_a_stall_that_ends_in_a_crash_is_a_stall(shows) -> None:
    """What exceeds the longest time without a sign that there ever was is not progress."""
    crash = [
        *HANG[:6],
        shown(0, 101.0, {"0": shows}),
        of_rank(100.0, "worker_exited", 0, 0, exit_code=1),
        event(100.0, "cycle_stopped"),
        event(100.0, "job_failed"),
    ]
    _, ledger = _ledger(crash)
    seconds = ledger.by_rank["n0", 0]
    assert (seconds["steps"], seconds["stalled"]) == (12.0, 78.0)


@pytest.mark.parametrize(
    ("shows", "stalled_s"),
    [
        (progress(outside_since=86.0), 14.0),
        (progress(heartbeat_at=84.0, first_heartbeat_at=10.0), 15.0),
        (progress({"save": 20.0}), 15.0),
        (progress(heartbeat_at=99.0, first_heartbeat_at=10.0), 1.0),
    ],
    ids=["between sections", "heartbeats", "a long first section", "went on alone"],
)
def test_ranks_wait_for_a_node_from_its_last_word_on(shows, stalled_s: float) -> None:
    """It is given up after 15 s of silence; until then nobody knew."""
    lost = [
        *HANG[:6],
        event(100.0, "cycle_stopping", silent_s=15.0),
        *(of_rank(101.0, "worker_exited", 0, k, exit_code=-15) for k in (0, 1)),
        event(102.0, "cycle_stopped"),
        shown(0, 103.0, {"0": shows, "1": shows}),
        event(103.0, "job_failed"),
    ]
    _, ledger = _ledger(lost)
    assert ledger.by_rank["n0", 0]["stalled"] == pytest.approx(stalled_s)


def test_a_hang_whose_progress_was_not_written_down_is_a_stall() -> None:
    """Its launcher was killed, or is older: the monitor has said for how long."""
    cut = [one for one in HANG[:11] if one["kind"] != "progress"]
    _, ledger = _ledger(cut)
    assert ledger.by_rank["n0", 1]["stalled"] == pytest.approx(30.0)
    assert ledger.by_rank["n0", 1]["steps"] == pytest.approx(44.0)


SHOWN = {"step": [30, 30.0, 1.5, 10.0, 50.0]}
WOKEN = {"step": [33, 33.0, 1.5, 10.0, 80.8]}
"""Of a rank that was stopped at 50, and has gone on after the verdict, at 80.7."""


def _then_ended(*, has_verdict: bool, is_overdue_here: bool = True) -> list[dict]:
    found = [one for one in HANG[:11] if is_overdue_here or one["kind"] != "rank_overdue"]
    if has_verdict:
        looked = {"0": progress({"step": 50.0}, SHOWN), "1": progress(None, SHOWN)}
        found.insert(7, {**shown(0, 80.55, looked, final=False), "verdict": True})
    last = {"0": progress({"step": 50.0}, SHOWN), "1": progress({"step": 80.8}, WOKEN)}
    return [*found, shown(0, 82.5, last), event(83.0, "job_failed")]


@pytest.mark.parametrize(
    ("has_verdict", "is_overdue_here"), [(True, True), (False, True), (True, False)]
)
def test_what_a_rank_reports_after_the_verdict_does_not_count(
    has_verdict: bool, is_overdue_here: bool
) -> None:
    """A stopped rank is woken for its stacks and goes on: it was stalled as long as its victims.

    Without a look at the verdict (the launcher is older) its monitor has said for how long; on
    another node than that of the rank that was overdue, the look says all.
    """
    events = _then_ended(has_verdict=has_verdict, is_overdue_here=is_overdue_here)
    for live in (False, True):
        if live:
            ledger = LiveLedger()
            for one in typed(events):
                ledger.take(one)
            by_rank = ledger.close().by_rank
            culprit, victim = by_rank["", 1], by_rank["", 0]
        else:
            by_rank = _ledger(events)[1].by_rank
            culprit, victim = by_rank["n0", 1], by_rank["n0", 0]
        assert culprit["steps"] == victim["steps"] == pytest.approx(40.0)
        stalled_s = 30.0 if is_overdue_here else 30.6
        assert culprit["stalled"] == victim["stalled"] == pytest.approx(stalled_s)


def test_a_cycle_that_goes_on_after_an_incident_keeps_what_it_reports() -> None:
    """Its ranks were restarted in place: the failure that ends it is another one."""
    events = _then_ended(has_verdict=True, is_overdue_here=False)
    at = next(index for index, one in enumerate(events) if one.get("verdict"))
    events[at] = {**events[at], "t": 52.0}
    _, ledger = _ledger(events)

    assert ledger.by_rank["n0", 1]["steps"] == pytest.approx(70.6)


def test_goodput_is_not_known_of_ranks_that_have_reported_in_and_nothing_else() -> None:
    """They open no section and send no heartbeat: 0.0 % would be wrong."""
    events = [
        *HANG[:6],
        *(of_rank(80.0, "worker_exited", 0, k, exit_code=0) for k in (0, 1)),
        event(81.0, "cycle_stopped"),
        shown(0, 82.0, {str(k): progress(outside_since=6.0) for k in (0, 1)}),
        event(82.0, "job_succeeded"),
    ]
    made, ledger = _ledger(events)
    lines = two_lines(ledger, is_watched=made.is_watched, knows_steps_again=made.knows_steps_again)
    assert lines[0].startswith("goodput is not known: no rank reports progress")


def test_a_job_that_goes_on_is_counted_to_now() -> None:
    """Its last phase is the one that it is in."""
    _, ledger = _ledger(HANG, now=1000.0)
    assert ledger.total_s == pytest.approx(2000.0)
    assert ledger.by_cycle[1]["setup"] == pytest.approx(2 * (1000.0 - 88.0))


def test_a_rank_that_reports_nothing_is_taken_to_train() -> None:
    """And the two lines say that it was not known."""
    said = ("rank_armed", "progress", "rank_overdue")
    silent = [one for one in HANG + THEN_WELL if one["kind"] not in said]
    made, ledger = _ledger(silent)
    assert not made.is_watched
    assert ledger.seconds["steps"] > 0.9 * ledger.total_s
    (first, _) = two_lines(ledger, is_watched=False, knows_steps_again=False)
    assert first.startswith("goodput is not known: no rank reports progress; 2 ranks ran for 2 min")


def test_a_node_that_waits_for_others_says_so() -> None:
    """From its join to the cycle that it is part of."""
    events = [
        event(0.0, "launcher_started"),
        event(3.0, "joining"),
        event(63.0, "cycle_started"),
        of_rank(64.0, "worker_started", 0, 0),
        of_rank(70.0, "worker_exited", 0, 0, exit_code=1),
        event(71.0, "cycle_stopped"),
        event(72.0, "joining"),
        event(100.0, "job_failed"),
    ]
    _, ledger = _ledger(events)
    assert ledger.seconds["waiting"] == pytest.approx(60.0 + 29.0)
    assert ledger.seconds["starting"] == pytest.approx(4.0)


def test_the_launcher_remembers_two_cycles_however_many_there_were() -> None:
    """Spans of a cycle are given as soon as its ranks' last progress is known."""
    spans = RankSpans()
    assert {span.cycle for one in typed(HANG) for span in spans.take(one)} == {0}
    assert 0 not in {span.cycle for span in spans.close()}


def test_the_ledger_of_a_running_job_can_be_asked_at_any_time() -> None:
    """And goes on as if nobody had asked."""
    live = LiveLedger()
    for one in typed([{**HANG[0], "nproc": 2}, *HANG[1:]]):
        live.take(one)
        for ahead_s in (0.0, 7.0):
            at = one.t + ahead_s
            assert live.at(at).total_s == pytest.approx(2 * at)
    for one in typed(THEN_WELL):
        live.take(one)
    assert live.close().seconds == pytest.approx(_ledger(HANG + THEN_WELL)[1].seconds)


def test_the_two_lines() -> None:
    """Goodput first, the largest loss first in the rest."""
    made, ledger = _ledger(HANG + THEN_WELL)
    assert two_lines(
        ledger, is_watched=made.is_watched, knows_steps_again=made.knows_steps_again
    ) == [
        "goodput 49.2 %: 1 min 05 s of 2 min 12 s were productive steps (2 ranks, on average)",
        (
            "the rest: stalled 30 s, steps done again after a restart 10 s, importing 8 s, "
            "setup 6 s, "
            "checkpointing 5 s, starting 2 s, evidence and stopping 2 s, restarting 2 s, "
            "finishing 2 s"
        ),
    ]


def test_only_a_job_that_was_restarted_has_steps_done_again() -> None:
    """An hour of training that went well is not told of a section that it lacks."""
    said = "steps done again count as productive"
    for events, is_said in ((HANG[:11], False), (HANG + THEN_WELL, True)):
        _, ledger = _ledger(events)
        assert (said in two_lines(ledger, is_watched=True, knows_steps_again=False)[0]) == is_said


@pytest.mark.parametrize(
    ("section", "account"),
    [
        ("setup", "setup"),
        ("step", "steps"),
        ("train/forward", "steps"),
        ("checkpointing", "checkpointing"),
        ("save_ckpt", "checkpointing"),
        ("load_checkpoint", "setup"),
        ("evaluation", "evaluating"),
        ("Validation", "evaluating"),
        ("data_loading", "steps"),
    ],
)
def test_the_name_of_a_section_says_its_account(section, account) -> None:
    """What says nothing is a step."""
    assert account_of(section) == account


@pytest.mark.parametrize(
    ("s", "words"),
    [
        (0.0, "0 s"),
        (0.0123, "0.012 s"),
        (0.9999, "1 s"),
        (59.96, "1 min 00 s"),
        (3599.7, "1 h 00 min"),
        (200.0, "3 min 20 s"),
        (7500, "2 h 05 min"),
        (273600, "3 d 4 h"),
    ],
)
def test_durations(s, words) -> None:
    """Two parts at most, and no 60 seconds."""
    assert duration(s) == words


# ---------------------------------------------------------------------- the property


@given(st.integers(0, 2**32), st.floats(0.0, 1e4))
@settings(max_examples=int(os.environ.get("HOLDFAST_LEDGER_EXAMPLES", "100")), deadline=None)
def test_the_ledger_closes(seed, later_s) -> None:
    """All accounts of a rank are its wall time, to a thousandth, and none is below nothing."""
    events = made_up(seed)
    stamps = [one.t for one in typed(events)]
    for now in (None, max(stamps, default=0.0) + later_s):
        made, ledger = _ledger(events, now)
        end = max(stamps, default=0.0) if now is None else now
        for seconds in ledger.by_rank.values():
            assert all(s >= 0.0 for s in seconds.values())
            assert set(seconds) <= set(ACCOUNTS)
            assert sum(seconds.values()) == pytest.approx(end - made.begin, rel=1e-3, abs=1e-6)


def test_made_up_jobs_come_to_every_account() -> None:
    """Else the property says nothing of one."""
    ledger = Ledger()
    for seed in range(200):
        ledger.add("n0", spans_of(made_up(seed))[1])
    assert {account for account, s in ledger.seconds.items() if s} == set(ACCOUNTS)
    shares = [span.shares for seed in range(200) for span in spans_of(made_up(seed))[1]]
    assert any({"finishing", "evaluating"} <= set(each) for each in shares)


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_spans_have_no_gap_and_no_overlap(seed) -> None:
    """Where one of a rank ends the next begins."""
    _, spans = spans_of(made_up(seed))
    at = {}
    for span in spans:
        assert at.get(span.local_rank, span.start) == pytest.approx(span.start)
        assert sum(span.shares.values()) == pytest.approx(span.end - span.start)
        at[span.local_rank] = span.end
