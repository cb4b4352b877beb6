"""Is there room on this host: disks, shared memory, descriptors; and do its clocks run together?

Nothing here keeps a node out by itself: a launcher and its ranks go on with a full disk and a full
/dev/shm as far as they can (docs/failure-model.md).

Unhealthy: never.

Suspect: less than 64 MiB in the run folder, TMPDIR or /dev/shm; 90 % of the host's files open,
under 1024 for a process; the wall clock was set, or the host suspended, by more than 0.5 s.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.base import clock
from holdfast.health.pure.health import Fact, Finding, Fitness, finding_of

PROBE = "host"
LITTLE_ROOM_BYTES = 64 << 20
"""Less than that is gone in seconds; Docker's /dev/shm has as much in all."""
_FEW_FILES = 1024
"""Limit of open files per process that every distribution starts with; fewer is a mistake."""
_NEARLY_ALL = 0.9
_STEP_S = 0.5
"""Time services slew less and step more than that; a leap second is one of those steps."""
_SAMPLES = 3
_MIB = 1 << 20


# ---------------------------------------------------------------- disks
def room(folders: Iterable[str]) -> list[Finding]:
    """One finding for each folder, or the nearest above it: has its disk room for this user?"""
    return [finding_of(PROBE, folder, _room_of(folder)) for folder in dict.fromkeys(folders)]


def _room_of(folder: str) -> list[Fact]:
    try:
        found = _statvfs(Path(folder).absolute())
    except OSError as error:
        return [(Fitness.UNKNOWN, f"how much room it has is not known: {error}")]
    if found.f_blocks == 0:  # a tmpfs without a limit, and file systems that count nothing
        return []
    n_free = found.f_bfree if os.geteuid() == 0 else found.f_bavail  # root has a reserve
    free_bytes = n_free * found.f_frsize
    has_inodes = found.f_favail > 0 or found.f_files == 0  # some file systems count none
    if free_bytes == 0:
        return [(Fitness.SUSPECT, "full: 0 bytes free for this user")]
    free = f"{free_bytes / _MIB:.0f} MiB"
    if not has_inodes:
        return [(Fitness.SUSPECT, f"full: no inodes left, though {free} are free")]
    if free_bytes < LITTLE_ROOM_BYTES:
        return [(Fitness.SUSPECT, f"only {free} free")]
    return []


def _statvfs(folder: Path) -> os.statvfs_result:
    for path in (folder, *folder.parents):
        try:
            return os.statvfs(path)
        except FileNotFoundError:
            continue
    return os.statvfs(folder)


# ---------------------------------------------------------------- descriptors
def descriptors(
    file_nr: str = "/proc/sys/fs/file-nr", process_limit: int | None = None
) -> list[Finding]:
    """Two findings: open files of the host, and the limit of each process (None: this one's)."""
    if process_limit is None:
        process_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few: list[Fact] = []
    if 0 <= process_limit < _FEW_FILES:
        text = f"a process may have {process_limit} (ulimit -n); data loaders and NCCL want more"
        few.append((Fitness.SUSPECT, text))
    return [
        finding_of(PROBE, "open files", _files_of_host(file_nr)),
        finding_of(PROBE, "open files per process", few),
    ]


def _files_of_host(file_nr: str) -> list[Fact]:
    try:
        used, _, most = map(int, Path(file_nr).read_text().split())
    except (OSError, ValueError) as error:
        return [(Fitness.UNKNOWN, f"how many there are is not known: {file_nr}: {error}")]
    if used < most * _NEARLY_ALL:
        return []
    return [(Fitness.SUSPECT, f"{used} of at most {most} on this host (sysctl fs.file-max)")]


# ---------------------------------------------------------------- clocks
@dataclass(frozen=True)
class Sample:
    """A reading of the clocks, seconds; ``apart_s``: how long it took."""

    monotonic: float
    since_boot: float
    wall: float
    apart_s: float = 0.0


def sample() -> Sample:
    """Of a few tries the one that was interrupted least."""
    return min((_sample() for _ in range(_SAMPLES)), key=lambda taken: taken.apart_s)


def _sample() -> Sample:
    before = clock.monotonic()
    since_boot, wall = clock.since_boot(), clock.wall()
    return Sample(before, since_boot, wall, clock.monotonic() - before)


def compare(before: Sample, after: Sample) -> Finding:
    """Jumps of the clocks of this host between two samples. Pure."""
    unsure_s = before.apart_s + after.apart_s
    elapsed_s = after.since_boot - before.since_boot
    suspended_s = elapsed_s - (after.monotonic - before.monotonic)
    stepped_s = (after.wall - before.wall) - elapsed_s
    found: list[Fact] = []
    if suspended_s > _STEP_S + unsure_s:
        text = f"this host was suspended for {suspended_s:.1f} s: others may have given it up"
        found.append((Fitness.SUSPECT, text))
    if abs(stepped_s) > _STEP_S + unsure_s:
        text = (
            f"the wall clock was set by {stepped_s:+.1f} s within {elapsed_s:.0f} s: times in logs "
            "jump; no timeout is measured with it"
        )
        found.append((Fitness.SUSPECT, text))
    return finding_of(PROBE, "clocks", found)


class HostProbe:
    """Looks at all of this, and remembers the clocks."""

    def __init__(self, folders: Iterable[str]) -> None:
        self._folders = tuple(folders)
        self._clocks = sample()

    def look(self) -> list[Finding]:
        """One finding for each thing; each jump of a clock is reported once."""
        before, self._clocks = self._clocks, sample()
        return [*room(self._folders), *descriptors(), compare(before, self._clocks)]
