"""Which ranks hold up a job, by what all of them show."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.base.pure.rank_sets import text_of
from holdfast.evidence.pure import evidence as e
from holdfast.evidence.pure.evidence import (
    ANSWERED,
    SILENT,
    Absence,
    GroupDigest,
    Missing,
    RankDigest,
    Verdict,
)
from holdfast.evidence.pure.verdict import judge

IDLE = {"state": "S", "helper": ANSWERED}


def group(
    seq: int, op: str = "all_reduce Float[8]", name: str = "0 gloo", n: int = 4, **more: Any
) -> GroupDigest:
    """A collective that has begun and not ended."""
    members = more.pop("members", text_of(range(n)))
    return GroupDigest(name, members, seq, seq - 1, pending=op, seq=seq, **more)


def done(seq: int, name: str = "0 gloo", n: int = 4, members: str = "") -> GroupDigest:
    """The last one has ended."""
    return GroupDigest(name, members or text_of(range(n)), seq, seq)


def rank(number: int, *groups: GroupDigest, **shows: Any) -> RankDigest:
    """Two ranks on each node."""
    shown = {**IDLE, "place": "train train.py:9", "stack": "aa", **shows}
    return RankDigest(number, f"n{number // 2}", number % 2, 100 + number, groups=groups, **shown)


def waiter(number: int, seq: int = 21, **shows: Any) -> RankDigest:
    """In an all_reduce, as its stacks say, too."""
    return rank(number, group(seq), is_in_collective=True, call="all_reduce", **shows)


def on(*ranks: RankDigest, **missing: Missing) -> Verdict:
    return judge({digest.rank: digest for digest in ranks}, missing)


def others(but: int, **shows: Any) -> list[RankDigest]:
    return [waiter(number, **shows) for number in range(4) if number != but]


WAITS = "; 3 other ranks wait for it in `all_reduce`"


@pytest.mark.parametrize(
    ("shows", "kind", "how"),
    [
        (
            {"waits_for": "lock", "place": "load_batch data.py:88"},
            e.WAITING,
            "waits for a lock in `load_batch` data.py:88",
        ),
        ({"waits_for": "sleep"}, e.WAITING, "sleeps in `train` train.py:9"),
        (
            {"waits_for": e.FILE, "file": "/data/x.fifo"},
            e.WAITING,
            "waits for /data/x.fifo in `train` train.py:9",
        ),
        (
            {"waits_for": "terminal", "place": "ask train.py:3"},
            e.WAITING,
            "waits for the terminal in `ask` train.py:3",
        ),
        (
            {"state": "T", "helper": SILENT, "place": ""},
            e.STOPPED,
            "is stopped (by SIGSTOP or a debugger)",
        ),
        (
            {"state": "D", "wchan": "nfs_wait", "helper": SILENT},
            e.KERNEL,
            "is stuck in the kernel (state D in nfs_wait) in `train` train.py:9",
        ),
        (
            {
                "helper": SILENT,
                "state": "R",
                "cpu": 1.0,
                "place": "parse text.py:5",
                "call": "match",
            },
            e.INTERPRETER,
            "holds the interpreter's lock in `parse` text.py:5, in its call of `match`",
        ),
        (
            {"state": "R", "cpu": 0.98, "place": "spin train.py:7"},
            e.COMPUTING,
            "runs in `spin` train.py:7 (98% of a CPU)",
        ),
        (
            {"state": "D", "waits_for": e.THAW, "wchan": "hrtimer_nanosleep", "helper": SILENT},
            e.STOPPED,
            "is frozen by its control group",
        ),
        (
            {
                "waits_for": "other process",
                "call": "recv",
                "worker": "pid 9, state S, work x.py:4",
            },
            e.WAITING,
            (
                "waits for another process in `train` train.py:9, in its call of `recv`: its child "
                "process pid 9, state S, work x.py:4"
            ),
        ),
        ({"call": "send"}, e.WAITING, "waits in `train` train.py:9, in its call of `send`"),
        (
            {"waits_for": "lock", "place": "fit x.py:3", "is_main_thread": False},
            e.WAITING,
            "waits for a lock in `fit` x.py:3, in another thread than its main one",
        ),
        ({"switches": 9}, e.COMPUTING, "runs in `train` train.py:9 (in small steps)"),
        (
            {"is_in_loader": True, "place": "load d.py:4", "worker": "pid 9, state S, read d.py:4"},
            e.LOADER,
            "waits for a data loader in `load` d.py:4: worker pid 9, state S, read d.py:4",
        ),
        (
            {"is_in_collective": True, "call": "backward"},
            e.NATIVE,
            "is in native code in `train` train.py:9, in its call of `backward`",
        ),
    ],
)
def test_the_rank_that_others_wait_for_is_named_with_how_it_hangs(
    shows: dict[str, Any], kind: str, how: str
) -> None:
    """Whichever of them was overdue first."""
    culprit = rank(2, done(20), **shows)
    verdict = on(culprit, *others(2, overdue="section 'step'"))

    assert (verdict.culprits, verdict.kind, verdict.confidence) == ((2,), kind, e.HIGH)
    assert verdict.reason == f"rank 2 (pid 102, node n1) {how}{WAITS}"
    assert verdict.groups[0].ranks == "2"
    assert [(it.ranks, it.count, it.doing) for it in verdict.groups[1:]] == [
        ("0,1,3", 3, "in `all_reduce`")
    ]


def test_a_rank_that_has_ended_is_the_reason() -> None:
    """Whatever the others show."""
    gone = RankDigest(1, "n0", 1, end=e.ENDED, exit_code=0)
    verdict = on(gone, *others(1))

    assert (verdict.culprits, verdict.kind, verdict.confidence) == ((1,), e.DEAD, e.HIGH)
    assert verdict.reason == (
        f"rank 1 (node n0) has ended (its process has ended: exit code 0){WAITS}"
    )


def test_a_node_without_an_answer_has_not_begun_what_the_others_wait_in() -> None:
    here = [waiter(0), waiter(1)]
    verdict = on(*here, n1=Missing("2,3", Absence.NO_ANSWER, "did not answer within 0.8 s"))

    assert (verdict.culprits, verdict.kind, verdict.nodes) == ((2, 3), e.MISSING, ("n1",))
    assert verdict.reason == (
        "node n1 (ranks 2,3) does not answer: did not answer within 0.8 s; "
        "2 other ranks wait for them in `all_reduce`"
    )


def test_a_node_that_was_not_asked_is_not_blamed() -> None:
    """Its launcher may be stopped, and its ranks wait for others that nobody could ask either."""
    verdict = on(
        waiter(0), waiter(1), n1=Missing("2,3", Absence.NOT_ASKED, "not asked: no verdict came")
    )

    assert (verdict.culprits, verdict.kind) == ((), e.MISSING)
    assert verdict.reason == (
        "ranks 0,1 wait in `all_reduce` for ranks 2,3, of which nothing is known: not asked: no "
        "verdict came"
    )
    free = rank(1, done(20), waits_for="lock")
    assert on(
        waiter(0), free, n1=Missing("2,3", Absence.NOT_ASKED, "not asked: no verdict came")
    ).culprits == (1,)


def test_a_rank_that_shows_nothing_is_not_named_beside_one_that_shows_its_hang() -> None:
    """One waiter's monitor was late."""
    late = RankDigest(3, "n1", 1, lacks="its monitor did not answer within 0.6 s")
    verdict = on(waiter(0), waiter(1), rank(2, done(20)), late)

    assert (verdict.culprits, verdict.confidence) == ((2,), e.MEDIUM)


