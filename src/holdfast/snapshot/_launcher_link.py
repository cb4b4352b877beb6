"""Requests of a rank to its launcher about snapshots: one request, one answer, then hang up."""

from __future__ import annotations

import os

from holdfast.arena.pure.messages import (
    Arena,
    OpenArena,
    SnapshotAwaited,
    SnapshotCost,
    SnapshotUnusable,
)
from holdfast.base.pure.codec import MessageError, decode, encode, family
from holdfast.errors import SnapshotError
from holdfast.net import endpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.arena.arena import ArenaMemory
    from holdfast.arena.pure.snapshots import SnapshotId
    from holdfast.inplace.session import EpochSnapshots
    from holdfast.net.pure.frames import Message

ANSWER_S = 30.0
"""Until the launcher must have answered; it is busy where all ranks of a node ask at once."""
_AWAITED = encode(SnapshotAwaited())["op"]
_ANSWER: Mapping[str, type[Arena]] = family(Arena)


class NoArenaError(Exception):
    """The launcher gives no memory for snapshots; the text says why."""


class ChoiceUnknownError(NoArenaError):
    """Whether the launcher gives memory, and which snapshot it chose, is not known."""


class LauncherLink:
    """The launcher of this rank, which has the global number ``rank``."""

    call = ""
    """That restarts in place;"""
    iteration = 0
    """and how many times its function was called before."""
    source: ArenaMemory | None = None
    """Holds the snapshot to restore; None: the memory that was opened."""
    steps_to_prove: int | None = None
    """None: the training goes back to all snapshots in the memory. Otherwise to none, and
    voids them after so many steps."""

    def __init__(self, path: str, rank: int) -> None:
        self.path = path
        self.rank = rank

    def takes(self, taking: EpochSnapshots) -> None:
        """Snapshots are taken from now on."""

    def open_arena(self, slot_bytes: int, n_slots: int) -> tuple[Arena, int]:
        """The answer, and the descriptor of the memory, which is the caller's to close.

        Raises:
            NoArenaError: It refuses, as a launcher without snapshots does.
            ChoiceUnknownError: It does not answer, or with something else.
        """
        request = OpenArena(rank=self.rank, slot_bytes=slot_bytes, n_slots=n_slots)
        answer, descriptors = self._ask(encode(request))
        while answer.get("op") == _AWAITED:
            answer, descriptors = self._ask(encode(request))
        if answer.get("op") == "arena" and len(descriptors) == 1:
            try:
                return decode(_ANSWER, answer), descriptors[0]
            except MessageError as error:
                os.close(descriptors[0])
                raise ChoiceUnknownError(
                    f"the launcher's answer has another form: {error}"
                ) from error
        for fd in descriptors:
            os.close(fd)
        if answer.get("op") == "error":
            raise NoArenaError(str(answer.get("text")))
        raise ChoiceUnknownError(
            f"the launcher answered {answer!r:.200} with {len(descriptors)} descriptors"
        )

    def send_cost(self, step: int, every: int) -> None:
        """Say what snapshots cost. Raises NoArenaError."""
        self._ask(encode(SnapshotCost(rank=self.rank, step=step, every=every)))

    def send_unusable(self, snapshot: SnapshotId, why: str, *, is_damaged: bool = False) -> None:
        """Say that this rank cannot begin from ``snapshot``. Raises NoArenaError."""
        self._ask(encode(SnapshotUnusable(self.rank, snapshot, why, is_damaged)))

    def unusable(
        self, snapshot: SnapshotId, why: str, *, is_damaged: bool = False, folder: str = ""
    ) -> SnapshotError:
        """Say that this rank cannot begin from ``snapshot``; returns the error that ends it.

        ``is_damaged``: as in :class:`.Refused`. ``folder``: of a snapshot on disk.
        """
        try:
            self.send_unusable(snapshot, why, is_damaged=is_damaged)
        except NoArenaError as lost:
            why += f" (and the launcher does not know: {lost})"
        more = "; or from this one, if another node has an undamaged copy" if is_damaged else ""
        if folder:
            more = f". To begin without it now, remove {folder}"
        return SnapshotError(
            f"the snapshot of step {snapshot.step} cannot be restored: {why}. At the next restart "
            f"all ranks begin from an older one, or from the checkpoint{more}"
        )

    def unknown(self, error: Exception) -> SnapshotError:
        """Other ranks may begin from a snapshot: this one cannot begin from something else."""
        return SnapshotError(
            f"rank {self.rank} does not learn from its launcher which snapshot to begin from: "
            f"{error}. It ends, so that all ranks begin again from the same state"
        )

    def _ask(self, request: Mapping[str, object]) -> tuple[Message, list[int]]:
        try:
            with endpoint.connect(self.path, ANSWER_S) as connection:
                descriptors: list[int] = []
                connection.descriptors = descriptors
                try:
                    return connection.request(request, ANSWER_S), descriptors
                except OSError:
                    for fd in descriptors:
                        os.close(fd)
                    raise
        except OSError as error:
            raise ChoiceUnknownError(str(error)) from error
