"""End the leftovers of a job that its launcher can't end: it is dead, or stopped.

Kills processes that :mod:`holdfast.base.pure.ownership` proves to be the job's, through a pidfd,
after a second look at the process it holds.
"""

from __future__ import annotations

import os

from holdfast.base import clock
from holdfast.base.processes import job_name, job_record, proc
from holdfast.base.pure.ownership import judge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from holdfast.base.pure.ownership import Claim, Facts, Identity, Origin, Verdicts

_PASSES = 2
"""So many in a row have to find nothing: a process may fork between being listed and killed."""
_FORK_S = 0.05
"""When to look for children that a process forked between being listed and being killed."""
_FIRST_LOOK_S, _LOOK_S_MAX = 1.0, 60.0


class OrphansKilled:
    """How many processes were sent SIGKILL.

    And which were ``left`` alone though they carry the job's marker, each with the reason.
    """

    def __init__(self) -> None:
        self.killed = 0
        self.left: dict[int, str] = {}


def end_job(
    claim: Claim,
    bound_s: float = 10.0,
    *,
    launchers: Collection[Identity] = (),
    root: str = proc.ROOT,
    is_stopped: Callable[[], bool] = lambda: True,
) -> OrphansKilled:
    """SIGKILL every process of a job until two looks in a row find none.

    Args:
        claim: The job's facts about its processes.
        bound_s: Give up after this long: a process in state D does not die of SIGKILL.
        launchers: Living launchers of other jobs; see :func:`.judge`.
        root: Of ``/proc``.
        is_stopped: The launcher is dead, or has not said anew how long ranks may live. One that
            has is left the rest: it may have started the job's next ranks already.
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
            if not is_stopped():
                break
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
        origins[pid, table[pid].started] = job_record.origin_of(pid, marker)


def _kill(table: dict[int, Facts], verdicts: Verdicts, held: dict[Identity, proc.Process]) -> int:
    """Send SIGKILL to those that were not held before; how many that were."""
    killed = 0
    for pid in verdicts.owned:
        identity = pid, table[pid].started
        if proc.is_shm_manager(pid):
            continue  # it has work to do, and ends by itself
        if identity not in held and (process := proc.hold(identity)) is not None:
            held[identity] = process
            killed += process.kill()
    return killed


class RankProcesses:
    """The processes of a launcher's ranks, as a rank monitor knows them, to end them in its place.

    A process that left the session of its rank and cleared its environment looks like any other
    once the rank is dead. So a monitor lists the processes below its rank now and then: one second
    after a cycle began, then after two more, and so on up to a minute.

    Args:
        job: The launcher's.
        folder: Its runtime directory, with the record of its processes; None: it has none.
        local_rank: Whose children are looked at.

    Attributes:
        next_look_at: When to call :meth:`look`.
        known: Processes seen below the rank, outside its session, that are alive.
    """

    def __init__(self, job: str, folder: str | None, local_rank: int) -> None:
        self.next_look_at = float("inf")
        self.known: set[Identity] = set()
        self._job = job
        self._folder = folder
        self._local_rank = local_rank
        self._launcher = proc.identity(os.getppid()) or (0, 0)
        self._pause_s = _FIRST_LOOK_S

    def cycle_began(self, now: float) -> None:
        """Ranks are being started."""
        self._pause_s = _FIRST_LOOK_S
        if self._folder is not None:
            self.next_look_at = now + self._pause_s

    def look(self, now: float) -> None:
        """Learn what lies below the rank."""
        self._pause_s = min(2 * self._pause_s, _LOOK_S_MAX)
        self.next_look_at = now + self._pause_s
        self._look(self._claim())

    def end_all(self, is_stopped: Callable[[], bool] = lambda: True) -> OrphansKilled:
        """SIGKILL all ranks with their children, parked interpreters and the health process.

        ``is_stopped``: as for :func:`end_job`.
        """
        claim = self._claim()
        claim.alive_at = job_record.ticks_now()  # the launcher has noticed every end until now
        self._look(claim)  # ranks with much memory take long to die: their children show
        claim.known |= self.known
        launchers = []
        if self._folder is not None:
            here = job_name.living_launchers(os.path.dirname(self._folder))
            launchers = [each for each in here if each != claim.launcher]
        return end_job(claim, launchers=launchers, is_stopped=is_stopped)

    def _claim(self) -> Claim:
        written = job_record.read_claim(self._folder) if self._folder is not None else None
        return written or job_record.minimal_claim(self._job, self._launcher)

    def _look(self, claim: Claim) -> None:
        ranks = list(claim.ranks.items())
        roots = {each for each in self.known if proc.identity(each[0]) == each}
        session = -1
        if self._local_rank < len(ranks):
            session = ranks[self._local_rank][0]
            roots.add((session, ranks[self._local_rank][1][0]))
        known: set[Identity] = set()
        for pid, started in roots:
            below = proc.subtree(pid)
            if pid in below and below[pid].started == started:
                known |= {
                    (each, facts.started)
                    for each, facts in below.items()
                    if facts.session != session
                }
        self.known = known
