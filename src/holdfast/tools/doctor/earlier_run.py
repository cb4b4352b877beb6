"""The snapshots of the last run of a script, by which the doctor has numbers for the next one."""

from __future__ import annotations

from pathlib import Path

from holdfast.base.pure.value import Value
from holdfast.events.pure import schema
from holdfast.events.run.event_lines import files_of_events
from holdfast.options.plan import LaunchPlan
from holdfast.tools.run.reader import events_in
from holdfast.tools.run_list import find_runs, script_of

_RUNS_MAX = 20
"""So many runs are read, the newest first."""


class EarlierRun(Value):
    """Numbers of a run.

    Attributes:
        name: Of its folder.
        slot_bytes: The state of a rank.
        every: One of so many steps was taken; 0: not agreed.
        step_s: The length of a step; None: not known.
        copy_s: From the decision to keep a step to its last copy, at most; None: none was kept.
    """

    name: str
    slot_bytes: int
    every: int = 0
    step_s: float | None = None
    copy_s: float | None = None


def find(plan: LaunchPlan) -> EarlierRun | None:
    """The newest run of this script on this host that took snapshots; None: none is known."""
    folders = [Path(plan.log_dir)] if plan.log_dir is not None else []
    for folder in find_runs(folders)[::-1][:_RUNS_MAX]:
        if script_of(folder) == plan.name and (found := _read(folder)) is not None:
            return found
    return None


def _read(folder: Path) -> EarlierRun | None:
    slot_bytes, every = 0, 0
    step_s: float | None = None
    copy_s: float | None = None
    kinds = schema.SnapshotsOn, schema.SnapshotsTaken, schema.SnapshotKept
    try:
        for event in (it for path in files_of_events(folder) for it in events_in(path, *kinds)):
            match event.body:
                case schema.SnapshotsOn(slot_bytes=n_bytes):
                    slot_bytes = max(slot_bytes, n_bytes)
                case schema.SnapshotsTaken() as taken:
                    every, step_s = taken.every or every, taken.step_s or step_s
                case schema.SnapshotKept(seconds=seconds):
                    copy_s = max(copy_s or 0.0, seconds)
    except OSError:
        return None
    return EarlierRun(folder.name, slot_bytes, every, step_s, copy_s) if slot_bytes else None
