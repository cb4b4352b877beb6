"""A snapshot on disk: mapped, and its bytes checked before one of them is used."""

from __future__ import annotations

import mmap
import os
import zlib

from holdfast.arena.pure.messages import FileToRestore
from holdfast.snapshot import _tensors
from holdfast.snapshot._saved import MismatchError


def mapped_file(file: FileToRestore) -> memoryview:
    """The bytes of a file, as they were written.

    Raises:
        MismatchError: They are not.
        OSError: It cannot be read.
    """
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        size = os.fstat(fd).st_size
        if size != file.n_bytes or size == 0:
            raise MismatchError(f"{file.path} has {size} bytes, it had {file.n_bytes}")
        # A store into it, which no code does, would not reach the file.
        memory = memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_COPY))
    finally:
        os.close(fd)
    if file.total is not None:
        check_sum(memory, file.total)
    elif (found := zlib.crc32(memory)) != file.crc32:
        raise MismatchError(f"its bytes have changed: their CRC is {found}, it was {file.crc32}")
    return memory


def check_sum(memory: memoryview, expected: int) -> None:
    """Raise MismatchError where the bytes do not add up to ``expected``."""
    if (total := _tensors.sum_of_bytes(memory)) != expected:
        raise MismatchError(f"its bytes have changed: their sum is {total}, it was {expected}")
