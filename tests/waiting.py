"""Wait for a condition with a bound: what every test does that waits for another process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

SCALE = float(os.environ.get("HOLDFAST_TEST_SCALE", "1"))
"""Set it above 1 on a slow machine: bounds of tests are multiplied by it."""
BOUND_S = 30.0 * SCALE
"""How long a test waits for something that should take a fraction of a second."""


def until(
    condition: Callable[[], Any],
    what: str | Callable[[], object] = "the condition",
    bound_s: float = BOUND_S,
) -> Any:
    """Wait for ``condition`` to be true and return its value; ``what``: says the failure.

    A condition that costs much is asked less often: the processor is for what is awaited.
    """
    began = time.monotonic()
    while True:
        before = time.thread_time()
        if value := condition():
            return value
        now = time.monotonic()
        if now >= began + bound_s:
            raise AssertionError(f"not within {bound_s:g} s: {what() if callable(what) else what}")
        shortest_s = 0.002 if now - began < 1.0 else 0.005
        time.sleep(max(shortest_s, 4 * (time.thread_time() - before)))
