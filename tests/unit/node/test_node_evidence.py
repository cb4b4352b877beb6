"""One launcher's part in an incident, on a virtual clock: who looks, what is answered, and when."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.base.pure.common_events import TimePassed
from holdfast.evidence.pure.evidence import (
    BEING_STOPPED,
    ENDED,
    ENDED_BEFORE,
    ENDED_WELL,
    RankDigest,
    Verdict,
)
from holdfast.job.pure.membership import CyclePlace, Digests, Judged, OpenIncident, Round, Suspect
from holdfast.job.pure.timing import ALONE_SHARE, ANSWER_SHARE, JUDGE_SHARE, LOOK_SHARE
from holdfast.node.pure import rank_life
from holdfast.node.pure.node_evidence import (
    TURN_S,
    Effect,
    Event,
    IncidentOver,
    NodeEvidence,
)
from holdfast.node.pure.rank_life import (
    Exited,
    MonitorGone,
    MonitorSaid,
    RankLives,
    Sent,
    ToMonitors,
)
from holdfast.page.pure.clocks import PAUSE, STEP
from holdfast.watch.pure import monitor_messages
from holdfast.watch.pure.monitor_messages import JOINS_S

T = 2.0
VERDICT = Verdict((0,), "stopped", "rank 0 was stopped", "high")
PLACES = CyclePlace("n0", 0, 2, 0, ""), CyclePlace("n1", 1, 2, 2, "")


def asked(*local_ranks: int, first: int = 2) -> ToMonitors:
    """All evidence is asked for by the rank's number in the job, and its process."""
    within_s = LOOK_SHARE * T
    looks = {
        k: monitor_messages.CollectEvidence(1, 0, first + k, 100 + k, within_s) for k in local_ranks
    }
    return ToMonitors(looks)


def let_go_on(*local_ranks: int) -> ToMonitors:
    return ToMonitors(dict.fromkeys(local_ranks, monitor_messages.Proceed(1, 0, VERDICT)))


LOOKED = asked(0, 1)
GOES_ON = let_go_on(0, 1)


class Node:
    """Ranks 2 and 3 of cycle 0, on a clock."""

    def __init__(self, places: tuple[CyclePlace, ...] = PLACES, group_rank: int = 1) -> None:
        self.now = 100.0
        self.evidence = NodeEvidence(T, "gpu-1")
        formed = Round(0, places, world_size=sum(place.nproc for place in places))
        self.lives = RankLives()
        first = places[group_rank].rank_offset
        self.lives.start_cycle(0, range(first, first + places[group_rank].nproc), self.now)
        self.lives.here.pids = {0: 100, 1: 101}
        self.evidence.start_cycle(formed, places[group_rank], self.lives.here)

    def hears(self, *events: Event) -> list[Effect]:
        """What follows from all of them."""
        effects: list[Effect] = []
        for event in events:
            if isinstance(event, rank_life.Event):
                self.lives.handle(event, self.now)
            effects += self.evidence.handle(event, self.now)
        return effects

    def at(self, share: float) -> list[Effect]:
        """What follows when so much of the timeout is over; nothing does a moment before."""
        self.now = 100.0 + share * T - 2**-12
        assert self.hears(TimePassed()) == []
        assert self.evidence.next_deadline() == pytest.approx(100.0 + share * T)
        self.now = 100.0 + share * T
        return self.hears(TimePassed())


@pytest.fixture
def node() -> Node:
    return Node()


def overdue(local_rank: int, cycle: int = 0, clock: str = "section") -> MonitorSaid:
    name = "step" if clock == "section" else None
    whose, about = (cycle, 2 + local_rank, local_rank, 7), (clock, name, 6.0, 5.0, False)
    return MonitorSaid(
        local_rank, monitor_messages.Overdue(*whose, *about, at=99.0, detected_at=100.0)
    )


