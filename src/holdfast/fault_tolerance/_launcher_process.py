"""The launcher of a program: a process of its own between the program and its ranks.

Run as ``python _launcher_process.py FOLDER PARENT_PID``. It reaps and signals its own descendants
alone, and dies when the program does. In the folder, which is private, are the path to import from
(``path``) and the plan (``plan``); it writes the end of the job to ``outcome``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.node.agent import NodeAgent

_CANNOT_START = 127


def main(folder: str, parent: int) -> int:
    """Carry out the plan; returns the launcher's exit code."""
    sys.path[:] = json.loads(Path(folder, "path").read_text())
    from holdfast.base.processes.rank_boot import die_with_parent  # noqa: PLC0415 - now

    die_with_parent()
    if os.getppid() != parent:  # it died before the death signal was set
        return _CANNOT_START
    from holdfast.base.processes import process_defaults  # noqa: PLC0415
    from holdfast.fault_tolerance import launcher  # noqa: PLC0415
    from holdfast.job.pure.job_secret import drop_secret  # noqa: PLC0415
    from holdfast.node.processes.function_rank import open_own, take  # noqa: PLC0415

    process_defaults.open_closed_ones()
    process_defaults.raise_descriptor_limit()
    drop_secret(os.environ)  # the plan has it, and no child needs it
    with open_own(folder, "plan") as file:
        plan = take(file)
    return launcher.run(plan, lambda agent: _write_outcome(folder, agent), owns_process=True)


def _write_outcome(folder: str, agent: NodeAgent) -> None:
    part = Path(folder, "outcome.part")
    part.write_text(json.dumps(agent.outcome()))
    part.rename(part.with_name("outcome"))


if __name__ == "__main__":
    exit_code = main(sys.argv[1], int(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # a foreign backend may have left a thread, and would abort here
