"""What the leader of a job decides, on a virtual clock."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import pytest

from holdfast.arena.pure.snapshots import SnapshotId
from holdfast.base.pure.common_events import Begin, IterationRead, Note, TimePassed
from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.cycles import JobPhase
from holdfast.job.pure.leader import Leader
from holdfast.job.pure.leader_messages import (
    Abdicate,
    Close,
    Effect,
    Event,
    LauncherEnded,
    ReadIteration,
    StepDown,
    Superseded,
    WitnessMoved,
)
from holdfast.job.pure.membership import (
    SHUTDOWN,
    Beat,
    Complete,
    ControlAsked,
    CyclePlace,
    Decision,
    Descriptor,
    End,
    FailureReport,
    JobOutcome,
    Join,
    Keep,
    Keeper,
    Kept,
    LeaderBeat,
    Leave,
    LeaveWhy,
    Message,
    Missed,
    NodeRefused,
    NodeState,
    Offer,
    Resigned,
    Round,
    StateChanged,
    StopCycle,
    StopWhy,
)
from holdfast.job.pure.restarts import SameFailures
from holdfast.job.pure.rules import RestartPolicy, Rules
from holdfast.job.pure.succession_messages import Leads
from holdfast.job.pure.takeover import Takeover
from holdfast.job.pure.timing import READ_LIMIT_S, Pace
from holdfast.job.pure.workload import Workload

H, U, F, S = NodeState.HEALTHY, NodeState.UNHEALTHY, NodeState.FAILED, NodeState.SUCCEEDED
ANY, MIN = RestartPolicy.ANY_FAILED, RestartPolicy.MIN_HEALTHY


def desc(node: str, **options: object) -> Descriptor:
    number = int(node[1:2])
    base = Descriptor(f"10.0.0.{number}", node, nproc=2, pid=number, port=29500 + number)
    return replace(base, **options)  # type: ignore[arg-type]


@dataclass
class Job:
    """A leader, and the nodes that it believes in because we speak for them."""

    least: int = 2
    most: int = 2
    active: str = "max"
    infra: bool = False
    segment: int | None = None
    options: dict[str, object] = field(default_factory=dict)
    now: float = 0.0
    mute: set[str] = field(default_factory=set)
    nodes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reads: list[ReadIteration] = field(default_factory=list)
    published: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        rules = Rules(
            NodePolicy(self.least, self.most, self.infra, self.active, self.segment),  # type: ignore[arg-type]
            **{"first_last_call_s": 0.0, **self.options},  # type: ignore[arg-type]
        )
        self.leader = Leader(rules, Pace())
        assert self.decided(self.leader.handle(Begin(), self.now)) == []

    def decided(self, effects: list[Effect]) -> list[Decision | Close]:
        """Decisions without beats, as people read them; notes, and decisions, are kept aside."""
        self.notes += [effect.text for effect in effects if isinstance(effect, Note)]
        self.reads += reads(effects)
        found: list[Decision | Close] = []
        for effect in effects:
            if isinstance(effect, Decision) and not isinstance(effect, LeaderBeat):
                self.published.append(effect)
                found.append(plain(effect))
            elif isinstance(effect, Close):
                found.append(effect)
        return found

    def tell(self, event: Event) -> list[Decision | Close]:
        return self.decided(self.leader.handle(event, self.now))

    def hear(self, *messages: Message) -> list[Decision | Close]:
        return [decision for one in messages for decision in self.tell(one)]

    def join(self, *nodes: str, have: int = -1, **options: object) -> list[Decision | Close]:
        self.nodes += [node for node in nodes if node not in self.nodes]
        return self.hear(*(Join(node, desc(node, **options), have) for node in nodes))

    def state(self, node: str, state: NodeState, **options: object) -> list[Decision | Close]:
        known = {key: options.pop(key) for key in ("names_a_peer", "signature") if key in options}
        failure = FailureReport(f"a rank of {node} failed", **known)
        return self.hear(StateChanged(node, self.leader.cycle, state, failure, **options))

    def wait(self, seconds: float) -> list[Decision | Close]:
        """Let time pass; every node that is not mute beats, the machine sleeps in between."""
        found = []
        until = self.now + seconds
        while self.now < until:
            due = self.leader.next_deadline()
            self.now = min(until, self.now + 2.0, due if due is not None else until)
            for node in self.nodes:
                if node not in self.mute:
                    found += self.hear(Beat(node))
            found += self.tell(TimePassed())
        return found


def plain(decision: Decision) -> Decision:
    """Without the facts that follow from what is in it for people."""
    if isinstance(decision, StopCycle):
        failure = {"over": "", "why": StopWhy.FAILURE, "failure": FailureReport()}
        return StopCycle(**{**vars(decision), **failure})
    if isinstance(decision, End):
        return End(**{**vars(decision), "over": "", "stopped": -1})
    return decision


def names(decision: Decision | Close) -> tuple[str, ...]:
    assert isinstance(decision, Round)
    return tuple(place.node for place in decision.places)


def running(*nodes: str, **options: object) -> Job:
    """A job whose cycle 0 has just started on these nodes."""
    fields = {key: options.pop(key) for key in ("least", "most", "active") if key in options}
    most = fields.get("most", len(nodes))
    assert isinstance(most, int)
    options = {"first_last_call_s": 30.0 if most <= len(nodes) else 0.0, **options}
    job = Job(**{"least": len(nodes), "most": len(nodes), **fields}, options=options)  # type: ignore[arg-type]
    (formed, *_) = job.join(*nodes)
    assert names(formed) == nodes[: len(names(formed))]
    return job


# ---------------------------------------------------------------- forming
def test_a_round_closes_when_the_last_one_that_fits_has_joined() -> None:
    """Nobody waits for anything once MAX are there."""
    job = Job(2, 3, options={"first_last_call_s": 30.0})
    assert job.join("n0", "n1") == []

    (formed,) = job.join("n2")

    assert isinstance(formed, Round)
    assert (formed.cycle, formed.world_size, formed.restarts_used) == (0, 6, 0)
    assert [(p.node, p.group_rank, p.rank_offset, p.nproc) for p in formed.places] == [
        ("n0", 0, 0, 2),
        ("n1", 1, 2, 2),
        ("n2", 2, 4, 2),
    ]
    assert (formed.master_addr, formed.master_port) == ("10.0.0.0", 29500)


def test_the_last_call_starts_when_enough_are_there() -> None:
    """It is not extended by those who come, and starts anew if one goes."""
    job = Job(2, 4, options={"first_last_call_s": 30.0})
    job.join("n0")
    assert job.wait(100) == []
    job.join("n1")
    assert job.wait(29) == []
    job.join("n2")
    (formed,) = job.wait(1.0)
    assert names(formed) == ("n0", "n1", "n2")

    again = Job(2, 4, options={"first_last_call_s": 30.0})
    again.join("n0", "n1")
    again.wait(20)
    again.hear(Leave("n1", LeaveWhy.SIGNALLED))
    assert again.wait(20) == []
    again.join("n2")
    assert again.wait(29) == []
    assert [names(formed) for formed in again.wait(1.0)] == [("n0", "n2")]


def test_too_few_in_time_is_the_end() -> None:
    """After the join timeout, with the numbers."""
    job = Job(3, 3)
    job.join("n0", "n1")
    assert job.wait(899) == []

    assert job.wait(1) == [
        End(JobOutcome.FAILED, 1, "2 of 3 nodes joined within 900 s (n0 (pid 0), n1 (pid 1))")
    ]


def test_the_leader_of_one_node_has_nothing_to_do_while_its_ranks_run() -> None:
    """It sends no beats, and waits for none."""
    leader = Leader(Rules(NodePolicy(1, 1), first_last_call_s=0.0, is_of_one=True), Pace.of_one())
    leader.handle(Begin(), 0.0)
    leader.handle(Join("n0", desc("n0")), 0.0)
    assert leader.phase is JobPhase.RUNNING
    assert leader.next_deadline() is None


def test_when_the_time_to_form_is_over_no_iteration_is_waited_for() -> None:
    """Reading it may take longer than that; a leader that waits for both would not sleep."""
    rules = Rules(NodePolicy(1, 1), max_restarts=1, first_last_call_s=0.0, reads_iterations=True)
    leader = Leader(rules, Pace(9.0, 1.0, 5.0, join_timeout_s=2.0))
    leader.handle(Begin(), 0.0)
    leader.handle(Join("n0", desc("n0")), 0.0)
    leader.handle(StateChanged("n0", 0, F, FailureReport("x")), 1.0)
    leader.handle(Join("n0", desc("n0"), 0), 1.1)
    assert leader.cycle == 0
    leader.handle(TimePassed(), 2.1)
    leader.handle(TimePassed(), 3.0)

    assert leader.cycle == 1
    due = leader.next_deadline()
    assert due is not None
    assert due > 3.0


def test_a_late_copy_of_a_join_names_no_port_that_is_taken_meanwhile() -> None:
    """Rank 0 of the next cycle listens where its node has said last that a port is free."""
    job = running("n0", "n1", max_restarts=1)
    job.state("n0", F)
    job.join("n0", have=0, port=31000)
    assert job.join("n0", have=-1, port=29500) == []

    (formed,) = job.join("n1", have=0)
    assert isinstance(formed, Round)
    assert formed.master_port == 31000


# ---------------------------------------------------------------- nodes that cannot have ranks
def excluded(job: Job, *nodes: str) -> list[Decision | Close]:
    """The cycle fails, these leave, the others join again; what follows."""
    job.state(nodes[0], F)
    found = job.hear(*(Leave(node, LeaveWhy.EXCLUDED, "ECC errors") for node in nodes))
    job.nodes = [node for node in job.nodes if node not in nodes]
    return found + job.join(*job.nodes, have=0)


def test_exclusion_without_a_spare_ends_a_job_of_fixed_size_at_once() -> None:
    """Nobody can come any more: 900 s of waiting would end the same way."""
    job = running("n0", "n1", max_restarts=5)

    assert excluded(job, "n1") == [
        End(
            JobOutcome.FAILED,
            1,
            "1 of 2 nodes is left, and no other can take a place (--nnodes 2): n1 (pid 1): "
            "excluded (ECC errors)",
        )
    ]


def test_the_end_of_a_job_names_a_few_of_many_that_were_excluded() -> None:
    """All that they have said would be more than a message may hold."""
    job = running(*(f"n{number}" for number in range(8)), most=8, least=8, max_restarts=5)
    (end,) = excluded(job, *(f"n{number}" for number in range(1, 8)))
    assert isinstance(end, End)
    assert end.cause.endswith("; n4 (pid 4): excluded (ECC errors); and 3 more")


def test_exclusion_waits_for_ranks_that_may_know_more() -> None:
    """A rank of a survivor may still exit with 93."""
    job = running("n0", "n1", max_restarts=5)
    job.state("n1", F)
    assert job.hear(Leave("n1", LeaveWhy.EXCLUDED)) == []
    assert job.state("n0", F, may_restart=False) == []
    (end,) = job.join("n0", have=0)
    assert isinstance(end, End)
    assert end.exit_code == 93


def test_a_job_with_a_spare_goes_on_without_the_excluded() -> None:
    """Although MAX was two, three launchers were started."""
    job = running("n0", "n1", most=2, least=2, max_restarts=5)
    job.join("n2")
    job.state("n1", F)
    job.hear(Leave("n1", LeaveWhy.EXCLUDED))
    (formed,) = job.join("n0", have=0)
    assert names(formed) == ("n0", "n2")


@pytest.mark.parametrize(
    ("least", "most", "launchers", "out", "ends"),
    [
        (2, 4, None, 2, False),  # as many as MIN are left
        (2, 4, None, 3, True),  # more than MAX - MIN are out
        (2, 2, 3, 1, False),  # the scheduler started one more, which may still come
        (2, 2, 3, 2, True),
        (3, 6, None, 2, False),  # two of the six have never come
    ],
)
def test_what_may_still_come_is_waited_for(
    least: int, most: int, launchers: int | None, out: int, ends: bool
) -> None:
    """Places that were never filled may be; those of the excluded may not."""
    there = [f"n{number}" for number in range(min(4, most))]
    options = {"least": least, "most": most, "launchers": launchers, "max_restarts": 5}
    job = running(*there, **options)
    gone = there[-out:]

    found = excluded(job, *gone)

    ended = any(isinstance(decision, End) for decision in found)
    assert ended is ends
    if not ends and len(there) - out < least:
        assert job.wait(800) == []


def test_a_lost_node_may_come_back_and_an_excluded_one_not() -> None:
    """A scheduler replaces what died, and not what left with 0."""
    job = running("n0", "n1", "n2", least=2, max_restarts=5)
    job.mute = {"n2"}
    assert job.wait(20) != []  # silent; the others are told to stop
    job.nodes.remove("n2")
    job.hear(Leave("n1", LeaveWhy.UNHEALTHY, "GPU 3 is lost"))
    job.nodes.remove("n1")
    assert job.join("n0", have=0) == []
    assert job.wait(300) == []
    assert names(job.join("n3")[0]) == ("n0", "n3")


def test_a_node_that_was_never_fit_counts_before_the_first_cycle_too() -> None:
    """After the last call: spares that nobody counted may be on their way."""
    job = Job(2, 2, options={"first_last_call_s": 30.0})
    job.hear(Leave("n0", LeaveWhy.UNHEALTHY, "GPU 0 is lost"))
    job.join("n1")
    assert job.wait(29) == []

    (end,) = job.wait(1)

    assert isinstance(end, End)
    assert (end.outcome, end.exit_code) == (JobOutcome.FAILED, 1)
    assert end.cause.endswith("n0: unhealthy (GPU 0 is lost)")


def test_a_scheduler_s_count_makes_waiting_for_a_last_call_needless() -> None:
    job = Job(2, 2, options={"first_last_call_s": 30.0, "launchers": 2})
    job.join("n1")
    (end,) = job.hear(Leave("n0", LeaveWhy.UNHEALTHY, "GPU 0 is lost"))
    assert isinstance(end, End)


def test_spares_that_come_before_the_last_call_make_up_for_the_unfit() -> None:
    job = Job(2, 2, options={"first_last_call_s": 30.0})
    job.hear(Leave("n0", LeaveWhy.UNHEALTHY, "GPU 0 is lost"))
    job.join("n1")
    assert job.wait(20) == []
    assert names(job.join("n2")[0]) == ("n1", "n2")


def test_a_surplus_node_waits_and_closes_nothing() -> None:
    """P1: one node too many is a spare, before the round closes and after."""
    job = Job(2, 2)
    job.join("n0")
    (formed,) = job.join("n1")
    assert job.join("n2") == []
    assert job.wait(100) == []
    assert names(formed) == ("n0", "n1")


def test_a_join_that_comes_twice_counts_once() -> None:
    """Also while the cycle runs, and when a copy from before the stop comes late."""
    job = Job(2, 2, options={"max_restarts": 1})
    assert job.join("n0", "n0") == []
    assert len(job.join("n1")) == 1
    assert job.join("n0", "n1") == []
    assert len(job.state("n0", F)) == 1
    assert job.join("n0", "n1") == []  # have cycle -1: these are old
    assert job.join("n0", have=0) == []
    assert len(job.join("n1", have=0)) == 1


def test_a_node_that_dies_while_joining_is_not_counted() -> None:
    """Its silence is noticed, the others wait for somebody else."""
    job = Job(2, 2)
    job.join("n0")
    job.mute.add("n0")
    assert job.wait(16) == []
    assert job.join("n1") == []
    (formed,) = job.join("n2")
    assert names(formed) == ("n1", "n2")


def test_a_node_that_dies_as_the_round_closes_costs_one_silence() -> None:
    """The others are stopped, and go on with the spare."""
    job = running("n0", "n1", "n2", least=2, most=2, max_restarts=1)
    job.mute.add("n1")

    (stop,) = job.wait(15)
    assert stop == StopCycle(0, "n1 (pid 1) was lost (silent for 15.0 s)", "n1", 0, silent_s=15.0)
    (formed,) = job.join("n0", have=0)

    assert names(formed) == ("n0", "n2")


def test_what_was_gone_stays_gone() -> None:
    """A slot belongs to an incarnation: the same launcher is told once, a new one is welcome."""
    job = running("n0", "n1", "n2", least=2, most=2, max_restarts=1)
    job.mute.add("n1")
    job.wait(15)
    job.join("n0", have=0)

    gone = NodeRefused("n1", "silent for 15.0 s", may_return=True)
    assert job.hear(Beat("n1")) == [gone]
    assert job.hear(Beat("n1"), Join("n1", desc("n1"), 0), StateChanged("n1", 1, F)) == []


def test_a_leave_that_overtakes_its_join_wins() -> None:
    """Or a node that is gone would be counted."""
    job = Job(1, 1)
    job.hear(Leave("n0", LeaveWhy.SIGNALLED))
    assert job.join("n0") == []
    assert len(job.join("n1")) == 1


def test_of_two_with_one_infra_rank_the_first_stays() -> None:
    """If it lives; a launcher that was started again after a crash takes over from its ghost."""
    job = Job(2, 2, infra=True)
    job.join("n1", infra_rank=1)
    job.now = 1.0
    assert job.join("n2", infra_rank=1) == []  # who of the two is alive?
    (refused,) = job.wait(5)
    assert isinstance(refused, NodeRefused)
    assert refused.node == "n2"
    assert "infra rank 1 is claimed by 2 nodes" in refused.why

    haunted = Job(2, 2, infra=True)
    haunted.join("n1", infra_rank=1)
    haunted.mute.add("n1")
    haunted.now = 1.0
    haunted.join("n2", infra_rank=1)
    assert haunted.wait(15) == []
    (formed,) = haunted.join("n0", infra_rank=0)
    assert names(formed) == ("n0", "n2")


def test_min_active_nodes_means_that_the_rest_stand_by() -> None:
    """``--ft-active-nodes min``: a round closes with the first MIN, and others never join it."""
    job = Job(2, 4, active="min")
    job.join("n0")
    (formed,) = job.join("n1")
    assert names(formed) == ("n0", "n1")
    assert job.join("n2", "n3") == []
    assert job.wait(100) == []


# ---------------------------------------------------------------- any-failed
def test_a_failure_is_told_to_all_and_all_come_back() -> None:
    """R-2, B-1: the next round is formed when the last survivor has joined again."""
    job = running("n0", "n1", "n2", max_restarts=2)

    assert job.state("n1", U) == [StopCycle(0, "a rank of n1 failed", "n1", 1)]
    assert job.state("n2", F) == []
    assert job.join("n0", "n2", have=0) == []
    (formed,) = job.join("n1", have=0)

    assert isinstance(formed, Round)
    assert (formed.cycle, formed.restarts_used) == (1, 1)
    assert names(formed) == ("n0", "n1", "n2")


PEER = "rank 0 (pid 7): exit code 1 on n0"
OWN = "rank 3 (local rank 1, pid 8): exit code 3 on n1"


def test_the_first_cause_is_chosen_when_all_nodes_have_reported() -> None:
    """A rank that names a peer may be heard before that peer, which is reaped later."""
    job = running("n0", "n1", "n2", max_restarts=1)
    failed = StateChanged("n0", 0, U, FailureReport(PEER, names_a_peer=True))
    assert job.hear(failed) == [StopCycle(0, PEER, "n0", 0)]

    job.hear(
        Join("n0", desc("n0"), 0, FailureReport(PEER, names_a_peer=True)), Join("n2", desc("n2"), 0)
    )
    (formed,) = job.hear(Join("n1", desc("n1"), 0, FailureReport(OWN, rank=3)))
    assert isinstance(formed, Round)
    assert formed.ended_by is not None
    assert formed.ended_by.cause == OWN

    assert job.state("n2", U) != []
    job.join("n0", "n1", have=1)
    (end,) = job.hear(Join("n2", desc("n2"), 1, FailureReport(OWN, rank=3)))
    assert isinstance(end, End)
    assert end.cause == OWN, "the same holds for the last failure"


def test_a_stop_and_the_end_say_by_facts_what_their_sentences_say() -> None:
    """What failed, whether a cycle follows, and whether the end is of what was stopped for."""
    job = running("n0", "n1", max_restarts=0)
    failure = FailureReport("rank 1 died", rank=1, exit_code=-9, incident=2)
    job.hear(StateChanged("n1", 0, U, failure))
    stop = job.published[-1]
    assert isinstance(stop, StopCycle)
    assert (stop.why, stop.failure, stop.over) == (StopWhy.FAILURE, failure, "FAILED")
    job.hear(Join("n0", desc("n0"), 0), Join("n1", desc("n1"), 0, failure))
    end = job.published[-1]
    assert isinstance(end, End)
    assert (end.over, end.stopped) == ("FAILED", 0)

    job = running("n0", "n1", max_restarts=0)
    job.hear(StateChanged("n1", 0, U, failure))
    other = FailureReport("rank 0 ran out of memory", rank=0)
    job.hear(Join("n1", desc("n1"), 0), Join("n0", desc("n0"), 0, other))
    end = job.published[-1]
    assert isinstance(end, End)
    assert end.stopped == 0, "of two that name no peer the first counts"
    worse = FailureReport("rank 1 lost a peer", rank=1, names_a_peer=True)
    job = running("n0", "n1", max_restarts=0)
    job.hear(StateChanged("n1", 0, U, worse))
    job.hear(Join("n1", desc("n1"), 0), Join("n0", desc("n0"), 0, other))
    end = job.published[-1]
    assert isinstance(end, End)
    assert (end.cause, end.stopped) == (other.cause, -1)


def test_a_lost_node_is_the_cause_of_errors_that_name_a_peer() -> None:
    """They come at once; its silence is noticed when everybody waits for it."""
    for names_a_peer in (True, False):
        job = running("n0", "n1", "n2", least=1, most=3, max_restarts=1)
        job.mute.add("n1")
        job.hear(StateChanged("n0", 0, U, FailureReport(PEER, names_a_peer=names_a_peer)))
        job.hear(
            Join("n0", desc("n0"), 0, FailureReport(PEER, names_a_peer=names_a_peer)),
            Join("n2", desc("n2"), 0),
        )
        (formed,) = job.wait(20)
        assert isinstance(formed, Round)
        lost = "n1 (pid 1) was lost (silent for 15.0 s)"
        assert formed.ended_by is not None
        assert formed.ended_by.cause == (lost if names_a_peer else PEER)


def test_a_spare_that_is_lost_and_growth_are_no_causes() -> None:
    job = running("n0", "n1", "n2", least=2, most=2, max_restarts=1)
    job.mute.add("n2")
    assert job.wait(20) == []
    job.hear(StateChanged("n0", 0, U, FailureReport(PEER, names_a_peer=True)))
    (formed,) = job.hear(Join("n0", desc("n0"), 0), Join("n1", desc("n1"), 0))
    assert isinstance(formed, Round)
    assert formed.ended_by is not None
    assert formed.ended_by.cause == PEER


def test_the_last_failure_is_the_job_s() -> None:
    """B-1: all restarts used; the end says so, and waits for every acknowledgement."""
    job = running("n0", "n1", max_restarts=1)
    job.state("n0", F)
    job.join("n0", "n1", have=0)

    why = "no restart is left (--max-restarts 1)"
    assert job.state("n0", F) == [StopCycle(1, "a rank of n0 failed", "n0", 0, why)]
    assert job.join("n0", have=1) == []
    assert job.join("n1", have=1) == [End(JobOutcome.FAILED, 1, "a rank of n0 failed", why)]
    assert job.hear(Leave("n0", LeaveWhy.FINISHED)) == []
    assert job.hear(Leave("n1", LeaveWhy.FINISHED)) == [Close()]
    assert job.leader.phase is JobPhase.CLOSED
    assert job.leader.next_deadline() is None
    assert job.tell(TimePassed()) == []


def test_a_budget_may_be_for_a_period() -> None:
    """N restarts in T: those of long ago don't count."""
    job = running("n0", max_restarts=1, restarts_period_s=50.0)
    for cycle in range(3):
        (stop,) = job.state("n0", F)
        assert isinstance(stop, StopCycle)
        job.join("n0", have=cycle)
        job.wait(50)
    job.state("n0", F)
    job.join("n0", have=3)
    job.state("n0", F)
    (end,) = job.join("n0", have=4)
    assert isinstance(end, End)