def digest(local_rank: int, lacks: str = "", **end: Any) -> RankDigest:
    place = "" if lacks or end else "f x.py:1"
    return RankDigest(2 + local_rank, "gpu-1", local_rank, place=place, lacks=lacks, **end)


def looked(local_rank: int, incident: int = 1, cycle: int = 0) -> MonitorSaid:
    return MonitorSaid(
        local_rank, monitor_messages.EvidenceCollected(incident, cycle, digest(local_rank))
    )


def look(incident: int = 1, cycle: int = 0) -> OpenIncident:
    return OpenIncident(incident, cycle, "n0", 0)


def judged(incident: int = 1, cycle: int = 0) -> Judged:
    return Judged(incident, cycle, VERDICT)


def over(*overdue: int, digests: tuple[RankDigest, ...], without: str = "") -> IncidentOver:
    by_rank = {one.rank: one for one in digests}
    return IncidentOver(1, 0, overdue, VERDICT, by_rank, without, is_elsewhere=True)


BOTH = digest(0), digest(1)


def test_no_monitor_goes_on_before_the_verdict_on_all_ranks(node: Node) -> None:
    """One message to the leader, one answer for all ranks of the node, and then the verdict."""
    assert node.hears(overdue(1)) == [Suspect("n1", 0, 3, after=0)]
    assert node.hears(overdue(0)) == [], "it is the same incident"
    assert node.hears(look()) == [LOOKED]
    assert node.hears(looked(0)) == []
    assert node.hears(looked(1)) == [Digests("n1", 0, 1, BOTH)]
    assert node.hears(judged()) == [GOES_ON, over(0, 1, digests=BOTH)]
    assert node.evidence.next_deadline() is None


def test_a_node_where_no_rank_is_overdue_is_looked_at_all_the_same(node: Node) -> None:
    assert node.hears(look(), looked(0)) == [LOOKED]
    assert node.hears(looked(1)) == [Digests("n1", 0, 1, BOTH)]
    assert node.hears(judged()) == [GOES_ON, over(digests=BOTH)]


def test_what_is_missing_is_said_and_waited_for_no_longer_than_the_bound(node: Node) -> None:
    """K-2: a monitor that is silent, one that died, a rank that did."""
    assert node.hears(look(), looked(0)) == [LOOKED]
    late = digest(1, "its monitor did not answer within 1.2 s")
    assert node.at(ANSWER_SHARE) == [Digests("n1", 0, 1, (digest(0), late))]

    node = Node()
    ended = digest(1, end=ENDED, exit_code=-9)
    died = digest(0, "its monitor died")
    assert node.hears(look(), Exited(1, -9), MonitorGone(0)) == [
        LOOKED,
        Digests("n1", 0, 1, (ended, died)),
    ]

    node = Node()
    gone = digest(0, "it has no monitor")
    assert node.hears(MonitorGone(0), Exited(1, -9), look()) == [Digests("n1", 0, 1, (ended, gone))]


def test_a_rank_that_ended_well_or_long_before_is_told_from_one_that_has_just_died(
    node: Node,
) -> None:
    """Only the last one can be what the others wait for: see ``evidence.ENDED``."""
    node.hears(Exited(0, 1))
    node.now += T + 1.0
    node.hears(Exited(1, 0))
    gone_s = T + 1.0
    before = digest(0, end=ENDED_BEFORE, exit_code=1, ended_before_s=gone_s, stopped_s=gone_s)
    well = digest(1, end=ENDED_WELL, exit_code=0)
    assert node.hears(look()) == [Digests("n1", 0, 1, (before, well))]


def test_a_rank_that_ended_when_it_was_stopped_is_not_what_another_one_waits_for(
    node: Node,
) -> None:
    """One that does not end is found hung meanwhile; the user may have stopped the job."""
    node.hears(Sent((0, 1), 2), Exited(1, -2), overdue(0), look())
    effects = node.hears(looked(0))
    assert Digests("n1", 0, 1, (digest(1, end=BEING_STOPPED), digest(0))) in effects


