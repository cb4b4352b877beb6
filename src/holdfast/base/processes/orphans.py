"""End what a job has left whose launcher cannot do that: it is dead, or stopped.

Kills what :mod:`holdfast.base.pure.ownership` can prove to be the job's, each through a pidfd,
after a second look at the process it holds.
"""

from __future__ import annotations

import os

from holdfast.base import clock
from holdfast.base.processes import proc
from holdfast.base.processes.job_record import origin_of
from holdfast.base.pure.ownership import judge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from holdfast.base.pure.ownership import Claim, Facts, Identity, Origin, Verdicts

_SIGKILL = 9
_PASSES = 2
"""So many in a row have to find nothing: a process may fork between being listed and killed."""
_FORK_S = 0.05
"""When to look for what a process has forked between being listed and being killed."""


class Ended:
    """What came of it.

    Attributes:
        killed: How many processes were sent SIGKILL.
        left: Processes that carry the job's marker and were left alone, each with the reason.
    """

    __slots__ = ("killed", "left")

    def __init__(self) -> None:
        self.killed = 0
        self.left: dict[int, str] = {}


def end_job(
    claim: Claim,
    bound_s: float = 10.0,
    *,
    launchers: Collection[Identity] = (),
    root: str = proc.ROOT,
) -> Ended:
    """SIGKILL every process of a job until two looks in a row find none.

    Args:
        claim: What the job knows of its processes.
        bound_s: Give up after this long: a process in state D does not die of SIGKILL.
        launchers: Living launchers of other jobs; see :func:`.judge`.
        root: Where to look processes up.
    """
    give_up_at = clock.monotonic() + bound_s
    ended = Ended()
    origins: dict[Identity, Origin] = {}
    held: dict[Identity, proc.Process] = {}
    clean_passes = 0
    try:
        while clean_passes < _PASSES and clock.monotonic() < give_up_at:
            table = proc.table(root)
            verdicts = judge(table, claim, os.getpid(), origins=origins, launchers=launchers)
            fresh = _kill(table, verdicts, held)
            # Its parent may die first, and with it the proof.
            claim.known |= {(pid, table[pid].started) for pid in verdicts.ours}
            ended.killed += fresh
            ended.left.update(verdicts.left)
            learn(origins, table, verdicts.unknown, root)
            living = [each for each in held.values() if not each.has_ended()]
            if verdicts.unknown:
                continue
            clean_passes = 0 if living else clean_passes + 1
            left_s = give_up_at - clock.monotonic()
            if living and left_s > 0:
                proc.await_any(living, min(left_s, _FORK_S) if fresh else left_s)
    finally:
        for process in held.values():
            process.close()
    return ended


def learn(
    origins: dict[Identity, Origin], table: dict[int, Facts], pids: Collection[int], root: str
) -> None:
    """Find out where some processes come from. One that is stuck has no marker that we know of."""
    if not pids:
        return
    # A monitor needs it once, at its end; and what needs no such look is killed by now.
    from holdfast.base.processes import memory_read  # noqa: PLC0415

    paths = {pid: memory_read.environ_path(pid, root) for pid in pids}
    found = memory_read.read_all(list(paths.values()))
    for pid, path in paths.items():
        marker = memory_read.marker(found.get(path))
        origins[pid, table[pid].started] = origin_of(pid, marker)


def _kill(table: dict[int, Facts], verdicts: Verdicts, held: dict[Identity, proc.Process]) -> int:
    """Send SIGKILL to those that were not held before; how many that were."""
    killed = 0
    for pid in verdicts.ours:
        facts = table[pid]
        identity = pid, facts.started
        if identity in held:
            continue
        try:
            process = proc.Process(pid)
        except ProcessLookupError:
            continue
        if process.start_ticks == facts.started and not process.has_ended():
            held[identity] = process
            killed += process.send(_SIGKILL)
        else:
            process.close()
    return killed
