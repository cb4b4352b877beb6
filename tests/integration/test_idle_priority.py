"""Processes that run only when a processor has nothing else to do, and then as others do again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.standby import idle_priority
from tests.waiting import until

THREADS = """
import sys, threading
sys.stdin.readline()
for _ in range(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""
TRY = """
import os
from holdfast.standby import idle_priority
os.setgroups([])
os.setresuid(USER, USER, USER)
promised = idle_priority.can_return()
idle_priority.lower(0)
try:
    idle_priority.restore(os.getpid())
except PermissionError:
    print(promised, False)
else:
    print(promised, True)
"""


def test_all_threads_of_a_process_get_their_priority_back() -> None:
    """Libraries start some while they are imported, and these have the lowest, too."""
    if not idle_priority.can_return():
        pytest.skip("this user may not raise a priority")
    process = subprocess.Popen(
        [sys.executable, "-c", THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdin
        assert process.stdout
        idle_priority.lower(process.pid)
        process.stdin.write(b"go on\n")
        process.stdin.flush()
        process.stdout.readline()
        tasks = [int(each.name) for each in Path(f"/proc/{process.pid}/task").iterdir()]
        before = {os.sched_getscheduler(each) for each in tasks}

        idle_priority.restore(process.pid)

        after = {os.sched_getscheduler(each) for each in tasks}
        process.stdin.close()
    assert len(tasks) == 4
    assert (before, after) == ({os.SCHED_IDLE}, {os.SCHED_OTHER})


@pytest.mark.parametrize("user", [0, 65534])
def test_whether_a_priority_can_be_raised_is_known_before(user: int) -> None:
    """Most users may not: their parked interpreters are prepared at the priority of ranks."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    code = TRY.replace("USER", str(user))

    tried = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    promised, came_back = tried.stdout.split()
    assert promised == came_back, tried.stderr
    assert user == 0 or came_back == "False"


def test_the_time_that_a_process_waits_for_a_processor_is_counted() -> None:
    """Two that compute on one processor: each waits while the other one runs."""
    if idle_priority.share(os.getpid()) is None:
        pytest.skip("this kernel does not count it")
    program = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"
    first, second = (subprocess.Popen([sys.executable, "-c", program]) for _ in range(2))
    try:

        def both_have_waited() -> bool:
            shares = [idle_priority.share(each.pid) for each in (first, second)]
            return all(share and min(share[:2]) > 0.02 and share[2] for share in shares)

        until(both_have_waited, "both waited for the processor")
    finally:
        for each in (first, second):
            each.kill()
            each.wait()
    assert idle_priority.share(first.pid) is None
    assert idle_priority.does_return(first.pid), "what has ended says nothing about this system"
