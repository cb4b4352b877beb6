"""Where this rank's main thread is, looked at by another thread of the process.

As the monitor of a rank looks at it from outside (``watch/monitor/rank_look.py``), and
for the same verdict.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType

from holdfast.base.clock import monotonic
from holdfast.evidence.pure.evidence import ANSWERED, GroupDigest, Operations, RankDigest
from holdfast.evidence.pure.rank_digest import Seen, digest
from holdfast.evidence.pure.stacks import Frame, Place, place_of
from holdfast.evidence.sight import look_at

_APART_S = 0.02
"""Between two looks: they tell a thread that computes from one that sleeps."""
_GROUPS = 16
"""Process groups that are told of, those used last."""


def look_at_main(rank: int, pause: Callable[[float], object]) -> RankDigest:
    """Takes a fiftieth of a second, and waits for nothing.

    Args:
        rank: That torch knows this process by.
        pause: Called between two looks with how long it should take, in seconds.
    """
    pid = os.getpid()
    groups, recent = _collectives()
    began = monotonic()
    first = look_at(pid)
    place = place_of_main()
    pause(_APART_S)
    seen = Seen(
        first,
        look_at(pid),
        monotonic() - began,
        place,
        is_asked=True,
        is_alive=True,
        operations=Operations(groups[-_GROUPS:], recent),
    )
    identity = {"rank": rank, "node": os.uname().nodename, "local_rank": 0, "pid": pid}
    return digest(identity, seen, None, None, None, 0.0)


def place_of_main() -> Place:
    """The telling line of the main thread."""
    return place_of(_frames(sys._current_frames().get(threading.main_thread().ident or 0)))  # noqa: SLF001


def has_returned(rank: int) -> RankDigest:
    """Instead, of a rank that is not in the function any more."""
    lacks = "it has returned from the function"
    node = os.uname().nodename
    return RankDigest(rank=rank, node=node, pid=os.getpid(), helper=ANSWERED, lacks=lacks)


def _frames(frame: FrameType | None) -> list[Frame]:
    """Innermost first."""
    found = []
    while frame is not None:
        code = frame.f_code
        found.append(Frame(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return found


def _collectives() -> tuple[tuple[GroupDigest, ...], tuple[str, ...]]:
    # Imported with the wrapper: now, the main thread may hang in an import.
    module = sys.modules.get("holdfast.evidence.current_collectives")
    return ((), ()) if module is None else module.current_collectives()