@pytest.mark.parametrize("is_sure", [True, False])
def test_a_waiter_that_had_no_time_to_answer_is_not_named(*, is_sure: bool) -> None:
    """On a busy machine; its stacks say that it waits, where the culprit's do not."""
    late = rank(3, helper=SILENT, is_in_collective=True, call="backward")
    culprit = rank(2, done(20)) if is_sure else rank(2, helper=SILENT)
    verdict = on(waiter(0), waiter(1), culprit, late)

    assert (verdict.culprits, verdict.confidence) == ((2,), e.MEDIUM)


def test_ranks_that_wait_for_one_that_waits_itself_are_not_named() -> None:
    """0 and 1 wait in their own group for 1, which waits for 2 in another one."""
    verdict = on(
        rank(0, group(5, name="1 gloo", members="0,1")),
        rank(1, done(4, "1 gloo", members="0,1"), group(9, name="2 gloo", members="1-3")),
        rank(2, done(8, "2 gloo", members="1-3"), waits_for="lock"),
        rank(3, group(9, name="2 gloo", members="1-3")),
    )

    assert (verdict.culprits, verdict.kind, verdict.confidence) == ((2,), e.WAITING, e.HIGH)


def test_a_send_that_is_awaited_names_its_sender() -> None:
    """NCCL's recorder has sends and receives."""
    waits = GroupDigest("0 nccl", "0-3", 20, 20, pending="recv Float[4]", seq=20, peers="1")
    verdict = on(rank(0, waits), *(rank(number, done(20, "0 nccl")) for number in (1, 2, 3)))

    assert verdict.culprits == (1,)


