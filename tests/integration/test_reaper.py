"""What a launcher ends when it leaves, and what it says of the rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from holdfast.base.processes import child, proc, reaper
from tests.waiting import until

FAMILY = """
import json, os, signal, subprocess, sys, time
from holdfast.base.processes import child, proc, reaper
child.become_subreaper()
# A stubborn child, its own child in another session, and one that ended and is not reaped by it.
PARENT = '''
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not os.fork():
    os._exit(0)
child = subprocess.Popen(["setsid", "sleep", "1000"])
print("ready", flush=True)
signal.pause()
'''
parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
parent.stdout.readline()
def below():
    return {pid: (pid, facts.started) for pid, facts in proc.subtree(os.getpid()).items()
            if pid != os.getpid()}
before = list(below())
left = reaper.end_all(60.0, below, lambda: list(child.reap()))
print(json.dumps({"before": before, "left": left, "after": list(below())}))
sys.stdout.flush()
os._exit(0)
"""


def run(source: str) -> dict[str, Any]:
    """Run in a process of its own: what it ends must not be ours."""
    done = subprocess.run(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, timeout=90, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_nothing_is_left() -> None:
    """Neither grandchildren nor zombies, and all children are reaped."""
    found = run(FAMILY)

    assert len(found["before"]) == 3
    assert (found["left"], found["after"]) == ([], [])


def test_each_leftover_is_described_in_one_line() -> None:
    """However long its words are, and whatever is in them; who has ended is not one."""
    words = "a\nb " + "c" * 1000
    pid = child.spawn([sys.executable, "-c", "import signal; signal.pause()", words], {}, {})
    zombie = child.spawn(["/bin/true"], {}, {})
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)

    ended = 2**22 + 1
    running = reaper.running([zombie, pid, ended])
    assert list(running) == [pid]
    [line] = reaper.describe_each(running)
    assert line.startswith(f"pid {pid}, child of {os.getpid()}, state ")
    assert f" s old: {sys.executable} -c import signal; signal.pause() a b ccc" in line
    assert line.endswith("ccc...")
    assert len(line) < 300
    assert reaper.describe_each({zombie: []})[0].endswith(" s old: (true)")
    assert reaper.describe_each({ended: []}) == [f"pid {ended}, which has just ended"]
    many = {ended + i: [] for i in range(25)}
    assert reaper.describe_each(many)[19:] == [
        f"pid {ended + 19}, which has just ended", "... and 5 more"
    ]  # fmt: skip
    os.kill(pid, signal.SIGKILL)
    for each in (pid, zombie):
        os.waitpid(each, 0)


def test_what_does_not_end_is_given_up_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a busy wait: nothing wakes, so nothing is looked at before the time is over."""
    stubborn = child.spawn(["/bin/sleep", "1000"], {}, {})
    zombie = child.spawn(["/bin/true"], {}, {})
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    until(lambda: proc.stat(stubborn).state == "S", "it sleeps")
    looks = []
    found = {pid: proc.identity(pid) for pid in (zombie, stubborn)}
    monkeypatch.setattr(proc.Process, "send", lambda *_: True)

    left = reaper.end_all(0.2, lambda: looks.append(1) or found, lambda: None)

    assert left == [stubborn]
    assert len(looks) <= 3
    assert reaper.describe(left).startswith(f"sleep (pid {stubborn}, state S")
    assert reaper.describe([stubborn] * 10).endswith(" and 2 more")
    os.kill(stubborn, signal.SIGKILL)
    for pid in (stubborn, zombie):
        os.waitpid(pid, 0)


@pytest.mark.parametrize("module", ["multiprocessing", "joblib.externals.loky.backend"])
def test_resource_trackers_are_known_by_their_module(module: str) -> None:
    words = ["python", "-c", f"from {module}.resource_tracker import main; main(3)"]
    assert reaper.is_resource_tracker(words)
    assert not reaper.is_resource_tracker(["python", "track_resources.py"])
