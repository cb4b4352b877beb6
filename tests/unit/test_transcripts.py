"""Histories of small jobs and calls, to be read aloud: what is done to one, and all that it does.

They are in ``transcripts/*.txt``. ``#`` says what must hold and why. A line that begins with ``>``
is a command; the lines after it are everything that is said or done until the next one: by
launchers and leader (``> job``), or by the ranks, guards and coordinator of one call of a wrapped
function (``> call``). ``->`` is a message up, ``=>`` a decision. Beats are not shown.

Change expected lines only if you understand why they changed, and want it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.membership import EXCLUDE, SHUTDOWN
from holdfast.job.pure.rules import RestartPolicy, Rules
from holdfast.job.pure.timing import Pace
from tests.simulation import call_scenario as calls
from tests.simulation.call_scenario import Call, What
from tests.simulation.inprocess import CallSimulation
from tests.simulation.scenario import (
    Ask,
    Breaks,
    Crash,
    Cut,
    Fault,
    Hangs,
    Network,
    RankFails,
    Scenario,
    Signal,
    Suspend,
)
from tests.simulation.simulation import Simulation

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


class Stage:
    """Carries out the commands of a transcript.

    Args:
        simulation: A job or a call.
        commands: What can be done to its host, rank or node of a number.
    """

    def __init__(
        self,
        simulation: Simulation | CallSimulation,
        commands: dict[str, Callable[[int], object]],
    ) -> None:
        self._simulation = simulation
        self._commands = commands
        self._shown = 0

    def do(self, line: str) -> list[str]:
        """One command, or several at the same moment, then a second of time; all that was said."""
        command, *words = line.removeprefix("> ").split()
        seconds = float(words[0]) if command == "run" else 1000.0 if command == "succeed" else 1.0
        for word in words if command in self._commands else ():
            if word in self._commands:
                command = word
            else:
                self._commands[command](int(word))
        simulation = self._simulation
        simulation.clock.run_until(simulation.clock.now + seconds)
        lines = [entry[12:] for entry in simulation.transcript[self._shown :]]
        self._shown = len(simulation.transcript)
        return [entry for entry in lines if "**" not in entry]


def job(words: list[str]) -> Stage:
    """``> job MIN:MAX restarts=N``, with ``alone`` or ``min-healthy``, and ``pairs`` of ranks.

    With ``calls`` ranks enter a wrapped function in each cycle, within 200 s.
    """
    least, _, most = words[0].partition(":")
    of_one = "alone" in words
    rules = Rules(
        NodePolicy(int(least), int(most or least), use_infra_group_rank=not of_one),
        is_of_one=of_one,
        launchers=1 if of_one else None,
        restart=RestartPolicy("min-healthy" if "min-healthy" in words else "any-failed"),
        max_restarts=int(words[1].removeprefix("restarts=")),
        evidence_s=1.0,
    )
    network = Network(delay_s=(0.001, 0.001))
    nproc = 2 if of_one or "pairs" in words else 1
    pace = Pace(join_timeout_s=60.0)
    scenario = Scenario(
        *(0, rules, pace, network),
        work_s=500.0,
        nproc=nproc,
        calls="calls" in words,
        proofs=float("proofs" in words),
    )
    simulation = Simulation(scenario, trace=True)
    faults: dict[str, Callable[[float, int], Fault]] = {
        "fail": partial(RankFails, every=True),
        "kill": RankFails,
        "hang": Hangs,
        "hang-all": partial(Hangs, every=True),
        "break": Breaks,
        "crash": Crash,
        "cut": partial(Cut, for_s=40.0),
        "suspend": partial(Suspend, for_s=25.0),
        "exclude": partial(Ask, action=EXCLUDE),
        "shutdown": partial(Ask, action=SHUTDOWN),
        "signal": lambda now, host: Signal(now, host, grace_s=1.0 + host, well=True),
    }

    def inflict(fault: Callable[[float, int], Fault]) -> Callable[[int], None]:
        return lambda host: simulation.inflict(fault(simulation.clock.now, host))

    def start_other(host: int) -> None:
        simulation.others.add(host)
        simulation.start(host)

    commands = {name: inflict(fault) for name, fault in faults.items()}
    starts = {"start": simulation.start, "start-other": start_other}
    return Stage(simulation, {**starts, **commands})


class Even(random.Random):
    """Nothing is left to chance: all delays are alike, and what may happen does."""

    def random(self) -> float:
        return 0.25

    def choice(self, seq: Sequence[Any]) -> Any:
        return seq[0]


def call(words: list[str]) -> Stage:
    """``> call ranks=N per-node=N``, and ``active=N``, ``work=S``: see :class:`Call`."""
    given = {
        name.replace("-", "_"): int(value) for name, _, value in (w.partition("=") for w in words)
    }
    work_s = given.pop("work", 500)
    simulation = CallSimulation(Call(**given, work_s=work_s), 0, trace=True, rng=Even(0))
    ranks = {
        "raise": What.RAISE,
        "leave": What.LEAVE,
        "hang": What.HANG,
        "hold": What.HOLD,
        "kill": What.DIE,
    }
    commands: dict[str, Callable[[int], object]] = {
        name: partial(simulation.strike, what=what) for name, what in ranks.items()
    }
    commands["cut"] = lambda node: simulation.inflict(
        calls.Cut(simulation.clock.now, node, for_s=calls.FOR_EVER_S)
    )
    simulation.start()
    return Stage(simulation, commands)


def play(script: str) -> str:
    """The script again, with what was said and done after each of its commands."""
    stage: Stage | None = None
    told = []
    for line in script.splitlines():
        if line.startswith(("#", "> ")):
            told.append(line)
        if line.startswith("> job "):
            stage = job(line.split()[2:])
        elif line.startswith("> call "):
            stage = call(line.split()[2:])
        elif line.startswith("> "):
            assert stage is not None
            told += stage.do(line)
    return "\n".join(told) + "\n"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_history_is_as_it_was_told(path: Path) -> None:
    expected = path.read_text()
    assert play(expected) == expected


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 8
