"""What a person reads about a hang: what, who, which numbers, what was done, what to change."""

import pytest

from holdfast.evidence.pure.incident import advice, describe_clock, named, report, seconds
from holdfast.page.pure import clocks

RECORD = {
    "rank": 3,
    "local_rank": 1,
    "pid": 4711,
    "node": "gpu-07",
    "cycle": 2,
    "time": "2026-01-31 23:59:59 +0000",
    "iteration": 41,
    "open_sections": {"step": 312.4, "checkpoint": 0.5},
    "process": {"state": "S", "wchan": "futex_wait_queue", "threads": 12, "rss_kib": 2048000},
    "was_stopped": False,
    "stacks": "/run/stacks.txt",
    "why_not": None,
    "took_s": 0.021,
    "clock": clocks.SECTION,
    "name": "step",
    "age_s": 312.4,
    "limit_s": 300.0,
    "learned": False,
    "actions": ["SIGCONT sent", "SIGKILL sent"],
}


@pytest.mark.parametrize(
    ("clock", "name", "text", "remedy"),
    [
        (
            clocks.EXIT,
            None,
            "Its process has run on for 412.4 s since it left its monitor, timeout 300.0 s",
            "To allow longer: --ft-exit-timeout 600",
        ),
        (
            clocks.INITIAL_HEARTBEAT,
            None,
            "Did not get initial heartbeat for 412.4 s, timeout 300.0 s",
            "To allow longer: --ft-initial-rank-heartbeat-timeout 600",
        ),
        (
            clocks.HEARTBEAT,
            None,
            "Did not get subsequent heartbeat for 412.4 s, timeout 300.0 s",
            "To allow longer: --ft-rank-heartbeat-timeout 600",
        ),
        (
            clocks.SECTION,
            "step",
            "Section 'step' has been open for 412.4 s, timeout 300.0 s",
            "To allow longer: --ft-rank-section-timeouts step:600",
        ),
        (
            clocks.OUTSIDE_SECTIONS,
            None,
            "Was out of section for 412.4 s, timeout 300.0 s",
            "To allow longer: --ft-rank-out-of-section-timeout 600",
        ),
    ],
)
def test_every_clock_has_a_sentence_and_a_remedy(
    clock: str, name: str | None, text: str, remedy: str
) -> None:
    """With both numbers, and the option to change."""
    record = {"clock": clock, "name": name, "age_s": 412.4, "limit_s": 300.0, "learned": False}

    assert describe_clock(record) == text
    assert advice(record) == remedy
    assert "at least twice as long" in advice(record | {"learned": True})


def test_short_times_keep_their_digits() -> None:
    """0.25 s is not 0.2 s."""
    assert (seconds(0.25), seconds(9.99), seconds(312.44)) == ("0.25 s", "9.99 s", "312.4 s")


def test_the_report_answers_at_three_in_the_morning() -> None:
    """One screen, then the stacks."""
    text = report(RECORD, "Thread 0x1 (most recent call first):\n  File x\n")

    assert text.splitlines() == [
        f"rank 3 (pid 4711, node gpu-07) is hung: {describe_clock(RECORD)}.",
        "",
        "time            2026-01-31 23:59:59 +0000",
        "cycle           2",
        "local rank      1",
        "iteration       41",
        "open sections   step for 312.4 s, checkpoint for 0.50 s",
        "process         state S in futex_wait_queue, 12 threads, 2000 MiB resident",
        "evidence        stacks in /run/stacks.txt, took 0.02 s",
        "done            SIGCONT sent",
        "                SIGKILL sent",
        "",
        "To allow longer: --ft-rank-section-timeouts step:600.",
        "",
        "Thread 0x1 (most recent call first):",
        "  File x",
    ]
    assert named(RECORD) == "rank 3 (pid 4711, node gpu-07)"


def test_the_report_says_what_is_not_known() -> None:
    """K-2: a reason instead of evidence."""
    record = RECORD | {
        "iteration": None,
        "open_sections": {},
        "process": None,
        "was_stopped": True,
        "stacks": None,
        "why_not": "the process is gone",
        "actions": [],
    }
    text = report(record, "")

    assert "iteration       not reported" in text
    assert "open sections   none" in text
    assert "process         gone" in text
    assert "no stacks: the process is gone; the rank was stopped (SIGSTOP?)" in text
    assert text.rstrip().endswith("No stacks: the process is gone.")
