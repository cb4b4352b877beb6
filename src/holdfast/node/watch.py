"""The ranks of a node, watched: for each a monitor, and in each cycle a page that it reads."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.base.pure.numbering import Cycle, LocalRank
from holdfast.evidence.staging import reserve
from holdfast.node.console import LOGGER
from holdfast.node.job_part import evidence_s
from holdfast.watch.pure import monitor_messages

if TYPE_CHECKING:
    from holdfast.node.monitors import Monitors
    from holdfast.node.processes.ranks import Ranks
    from holdfast.node.records.run_folders import RunFolders
    from holdfast.options.plan import LaunchPlan


class HangWatch:
    """The monitors of one launcher's ranks, configured from its plan."""

    def __init__(
        self,
        plan: LaunchPlan,
        job: str,
        node: str,
        folders: RunFolders,
        lease: str | None,
        monitors: Monitors,
    ) -> None:
        self._plan = plan
        self._job = job
        self._node = node
        self._folders = folders
        self._lease = lease
        self._monitors = monitors

    def socket(self, local_rank: int) -> str | None:
        """Where the rank of this local rank finds its monitor; None: it has none."""
        name = f"_ft_launcher{os.getpid()}_rmon{local_rank}.socket"
        return f"{self._folders.runtime_dir}/{name}" if self._plan.monitors_enabled else None

    def begin(self, ranks: Ranks, past: Cycle | None) -> None:
        """Make pages for a cycle, and have monitors read them in place of those of the last."""
        for local_rank in ranks.ranks:
            if (path := self.socket(local_rank)) is None:
                return
            if not self._monitors.has(local_rank):
                self._monitors.open(local_rank, path, self._config(local_rank))
            self._monitors.begin_cycle(local_rank, self._of_cycle(ranks, LocalRank(local_rank)))
            if past is not None:  # only now: its monitor knows the page that replaces it
                self._folders.pages.remove(past, LocalRank(local_rank))

    def replace(self, local_rank: int) -> bool:
        """Start a monitor in the place of a dead one; False: the rank trains on unwatched."""
        try:
            self._monitors.start(local_rank)
        except OSError as error:
            LOGGER.error("cannot start a monitor: %s", error)
            return False
        return True

    def _config(self, local_rank: int) -> monitor_messages.ConfigureMonitor:
        return monitor_messages.ConfigureMonitor(
            self._plan.ft.to_wire(),
            local_rank,
            marker=self._job,
            grace_s=self._plan.workers_stop_timeout_s,
            node=self._node,
            runtime_dir=self._folders.runtime_dir,
            lease=self._lease,
            awaits_verdict=evidence_s(self._plan) > 0,
        )

    def _of_cycle(self, ranks: Ranks, local_rank: LocalRank) -> monitor_messages.Cycle:
        """Make the page of a rank, and folders for its files and those of its monitor."""
        folders, run_dir = self._folders, str(self._folders.run_dir)
        attempt = f"attempt_{ranks.cycle}/{local_rank}"
        page = folders.pages.make(ranks.cycle, local_rank)
        room = f"{folders.runtime_dir}/r{local_rank}.room"
        staged = folders.staging.folder(ranks.cycle)
        try:
            # Without space for a page there is none for evidence, either.
            if folders.pages.is_spare(page):
                staged = run_dir
            else:
                os.makedirs(f"{staged}/{attempt}", exist_ok=True)  # noqa: PTH103
                reserve(room)
        except OSError:
            staged = run_dir
        if staged == run_dir:
            with suppress(OSError):
                ranks.ranks[local_rank].folder.mkdir(parents=True, exist_ok=True)
        return monitor_messages.Cycle(
            ranks.cycle,
            page,
            dump=f"{staged}/{attempt}/stacks.txt",
            incidents=f"{staged}/incidents",
            staged=staged,
            run_dir=run_dir,
            room=room,
        )
