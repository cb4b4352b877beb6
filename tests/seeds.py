"""Where random tests begin: at the same seed in each run, or at a fresh one.

``make test`` is a gate: what it says of a commit depends on that commit alone, so its seeds and
Hypothesis' examples are the same each time. New ones are drawn by ``make fresh`` and ``make sim``
(``HOLDFAST_FRESH=1`` with any test), and what they find becomes a test.
"""

from __future__ import annotations

import os
import random
import zlib

FRESH = os.environ.get("HOLDFAST_FRESH", "") not in ("", "0")


def first_seed(name: str) -> int:
    """Of the test of that name: below 2**31."""
    if FRESH:
        return random.SystemRandom().randrange(2**31)
    return zlib.crc32(name.encode()) >> 1
