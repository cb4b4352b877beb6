"""One table of exit codes, and one order of reasons, for one node and for several."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from holdfast.core import leader as leading
from holdfast.core import member as belonging
from holdfast.core import node as machine
from holdfast.core.actions import EXCLUDE, SHUTDOWN
from holdfast.core.assign import Policy
from holdfast.core.exit_codes import IN_SHORT, NO_RESTART, Ending, of_a_host, why_over
from holdfast.core.membership import Descriptor, Pace
from holdfast.core.restarts import Restarts

DOCS = Path(__file__).parents[2] / "docs" / "exit-codes.md"


def test_the_table_of_the_docs_is_the_one_that_the_launcher_uses() -> None:
    """Row by row: code, what happened, whether to start it again; links and quotes aside."""
    told = []
    for line in DOCS.read_text().splitlines():
        if re.match(r"\| \d+ \|", line):
            plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", line).replace("`", "")
            code, happened, again = (cell.strip() for cell in plain.strip("|").split(" | "))
            told.append((int(code), happened, again.strip(" |")))

    assert told == [(ending.code(), ending.happened, ending.again) for ending in Ending]


def test_help_names_every_code_and_no_other() -> None:
    assert list(IN_SHORT) == sorted({ending.code() for ending in Ending})


def test_another_code_in_the_place_of_93_changes_no_other() -> None:
    changed = {ending for ending in Ending if ending.code(77) != ending.code()}
    assert changed == {Ending.NO_USE, Ending.NO_PROGRESS}
    assert {ending.code(77) for ending in changed} == {77}


def test_the_host_of_a_job_that_failed_does_not_call_it_completed() -> None:
    """Its own node was out long before, with 0."""
    assert of_a_host(0, 1) == of_a_host(1, 0) == 1
    assert of_a_host(0, NO_RESTART) == NO_RESTART
    assert of_a_host(0, 0) == of_a_host(0, None) == 0


def test_a_cycle_that_failed_for_no_special_reason_is_followed_by_another() -> None:
    assert why_over() is None


# ---------------------------------------------------------------- one node and several
def alone(asked: list[str], code: int, restarts: int, *, idle: bool) -> int | None:
    """Exit code of a node alone whose rank asks, then exits; None: its job goes on."""
    node = machine.Node(1, Restarts(restarts, max_no_progress_cycles=1), reads_iterations=idle)
    node.handle(machine.Begin(), 0.0)
    node.handle(machine.IterationRead(5), 0.1)
    for action in asked:
        node.handle(machine.ControlRequested(0, action, ""), 0.5)
    effects = node.handle(machine.WorkerExited(0, code), 1.0)
    if machine.ReadIteration(first=False) in effects:
        node.handle(machine.IterationRead(5), 1.0)
    return next(
        (
            effect.exit_code
            for effect in node.handle(machine.Swept(), 1.1)
            if isinstance(effect, machine.Finish)
        ),
        None,
    )


def among_others(asked: list[str], code: int, restarts: int, *, idle: bool) -> int | None:
    """The same on the second of two nodes, with the machines of both and of the leader."""
    rules = leading.Rules(Policy(2, 2), max_restarts=restarts, max_no_progress_cycles=1)
    leader = leading.Leader(rules, Pace())
    members = [
        belonging.Member(name, Descriptor("10.0.0.1", name, 1, 7)) for name in ("first", "second")
    ]
    asks = members[1]
    codes: dict[str, int] = {}
    starts: list[str] = []
    events: list[tuple[belonging.Member | None, leading.Event | belonging.Event]] = []

    def play() -> None:
        while events:
            one, event = events.pop(0)
            if one is None:
                assert isinstance(event, (leading.Begin, leading.Arrived, leading.IterationRead))
                for result in leader.handle(event, 0.0):
                    if isinstance(result, leading.Publish):
                        events.extend((m, belonging.Heard(result.decision)) for m in members)
                continue
            for effect in one.handle(event, 0.0):  # type: ignore[arg-type]
                match effect:
                    case belonging.Send(message):
                        events.append((None, leading.Arrived(message)))
                    case belonging.StartRanks():
                        starts.append(one.node)
                    case belonging.StopRanks(cycle):
                        events.append((one, belonging.RanksStopped(cycle)))
                    case belonging.Finish(exit_code):
                        codes[one.node] = exit_code

    events.append((None, leading.Begin()))
    events.extend((one, belonging.Begin()) for one in members)
    play()
    if idle:
        events.append((None, leading.IterationRead(0)))
        play()
    events.extend((asks, belonging.ControlRequested(1, action, "")) for action in asked)
    no_use = code == NO_RESTART
    failed = belonging.RanksFailed(0, "it exited", every=True, may_restart=not no_use)
    events.append((asks, failed))
    play()
    return None if len(starts) == 4 else codes[asks.node]


@pytest.mark.parametrize(
    ("asked", "code", "restarts", "idle"),
    list(
        product(
            ([], [SHUTDOWN], [EXCLUDE], [SHUTDOWN, EXCLUDE]),
            (1, NO_RESTART),
            (0, 3),
            (False, True),
        )
    ),
)
def test_one_node_and_several_end_with_the_same_code(
    asked: list[str], code: int, restarts: int, idle: bool
) -> None:
    """Whatever a rank asks for, exits with, and whether restarts are left and of any use."""
    expected = why_over(
        no_use=code == NO_RESTART,
        no_progress=idle,
        shut_down=SHUTDOWN in asked,
        spent=restarts == 0,
        excluded=EXCLUDE in asked,
    )

    assert alone(asked, code, restarts, idle=idle) == (expected and expected.code())
    assert among_others(asked, code, restarts, idle=idle) == (expected and expected.code())
