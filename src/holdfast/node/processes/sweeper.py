"""End the processes that ranks left behind, and at the exit all that the launcher has started.

Which processes those are is said by ``base/processes/family.py``; see docs/what-is-killed.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.base.processes import leftovers, memory_read
from holdfast.base.pure.wording import count
from holdfast.node.console import LOGGER
from holdfast.node.part import Part
from holdfast.node.records import run_dirs

if TYPE_CHECKING:
    from holdfast.base.processes.child import Reaped
    from holdfast.base.processes.family import Family
    from holdfast.base.pure.ownership import Identity
    from holdfast.net.loop import Loop

_LAST_SWEEP_S = 2.0
"""How long the launcher's exit waits for processes that do not die of SIGKILL."""


class Sweeper(Part):
    """The processes below one launcher. Main thread only.

    Args:
        loop: Tells when a process has ended whose end nobody else is told of.
        spared: Processes of the launcher that outlive a cycle.
        living_ranks: The processes of ranks.
        on_swept: Called when nothing is left of a cycle.

    Attributes:
        family: Knows the processes below this launcher; set before there are any.
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
        self._trackers = leftovers.Trackers(self._watch)
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
        """Before ranks are signalled: what they started may lose its parent."""
        if self.family:
            self.family.remember(self.own_pids())

    def _remaining(self) -> dict[int, Identity]:
        """Processes that the ranks left; the launcher's own are none of them."""
        assert self.family is not None
        return self.family.below(self.own_pids(), self._spared())

    # ------------------------------------------------------------ a cycle is over
    def begin(self, *, tells_what_is_left: bool) -> None:
        """All ranks have ended: end what they left, and tell when that is done."""
        if tells_what_is_left:
            left = leftovers.running(self._remaining())
            if left:
                LOGGER.warning(
                    "killing %s that the ranks left behind:", count(len(left), "process", "es")
                )
            for line in leftovers.describe_each(left):
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
            leftovers.kill(identity)
        if not left:
            self.stop()
            self._report_left_alone()
            self._on_swept()

    def stop(self) -> None:
        """What is left has taken too long, and is not waited for any more."""
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
            name = leftovers.describe([pid])
            LOGGER.warning("left alone below this launcher: %s: %s", name, why)

    # ------------------------------------------------------------ the launcher ends
    def keep_helpers(self) -> None:
        """What the launcher has started is still its own when it has let go of it."""
        self._helpers = self.own_pids()

    def end_everything(self, spared: Collection[int] = ()) -> None:
        """Whatever way the launcher leaves: nothing that it started stays. Usually there is none.

        After :meth:`keep_helpers`.

        Args:
            spared: Processes that the caller ends later, with what is below them.
        """
        family = self.family
        assert family is not None
        self._trackers.close()

        def reap() -> None:
            for reaped in family.reap(self.own_pids()):
                self._helpers -= {reaped.pid}
                memory_read.forget(reaped.pid)

        if left := leftovers.end_all(
            _LAST_SWEEP_S, lambda: family.below(self.own_pids(), spared), reap
        ):
            LOGGER.error(
                "left behind, still there %g s after SIGKILL: %s",
                _LAST_SWEEP_S,
                leftovers.describe(left),
            )
        self._report_left_alone()
        family.close()


def end_orphans() -> None:
    """Before anything is started: end what a killed launcher of this user has left on this node."""
    ended, left = run_dirs.end_orphaned_processes()
    if ended:
        LOGGER.warning(
            "killed %s that a killed launcher had left on this node",
            count(ended, "process", "es"),
        )
    for pid, why in left.items():
        LOGGER.warning("process %d is left alone: %s", pid, why)
    run_dirs.remove_orphaned_runtime_dirs()
