"""The benchmarks run; what they find is not judged here, machines that run tests are busy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.figures import Bar, Figure, Report, table

SMALL = {  # startup and teardown are made of the same pieces, and slow
    "heartbeat": "rounds=2",
    "lateness": "hangs=2, window_s=0.1",
    "memory": "starts=1, sizes=(1,)",
    "restart": "restarts=1, gloo_restarts=0",
    "warm": "sizes=(1,), restarts=1",
    "assignment": "rounds=1, world=512, lost=50",
    "incident_scale": "nodes=128, rounds=1",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_each_benchmark_measures_something(name: str) -> None:
    """In a process of its own, as it forks and plays a rank."""
    program = f"""
import json
from bench import {name}
print(json.dumps({name}.measure({SMALL[name]}).to_json()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )

    figures = json.loads(done.stdout)["figures"]
    assert figures
    assert all(figure["n"] > 0 and figure["p50"] is not None for figure in figures)


def test_a_bar_is_about_one_statistic() -> None:
    """A tail that is too long is seen although the median is fine, and the other way round."""
    samples = [float(i) for i in range(1, 101)]
    figure = Figure("lateness", "ms", samples)

    assert (figure.statistic("p50"), figure.statistic("p99")) == (50.5, 100.0)
    assert figure.is_met(Bar(50.5))
    assert not figure.is_met(Bar(99, "p99"))
    assert figure.is_met(Bar(1, "min", at_least=True))
    assert not figure.is_met(Bar(51, at_least=True))


def test_nothing_measured_is_nothing_promised() -> None:
    """A launcher that never worked has no figure, and meets no bar."""
    report = Report("a launcher that fails")
    report.add("restart", "s", [], Bar(2, at_least=True))

    assert not report.is_met
    assert report.to_json()["figures"][0]["p50"] is None
    assert "NOT MET" in table("restart", report)
