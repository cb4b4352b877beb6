"""Incidents of a job: one at a time, and what a failure of the cycle waits for."""

from __future__ import annotations

from holdfast.base.pure.common_events import Begin, TimePassed
from holdfast.evidence.pure.evidence import Absence
from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.leader import Leader
from holdfast.job.pure.leader_messages import Event, LauncherEnded
from holdfast.job.pure.membership import (
    Descriptor,
    Digests,
    FailureReport,
    Join,
    Judged,
    NodeState,
    OpenIncident,
    StateChanged,
    StopCycle,
    Suspect,
)
from holdfast.job.pure.rules import Rules
from holdfast.job.pure.timing import VERDICT_SHARE

EVIDENCE_S = 10.0
Told = OpenIncident | Judged | StopCycle


class Job:
    """A leader of three nodes with two ranks each, in cycle 0."""

    def __init__(self, evidence_s: float = EVIDENCE_S) -> None:
        rules = Rules(
            NodePolicy(3, 3), max_restarts=3, first_last_call_s=0.0, evidence_s=evidence_s
        )
        self.leader = Leader(rules, home="n0", moves_by_silence=False)
        self.now = 0.0
        self.hear(Begin())
        self.join()

    def join(self) -> None:
        for node in ("n0", "n1", "n2"):
            self.hear(Join(node, Descriptor(node, f"host-{node}", nproc=2, pid=1), -1))

    def hear(self, *events: Event) -> list[Told]:
        effects = [effect for one in events for effect in self.leader.handle(one, self.now)]
        return [effect for effect in effects if isinstance(effect, Told)]

    def fails(self, node: str) -> list[Told]:
        failure = FailureReport(f"a rank of {node} failed")
        return self.hear(StateChanged(node, self.leader.cycle, NodeState.FAILED, failure))


def digests(node: str, incident: int = 1) -> Digests:
    return Digests(node, 0, incident)


def test_all_nodes_are_asked_and_the_verdict_is_there_when_the_last_has_answered() -> None:
    job = Job()
    assert job.hear(Suspect("n1", 0, 2)) == [OpenIncident(1, 0, "n1", 2)]
    assert job.hear(digests("n0"), digests("n0"), digests("n1")) == []
    [judged] = job.hear(digests("n2"))
    assert isinstance(judged, Judged)
    assert (judged.incident, judged.cycle, judged.without) == (1, 0, "")
    assert job.hear(digests("n2"), TimePassed()) == []


def test_ranks_that_are_overdue_together_are_one_incident() -> None:
    """A node that knows of the last one has found another."""
    job = Job()
    job.hear(Suspect("n1", 0, 2))
    assert job.hear(Suspect("n2", 0, 4), Suspect("n1", 0, 3, after=1)) == []
    job.hear(digests("n0"), digests("n1"), digests("n2"))
    assert job.hear(Suspect("n2", 0, 5)) == []
    assert job.hear(Suspect("n2", 0, 5, after=1)) == [OpenIncident(2, 0, "n2", 5)]


def test_a_node_that_does_not_answer_delays_the_verdict_to_the_bound_and_is_named() -> None:
    job = Job()
    job.hear(Suspect("n1", 0, 2), digests("n0"), digests("n1"))
    job.now = VERDICT_SHARE * EVIDENCE_S
    due = job.leader.next_deadline()
    assert due is not None
    assert due <= job.now
    [judged] = job.hear(TimePassed())
    assert isinstance(judged, Judged)
    [(host, missing)] = job.leader.incidents.missing.items()
    assert (host, missing.ranks, missing.absence) == ("host-n2", "4,5", Absence.NO_ANSWER)
    assert "host-n2" in judged.without


def test_a_node_that_is_lost_meanwhile_is_not_waited_for() -> None:
    """K-2: nor are the others stopped before the verdict: they would show nothing."""
    job = Job()
    job.hear(Suspect("n1", 0, 2), digests("n0"), digests("n1"))
    judged, stop = job.hear(LauncherEnded("n2"))
    assert isinstance(judged, Judged)
    assert job.leader.incidents.missing["host-n2"].absence is Absence.LOST
    assert isinstance(stop, StopCycle)


def test_a_failure_stops_the_cycle_once_the_verdict_is_there() -> None:
    """The first of several."""
    job = Job()
    job.hear(Suspect("n1", 0, 2), digests("n0"), digests("n1"))
    assert job.fails("n1") == []
    assert job.fails("n0") == []
    judged, stop = job.hear(digests("n2"))
    assert isinstance(judged, Judged)
    assert isinstance(stop, StopCycle)
    assert (stop.node, stop.cause) == ("n1", "a rank of n1 failed")


def test_a_suspicion_of_another_cycle_or_node_is_none() -> None:
    job = Job()
    assert job.hear(Suspect("n1", 1, 2), Suspect("n9", 0, 2)) == []
    job.fails("n1")
    assert job.hear(Suspect("n0", 0, 2)) == [], "its cycle is being stopped"


def test_without_a_bound_there_are_no_incidents() -> None:
    assert Job(evidence_s=0.0).hear(Suspect("n1", 0, 2)) == []
