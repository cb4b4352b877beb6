"""End the leftovers of a job that its launcher can't end: it is dead, or stopped.

Kills processes that :mod:`holdfast.base.pure.ownership` proves to be the job's, through a pidfd,
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

_PASSES = 2
"""So many in a row have to find nothing: a process may fork between being listed and killed."""
_FORK_S = 0.05
"""When to look for children that a process forked between being listed and being killed."""


class OrphansKilled:
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
) -> OrphansKilled:
    """SIGKILL every process of a job until two looks in a row find none.

    Args:
        claim: The job's facts about its processes.
        bound_s: Give up after this long: a process in state D does not die of SIGKILL.
        launchers: Living launchers of other jobs; see :func:`.judge`.
        root: Where to look processes up.
    """
    give_up_at = clock.monotonic() + bound_s
    ended = OrphansKilled()
    origins: dict[Identity, Origin] = {}
    held: dict[Identity, proc.Process] = {}
    clean_passes = 0
    try:
        while clean_passes < _PASSES and clock.monotonic() < give_up_at:
            table = proc.table(root)
            verdicts = judge(table, claim, os.getpid(), origins=origins, launchers=launchers)
            fresh = _kill(table, verdicts, held)
            # Its parent may die first, and with it the proof.
            claim.known |= {(pid, table[pid].started) for pid in verdicts.owned}
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
    """Find out where some processes come from. The marker of one that is stuck is not known."""
    if not pids:
        return
    # A monitor needs it once, at its end; and what needs no such look is killed by now.
    from holdfast.base.processes import file_read  # noqa: PLC0415

    paths = {pid: file_read.environ_path(pid, root) for pid in pids}
    found = file_read.read_all(list(paths.values()))
    for pid, path in paths.items():
        marker = file_read.marker(found.get(path))
        origins[pid, table[pid].started] = origin_of(pid, marker)


def _kill(table: dict[int, Facts], verdicts: Verdicts, held: dict[Identity, proc.Process]) -> int:
    """Send SIGKILL to those that were not held before; how many that were."""
    killed = 0
    for pid in verdicts.owned:
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
            killed += process.kill()
        else:
            process.close()
    return killed
