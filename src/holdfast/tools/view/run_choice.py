"""The runs of this user that browsers can choose from, and the jobs of the chosen ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.events.run.old_runs import found_run
from holdfast.tools.run_list import find_runs, of_same_job
from holdfast.tools.runs import short_name
from holdfast.tools.view.newest import NewestRun

_LISTED_MAX = 20
_FOLLOWED_MAX = 8


class RunChoice:
    """Follows a run from the first time that it is chosen; of many, the last ones chosen."""

    def __init__(self) -> None:
        self._jobs: dict[str, NewestRun] = {}

    def listed(self) -> list[dict[str, Any]]:
        """The newest first: ``run`` (its short name), ``script``, ``began``, ``is_over``."""
        found = [run for folder in _newest() if (run := found_run(folder)) is not None]
        return [
            {
                "run": short_name(run.folder),
                "script": run.name,
                "began": run.began,
                "is_over": run.is_over,
            }
            for run in found
        ]

    def job(self, name: str) -> NewestRun | None:
        """That of the run with this short name; None: it is not listed."""
        if (job := self._jobs.pop(name, None)) is None:
            folder = next((one for one in _newest() if short_name(one) == name), None)
            if folder is None:
                return None
            job = NewestRun(lambda: of_same_job(folder))
        self._jobs[name] = job
        while len(self._jobs) > _FOLLOWED_MAX:
            del self._jobs[next(iter(self._jobs))]
        return job


def _newest() -> list[Path]:
    return find_runs()[: -_LISTED_MAX - 1 : -1]
