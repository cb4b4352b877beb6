"""Ranks that nobody gave a timeout: a stall is reported, and ranks are ended at proof alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.evidence.pure import evidence as e
from holdfast.evidence.pure.evidence import GroupDigest, RankDigest, Verdict
from holdfast.evidence.pure.stall import MARGIN_S, has_moved, marks
from holdfast.evidence.pure.stall_rules import StallRules
from holdfast.job.pure.incidents import Incidents, verdict_on
from holdfast.job.pure.membership import CyclePlace, Digests, Round, Suspect
from holdfast.page.pure.clocks import PAUSE, STEP

FLOOR_S = 600.0
RULES = StallRules(FLOOR_S)


def group(
    call: str = "", seq: int = 21, name: str = "0 gloo", members: str = "0,1", **more: Any
) -> GroupDigest:
    """One in which a rank waits, or (without a call) has ended what came before."""
    if not call:
        return GroupDigest(name, members, seq - 1, seq - 1, **more)
    told: dict[str, Any] = {"n_pending": 1, "waits_s": 605.0, "timeout_s": 7200.0, **more}
    return GroupDigest(name, members, seq, seq - 1, pending=call, seq=seq, **told)


def waits(rank: int, *groups: GroupDigest, call: str = "barrier", **more: Any) -> RankDigest:
    """One whose main thread is in a collective."""
    told: dict[str, Any] = {"state": "S", "helper": e.ANSWERED, "overdue": STEP, "pause_s": 605.0}
    told.update(
        is_transfer=call == "recv",
        call=call,
        is_in_collective=True,
        place=f"train t.py:{rank}",
        steps=40,
    )
    return RankDigest(rank, "a", rank, 70 + rank, **{**told, "groups": groups, **more})


def elsewhere(rank: int, **more: Any) -> RankDigest:
    """One that is in no collective, and has begun none that others wait in."""
    told: dict[str, Any] = {"state": "S", "helper": e.ANSWERED, "overdue": STEP, "pause_s": 605.0}
    told.update(place="wait_for w.py:7", steps=40, groups=(group(),))
    return RankDigest(rank, "a", rank, 70 + rank, **{**told, **more})


def gone(rank: int, end: str, exit_code: int | None = 0, ago_s: float = 605.0) -> RankDigest:
    return RankDigest(rank, "a", rank, end=end, exit_code=exit_code, stopped_s=ago_s)


def verdict(*ranks: RankDigest, rules: StallRules = RULES, why_not: str = "") -> Verdict:
    return verdict_on({it.rank: it for it in ranks}, {}, "", rules, why_not)


BARRIER = group("barrier Float[1]")


@pytest.mark.parametrize(
    "shows",
    [
        {"waits_for": "pipe"},  # lines of a child; os.popen().read()
        {"waits_for": "lock"},  # queue.get, join: a thread in recv, or in subprocess.run
        {"waits_for": "sleep"},  # retry back-off, polling, one long sleep
        {"waits_for": "socket or pipe", "is_in_loader": True},  # its worker is in recv
        {"waits_for": "file lock"},
        {"waits_for": e.FILE, "file": "/data/x.fifo", "wchan": "pipe_read"},
        {"waits_for": "debugger"},
        {"waits_for": ""},
        {"state": "t", "stopped_s": 900.0},  # a debugger has stopped it
        {"state": "T", "stopped_s": 5.0},  # a moment ago
        {"state": "D"},
        {"state": "R"},
        {"helper": e.SILENT, "groups": ()},  # holds the interpreter's lock
        {"groups": ()},
    ],
    ids=str,
)
def test_a_rank_that_waits_for_something_outside_is_reported_and_left_alone(shows) -> None:
    """Each of these was killed at 600 s, and would have gone on under torchrun."""
    found = verdict(waits(0, BARRIER), elsewhere(1, **shows))
    assert not found.is_hang
    assert found.is_stall
    if shows.get("state") != "D":  # half of the ranks: then it is the disk
        assert found.culprits == (1,), "the rank that the others wait for is named"
    assert "nothing proves that it hangs" in found.why_alone


TIE = (
    waits(0, group("all_reduce Float[4]"), call="all_reduce"),
    waits(1, group("broadcast Float[4]"), call="broadcast"),
)
HAS_LEFT_ONE_OUT = (
    waits(0, BARRIER),
    waits(1, group("all_reduce Float[4]", 22, last="broadcast Float[4]"), call="all_reduce"),
)
CIRCLE = (
    waits(0, group("all_reduce Float[1]", 7, "1 gloo"), group(seq=9, name="2 gloo")),
    waits(1, group("all_reduce Float[1]", 9, "2 gloo"), group(seq=7, name="1 gloo")),
)
CIRCLE = tuple(RankDigest(**{**vars(it), "call": "all_reduce"}) for it in CIRCLE)
RECEIVES = tuple(
    waits(
        rank,
        group(f"recv {rank}<-{1 - rank}", n_transfers=1, peers=str(1 - rank), name="0 ucc"),
        call="recv",
    )
    for rank in (0, 1)
)
STOPPED = (waits(0, BARRIER), elsewhere(1, state="T", stopped_s=605.0, groups=()))
NOT_ENDED = (
    waits(0, group("barrier Float[1]", waits_s=7200 + MARGIN_S + 5, timeout_s=7200)),
    elsewhere(1),
)
PROOFS = {
    "mismatch of two": (TIE, "ranks 0,1 have called collective 21 of group 0 gloo as different"),
    "one was left out": (HAS_LEFT_ONE_OUT, "collective 21 of group 0 gloo as different"),
    "circle of groups": (CIRCLE, "ranks 0,1 wait in a circle"),
    "circle of receives": (RECEIVES, "ranks 0,1 wait in a circle"),
    "stopped": (STOPPED, "rank 1 has been stopped, 605.0 s ago, and others wait for it"),
    "stopped, a receive": (
        (waits(0, call="recv"), STOPPED[1]),
        "rank 1 has been stopped, 605.0 s ago",
    ),
    "left with 0": (
        (waits(0, BARRIER), gone(1, e.ENDED_WELL)),
        "rank 1 has ended, 605.0 s ago, and others wait for it",
    ),
    "torch has not ended it": (NOT_ENDED, "in a group whose timeout is 7200 s"),
}


@pytest.mark.parametrize(("ranks", "proof"), PROOFS.values(), ids=PROOFS)
def test_ranks_are_ended_where_no_time_can_help(ranks, proof) -> None:
    found = verdict(*ranks)
    assert proof in found.proof
    assert (found.is_hang, found.is_stall, found.why_alone) == (True, False, "")


@pytest.mark.parametrize("ranks", [ranks for ranks, _ in PROOFS.values()], ids=PROOFS)
@pytest.mark.parametrize(
    ("rules", "why_not", "why"),
    [
        (RULES, "no restart is left", "no restart is left"),
        (StallRules(FLOOR_S, ends=False), "", "of --ft-auto-kill never"),
    ],
)
def test_at_proof_no_rank_is_ended_if_the_job_would_not_go_on(ranks, rules, why_not, why) -> None:
    found = verdict(*ranks, rules=rules, why_not=why_not)
    assert (found.is_hang, found.is_stall, found.why_alone) == (False, True, why)
    assert found.proof


@pytest.mark.parametrize("ranks", [ranks for ranks, _ in PROOFS.values()], ids=PROOFS)
def test_nothing_is_proved_before_the_floor(ranks) -> None:
    """A short pause is a line of the log, whatever the ranks show."""
    found = verdict(*(RankDigest(**{**vars(it), "overdue": PAUSE}) for it in ranks))
    assert (found.is_hang, found.is_stall, found.is_pause) == (False, False, True)


@pytest.mark.parametrize("overdue", ["section 'step'", STEP])
def test_a_look_for_a_line_of_the_log_ends_nothing_whatever_runs_out_meanwhile(overdue) -> None:
    """It takes no stacks of ranks that go on, so the other clock has an incident of its own."""
    stopped = elsewhere(1, state="T", stopped_s=605.0, overdue=PAUSE)
    ranks = waits(0, BARRIER, overdue=overdue), stopped
    found = verdict_on({it.rank: it for it in ranks}, {}, PAUSE, RULES)
    assert (found.is_pause, found.is_hang, found.is_stall) == (True, False, False)
    assert not verdict(*ranks).is_pause


@pytest.mark.parametrize("ranks", [ranks for ranks, _ in PROOFS.values()], ids=PROOFS)
def test_a_timeout_that_somebody_chose_needs_no_proof(ranks) -> None:
    ranks = [RankDigest(**{**vars(it), "overdue": "section 'step'"}) for it in ranks]
    found = verdict(*ranks)
    assert (found.is_stall, found.is_pause, found.proof) == (False, False, "")


OTHERS: dict[str, tuple[RankDigest, ...]] = {
    "a third rank works, and forms of one operation may match": (
        waits(0, group("all_gather Float[4]", members="0-2")),
        waits(1, group("_all_gather_base Float[4]", members="0-2")),
        elsewhere(2, state="R"),
    ),
    "a barrier of NCCL is an all_reduce": (
        waits(0, group("barrier Float[1]", name="0 nccl", members="0-2")),
        waits(1, group("all_reduce Float[1]", name="0 nccl", members="0-2")),
        elsewhere(2, state="R", groups=(group(name="0 nccl", members="0-2"),)),
    ),
    "receives that were posted ahead, while a rank computes": tuple(
        elsewhere(rank, groups=(group("recv", n_transfers=1, peers=str(1 - rank), name="0 ucc"),))
        for rank in (0, 1)
    ),
    "receives that were posted ahead, while both wait for a third": (
        *(
            waits(
                rank,
                group("recv", n_transfers=2, n_pending=2, peers=str(1 - rank), members="0-2"),
                call="recv",
            )
            for rank in (0, 1)
        ),
        elsewhere(2, groups=(group(members="0-2"),)),
    ),
    "collectives in flight, while backward computes": tuple(
        RankDigest(**{**vars(it), "call": "backward"}) for it in CIRCLE
    ),
    "a receive that no recorder has, with collectives in flight": tuple(
        RankDigest(**{**vars(it), "call": "recv"}) for it in CIRCLE
    ),
    "a rank that ended well has had its part in a gather": (
        waits(0, group("gather Float[1]", members="0-2"), call="gather"),
        gone(1, e.ENDED_WELL),
        elsewhere(2, state="R", groups=(group(members="0-2"),)),
    ),
    "a rank ended a moment ago": (
        waits(0, BARRIER),
        gone(1, e.ENDED_WELL, ago_s=2.0),
    ),
    "a rank that this node stops": (waits(0, BARRIER), gone(1, e.BEING_STOPPED, None)),
    "a stopped rank that no other waits for": (
        elsewhere(0),
        elsewhere(1, state="T", stopped_s=900.0),
    ),
    "all are stopped": (
        elsewhere(0, state="T", stopped_s=900.0),
        elsewhere(1, state="T", stopped_s=900.0),
    ),
    "all in one collective": (waits(0, BARRIER), waits(1, BARRIER)),
    "torch's watchdog is at work": (
        waits(0, group("barrier", waits_s=7200 + MARGIN_S - 5, timeout_s=7200)),
        elsewhere(1),
    ),
    "the wait is as old as is not known": (
        waits(0, group("barrier", waits_s=0.0, timeout_s=5)),
        elsewhere(1),
    ),
    "a younger wait with a longer timeout": (
        waits(
            0,
            group("barrier", name="1 gloo", waits_s=900, timeout_s=60),
            group("barrier", waits_s=30, timeout_s=7200),
        ),
        elsewhere(1),
    ),
    "the job is one rank": (elsewhere(0),),
}


@pytest.mark.parametrize("ranks", OTHERS.values(), ids=OTHERS)
def test_what_may_still_go_on_proves_nothing(ranks) -> None:
    found = verdict(*ranks)
    assert not found.proof
    assert not found.is_hang
    assert found.is_stall


@pytest.mark.parametrize(
    ("shows", "after_s", "is_hang"),
    [
        ({}, 1800.0, False),
        ({"pause_s": 1900.0}, 1800.0, True),
        ({"pause_s": 1900.0}, None, False),
        ({"pause_s": 1900.0, "state": "R"}, 1800.0, True),
    ],
)
def test_auto_kill_after_ends_a_rank_that_others_wait_for(shows, after_s, is_hang) -> None:
    rules = StallRules(FLOOR_S, after_s=after_s)
    waiting = waits(0, BARRIER, pause_s=shows.get("pause_s", 605.0))
    assert verdict(waiting, elsewhere(1, **shows), rules=rules).is_hang is is_hang
    nobody_waits = elsewhere(0, pause_s=1900.0), elsewhere(1, **shows)
    assert not verdict(*nobody_waits, rules=rules).is_hang


def test_a_rank_whose_steps_still_come_is_not_ended_after_a_time() -> None:
    """It is the shortest of all pauses that counts, and a section with a timeout has its own."""
    rules = StallRules(FLOOR_S, after_s=1800.0)
    waiting = waits(0, BARRIER, pause_s=9000.0)
    for there, is_hang in (
        ({"pause_s": 30.0}, False),
        ({"pause_s": 9000.0}, True),
        ({"pause_s": 9000.0, "section": "epoch"}, True),  # it has none
        ({"pause_s": 0.0, "section": "save", "overdue": ""}, False),
    ):
        assert verdict(waiting, elsewhere(1, **there), rules=rules).is_hang is is_hang, there


@pytest.mark.parametrize(
    ("ranks", "rules", "again_s"),
    [
        ((waits(0, BARRIER), elsewhere(1)), RULES, 7200 + MARGIN_S - 605),
        ((waits(0, BARRIER), elsewhere(1, state="T", stopped_s=540.0)), RULES, 60.0),
        ((waits(0, BARRIER), elsewhere(1)), StallRules(FLOOR_S, after_s=1800.0), 1195.0),
        ((elsewhere(0), elsewhere(1)), RULES, 0.0),
    ],
)
def test_the_next_look_comes_when_one_more_fact_may_be_known(ranks, rules, again_s) -> None:
    assert verdict(*ranks, rules=rules).again_s == pytest.approx(again_s)


CALLS = st.sampled_from(["barrier", "all_reduce", "broadcast", "recv", "backward", "", "wait"])
GROUPS = st.builds(
    lambda call, seq, name, waits_s: group(call, seq, name, "0-2", waits_s=waits_s),
    st.sampled_from(["", "all_reduce Float[4]"]),
    st.integers(5, 6),
    st.sampled_from(["0 gloo", "1 gloo"]),
    st.floats(1.0, 700.0),
)


@given(st.lists(GROUPS, max_size=2), st.lists(GROUPS, max_size=2), CALLS, CALLS)
@settings(max_examples=300, deadline=None)
def test_d1_while_a_rank_is_outside_of_all_collectives_nothing_is_proved(
    first, second, call, other
) -> None:
    """All call the same operations; rank 2 may yet begin whatever the others wait for."""

    def one(rank: int, groups: list[GroupDigest], call: str) -> RankDigest:
        unique = {it.name: it for it in groups}.values()
        return waits(rank, *unique, call=call, is_in_collective=bool(call))

    third = elsewhere(
        2, groups=(group(seq=1, members="0-2"), group(seq=1, name="1 gloo", members="0-2"))
    )
    found = verdict(one(0, first, call), one(1, second, other), third)
    if found.proof:
        assert "circle" in found.proof
        assert not any(it.n_transfers for it in (*first, *second))
        pending = [{it.name for it in groups if it.pending} for groups in (first, second)]
        assert all(pending), "each of the two waits"


# ------------------------------------------------------------------ one stall, one incident
@dataclass
class Job:
    """The leader's view of two ranks on one node."""

    incidents: Incidents = field(default_factory=lambda: Incidents(1.0, RULES))
    now: float = 0.0

    def __post_init__(self) -> None:
        self.incidents.cycle_began(Round(0, (CyclePlace("a", 0, 2, 0, ""),)))

    def look(self, *ranks: RankDigest) -> Verdict:
        self.now += 100.0
        suspect = Suspect("a", 0, 0, self.incidents.number)
        assert self.incidents.is_news(suspect)
        self.incidents.open(suspect, {"a": "a"}, self.now)
        self.incidents.answered(Digests("a", 0, self.incidents.number, ranks))
        judged = self.incidents.judged(self.now)
        assert judged is not None
        return judged.verdict


