"""What this launcher was started to run, for the others of its job. Only for jobs of several nodes.

Reads the script once, through :class:`~holdfast.options.plan.Machine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.job.pure.workload import UNNAMED, Workload, argument_digests, text_digest
from holdfast.options.cluster_env import slurm_ids

if TYPE_CHECKING:
    from holdfast.options.meeting_plan import MeetingPlan
    from holdfast.options.plan import Machine


def own_workload(
    args: Any, kind: str, meeting: MeetingPlan, environ: Mapping[str, str], machine: Machine
) -> Workload:
    """The workload of a command line.

    Args:
        args: The command line.
        kind: See :attr:`.LaunchPlan.entrypoint_kind`.
        meeting: How launchers of the job meet.
        environ: The launcher's environment.
        machine: Reads the script.
    """
    script: str = args.training_script
    # A module has no path before it is imported; a program found on PATH is no file of the job's.
    has_file = kind != "module" and not (kind == "program" and "/" not in script)
    contents = (machine.script_digest(script, program=kind == "program") or "") if has_file else ""
    job, step = slurm_ids(environ)
    return Workload(
        kind="script" if kind == "run-path" else kind,  # another way to run the same file
        name=Path(script).name or script,
        contents=contents,
        path=text_digest(machine.absolute(script)) if contents else "",
        arguments=argument_digests(args.training_script_args),
        min_nodes=meeting.nodes.min_nodes,
        max_nodes=meeting.nodes.max_nodes,
        max_restarts=args.max_restarts,
        is_named=args.rdzv_id not in UNNAMED,
        is_mixed=meeting.is_mixed,
        slurm_job=job,
        slurm_step=step,
    )
