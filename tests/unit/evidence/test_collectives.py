"""From the entries of torch's flight recorder to where a rank is in its groups."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.evidence.pure.collectives import breaks_order, digests, recent
from holdfast.evidence.pure.evidence import GroupDigest

MEMBERS = {"0": (0, 1, 2, 3), "5": (1, 3)}


def entry(call: str, seq: int, *, group: str = "0", pg: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "process_group": [group, "some group"],
        "pg_id": pg,
        "profiling_name": call,
        "collective_seq_id": seq,
        "is_p2p": ":send" in call or ":recv" in call,
        "retired": True,
        "state": "completed",
        "input_dtypes": ["Float"],
        "input_sizes": [[8]],
        **fields,
    }


def pending(call: str, seq: int, **fields: Any) -> dict[str, Any]:
    return entry(call, seq, retired=False, state="started", **fields)


def of(*entries: dict[str, Any]) -> tuple[GroupDigest, ...]:
    return digests(entries, lambda name: MEMBERS.get(name, ()))


def test_the_oldest_operation_that_has_not_ended_is_what_a_rank_waits_in() -> None:
    """Others may have been enqueued behind it."""
    [group] = of(
        entry("nccl:all_reduce", 1), pending("nccl:all_gather", 2), pending("nccl:all_reduce", 3)
    )
    now, last = "all_gather Float[8]", "all_reduce Float[8]"
    assert group == GroupDigest("0 nccl", "0-3", 3, 1, now, 2, last=last, n_pending=2)


def test_where_all_has_ended_nothing_is_pending() -> None:
    [group] = of(entry("gloo:all_reduce", 1), entry("gloo:barrier", 2, retired=False))
    assert (group.enqueued, group.completed, group.pending) == (2, 2, "")


@pytest.mark.parametrize(("call", "peers"), [("nccl:recv 0<-1", "3"), ("nccl:send 1->0", "1")])
def test_a_send_or_receive_names_its_peer_in_the_group(call: str, peers: str) -> None:
    """The recorder has ranks of the group, people those of the job."""
    [group] = of(pending(call, 0, group="5"))
    assert (group.pending, group.peers, group.enqueued) == (
        f"{call.partition(':')[2]} Float[8]",
        peers,
        -1,
    )


def test_a_rank_that_broke_its_own_order_is_unusual() -> None:
    """Whatever the group: who leaves out what one does goes on with another."""
    usual = [entry("gloo:all_reduce", 1), entry("gloo:barrier", 1, group="5")] * 2
    broken = of(*usual, entry("gloo:all_reduce", 2), pending("gloo:all_reduce", 3))
    kept = of(*usual, entry("gloo:all_reduce", 2), pending("gloo:barrier", 3, group="5"))
    assert [group.is_unusual for group in broken if group.pending] == [True]
    assert [group.is_unusual for group in kept if group.pending] == [False]


def test_a_new_group_of_the_same_name_is_not_the_old_one() -> None:
    """After a restart in place: what was aborted may be pending for ever in the recorder."""
    old = (entry("nccl:all_reduce", 7), pending("nccl:all_gather", 8))
    [group] = of(*old, entry("nccl:all_reduce", 1, pg=1), pending("nccl:barrier", 2, pg=1))
    assert (group.enqueued, group.completed, group.pending) == (2, 1, "barrier Float[8]")


def test_a_group_that_was_destroyed_says_nothing_while_others_live() -> None:
    """If none lives, its entries are all there is."""
    gone, lives = pending("nccl:all_gather", 8, group="9", pg=3), entry("nccl:all_reduce", 4)
    assert [group.name for group in of(gone, lives)] == ["0 nccl"]
    assert [group.pending for group in of(gone)] == ["all_gather Float[8]"]


def test_the_last_operations_are_lines() -> None:
    assert recent([entry("gloo:all_reduce", 1), pending("gloo:barrier", 2, input_dtypes=[])]) == (
        "0 gloo 1 all_reduce Float[8]",
        "0 gloo 2 barrier (has not ended)",
    )


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ("ABABAB", False),
        ("ABABB", True),  # it left out the A
        ("ABABA", False),
        ("ABABAX", False),  # an evaluation begins
        ("ABABAXA", False),
        ("AAAAA", False),
        ("A", False),
    ],
)
def test_an_operation_that_is_new_breaks_no_order(calls: str, expected: bool) -> None:
    """One that the rank has called before does, where it never followed the one before it."""
    ended = [entry(f"gloo:{call}", at + 1) for at, call in enumerate(calls[:-1])]
    last = pending(f"gloo:{calls[-1]}", len(calls))
    assert breaks_order([*ended, last]) is expected


def test_the_collective_before_the_pending_one_is_told() -> None:
    """Of each group on its own; none where nothing is pending."""
    done, now = entry("gloo:all_gather", 1), pending("gloo:barrier", 2)
    world, sub = of(done, now, entry("gloo:all_reduce", 1, group="5"))
    assert (world.pending, world.seq, world.last) == ("barrier Float[8]", 2, "all_gather Float[8]")
    assert (sub.pending, sub.last) == ("", "")