def test_a_receive_that_no_recorder_has_is_not_taken_for_a_culprit() -> None:
    """Gloo's does not have them: rank 2 waits for a rank that is not known."""
    verdict = on(
        *others(2), rank(2, done(20), call="recv", is_in_collective=True, is_transfer=True)
    )

    assert (verdict.culprits, verdict.kind) == ((), e.MISMATCH)
    assert verdict.reason == (
        "rank 2 (pid 102, node n1) waits in `train` train.py:9, in its call of `recv` for a rank "
        "that torch does not record; 3 other ranks wait for it in `all_reduce`"
    )


TRANSFER = {"call": "req.wait", "is_transfer": True, "waits_for": "lock"}
AT_STORE = {"call": "store.wait", "waits_for": e.STORE, "place": "meet train.py:30"}
STORE_WAITS = "wait for a key of torch's store in `meet` train.py:30, in its call of `store.wait`"


def test_a_rank_is_named_though_its_peers_are_in_receives_that_no_recorder_has() -> None:
    """A ring: its neighbours wait in ``req.wait()``, which has no frame of torch's."""
    sleeps = rank(1, done(20), waits_for="sleep")
    ring = [rank(n, done(20), **TRANSFER) for n in (0, 2)]
    for third in (waiter(3), rank(3, done(20), **TRANSFER)):
        verdict = on(sleeps, *ring, third)

        assert (verdict.culprits, verdict.kind) == ((1,), e.WAITING)
        assert "wait in a send or receive in `train` train.py:9, in its call of `req.wait`" in (
            verdict.reason
        )


def test_the_few_that_do_not_wait_at_the_store_are_named() -> None:
    """All others wait for a key."""
    verdict = on(rank(1, done(20), waits_for="sleep"), *(rank(n, **AT_STORE) for n in (0, 2, 3)))

    assert (verdict.culprits, verdict.kind, verdict.confidence) == ((1,), e.WAITING, e.MEDIUM)
    assert verdict.reason == (
        f"rank 1 (pid 101, node n0) sleeps in `train` train.py:9; 3 other ranks {STORE_WAITS}"
    )


def test_a_rank_at_the_store_is_named_where_all_others_wait_for_it() -> None:
    """But not beside one that may have to set the key."""
    verdict = on(*others(1), rank(1, done(20), **AT_STORE))
    assert (verdict.culprits, verdict.confidence) == ((1,), e.HIGH)
    assert verdict.reason.startswith(
        f"rank 1 (pid 101, node n0) {STORE_WAITS.replace('wait', 'waits', 1)}"
    )

    both = on(waiter(0), waiter(3), rank(1, done(20), **AT_STORE), rank(2, waits_for="sleep"))
    assert both.culprits == (2,)


def test_no_rank_is_named_where_all_or_most_wait_at_the_store() -> None:
    everyone = on(*(rank(n, **AT_STORE) for n in range(4)))
    assert (everyone.culprits, everyone.kind) == ((), e.WAITING)
    assert everyone.reason == f"all 4 ranks {STORE_WAITS}, which none of them sets"

    one = on(rank(0, **AT_STORE), *(rank(n, state="R", cpu=1.0) for n in (1, 2, 3)))
    assert one.culprits == ()
    assert one.reason.endswith("and it is not known which rank sets it")


