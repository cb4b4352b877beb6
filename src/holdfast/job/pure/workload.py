"""Decide whether two launchers that meet were started for one job, from their commands.

Pure. Endpoint and name bring launchers together, and torchrun's default name of every job is
``none``. So each launcher sends the leader its :class:`Workload`, to compare with its own::

    equal, or not sent (an older version)                   one job
    the user or the scheduler says that it is one job        one job; differences are reported
    another script, module or function                       another job: refused
    no name, and two Slurm jobs                              another job: refused
    other arguments, --nnodes, --max-restarts, or contents   one job, for torchrun runs it as one;
    of a script at the same path                             differences are reported

The number of ranks and the path of an equal script may differ from node to node, which is no
difference at all. Nothing that is sent lets a reader of the network find an argument: 16 bits of
its digest say whether it is equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from holdfast.base.pure.codec import Count, Limit, Name, Raw, Text, Whole
from holdfast.base.pure.value import Value
from holdfast.base.pure.wording import count

UNNAMED = ("", "none")
"""Names of jobs without a name; the second is torchrun's default."""
MIXED = "mixed_workloads"
"""The key of ``--rdzv-conf`` that says: nodes of this job run different programs."""

_ARGUMENT_DIGITS = 4
_ARGUMENTS_MOST = 1000
_CONTENTS_SHOWN = 8
OneOrMore = Annotated[int, Whole(1)]


@dataclass(frozen=True)
class Workload:
    """The command that a launcher was started for.

    Attributes:
        kind: ``script``, ``module``, ``program`` or ``function``.
        name: Of it, without its folder.
        contents: SHA-256 of the script's file (of a function: of the program, where that defines
            it), in hexadecimal; empty: it has no file, or one that cannot be read, or is no text.
        path: SHA-256 of the absolute path of that file; empty: likewise.
        arguments: The first digits of the SHA-256 of each argument of the script, joined.
        min_nodes, max_nodes: ``--nnodes``.
        max_restarts: ``--max-restarts``.
        is_named: The user gave the job a name (``--rdzv-id``).
        is_mixed: The user says that nodes of the job run different programs.
        slurm_job: Of this launcher; empty: Slurm has not started it, or not said so.
        slurm_step: Of this launcher, and how often Slurm has started it again; empty: likewise.
    """

    kind: Name
    name: Raw
    contents: Raw = ""
    path: Raw = ""
    arguments: Raw = ""
    min_nodes: OneOrMore = 1
    max_nodes: OneOrMore = 1
    max_restarts: Count = 0
    is_named: bool = False
    is_mixed: bool = False
    slurm_job: Raw = ""
    slurm_step: Raw = ""

    def __str__(self) -> str:
        contents = f"sha256 {self.contents[:_CONTENTS_SHOWN]}, " if self.contents else ""
        about = f"{contents}{count(self.n_arguments, 'argument')}, --nnodes {self.nnodes}"
        return f"{self.kind} {self.name} ({about})"

    @property
    def n_arguments(self) -> int:
        """How many arguments of the script were compared."""
        return len(self.arguments) // _ARGUMENT_DIGITS

    @property
    def nnodes(self) -> str:
        """As on the command line."""
        low, high = self.min_nodes, self.max_nodes
        return str(high) if low == high else f"{low}:{high}"


class Difference(Value):
    """How a launcher's workload differs from the job's, in words.

    ``is_another_job``: it must not take part.
    """

    text: str
    is_another_job: bool = False


def argument_digests(arguments: Sequence[str]) -> str:
    """:attr:`Workload.arguments` of a command line; those beyond 1000 count as one."""
    most = _ARGUMENTS_MOST - 1
    parts = [*arguments[:most]]
    if len(arguments) > most:
        parts.append("\0".join(arguments[most:]))
    return "".join(text_digest(part)[:_ARGUMENT_DIGITS] for part in parts)


