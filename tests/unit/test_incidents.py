"""The incidents of a job, as its leader sees them: one at a time, judged in time, all said."""

from __future__ import annotations

import pytest

from holdfast.core.evidence import Missing, RankDigest
from holdfast.core.job.incidents import VERDICT_SHARE, Incidents
from holdfast.core.job.membership import Digests, Look, Place, Round, Suspect

HOSTS: dict[str, str | None] = {"n0": "gpu-0", "n1": "gpu-1", "n2": "gpu-2"}
FORMED = Round(3, tuple(Place(node, k, 2, 2 * k, "") for k, node in enumerate(HOSTS)), world_size=6)
NOW = 100.0
DUE = NOW + VERDICT_SHARE * 2.0


@pytest.fixture
def incidents() -> Incidents:
    """One is open: rank 2 of n1 is overdue."""
    known = Incidents(timeout_s=2.0)
    known.cycle_began(FORMED)
    assert known.is_news(SUSPECT)
    assert known.open(SUSPECT, HOSTS, NOW) == Look(1, 3, "n1", 2)
    return known


SUSPECT = Suspect("n1", 3, 2)


def answer(node: int, incident: int = 1) -> Digests:
    ranks = 2 * node, 2 * node + 1
    return Digests(
        f"n{node}", 3, incident, tuple(RankDigest(rank, f"gpu-{node}") for rank in ranks)
    )


def test_an_incident_is_judged_when_all_nodes_have_answered(incidents: Incidents) -> None:
    for node in (2, 0):
        incidents.answered(answer(node))
        incidents.answered(answer(node, incident=7))
        assert incidents.judged(NOW) is None
    incidents.answered(answer(1))
    judged = incidents.judged(NOW)

    assert judged is not None
    assert (judged.incident, judged.cycle, judged.without) == (1, 3, "")
    assert sorted(incidents.digests) == [0, 1, 2, 3, 4, 5]
    assert incidents.judged(NOW) is None, "once"


def test_a_node_that_does_not_answer_is_named_and_delays_the_verdict_no_longer_than_the_bound(
    incidents: Incidents,
) -> None:
    incidents.answered(answer(1))
    incidents.lost("n2", "gpu-2 (pid 7) left the job (signalled)")
    assert incidents.until == DUE
    assert incidents.judged(DUE - 2**-10) is None
    judged = incidents.judged(DUE)

    assert judged is not None
    assert incidents.missing == {
        "gpu-2": Missing("4,5", "gpu-2 (pid 7) left the job (signalled)"),
        "gpu-0": Missing("0,1", "did not answer within 1.6 s"),
    }
    assert judged.without == (
        "gpu-2: gpu-2 (pid 7) left the job (signalled); gpu-0: did not answer within 1.6 s"
    )


def test_ranks_that_are_overdue_at_the_same_time_are_one_incident(incidents: Incidents) -> None:
    """Also those that the leader hears of when it has judged, and copies that arrive late."""
    assert not incidents.is_news(Suspect("n0", 3, 0))
    for node in range(3):
        incidents.answered(answer(node))
    assert incidents.judged(NOW) is not None
    assert not incidents.is_news(Suspect("n0", 3, 0))

    assert incidents.is_news(Suspect("n0", 3, 0, after=1)), "its node has heard of that one"


def test_nodes_that_were_lost_before_are_missing_and_two_of_one_host_are_told_apart() -> None:
    incidents = Incidents(timeout_s=2.0)
    incidents.cycle_began(FORMED)
    incidents.open(SUSPECT, {"n0": None, "n1": "gpu", "n2": "gpu"}, NOW)
    assert incidents.judged(DUE) is not None
    assert {name: one.ranks for name, one in incidents.missing.items()} == {
        "n0": "0,1",
        "gpu": "2,3",
        "n2": "4,5",
    }


def test_without_a_timeout_nobody_is_asked() -> None:
    assert not Incidents(timeout_s=0.0).is_news(SUSPECT)
