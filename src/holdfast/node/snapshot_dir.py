"""The folder in which snapshots outlive the job (``--ft-snapshot-dir``).

    the job begins    a list of its snapshots goes to the leader, which chooses once for all ranks
    it ends           in failure, or by a signal: this node's part of the newest snapshot is written
    it succeeds       those that were there are removed: the same command begins anew

All of it is done by a thread, in order, and only the first look and the end wait for it, with a
deadline: a file system that is full, slow or dead costs a line of the log. ``pure/file_names.py``
of the arenas has the names, and the marks by which no snapshot is used for ever.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from holdfast.arena import snapshot_files
from holdfast.arena.arena import ArenaMemory
from holdfast.arena.pure.budget import shown
from holdfast.arena.pure.file_choice import to_remove, to_write
from holdfast.arena.pure.file_names import Mark, NamedSnapshot, life_name, parsed, rank_file
from holdfast.arena.pure.lineage import ANY
from holdfast.arena.pure.messages import FileToRestore
from holdfast.arena.pure.snapshots import Beginning, Holdings, OnDisk, SnapshotId
from holdfast.arena.snapshot_files import Filed, SlotOfRank
from holdfast.base import clock
from holdfast.base.file_writer import FileWriter
from holdfast.base.pure.rank_sets import named
from holdfast.events.pure import schema
from holdfast.job.pure.membership import CyclePlace, Round
from holdfast.node.console import LOGGER

OPTION = "--ft-snapshot-dir"
LOOK_S = 10.0
"""For the first look into the folder, during which the launcher's start waits."""

T = TypeVar("T")


