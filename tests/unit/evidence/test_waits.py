"""What a process sleeps for, from the kernel function that it sleeps in."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.evidence.pure.evidence import GroupDigest, Operations, RankDigest
from holdfast.evidence.pure.rank_digest import RankEvidence, Sight, digest, waits_for
from holdfast.evidence.pure.stacks import ThreadPlace, hash_of


@pytest.mark.parametrize(
    ("wchan", "expected"),
    [
        ("futex_do_wait", "lock"),
        ("hrtimer_nanosleep", "sleep"),
        ("wait_for_partner", "fifo"),
        ("anon_pipe_read", "pipe"),
        ("do_wait", "child"),
        ("do_epoll_wait", "socket or pipe"),
        ("poll_schedule_timeout.constprop.0", "socket or pipe"),
        ("unix_stream_read_generic", "socket"),
        ("wait_woken", "socket"),
        ("locks_lock_inode_wait", "file lock"),
        ("__do_sys_pause", "signal"),
        ("do_sigtimedwait", "signal"),
        ("some_driver_wait", ""),
        ("", ""),
    ],
)
def test_the_kernel_function_tells_what_is_waited_for(wchan: str, expected: str) -> None:
    """As Linux 5.10 to 6.12 name them; a file that is read says more."""
    assert waits_for(Sight("S", wchan, 0, 0)) == expected
    assert waits_for(Sight("R", wchan, 0, 0)) == ""
    assert waits_for(Sight("S", wchan, 0, 0, "/data/x")) == "file"
    assert waits_for(Sight("S", wchan, 0, 0, "pipe:[4711]")) == "pipe"


FRAMES = ("ring train.py:24", "<module> train.py:90")
RECORDED = GroupDigest("0 gloo", "0-3", 20, 20)
PENDING = GroupDigest("0 gloo", "0-3", 20, 19, pending="all_reduce", seq=20)


def _digest(wchan: str, call: str, **more: Any) -> RankDigest:
    place = ThreadPlace(
        "ring train.py:24", code=hash_of(more.pop("shown", FRAMES)), **more.pop("at", {})
    )
    told = Operations((more.pop("group", RECORDED),), frames=FRAMES, call=call, **more)
    one = Sight("S", wchan, 0, 0)
    about = {"rank": 0, "node": "n", "local_rank": 0, "pid": 1}
    seen = RankEvidence(one, one, 0.05, place, is_asked=True, is_alive=True, operations=told)
    return digest(about, seen, None, None, None, 0.0)


@pytest.mark.parametrize(
    ("more", "is_transfer"),
    [
        ({}, True),
        ({"wchan": "poll_schedule_timeout"}, False),
        ({"call": "lock.acquire"}, False),
        ({"group": PENDING}, False),
        ({"at": {"call": "wait"}}, False),
        ({"shown": ("other train.py:25",)}, False),
    ],
    ids=str,
)
def test_a_wait_in_c_with_a_recorder_that_has_nothing_is_for_a_transfer(
    more: dict[str, Any], is_transfer: bool
) -> None:
    """Gloo's recorder has no sends and receives. What the rank has left meanwhile says nothing."""
    found = _digest(**{"wchan": "futex_do_wait", "call": "req.wait", **more})

    assert found.is_transfer == is_transfer
    assert found.call == (
        "" if "shown" in more else more.get("call") or more.get("at", {}).get("call") or "req.wait"
    )


@pytest.mark.parametrize(
    ("more", "waits"),
    [
        ({"is_at_store": True}, "store"),
        ({"is_at_store": True, "call": ""}, "store"),
        ({"is_at_store": True, "call": "dist.init"}, "socket or pipe"),
        ({"is_at_store": True, "wchan": "futex_do_wait"}, "lock"),
        ({"is_at_store": True, "at": {"waits_for": "server"}}, "server"),
        ({}, "socket or pipe"),
    ],
    ids=str,
)
def test_a_call_with_a_request_that_the_store_has_not_answered_waits_for_a_key(
    more: dict[str, Any], waits: str
) -> None:
    found = _digest(**{"wchan": "poll_schedule_timeout", "call": "store.wait", **more})

    assert found.waits_for == waits


def test_the_place_of_a_rank_that_waits_for_tasks_is_where_they_wait() -> None:
    found = _digest("ep_poll", "selector.poll", at={"waits_for": "tasks"}, awaits=("read io.py:8",))

    assert (found.place, found.call, found.waits_for) == ("read io.py:8", "", "tasks")
