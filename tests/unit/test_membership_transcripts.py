"""Histories of small jobs, to be read aloud: what is done to a job, and all that it does.

They are in ``transcripts/*.txt``. ``#`` says what must hold and why. A line that begins with ``>``
is a command; the lines after it are everything that launchers and leader say or do until the next
one. ``->`` is a message up, ``=>`` a decision. Beats are not shown.

Change expected lines only if you understand why they changed, and want it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.job.assign import Policy as NodePolicy
from holdfast.core.job.membership import (
    EXCLUDE,
    SHUTDOWN,
    Pace,
)
from holdfast.core.job.rules import RestartPolicy, Rules
from holdfast.testing import (
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
    Simulation,
)

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


class Stage:
    """Carries out the commands of a transcript."""

    def __init__(self, words: list[str]) -> None:
        least, _, most = words[0].partition(":")
        of_one = "alone" in words
        rules = Rules(
            NodePolicy(int(least), int(most or least), use_infra_group_rank=not of_one),
            is_of_one=of_one,
            launchers=1 if of_one else None,
            restart=RestartPolicy("min-healthy" if "min-healthy" in words else "any-failed"),
            max_restarts=int(words[1].removeprefix("restarts=")),
        )
        network = Network(delay_s=(0.001, 0.001))
        nproc = 2 if of_one else 1
        pace = Pace(join_timeout_s=60.0)
        scenario = Scenario(0, rules, pace, network, work_s=500.0, nproc=nproc)
        self._simulation = Simulation(scenario, trace=True)
        self._shown = 0

    def do(self, line: str) -> list[str]:
        """One command, then a second of time; all that was said."""
        command, *words = line.removeprefix("> ").split()
        simulation = self._simulation
        for word in words:
            fault = self._fault(command, int(word))
            if command == "start":
                simulation.start(int(word))
            elif fault is not None:
                simulation.inflict(fault)
        seconds = float(words[0]) if command == "run" else 1000.0 if command == "succeed" else 1.0
        simulation.clock.run_until(simulation.clock.now + seconds)
        lines = [entry[12:] for entry in simulation.transcript[self._shown :]]
        self._shown = len(simulation.transcript)
        return [entry for entry in lines if "**" not in entry]

    def _fault(self, command: str, host: int) -> Fault | None:
        now = self._simulation.clock.now
        match command:
            case "fail":
                return RankFails(now, host, every=True)
            case "hang":
                return Hangs(now, host)
            case "break":
                return Breaks(now, host)
            case "crash":
                return Crash(now, host)
            case "cut":
                return Cut(now, host, for_s=40.0)
            case "exclude":
                return Ask(now, host, EXCLUDE)
            case "shutdown":
                return Ask(now, host, SHUTDOWN)
            case "signal":
                return Signal(now, host, grace_s=1.0 + host, well=True)
        return None


def play(script: str) -> str:
    """The script again, with what was said and done after each of its commands."""
    stage: Stage | None = None
    told = []
    for line in script.splitlines():
        if line.startswith(("#", "> ")):
            told.append(line)
        if line.startswith("> job "):
            stage = Stage(line.split()[2:])
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
