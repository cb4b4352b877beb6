"""``python every_step_taken.py script words``: no snapshot is skipped for want of memory.

The library never holds up a training for it: a step that ends before it is reserved has none, and
on a busy machine short ones do. A test that counts steps waits for it.
"""

import runpy
import sys
import time
from pathlib import Path

from holdfast.snapshot._taking import Taking

BOUND_S = 60.0


def _take_when_there_is_memory(self: Taking, step: int, *, healthy: bool = True) -> bool:
    n_bytes = self._live.capture(step).head.n_bytes
    until = time.monotonic() + BOUND_S
    while not self._ring.is_prepared(n_bytes, self._n_slots):
        assert time.monotonic() < until, f"no memory for the {n_bytes} bytes of step {step}"
        self._prepare(n_bytes)
        time.sleep(0.002)
    return _take(self, step, healthy=healthy)


_take = Taking.take
Taking.take = _take_when_there_is_memory  # type: ignore[method-assign]
sys.argv.pop(0)
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
