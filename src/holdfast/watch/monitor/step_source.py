"""Which process may report the optimizer steps of a rank: the rank, not a child of it.

The hook that counts steps leaves the environment of the first Python that loads it: the rank, or
the Python that a shell started in its place. But where the rank ignores PYTHONPATH (``python -I``,
``-E``, ``-S``), that is a child of the rank, and watching it would leave the rank unwatched, or end
the job for a child that does nothing.
"""

from __future__ import annotations

import os

from holdfast.base.processes import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.watch.pure.rank_messages import Hello

_INTERPRETERS = ("python", "pypy")


class StepSource:
    """Tells ranks from their children, by their ancestors up to the launcher, the parent process.

    Args:
        log: Takes a line about the first child that is rejected, and its level.
        root: Where processes are found.
    """

    def __init__(self, log: Callable[[str, str], None], root: str = proc.ROOT) -> None:
        self._log = log
        self._root = root
        self._has_said = False

    def rejects(self, pid: int, hello: Hello) -> str | None:
        """Why process ``pid`` (0: it cannot be seen) is not watched; None: it may be the rank.

        Whoever makes a client of its own has said that it is the rank.
        """
        if not (hello.by_steps and pid and (line := proc.lineage(pid, os.getppid(), self._root))):
            return None
        is_below_python = any(self._is_python(each) for each in line[1:])
        if not is_below_python and self._leads_session(line[-1]):  # as ranks do, orphans do not
            return None
        # The steps of a rank that forks count, and those of its forks need not.
        if not (self._has_said or proc.is_fork(pid, self._root)):
            self._has_said = True
            self._log(
                "warning" if hello.rank == 0 else "debug",  # all ranks of a job start alike
                f"rank {hello.rank}: optimizer steps of process {pid} do not count as heartbeats, "
                "because it is a process that the rank has started. The rank's own steps do not "
                "count, either: its Python ignores PYTHONPATH. To have its hangs found, start it "
                "without -I, -E and -S, or have it make a RankMonitorClient",
            )
        return f"process {pid} is not the rank"

    def _is_python(self, pid: int) -> bool:
        return proc.program(pid, self._root).startswith(_INTERPRETERS)

    def _leads_session(self, pid: int) -> bool:
        seen = proc.stat(pid, self._root)
        return seen is not None and seen.session == pid