def test_ranks_that_are_being_stopped_are_not_blamed_for_their_silence() -> None:
    """Nor is the only one that shows something: it may be one of many that wait."""
    stopped = {"end": e.BEING_STOPPED}
    silent = [RankDigest(number, "n0", number, **stopped) for number in (1, 2, 3)]

    assert on(waiter(0), *silent).culprits == ()
    assert on(rank(0, overdue="initial heartbeat", is_in_collective=True), *silent).culprits == ()


def test_ranks_that_all_wait_in_receives_are_no_fault_of_the_network() -> None:
    """A ring of receives."""
    ring = [
        rank(n, done(20), call="recv", is_in_collective=True, is_transfer=True) for n in range(4)
    ]
    verdict = on(*ring)

    assert (verdict.culprits, verdict.kind) == ((), e.MISMATCH)
    assert verdict.reason.startswith("all 4 ranks wait for each other, ranks 0-3 in `recv`: sends")


def test_two_culprits_are_both_named() -> None:
    verdict = on(
        waiter(0),
        waiter(3),
        rank(1, done(20), waits_for="lock"),
        rank(2, done(20), state="R", cpu=1.0),
    )

    assert (verdict.culprits, verdict.confidence) == ((1, 2), e.HIGH)
    assert verdict.reason == (
        "rank 1 (pid 101, node n0) waits for a lock in `train` train.py:9; rank 2 (pid 102, node "
        "n1) runs in `train` train.py:9 (100% of a CPU); 2 other ranks wait for them in "
        "`all_reduce`"
    )


@pytest.mark.parametrize("by_order", [True, False])
def test_a_rank_that_left_out_a_collective_is_named(*, by_order: bool) -> None:
    """By its own order, else as the only one; all have begun the 21st."""
    skips = rank(2, group(21, "barrier", is_unusual=by_order), is_in_collective=True)
    verdict = on(*others(2), skips)

    assert (verdict.culprits, verdict.kind) == ((2,), e.MISMATCH)
    assert verdict.confidence == (e.HIGH if by_order else e.MEDIUM)
    assert verdict.reason == (
        "rank 2 (pid 102, node n1) called `barrier` of group 0 gloo (collective 21) in `train` "
        "train.py:9, where 3 other ranks called `all_reduce Float[8]` of group 0 gloo "
        "(collective 21) in `train` train.py:9"
    )


def test_a_rank_that_left_out_what_a_subgroup_does_is_named() -> None:
    """All wait, in a ring: the others of the subgroup for it, and it for them."""
    sub = "1 gloo"
    verdict = on(
        rank(0, done(20), group(7, name=sub, members="0,1")),
        rank(1, group(21, is_unusual=True), done(6, sub, members="0,1")),
        waiter(2),
        waiter(3),
    )

    assert (verdict.culprits, verdict.kind, verdict.confidence) == ((1,), e.MISMATCH, e.HIGH)
    assert verdict.reason == (
        "rank 1 (pid 101, node n0) called `all_reduce Float[8]` of group 0 gloo (collective 21) in "
        "`train` train.py:9, and left out `all_reduce Float[8]` of group 1 gloo (collective 7), in "
        "which rank 0 waits in `train` train.py:9"
    )


def test_who_left_out_what_a_subgroup_does_once_has_begun_less_than_the_others() -> None:
    """Ranks 0 and 1 did the same in their own group before; rank 3 only waits for rank 2."""
    subs = [done(1, f"{name} gloo", members=of) for name, of in ((1, "0,1"), (1, "0,1"))]
    waits = rank(3, done(20), group(1, name="2 gloo", members="2,3"))
    some = [rank(number, group(21), subs[number]) for number in (0, 1)]

    verdict = on(*some, waiter(2), waits)
    assert (verdict.culprits, verdict.kind, verdict.confidence) == ((2,), e.MISMATCH, e.MEDIUM)
    assert "left out `all_reduce Float[8]` of group 2 gloo (collective 1)" in verdict.reason

    verdict = on(waiter(0), waiter(1), waiter(2), waits)
    assert verdict.culprits == (), "2 and 3 wait for each other, and either may be wrong"


