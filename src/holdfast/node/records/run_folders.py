"""The folders of one launcher: of its run, its private one, and the evidence on its way between."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from holdfast.base.bounded import call_within
from holdfast.events.run import run_links
from holdfast.evidence.staging import Staging
from holdfast.node.console import LOGGER, log_error
from holdfast.node.processes.pages import Pages
from holdfast.node.records import run_dirs

_LAST_DELIVERY_S = 5.0
"""How long the launcher's exit waits for a slow disk to take the last evidence."""
_REMOVAL_S = 5.0
"""How long the folder of a run in which nothing happened may take to be removed."""


class RunFolders:
    """Made at once, or OSError is raised.

    ``run_dir`` is for people, ``runtime_dir`` private, on tmpfs where there is one; ``staging``
    takes evidence into memory and delivers it to ``run_dir``.
    """

    def __init__(self, log_dir: str | None, run_id: str, job: str) -> None:
        self._log_dir = log_dir
        self._job = job
        self.run_dir = Path(run_dirs.make_run_dir(log_dir, run_id))
        self.runtime_dir = run_dirs.make_runtime_dir(job)
        run_links.note_run_dir(self.runtime_dir, str(self.run_dir))
        self._staged = os.path.join(self.runtime_dir, "evidence")  # noqa: PTH118
        self.staging = Staging(self._staged, str(self.run_dir), log_error)
        self.pages = Pages(self.runtime_dir, lambda: run_dirs.make_spare_dir(job), log_error)

    def close(self, undelivered: Iterable[int]) -> None:
        """Deliver the evidence of these cycles, and remove the private folders."""
        for cycle in undelivered:
            self.staging.deliver(cycle, over=True)
        if not self.staging.close(_LAST_DELIVERY_S):
            self._keep_evidence()
        for folder in (self.runtime_dir, self.pages.spare):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def remove_run(self) -> None:
        """Remove the run folder: the run was uneventful."""
        with suppress(TimeoutError):
            run_dir = str(self.run_dir)
            call_within(_REMOVAL_S, lambda: run_dirs.remove_run_dir(self._log_dir, run_dir))

    def _keep_evidence(self) -> None:
        try:
            kept = run_dirs.keep(self._staged, self._job)
        except OSError as error:
            LOGGER.error("evidence that %s did not take is lost: %s", self.run_dir, error)
        else:
            LOGGER.error("evidence that %s did not take is kept in %s", self.run_dir, kept)
