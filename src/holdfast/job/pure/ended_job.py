"""Decide whether a launcher that finds nobody at its own host's endpoint comes after its job's end.

Pure: plain values. Instants are seconds since the host was started.

The launcher that hosts the store leaves a record when its job has succeeded. A launcher of the same
job that *had begun before that instant* was started for the job that is over: if it hosted the
store anew, it would run the whole script again. One that begins later may be a new run of the same
command, and nothing proves the opposite: it runs, and logs what the record says. After a failure
there is no record: another attempt is wanted then.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.base.pure.codec import Limit, Name, Text
from holdfast.job.pure.workload import Workload, difference


@dataclass(frozen=True)
class EndedJob:
    """A job that has succeeded, and whose store this host had.

    Attributes:
        clock: Names what ``ended_at`` was read from: boot and time namespace.
        ended_at: When its leader decided so.
        workload: What it ran.
        cause: See :class:`.End`.
    """

    clock: Name
    ended_at: Limit
    workload: Workload
    cause: Text = ""

    def includes(self, workload: Workload) -> bool:
        """Whether a launcher of this workload may have been one of its own."""
        found = difference(self.workload, workload)
        is_another = found is not None and found.is_another_job
        return not is_another and self.workload.slurm_job == workload.slurm_job

    def ended_after(self, began_at: float, clock: str) -> bool:
        """Whether a launcher had begun before the end; False where that cannot be known."""
        return self.clock == clock and began_at < self.ended_at