def test_a_call_of_another_size_is_found_when_some_have_left_it() -> None:
    """Gloo sums what it has: two ranks go on, two wait for ever in the collective before."""
    here = [group(22, last="all_reduce Float[5]"), group(22, last="all_reduce Float[3]")]
    there = group(21, "all_reduce Float[5]")
    verdict = on(rank(0, here[0]), rank(1, there), rank(2, here[1]), rank(3, there))

    assert (verdict.culprits, verdict.kind, verdict.confidence) == ((2,), e.MISMATCH, e.MEDIUM)
    assert "called `all_reduce Float[3]` of group 0 gloo (collective 21)" in verdict.reason
    assert "3 other ranks called `all_reduce Float[5]`" in verdict.reason


NOT_THE_SCRIPT = "the network or the communication library stands still, not the script"


def test_a_rank_that_is_done_with_what_others_are_in_has_called_the_same() -> None:
    """The source of a broadcast goes on at once; what it sent has not come."""
    source = rank(0, group(21, last="broadcast Float[8]"))
    here = [rank(n, group(20, "broadcast Float[8]")) for n in (1, 2, 3)]

    verdict = on(source, *here)

    assert (verdict.culprits, verdict.kind) == ((), e.COMMUNICATION)
    assert verdict.reason == (
        "ranks 1-3 are in `broadcast Float[8]` of group 0 gloo (collective 20), and no rank is "
        f"missing there: {NOT_THE_SCRIPT}; 1 other rank waits for them in `all_reduce`"
    )
    for unknown in (group(21), group(22, last="broadcast Float[8]"), group(21, is_unusual=True)):
        assert on(rank(0, unknown), *here).kind == e.MISMATCH, "the 20th may have been another"


@pytest.mark.parametrize("is_lost", [True, False])
def test_ranks_that_wait_for_a_collective_that_is_complete_do_not_mismatch(
    *, is_lost: bool
) -> None:
    """Two groups for data, two for tensors: one of the former does not end, so all wait."""
    data, tensors = "1 nccl", {"0,1": "3 nccl", "2,3": "4 nccl"}

    def in_data(number: int, members: str) -> RankDigest:
        own = done(7, tensors[members], members=members)
        inside = {"is_in_collective": True, "call": "all_reduce"}
        return rank(number, group(5, name=data, members="0,2"), own, **inside)

    def in_tensors(number: int, members: str) -> RankDigest:
        return rank(number, group(8, name=tensors[members], members=members))

    rest = [in_tensors(1, "0,1"), in_tensors(3, "2,3")]
    if not is_lost:  # nobody waits: they have no part in it
        rest = [rank(n, state="R", cpu=1.0) for n in (1, 3)]
    verdict = on(in_data(0, "0,1"), in_data(2, "2,3"), *rest)

    assert (verdict.culprits, verdict.kind, verdict.confidence) == ((), e.COMMUNICATION, e.NONE)
    waits = "; 2 other ranks wait for them in `all_reduce`" if is_lost else ""
    assert verdict.reason == (
        "ranks 0,2 are in `all_reduce Float[8]` of group 1 nccl (collective 5), and no rank is "
        f"missing there: {NOT_THE_SCRIPT}{waits}"
    )


def test_sends_and_receives_at_once_are_not_known_to_match() -> None:
    """Two ranks of a pipeline exchange, in the wrong order perhaps; two have no part in it."""
    exchange = group(5, "coalesced", name="1 nccl", members="0,2")
    verdict = on(rank(0, exchange), rank(2, exchange), rank(1, done(4)), rank(3, done(4)))

    assert verdict.kind != e.COMMUNICATION


def test_a_circle_is_no_fault_of_the_network() -> None:
    """Each of two waits for the other one, in another group."""
    sub = "1 nccl"
    verdict = on(
        rank(0, done(20, n=2), group(7, name=sub, n=2)),
        rank(1, group(21, n=2), done(6, sub, n=2)),
    )

    assert (verdict.culprits, verdict.kind) == ((), e.MISMATCH)


def test_calls_whose_sizes_differ_between_ranks_match() -> None:
    """A slow network, and no rank to be named."""
    uneven = [rank(n, group(21, f"all_to_all Float[{n}]")) for n in range(4)]

    assert on(*uneven).kind == e.COMMUNICATION


