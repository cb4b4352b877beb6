"""When a launcher sends a beat, and the news in it."""

from __future__ import annotations

from holdfast.job.pure.beats import ANSWERING_NODES, Beats
from holdfast.job.pure.membership import Beat, CyclePlace, LeaderBeat, Round, Successor
from holdfast.job.pure.timing import Pace

PACE = Pace()


def formed(nodes: int) -> Round:
    places = tuple(CyclePlace(f"n{k}", k, 1, k, f"10.0.0.{k}") for k in range(nodes))
    return Round(0, places, successors=(Successor("n1", "10.0.0.1", 9),))


def test_a_beat_follows_a_silence_of_this_launcher() -> None:
    one = Beats(PACE)
    one.sent(4.0)
    assert one.at == 4.0 + PACE.beat_s
    assert one.next("n1", 9.0) == Beat("n1")
    assert one.at == 9.0 + PACE.beat_s


def test_it_carries_the_round_the_last_beat_of_the_leader_and_a_rank_that_reported() -> None:
    one = Beats(PACE)
    one.sent(0.0)
    one.on_round(formed(2), "n1", 1.0)
    assert one.at == 1.0
    one.on_leader_beat(LeaderBeat(number=7), 2.0)
    one.reported(0)
    assert one.next("n1", 2.0) == Beat("n1", 0, (0, 0, 0), 7)
    one.leader_changes()
    assert one.next("n1", 2.0).echo == 0


def test_before_the_first_round_no_beat_of_the_leader_is_answered() -> None:
    one = Beats(PACE)
    one.sent(0.0)
    one.on_leader_beat(LeaderBeat(number=1), 1.0)
    assert one.at == PACE.beat_s


def test_in_a_large_job_launchers_answer_one_after_the_other() -> None:
    nodes = 2 * ANSWERING_NODES
    ends = []
    for node in (0, nodes // 2, nodes - 1):
        one = Beats(PACE)
        one.sent(0.0)
        one.on_round(formed(nodes), f"n{node}", 0.0)
        assert one.at == PACE.beat_s, "the round itself is answered with the next beat"
        one.on_leader_beat(LeaderBeat(number=1), 1.0)
        ends.append(one.at)
    assert ends == sorted(set(ends))
    assert ends[-1] < 1.0 + PACE.beat_s / 2


def test_a_leader_without_a_lease_is_answered_at_once_in_a_large_job_too() -> None:
    """All have slept, say, and some wake first and ask: it can give them no time before."""
    one = the_last_to_answer()
    one.on_leader_beat(LeaderBeat(number=2, lease_s=0.0), 1.5)
    assert one.at == 1.5


def the_last_to_answer() -> Beats:
    """Of a large job; it has sent a message, and then been sent a beat of its leader."""
    one, nodes = Beats(PACE), 2 * ANSWERING_NODES
    one.on_round(formed(nodes), "a spare", 0.0)
    one.sent(0.0)
    one.on_leader_beat(LeaderBeat(number=1), 1.0)
    assert one.at == 1.0 + PACE.beat_s / 2
    return one


def test_a_leader_that_beats_often_does_not_silence_a_launcher() -> None:
    """It has news of nodes that come one by one."""
    one = the_last_to_answer()
    one.on_leader_beat(LeaderBeat(number=2), 2.0)
    assert one.at == 1.0 + PACE.beat_s / 2, "the first answer stands"
    assert one.next("a spare", 2.5).echo == 2
    assert one.at == 2.5 + PACE.beat_s
    one.on_leader_beat(LeaderBeat(number=3), 3.0)
    assert one.at == 3.0 + PACE.beat_s / 2


def test_another_message_is_no_answer() -> None:
    """The lease of the leader counts beats: a launcher with much to send sends these as well."""
    one = the_last_to_answer()
    one.sent(2.0)
    assert one.at == 1.0 + PACE.beat_s / 2
    one.leader_changes()
    assert one.at == 2.0 + PACE.beat_s
