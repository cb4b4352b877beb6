"""When a leader sends a beat, and the news in it."""

from __future__ import annotations

from holdfast.job.pure.leader_beats import LeaderBeats, News
from holdfast.job.pure.leader_lease import LeaderLease
from holdfast.job.pure.nodes import Nodes
from holdfast.job.pure.rounds import Rounds
from holdfast.job.pure.timing import NEWS_S, Pace

PACE = Pace()


def beats() -> LeaderBeats:
    lease = LeaderLease(PACE, "a")
    return LeaderBeats(PACE, 2, lease, Rounds("a", 2, None, Nodes(), lease))


def test_a_beat_is_due_a_while_after_the_last_one_and_at_once_where_launchers_should_know() -> None:
    one = beats()
    first = one.next(10.0)
    assert (first.number, first.term, first.sent_at) == (1, 2, 10.0)
    assert one.at == 10.0 + PACE.beat_s
    one.ask(11.0)
    assert one.at == 11.0
    assert one.next(11.0).number == 2


def test_beats_carry_the_last_cycle_in_which_a_rank_has_reported() -> None:
    one = beats()
    assert one.next(0.0).reported == -1
    one.reported(3)
    one.reported(2)
    assert one.next(1.0).reported == 3


def test_news_goes_out_once_and_not_of_each_change() -> None:
    news = News()
    assert not news.are_due((1,), 0, 10.0)
    assert news.due_at == 10.0 + NEWS_S
    assert not news.are_due((2,), 0, 10.1)
    assert news.are_due((3,), 0, 10.0 + NEWS_S)
    news.text = "three are here"
    assert not news.are_due((3,), 0, 20.0)
    assert (news.number, news.due_at) == (1, None)


def test_news_that_nobody_had_to_wait_for_any_more_keeps_its_number_when_it_is_back() -> None:
    news = News()
    for began in (10.0, 30.0):
        news.are_due((3,), 0, began)
        assert news.are_due((3,), 0, began + NEWS_S)
        news.text = "three are here"
        news.forget()
    assert news.number == 1
