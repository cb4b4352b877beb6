"""Write snapshots from arenas into a folder, and list those in it.

Names and lists: ``pure/file_names.py``.

A slot is a safetensors file: the kernel copies it, and no byte passes through Python. A file gets
its name when the disk has it, and the list of a node is written after all of its files. All calls
wait for the file system.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.arena.arena import ArenaMemory, HeldSlot
from holdfast.arena.pure import file_names, layout
from holdfast.arena.pure.file_names import FileList, Mark, NamedSnapshot, RankFile
from holdfast.arena.pure.snapshots import OnDisk
from holdfast.base.pure.codec import MessageError, decode, encode
from holdfast.base.pure.rank_sets import text_of

_CHUNK_BYTES = 32 << 20
"""Between two looks whether to go on."""
_LIST_BYTES_MAX = 16 << 20
_TEXT_BYTES_MAX = 1 << 12
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class SlotOfRank(NamedTuple):
    """A snapshot of one rank, in an arena whose descriptor stays open."""

    arena: ArenaMemory
    slot: HeldSlot


class NotWrittenError(OSError):
    """A snapshot was not written; the text says why."""


class Filed(NamedTuple):
    """A snapshot in a folder.

    Attributes:
        on_disk: As the leader learns it: ranks whose files have the size that their list says.
        files: By rank.
        unused: Why no job begins from it; empty: one may.
        problems: Files that are not as their list says.
    """

    on_disk: OnDisk
    files: dict[int, RankFile]
    unused: str
    problems: tuple[str, ...]


# ---------------------------------------------------------------- written
def write(
    folder: str, name: NamedSnapshot, sources: Sequence[SlotOfRank], goes_on: Callable[[], bool]
) -> int:
    """Write the part of one node; returns how many bytes.

    Args:
        folder: That is there already; the snapshot gets one in it.
        name: Of the snapshot.
        sources: One of each rank; at least one.
        goes_on: Asked now and then; False: give it up.

    Raises:
        NotWrittenError: ``goes_on`` said no, or a rank has changed the memory meanwhile.
        OSError: The system does not take it.
    """
    needed = sum(it.slot.n_bytes for it in sources)
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < needed:
        have = free.f_bavail * free.f_frsize
        raise NotWrittenError(f"it needs {needed} bytes, and {have} are free")
    path = f"{folder}/{name}"
    Path(path).mkdir(0o700, exist_ok=True)
    in_order = sorted(sources, key=lambda it: it.slot.held.rank)
    files = tuple(_write_rank(path, it, goes_on) for it in in_order)
    listed = FileList(name.step, name.world_size, files)
    body = json.dumps(encode(listed), separators=(",", ":")).encode()
    _put(path, file_names.list_file(files[0].rank), lambda fd: _write_all(fd, body))
    _sync(folder)
    return needed


def _write_rank(path: str, source: SlotOfRank, goes_on: Callable[[], bool]) -> RankFile:
    arena, slot = source
    held, n_bytes = slot.held, slot.n_bytes
    total, crc32 = arena.sum_of(slot.slot), None
    if total is None:
        with arena.map_slot(slot.slot) as mapped, memoryview(mapped) as whole:
            crc32 = zlib.crc32(whole[:n_bytes])
    offset, end = (at := layout.slot_offset(slot.slot)), at + n_bytes

    def copy(fd: int) -> None:
        nonlocal offset
        while offset < end:
            if not goes_on():
                raise NotWrittenError(f"it took too long: rank {held.rank} was being written")
            sent = os.sendfile(fd, arena.fd, offset, min(end - offset, _CHUNK_BYTES))
            if sent == 0:
                raise NotWrittenError(f"the memory of rank {held.rank} is shorter than it was")
            offset += sent
        if arena.held(slot.slot) != slot:
            raise NotWrittenError(f"rank {held.rank} has taken another snapshot meanwhile")

    _put(path, file_names.rank_file(held.rank), copy)
    return RankFile(held.rank, n_bytes, total, crc32)


def _put(path: str, name: str, fill: Callable[[int], None]) -> None:
    """Have the file under its name when all of it is on the disk, or not at all."""
    temporary = f"{path}/.{name}.{os.getpid()}.part"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS, 0o600)
    try:
        try:
            fill(fd)
            os.fsync(fd)
        finally:
            os.close(fd)
        Path(temporary).replace(f"{path}/{name}")
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    _sync(path)


def _write_all(fd: int, body: bytes) -> None:
    rest = memoryview(body)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _sync(path: str) -> None:
    """Have the names in a folder on the disk, where its file system does that."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


