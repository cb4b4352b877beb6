"""A sample of ``make harmless`` (invariant D-1), all jobs at once: see ``tests/harmless``."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest

from tests.harmless import runner
from tests.harmless.runner import OURS, TORCHRUN, Outcome

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
COLD = ("--ft-warm-standby=false",)
"""No parked interpreters, which import as much as ranks, where none is used."""
JOBS = [
    ("plain", "OnlyTrains", TORCHRUN, ()),
    ("plain", "runs_a_program", OURS, COLD),
    ("sections", "evaluates_alone", OURS, COLD),
    ("sections", "stopped_in_a_step", OURS, ()),
]


@pytest.mark.timeout(400)
def test_a_rank_that_is_away_ends_nothing_and_a_hang_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that runs a program or evaluates does as under torchrun; one that is stopped restarts.

    Also between two sections, where no timeout runs.
    """
    monkeypatch.setattr(runner, "PAUSE_S", 8.0)  # more than two steps take, also here
    monkeypatch.setattr(runner, "FLOOR_S", 1.0)
    monkeypatch.setenv("HARMLESS_LIGHT_TORCH", "1")

    def run(job: tuple[str, str, str, Sequence[str]]) -> Outcome:
        kind, name, launcher, options = job
        return runner.run(kind, name, launcher, options=options)

    with ThreadPoolExecutor(len(JOBS)) as pool:
        outcomes: list[Outcome] = list(pool.map(run, JOBS))
    theirs, *healthy, hung = outcomes

    for outcome in healthy:
        assert not runner.differences(theirs, outcome), outcome.said
        assert outcome.incidents, "the pause was too short to be seen"
    assert not runner.misses(hung), hung.said