def test_old_news_changes_nothing() -> None:
    """A state of an earlier cycle, of a spare, or better than what is known."""
    job = running("n0", "n1", "n2", least=2, most=2, max_restarts=3)
    job.state("n0", F)
    job.join("n0", "n1", have=0)
    assert job.hear(StateChanged("n1", 0, F, FailureReport("late"))) == []
    assert job.hear(StateChanged("n2", 1, F, FailureReport("a spare has no ranks"))) == []
    assert job.hear(StateChanged("n9", 1, F, FailureReport("nobody"))) == []


def test_without_a_spare_the_job_goes_on_smaller() -> None:
    """``--nnodes 2:4``: at once, as nobody else is expected."""
    job = running("n0", "n1", "n2", "n3", least=2, max_restarts=1)
    assert len(job.hear(Leave("n3", LeaveWhy.STUCK, "rank 1"))) == 1
    (formed,) = job.join("n0", "n1", "n2", have=0)
    assert names(formed) == ("n0", "n1", "n2")


def test_below_min_the_job_waits_for_a_node_that_returns() -> None:
    """As long as a round may take; then it ends."""
    job = running("n0", "n1", max_restarts=1)
    job.hear(Leave("n1", LeaveWhy.SIGNALLED))
    assert job.join("n0", have=0) == []
    job.nodes.remove("n1")
    assert job.wait(300) == []
    (formed,) = job.join("n2")
    assert names(formed) == ("n0", "n2")


