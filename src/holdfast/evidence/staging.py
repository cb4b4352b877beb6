"""Write evidence to memory first, and carry it to the run directory in a thread.

A hung file system of the run directory may be the reason for a hang, and stacks, incidents and
kills must not wait for it. Files that it does not take (disk full) stay in memory, are tried again
with the next delivery and at the end, and are never lost without a line in the log.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable

from holdfast.base.file_writer import FileWriter

ROOM_BYTES = 512 * 1024
"""For one verdict: stacks as they are dumped, and twice in its incident; they are limited to half
of that, and seldom have a tenth."""
OnTrouble = Callable[[str], None]
"""Called, in any thread, with a line for people."""
_LOOKS = 3
"""How often a folder is gone through in which files get other names meanwhile."""


def reserve(path: str) -> None:
    """Keep room in memory for the evidence of one rank: its writer removes the file first.

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
        self._kept: dict[str, bool] = {}  # folders that were not taken; True: the cycle is over
        self._writer = FileWriter(run_dir, name="holdfast-evidence")

    def folder(self, cycle: int) -> str:
        """Where evidence of this cycle is written."""
        return os.path.join(self._staged, str(cycle))

    def deliver(self, cycle: int, *, over: bool = False) -> None:
        """Copy what there is, soon; ``over``: nothing more comes, and the space is freed."""
        folder = self.folder(cycle)
        self._writer.call(
            lambda: self._carry({**self._kept, folder: self._kept.get(folder, False) or over})
        )

    def call(self, write: Callable[[], None]) -> None:
        """Have the thread call this in its turn: for files that take long to write."""
        self._writer.call(write)

    def close(self, timeout_s: float) -> bool:
        """Deliver waiting files, and again those that were not taken; for ``timeout_s`` at most.

        Returns:
            All is delivered; False: the rest is still in the staged folder.
        """
        self._writer.call(lambda: self._carry(self._kept))
        return self._writer.close(timeout_s) and not self._kept

    def _carry(self, folders: dict[str, bool]) -> None:
        kept: dict[str, bool] = {}
        for folder, over in folders.items():
            trouble = _copy(folder, self._run_dir)
            if trouble is not None:
                if not self._kept and not kept:  # a lasting condition is reported when it begins
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
    """Copy so that a reader of ``target`` finds the old file, or all of the new one.

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
                os.makedirs(there, exist_ok=True)  # people need no empty folders
                _copy_whole(source, target)
            except FileNotFoundError as error:  # a monitor has just given it its last name
                has_changed = has_changed or error.filename == source
                if error.filename != source:
                    note(error)
            except OSError as error:
                error.filename = target  # a full disk names none
                note(error)
    return (trouble[0] if trouble else None), has_changed
