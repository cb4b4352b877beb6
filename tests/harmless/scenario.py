"""What a training script does besides training; the scripts of all kinds call it at the same steps.

A scenario is a class, or for most of them a function that ranks run before step :data:`AT`. It is
listed by its name. Its docstring says what happens.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = ("plain", "sections", "lightning", "trainer")
AT = 26
"""Step before which most scenarios act: a rank is watched for missing steps from its 20th on."""
STEPS = 32
CYCLE = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
"""Of this life of the rank: 0 at first, under either launcher."""

GLOO_S = 0.3
"""A thread of gloo that still has the last collective when the group is destroyed aborts the rank,
under any launcher ("terminate called without an active exception")."""

HEALTHY: dict[str, type[Scenario]] = {}
HANGS: dict[str, type[Hang]] = {}


def pause_s() -> float:
    """How long a healthy scenario keeps its rank away; several times the floor."""
    return float(os.environ.get("HARMLESS_PAUSE_S", "5"))


class Scenario:
    """A script that only trains; each rank makes one.

    Attributes:
        kinds: Scripts that it can be a part of.
        fast: A sample of these runs with the tests.
        fails: The script itself ends with an error, so that steps and weights are by chance.
        nproc: Ranks.
        command: What the launcher starts; ``{python}`` and ``{script}`` are replaced.
        env: More variables of the launcher; ``{folder}`` is replaced.
        workers: Of each rank's data loader.
        accumulate: Batches per step of the optimizer.
        loop: Another way to train, where the kind is ``plain``.
    """

    kinds: tuple[str, ...] = KINDS
    fast = False
    fails = False
    nproc = 2
    command: tuple[str, ...] = ("{script}",)
    env: dict[str, str] = {}  # noqa: RUF012 - constants
    workers = 0
    accumulate = 1
    loop = "usual"

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def begin(self) -> None:
        """Before torch is imported."""

    def joined(self) -> None:
        """The process group is there."""

    def item(self, number: int) -> None:
        """A sample is read, maybe in a loader's worker."""

    def step(self, number: int) -> None:
        """Before a step."""
        if number == AT:
            self.pause()

    def pause(self) -> None:
        """Before the step :data:`AT`."""

    def end(self) -> None:
        """After the last step; steps and weights are noted."""

    def mark(self, text: str) -> None:
        """Something that is to be the same under either launcher."""
        note("marks", self.rank, text)


class Hang(Scenario):
    """A hang in cycle 0; the next one trains to the end.

    Attributes:
        culprits: Ranks that an incident may name.
        timeout_s: Of the process group: its own end, where time is no proof.
    """

    kinds = ("plain",)
    culprits: tuple[int, ...] = (1,)
    timeout_s = 7200.0

    def step(self, number: int) -> None:
        if CYCLE == 0:
            super().step(number)


def note(name: str, rank: int, value: Any) -> None:
    """Append a line to a file of this rank; whatever the script has done to itself."""
    line = json.dumps(value).encode() + b"\n"
    path = f"{os.environ.get('OUT', _OUT)}/{name}.{rank}"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, line)
    os.close(descriptor)


_OUT = os.environ.get("OUT", "")


def on_rank(rank: int | None, **traits: Any) -> Callable[[Callable[[], None]], type[Scenario]]:
    """A scenario that pauses one rank, or all (None)."""

    def made(function: Callable[[], None]) -> type[Scenario]:
        def pause(self: Scenario) -> None:
            if rank is None or self.rank == rank:
                function()

        body = {**traits, "pause": pause, "source": function, "__doc__": function.__doc__}
        return healthy(type(function.__name__, (Scenario,), body))

    return made


def healthy(scenario: type[Scenario]) -> type[Scenario]:
    """List it."""
    assert scenario.__name__ not in HEALTHY, scenario
    HEALTHY[scenario.__name__] = scenario
    return scenario


def hang(*culprits: int, **traits: Any) -> Callable[[Callable[[int], None]], type[Hang]]:
    """A hang: all ranks call the function with their number before a step (``at``)."""

    def made(function: Callable[[int], None]) -> type[Hang]:
        at = traits.get("at", AT)

        def step(self: Hang, number: int) -> None:
            if CYCLE == 0 and number == at:
                function(self.rank)

        body = {**traits, "culprits": culprits, "step": step, "source": function}
        planted = type(function.__name__, (Hang,), {**body, "__doc__": function.__doc__})
        assert planted.__name__ not in HANGS, planted
        HANGS[planted.__name__] = planted
        return planted

    return made


def chosen() -> Scenario:
    """Of this rank, by its environment."""
    sys.path.append(str(Path(__file__).parents[2]))
    import tests.harmless.catalogue  # noqa: F401 - lists all

    name = os.environ["HARMLESS_SCENARIO"]
    rank = int(os.environ["RANK"])
    made = {**HEALTHY, **HANGS}[name](rank)
    note("starts", rank, CYCLE)
    made.begin()
    return made


def finished(scenario: Scenario, steps: int, weights: bytes) -> None:
    """Training is over: say what it has come to, and end as the scenario does."""
    import hashlib

    note("done", scenario.rank, {"steps": steps, "weights": hashlib.sha256(weights).hexdigest()})
    time.sleep(GLOO_S)
    scenario.end()
    time.sleep(GLOO_S)