# ---------------------------------------------------------------- read
def read(folder: str) -> list[Filed]:
    """The snapshots in a folder.

    Raises:
        OSError: The folder cannot be read.
    """
    names = sorted(it.name for it in Path(folder).iterdir())
    return [_read(folder, name, of) for name in names if (of := file_names.parsed(name))]


def read_one(path: str) -> Filed:
    """One snapshot, by its folder; ``problems`` names files that are not as their list says.

    Raises:
        OSError: It is none.
    """
    folder, _, name = path.rpartition("/")
    if (of := file_names.parsed(name)) is None:
        raise OSError(f"{path} is not the folder of a snapshot")
    return _read(folder, name, of)


def _read(folder: str, name: str, of: NamedSnapshot) -> Filed:
    path = f"{folder}/{name}"
    files: dict[int, RankFile] = {}
    problems: list[str] = []
    try:
        names = [it.name for it in Path(path).iterdir()]
    except OSError as error:
        names, problems = [], [f"it cannot be read: {error}"]
    for each in filter(file_names.is_list, names):
        try:
            listed = decode(file_names.LISTS, json.loads(_bytes(f"{path}/{each}")))
            if (listed.step, listed.world_size) != (of.step, of.world_size):
                raise MessageError(f"it is of step {listed.step} of {listed.world_size} ranks")
            files |= {it.rank: it for it in listed.files if it.rank < of.world_size}
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{each} cannot be read: {error}")
    for rank in sorted(files):
        it = files[rank]
        if (why := _why_not(f"{path}/{file_names.rank_file(rank)}", it)) != "":
            problems.append(f"the file of rank {rank} {why}")
            del files[rank]
    on_disk = OnDisk(name, of.step, of.world_size, text_of(files))
    return Filed(on_disk, files, file_names.why_unused(names), tuple(problems))


def _why_not(path: str, listed: RankFile) -> str:
    try:
        found = os.lstat(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not stat.S_ISREG(found.st_mode):
        return "is a link, a folder or a device"
    if found.st_size != listed.n_bytes:
        return f"has {found.st_size} bytes, its list says {listed.n_bytes}"
    if listed.total is None and listed.crc32 is None:
        return "has no sum in its list"
    return ""


def _bytes(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _FLAGS)
    try:
        size = os.fstat(fd).st_size
        if size > _LIST_BYTES_MAX:
            raise OSError(f"it has {size} bytes")
        return os.read(fd, _LIST_BYTES_MAX)
    finally:
        os.close(fd)


# ---------------------------------------------------------------- marked and removed
def mark(folder: str, name: str, mark: Mark, text: str = "") -> None:
    """Mark a snapshot for later jobs. Raises OSError."""
    fd = os.open(f"{folder}/{name}/{mark.value}", os.O_WRONLY | os.O_CREAT | _FLAGS, 0o600)
    try:
        _write_all(fd, text.encode(errors="backslashreplace")[:_TEXT_BYTES_MAX])
    finally:
        os.close(fd)


def unmark_rescued(folder: str, name: str) -> None:
    """Its job has ended with it: no checkpoint is newer. Raises OSError."""
    Path(folder, name, Mark.RESCUED.value).unlink(missing_ok=True)


def unmark(folder: str, name: str, tried: str = "") -> None:
    """No job uses it any more; ``tried``: the life that got no further. Raises OSError."""
    begun = Path(folder, name, Mark.BEGUN.value)
    with contextlib.suppress(FileNotFoundError):  # another node of the job has done it
        if tried:
            begun.replace(begun.with_name(file_names.tried_file(tried)))
        else:
            begun.unlink()


def remove(folder: str, name: str) -> None:
    """Remove a snapshot; another node may do it at the same time."""
    if file_names.parsed(name) is not None:
        shutil.rmtree(f"{folder}/{name}", ignore_errors=True)
