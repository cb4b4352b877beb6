"""The state diagrams of docs/state-machines.md show what the machines do."""

from __future__ import annotations

import re

import pytest

from tests.state_diagrams import FOLDER, STATES, draw, lanes, observed


@pytest.fixture(scope="module")
def seen():
    return observed(range(30))


@pytest.mark.parametrize("name", STATES)
def test_a_transition_that_a_machine_makes_is_an_arrow_of_its_diagram(name, seen):
    """``make diagrams`` draws them again, from many more jobs than this test simulates."""
    drawn = (FOLDER / f"states-{name}.svg").read_text(encoding="utf-8")
    arrows = {tuple(pair.split(">")) for pair in re.findall(r'data-arrow="([^"]+)"', drawn)}
    assert set(seen[name]) <= arrows
    assert len(arrows) >= 5
    assert {state for pair in arrows for state in pair} == set(STATES[name])


def test_arrows_in_one_lane_do_not_meet():
    assert lanes([(0, 2), (2, 4), (1, 3), (0, 4)]) == [0, 0, 1, 2]


def test_arrows_show_the_events_that_lead_there():
    drawn = draw(["a", "b", "c"], {("a", "b"): {"Began"}, ("c", "a"): {"Ended", "Failed"}})
    assert ">Began</text>" in drawn
    assert ">Ended, Failed</text>" in drawn
