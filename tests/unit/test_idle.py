"""Ranks that nobody gave a timeout: who does nothing in vain, and who may go on by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core import evidence as e
from holdfast.core.evidence import GroupDigest, Missing, RankDigest, Verdict
from holdfast.core.idle import is_hang
from holdfast.core.job.incidents import verdict_on
from holdfast.core.monitor.movement import Moves, Stillness
from holdfast.core.monitor.rank_digest import Seen, Sight, digest
from holdfast.core.stacks import Frame, Place, place_of
from holdfast.fault_tolerance.monitor.idle_time import IdleTime
from holdfast.host import sight
from holdfast.host.moves import moves_of
from tests.unit.test_proc import wait_until

WAITING = GroupDigest("0 gloo", "0,1", 21, 20, pending="barrier Float[1]", seq=21)
AHEAD = GroupDigest("0 gloo", "0,1", 20, 20)
OTHER = RankDigest(0, "a", state="S", helper=e.ANSWERED, groups=(WAITING,), is_in_collective=True)
LOCK = {
    "state": "S",
    "helper": e.ANSWERED,
    "groups": (AHEAD,),
    "idle_s": 300.0,
    "waits_for": "a lock",
}


def verdict(other: RankDigest | None = OTHER, **shows: object) -> Verdict:
    """Of a job whose rank 1 shows this, in place of a lock that it waits for."""
    culprit = RankDigest(1, "a", 1, 77, **{**LOCK, **shows})  # type: ignore[arg-type]
    return verdict_on({it.rank: it for it in (other, culprit) if it is not None}, {})


@pytest.mark.parametrize(
    "shows",
    [
        {},
        {"waits_for": "a pipe"},
        {"waits_for": "/data/x.fifo", "wchan": "pipe_read"},
        {"waits_for": "a sleep"},
        {"waits_for": "a socket or pipe", "is_in_loader": True},
        {"state": "T", "waits_for": "", "helper": e.SILENT},
        {"helper": e.SILENT},
        {"is_in_collective": True},
    ],
    ids=["lock", "pipe", "fifo", "sleep", "loader", "stopped", "interpreter", "native"],
)
def test_a_rank_that_does_nothing_while_others_wait_is_hung(shows) -> None:
    found = verdict(**shows)
    assert found.culprits == (1,)
    assert found.is_hang


@pytest.mark.parametrize(
    ("steps_of", "shows", "is_left_alone"),
    [
        ((0,), {"state": "R", "overdue": "optimizer step"}, True),
        ((), {"state": "R", "overdue": "optimizer step"}, True),
        ((0,), {"overdue": "optimizer step"}, False),
        ((0,), {"state": "R", "overdue": "section 'step'"}, False),
        ((), {"state": "R"}, False),
    ],
    ids=["computes", "alone", "hangs", "a timeout of its own", "overdue elsewhere"],
)
def test_ranks_that_only_make_no_steps_are_left_alone(steps_of, shows, is_left_alone) -> None:
    """An evaluation is not reported as a hang. A timeout that a user has set ends ranks."""
    other = RankDigest(**{**vars(OTHER), "overdue": "optimizer step" if steps_of else ""})
    assert verdict(other, **shows).is_left_alone is is_left_alone


@pytest.mark.parametrize(
    "shows",
    [
        {"waits_for": "the standard input"},
        {"waits_for": "the terminal"},
        {"waits_for": "a debugger"},
        {"state": "t", "waits_for": ""},
        {"waits_for": "a child process"},
        {"waits_for": "its tasks"},
        {"waits_for": "a socket"},
        {"waits_for": "a server", "is_in_loader": True},
        {"waits_for": "/mnt/checkpoints/7.pt"},
        {"waits_for": ""},
        {"idle_s": 0.0},
        {"idle_s": 0.0, "waits_for": "a socket or pipe", "is_in_loader": True},
        {"idle_s": 0.0, "state": "T", "waits_for": ""},
        {"idle_s": 0.0, "helper": e.SILENT},
        {"state": "D"},
        {"state": "R"},
    ],
    ids=str,
)
def test_a_rank_that_may_go_on_by_itself_is_left_alone(shows) -> None:
    """A person at a debugger, an evaluation in a child process, a download, a slow disk, ..."""
    assert not verdict(**shows).is_hang
    digests = {0: OTHER, 1: RankDigest(1, "a", 1, 77, **{**LOCK, **shows})}
    assert not is_hang(Verdict((1,), e.WAITING, "", e.HIGH), digests)


@pytest.mark.parametrize("other", [None, RankDigest(0, "a", state="S", groups=(AHEAD,))])
def test_a_rank_that_no_other_one_waits_for_is_left_alone(other) -> None:
    """Also one that is the job alone."""
    assert not verdict(other, overdue="optimizer step").is_hang


@pytest.mark.parametrize("confidence", [e.LOW, e.NONE])
def test_a_verdict_that_is_not_sure_ends_no_rank(confidence) -> None:
    digests = {0: OTHER, 1: RankDigest(1, "a", 1, 77, **LOCK)}
    assert is_hang(Verdict((1,), e.WAITING, "", e.HIGH), digests)
    assert not is_hang(Verdict((1,), e.WAITING, "", confidence), digests)


def test_each_culprit_must_be_idle() -> None:
    """One that is stopped says nothing about another, which is at a prompt."""
    stopped = RankDigest(1, "a", 1, 77, state="T", groups=(AHEAD,), idle_s=300.0)
    asks = RankDigest(2, "a", 2, 78, **{**LOCK, "waits_for": "the standard input"})
    both = Verdict((1, 2), e.STOPPED, "", e.HIGH)
    assert is_hang(Verdict((1,), e.STOPPED, "", e.HIGH), {0: OTHER, 1: stopped})
    assert not is_hang(both, {0: OTHER, 1: stopped, 2: asks})


def test_a_node_that_does_not_answer_is_not_ended_for_its_silence() -> None:
    digests = {0: OTHER}
    assert not verdict_on(digests, {"b": Missing("1", "did not answer within 0.8 s")}).is_hang


def test_collectives_that_do_not_match_never_end() -> None:
    """Whatever their waiters do in the meantime: on a GPU they spin."""
    calls = ("barrier Float[1]", "broadcast Float[9]", "barrier Float[1]")
    ranks = {
        rank: RankDigest(
            *(rank, "a"),
            state="R",
            groups=(GroupDigest("0 gloo", "0-2", 21, 20, pending=call, seq=21),),
            is_in_collective=True,
        )
        for rank, call in enumerate(calls)
    }
    found = verdict_on(ranks, {})
    assert (found.culprits, found.kind, found.is_hang) == ((1,), e.MISMATCH, True)


# ------------------------------------------------------------------ what it waits for
@pytest.mark.parametrize(
    ("file", "waits_for"),
    [
        ("/usr/lib/python3.11/pdb.py", "a debugger"),
        ("/venv/lib/python3.11/site-packages/debugpy/_vendored/pydevd/pydevd.py", "a debugger"),
        ("/usr/lib/python3.11/subprocess.py", "a child process"),
        ("/usr/lib/python3.11/concurrent/futures/_base.py", "its tasks"),
        ("/venv/lib/python3.11/site-packages/urllib3/connectionpool.py", "a server"),
        ("/usr/lib/python3.11/threading.py", ""),
    ],
)
def test_frames_tell_what_a_rank_waits_for_where_its_lock_does_not(file, waits_for) -> None:
    frames = [
        Frame("/usr/lib/python3.11/threading.py", 1, "wait"),
        Frame(file, 5, "waits"),
        Frame("/home/me/train.py", 9, "train"),
    ]
    place = place_of(frames)
    assert place.waits_for == waits_for
    sleeps = Sight("S", "futex_wait_queue", 0, 5)
    seen = Seen(sleeps, sleeps, 0.05, place)
    identity = {"rank": 1, "node": "a", "local_rank": 1, "pid": 77}
    shown = digest(identity, seen, None, None, None, 0.0)
    assert shown.waits_for == (waits_for or "a lock")


def test_a_script_that_runs_inside_such_a_library_does_not_wait_for_it() -> None:
    frames = [
        Frame("/home/me/train.py", 9, "train"),
        Frame("/usr/lib/python3.11/asyncio/runners.py", 5, "run"),
    ]
    assert place_of(frames).waits_for == ""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "print('here', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    yield process
    process.communicate(b"\n")


@pytest.mark.parametrize("says_which", [True, False])
def test_a_prompt_is_told_from_another_pipe(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, says_which: bool
) -> None:
    """Also where the kernel does not say from which descriptor a process reads."""
    if not says_which:
        monkeypatch.setattr(sight, "_READ", {})

    def reads() -> str:
        seen = sight.look_at(child.pid)
        return "" if seen is None else seen.reads

    wait_until(lambda: reads() != "")
    assert reads() == sight.STDIN


# ------------------------------------------------------------------ for how long
STILL = Moves(switches=40, main_s=1.0, all_s=2.0, n_bytes=1000, pids=(1, 2))


def moved(**more: float) -> Moves:
    return Moves(**{**vars(STILL), **{name: vars(STILL)[name] + it for name, it in more.items()}})


def stillness(*looks: Moves | None) -> Stillness:
    """After looks that are 60 s apart."""
    one = Stillness()
    for number, shown in enumerate(looks):
        one.looked(shown, 60.0 * number)
    return one


def idle_s(*looks: Moves | None, calm: bool = False) -> float:
    return stillness(*looks).still_s(60.0 * (len(looks) - 1), calm=calm)


def test_a_rank_is_idle_since_the_look_after_it_last_did_something() -> None:
    assert idle_s(STILL) == 0.0
    assert idle_s(STILL, STILL) == 60.0
    assert idle_s(moved(switches=-5), STILL, STILL, STILL) == 120.0
    assert idle_s(STILL, STILL, None) == 0.0


@pytest.mark.parametrize(
    ("after", "is_still", "is_calm", "dozes"),
    [
        (moved(switches=1), False, True, True),  # a main thread that hangs never wakes up
        (moved(switches=12, main_s=0.01, all_s=0.01), False, True, True),  # a loader's reader
        (moved(switches=100), False, False, True),
        (moved(main_s=1.0, all_s=1.0), False, False, True),
        (moved(switches=2400, main_s=0.2, all_s=0.2), False, False, True),  # sleeps in a loop
        (moved(switches=12000), False, False, False),
        (moved(main_s=6.0, all_s=6.0), False, False, False),  # it computes, in between
        (moved(all_s=0.6), True, True, True),  # gloo's thread polls
        (moved(all_s=6.0), False, False, False),  # a thread, or a child process, works
        (moved(all_s=-2.0), False, False, False),  # a child has ended
        (moved(n_bytes=10_000), True, True, True),  # its log
        (moved(n_bytes=100_000_000), False, False, False),  # it saves, or loads
        (moved(wakes=10), True, True, True),
        (moved(wakes=300), False, False, False),  # a loader's worker downloads
        (Moves(**{**vars(STILL), "pids": (1, 3)}), False, False, False),
        (Moves(**{**vars(STILL), "is_in_kernel": True}), False, False, False),  # of a worker
    ],
    ids=str,
)
def test_who_runs_saves_downloads_or_has_it_done_is_not_idle(
    after, is_still, is_calm, dozes
) -> None:
    assert (idle_s(STILL, after) > 0) == is_still
    assert (idle_s(STILL, after, calm=True) > 0) == is_calm
    assert (stillness(STILL, after).dozes_s(60.0) > 0) == dozes


def test_a_loop_that_sleeps_has_longer_than_a_rank_that_does_not_wake_up(monkeypatch) -> None:
    """It may ask for what comes from outside."""
    shown = iter([moved(switches=100 * number) for number in range(10)])
    monkeypatch.setattr("holdfast.host.moves.moves_of", lambda _: next(shown))
    idle = IdleTime()
    idle.least_s = 150.0
    found = []
    for number in range(10):
        idle.look(1, 60.0 * number)
        found.append(idle.seconds(Place()))
    assert found == [0.0] * 8 + [480.0, 540.0]


def test_what_a_process_and_its_children_do_is_seen_in_proc(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "if os.fork() == 0:\n"
        "    sys.stdin.readline()\n"
        "    for _ in range(300): open(sys.argv[1], 'wb').write(b'x' * 1000)\n"
        "    print('done', flush=True)\n"
        "    sys.stdin.readline(); os._exit(0)\n"
        "print('begun', flush=True)\n"
        "os.wait()"
    )
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", program, str(tmp_path / "saved")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        process.stdout.readline()
        wait_until(lambda: len(getattr(moves_of(process.pid), "pids", ())) == 2)
        before = moves_of(process.pid)
        assert before is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        # The child is counted when it sleeps again.
        wait_until(lambda: getattr(moves_of(process.pid), "wakes", 0) > before.wakes)
        after = moves_of(process.pid)
    finally:
        process.kill()
        process.communicate()
    assert after is not None
    assert after.pids == before.pids
    assert after.n_bytes >= before.n_bytes + 300_000
    assert after.wakes > before.wakes
    assert moves_of(0) is None
    assert os.getpid() in getattr(moves_of(os.getpid()), "pids", ())
