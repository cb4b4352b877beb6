"""End the processes that ranks left behind, and at the exit all that the launcher has started.

Which processes those are is said by ``base/processes/descendants.py``; see docs/what-is-killed.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.base.processes import file_read, proc, reaper
from holdfast.base.pure.wording import count
from holdfast.node.console import LOGGER
from holdfast.node.part import Part
from holdfast.node.records import run_dirs

if TYPE_CHECKING:
    from holdfast.base.processes.child import Reaped
    from holdfast.base.processes.descendants import Family
    from holdfast.base.pure.ownership import Identity
    from holdfast.net.loop import Loop

_LAST_SWEEP_S = 2.0
"""How long the launcher's exit waits for processes that do not die of SIGKILL."""
_MANAGER_S = 5.0
"""How long it waits for torch's managers of shared memory, which end after 2 s."""


class Sweeper(Part):
    """The processes below one launcher. Main thread only.

    ``spared`` are processes of the launcher that outlive a cycle. ``family``, the register of all
    processes below it, is set before there are any.
    """

    def __init__(
        self,
        loop: Loop,
        spared: Callable[[], frozenset[int]],
        living_ranks: Callable[[], frozenset[int]],
        on_swept: Callable[[], None],
    ) -> None:
        self.family: Family | None = None
        self._loop = loop
        self._spared = spared
        self._living_ranks = living_ranks
        self._on_swept = on_swept
        self._helpers: frozenset[int] = frozenset()
        self._trackers = reaper.Trackers(self._watch)
        self._is_sweeping = False
        self._again_at: float | None = None

    def own_pids(self) -> frozenset[int]:
        """All that the launcher has started and not reaped."""
        return self._spared() | self._living_ranks() | self._helpers

    def reap(self) -> Iterable[Reaped]:
        """Processes that have ended."""
        assert self.family is not None
        return self.family.reap(self.own_pids())

    def remember(self) -> None:
        """Before ranks are signalled: their children may lose their parent."""
        if self.family:
            self.family.remember(self.own_pids())

    def _remaining(self) -> dict[int, Identity]:
        """Processes that the ranks left; the launcher's own are none of them.

        A manager of shared memory disturbs no next cycle: a restart does not wait for its end.
        """
        assert self.family is not None
        return _without_managers(self.family.below(self.own_pids(), self._spared()))

    # ------------------------------------------------------------ a cycle is over
    def begin(self, *, logs_leftovers: bool) -> None:
        """All ranks have ended: end their leftovers, then call ``on_swept``."""
        if logs_leftovers:
            left = reaper.running(self._remaining())
            if left:
                LOGGER.warning(
                    "killing %s that the ranks left behind:", count(len(left), "process", "es")
                )
            for line in reaper.describe_each(left):
                LOGGER.warning("  %s", line)
        self._is_sweeping = True
        self.go_on()

    def go_on(self) -> None:
        """Something may have ended meanwhile."""
        if not self._is_sweeping:
            return
        left = self._remaining()
        to_kill, self._again_at = self._trackers.sort(left.values(), clock.monotonic())
        for identity in to_kill:
            reaper.kill(identity)
        if not left:
            self.stop()
            self._report_left_alone()
            self._on_swept()

    def stop(self) -> None:
        """Wait for leftovers no longer: they have taken too long."""
        self._is_sweeping = False
        self._trackers.close()

    def next_deadline(self) -> float | None:
        """When :meth:`on_time` is due; None: never."""
        return self._again_at if self._is_sweeping else None

    def on_time(self) -> None:
        """That instant may have come."""
        at = self.next_deadline()
        if at is not None and clock.monotonic() >= at:
            self.go_on()

    def _watch(self, fd: int, wanted: bool) -> None:  # noqa: FBT001 - called by position
        if wanted:
            self._loop.watch(fd, self.go_on)
        else:
            self._loop.forget(fd)

    def _report_left_alone(self) -> None:
        assert self.family is not None
        for pid, why in self.family.left_alone().items():
            name = reaper.describe([pid])
            LOGGER.warning("left alone below this launcher: %s: %s", name, why)

    # ------------------------------------------------------------ the launcher ends
    def keep_helpers(self) -> None:
        """Remember the launcher's own processes before it closes their connections."""
        self._helpers = self.own_pids()

    def end_everything(self, spared: Collection[int] = ()) -> None:
        """However the launcher leaves, no process that it started stays. Usually there is none.

        After :meth:`keep_helpers`. The caller ends ``spared`` later, with all below them.
        """
        family = self.family
        assert family is not None
        self._trackers.close()

        def reap() -> None:
            for reaped in family.reap(self.own_pids()):
                self._helpers -= {reaped.pid}
                file_read.forget(reaped.pid)

        def below() -> dict[int, Identity]:
            return family.below(self.own_pids(), spared)

        reaper.end_all(_LAST_SWEEP_S, lambda: _without_managers(below()), reap)
        reaper.await_end(_MANAGER_S, lambda: _managers(below()), reap)
        if left := reaper.end_all(_LAST_SWEEP_S, below, reap):
            LOGGER.error(
                "left behind, still there %g s after SIGKILL: %s",
                _LAST_SWEEP_S,
                reaper.describe(left),
            )
        self._report_left_alone()
        family.close()


def _managers(found: Mapping[int, Identity]) -> dict[int, Identity]:
    return {pid: each for pid, each in found.items() if proc.is_shm_manager(pid)}


def _without_managers(found: Mapping[int, Identity]) -> dict[int, Identity]:
    return {pid: each for pid, each in found.items() if not proc.is_shm_manager(pid)}


def end_orphans() -> None:
    """End processes that a killed launcher of this user has left on this node."""
    ended, left = run_dirs.end_orphaned_processes()
    if ended:
        LOGGER.warning(
            "killed %s that a killed launcher had left on this node",
            count(ended, "process", "es"),
        )
    for pid, why in left.items():
        LOGGER.warning("process %d is left alone: %s", pid, why)
    run_dirs.remove_orphaned_runtime_dirs()
