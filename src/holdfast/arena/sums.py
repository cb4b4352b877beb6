"""The sum of a snapshot's bytes: as 64-bit integers, the last ones padded by zeros, modulo 2**64.

It finds what memory and copies do to bytes, and is no defence against a forger. This one is for
processes without torch (0.3 GB/s); a rank adds with torch (:mod:`holdfast.snapshot`), as fast as
memory is read.
"""

from __future__ import annotations

WORD_BYTES = 8


def checksum(memory: memoryview) -> int:
    """A signed 64-bit integer, of bytes in the order of this machine."""
    whole = len(memory) - len(memory) % WORD_BYTES
    return signed(sum(memory[:whole].cast("q")) + tail(memory[whole:]))


def tail(rest: memoryview) -> int:
    """The value of the last bytes, fewer than 8."""
    padded = bytes(rest) + bytes(WORD_BYTES - len(rest))
    return memoryview(padded).cast("q")[0] if rest else 0


def signed(total: int) -> int:
    """Modulo 2**64, from -2**63 on."""
    return (total + (1 << 63)) % (1 << 64) - (1 << 63)
