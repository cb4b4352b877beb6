"""Follow the run that the words of a command name: with nodes that join it later, and the next run.

Without words, and with those of a log folder, that is the newest run. When it is over and a newer
one begins, that one is followed. Where there is none yet, the first one is awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from holdfast.base import clock
from holdfast.tools.run_list import NoSuchRunError, began
from holdfast.tools.view.job_view import OVER, JobView
from holdfast.tools.view.live import LiveJob

_FIND_S = 30.0
"""Between two searches while a job runs, which may have gained nodes."""
_FIND_NEXT_S = 2.0
"""The same while none runs."""


class Viewed(Protocol):
    """A job to be shown."""

    def look(self) -> JobView:
        """How it stands now."""

    def stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """The stacks of these ranks now; of one that gives none, the reason in brackets."""


class NewestRun:
    """See above.

    Args:
        find: Finds the folders of the run.
    """

    def __init__(self, find: Callable[[], list[Path]]) -> None:
        self._find = find
        self._job: LiveJob | None = None
        self._began = 0.0
        self._is_over = True
        self._find_at = 0.0

    def look(self) -> JobView:
        """How it stands now; the state is ``waiting`` while there is none."""
        if (now := clock.monotonic()) >= self._find_at:
            self._search()
            self._find_at = now + (_FIND_NEXT_S if self._is_over else _FIND_S)
        if self._job is None:
            return JobView(wall=clock.wall())
        view = self._job.look()
        if not self._is_over and view.state in OVER:
            self._find_at = now + _FIND_NEXT_S
        self._is_over = view.state in OVER
        return view

    def stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """As :meth:`.LiveJob.stacks`."""
        return {} if self._job is None else self._job.stacks(ranks)

    def _search(self) -> None:
        try:
            found = self._find()
        except (NoSuchRunError, OSError):
            return
        known = [] if self._job is None else self._job.folders
        if self._job is not None and any(folder in known for folder in found):
            for folder in found:
                if folder not in known:
                    self._job.add(folder)
        elif self._is_over and (began_at := began(found[0])) > self._began:
            self._job, self._began = LiveJob(found), began_at
