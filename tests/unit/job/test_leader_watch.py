"""How long a launcher waits for its leader, and what ends then; on a virtual clock."""

from __future__ import annotations

import math

import pytest

from holdfast.job.pure.leader_watch import LastCycle, LeaderWatch
from holdfast.job.pure.membership import LeaderBeat, Round, StopCycle
from holdfast.job.pure.timing import Pace

PACE = Pace()
STOP = StopCycle(0, "rank 1 died")


def watch() -> LeaderWatch:
    """A decision came at 0 s, when the launcher had joined."""
    one = LeaderWatch(PACE)
    one.begin(0.0)
    one.joined()
    assert not one.received(STOP, 0.0)
    one.handled(0.0, PACE.beat_s)
    return one


def test_each_decision_gives_the_ranks_as_much_time() -> None:
    one = watch()
    for now in (2.0, 5.0):
        one.received(STOP, now)
        assert one.fence_at == now + PACE.fence_s
    assert one.leaves_at == one.fence_at + PACE.return_s


def test_a_beat_gives_them_no_more_than_the_lease_of_the_leader_has_left() -> None:
    one = watch()
    for lease_s, now, until in ((8.0, 3.0, 11.0), (2.0, 6.0, 8.0), (20.0, 9.0, 19.0)):
        one.received(LeaderBeat(lease_s=lease_s), now)
        assert one.fence_at == until
    one.found(0.0, 12.0)
    one.received(STOP, 13.0)
    assert one.fence_at == 13.0 + PACE.fence_s, "the lease was of the leader before"


def beats(one: LeaderWatch, *came: tuple[float, float]) -> float:
    """Until when ranks may run after beats that the leader sent at, and that came at, these."""
    for sent_at, now in came:
        one.received(LeaderBeat(lease_s=14.5, sent_at=sent_at), now)
    return one.fence_at


def test_a_beat_that_is_read_late_gives_them_no_more_than_one_that_is_read_in_time() -> None:
    """Whatever the clock of the leader says: it is compared with itself."""
    one = watch()
    assert beats(one, (1003.0, 3.0), (1006.0, 6.0)) == 6.0 + PACE.fence_s
    assert beats(one, (1009.0, 12.5)) == 9.0 + PACE.fence_s, "its launcher was stopped"
    one.received(STOP, 12.6)
    assert one.fence_at == 9.0 + PACE.fence_s, "that may be as old"
    assert beats(one, (1012.7, 12.7)) == 12.7 + PACE.fence_s
    one.found(0.0, 14.0)
    assert beats(one, (77.0, 15.0)) == 15.0 + PACE.fence_s, "another leader, another clock"


def test_a_clock_of_the_leader_that_stood_still_costs_time_for_one_silence_only() -> None:
    """Of a machine that was moved to another host, for example."""
    one = watch()
    beats(one, (1003.0, 3.0))
    lost = [now + PACE.fence_s - beats(one, (1000.0 + now - 4.0, now)) for now in range(10, 25, 3)]
    assert lost == [4.0] * 3 + [0.0] * 2


def test_a_beat_gives_less_time_to_a_launcher_of_which_the_leader_has_nothing_new() -> None:
    """It was stopped for a while, and the leader counts from its last message."""
    one = watch()
    one.sent(3.0)
    assert beats(one, (1003.5, 3.5)) == 3.5 + PACE.fence_s
    assert beats(one, (1008.5, 8.5)) == 3.0 + PACE.beat_s + PACE.fence_s
    one.sent(8.6)
    assert beats(one, (1011.0, 11.0)) == 11.0 + PACE.fence_s


def test_monitors_end_the_ranks_later_than_the_launcher() -> None:
    one = watch()
    assert one.fence_at < one.killed_at(are_ended=False) < one.killed_at(are_ended=True)


def test_after_a_sleep_it_asks_once_and_an_answer_gives_no_more_time_than_that() -> None:
    one = watch()
    one.woke(40.0)
    assert one.fence_at == 40.0 + PACE.ask_s
    assert one.may_be_old(40.0)
    one.received(LeaderBeat(lease_s=0.0), 41.0)
    assert one.fence_at == 40.0 + PACE.ask_s, "the leader asks, too"
    one.received(STOP, 42.0)
    assert one.fence_at == 42.0 + PACE.ask_s
    one.joined()
    assert not one.may_be_old(42.0), "a round with this node follows its join"


@pytest.mark.parametrize("slept_s", [PACE.beat_s + 0.1, 9.0, 3600.0])
def test_however_long_it_slept_it_waits_as_long_for_an_answer(slept_s: float) -> None:
    """All hosts may have slept, the leader's for a little longer."""
    one = watch()
    one.woke(PACE.beat_s + slept_s)
    assert one.fence_at == max(PACE.fence_s, PACE.beat_s + slept_s + PACE.ask_s)


