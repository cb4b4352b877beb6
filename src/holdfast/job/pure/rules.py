"""The configuration of a job, as its leader needs it. Pure: plain values."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from holdfast.evidence.pure.stall_rules import StallRules
from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.exit_codes import NO_RESTART
from holdfast.job.pure.workload import Workload


class RestartPolicy(enum.Enum):
    """When all ranks are restarted."""

    ANY_FAILED = "any-failed"
    """One failed rank anywhere."""
    MIN_HEALTHY = "min-healthy"
    """Fewer than MIN nodes that are healthy or have succeeded; lets in-process restart work.

    On one node: no rank runs any more, and none has ended well.
    """


@dataclass(frozen=True)
class Rules:
    """The configuration of a job. Times in seconds.

    Attributes:
        nodes: How many nodes have ranks, and which ranks.
        max_restarts: How often the job may be started again after a failure, all nodes together.
        restarts_period_s: The budget is per any such period; None: for the whole job.
        first_last_call_s: Once MIN have joined for the first time, how long to wait for more.
            torchrun's 30. At MAX it is not waited.
        later_last_call_s: The same after a restart, once all survivors have joined again.
        grow: Under any-failed, a node that joins while there are fewer than MAX stops the cycle so
            that the next has it. Costs no restart of the budget: nothing failed. So that a node
            that comes and goes can't keep the job from working, a cycle lives at least
            ``grow_cooldown_s`` before it is stopped for growth.
        backoff_s: Wait before the second of two failures in a row is restarted; doubles up to
            ``backoff_max_s``. A cycle that lived for ``backoff_max_s`` ends the row. 0: never wait.
        max_no_progress_cycles: Give up after so many failed cycles in a row that did not advance
            the checkpoint by ``min_progress_iterations``; 0: never. Needs :class:`IterationRead`.
        max_same_failures: Give up after so many cycles in a row that ended of the same failure
            without progress; 0: never.
        no_restart_exit_code: Of a launcher that a scheduler should not start again.
        linger_s: At the end, how long to wait for acknowledgements: long enough to stop ranks.
        launchers: How many the scheduler has started; None: not known, MAX at most. A node that
            was excluded or is not healthy is one less that can come.
        is_of_one: The job has this launcher, and can have no other.
        reads_iterations: :class:`ReadIteration` will be answered.
        evidence_s: See :class:`.Incidents`; 0: no evidence of other ranks is taken.
        workload: The command of the job; None: not known, and launchers of any may join.
        stall: The user's choice for ranks that make no steps, and have no timeouts.
        snapshot_progress: See :attr:`.StateChoice.progress`.
        snapshot_keep_s: See :attr:`.Keeping.period_s`.
    """

    nodes: NodePolicy
    restart: RestartPolicy = RestartPolicy.ANY_FAILED
    max_restarts: int = 0
    restarts_period_s: float | None = None
    first_last_call_s: float = 30.0
    later_last_call_s: float = 0.0
    grow: bool = True
    grow_cooldown_s: float = 30.0
    backoff_s: float = 0.0
    backoff_max_s: float = 300.0
    max_no_progress_cycles: int = 2
    min_progress_iterations: int = 1
    max_same_failures: int = 0
    no_restart_exit_code: int = NO_RESTART
    linger_s: float = 60.0
    launchers: int | None = None
    is_of_one: bool = False
    reads_iterations: bool = False
    evidence_s: float = 0.0
    workload: Workload | None = None
    stall: StallRules = StallRules()  # noqa: RUF009 - a value
    snapshot_progress: int = 10
    snapshot_keep_s: float = 0.0

    @property
    def survives_ranks(self) -> bool:
        """Min-healthy counts ranks where the job has one node: it goes on as long as one runs."""
        return self.is_of_one and self.restart is RestartPolicy.MIN_HEALTHY
