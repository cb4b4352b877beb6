"""Instants of several hosts on one axis, whatever their clocks show."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.tools.run.node_clocks import Axis, ClockMarks, on_one_axis
from tests.unit.made_events import event, typed

HOUR_S = 3600.0
LATE_S = 0.005
"""How late a decision may reach a node."""
EPOCH = 1.7e9
Told = list[tuple[float, dict]]
"""Events of a node, with their true times."""


@dataclass(frozen=True)
class Host:
    """Its clocks; ``step``: when its wall clock is set, and how far."""

    monotonic_s: float
    rate: float = 1.0
    wall_s: float = 0.0
    step: tuple[float, float] = (0.0, 0.0)

    def told(self, at: float, kind: str, cycle: int = 0, **fields: object) -> tuple[float, dict]:
        t = self.monotonic_s + at * self.rate
        set_by_s = self.step[1] if at >= self.step[0] else 0.0
        wall = EPOCH + at * self.rate + self.wall_s + set_by_s
        return at, {**event(t, kind, cycle, **fields), "wall": wall}


SKEWS = st.sampled_from((0.0, 0.02, -2.0, HOUR_S, -HOUR_S)) | st.floats(-1e5, 1e5)
STEPS = st.tuples(st.floats(0.0, 1e3), st.sampled_from((0.0, -HOUR_S, HOUR_S)))


def hosts(rates: st.SearchStrategy[float]) -> st.SearchStrategy[list[Host]]:
    """A few, with unrelated clocks."""
    one = st.builds(Host, st.floats(0.0, 1e7), rates, SKEWS, STEPS)
    return st.lists(one, min_size=2, max_size=4)


@st.composite
def jobs(draw: st.DrawFn, rates: st.SearchStrategy[float]) -> list[Told]:
    """The events of each node: cycles that start when all have joined, and end when all have."""
    nodes = draw(hosts(rates))
    events: list[Told] = [[] for _ in nodes]

    def each(kind: str, cycle: int, since: float, within_s: float) -> float:
        fields = {"master_port": 20000 + cycle} if kind == "cycle_started" else {}
        for node, told in zip(nodes, events, strict=True):
            at = since + draw(st.floats(0.0, within_s))
            told.append(node.told(at, kind, cycle, **fields))
        return max(told[-1][0] for told in events)

    now = each("launcher_started", 0, 0.0, 1.0)
    for cycle in range(draw(st.integers(1, 4))):
        now = each("joining", cycle, now, 1.0)
        now = each("cycle_started", cycle, now, LATE_S)
        now = each("cycle_stopped", cycle, now + draw(st.floats(0.01, 1e3)), 1.0)
    return events


def axes_of(events: list[Told], *, wall: bool = True) -> tuple[list[Axis], float]:
    """As a reader makes them; ``wall`` False: without wall clocks."""
    told = []
    for k, of_node in enumerate(events):
        marks = ClockMarks(k)
        for one in typed([one if wall else {**one, "wall": None} for _, one in of_node]):
            marks.take(one)
        told.append(marks)
    return on_one_axis(told)


@given(jobs(st.floats(1 - 1e-4, 1 + 1e-4)))
def test_what_was_before_a_start_on_one_node_comes_before_it_on_all(events: list[Told]) -> None:
    """With any clocks, drifts and steps; and the order on each node stays."""
    ends: dict[int, list[float]] = {}
    starts: dict[int, list[float]] = {}
    for axis, of_node in zip(axes_of(events)[0], events, strict=True):
        instants = [axis.at(one["t"]) for _, one in of_node]
        assert instants == sorted(instants)
        for at, (_, one) in zip(instants, of_node, strict=True):
            if one["kind"] == "cycle_started":
                starts.setdefault(one["cycle"], []).append(at)
            elif one["kind"] == "cycle_stopped":
                ends.setdefault(one["cycle"], []).append(at)
    for cycle, at in starts.items():
        assert len(set(at)) == 1
        assert max(ends.get(cycle - 1, at)) <= at[0] + 1e-6
        assert min(ends[cycle]) >= at[0]


@given(jobs(st.just(1.0)))
def test_wall_clocks_have_no_part_in_the_order(events: list[Told]) -> None:
    """And instants are as exact as the leader's decisions are fast."""
    axes, _ = axes_of(events)
    blind, _ = axes_of(events, wall=False)
    base = next(told[0] for axis, told in zip(axes, events, strict=True) if not axis.is_moved)
    since = base[1]["t"] - base[0]
    for axis, other, of_node in zip(axes, blind, events, strict=True):
        for at, one in of_node:
            assert axis.at(one["t"]) == other.at(one["t"])
            assert axis.at(one["t"]) - since == pytest.approx(at, abs=LATE_S + 1e-6)


