"""What a heartbeat and a section cost the rank, back to back, against a pickled socket message."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from itertools import repeat

from bench import classic
from bench.figures import Bar, Report
from bench.monitor import Monitor
from holdfast.fault_tolerance import RankMonitorClient

ROUNDS = 100
CALLS = 5000
MESSAGES = 40
"""Fewer than fill the socket's buffer: the sender never waits for the reader to make room."""
REPLIES = 10


def _each_us(call: Callable[[], object], times: int) -> float:
    """Mean of a batch, the loop (some 15 ns) included: one call is too short for the clock."""
    began_ns = time.perf_counter_ns()
    for _ in repeat(None, times):
        call()
    return (time.perf_counter_ns() - began_ns) / times / 1e3


def _pair_us(client: RankMonitorClient, times: int) -> float:
    start, end = client.start_section, client.end_section
    began_ns = time.perf_counter_ns()
    for _ in repeat(None, times):
        start("step")
        end("step")
    return (time.perf_counter_ns() - began_ns) / times / 1e3


def _block_us(client: RankMonitorClient, times: int) -> float:
    step = client.section("step")
    began_ns = time.perf_counter_ns()
    for _ in repeat(None, times):
        with step:
            pass
    return (time.perf_counter_ns() - began_ns) / times / 1e3


def _one_way_us(reader: socket.socket, times: int) -> float:
    us = _each_us(lambda: classic.send(reader, classic.Heartbeat(0, time.monotonic())), times)
    _ask(reader)  # not timed: lets the reader catch up
    return us


def _message_pair_us(reader: socket.socket, times: int) -> float:
    def change(action: classic.Action) -> None:
        message = classic.SectionChange(0, "step", action, time.monotonic())
        classic.send(reader, message)

    began_ns = time.perf_counter_ns()
    for _ in repeat(None, times):
        change(classic.Action.OPEN)
        change(classic.Action.CLOSE)
    us = (time.perf_counter_ns() - began_ns) / times / 1e3
    _ask(reader)
    return us


def _ask(reader: socket.socket) -> None:
    classic.send(reader, classic.Heartbeat(0, time.monotonic(), wants_reply=True))
    classic.read(reader)


def measure(rounds: int = ROUNDS) -> Report:
    """Our calls and their alternatives in turn, ``rounds`` times."""
    beats: list[float] = []
    pairs: list[float] = []
    blocks: list[float] = []
    stopped_beats: list[float] = []
    stopped_pairs: list[float] = []
    one_ways: list[float] = []
    message_pairs: list[float] = []
    replies: list[float] = []
    limits: dict[str, float | None] = {"step": 3600.0}
    with Monitor(limits) as monitor, classic.Reader() as reader:
        os.environ.update(monitor.rank_environment)
        monitor.begin_cycle()
        client = RankMonitorClient()
        client.init_workload_monitoring()
        _ask(reader)
        for _ in range(rounds):
            beats.append(_each_us(client.send_heartbeat, CALLS))
            pairs.append(_pair_us(client, CALLS))
            blocks.append(_block_us(client, CALLS))
            with monitor.stopped():
                stopped_beats.append(_each_us(client.send_heartbeat, CALLS))
                stopped_pairs.append(_pair_us(client, CALLS))
            one_ways.append(_one_way_us(reader, MESSAGES))
            message_pairs.append(_message_pair_us(reader, MESSAGES // 2))
            replies.append(_each_us(lambda: _ask(reader), REPLIES))
        client.shutdown_workload_monitoring()

    report = Report(
        f"{rounds} rounds in turn; each sample the mean of {CALLS} calls, {MESSAGES} messages or "
        f"{REPLIES} replies back to back"
    )
    report.add("send_heartbeat()", "us", beats, Bar(0.25))
    report.add("start_section() + end_section()", "us", pairs, Bar(0.8))
    report.add('with section("step")', "us", blocks)
    report.add("send_heartbeat(), monitor stopped", "us", stopped_beats, Bar(0.25))
    report.add("section pair, monitor stopped", "us", stopped_pairs, Bar(0.8))
    report.add("alternative: pickled socket message", "us", one_ways)
    report.add("alternative: two such for a section", "us", message_pairs)
    report.add("alternative: message with a reply", "us", replies)
    report.add_ratio("heartbeat cheaper than a message", one_ways, beats, Bar(20, at_least=True))
    report.add_ratio(
        "section pair cheaper than two messages", message_pairs, pairs, Bar(20, at_least=True)
    )
    report.add_ratio("heartbeat cheaper than one with a reply", replies, beats)
    return report
