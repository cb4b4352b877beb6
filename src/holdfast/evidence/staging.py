"""Evidence is written to memory first, and carried to the run directory by a thread of its own.

What hangs a rank may be the file system that the run directory is on. Stacks, incidents and kills
must not wait for it. What it does not take (disk full) stays in memory, is tried again with the
next delivery and at the end, and is never lost without a word.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import shutil
import threading
from collections.abc import Callable

ROOM_BYTES = 512 * 1024
"""For one verdict: stacks as they are dumped, and twice in its incident; they are limited to half
of that, and seldom have a tenth."""
OnTrouble = Callable[[str], None]
"""Called, in any thread, with what a person should know."""
_LOOKS = 3
"""How often a folder is gone through in which files get other names meanwhile."""


def reserve(path: str) -> None:
    """Keep room in memory for the evidence of one rank: whoever needs it removes the file first.

    Memory may be full by then, as ranks fill it with their data. To reserve again is cheap.

    Raises:
        OSError: There is no room even now.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, ROOM_BYTES)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


class Staging:
    """A folder per cycle on tmpfs, delivered to the run directory.

    Args:
        staged: Private folder on tmpfs.
        run_dir: Where the files are to end up; the same paths below it.
        on_trouble: Told once when the run directory stops taking evidence.
    """

    def __init__(self, staged: str, run_dir: str, on_trouble: OnTrouble = lambda _: None) -> None:
        self._staged = staged
        self._run_dir = run_dir
        self._on_trouble = on_trouble
        self._errands: queue.SimpleQueue[tuple[str, bool] | Callable[[], None] | None] = (
            queue.SimpleQueue()
        )
        self._kept: dict[str, bool] = {}  # what was not taken; True: its cycle is over
        self._is_done = False
        self._thread = threading.Thread(target=self._run, name="holdfast-evidence", daemon=True)
        self._thread.start()

    def folder(self, cycle: int) -> str:
        """Where evidence of this cycle is written."""
        return os.path.join(self._staged, str(cycle))

    def deliver(self, cycle: int, *, over: bool = False) -> None:
        """Copy what there is, soon; ``over``: nothing more comes, and the space is freed."""
        self._errands.put((self.folder(cycle), over))

    def call(self, write: Callable[[], None]) -> None:
        """Have the thread call this in its turn: for files that take long to write."""
        self._errands.put(write)

    def close(self, timeout_s: float) -> bool:
        """Deliver what is waiting, and once more what was not taken; for ``timeout_s`` at most.

        Returns:
            All is delivered; False: what is not is still in the staged folder.
        """
        self._errands.put(None)
        self._thread.join(timeout_s)
        return self._is_done and not self._kept

    def _run(self) -> None:
        while (errand := self._errands.get()) is not None:
            if callable(errand):
                errand()
                continue
            folder, over = errand
            self._carry({**self._kept, folder: self._kept.get(folder, False) or over})
        self._carry(self._kept)
        self._is_done = True

    def _carry(self, folders: dict[str, bool]) -> None:
        kept: dict[str, bool] = {}
        for folder, over in folders.items():
            trouble = _copy(folder, self._run_dir)
            if trouble is not None:
                if not self._kept and not kept:  # a lasting condition is told when it begins
                    self._on_trouble(
                        f"evidence cannot be delivered: {trouble}; it is kept in {folder}, and "
                        "tried again"
                    )
                kept[folder] = over
            elif over:
                shutil.rmtree(folder, ignore_errors=True)
        self._kept = kept


def _copy(folder: str, run_dir: str) -> str | None:
    """Copy all files with something in them; what went wrong first, with its path and errno."""
    for _ in range(_LOOKS):
        trouble, has_changed = _copy_once(folder, run_dir)
        if not has_changed:
            return trouble
    return f"{folder}: its files do not keep their names"


def _copy_whole(source: str, target: str) -> None:
    """Whoever reads ``target`` meanwhile finds what was there before, or all of it.

    Raises:
        OSError: It could not be copied; nothing of it is left.
    """
    part = f"{target}.part"
    try:
        shutil.copy2(source, part)
        os.replace(part, target)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def _copy_once(folder: str, run_dir: str) -> tuple[str | None, bool]:
    """What went wrong first; and whether a file was gone when its turn came."""
    trouble: list[str] = []
    has_changed = False

    def note(error: OSError) -> None:
        name = errno.errorcode.get(error.errno or 0, "no errno")
        trouble.append(f"{error.filename}: {error.strerror or error} ({name})")

    def vanished(error: OSError) -> None:
        if error.errno != errno.ENOENT:  # most cycles leave no evidence
            note(error)

    for here, _, names in os.walk(folder, onerror=vanished):
        there = os.path.normpath(os.path.join(run_dir, os.path.relpath(here, folder)))
        for name in names:
            source, target = os.path.join(here, name), os.path.join(there, name)
            try:
                if not os.path.getsize(source):  # opened for stacks that nothing asked for
                    continue
                os.makedirs(there, exist_ok=True)  # empty folders are of no use to people
                _copy_whole(source, target)
            except FileNotFoundError as error:  # a monitor has just given it its last name
                has_changed = has_changed or error.filename == source
                if error.filename != source:
                    note(error)
            except OSError as error:
                error.filename = target  # a full disk names none
                note(error)
    return (trouble[0] if trouble else None), has_changed
