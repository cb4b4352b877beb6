"""What a rank waits for, from its frames and from the kernel."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast.evidence import proc_sample, sources
from holdfast.evidence.pure.rank_digest import RankEvidence, Sight, digest
from holdfast.evidence.pure.stacks import Frame, place_of
from tests.waiting import until


@pytest.mark.parametrize(
    ("file", "waits_for"),
    [
        ("/usr/lib/python3.11/pdb.py", "debugger"),
        ("/venv/lib/python3.11/site-packages/debugpy/_vendored/pydevd/pydevd.py", "debugger"),
        ("/usr/lib/python3.11/subprocess.py", "child"),
        ("/usr/lib/python3.11/concurrent/futures/_base.py", "tasks"),
        ("/venv/lib/python3.11/site-packages/urllib3/connectionpool.py", "server"),
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
    seen = RankEvidence(sleeps, sleeps, 0.05, place)
    identity = {"rank": 1, "node": "a", "local_rank": 1, "pid": 77}
    shown = digest(identity, seen, None, None, None, 0.0)
    assert shown.waits_for == (waits_for or "lock")


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
        monkeypatch.setattr(proc_sample, "_READ", {})

    def reads() -> str:
        seen = proc_sample.look_at(child.pid)
        return "" if seen is None else seen.reads

    until(lambda: reads() != "")
    assert reads() == proc_sample.STDIN


def test_a_process_that_was_stopped_is_named_in_words_and_others_with_their_state() -> None:
    """``state T`` says it to few."""
    assert sources.describe_child(9, Sight("T", "", 0, 5), "") == "pid 9, stopped (state T)"
    assert (
        sources.describe_child(9, Sight("S", "", 0, 5), "read d.py:4")
        == "pid 9, state S, read d.py:4"
    )
    assert sources.describe_child(9, None, "") == "pid 9"
