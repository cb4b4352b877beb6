"""Collect the evidence of one rank: a list of sources, one deadline, one :class:`RankEvidence`.

    sources[0] ── it has all ──► sources[1] ── ... ──► the last one ──► finish
                                   └── the deadline ──────────────────────┘

Nothing here waits: ``step`` is called at ``next_step_at`` and when something has come. A monitor, a
node guard and a rank itself differ in their sources (``sources.py``) alone.
"""

from __future__ import annotations

from holdfast.evidence.pure.rank_digest import RankEvidence
from holdfast.evidence.sources import (
    DumpedStacks,
    HelperThread,
    ProcSamples,
    ReceiveQueues,
    TrainingThread,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from holdfast.base.processes import proc
    from holdfast.evidence.sources import Source


class Collector:
    """Goes through sources, until all have ended or the deadline has come.

    Args:
        sources: In their order; each begins when the one before it has ended.
        now: When the collection begins.
        until: Facts that have not come by then are missing.

    Attributes:
        next_step_at: When to call :meth:`step` at the latest; None: it is done.
    """

    def __init__(self, sources: Sequence[Source], now: float, until: float) -> None:
        self._sources = sources
        self._pending = list(sources)
        self._until = until
        self.next_step_at: float | None = now

    @property
    def is_done(self) -> bool:
        """Nothing more will come."""
        return self.next_step_at is None

    def step(self, now: float) -> bool:
        """Take the steps that are due; whether there is none any more."""
        if self.next_step_at is None:
            return True
        while self._pending:
            wait_until = self._pending[0].step(now)
            if wait_until is not None and now < self._until:
                self.next_step_at = min(wait_until, self._until)
                return False
            if wait_until is not None:
                break
            self._pending.pop(0)
        self.close()
        return True

    def seen(self) -> RankEvidence:
        """The facts of all sources; where two have the same, the later source's."""
        facts: dict[str, Any] = {"first": None}
        lacks: list[str] = []
        for source in self._sources:
            found = source.facts()
            lacks = [*found.pop("lacks", ()), *lacks]
            facts.update(found)
        return RankEvidence(**facts, lacks=lacks)

    def close(self) -> None:
        """Wait for nothing more: the facts that have come by now are all."""
        if not self.is_done:
            self.next_step_at = None
            for source in self._sources:
                source.finish()


class RankCollector(Collector):
    """A rank, seen by its monitor: /proc, its helper thread, stacks, its loader's workers.

    In this order: the signal that dumps stacks ends a sleep in C, and the rank would seem to
    compute, or to leave the interpreter's lock to others. It would also end the hang. So no signal
    is sent where the helper writes the stacks; where it cannot, as the main thread sleeps with the
    lock or in the kernel, it is the helper that gets the signal; a main thread that runs gets its
    own. A stopped rank is woken for its stacks last, when all ranks of the job have been looked at
    (:meth:`wake`): it runs on from there.

    Args: as :class:`.DumpedStacks`, and
        wakes_stopped: A stopped rank is woken at once: it will be ended, and no other rank is
            looked at.
        ask_helper: Asks the rank's helper thread where the rank is; None: it has none.
        ask_stacks: Asks it for the stacks.
    """

    def __init__(
        self,
        process: proc.Process,
        dump_signal: int,
        dump_path: str | None,
        now: float,
        until: float,
        *,
        wakes_stopped: bool,
        is_gentle: bool = False,
        ask_helper: Callable[[], None] | None = None,
        ask_stacks: Callable[[], None] | None = None,
    ) -> None:
        self._process = process
        self.samples = samples = ProcSamples(process.pid, now, with_children=True)
        self.helper = helper = HelperThread(samples, ask_helper, now, until)
        self.stacks = stacks = DumpedStacks(
            process,
            dump_signal,
            dump_path,
            samples=samples,
            helper=helper,
            ask_helper=ask_stacks,
            wakes_stopped=wakes_stopped,
            will_end=wakes_stopped,
            is_gentle=is_gentle,
        )
        training = TrainingThread(process.pid, helper, stacks, now)
        queues = ReceiveQueues(process.pid, stacks)
        super().__init__([samples, helper, stacks, training, queues], now, until)
        self.next_step_at = samples.second_due_at

    def is_at(self, process: proc.Process) -> bool:
        """Whether this is the process that is looked at."""
        mine = self._process
        return (mine.pid, mine.start_ticks) == (process.pid, process.start_ticks)

    def wake(self, now: float, until: float) -> None:
        """Have the stacks of a rank that was left stopped: all others have been looked at."""
        if self.stacks.is_left_stopped:
            self._until = until
            self.stacks.wake(now)
            self._pending = [self.stacks]
            self.next_step_at = now