def test_a_survivor_that_never_comes_back_is_left_behind() -> None:
    """It beats, but its ranks do not end: after the join timeout it is refused."""
    job = running("n0", "n1", least=1, max_restarts=1)
    job.state("n0", F)
    assert job.join("n0", have=0) == []

    refused, formed = job.wait(900)

    assert refused == NodeRefused("n1", "not back 900 s after the end of cycle 0")
    assert names(formed) == ("n0",)


def test_a_survivor_that_has_missed_the_cycle_and_its_stop_comes_back_with_its_vote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looked for a leader meanwhile, so the session that would have told it is gone."""
    job = running("n0", "n1", max_restarts=1)
    monkeypatch.setattr(Takeover, "term", 1)
    before = job.leader.cycle - 1
    job.state("n0", F)
    assert job.join("n0", have=0) == []

    vote = Offer("n1", 1, Join("n1", desc("n1"), before), (0, before, 0))
    formed, *_ = job.hear(vote)

    assert names(formed) == ("n0", "n1")


def test_a_round_comes_again_for_the_one_node_that_has_missed_it() -> None:
    """Another that has, too, is taken to have no ranks if its vote comes after the stop."""
    job = running("n0", "n1", "n2", max_restarts=1)
    (missed,) = job.hear(Offer("n1", 1, Join("n1", desc("n1"), -1), ()))
    assert isinstance(missed, Round)
    assert (missed.cycle, missed.again_for) == (0, "n1")
    job.state("n0", F)
    assert job.hear(Offer("n2", 1, Join("n2", desc("n2"), -1), ())) == []
    assert job.join("n0", have=0) == []
    (formed,) = job.join("n1", have=0)
    assert names(formed) == ("n0", "n1", "n2")


def test_a_witness_that_looked_for_a_leader_when_the_job_ended_learns_it_with_its_vote() -> None:
    """As a launcher does; otherwise it waits for a leader, and ends as one that was left alone."""
    job = running("n0", "n1")
    witness = Join("n2", desc("n2", is_witness=True), -1)
    job.hear(witness)
    job.state("n0", NodeState.SUCCEEDED)
    (end,) = job.state("n1", NodeState.SUCCEEDED)

    assert job.hear(Offer("n2", 1, witness, (0, 0, 0))) == [end]


def test_a_witness_that_comes_and_goes_is_an_event_and_a_line() -> None:
    job = running("n0", "n1")
    witness = Join("n2", desc("n2", is_witness=True), -1)
    assert [it for it in job.leader.handle(witness, job.now) if isinstance(it, WitnessMoved)] == [
        WitnessMoved("n2")
    ]
    effects = job.leader.handle(LauncherEnded("n2"), job.now)
    assert WitnessMoved("n2", "its process has ended") in effects
    [note] = (it for it in effects if isinstance(it, Note))
    assert "the witness on n2" in note.text
    assert "the job continues without it" in note.text


def test_growth_costs_no_restart_but_a_pause() -> None:
    """A newcomer under any-failed: stopped at the cool-down, not before; budget untouched."""
    job = running("n0", "n1", least=2, most=3, grow_cooldown_s=30.0)
    job.now = 10.0
    assert job.join("n2") == []
    assert job.wait(19) == []

    assert job.wait(1) == [
        StopCycle(0, "n2 (pid 2) joined, and the job grows from 2 nodes to 3", "n2", 0)
    ]
    (formed,) = job.join("n0", "n1", have=0)
    assert isinstance(formed, Round)
    assert formed.restarts_used == 0
    assert names(formed) == ("n0", "n1", "n2")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"grow": False}, "switched off"),
        ({"restart": MIN}, "no up-scaling under min-healthy"),
        ({"active": "min"}, "enough are active"),
    ],
)
def test_a_newcomer_waits_where_growth_is_not_wanted(options: dict[str, object], why: str) -> None:
    job = running("n0", "n1", **{"least": 2, "most": 3, "max_restarts": 1, **options})
    assert job.join("n2") == [], why
    assert job.wait(100) == []


def test_no_growth_for_a_newcomer_that_has_left_or_when_the_end_is_near() -> None:
    """Nothing is stopped for nothing."""
    job = running("n0", "n1", least=2, most=3)
    job.join("n2")
    job.hear(Leave("n2", LeaveWhy.SIGNALLED))
    job.nodes.remove("n2")
    assert job.wait(60) == []

    ending = running("n0", "n1", least=2, most=3)
    ending.join("n2")
    ending.state("n0", S)
    assert ending.wait(60) == []


def test_back_off_doubles_and_forgets() -> None:
    """The first restart is at once, the next after 4, 8, ... s; a long cycle ends the row."""
    job = running("n0", max_restarts=9, backoff_s=4.0, backoff_max_s=10.0)
    waited = []
    for cycle in range(5):
        if cycle == 4:
            job.wait(10.0)
        job.state("n0", F)
        began_at = job.now
        formed = job.join("n0", have=cycle)
        while not formed:
            due = job.leader.next_deadline()
            assert due is not None
            formed = job.wait(due - job.now)
        waited.append(job.now - began_at)
    assert waited == [0.0, 4.0, 8.0, 10.0, 0.0]


def test_a_rank_may_ask_for_no_restart() -> None:
    """Whatever is left of the budget; with an exit code of its own."""
    job = running("n0", max_restarts=5)
    why = "exit code 93 asks for no restart (--ft-no-restart-exit-code)"
    assert job.state("n0", F, may_restart=False) == [
        StopCycle(0, "a rank of n0 failed", "n0", 5, why)
    ]
    assert job.join("n0", have=0) == [End(JobOutcome.FAILED, 93, "a rank of n0 failed", why)]


@pytest.mark.parametrize("slept_s", [5.0, 12.0, 40.0])
def test_a_leader_that_was_asleep_gives_that_time_to_the_others(slept_s: float) -> None:
    """Up to a silence: whoever slept, too, may take longer to wake up."""
    job = running("n0", "n1", max_restarts=1)
    job.mute |= {"n0", "n1"}
    job.now += slept_s
    woke_at, late_s = job.now, slept_s - Pace().beat_s
    assert job.tell(TimePassed()) == []

    [stop] = job.wait(40.0)

    assert isinstance(stop, StopCycle)
    gone_at = max(Pace().silence_s, woke_at + min(late_s, Pace().silence_s))
    late_s = late_s if late_s > Pace().beat_s else 0.0  # that is no sleep
    assert job.notes[0].endswith(f"(silent for {gone_at - late_s:.1f} s)"), job.notes


def test_what_a_leader_missed_in_its_sleep_is_its_own_fault() -> None:
    """The cause says for how long it did nothing, and names no other."""
    job = running("n0", "n1", max_restarts=1)
    job.now += 30.0
    job.tell(TimePassed())
    lost = StateChanged(
        "n1",
        0,
        F,
        FailureReport("no message from the leader of the job for 10.0 s"),
        unheard_s=10.0,
    )

    (stop,) = job.hear(lost)

    assert stop == StopCycle(
        0,
        "the launcher that leads the job did nothing for 30.0 s; n1 (pid 1) stopped its ranks "
        "after 10.0 s without a message from it",
        "n1",
        0,
    )


def test_a_node_of_the_last_cycle_is_awaited_however_long_it_is_silent() -> None:
    """Nothing is gained by giving it up; it is said once, and so is that it is back."""
    job = running("n0", "n1", "n2")
    job.mute.add("n1")
    assert job.wait(100.0) == []
    job.mute.clear()
    assert job.wait(10.0) == []
    silent, back = job.notes
    assert silent.startswith("n1 (pid 1) is silent for 15.0 s. No restart is left")
    assert re.fullmatch(r"n1 \(pid 1\) sends messages again, after 10\d\.\d s of silence", back)

    job.mute.add("n1")
    job.wait(20.0)
    (stop,) = job.state("n0", F, names_a_peer=True)
    assert isinstance(stop, StopCycle)
    ((end,), (lost,)) = job.join("n0", "n2", have=0), job.notes[-1:]
    assert isinstance(end, End)
    assert re.search("n1 .* was lost .silent for", lost)
    assert end.cause == lost


def test_a_silent_node_of_the_last_cycle_that_nobody_needs_is_given_up_later() -> None:
    """When all others have done their work, and 120 s more: it may be asleep, or lost."""
    job = running("n0", "n1")
    job.mute.add("n1")
    job.state("n0", S)
    assert job.wait(Pace().silence_s + Pace().return_s - 2.5) == []
    [stop] = job.wait(5.0)
    assert isinstance(stop, StopCycle)


def test_a_rank_that_is_heard_of_last_may_still_ask_for_no_restart() -> None:
    """Its peers failed because of it, and were reaped before it."""
    job = running("n0", "n1", max_restarts=5)
    (stop,) = job.state("n1", U)
    assert isinstance(stop, StopCycle)
    assert stop.no_restart == ""
    assert job.state("n0", U, may_restart=False) == []
    (end,) = job.join("n0", "n1", have=0)
    why = "exit code 93 asks for no restart (--ft-no-restart-exit-code)"
    assert end == End(JobOutcome.FAILED, 93, "a rank of n1 failed", why)


def test_the_last_restart_is_spent_and_a_rank_that_is_heard_of_last_asks_for_none() -> None:
    """Code 1 would have a scheduler try again what is no use."""
    job = running("n0", "n1", max_restarts=0)
    job.state("n1", U)
    job.state("n0", U, may_restart=False)
    (end,) = job.join("n0", "n1", have=0)
    assert isinstance(end, End)
    assert end.exit_code == 93


def test_a_message_that_overtakes_all_others_may_still_ask_for_no_restart() -> None:
    """Its node has joined again, and others are waited for."""
    job = running("n0", "n1", max_restarts=5)
    job.hear(Leave("n1", LeaveWhy.SIGNALLED))
    assert job.join("n0", have=0) == []
    (end,) = job.state("n0", U, may_restart=False)
    assert isinstance(end, End)
    assert end.exit_code == 93


def test_a_rank_that_asks_for_no_restart_asks_for_nothing_in_later_cycles() -> None:
    """Late copies of an old cycle's words included."""
    job = running("n0", max_restarts=5)
    job.state("n0", F)
    job.join("n0", have=0)
    assert job.hear(StateChanged("n0", 0, F, FailureReport("late"), may_restart=False)) == []
    assert isinstance(job.state("n0", F)[0], StopCycle)


