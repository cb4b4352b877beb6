"""The processes of a launcher's ranks, as a rank monitor knows them, to end them in its place.

A process that left the session of its rank and cleared its environment looks like any other once
the rank is dead. So a monitor lists the processes below its rank now and then: one second after a
cycle began, then after two more, and so on up to a minute.
"""

from __future__ import annotations

import os

from holdfast.base.processes import job_name, job_record, orphans, proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.base.pure.ownership import Claim, Identity

_FIRST_LOOK_S = 1.0
_LOOK_S_MAX = 60.0


class Kin:
    """Processes of one launcher's ranks.

    Args:
        job: Its name.
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

    def end_all(self) -> orphans.OrphansKilled:
        """SIGKILL all ranks with their children, parked interpreters and the health process."""
        claim = self._claim()
        claim.alive_at = job_record.ticks_now()  # the launcher has noticed every end until now
        self._look(claim)  # ranks with much memory take long to die: their children show
        claim.known |= self.known
        launchers = []
        if self._folder is not None:
            here = job_name.living_launchers(os.path.dirname(self._folder))
            launchers = [each for each in here if each != claim.launcher]
        return orphans.end_job(claim, launchers=launchers)

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
