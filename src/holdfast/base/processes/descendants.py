"""The processes below a launcher, as far as they are its own.

A launcher that runs as a command has nothing else below it. One that is part of a user's program,
or was executed by a shell with helpers, or is process 1 of a container, has: there, each process
needs a proof (:mod:`holdfast.base.pure.ownership`), and only pids of the job are reaped.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from holdfast.base.processes import child, file_read, proc
from holdfast.base.processes.job_record import JobRecord, ticks_now
from holdfast.base.processes.orphans import learn
from holdfast.base.pure.ownership import INIT, judge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.base.pure.ownership import Identity, Origin


class Family:
    """All that a launcher has started, and what that has.

    Args:
        record: Of its processes.
        owns_process: The launcher is this process, no part of a program.
        started: Pids that it has started before.
    """

    def __init__(self, record: JobRecord, *, owns_process: bool, started: Collection[int]) -> None:
        self._record = record
        self._claim = record.claim
        self._owns_process = owns_process
        self._me = os.getpid()
        own = {*started, *file_read.readers()}  # one that is stuck stays for a while
        before = [proc.identity(pid) for pid in proc.children(self._me) if pid not in own]
        self._claim.foreign = frozenset(each for each in before if each is not None)
        self._claim.is_alone = owns_process and self._me != INIT and not self._claim.foreign
        self._proven: set[Identity] = set()
        self._origins: dict[Identity, Origin] = {}
        self._named: set[int] = set()
        self._left: dict[int, str] = {}
        self._was_subreaper = child.is_subreaper() if not owns_process else True
        child.become_subreaper()

    def ranks_started(self, pids: list[int]) -> None:
        """Ranks of a cycle run now."""
        self._record.ranks_started(pids)

    def reap(self, own: Collection[int]) -> list[child.Reaped]:
        """Children that have ended; of a user's program, those in ``own`` alone."""
        reaped = list(child.reap(None if self._owns_process else own))
        if ranks := {each.pid for each in reaped} & self._claim.ranks.keys():
            self._record.ranks_ended(ranks)
        return reaped

    def remember(self, own: Collection[int]) -> None:
        """Take note of the job's processes below this one, before some of them are ended."""
        if not self._claim.is_alone:
            self._look(own, ())

    def below(self, own: Collection[int], spared: Collection[int] = ()) -> dict[int, Identity]:
        """The job's processes below this one, zombies included.

        Args:
            own: Pids that the launcher has started and not reaped.
            spared: Of them, those to be left, with all below them.
        """
        found = self._look(own, spared)
        if not self._owns_process:
            for pid in [pid for pid in found if pid not in own]:
                with contextlib.suppress(ChildProcessError):  # it is another process's child
                    if os.waitpid(pid, os.WNOHANG)[0]:
                        del found[pid]
        return found

    def left_alone(self) -> dict[int, str]:
        """Processes below that are perhaps the job's and were left, each once, with the reason."""
        left = {pid: why for pid, why in self._left.items() if pid not in self._named}
        self._named.update(left)
        return left

    def close(self) -> None:
        """Adopt no orphans any more, where that is not this process's end anyway."""
        if not self._was_subreaper:
            child.become_subreaper(on=False)

    def _look(self, own: Collection[int], spared: Collection[int]) -> dict[int, Identity]:
        table = proc.subtree(self._me, frozenset(spared))
        mine = {(pid, table[pid].started) for pid in own if pid in table}
        claim = self._claim
        claim.alive_at, claim.known = ticks_now(), frozenset(mine | self._proven)
        verdicts = judge(table, claim, self._me, origins=self._origins, spared=spared)
        if verdicts.unknown:
            learn(self._origins, table, verdicts.unknown, proc.ROOT)
            verdicts = judge(table, claim, self._me, origins=self._origins, spared=spared)
        found = {pid: (pid, table[pid].started) for pid in verdicts.owned}
        living = {(pid, facts.started) for pid, facts in table.items()}
        self._proven = (self._proven & living) | set(found.values())
        for pid, why in verdicts.left.items():
            stat = proc.stat(pid)
            if stat is not None and stat.state != "Z":
                self._left[pid] = why
        return found