def test_a_rank_that_ended_well_is_named_if_others_wait_for_it() -> None:
    """Not those that fail of its absence meanwhile, nor where no rank waits for it."""
    gone = RankDigest(2, "n1", 0, end=e.ENDED_WELL, exit_code=0, ended_before_s=3.1)
    fails = rank(1, helper=SILENT, state="R", place="")
    verdict = on(waiter(0), fails, gone, waiter(3))

    assert (verdict.culprits, verdict.kind) == ((2,), e.DEAD)
    assert verdict.reason.startswith("rank 2 (node n1) has exited with code 0, 3.1 s before;")
    alone = on(rank(0, done(20), waits_for="lock", overdue="heartbeat"), gone)
    assert alone.culprits == (0,)


def test_a_rank_that_ended_well_is_in_the_reason_wherever_others_wait() -> None:
    """Also where no recorder says for whom; of others it may have nothing to do with it."""
    gone = RankDigest(2, "n1", 0, end=e.ENDED_WELL, exit_code=0, ended_before_s=3.1)
    inside = [rank(n, is_in_collective=True, call="all_reduce") for n in (0, 1, 3)]

    assert on(*inside, gone).reason.endswith("; rank 2 has exited with code 0")
    alone = on(rank(0, waits_for="lock", overdue="heartbeat"), gone)
    assert "rank 2" not in alone.reason


LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:4711"
GOING = {"helper": SILENT, "state": "R", "place": "", "stack": ""}


def test_a_rank_that_is_exiting_is_named_and_not_those_that_fail_of_its_absence() -> None:
    """Its exit takes longer than a timeout; no collective and no lock holds it."""
    gone = "no stacks: the rank has no handler for signal 41 (any more)"
    victims = [rank(number, **GOING, exception=LOST) for number in (1, 3)]
    verdict = on(waiter(0), *victims, rank(2, **GOING, has_handler=False, lacks=gone))

    assert (verdict.culprits, verdict.kind, verdict.confidence) == ((2,), e.EXITING, e.MEDIUM)
    assert verdict.reason.startswith("rank 2 (pid 102, node n1) is exiting: its program has ended;")
    assert [it.doing for it in verdict.groups] == [
        "exiting",
        f"exiting after its {LOST}",
        "in `all_reduce`",
    ]
    raised = on(*others(2), rank(2, **GOING, exception="ValueError: bad sample"))
    assert raised.reason == (
        f"rank 2 (pid 102, node n1) is exiting after its ValueError: bad sample{WAITS}"
    )


def test_a_rank_that_is_gone_is_named_if_all_others_fail_of_that() -> None:
    """None waits in a collective any more; a victim is never named."""
    gone = RankDigest(1, "n0", 1, end=e.ENDED_WELL)
    victim = rank(0, **GOING, exception=LOST, overdue="heartbeat")

    assert on(victim, gone).culprits == (1,)
    assert on(victim, rank(1, state="S", lacks="no stacks")).culprits == ()


def test_a_rank_that_holds_the_lock_has_frames_or_a_reason_why_not() -> None:
    """It is not exiting."""
    holds = {"helper": SILENT, "state": "R"}
    late = {"stack": "", "place": "", "lacks": "no stacks within 0.3 s"}

    assert on(*others(2), rank(2, **holds)).kind == e.INTERPRETER
    assert on(*others(2), rank(2, **{**holds, **late})).kind == e.INTERPRETER


def test_two_halves_that_do_not_match_are_told_and_none_is_named() -> None:
    barrier = [rank(number, group(21, "barrier")) for number in (2, 3)]
    verdict = on(waiter(0), waiter(1), *barrier)

    assert (verdict.culprits, verdict.kind, verdict.confidence) == ((), e.MISMATCH, e.NONE)
    assert "ranks 0,1 called `all_reduce Float[8]`" in verdict.reason
    assert "ranks 2,3 called `barrier`" in verdict.reason


def test_ranks_that_look_alike_are_not_guessed_at() -> None:
    """All are in the same collective, and have begun it."""
    verdict = on(*map(waiter, range(4)))

    assert (verdict.culprits, verdict.kind, verdict.confidence) == ((), e.COMMUNICATION, e.NONE)
    assert verdict.reason.startswith("all 4 ranks are in `all_reduce` and wait for each other")
    assert [it.ranks for it in verdict.groups] == ["0-3"]


