"""Faults on order, for the demo and the tests. Your own training needs none of this.

``HOLDFAST_FAULTS="kill@30:1 freeze@60:0"`` makes rank 1 kill itself when it is about to do step 30
and rank 0 freeze at step 60. Each fault happens once in the life of a run folder: what has happened
is read back from its ``progress.jsonl``, so a restarted job passes the same step unharmed.

    kill    SIGKILL: gone without a word, as the kernel's out-of-memory killer does it
    raise   an exception nobody catches
    exit    leaves with exit code 3
    hang    waits for ever, interpreter free: a lost message, a lock nobody releases
    freeze  waits for ever, interpreter held: a stuck driver or C extension; no Python thread runs
    stop    SIGSTOP: suspended
"""

import json
import os
from pathlib import Path

from gpt import record
from holdfast.testing.inject import Fault, strike

ACTIONS = {
    "kill": Fault.SIGKILL,
    "raise": Fault.SIGNAL_EXC,
    "exit": Fault.EXIT,
    "hang": Fault.LOCK,
    "freeze": Fault.LOCK_GIL,
    "stop": Fault.SIGSTOP,
}


class FaultPlan:
    """The faults of ``HOLDFAST_FAULTS`` that have not happened yet in ``run_dir``."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._planned = set(os.environ.get("HOLDFAST_FAULTS", "").split())
        progress = run_dir / "progress.jsonl"
        if self._planned and progress.exists():
            events = map(json.loads, progress.read_text().splitlines())
            self._planned -= {event.get("fault") for event in events}

    def maybe(self, step: int, rank: int) -> None:
        """Carry out what is planned for this rank at this step, if anything."""
        for fault in sorted(self._planned):
            action, _, where = fault.partition("@")
            if where == f"{step}:{rank}":
                record(self._run_dir, "fault", fault=fault, what=action, step=step)
                strike(ACTIONS[action])