def test_no_restart_is_not_forgotten_while_enough_nodes_go_on() -> None:
    """Under min-healthy nothing is restarted yet; when it would be, the job ends."""
    job = running("n0", "n1", "n2", least=2, max_restarts=5, restart=RestartPolicy.MIN_HEALTHY)
    assert job.state("n0", F, may_restart=False) == []
    (stop,) = job.state("n1", F)
    assert isinstance(stop, StopCycle)
    (end,) = job.join("n0", "n1", "n2", have=0)
    assert isinstance(end, End)
    assert end.exit_code == 93


def reads(effects: list[Effect]) -> list[ReadIteration]:
    return [effect for effect in effects if isinstance(effect, ReadIteration)]


def measured(**options: object) -> Job:
    """A job of one node that began at iteration 100, and whose checkpoints can be read."""
    job = Job(1, 1, options={"max_restarts": 9, "reads_iterations": True, **options})
    effects = job.leader.handle(Join("n0", desc("n0")), job.now)
    assert reads(effects) == [ReadIteration(first=True)]
    job.nodes.append("n0")
    job.tell(IterationRead(100))
    return job


def fail(job: Job, iteration: int | None, *, answers: bool = True) -> list[Decision | Close]:
    """The cycle fails, with checkpoints up to ``iteration``; what follows when all are back."""
    cycle = job.leader.cycle
    effects = job.leader.handle(
        StateChanged("n0", cycle, F, FailureReport("a rank of n0 failed")), job.now
    )
    assert reads(effects) == [ReadIteration(first=False)]
    assert isinstance(job.decided(effects)[0], StopCycle)
    if answers:
        assert job.tell(IterationRead(iteration)) == []
    return job.join("n0", have=cycle)


