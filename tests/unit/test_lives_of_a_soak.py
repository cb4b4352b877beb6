"""The rules of ``make soak-hosts`` find what they are there for."""

from __future__ import annotations

from tests.host_soak.lives import Awake, Life, Noted, beside_s, broken_rules, lives

LINES = [
    Noted(1.0, "alive", 0, 0, 11, 0),
    Noted(2.0, "step", 0, 0, 11, 1),
    Noted(3.0, "checkpoint", 0, 0, 11, 5),
    Noted(9.0, "alive", 0, 0, 11, 7),
    Noted(5.0, "begins", 1, 0, 12, 5),
    Noted(6.0, "step", 1, 0, 12, 6),
    Noted(7.0, "checkpoint", 1, 0, 12, 10),
]
OLD, NEW = lives(0, LINES)


def test_a_life_is_all_that_a_process_noted() -> None:
    assert Life(0, 0, 0, 11, 1.0, 9.0, -1, 2.0, 7) == OLD
    assert Life(0, 1, 0, 12, 5.0, 7.0, 5, 6.0, 10) == NEW


def test_ranks_of_two_cycles_are_seen_beside_each_other_but_for_the_time_that_one_slept() -> None:
    assert beside_s([OLD, NEW], {}) == {0: 4.0}
    assert beside_s([OLD, NEW._replace(host=1)], {0: 8.5}) == {0: 0.5}
    assert beside_s([OLD, NEW], {0: 9.5}) == {0: 0.0}
    assert beside_s([OLD._replace(last_at=4.9), NEW], {}) == {}
    assert beside_s([OLD], {}) == {}


def test_a_second_owner_and_a_checkpoint_that_goes_back_are_named() -> None:
    assert broken_rules([OLD, NEW], LINES) == []
    again = NEW._replace(host=2, pid=13, first_at=7.5, last_at=8.0)
    assert broken_rules([OLD, NEW, again], LINES) == []
    twice = [OLD, NEW, NEW._replace(host=2, pid=13)]
    assert broken_rules(twice, LINES) == ["rank 0 of cycle 1 had 2 owners: hosts 0, 2"]
    late = [*LINES, Noted(8.0, "checkpoint", 0, 0, 11, 6)]
    assert broken_rules([OLD, NEW], late) == ["cycle 0 wrote step 6 after cycle 1 had written 10"]
    later = [*late, Noted(8.5, "checkpoint", 1, 0, 12, 15)]
    assert len(broken_rules([OLD, NEW], later)) == 1
    lost = [it._replace(step=3) if it.what == "begins" else it for it in LINES]
    assert broken_rules([OLD, NEW], lost) == ["cycle 1 began at step 3 after checkpoint 5"]


def test_a_rank_may_write_an_old_checkpoint_in_the_moment_in_which_its_host_wakes() -> None:
    """It was frozen between a step and its checkpoint; the next cycle begins from what is there."""
    found = ["cycle 0 wrote step 6 after cycle 1 had written 10"]
    new = NEW._replace(host=1)
    late = [*LINES, Noted(8.0, "checkpoint", 0, 0, 11, 6)]
    assert broken_rules([OLD, new], late, [Awake(0, 7.9, 9.0)]) == []
    assert broken_rules([OLD, new], late, [Awake(0, 8.1, 9.0)]) == found
    assert broken_rules([OLD, new], late, [Awake(0, 7.0, 7.9)]) == found
    assert broken_rules([OLD, new], late, [Awake(1, 7.9, 9.0)]) == found
    again = Noted(9.5, "begins", 2, 0, 13, 6)
    next_one = NEW._replace(cycle=2, pid=13, first_at=9.4, last_at=11.0)
    assert broken_rules([OLD, new, next_one], [*late, again], [Awake(0, 7.9, 9.0)]) == []
    older = again._replace(step=5)
    assert broken_rules([OLD, new, next_one], [*late, older], [Awake(0, 7.9, 9.0)]) == [
        "cycle 2 began at step 5 after checkpoint 6"
    ]
