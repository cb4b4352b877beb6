"""What a launcher adds to the evidence of its monitors: the words on a rank's stderr."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from holdfast.base import clock
from holdfast.events.pure.schema import kind_of
from holdfast.evidence.pure.evidence import RankDigest, Verdict
from holdfast.node.part import CycleStarted
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.node.pure.rank_life import MonitorSaid
from holdfast.node.records.incidents import IncidentRecords
from holdfast.page.pure.clocks import PAUSE, STEP
from holdfast.watch.pure import monitor_messages

RAISED = [
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "ValueError: bad sample",
]


@pytest.mark.parametrize(
    ("beat_s", "age_s", "expected"),
    [
        (9.0, 5.0, "ValueError: bad sample"),  # since its last heartbeat
        (3.0, 9.0, ""),  # it has survived it
        (None, 5.0, "ValueError: bad sample"),
        (None, 500.0, ""),
    ],
)
def test_the_exception_that_ended_a_program_is_part_of_what_its_rank_shows(
    beat_s: float | None, age_s: float, expected: str
) -> None:
    """Its process still exits; monitors do not see stderr."""
    at = clock.monotonic() - age_s
    rank = SimpleNamespace(last_lines=lambda: (RAISED, [at] * len(RAISED)))
    looked = monitor_messages.EvidenceCollected(1, 0, RankDigest(2, "n", beat_s=beat_s))
    incidents = IncidentRecords(Mock(), Mock(), Mock())
    assert incidents.with_exception(0, looked) is looked, "no rank was started"
    incidents.on_event(CycleStarted(SimpleNamespace(ranks={0: rank})))  # type: ignore[arg-type]

    found = incidents.with_exception(0, looked)
    assert isinstance(found, monitor_messages.EvidenceCollected)
    assert found.digest == RankDigest(2, "n", beat_s=beat_s, exception=expected)


def overdue(clock_name: str) -> monitor_messages.Overdue:
    return monitor_messages.Overdue(0, 3, 1, 77, clock_name, None, 600.1, 600.0, True, 5.0, 5.1)


@pytest.mark.parametrize(
    ("clock_name", "then", "kinds"),
    [
        ("heartbeat", [], ["rank_overdue"]),
        (STEP, [monitor_messages.Recovered(0)], []),
        (
            STEP,
            [
                monitor_messages.Evidence(0, 3, 77, None, None, 0.1, None),
                monitor_messages.Recovered(0),
            ],
            [],
        ),
        (PAUSE, [monitor_messages.Recovered(0)], []),
        (
            STEP,
            [monitor_messages.Closed(0), monitor_messages.Unkillable(0, 3, 77, 15.0, "D")],
            ["rank_stuck"],
        ),
        (
            STEP,
            [monitor_messages.Signalled(0, 3, 77, 9, "hung")] * 2,
            ["rank_overdue", *["kill_sent"] * 2],
        ),
    ],
    ids=["chosen", "goes on", "a stall", "a pause", "closed", "hangs"],
)
def test_a_rank_without_steps_is_overdue_once_it_is_to_be_ended(clock_name, then, kinds) -> None:
    """Reports and alerts take it for a hang."""
    events = Mock()
    incidents = IncidentRecords(events, Mock(), Mock())

    for message in (overdue(clock_name), *then):
        incidents.on_event(MonitorSaid(1, message))

    assert [kind_of(type(call.args[0])) for call in events.write.call_args_list] == kinds


@pytest.mark.parametrize(
    ("verdict", "kinds"),
    [
        (Verdict(), ["incident"]),
        (Verdict(is_stall=True), ["stall"]),
        (Verdict(is_stall=True, is_known=True), []),
        (Verdict(is_pause=True), ["steps_paused"]),
        (Verdict(is_pause=True, is_known=True), []),
    ],
)
def test_a_stall_is_told_from_a_hang(verdict: Verdict, kinds: list[str]) -> None:
    """Nothing that follows in its cycle is blamed on it."""
    events, on_over = Mock(), Mock()
    incidents = IncidentRecords(events, Mock(), on_over)

    incidents.on_event(IncidentOver(1, 0, (), verdict, {}, ""))
    if kinds != ["incident"]:
        incidents.on_event(IncidentOver(1, 0, (), verdict, {}, ""))

    assert [kind_of(type(call.args[0])) for call in events.write.call_args_list] == kinds
    assert on_over.called is ("incident" in kinds)


OWN = "2026-11-26 08:00:00,1 [INFO] [n0] [rank 4] holdfast: monitored"


def test_the_last_lines_of_all_ranks_are_written_down() -> None:
    """Of those whose stderr goes through the launcher; without holdfast's own."""

    def rank(number: int, *lines: str, keeps_stderr: bool = True) -> SimpleNamespace:
        place, told = SimpleNamespace(rank=number), ([*lines], [1.0] * len(lines))
        return SimpleNamespace(place=place, last_lines=lambda: told, keeps_stderr=keeps_stderr)

    ranks = [rank(4, "a\n", "", OWN), rank(5), rank(6, keeps_stderr=False), rank(7, "\r 1%|\r 2%|")]
    folders = Mock()
    incidents = IncidentRecords(Mock(), folders, Mock())
    incidents.on_event(CycleStarted(SimpleNamespace(ranks=dict(enumerate(ranks)))))  # type: ignore[arg-type]

    over = IncidentOver(1, 0, (), Verdict(), {}, "")
    incidents.on_event(over)
    folders.over.assert_called_once_with(over, {4: ["a"], 5: [], 7: [" 2%|"]})
