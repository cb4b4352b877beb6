"""A snapshot on disk, mapped."""

from __future__ import annotations

import mmap
import os
import zlib

import torch

from holdfast.arena.pure.messages import FileToRestore
from holdfast.snapshot._saved import MismatchError
from holdfast.snapshot._tensors import sum_of


def mapped_file(file: FileToRestore) -> tuple[memoryview, int | None]:
    """The bytes of a file, and their sum, which the caller checks as it copies them.

    Where the sum is not known, their CRC is checked here.

    Raises:
        MismatchError: The file has another size, or other bytes.
        OSError: It cannot be read.
    """
    memory = map_file(file)
    if file.total is None:
        check_crc(file, memory)
    return memory, file.total


def map_file(file: FileToRestore) -> memoryview:
    """The bytes of a file, not checked.

    Raises:
        MismatchError: The file has another size.
        OSError: It cannot be read.
    """
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        size = os.fstat(fd).st_size
        if size != file.n_bytes or size == 0:
            raise MismatchError(f"{file.path} has {size} bytes, it had {file.n_bytes}")
        # A store into it, which no code does, would not reach the file.
        return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_COPY))
    finally:
        os.close(fd)


def check_crc(file: FileToRestore, memory: memoryview) -> None:
    """Raise MismatchError where the bytes have another CRC."""
    if (found := zlib.crc32(memory)) != file.crc32:
        raise MismatchError(f"its bytes have changed: their CRC is {found}, it was {file.crc32}")


def check(file: FileToRestore, memory: memoryview) -> None:
    """Read all bytes once; raise MismatchError where they have changed."""
    if file.total is None:
        check_crc(file, memory)
        return
    total = sum_of(torch.frombuffer(memory, dtype=torch.uint8), len(memory))
    if total != file.total:
        raise MismatchError(f"its bytes have changed: their sum is {total}, it was {file.total}")
