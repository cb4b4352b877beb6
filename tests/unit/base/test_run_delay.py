"""For how long a process had no processor, of a real one."""

import os
import subprocess
import sys

from holdfast.base.processes.run_delay import RunDelay
from tests.waiting import until

SPIN = """
import os
os.sched_setaffinity(0, {int(os.environ["CPU"])})
print("up", flush=True)
while True:
    pass
"""


def test_a_process_that_shares_its_processor_waits_for_it() -> None:
    """Two of them do; one that sleeps does not, however long."""
    cpu = min(os.sched_getaffinity(0))
    env = os.environ | {"CPU": str(cpu)}
    command = [sys.executable, "-c", SPIN]
    spinning = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    asleep = subprocess.Popen(["sleep", "1000"])
    try:
        for process in spinning:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
        delays = [RunDelay(process.pid) for process in spinning]
        of_sleeper = RunDelay(asleep.pid)
        until(lambda: min(delay.since_s() for delay in delays) >= 0.1)
        assert of_sleeper.since_s() < 0.1
    finally:
        for process in (*spinning, asleep):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
    assert delays[0].since_s() == 0.0, "it has ended"
