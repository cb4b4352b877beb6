"""Keep a launcher that comes after its job's end, on the store's own host, from starting it again.

:class:`holdfast.job.pure.workload.EndedJob` decides whether it is late.
"""

from __future__ import annotations

import json

from holdfast.base import clock
from holdfast.base.processes.job_name import clock_of, new_job
from holdfast.base.pure.codec import MessageError, decode, encode, family
from holdfast.job import ended_jobs
from holdfast.job.pure.exit_codes import Ending
from holdfast.job.pure.membership import End, JobOutcome
from holdfast.job.pure.workload import EndedJob, Workload
from holdfast.node.console import LOGGER

_RECORDS = family(EndedJob)
_RECENT_S = 900.0
"""How long after a job's end another start of it is worth a line."""


class EndedJobs:
    """The ended jobs of one store's port and one run id on this host."""

    def __init__(self, port: int, run_id: str, workload: Workload) -> None:
        self._key = f"{port} {run_id}"
        self._workload = workload
        self._began_at = clock.since_boot()
        self._clock = clock_of(new_job())

    def note(self, end: End) -> None:
        """The job whose store is hosted here ends so."""
        if end.outcome is not JobOutcome.SUCCEEDED or self._clock is None:
            return
        record = EndedJob(self._clock, clock.since_boot(), self._workload, end.cause)
        try:
            ended_jobs.write(self._key, json.dumps(encode(record)).encode())
        except OSError as error:
            LOGGER.debug("a launcher that comes late will not know that the job is over: %s", error)

    def end_before_start(self) -> End | None:
        """How the job of this launcher has ended already; None: it has not, as far as is proven."""
        data = ended_jobs.read(self._key)
        try:
            record = None if data is None else decode(_RECORDS, json.loads(data))
        except (MessageError, ValueError):  # of another version, or cut off
            return None
        if record is None or self._clock != record.clock or not record.includes(self._workload):
            return None
        ago_s = clock.since_boot() - record.ended_at
        if record.ended_after(self._began_at, self._clock):
            cause = f"{record.cause}, {ago_s:.0f} s ago, while this launcher was getting ready"
            return End(JobOutcome.SUCCEEDED, Ending.SUCCEEDED.code(), cause)
        if ago_s < _RECENT_S:
            LOGGER.info(
                "a job of this name and script has succeeded on this endpoint %.0f s ago, before "
                "this launcher began, which starts it again. If this launcher was meant to be part "
                "of that job, end it",
                ago_s,
            )
        return None