def test_a_rank_whose_threads_do_not_read_from_the_network_is_named() -> None:
    verdict = on(*others(1), waiter(1, unread_bytes=70000))

    assert (verdict.culprits, verdict.kind) == ((1,), e.COMMUNICATION)
    assert "70000 B" in verdict.reason


def test_without_a_recorder_stacks_decide_and_say_that_they_may_be_wrong() -> None:
    inside = [rank(number, is_in_collective=True, call="barrier") for number in (0, 1, 3)]
    verdict = on(*inside, rank(2, waits_for="lock"))

    assert (verdict.culprits, verdict.kind, verdict.confidence) == ((2,), e.WAITING, e.MEDIUM)
    assert verdict.reason.endswith("; 3 other ranks wait for it in `barrier`")


def test_waiters_that_spin_as_on_a_gpu_name_no_rank_without_a_recorder() -> None:
    """Each in its own frame: nothing tells a waiter from a culprit."""
    spin = [rank(number, state="R", cpu=1.0, place=f"f t.py:{number}") for number in range(4)]

    assert on(*spin).culprits == ()


def test_all_ranks_in_the_kernel_wait_for_something_outside() -> None:
    verdict = on(*(rank(number, state="D", wchan="nfs_wait") for number in range(4)))

    assert (verdict.culprits, verdict.kind) == ((), e.KERNEL)
    assert "4 ranks of 4 are stuck in the kernel (state D in nfs_wait)" in verdict.reason


def test_all_ranks_at_the_same_place_wait_for_something_outside() -> None:
    verdict = on(*(rank(number, done(20), waits_for="socket") for number in range(4)))

    assert (verdict.culprits, verdict.kind) == ((), e.WAITING)


def test_ranks_that_all_run_are_slow_together() -> None:
    """The timeout is to be longer; no rank is named."""
    verdict = on(*(rank(number, done(20), state="R", cpu=0.9) for number in range(4)))

    assert (verdict.culprits, verdict.kind) == ((), e.SLOW)


@pytest.mark.parametrize("overdue", [["a"], ["", "a"]])
def test_a_rank_that_waits_for_no_other_is_overdue_by_itself(overdue: list[str]) -> None:
    """The only one of its job, or one of several that do nothing together."""
    ranks = [rank(number, overdue=text) for number, text in enumerate(overdue)]
    verdict = on(*ranks)

    assert verdict.culprits == (len(overdue) - 1,)


def test_nothing_shown_is_nothing_told() -> None:
    """No evidence is no reason to fail."""
    assert on() == Verdict(reason=on().reason)
    assert on(RankDigest(0, lacks="its monitor died")).culprits == ()


@pytest.mark.parametrize("but", range(4))
def test_whose_clock_ran_out_first_says_nothing(but: int) -> None:
    """The verdict is the same whichever rank was overdue."""
    ranks = [*others(2), rank(2, done(20))]
    marked = [
        RankDigest(**{**vars(it), "overdue": "heartbeat" if it.rank == but else ""}) for it in ranks
    ]

    assert on(*marked) == on(*ranks)


def test_one_of_thousands_is_named_and_the_others_are_a_line() -> None:
    """Groups of tensors and of data, as on a real machine; the time is in the benchmark."""
    n = 2048
    ranks = {}
    for number in range(n):
        data = {"members": text_of(range(number % 8, n, 8)), "name": f"d{number % 8} nccl"}
        if number == 77:
            its_own = GroupDigest(data["name"], data["members"], 20, 20)
            ranks[number] = rank(number, done(9, n=n), its_own, waits_for="lock")
        elif number % 8 == 77 % 8:
            ranks[number] = rank(number, done(9, n=n), group(21, **data))
        else:
            data_done = GroupDigest(data["name"], data["members"], 21, 21)
            ranks[number] = rank(number, group(10, n=n), data_done)
    verdict = judge(ranks, {})

    assert (verdict.culprits, verdict.confidence) == ((77,), e.HIGH)
    assert len(verdict.groups) == 2
    assert verdict.groups[1].count == n - 1