def test_a_monitor_that_was_started_anew_is_asked_again(node: Node) -> None:
    """It finds the rank overdue, as the last one did, or it is only there."""
    node.hears(MonitorGone(0), MonitorGone(1))
    again = [asked(k) for k in (0, 1)]
    assert node.hears(overdue(0), MonitorSaid(0, monitor_messages.MonitorReady()), look()) == [
        Suspect("n1", 0, 2, 0),
        again[0],
    ]
    assert node.hears(MonitorSaid(1, monitor_messages.MonitorReady()), overdue(1)) == [again[1]]
    assert node.hears(looked(0), looked(1)) == [Digests("n1", 0, 1, (digest(1), digest(0)))]


def test_a_launcher_that_hears_nothing_of_the_leader_judges_alone_in_time(node: Node) -> None:
    assert node.hears(overdue(0)) == [Suspect("n1", 0, 2, after=0)]
    assert node.at(ALONE_SHARE) == [LOOKED]
    assert node.hears(looked(0), looked(1)) == []
    goes_on, written = node.at(JUDGE_SHARE)

    assert isinstance(goes_on, ToMonitors)
    assert isinstance(written, IncidentOver)
    assert written.without == "the other nodes: not asked: the leader sent no verdict within 1.9 s"
    assert sorted(written.digests) == [2, 3]

    assert node.hears(look()) == [Digests("n1", 0, 1, BOTH)], "it was late, and is answered at once"
    (written,) = node.hears(judged())
    assert isinstance(written, IncidentOver)
    assert (written.verdict, sorted(written.digests)) == (VERDICT, [2, 3])


def test_ranks_that_are_being_stopped_are_waited_for_only_if_they_hang(node: Node) -> None:
    """Nobody else is asked; the evidence of the one that hangs is not given up."""
    assert node.hears(overdue(0), look(), Sent((0, 1), 15)) == [Suspect("n1", 0, 2, 0), LOOKED]
    answered, goes_on, written = node.hears(looked(0))
    assert isinstance(answered, Digests)
    assert [one.end for one in answered.digests] == [BEING_STOPPED, ""]
    assert isinstance(goes_on, ToMonitors)
    assert isinstance(written, IncidentOver)

    node = Node()
    assert node.hears(Sent((0, 1), 15), overdue(1)) == [asked(1)]
    assert [type(one) for one in node.hears(looked(1))] == [ToMonitors, IncidentOver]


def test_a_rank_that_is_overdue_soon_after_the_verdict_belongs_to_it(node: Node) -> None:
    """Later it is another incident; in the next cycle at once."""
    node.hears(look(), looked(0), looked(1), judged())
    node.now += JOINS_S - 1.0
    goes_on = let_go_on(1)
    assert node.hears(overdue(1)) == [goes_on, over(1, digests=BOTH)]
    node.now += 1.0
    assert node.hears(overdue(0)) == [Suspect("n1", 0, 2, after=1)]

    node.lives.start_cycle(1, range(2, 4), node.now)
    node.evidence.start_cycle(Round(1, PLACES, world_size=4), PLACES[1], node.lives.here)
    assert node.hears(overdue(0), looked(0), look(2), judged(1)) == []
    assert node.hears(overdue(0, cycle=1)) == [Suspect("n1", 1, 2, after=2)]