class SnapshotDir:
    """Of one launcher. Main thread only; its own thread carries out one order after the other.

    Args:
        folder: Absolute.
        timeout_s: For the end of the job to wait until the snapshot is written.
        progress: New steps after which the snapshot that the job began from is stale.
        event: Writes an event.
    """

    def __init__(
        self,
        folder: str,
        timeout_s: float,
        progress: int,
        event: Callable[[schema.SnapshotWritten], None],
    ) -> None:
        self._folder = folder
        self._timeout_s = timeout_s
        self._progress = progress
        self._event = event
        self._thread = FileWriter(folder, name="holdfast-snapshot-dir")
        self._goes_on = True
        self._known: dict[str, Filed] = {}
        """That were there when the job began."""
        self._given_up: set[str] = set()
        self._began_from: OnDisk | None = None
        self._lives: dict[int, str] = {}
        """Names of the cycles that this node had ranks in."""
        self._ranks = range(0)
        self._world_size = 0
        self._last_step = -1
        self._is_over = self._is_signalled = False

    # ------------------------------------------------------------ the job begins
    def look(self) -> None:
        """List the snapshots in the folder."""

        def find() -> tuple[list[Filed], bool]:
            return snapshot_files.read(self._folder), os.access(self._folder, os.W_OK)

        try:
            found, is_writable = self._waited(find, LOOK_S)
        except OSError as error:
            LOGGER.warning(
                "%s %s: %s. No snapshot is read from there; it is tried again when the job ends",
                *(OPTION, self._folder, error.strerror or error),
            )
            return
        if not is_writable:
            LOGGER.warning(
                "%s %s: user %d may not write there: no snapshot will outlive this job",
                *(OPTION, self._folder, os.geteuid()),
            )
        self._known = {it.on_disk.name: it for it in found}
        for it in found:
            for problem in it.problems:
                LOGGER.warning("snapshot %s: %s", self.path_of(it.on_disk.name), problem)
            if it.unused and not it.problems:
                LOGGER.warning(
                    "snapshot %s is not used: %s", self.path_of(it.on_disk.name), it.unused
                )

    def files(self) -> tuple[OnDisk, ...]:
        """Those that a job may begin from, for the leader."""
        usable = (it for it in self._known.values() if not it.unused)
        return tuple(it.on_disk for it in usable if it.on_disk.name not in self._given_up)

    # ------------------------------------------------------------ a cycle
    def begin(self, formed: Round, place: CyclePlace) -> None:
        """The ranks of a cycle are about to start."""
        self._lives[formed.cycle] = life_name(formed.leader, formed.term, formed.cycle)
        self._ranks = range(place.rank_offset, place.rank_offset + place.nproc)
        self._world_size = formed.world_size
        beginning = formed.beginning or Beginning()
        for name in beginning.given_up:
            if name in self._known and name not in self._given_up:
                self._given_up.add(name)
                self._mark(name, Mark.GIVEN_UP, beginning.why)
        restore = beginning.restore
        if restore is not None and (chosen := self._known.get(restore.file)) is not None:
            self._began_from = chosen.on_disk
            self._mark(restore.file, Mark.BEGUN)

    def file_of(self, name: str, rank: int) -> FileToRestore | None:
        """A rank's part of a snapshot here; None: it is not here."""
        found = self._known.get(name)
        file = None if found is None else found.files.get(rank)
        if file is None:
            return None
        path = f"{self.path_of(name)}/{rank_file(rank)}"
        return FileToRestore(path, file.n_bytes, file.total, file.crc32)

    def path_of(self, name: str) -> str:
        """The folder of a snapshot."""
        return f"{self._folder}/{name}"

    def note_steps(self, held: Holdings) -> None:
        """How far ranks of this node have got; one that takes no more may have got anywhere."""
        last_step = held.last_step if held.void_until is None else ANY
        self._last_step = max(self._last_step, last_step)

    def _mark(self, name: str, mark: Mark, text: str = "") -> None:
        def act() -> None:
            try:
                snapshot_files.mark(self._folder, name, mark, text)
            except OSError as error:
                LOGGER.warning("snapshot %s is not marked: %s", self.path_of(name), error)

        self._thread.call(act)

    # ------------------------------------------------------------ the job ends
    def succeeded(self) -> None:
        """The job is done: the same command begins anew."""

        def act() -> list[schema.SnapshotWritten]:
            for name in {*self._known, *self._rescued()}:
                snapshot_files.remove(self._folder, name)
            return []

        self._end(act, "the snapshots that it began from are not removed from")

    def failed(
        self,
        sources: Sequence[SlotOfRank],
        refused: Sequence[SnapshotId],
        *,
        is_signalled: bool,
        is_over: bool,
    ) -> None:
        """The job ends here, and its ranks are gone: write the newest snapshot.

        Args:
            sources: Snapshots in memory.
            refused: Those that a rank could not use.
            is_signalled: The launcher was asked to end, and no rank has failed.
            is_over: The job has ended on all nodes; False: others may go on, and get further.
        """
        held = [it.slot.held for it in sources]
        wanted = to_write(held, self._ranks, self._world_size, refused)
        if sources and not wanted:
            LOGGER.warning(
                "no snapshot is written to %s: there is none that %s have all taken",
                *(self._folder, named(self._ranks)),
            )
        self._is_over, self._is_signalled = is_over, is_signalled
        own: dict[int, ArenaMemory] = {}
        try:
            for (
                it
            ) in sources:  # the caller closes its descriptors; the thread needs them for longer
                if id(it.arena) not in own:
                    own[id(it.arena)] = ArenaMemory(os.dup(it.arena.fd))
        except OSError as error:
            LOGGER.warning("no snapshot is written to %s: %s", self._folder, error)
            sources, wanted = (), []
        parts = [
            (it, [SlotOfRank(own[id(s.arena)], s.slot) for s in sources if s.slot.held.id == it])
            for it in wanted
        ]

        def act() -> list[schema.SnapshotWritten]:
            try:
                return self._write(parts)
            finally:
                for arena in own.values():
                    os.close(arena.fd)

        step = f"the snapshot of step {wanted[0].step} is not" if wanted else "nothing is"
        self._end(act, f"{step} written to", [self._of(it) for it in wanted])

    def _named(self, snapshot: SnapshotId) -> NamedSnapshot | None:
        """Its name on disk; None: it came from another node, of a cycle without this one."""
        life = self._lives.get(snapshot.cycle)
        return None if life is None else NamedSnapshot(snapshot.step, self._world_size, life)

    def _of(self, snapshot: SnapshotId) -> schema.SnapshotWritten:
        file = str(self._named(snapshot) or "")
        return schema.SnapshotWritten(snapshot.step, snapshot.cycle, file)

    def _write(
        self, parts: Sequence[tuple[SnapshotId, list[SlotOfRank]]]
    ) -> list[schema.SnapshotWritten]:
        """In the thread."""
        found: list[schema.SnapshotWritten] = []
        for it, sources in parts:
            began_at = clock.monotonic()
            n_bytes, why = sum(source.slot.n_bytes for source in sources), ""
            try:
                n_bytes = self._write_one(it, sources)
            except OSError as error:
                why = str(error)
            seconds = round(clock.monotonic() - began_at, 3)
            found.append(self._of(it).but(n_bytes=n_bytes, seconds=seconds, why=why))
        self._tidy([it.file for it in found if not it.why])
        return found

    def _write_one(self, snapshot: SnapshotId, sources: Sequence[SlotOfRank]) -> int:
        if (name := self._named(snapshot)) is None:
            raise OSError(f"it is of cycle {snapshot.cycle}, in which this node had no ranks")
        n_bytes = snapshot_files.write(self._folder, name, sources, lambda: self._goes_on)
        snapshot_files.unmark_rescued(self._folder, str(name))
        return n_bytes

    def _log(self, it: schema.SnapshotWritten) -> None:
        if it.why:
            LOGGER.warning(
                "the snapshot of step %d (%s) is not written to %s: %s",
                *(it.step, shown(it.n_bytes), self._folder, it.why),
            )
            return
        LOGGER.info(
            "the snapshot of step %d, %s of %d, is in %s (%s in %.1f s): a job with this %s begins "
            "from it",
            *(it.step, named(self._ranks), self._world_size, self.path_of(it.file)),
            *(shown(it.n_bytes), it.seconds, OPTION),
        )

    def _rescued(self) -> set[str]:
        """Snapshots of this job that were there before its end: useless after it."""
        own = {*self._lives.values()}
        with contextlib.suppress(OSError):
            names = (it.name for it in Path(self._folder).iterdir())
            return {name for name in names if (of := parsed(name)) and of.life in own}
        return set()

    def _tidy(self, written: Sequence[str]) -> None:
        """Remove snapshots that no job needs, and release one that the next job may begin from."""
        began = self._began_from
        has_progressed = began is not None and self._last_step - began.step >= self._progress
        try:
            found = [it.on_disk for it in snapshot_files.read(self._folder)]
            if written:
                useless = {name for name, it in self._known.items() if it.unused}
                useless |= self._given_up
                if began is not None and has_progressed:
                    useless.add(began.name)
                known = {*self._known, *self._rescued()}
                for name in to_remove(found, written, known, useless):
                    snapshot_files.remove(self._folder, name)
            if began is None or has_progressed or began.name in self._given_up:
                return
            if self._is_over:
                is_kept = bool(written) or self._is_signalled
                tried = "" if is_kept else next(iter(self._lives.values()), "")
                snapshot_files.unmark(self._folder, began.name, tried)
        except OSError as error:
            LOGGER.debug("snapshots in %s are left as they are: %s", self._folder, error)

    def _end(
        self,
        act: Callable[[], list[schema.SnapshotWritten]],
        undone: str,
        wanted: Sequence[schema.SnapshotWritten] = (),
    ) -> None:
        try:
            for it in self._waited(act, self._timeout_s):
                self._log(it)
                self._event(it)
        except TimeoutError as error:
            LOGGER.warning("%s %s: %s (%s-timeout)", undone, self._folder, error, OPTION)
            for it in wanted:
                self._event(it.but(seconds=self._timeout_s, why=str(error)))
        except Exception:  # noqa: BLE001 - the job has ended as it has
            LOGGER.exception("%s %s", undone, self._folder)
        self._goes_on = False
        self._thread.close(0.0)  # when it has done all that it can

    # ------------------------------------------------------------ both
    def _waited(self, act: Callable[[], T], timeout_s: float) -> T:
        """What ``act`` returns or raises, in the thread.

        Raises:
            TimeoutError: It takes longer.
        """
        done = threading.Event()
        returned: list[T] = []
        raised: list[Exception] = []

        def errand() -> None:
            try:
                returned.append(act())
            except Exception as error:  # noqa: BLE001 - raised by the caller
                raised.append(error)
            finally:
                done.set()

        self._thread.call(errand)
        if not done.wait(timeout_s):
            raise TimeoutError(f"its file system has not done that within {timeout_s:g} s")
        if raised:
            raise raised[0]
        return returned[0]
