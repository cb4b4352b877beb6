"""The pages of a node's ranks: on tmpfs, in the temp folder when that is full, else nowhere.

A job does not end for want of a page: its rank runs unwatched, and the launcher says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.base.pure.numbering import Cycle, LocalRank
from holdfast.page.page import PageError, create_page


class Pages:
    """Makes and removes pages in ``folder``, which is private, and on tmpfs where there is one.

    ``make_spare`` makes the folder that is used when the first has no space, or raises OSError.
    ``on_trouble`` is called once per cycle with the reason and the consequence.
    """

    def __init__(
        self, folder: str, make_spare: Callable[[], str], on_trouble: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._make_spare = make_spare
        self._on_trouble = on_trouble
        self._reported_cycle = -1
        self.spare: str | None = None

    def make(self, cycle: Cycle, local_rank: LocalRank) -> str | None:
        """Make the page of a rank; its path, None where none can be had."""
        path = _path(self._folder, cycle, local_rank)
        try:
            create_page(path, cycle)
        except PageError as error:
            why = error
        else:
            return path
        try:
            self.spare = self.spare or self._make_spare()
            path = _path(self.spare, cycle, local_rank)
            create_page(path, cycle)
        except OSError as error:
            self._report(
                cycle,
                f"cycle {cycle}: local rank {local_rank} (and perhaps others) runs unwatched, "
                f"hangs will not be found: {why}; {error}. Make space there",
            )
            return None
        self._report(
            cycle,
            f"cycle {cycle}: {why}; pages go to {self.spare} instead. Make space in "
            f"{Path(self._folder).parent}",
        )
        return path

    def path(self, cycle: Cycle, local_rank: LocalRank) -> str:
        """Where the page of a rank is, if it has one."""
        first = _path(self._folder, cycle, local_rank)
        in_spare = self.spare is not None and not Path(first).exists()
        return _path(self.spare, cycle, local_rank) if self.spare and in_spare else first

    def is_spare(self, path: str | None) -> bool:
        """There was no space for this page in the first folder."""
        return path is None or not path.startswith(f"{self._folder}/")

    def remove(self, cycle: Cycle, local_rank: LocalRank) -> None:
        """Remove the page of a cycle that is over, wherever it is."""
        for folder in (self._folder, self.spare):
            if folder is not None:
                Path(_path(folder, cycle, local_rank)).unlink(missing_ok=True)

    def _report(self, cycle: Cycle, text: str) -> None:
        if self._reported_cycle != cycle:
            self._reported_cycle = cycle
            self._on_trouble(text)


def _path(folder: str, cycle: Cycle, local_rank: LocalRank) -> str:
    return f"{folder}/c{cycle}_r{local_rank}.page"
