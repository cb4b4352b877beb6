"""Evidence that a rank takes of its own main thread, from another thread of the process."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from holdfast.base.clock import monotonic
from holdfast.evidence.collector import Collector
from holdfast.evidence.pure.evidence import ANSWERED, Operations, RankDigest
from holdfast.evidence.pure.rank_digest import digest
from holdfast.evidence.pure.stacks import ThreadPlace, frames_of, place_of
from holdfast.evidence.sources import ProcSamples, Source

_APART_S = 0.02
"""Between two samples: they tell a thread that computes from one that sleeps."""
_BUDGET_S = 0.2
_GROUPS = 16
"""Process groups that are reported, those used last."""


class OwnThread(Source):
    """Frames of the main thread and the collectives that it is in, when this is made."""

    def __init__(self) -> None:
        # Imported with the wrapper: now, the main thread may hang in an import.
        module = sys.modules.get("holdfast.evidence.current_collectives")
        groups, recent = ((), ()) if module is None else module.current_collectives()
        self._operations = Operations(groups[-_GROUPS:], recent)
        self._place = place_of_main()

    def facts(self) -> dict[str, Any]:
        """Fields of ``RankEvidence``."""
        answer = {"operations": self._operations, "is_asked": True, "is_alive": True}
        return {"place": self._place, **answer}


def look_at_main(rank: int, pause: Callable[[float], object]) -> RankDigest:
    """Takes a fiftieth of a second, and waits for nothing.

    Args:
        rank: That torch knows this process by.
        pause: Called between two samples with how long it should take, in seconds.
    """
    own, now = OwnThread(), monotonic()
    samples = ProcSamples(os.getpid(), now, apart_s=0.0)  # the pause may end early
    collector = Collector([samples, own], now, now + _BUDGET_S)
    pause(_APART_S)
    collector.step(monotonic())
    identity = {"rank": rank, "node": os.uname().nodename, "local_rank": 0, "pid": os.getpid()}
    return digest(identity, collector.seen(), None, None, None, 0.0)


def place_of_main() -> ThreadPlace:
    """The telling line of the main thread."""
    return place_of(frames_of(sys._current_frames().get(threading.main_thread().ident or 0)))  # noqa: SLF001


def has_returned(rank: int) -> RankDigest:
    """The digest of a rank that is not in the function any more."""
    lacks = "it has returned from the function"
    node = os.uname().nodename
    return RankDigest(rank=rank, node=node, pid=os.getpid(), helper=ANSWERED, lacks=lacks)
