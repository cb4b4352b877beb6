"""What a launcher adds to the evidence of its monitors: the words on a rank's stderr."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from holdfast.core.evidence import RankDigest, Verdict
from holdfast.core.launch.node_evidence import IncidentOver
from holdfast.core.monitor import monitor_messages as said
from holdfast.fault_tolerance.launch.incidents import Incidents
from holdfast.fault_tolerance.launch.part import CycleBegins
from holdfast.host import clock

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
    looked = said.Looked(1, 0, RankDigest(2, "n", beat_s=beat_s))
    incidents = Incidents(Mock(), Mock(), Mock())
    assert incidents.with_exception(0, looked) is looked, "no rank was started"
    incidents.hear(CycleBegins(SimpleNamespace(ranks={0: rank})))  # type: ignore[arg-type]

    found = incidents.with_exception(0, looked)
    assert isinstance(found, said.Looked)
    assert found.digest == RankDigest(2, "n", beat_s=beat_s, exception=expected)


def test_the_last_lines_of_all_ranks_are_written_down() -> None:
    """Of those whose stderr goes through the launcher."""

    def rank(number: int, *lines: str, keeps_stderr: bool = True) -> SimpleNamespace:
        place, told = SimpleNamespace(rank=number), ([*lines], [1.0] * len(lines))
        return SimpleNamespace(place=place, last_lines=lambda: told, keeps_stderr=keeps_stderr)

    ranks = [rank(4, "a\n", ""), rank(5), rank(6, keeps_stderr=False), rank(7, "\r 1%|\r 2%|")]
    folders = Mock()
    incidents = Incidents(Mock(), folders, Mock())
    incidents.hear(CycleBegins(SimpleNamespace(ranks=dict(enumerate(ranks)))))  # type: ignore[arg-type]

    over = IncidentOver(1, 0, (), Verdict(), {}, "")
    incidents.hear(over)
    folders.over.assert_called_once_with(over, {4: ["a"], 5: [], 7: [" 2%|"]})