def text_digest(text: str) -> str:
    """SHA-256 in hexadecimal, of any text that Linux takes as an argument or a path."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def difference(job: Workload | None, its: Workload | None) -> Difference | None:
    """How the workload of a launcher differs from the job's; None: it does not, or is not known."""
    if job is None or its is None or job == its:
        return None
    is_one_step = bool(job.slurm_step) and (
        (job.slurm_job, job.slurm_step) == (its.slurm_job, its.slurm_step)
    )
    is_one_job = is_one_step or (job.is_mixed and its.is_mixed)
    if not is_one_job and _is_another_program(job, its):
        return Difference(f"it was started to run {its}, and the job runs {job}", True)
    slurm_jobs = {job.slurm_job, its.slurm_job}
    is_unnamed = not job.is_named and not its.is_named
    if not is_one_job and is_unnamed and len(slurm_jobs) > 1 and "" not in slurm_jobs:
        text = (
            f"it is of Slurm job {its.slurm_job}, and this job of Slurm job {job.slurm_job}; both "
            f"are unnamed (--rdzv-id none) and run {job.kind} {job.name}"
        )
        return Difference(text, True)
    parts = [*_differences(job, its)]
    return Difference("; ".join(parts)) if parts else None


def _is_another_program(job: Workload, its: Workload) -> bool:
    if job.kind != its.kind or (job.kind == "function" and job.name != its.name):
        return True
    if job.contents or its.contents:
        # The file at one path is one script: it was edited, or copied to one node and not yet to
        # the other. Equal files are one script, whatever each node mounts them at.
        return job.contents != its.contents and job.path != its.path
    # A program without text (python3, python3.12) may have another name on another node.
    return job.name != its.name and job.kind != "program"


def _differences(job: Workload, its: Workload) -> list[str]:
    """Differences that torchrun would run: theirs, then the job's."""
    parts = []
    if (job.kind, job.name) != (its.kind, its.name) and _is_another_program(job, its):
        parts.append(f"it runs {its.kind} {its.name}, the leader {job.kind} {job.name}")
    elif job.contents != its.contents:
        sums = [one.contents[:_CONTENTS_SHOWN] or "not known" for one in (its, job)]
        parts.append(
            f"the contents of {its.name} differ (sha256 {sums[0]}, the leader's {sums[1]})"
        )
    elif job.kind == "program" and job.name != its.name:
        parts.append(f"it runs {its.name}, the leader {job.name}")
    if job.arguments != its.arguments:
        parts.append(_different_arguments(job, its))
    if (job.min_nodes, job.max_nodes) != (its.min_nodes, its.max_nodes):
        parts.append(f"it has --nnodes {its.nnodes}, and the leader's {job.nnodes} counts")
    if job.max_restarts != its.max_restarts:
        counts = f"and the leader's {job.max_restarts} counts"
        parts.append(f"it has --max-restarts {its.max_restarts}, {counts}")
    return parts


def _different_arguments(job: Workload, its: Workload) -> str:
    if job.n_arguments != its.n_arguments:
        its_own = count(its.n_arguments, "argument")
        return f"the script gets {its_own} there, and {job.n_arguments} from the leader"
    width = _ARGUMENT_DIGITS
    differ = [
        at // width + 1
        for at in range(0, len(job.arguments), width)
        if job.arguments[at : at + width] != its.arguments[at : at + width]
    ]
    more = f", and {len(differ) - 1} more" if len(differ) > 1 else ""
    return f"argument {differ[0]} of {job.n_arguments} of the script is not the leader's{more}"


class EndedJob(Value):
    """A job that has succeeded, as the launcher that hosted its store has left it on this host.

    A launcher of the same job that *had begun before that instant* was started for the job that is
    over: if it led it anew, it would run the whole script again. One that begins later
    may be a new run of the same command: it runs. After a failure there is no record: another
    attempt is wanted then.

    Attributes:
        clock: Names the clock of ``ended_at``: boot and time namespace.
        ended_at: When its leader decided so, in seconds since the host was started.
        workload: Its command.
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
