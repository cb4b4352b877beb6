"""One table of exit codes, and one order of reasons, for one node and for several."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import pytest

from holdfast.base.pure.common_events import Begin, ControlRequested, IterationRead
from holdfast.job.pure.assign import Policy
from holdfast.job.pure.exit_codes import IN_SHORT, NO_RESTART, Ending, of_a_host
from holdfast.job.pure.leader_messages import ReadIteration
from holdfast.job.pure.member import Member
from holdfast.job.pure.member_messages import RanksFailed, StartRanks
from holdfast.job.pure.membership import (
    EXCLUDE,
    SHUTDOWN,
    Decision,
    Descriptor,
    FailureReport,
    Message,
)
from holdfast.job.pure.rules import Rules
from holdfast.job.pure.timing import Pace
from holdfast.node.pure.launcher import Event, Launcher, LeaveProcess, Met
from holdfast.node.pure.node import (
    Node,
    SignalRanks,
    Sweep,
    Swept,
)
from holdfast.node.pure.rank_life import Exited


def test_help_names_every_code_and_no_other() -> None:
    assert list(IN_SHORT) == sorted({ending.code() for ending in Ending})


def test_another_code_in_the_place_of_93_changes_no_other() -> None:
    changed = {ending for ending in Ending if ending.code(77) != ending.code()}
    assert changed == {Ending.NO_USE, Ending.NO_PROGRESS, Ending.SAME_FAILURE}
    assert {ending.code(77) for ending in changed} == {77}


def test_the_host_of_a_job_that_failed_does_not_call_it_completed() -> None:
    """Its own node was out long before, with 0."""
    assert of_a_host(0, 1) == of_a_host(1, 0) == 1
    assert of_a_host(0, NO_RESTART) == NO_RESTART
    assert of_a_host(0, 0) == of_a_host(0, None) == 0


# ---------------------------------------------------------------- one node and several
@dataclass
class Job:
    """Launchers with one rank each, and the log between them; what happens, happens at once."""

    nodes: int
    restarts: int
    codes: dict[str, int] = field(default_factory=dict)
    cycles: int = 0

    def __post_init__(self) -> None:
        of_one = self.nodes == 1
        rules = Rules(
            Policy(self.nodes, self.nodes),
            max_restarts=self.restarts,
            max_no_progress_cycles=1,
            launchers=self.nodes,
            is_of_one=of_one,
            reads_iterations=True,
        )
        pace = Pace.of_one() if of_one else Pace()
        self.launchers = [
            Launcher(Node(1), Member(f"n{number}", Descriptor("10.0.0.1", "h", 1, 7), pace), rules)
            for number in range(self.nodes)
        ]
        for number, one in enumerate(self.launchers):
            self.tell(one, Begin())
            self.tell(one, Met(leads=number == 0))

    def tell(self, one: Launcher, event: Event) -> None:
        leader = self.launchers[0]
        todo = [(one, event)]
        while todo:
            one, event = todo.pop(0)
            for effect in one.handle(event, 0.0):
                match effect:
                    case _ if isinstance(effect, Message):
                        todo.append((leader, effect))
                    case _ if isinstance(effect, Decision):
                        todo.extend((each, effect) for each in self.launchers)
                    case RanksFailed():
                        failure = FailureReport("it exited")
                        todo.append((one, RanksFailed(**{**vars(effect), "failure": failure})))
                    case StartRanks(formed):
                        self.cycles = max(self.cycles, formed.cycle + 1)
                    case SignalRanks():
                        todo.append((one, Exited(0, -15)))
                    case Sweep():
                        todo.append((one, Swept()))
                    case ReadIteration(first):
                        todo.append((one, IterationRead(0 if first else self.reached)))
                    case LeaveProcess(_, code):
                        self.codes[one.member.node] = code

    reached: int | None = None


def end_of(
    nodes: int, asked: list[str], code: int, restarts: int, *, idle: bool
) -> list[int] | None:
    """Exit codes where a rank of the last node asks, then exits; None: the job goes on."""
    job = Job(nodes, restarts)
    job.reached = 0 if idle else 1
    last = job.launchers[-1]
    for action in asked:
        job.tell(last, ControlRequested(nodes - 1, action, ""))
    job.tell(last, Exited(0, code))
    return None if job.cycles == 2 else [job.codes[f"n{number}"] for number in range(nodes)]


CASES = list(
    product(
        ([], [SHUTDOWN], [EXCLUDE], [SHUTDOWN, EXCLUDE]),
        (1, NO_RESTART),
        (0, 3),
        (False, True),
    )
)


@pytest.mark.parametrize(("asked", "code", "restarts", "idle"), CASES)
def test_one_node_and_several_end_with_the_same_code(
    asked: list[str], code: int, restarts: int, idle: bool
) -> None:
    """Whatever a rank asks for, exits with, and whether restarts are left and of any use."""
    reasons = {
        Ending.NO_USE: code == NO_RESTART,
        Ending.NO_PROGRESS: idle,
        Ending.SHUT_DOWN: SHUTDOWN in asked,
        Ending.FAILED: restarts == 0,
    }
    over = next((ending for ending, holds in reasons.items() if holds), None)
    alone = over or (Ending.EXCLUDED if EXCLUDE in asked else None)
    own = end_of(1, asked, code, restarts, idle=idle)
    assert own == (None if alone is None else [alone.code()])

    others = end_of(2, asked, code, restarts, idle=idle)
    leaves = EXCLUDE in asked and not any({**reasons, Ending.NO_PROGRESS: False}.values())
    if leaves:  # at once: it does not wait to hear whether the others can go on without it
        job = Ending.NO_NODE_LEFT if over is None else over
        assert others == [job.code(), Ending.EXCLUDED.code()]
    else:
        assert others == (None if over is None else [over.code()] * 2)
