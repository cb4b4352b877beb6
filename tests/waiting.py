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
    """Wait for ``condition`` to be true and return its value; ``what``: says the failure."""
    give_up_at = time.monotonic() + bound_s
    while not (value := condition()):
        if time.monotonic() >= give_up_at:
            raise AssertionError(f"not within {bound_s:g} s: {what() if callable(what) else what}")
        time.sleep(0.002)
    return value