STALL = (waits(0, BARRIER), elsewhere(1))


def test_one_stall_is_one_incident_until_a_rank_moves() -> None:
    job = Job()
    first, again = job.look(*STALL), job.look(*STALL)
    assert (first.is_stall, first.is_known) == (True, False)
    assert (again.is_stall, again.is_known) == (True, True)
    # A helper that had no time to answer has not moved.
    assert job.look(waits(0), elsewhere(1)).is_known
    assert not job.look(waits(0, BARRIER, steps=41), elsewhere(1, steps=41)).is_known


def test_a_pause_that_becomes_a_stall_is_reported_as_both_once() -> None:
    job = Job()
    pause = tuple(RankDigest(**{**vars(it), "overdue": PAUSE}) for it in STALL)
    known = [job.look(*ranks).is_known for ranks in (pause, pause, STALL, pause, STALL)]
    assert known == [False, True, False, True, True]


def test_a_stall_that_is_proved_later_is_no_longer_known() -> None:
    job = Job()
    assert job.look(*STALL).is_stall
    proved = job.look(waits(0, BARRIER), elsewhere(1, state="T", stopped_s=605.0))
    assert (proved.is_hang, proved.is_known) == (True, False)


def test_another_cycle_has_stalls_of_its_own() -> None:
    job = Job()
    job.look(*STALL)
    job.__post_init__()
    assert not job.look(*STALL).is_known


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=2))
def test_a_step_or_a_collective_of_any_rank_is_a_move(progress) -> None:
    def one(steps: int, seq: int) -> dict[int, RankDigest]:
        return {0: elsewhere(0, steps=steps, groups=(group(seq=seq),)), 1: elsewhere(1)}

    before, after = (marks(one(*each)) for each in progress)
    assert has_moved(before, after) is (before != after)


def test_a_rank_that_failed_before_it_was_looked_at_proves_nothing_by_that() -> None:
    """Its launcher restarts the job for it."""
    found = verdict(waits(0, BARRIER), gone(1, e.ENDED, -9, 0.01))
    assert not found.proof