def test_a_second_sleep_without_an_answer_gives_the_ranks_no_time_and_the_launcher_all_of_it() -> (
    None
):
    """Others may have the places of its ranks; without ranks it waits as long as it is awake."""
    one = watch()
    one.woke(40.0)
    fence_at = one.fence_at
    one.handled(41.0, 43.0)
    one.woke(1043.0)
    assert (one.fence_at, one.leaves_at) == (fence_at, fence_at + 1000.0 + PACE.return_s)
    one.handled(1043.1, 1045.0)
    one.woke(1145.0)
    assert one.leaves_at == fence_at + 1100.0 + PACE.return_s
    one.found(0.0, 1146.0)
    assert one.leaves_at == one.fence_at + PACE.return_s


def test_it_does_not_ask_a_leader_that_lives_in_its_launcher_and_has_a_lease() -> None:
    """No decision of that is older than the sleep, as far as its lease goes."""
    one = watch()
    one.woke(40.0)
    one.received(LeaderBeat(lease_s=11.0), 40.1, own_lease_s=8.0)
    assert one.fence_at == 40.1 + 8.0
    assert not one.may_be_old(40.1)


def test_a_leader_that_lives_in_its_launcher_needs_no_message_of_it() -> None:
    """After a sleep of the whole job, which its lease outlived."""
    one = watch()
    one.sent(1.0)
    one.woke(40.0)
    one.received(LeaderBeat(lease_s=11.0, sent_at=40.1), 40.1, own_lease_s=11.0)
    assert one.fence_at == 40.1 + PACE.fence_s


def test_a_lease_that_is_nearly_over_takes_no_time_from_a_launcher_that_asks() -> None:
    """The others may have slept as well, and answer a little later."""
    one = watch()
    one.woke(12.0)
    one.received(LeaderBeat(lease_s=1.0), 12.1, own_lease_s=1.0)
    assert one.fence_at == 12.0 + PACE.ask_s
    one.received(LeaderBeat(lease_s=14.0), 14.0, own_lease_s=14.0)
    assert one.fence_at == 14.0 + PACE.fence_s


def test_a_delay_of_a_beat_is_no_sleep() -> None:
    one = watch()
    one.woke(2 * PACE.beat_s)
    assert one.fence_at == PACE.fence_s


def test_while_it_asks_a_shorter_delay_is_a_sleep_if_the_leader_has_answered_since() -> None:
    late_s = PACE.beat_s / 2
    for answers, until in ((False, 40.0 + PACE.ask_s), (True, 46.0 + late_s)):
        one = watch()
        one.woke(40.0)
        if answers:
            one.received(STOP, 40.1)
        one.handled(40.2, 46.0 - late_s)
        one.woke(46.0)
        assert one.fence_at == until


def test_a_decision_after_a_silence_may_be_older_than_it() -> None:
    one = watch()
    assert one.received(STOP, PACE.fence_s)
    assert one.may_be_old(PACE.fence_s)
    assert one.silent_s == PACE.fence_s
    assert not one.received(STOP, PACE.fence_s + PACE.ask_s - 0.1)
    assert not one.may_be_old(PACE.fence_s + PACE.ask_s)


def test_it_votes_after_a_silence_once_and_never_for_a_leader_that_is_lost() -> None:
    one = watch()
    assert one.missing_at(ended_well=False) == PACE.fence_s
    assert one.missing_at(ended_well=True) == PACE.silence_s
    assert one.reported(12.0) == 12.0
    assert one.missing_at(ended_well=False) == math.inf
    one.received(STOP, 13.0)
    assert one.missing_at(ended_well=False) > 13.0
    one.lost(14.0)
    assert one.missing_at(ended_well=False) == math.inf
    assert LeaderWatch(PACE).missing_at(ended_well=False) == math.inf, "it has met none"


@pytest.mark.parametrize(
    ("silent_s", "slept_s", "text"),
    [
        (1.0, 0.0, "the leader of the job has not had an answer"),
        (11.0, 0.0, "no message from the leader of the job for 11.0 s"),
        (11.0, 30.0, "for 11.0 s, in 30.0 s of which this launcher did nothing itself"),
    ],
)
def test_the_reason_names_the_silence(silent_s: float, slept_s: float, text: str) -> None:
    one = watch()
    if slept_s:
        one.woke(slept_s)
    assert text in one.why_silent(silent_s)


def test_a_last_cycle_is_certain_when_no_round_was_missed_or_it_is_settled() -> None:
    first = Round(0, (), is_last=True)
    one = LastCycle()
    one.began(first)
    one.received(first)
    assert one.is_certain
    one.began(Round(1, (), is_last=True, after=first.version))
    assert one.is_certain
    one.began(Round(5, (), is_last=True, after=(0, 4, 0)))
    assert not one.is_certain
    one.settled((), 5)
    one.settled((0, 4, 0), 5)
    assert not one.is_certain
    one.settled((0, 5, 0), 5)
    assert one.is_certain
    one.began(Round(6, (), after=(0, 5, 0)))
    one.settled((0, 6, 0), 6)
    assert not one.is_certain
