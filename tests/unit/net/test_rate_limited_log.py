from __future__ import annotations

from holdfast.net.pure.rate_limited_log import LINES_MAX, QUIET_S, RateLimitedLog


def test_an_offender_is_named_once_a_minute_with_the_number_of_times() -> None:
    complaints = RateLimitedLog()
    lines = [complaints.line("10.0.0.1", "sent garbage", now) for now in range(60)]
    assert lines == ["10.0.0.1 sent garbage", *[None] * 59]
    assert complaints.line("10.0.0.2", "sent garbage", 30.0) == "10.0.0.2 sent garbage"
    again = complaints.line("10.0.0.1", "sent garbage", QUIET_S)
    assert again == "10.0.0.1 sent garbage (59 more times since it was last named)"


def test_a_thousand_offenders_are_twenty_lines_and_a_bounded_memory() -> None:
    complaints = RateLimitedLog()
    lines = [complaints.line(f"host {n}", "sent garbage", 0.0) for n in range(1000)]
    assert [line for line in lines if line] == [f"host {n} sent garbage" for n in range(LINES_MAX)]
    later = complaints.line("host x", "sent garbage", QUIET_S)
    assert later == ("host x sent garbage; 980 more lines about other callers were left out before")
    for n in range(100_000):
        complaints.line(f"host {n}", "sent garbage", n * QUIET_S)
    assert len(complaints._offenders) <= 256
