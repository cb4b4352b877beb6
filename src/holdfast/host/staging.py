"""Evidence is written to memory first, and carried to the run directory by a thread of its own.

What hangs a rank may be the file system that the run directory is on. Stacks, incidents and kills
must not wait for it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading


class Staging:
    """A folder per cycle on tmpfs, delivered to the run directory.

    Args:
        staged: Private folder on tmpfs.
        run_dir: Where the files are to end up; the same paths below it.
    """

    def __init__(self, staged: str, run_dir: str) -> None:
        self._staged = staged
        self._run_dir = run_dir
        self._errands: queue.SimpleQueue[tuple[str, bool] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast-evidence", daemon=True)
        self._thread.start()

    def folder(self, cycle: int) -> str:
        """Where evidence of this cycle is written."""
        return os.path.join(self._staged, str(cycle))

    def deliver(self, cycle: int, *, over: bool = False) -> None:
        """Copy what there is, soon; ``over``: nothing more comes, and the space is freed."""
        self._errands.put((self.folder(cycle), over))

    def close(self, timeout_s: float) -> None:
        """Deliver what is waiting; gives up after ``timeout_s`` seconds."""
        self._errands.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (errand := self._errands.get()) is not None:
            folder, over = errand
            with contextlib.suppress(OSError):  # disk full, nothing there: the job matters more
                shutil.copytree(folder, self._run_dir, dirs_exist_ok=True)
            if over:
                shutil.rmtree(folder, ignore_errors=True)
