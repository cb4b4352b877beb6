"""Where a rank gets memory for snapshots, and learns which to restore, in a restart in place.

    launcher, if there is one: memory, and the snapshot that the cycle begins from
    node guard: keeps the memory when the rank dies, and names the snapshot of each later iteration

Without a launcher the rank makes the memory itself. Numbers of ranks: the one that the function
has, which names snapshots, and the one that the process was born with, by which launcher and guard
know it.
"""

from __future__ import annotations

import os

from holdfast.arena.arena import ArenaError, ArenaMemory, create
from holdfast.arena.pure.budget import TooLittleMemory, grant, shown
from holdfast.arena.pure.messages import Arena, SnapshotUnusable
from holdfast.arena.pure.snapshots import Restore
from holdfast.base import memory
from holdfast.base.pure.wording import count
from holdfast.base.rank_log import rank_logger
from holdfast.inplace import session
from holdfast.snapshot._launcher_link import ChoiceUnknownError, LauncherLink, NoArenaError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.arena.pure.snapshots import SnapshotId
    from holdfast.inplace.pure.messages import BeginFrom
    from holdfast.inplace.session import EpochSnapshots

LOGGER = rank_logger("holdfast.snapshot")


class InPlaceLink(LauncherLink):
    """One iteration of the call that this process is in. ``launcher``: its socket, if any."""

    def __init__(self, launcher: str | None, rank: int) -> None:
        current = session.current()
        assert current is not None
        self._session = current
        super().__init__(launcher or current.key, rank)
        self.call, self.iteration = current.key, current.epoch
        self._launcher = LauncherLink(launcher, current.born) if launcher else None
        self._is_begun = False

    def takes(self, taking: EpochSnapshots) -> None:
        """Snapshots are taken from now on, until the function is left."""
        self._session.takes(taking)

    def open_arena(self, slot_bytes: int, n_slots: int) -> tuple[Arena, int]:
        """See :class:`.LauncherLink`; waits until all ranks know their places."""
        begins = self._session.begin_from()
        if begins is not None:
            self._begin(begins)
        chosen = None if begins is None or begins.restore is None else begins.restore
        try:
            answer, fd = self._memory(slot_bytes, n_slots)
        except ChoiceUnknownError:
            raise
        except NoArenaError:
            # All ranks begin from the snapshot, or none: so it is read, and no other is taken.
            if begins is not None and chosen is None:
                self._void_all()  # no step of this iteration would
            if chosen is None or self.source is None:
                raise
            answer, fd = Arena(0, chosen.snapshot.cycle), os.dup(self.source.fd)
        if begins is None:
            return self._as_the_cycle_began(answer), fd
        if chosen is None:
            self.steps_to_prove = 1 if self._fallback(begins) is None else answer.progress
            answer = answer.but(restore=None, slot=0, lost_steps=-1, file=None, other_world=None)
            return answer, fd
        if slot_bytes == 0 and self.source is not None:  # to look at it
            os.close(fd)
            fd = os.dup(self.source.fd)
        lost = chosen.lost_steps
        answer = answer.but(restore=chosen.snapshot, slot=begins.slot, lost_steps=lost, file=None)
        return answer.but(other_world=None), fd

    def _fallback(self, begins: BeginFrom) -> SnapshotId | None:
        """The newest snapshot that launchers may go back to, if they end the ranks soon."""
        return None if self._launcher is None else begins.fallback

    def _void_all(self) -> None:
        if self._session.arena_fd >= 0:
            ArenaMemory(self._session.arena_fd).void_others(None)

    def _begin(self, begins: BeginFrom) -> None:
        if self._is_begun:
            return
        self._is_begun = True
        chosen = begins.restore
        if chosen is not None:
            try:
                fd = os.open(begins.path, os.O_RDWR | os.O_CLOEXEC)
                self.source = ArenaMemory(fd)
            except OSError as error:
                why = f"the memory that the node guard keeps cannot be opened: {error}"
                self.send_unusable(chosen.snapshot, why)
                raise ChoiceUnknownError(why) from error
        if self.rank == 0:
            self._say(begins)

    def _say(self, begins: BeginFrom) -> None:
        why = f"; {begins.why}" if begins.why else ""
        if begins.restore is None:
            if (fallback := self._fallback(begins)) is not None:
                why += (
                    "; its first steps are not taken, so that a restart by the launcher can go "
                    f"back to what all ranks have of before: to step {fallback.step} at most"
                )
            LOGGER.warning(
                "iteration %d: all ranks begin from no snapshot: from a checkpoint, if the "
                "function has one%s",
                *(self.iteration, why),
            )
            return
        step, lost = begins.restore.snapshot.step, begins.restore.lost_steps
        lost_steps = f", {lost} before the last" if lost > 0 else ""
        LOGGER.warning(
            "iteration %d: all ranks begin from the snapshot of step %d%s%s",
            *(self.iteration, step, lost_steps, why),
        )

    def _as_the_cycle_began(self, answer: Arena) -> Arena:
        """No snapshot of this call is there: the choice of the launchers for the cycle holds."""
        if (restore := answer.restore) is None:
            return answer
        if (here := int(os.environ["WORLD_SIZE"])) != self._session.born_world:
            self.steps_to_prove = 1 if self._launcher is None else answer.progress
            if self.rank == 0:
                LOGGER.warning(
                    "iteration %d: all ranks begin from no snapshot: from a checkpoint, if the "
                    "function has one; step %d is of %d ranks, and there are %d",
                    *(self.iteration, restore.step, self._session.born_world, here),
                )
            return answer.but(restore=None, slot=0, lost_steps=-1)  # so it is on all ranks
        if self.rank != self._session.born:
            why = (
                f"the snapshot of rank {self.rank} is in the memory of another process, and the "
                f"assignment has made rank {self._session.born} this one"
            )
            self.send_unusable(restore, why)
            raise ChoiceUnknownError(why)
        return answer

    def _memory(self, slot_bytes: int, n_slots: int) -> tuple[Arena, int]:
        if self._launcher is not None:
            answer, fd = self._launcher.open_arena(slot_bytes, n_slots)
        else:
            answer, fd = Arena(self._slots(slot_bytes, n_slots), 0), self._own_memory()
        if self._session.arena_fd < 0:
            chosen, world, lost = answer.restore, self._session.born_world, answer.lost_steps
            began = None if chosen is None else Restore(chosen, world, lost, answer.times)
            self._session.keep_arena(os.dup(fd), began, answer.progress)
        return answer, fd

    def _slots(self, slot_bytes: int, n_slots: int) -> int:
        n_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        left_kib, own = memory.available_kib(), self._session.arena_fd
        held = os.fstat(own).st_blocks * 512 if own >= 0 else 0
        left = None if left_kib is None else (left_kib << 10) + held
        found = grant(slot_bytes, n_slots, n_ranks, left, None)
        if isinstance(found, TooLittleMemory):
            raise NoArenaError(
                f"{count(n_ranks, 'rank')} of this node need {shown(found.needs)} for two "
                f"snapshots each, and may have a quarter of the memory that is left: "
                f"{shown(found.limit)}"
            )
        return found.n_slots

    def _own_memory(self) -> int:
        if self._session.arena_fd >= 0:
            return os.dup(self._session.arena_fd)
        try:
            return create("holdfast-snapshots")
        except ArenaError as error:
            raise NoArenaError(str(error)) from error

    def send_cost(self, step: int, every: int) -> None:
        """The launchers agree how often snapshots are taken, where there are some."""
        if self._launcher is not None:
            self._launcher.send_cost(step, every)

    def send_unusable(self, snapshot: SnapshotId, why: str, *, is_damaged: bool = False) -> None:
        """The guard knows it at the next restart."""
        self._session.refuse(SnapshotUnusable(self.rank, snapshot, why, is_damaged))