def test_a_job_that_does_not_advance_is_given_up() -> None:
    """Two failed cycles in a row without a newer checkpoint; one that advances starts anew."""
    job = measured(max_no_progress_cycles=2)
    for iteration in (100, 150, 150):
        assert isinstance(fail(job, iteration)[0], Round)

    assert fail(job, 150) == [
        End(JobOutcome.FAILED, 93, "a rank of n0 failed", "no progress in 2 cycles in a row")
    ]


HERE, THERE = "KeyError at train.py:12", "KeyError at train.py:30"


@pytest.mark.parametrize(
    ("signatures", "ends"),
    [
        ([HERE, HERE, HERE], True),
        ([HERE, HERE, THERE], False),
        ([HERE, THERE, HERE, HERE], False),
        ([HERE, "", HERE, HERE], False),
        (["", "", "", ""], False),
        ([THERE, HERE, HERE, HERE], True),
    ],
)
def test_a_job_that_fails_of_the_same_again_and_again_is_given_up(
    signatures: list[str], ends: bool
) -> None:
    """Only where it was asked for; a failure of which no place is known is like no other."""
    for most in (3, 0):
        job = running("n0", max_restarts=9, max_same_failures=most)
        for cycle, signature in enumerate(signatures):
            job.state("n0", F, signature=signature)
            (last,) = job.join("n0", have=cycle)

        assert isinstance(last, End) == (ends and most > 0)
        if isinstance(last, End):
            assert last.exit_code == 93
            assert last.why.startswith("the same failure in 3 cycles in a row")
            assert last.why.endswith(HERE)


def test_the_same_failure_counts_anew_once_the_job_gets_further() -> None:
    """It may be one that a restart cures: memory that leaks, a connection that ends each hour."""
    failures = SameFailures(2)

    assert failures.why_futile(HERE, has_progressed=False) is None
    assert failures.why_futile(HERE, has_progressed=True) is None
    assert failures.why_futile(HERE, has_progressed=False) is not None


def test_of_several_nodes_the_failure_that_names_no_peer_is_compared() -> None:
    job = running("n0", "n1", max_restarts=9, max_same_failures=2)
    for cycle in range(2):
        job.state("n0", F, names_a_peer=True, signature=f"RuntimeError at train.py:{cycle}")
        job.hear(Join("n0", desc("n0"), cycle))
        last = job.hear(
            Join("n1", desc("n1"), cycle, FailureReport("rank 1 failed", signature=HERE))
        )

    assert isinstance(last[0], End)


def test_a_restart_waits_for_the_iteration_but_not_for_ever() -> None:
    """A cycle of which nothing is known does not count."""
    job = measured(max_no_progress_cycles=1)
    assert fail(job, None, answers=False) == []
    (formed,) = job.tell(IterationRead(101))
    assert isinstance(formed, Round)

    assert fail(job, None, answers=False) == []
    assert job.wait(READ_LIMIT_S - 0.1) == []
    (formed,) = job.wait(0.1)
    assert isinstance(formed, Round)
    assert job.tell(IterationRead(101)) == [], "it comes too late"

    assert isinstance(fail(job, None)[0], Round)
    assert isinstance(fail(job, 101)[0], End)


