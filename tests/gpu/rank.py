"""First lines of a rank under a launcher: what it writes down, and its GPU."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import NoReturn

CYCLE = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
RANK = int(os.environ.get("RANK", "0"))


def note(what: str, **facts: object) -> None:
    """Append one line to ``$OUT/notes``; ``at``: on the clock of all processes of this machine."""
    line = {"what": what, "cycle": CYCLE, "rank": RANK, "pid": os.getpid(), **facts}
    line["at"] = time.monotonic()
    with Path(os.environ["OUT"], "notes").open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


def wait_for_ever() -> NoReturn:
    """Until a signal ends this process."""
    while True:
        signal.pause()