@pytest.mark.parametrize("is_pause", [True, False])
def test_a_chosen_timeout_that_runs_out_while_steps_are_looked_at_has_its_own_incident(
    node: Node, is_pause: bool
) -> None:
    """Rank 2 is between two sections, and rank 3 waits for it in one, for a minute as well."""
    clock = PAUSE if is_pause else STEP
    assert node.hears(overdue(0, clock=clock)) == [Suspect("n1", 0, 2, 0, clock)]
    opened = OpenIncident(1, 0, "n1", 2, is_gentle=is_pause)
    (looks,) = node.hears(opened)
    assert isinstance(looks, ToMonitors)
    assert [it.is_gentle for it in looks.messages.values()] == [is_pause] * 2
    node.hears(looked(0), looked(1), overdue(1))
    found = Verdict(is_pause=is_pause, is_stall=not is_pause)
    goes_on, written, suspects = node.hears(Judged(1, 0, found))
    assert isinstance(goes_on, ToMonitors)
    assert [*goes_on.messages] == [0]
    assert isinstance(written, IncidentOver)
    assert written.overdue == (0,)
    assert suspects == Suspect("n1", 0, 3, 1)
    node.hears(look(2))
    _, goes_on, written = node.hears(looked(0, 2), looked(1, 2), judged(2))
    assert isinstance(goes_on, ToMonitors)
    assert [*goes_on.messages] == [0, 1]
    assert isinstance(written, IncidentOver)
    assert written.overdue == (1,)


def test_a_verdict_that_comes_before_a_look_is_over_is_not_held_up(node: Node) -> None:
    """A launcher that was late answers late, and writes down what comes."""
    lacks = [digest(k, "its monitor had not answered when the verdict came") for k in (0, 1)]
    assert node.hears(look(), judged()) == [LOOKED, GOES_ON, over(digests=(lacks[0], lacks[1]))]
    assert node.hears(looked(1)) == [over(digests=(lacks[0], digest(1)))]


def test_a_rank_that_recovers_is_no_reason_to_ask_anybody(node: Node) -> None:
    recovered = MonitorSaid(0, monitor_messages.Recovered(0))
    assert node.hears(overdue(0), recovered) == [Suspect("n1", 0, 2, 0)]
    assert node.evidence.next_deadline() is None


def test_of_thousands_of_nodes_few_speak_when_all_are_overdue() -> None:
    """Each has its turn; who hears meanwhile that the incident is open says nothing."""
    places = tuple(CyclePlace(f"n{k}", k, 2, 2 * k, "") for k in range(2048))
    node = Node(places, 2000)
    assert node.hears(overdue(0)) == []
    assert node.evidence.next_deadline() == pytest.approx(100.0 + 2000 * TURN_S)
    assert node.hears(look()) == [asked(0, 1, first=4000)]

    node = Node(places, 2000)
    node.hears(overdue(0))
    node.now += 0.2
    assert node.hears(TimePassed()) == [Suspect("n2000", 0, 4000, 0)]


def test_without_a_timeout_nobody_is_asked() -> None:
    assert NodeEvidence().handle(overdue(0), 1.0) == []


def notifies(*effects: object) -> list[bool]:
    return [effect.notifies for effect in effects if isinstance(effect, IncidentOver)]


def test_of_an_incident_that_the_leader_judged_its_node_notifies_people(node: Node) -> None:
    """The launcher where it lives adds that (transcripts/hang.txt): not one message per node."""
    node.hears(overdue(1), look(), looked(0), looked(1))
    assert notifies(*node.hears(judged())) == [False]


def test_a_launcher_without_a_leader_notifies_people_itself(node: Node) -> None:
    """Nobody else may know of the incident: at least one message."""
    node.hears(overdue(0))
    node.at(ALONE_SHARE)
    node.hears(looked(0), looked(1))
    assert notifies(*node.at(JUDGE_SHARE)) == [True]
    assert notifies(*node.hears(look(), judged())) == [True], "it has, and does not forget it"


def test_of_nodes_that_are_being_stopped_those_of_a_culprit_notify_people() -> None:
    """Ranks of all the others may be overdue, because they wait for it."""
    for places, told in (({"state": "T"}, True), ({"call": "wait x.py:1"}, False)):
        node = Node()
        shown = RankDigest(3, "gpu-1", 1, place="f x.py:1", **places)
        node.hears(Sent((0, 1), 15), overdue(1))
        assert notifies(
            *node.hears(MonitorSaid(1, monitor_messages.EvidenceCollected(1, 0, shown)))
        ) == [told], places