def test_an_answer_that_never_comes_does_not_keep_the_leader_awake() -> None:
    """It waits for a node then, until the join timeout: a deadline in the past would be a spin."""
    job = running("n0", "n1", max_restarts=9, reads_iterations=True)
    job.state("n0", F)
    job.hear(Leave("n1", LeaveWhy.SIGNALLED))
    job.nodes.remove("n1")
    job.join("n0", have=0)
    job.now = READ_LIMIT_S
    job.tell(TimePassed())
    due = job.leader.next_deadline()
    assert due is not None
    assert due > job.now


def test_a_cycle_that_ended_with_a_silent_node_does_not_count() -> None:
    """Nobody has failed of whom it could be said."""
    job = running("n0", "n1", least=1, max_restarts=9, reads_iterations=True)
    job.reads.clear()
    job.mute.add("n1")
    (stop,) = job.wait(15)
    assert isinstance(stop, StopCycle)
    assert job.reads == []


def test_no_use_is_known_without_reading() -> None:
    job = measured(max_no_progress_cycles=1)
    job.state("n0", F, may_restart=False)
    (end,) = job.join("n0", have=0)
    assert isinstance(end, End)


# ---------------------------------------------------------------- a job of one
def of_one(**options: object) -> Job:
    return running("n0", is_of_one=True, launchers=1, first_last_call_s=30.0, **options)


@pytest.mark.parametrize(
    ("why", "code"),
    [
        (LeaveWhy.EXCLUDED, 0),
        (LeaveWhy.UNHEALTHY, 1),
        (LeaveWhy.SIGNALLED, 1),
        (LeaveWhy.STUCK, 1),
    ],
)
def test_a_job_that_can_have_no_other_node_ends_when_its_node_leaves(
    why: LeaveWhy, code: int
) -> None:
    """Also before it has ever joined."""
    for job in (of_one(), Job(1, 1, options={"is_of_one": True, "launchers": 1})):
        end, close = job.hear(Leave("n0", why, "as it says"))
        assert end == End(JobOutcome.FAILED, code, "as it says")
        assert isinstance(close, Close)


def test_a_shutdown_that_is_asked_for_with_the_failure_costs_no_restart() -> None:
    """It comes in the place of one, and counts before a budget that is spent."""
    for restarts in (5, 0):
        job = of_one(max_restarts=restarts)
        asks = ControlAsked("n0", SHUTDOWN, 3, "bad data")
        (stop,) = job.state("n0", F, asks=asks)
        assert stop == StopCycle(
            0, "a rank of n0 failed", "n0", restarts, "a rank has asked for ShutdownWorkload"
        )
        (end,) = job.join("n0", have=0)
        assert isinstance(end, End)
        assert end.outcome is JobOutcome.SHUT_DOWN
        assert job.leader.restarts_used == 0


def test_what_says_more_than_an_exclusion_comes_first() -> None:
    """A rank of the node that leaves knows that another attempt is no use."""
    job = of_one(max_restarts=1)
    job.state("n0", F, may_restart=False)
    end, _ = job.hear(Leave("n0", LeaveWhy.EXCLUDED))
    assert isinstance(end, End)
    assert end.exit_code == 93


# ---------------------------------------------------------------- min-healthy
@pytest.mark.parametrize(
    ("states", "outcome"),
    [
        ([S, S, F], End(JobOutcome.SUCCEEDED, 0, "2 nodes succeeded")),
        ([F, S, S], End(JobOutcome.SUCCEEDED, 0, "2 nodes succeeded")),
        ([S, S, S], End(JobOutcome.SUCCEEDED, 0, "3 nodes succeeded")),
        ([F, H, H], None),
        ([U, H, S], None),
        ([U, H, H], None),
    ],
)
def test_min_healthy_goes_on_or_succeeds(states: list[NodeState], outcome: End | None) -> None:
    """Of three nodes two are needed: H = 0 and S >= MIN succeeds; H + S >= MIN keeps going."""
    job = running("n0", "n1", "n2", least=2, restart=MIN, max_restarts=1)
    found = [
        decision
        for node, state in zip(("n0", "n1", "n2"), states, strict=True)
        if state is not H
        for decision in job.state(node, state)
    ]
    assert found == ([] if outcome is None else [outcome])


@pytest.mark.parametrize("states", [[F, U, H], [U, U, S], [S, F, F], [F, F, S]])
def test_min_healthy_restarts_all_below_the_minimum(states: list[NodeState]) -> None:
    """H + S < MIN: everybody restarts; with none left every launcher's own ranks decide."""
    for restarts in (1, 0):
        job = running("n0", "n1", "n2", least=2, restart=MIN, max_restarts=restarts)
        found = [
            decision
            for node, state in zip(("n0", "n1", "n2"), states, strict=True)
            if state is not H
            for decision in job.state(node, state)
        ]
        assert len(found) == 1
        assert isinstance(found[0], StopCycle)
        if not restarts:
            (end,) = job.join("n0", "n1", "n2", have=0)
            assert isinstance(end, End)
            assert (end.outcome, end.exit_code) == (JobOutcome.FAILED, None)


def test_min_healthy_counts_a_silent_node_as_lost_for_the_cycle() -> None:
    """One of three is enough to lose, two are not."""
    job = running("n0", "n1", "n2", least=2, restart=MIN, max_restarts=1)
    job.mute.add("n0")
    assert job.wait(20) == []
    job.mute.add("n1")
    (stop,) = job.wait(20)
    assert isinstance(stop, StopCycle)


@pytest.mark.parametrize(
    ("states", "found"),
    [
        ([U], []),
        ([U, U], []),
        ([U, S], [End(JobOutcome.SUCCEEDED, 0, "all ranks succeeded")]),
        ([U, F], [StopCycle(0, "a rank of n0 failed", "n0", 1)]),
    ],
)
def test_min_healthy_on_one_node_goes_on_while_a_rank_runs(
    states: list[NodeState], found: list[Decision]
) -> None:
    """Its ranks are counted, as nodes are in a job of several."""
    job = of_one(restart=MIN, max_restarts=2)
    assert [decision for state in states for decision in job.state("n0", state)] == found


# ---------------------------------------------------------------- the end
def test_a_job_succeeds_when_the_last_node_has() -> None:
    """And a node that is lost after it has succeeded takes nothing with it."""
    job = running("n0", "n1", max_restarts=1)
    assert job.state("n0", S) == []
    job.mute.add("n0")
    assert job.wait(20) == []

    assert job.state("n1", S) == [End(JobOutcome.SUCCEEDED, 0, "all ranks succeeded")]


def test_a_shutdown_request_ends_the_job_for_all() -> None:
    """With who asked for it; whoever comes late hears it, too."""
    job = running("n0", "n1", max_restarts=5)
    job.state("n0", F)
    end = End(
        JobOutcome.SHUT_DOWN, 1, "rank 3 on n0 (pid 0) asked to shut the workload down: bad data"
    )
    assert job.hear(ControlAsked("n0", "Continue", 1, "")) == []
    assert job.hear(ControlAsked("n0", SHUTDOWN, 3, "bad data")) == []
    assert job.join("n1", have=0) == [end]
    assert job.join("n5") == [end]
    assert job.join("n5") == []


def test_a_shutdown_waits_for_ranks_that_may_know_more() -> None:
    """As on one node: 93 says that another attempt is no use, whoever says it first."""
    job = running("n0", "n1", max_restarts=5)
    job.state("n0", F)
    assert job.hear(ControlAsked("n0", SHUTDOWN, 3, "bad data")) == []

    assert job.state("n1", F, may_restart=False) == []
    (end,) = job.join("n1", have=0)

    assert isinstance(end, End)
    assert end.exit_code == 93


def test_a_launcher_that_closes_a_job_that_runs_is_not_waited_for() -> None:
    """As by ``set_closed`` of torchrun: nothing else stops the ranks."""
    job = running("n0", "n1")
    (end,) = job.hear(ControlAsked("n0", SHUTDOWN, -1, "closed"))
    assert end == End(JobOutcome.SHUT_DOWN, 1, "n0 (pid 0) asked to shut the workload down: closed")


def test_the_end_does_not_wait_for_the_silent_for_ever() -> None:
    """Nor for those who speak and do not leave."""
    job = running("n0", "n1", linger_s=60.0)
    job.state("n0", F)
    job.join("n0", "n1", have=0)
    job.mute.add("n1")
    assert job.wait(59) == []
    assert job.wait(1) == [Close(("n0",))]


