"""Steps per second, from looks at pages whose values may be anything."""

import random

import pytest

from holdfast.tools.run.step_rates import StepCounts, StepRate, mean, thinned
from tests.unit.made_events import progress, shown


def rates(*looks: dict[str, object]) -> list[tuple[int, float, float, int]]:
    counts = StepCounts()
    for look in looks:
        counts.take(look)
    return [(each.cycle, each.start, each.end, each.steps) for each in counts.rates()]


def _steps(cycle: int, t: float, times: int, closed_at: float, *, final: bool = False) -> dict:
    sections = {"step": [times, 1.0, 1.0, 10.0, closed_at], "checkpoint": [999, 1.0, 1.0, 1.0, 1.0]}
    return shown(cycle, t, {"0": progress(None, sections)}, final=final)


def test_a_stretch_lies_between_the_ends_of_steps() -> None:
    """Not the instants of the looks: a hang after the last step makes none slower."""
    looks = (
        _steps(0, 20.0, 9, 19.0),
        _steps(0, 90.0, 29, 39.0),
        _steps(0, 95.0, 29, 39.0, final=True),
    )
    assert rates(*looks, _steps(1, 120.0, 5, 115.0)) == [
        (0, 10.0, 19.0, 9),
        (1, 10.0, 115.0, 5),
        (0, 19.0, 39.0, 20),
    ]


def test_without_sections_the_optimizer_or_the_iteration_counts() -> None:
    def look(t: float, **fields: object) -> dict[str, object]:
        return shown(0, t, {"0": progress(heartbeat_at=t - 1.0, **fields)})

    of_optimizer = [look(t, steps=int(t), first_heartbeat_at=2.0) for t in (12.0, 22.0)]
    assert rates(*of_optimizer) == [(0, 2.0, 11.0, 12), (0, 11.0, 21.0, 10)]
    of_iterations = [look(t, iteration=1000 + int(t)) for t in (12.0, 22.0)]
    assert rates(*of_iterations) == [(0, 11.0, 21.0, 10)]  # it begins at a checkpoint


@pytest.mark.parametrize("seed", range(50))
def test_whatever_a_look_holds_a_stretch_has_a_length(seed: int) -> None:
    rng = random.Random(seed)
    junk = [None, "x", -1, 1e400, True, [], {}, 3, 7.5, [1, 2, 3, 4, 5], {"step": [2, 1, 1, 1, 9]}]
    look = {key: rng.choice(junk) for key in ("t", "cycle", "at")}
    ranks = {str(k): {"sections": rng.choice(junk), "steps": rng.choice(junk)} for k in range(2)}
    found = rates({**look, "ranks": rng.choice([ranks, *junk])}, _steps(0, 9.0, 3, 8.0))
    assert all(end > start for _, start, end, _ in found)


def test_many_looks_become_few_stretches() -> None:
    found = rates(*(_steps(0, 20.0 + n, 2 * n, 10.0 + n) for n in range(5000)))
    assert len(found) < 300
    assert sum(steps for *_, steps in found) == 9998


def test_a_mean_leaves_pauses_out() -> None:
    two = [StepRate(0, 0.0, 10.0, 50), StepRate(1, 100.0, 110.0, 100)]
    assert mean(two) == 7.5
    assert mean([]) is None
    assert [each.steps for each in thinned(two, 1)] == [50, 100]  # of two cycles