@given(hosts(st.just(1.0)).filter(lambda nodes: len(nodes) > 2))
def test_the_wall_clock_in_the_middle_counts(nodes: list[Host]) -> None:
    """How far each other one is ahead is known, and how far one was set."""
    events = [[k.told(1.0, "launcher_started"), k.told(9.0, "cycle_started")] for k in nodes]
    started = [replace(k, step=(0.0, 0.0 if k.step[0] > 1 else k.step[1])) for k in nodes]
    aheads = [k.wall_s + k.step[1] for k in started]
    middle = sorted(aheads)[(len(nodes) - 1) // 2]
    axes, offset_s = axes_of(events)
    assert axes[0].at(events[0][0][1]["t"]) + offset_s == pytest.approx(EPOCH + 1.0 + middle)
    assert [axis.ahead_s for axis in axes] == pytest.approx([a - middle for a in aheads], abs=1e-5)


def marks_of(host: object, *events: dict) -> ClockMarks:
    """What these events say."""
    marks = ClockMarks(host)
    for one in typed(events):
        marks.take(one)
    return marks


def test_a_wall_clock_that_is_set_while_the_job_runs_is_noticed() -> None:
    """By how much at most: it may be set back again."""
    node = Host(500.0, step=(3.0, -HOUR_S))
    events = [node.told(float(at), "joining")[1] for at in range(6)]
    assert marks_of(0, *events, {**events[-1], "wall": 5.0 + EPOCH}).set_by_s == -HOUR_S


def test_launchers_of_one_host_have_one_clock() -> None:
    """However late one of them heard of the start."""
    first, late = (event(at, "cycle_started", master_port=1) for at in (10.0, 12.0))
    axes, _ = on_one_axis([marks_of("host", late), marks_of("host", first)])
    assert [axis.at(11.0) for axis in axes] == [11.0, 11.0]


def test_a_spare_is_placed_by_the_start_of_the_cycle_that_it_has_no_part_in() -> None:
    """It heard of that at the same instant."""
    node = marks_of("a", event(10.0, "cycle_started", 3, master_port=1))
    spare = marks_of("b", {**event(70.0, "standing_by", without_us=3), "wall": HOUR_S})
    axes, _ = on_one_axis([spare, node])
    assert [axis.at(70.0) for axis in axes] == [10.0, 70.0]


def test_a_call_of_a_function_is_a_mark_too() -> None:
    """A cycle of days may have no other; clocks drift meanwhile."""
    restart = {"call": 1, "cycle": 0}
    here = [event(0.0, "cycle_started"), event(101.0, "restarted_in_place", entered_at=100.0)]
    there = [event(500.0, "cycle_started"), event(610.0, "restarted_in_place", entered_at=602.0)]
    axes, _ = on_one_axis(
        [marks_of(k, *({**e, **restart} for e in (here, there)[k])) for k in (0, 1)]
    )
    assert [axes[1].at(t) for t in (500.0, 551.0, 602.0, 603.0)] == [0.0, 50.0, 100.0, 101.0]


@pytest.mark.parametrize("port", [2, None])
def test_hosts_without_a_common_mark_are_placed_by_their_wall_clocks(port: int | None) -> None:
    """Two jobs may have a run id in common, or a node have left before the other one came."""
    late = event(7.0, "cycle_started" if port else "joining", master_port=port)
    here = marks_of("a", event(10.0, "cycle_started", master_port=1))
    axes, offset_s = on_one_axis([here, marks_of("b", {**late, "wall": 200.0})])
    assert [axis.at(7.0) + offset_s for axis in axes] == [7.0, 200.0]
    assert [axis.ahead_s for axis in axes] == [0.0, 0.0]


def test_marks_that_contradict_each_other_do_no_harm() -> None:
    """A file may hold anything; the order of its events stays."""
    axis = Axis([(1.0, 10.0), (2.0, 9.0), (2.0, 11.0), (3.0, 11.0), (4.0, 12.0)])
    instants = [axis.at(t / 4) for t in range(20)]
    assert instants == sorted(instants)