def test_a_job_that_is_told_to_end_may_save_its_work() -> None:
    """All nodes have a signal: the first that is done does not cut the others short."""
    job = running("n0", "n1", max_restarts=5)
    assert job.state("n0", NodeState.LEAVING) == []
    assert job.state("n1", NodeState.LEAVING) == []
    assert job.hear(Leave("n0", LeaveWhy.SIGNALLED)) == []
    assert job.hear(Leave("n1", LeaveWhy.SIGNALLED)) == [
        StopCycle(0, "n1 (pid 1) left the job (signalled)", "n1", 4)
    ]


def test_a_node_that_is_told_to_end_is_no_cause_of_what_fails_elsewhere() -> None:
    """Nor does it hide that it is the same failure as before."""
    job = running("n0", "n1", least=1, max_restarts=5, max_same_failures=1)
    job.hear(StateChanged("n1", 0, NodeState.LEAVING, FailureReport("SIGTERM")))
    job.state("n0", F, signature="oom")
    job.hear(Leave("n1", LeaveWhy.SIGNALLED, "SIGTERM"))

    (end,) = job.join("n0", have=0)
    assert isinstance(end, End)
    assert end.cause == "a rank of n0 failed"


def test_one_node_that_is_told_to_end_does_not_hold_up_the_rest() -> None:
    """It may take its time while its cycle runs; when that is over, the others go on without it."""
    job = running("n0", "n1", least=1, max_restarts=5)
    assert job.state("n0", NodeState.LEAVING) == []
    (stop,) = job.state("n1", F)
    assert isinstance(stop, StopCycle)
    assert job.join("n1", have=0) == []
    (formed,) = job.hear(Leave("n0", LeaveWhy.SIGNALLED))
    assert names(formed) == ("n1",)


def test_a_leader_that_must_go_ends_the_job() -> None:
    job = running("n0", "n1")
    (end,) = job.tell(Abdicate("SIGTERM"))
    assert end == End(JobOutcome.FAILED, 1, "the launcher that led the job left: SIGTERM")
    assert job.tell(Abdicate("again")) == []


def test_a_silent_leader_would_be_missed_so_it_beats() -> None:
    """Every ``beat_s``, and after each round; they are numbered, as launchers answer them."""
    leader = Leader(Rules(NodePolicy(1, 1)))
    lease_s = leader.pace.leader_lease_s
    assert leader.next_deadline() is None
    assert leader.handle(Begin(), 0.0) == [LeaderBeat(number=1, lease_s=lease_s)]
    formed, *_, beat = leader.handle(Join("n0", desc("n0")), 0.5)
    assert isinstance(formed, Round)
    assert beat == LeaderBeat(number=2, lease_s=lease_s, sent_at=0.5)
    assert leader.phase is JobPhase.RUNNING
    assert leader.next_deadline() == 3.5
    assert leader.handle(TimePassed(), 3.4) == []
    assert leader.handle(TimePassed(), 3.5) == [beat.but(number=3, sent_at=3.5)]


def test_beats_tell_all_nodes_that_a_rank_of_one_has_reported_to_its_monitor() -> None:
    """The last cycle counts, whichever node's beat comes last."""
    job = running("n0", "n1")
    for reported in (0, 3, -1):
        job.hear(Beat("n0", reported=reported))
    beats = job.leader.handle(TimePassed(), job.leader.next_deadline() or 0.0)

    assert [it.reported for it in beats if isinstance(it, LeaderBeat)] == [3]


# ---------------------------------------------------------------- what those who wait are told
@dataclass
class Listener:
    """What beats say, one line each time that it is something else; for a job's leader."""

    job: Job
    heard: list[str] = field(default_factory=list)
    beats: int = 0

    def __post_init__(self) -> None:
        handle = self.job.leader.handle

        def listen(event: Event, now: float) -> list[Effect]:
            effects = handle(event, now)
            for effect in effects:
                if isinstance(effect, LeaderBeat):
                    self.beats += 1
                    if effect.waits not in ("", *self.heard[-1:]):
                        self.heard.append(effect.waits)
            return effects

        self.job.leader.handle = listen  # type: ignore[method-assign]


def test_who_waits_is_told_for_what_once_and_again_when_it_changes() -> None:
    """After a second, not with each beat; at the end nothing more."""
    job = Job(3, 4, options={"first_last_call_s": 30.0})
    said = Listener(job)
    job.join("n0")
    job.wait(0.9)
    assert said.heard == []
    job.wait(20)
    assert said.heard == [
        (
            "1 of 3:4 nodes is here (n0 (pid 0)); waiting up to 899 s for 2 more "
            "(--nnodes 3:4; --rdzv-conf join_timeout=900)"
        )
    ]
    job.join("n1", "n2")
    job.wait(20)
    assert said.heard[1:] == [
        (
            "3 of 3:4 nodes are here (n0 (pid 0), n1 (pid 1), n2 (pid 2)); starting in 29 s, or as "
            "soon as there are 4 (--rdzv-conf last_call_timeout=30)"
        )
    ]
    assert job.join("n3")
    job.wait(20)
    assert len(said.heard) == 2


def test_a_round_that_is_formed_soon_costs_no_word() -> None:
    job = running("n0", "n1", max_restarts=1)
    said = Listener(job)
    job.state("n0", U)
    job.wait(0.9)
    job.join("n0", "n1", have=0)
    job.wait(30)
    assert said.heard == []


def test_after_a_failure_it_is_told_whose_ranks_take_long() -> None:
    job = running("n0", "n1", max_restarts=1)
    said = Listener(job)
    job.state("n0", U)
    job.join("n0", have=0)
    job.wait(5)
    assert said.heard == [
        (
            "1 of 2 nodes is here (n0 (pid 0)); waiting up to 899 s for n1 (pid 1) to stop the "
            "ranks of cycle 0 (--rdzv-conf join_timeout=900)"
        )
    ]


def test_a_pause_before_a_restart_is_told() -> None:
    job = running("n0", "n1", max_restarts=9, backoff_s=40.0)
    said = Listener(job)
    for cycle in range(2):
        job.state("n0", U)
        job.join("n0", "n1", have=cycle)
    job.wait(60)
    assert said.heard == [
        (
            "2 of 2 nodes are here (n0 (pid 0), n1 (pid 1)); starting in 39 s, after a pause "
            "(--ft-restart-backoff 40)"
        )
    ]


def test_nodes_that_are_enough_and_do_not_fit_are_told_why() -> None:
    job = Job(2, 2, segment=2)
    said = Listener(job)
    job.join("n0", domain="a")
    job.join("n1", domain="b")
    job.wait(5)
    (text,) = said.heard
    assert "and no cycle can be formed of them: --ft-segment 2: 0 whole segments in 2" in text


def test_a_node_that_comes_too_late_is_told_what_runs() -> None:
    """And when it will have a place, if so."""
    full, growing = running("n0", "n1"), Job(1, 2)
    growing.join("n0")
    growing.wait(1)
    for job in (full, growing):
        said = Listener(job)
        job.join("n5")
        job.wait(5)
        (text,) = said.heard
        grows = (
            "; it will be stopped in 28 s, and continue with more nodes" if job is growing else ""
        )
        on = "1 node" if job is growing else "2 nodes"
        assert text == f"cycle 0 runs on {on}; waiting for a place: n5 (pid 5){grows}"


@pytest.mark.parametrize("size", [4, 400])
def test_telling_those_who_wait_costs_the_same_however_many_come(size: int) -> None:
    """Beats per second of waiting, not per node that joins."""
    leader = Leader(Rules(NodePolicy(size + 1, size + 1)))
    effects = leader.handle(Begin(), 0.0)
    now = 0.0
    for number in range(size):
        now = 10.0 * number / size
        node = f"m{number}"
        joined = Join(node, Descriptor(f"10.0.0.{number}", node, nproc=1, pid=number))
        effects += leader.handle(joined, now)
    assert 2 <= sum(isinstance(effect, Decision) for effect in effects) <= 12


JOB = Workload("script", "train.py", contents="1f", path="a0", is_named=True)
OTHER = replace(JOB, name="eval.py", contents="2e", path="b1")


