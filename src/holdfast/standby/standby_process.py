"""Start a rank's interpreter ahead of time, and let it go on when the rank is needed.

The parked side is ``standby/parked/paused_start.py``: read that first.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Mapping, Sequence

from holdfast.base.processes import child, proc, start_hook, system_calls
from holdfast.node.processes.controlled_process import ControlledProcess
from holdfast.standby import idle_priority, oom_score

ORDERS = "HOLDFAST_PARKED"
CONTROL_FD = 3
_FIRST_FREE_FD = 10


class StandbyProcess(ControlledProcess):
    """A parked interpreter. Sends ParkedReady or ParkedUnfit (``standby/pure/parked_messages.py``).

    Attributes:
        usual_score: ``oom_score_adj`` that the rank is to have; until it goes on, it has 1000.
    """

    usual_score: int = 0

    def go_on(
        self, env: Mapping[str, str], streams: Sequence[int], *, is_held: bool = False
    ) -> bool:
        """Have it become the rank, with this environment; False: it can't any more.

        Does not wait for it. Only for one that has said it is ready. From now on it is no more
        the first that the kernel ends when memory runs out.

        Args:
            env: The rank's whole environment.
            streams: stdout, stderr and, if it is to read from anywhere but /dev/null, stdin.
            is_held: It does all that comes before its script, and then waits for :func:`begin`.
        """
        state = proc.process_state(self.pid)
        if state is None or state.state not in ("S", "R"):
            return False
        try:
            oom_score.set_adjustment(self.pid, self.usual_score)
        except OSError:
            return False
        orders = system_calls.memory_file("holdfast-environment")
        try:
            with open(orders, "wb", closefd=False) as file:
                file.write(json.dumps(dict(env)).encode())
            rights = array.array("i", (*streams, orders))
            self.control.sendmsg(
                [b"g" if is_held else b"gb"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            )
        except OSError:
            return False
        finally:
            os.close(orders)
        return True


def begin(control: socket.socket) -> None:
    """Let a process that is held begin its script; closes the connection."""
    with control, contextlib.suppress(OSError):  # it has ended
        control.send(b"b")


class OomScoreRefusedError(Exception):
    """The system does not let a process have the highest OOM score for a while.

    Attributes:
        pid: The process, which is still to be ended.
    """

    def __init__(self, pid: int, error: OSError) -> None:
        super().__init__(str(error))
        self.pid = pid


def park(
    tie: Sequence[str],
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    preload: Sequence[str],
    follow: bool = False,
    late: Sequence[str] = (),
    without: Sequence[str] = (),
    per_cycle: Sequence[str],
    likely: Mapping[str, str],
    harmless: Sequence[str],
    note: str,
    is_idle: bool = False,
) -> StandbyProcess:
    """Start ``command``, a Python interpreter with a script, and park it before the script begins.

    Args:
        tie: See :func:`.child.death_tie`.
        command: As for :func:`.child.spawn_rank`; its interpreter runs unbuffered (``-u``).
        env: Environment of the rank, without the variables that only its cycle can tell.
        preload: Modules to import.
        follow: Import the installed libraries that the script names in its first lines, too.
        late: Modules to import at last, of packages that were imported, unless the script sets a
            variable that these read.
        without: Packages of which nothing is to be imported, and modules.
        per_cycle: Names of those variables.
        likely: Values that some of them will probably have; a library may read these while it is
            imported, and the message ``ready`` says which it did (``assumed``).
        harmless: Prefixes of variables that none of the modules reads while it is imported,
            unless through Python, which is noticed.
        note: Path of a file in which it says why it had to start over as a plain start, after it
            went on; empty where that need not happen the next time.
        is_idle: It starts with the lowest priority, until :func:`.idle_priority.restore`.

    Raises:
        OomScoreRefusedError: It could not be made the first victim of an out-of-memory kill and
            get the usual score back; it is still to be ended.
        OSError: The process cannot be started.
    """
    orders = {
        "preload": list(preload),
        "follow": follow,
        "late": list(late),
        "without": list(without),
        "per_cycle": list(per_cycle),
        "likely": dict(likely),
        "harmless": list(harmless),
        "pythonpath": env.get("PYTHONPATH"),
        "note": note,
    }
    parked_env = start_hook.with_part(env, ORDERS, json.dumps(orders))
    control, theirs = socket.socketpair()
    with contextlib.ExitStack() as stack:
        stack.callback(theirs.close)
        words = system_calls.memory_file("holdfast-parked")  # must stay empty
        stack.callback(os.close, words)
        # Out of the way of 1 to 3: a dup2 must not overwrite the source of the next one.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD) for fd in (words, theirs)]
        for descriptor in high:
            stack.callback(os.close, descriptor)
        try:
            pid = child.spawn_rank(
                tie, command, parked_env, {1: high[0], 2: high[0], CONTROL_FD: high[1]}
            )
        except OSError:
            control.close()
            raise
    try:
        usual = oom_score.make_first_victim(pid)
    except OSError as error:
        control.close()
        raise OomScoreRefusedError(pid, error) from error
    if is_idle:
        with contextlib.suppress(OSError):  # then it has the priority of a rank
            idle_priority.lower(pid)
    control.settimeout(0.0)
    return StandbyProcess(pid, control, usual)