@pytest.mark.parametrize("phase", ["forming", "running", "ending"])
def test_a_launcher_of_another_job_is_refused_whatever_the_job_is_doing(phase: str) -> None:
    """R-3: neither ranks, nor a place among the spares, nor the good end of a job not its own."""
    job = Job(2, 2, options={"workload": JOB})
    if phase != "forming":
        job.join("n0", "n1", workload=JOB)
    if phase == "ending":
        job.state("n0", S)
        job.state("n1", S)

    (refused,) = job.join("n5", workload=OTHER)

    assert isinstance(refused, NodeRefused)
    assert refused.node == "n5"
    assert "the launcher on n5 (pid 5) belongs to another job" in refused.why
    assert "script eval.py (sha256 2e, 0 arguments, --nnodes 1)" in refused.why
    assert "Give each job an --rdzv-id and an --rdzv-endpoint of its own" in refused.why
    assert job.notes[-1] == f"a launcher was refused: {refused.why}"
    assert job.join("n5", workload=OTHER) == []  # a late copy
    if phase == "forming":
        (formed,) = job.join("n0", "n1", workload=JOB)
        assert names(formed) == ("n0", "n1")


def test_what_a_launcher_may_differ_in_is_logged_once_and_it_joins() -> None:
    """Arguments of each node's own are no proof of another job; a thousand of them are one line."""
    job = Job(2, 3, options={"workload": JOB, "first_last_call_s": 30.0})
    job.join("n0", workload=JOB)
    job.join("n1", workload=replace(JOB, arguments="beef"))
    (formed,) = job.join("n2", workload=replace(JOB, arguments="dead"))

    assert names(formed) == ("n0", "n1", "n2")
    (line,) = [note for note in job.notes if "differs from the leader" in note]
    assert line.startswith("the launcher on n1 (pid 1) differs from the leader of the job that it")
    assert "the script gets 1 argument there, and 0 from the leader" in line


def test_a_launcher_that_sends_no_workload_may_join() -> None:
    """It is of an older version."""
    job = Job(2, 2, options={"workload": JOB})
    job.join("n0", workload=JOB)
    assert names(*job.join("n1")) == ("n0", "n1")


@pytest.mark.parametrize("is_named", [True, False])
def test_a_job_of_several_nodes_without_a_name_is_warned_of_once(*, is_named: bool) -> None:
    leader = Leader(Rules(NodePolicy(2, 2), workload=replace(JOB, is_named=is_named)), Pace())
    notes = [e for e in leader.handle(Begin(), 0.0) if isinstance(e, Note)]
    assert [note.level for note in notes] == ([] if is_named else ["warning"])
    assert all("Give each job an --rdzv-id of its own" in note.text for note in notes)


# ---------------------------------------------------------------- kept steps
KEEPS: dict[str, object] = {"snapshot_keep_s": 30.0}


def test_nodes_that_take_snapshots_of_each_other_keep_a_step() -> None:
    """The answers of the members of a cycle that is over mean nothing."""
    job = Job(options=KEEPS)
    formed, ask = job.join("n0", "n1", keeps=7)
    assert isinstance(formed, Round)
    assert formed.keepers == (Keeper(7, 1), Keeper(7, 0))
    assert ask == Keep(0, 0)
    assert job.hear(Missed("n0", 0, 0, 10)) == [Keep(0, 12)]
    twelve = SnapshotId(0, 0, 12)
    assert job.hear(Complete("n0", 0, twelve, 5), Complete("n1", 0, twelve, 5)) == [
        Kept(0, twelve, 10, 0.0)
    ]
    assert job.wait(29.9) == []
    assert job.wait(0.2) == [Keep(0, 0, twelve)]
    (stop,) = job.state("n1", F)
    assert isinstance(stop, StopCycle)
    assert job.hear(Missed("n0", 0, 0, 40), Complete("n0", 0, twelve, 5)) == []


@pytest.mark.parametrize("keeps", [0, 7])
def test_a_job_whose_nodes_cannot_keep_steps_says_so_once(keeps: int) -> None:
    job = Job(options=KEEPS)
    job.join("n0", keeps=7)
    (formed, *asks) = job.join("n1", keeps=keeps)
    assert isinstance(formed, Round)
    assert bool(formed.keepers) == bool(asks) == bool(keeps)
    text = "no step is kept at another node (--ft-snapshot-keep): n1 (pid 1) cannot do that"
    assert [text in note for note in job.notes] == ([] if keeps else [True])


def test_a_job_that_keeps_no_steps_says_nothing_of_them() -> None:
    job = Job()
    (formed,) = job.join("n0", "n1", keeps=7)
    assert isinstance(formed, Round)
    assert formed.keepers == ()
    assert job.notes == []


# ---------------------------------------------------------------- another one leads
def slept_leader(max_restarts: int) -> Leader:
    """Of three launchers; it did nothing for a minute, and asks the others."""
    leader = Leader(
        Rules(NodePolicy(3, 3), max_restarts=max_restarts, first_last_call_s=0.0), Pace(), "n0"
    )
    leader.handle(Begin(), 0.0)
    for node in ("n0", "n1", "n2"):
        leader.handle(Join(node, desc(node, serves=7), -1), 0.0)
    assert leader.phase is JobPhase.RUNNING
    assert not any(isinstance(it, StepDown) for it in leader.handle(TimePassed(), 60.0))
    return leader


def test_a_leader_that_slept_steps_down_at_once_when_the_next_one_calls_it() -> None:
    """Its ranks would be beside those of the next cycle until no launcher had answered it."""
    leader = slept_leader(max_restarts=3)

    effects = leader.handle(Superseded(1, "n1"), 60.1)

    assert effects[-1] == StepDown("another launcher leads, in term 1", 0.0)
    assert leader.phase is JobPhase.CLOSED


@pytest.mark.parametrize("can_move", [False, True])
def test_a_leader_that_slept_and_must_go_ends_no_job(can_move: bool) -> None:
    """Others may lead by now; those that still follow it look for them."""
    leader = slept_leader(max_restarts=3)
    assert leader.handle(Abdicate("SIGTERM", can_move), 60.1) == [
        Resigned("it left: SIGTERM"),
        Close(),
    ]
    assert leader.next_deadline() is None
    (end,) = slept_leader(max_restarts=0).handle(Abdicate("SIGTERM"), 60.1)
    assert isinstance(end, End), "no other can lead after the last cycle"


def test_a_leader_of_an_earlier_run_of_the_job_supersedes_nobody() -> None:
    """It slept when the job was started again, under the same name, and calls at the endpoint."""
    leader = slept_leader(max_restarts=3)
    assert not any(isinstance(it, StepDown) for it in leader.handle(Superseded(4, "n9"), 60.1))
    assert leader.phase is JobPhase.RUNNING


def test_a_leader_of_the_last_cycle_is_never_superseded() -> None:
    leader = slept_leader(max_restarts=0)
    assert not any(isinstance(it, StepDown) for it in leader.handle(Superseded(1, "n1"), 60.1))
    assert leader.phase is JobPhase.RUNNING


# ---------------------------------------------------------------- after another leader
@pytest.mark.parametrize("period_s", [None, 3600.0])
def test_a_leader_goes_on_with_the_cycle_the_budget_and_the_ranks_of_the_one_before(
    period_s: float | None,
) -> None:
    """Their group ranks, too: state of theirs may be on their disks."""
    places = tuple(CyclePlace(node, k, 2, 2 * k, node) for k, node in enumerate(("n2", "n1", "n0")))
    last = Round(3, places, term=1, restarts_used=2, restarts_left=3)
    rules = Rules(NodePolicy(2, 3), max_restarts=5, restarts_period_s=period_s)
    offers = tuple(Offer(n, 2, Join(n, desc(n), 3), last.version, True) for n in ("n1", "n2"))
    about = (
        last,
        (last.electorate,),
        offers,
        None,
        0.0,
        0.0,
        frozenset({"n0"}),
        7,
        "it has died",
        "n0",
    )
    leader = Leader(rules, Pace(), "n1", Leads(2, *about), moves_by_silence=False)
    found = [*leader.handle(Begin(), 0.0), *leader.handle(TimePassed(), 60.0)]
    [formed] = (one for one in found if isinstance(one, Round))
    assert (formed.cycle, formed.term) == (4, 2)
    assert (formed.restarts_used, formed.restarts_left) == (3, 2)
    assert [(place.node, place.group_rank) for place in formed.places] == [("n2", 0), ("n1", 1)]
    assert leader.incidents.number == 7
