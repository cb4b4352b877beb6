"""What a node's guard sees of a rank that it is about to end: the rank cannot tell by itself.

Its state in two looks of the guard, and the stacks that it wrote before it is killed, for the same
verdict as what other ranks tell of themselves (``own_look.py``).
"""

from __future__ import annotations

import os

from holdfast.base.clock import monotonic
from holdfast.evidence.pure.evidence import RankDigest
from holdfast.evidence.pure.rank_digest import Seen, Sight, digest
from holdfast.evidence.pure.stacks import main_thread, place_of
from holdfast.evidence.sight import APART_S, look_at

_KEPT = 3
"""Looks: when it was late, when all were interrupted, when it is ended."""


class GuardLook:
    """At one rank.

    Args:
        pid: Of its process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._sights: list[tuple[float, Sight]] = []
        self._ran_at = 0.0

    def look(self, ran_at: float) -> None:
        """At its main thread, now; ``ran_at``: when another thread last had the interpreter.

        Never after a signal: a dump of stacks may end the sleep in C in which the rank hangs.
        """
        if (seen := look_at(self._pid)) is not None:
            self._sights = [*self._sights[1 - _KEPT :], (monotonic(), seen)]
            self._ran_at = ran_at

    def digest(
        self, number: int, stacks: str, why_not: str, *, has_handler: bool = True
    ) -> RankDigest:
        """What it showed.

        Args:
            number: The rank that torch knows it by.
            stacks: Of all threads; "": there are none,
            why_not: for this reason.
            has_handler: False: it takes no stacks any more.
        """
        first, second, apart_s = None, None, 0.0
        is_asked = is_alive = False
        if self._sights:
            last_at, last = self._sights[-1]
            earlier = [(at, it) for at, it in self._sights if at <= last_at - APART_S]
            first = last
            if earlier:
                first_at, first = earlier[-1]
                apart_s = last_at - first_at
                switches = int((last.switches - first.switches) * APART_S / apart_s)
                second = Sight(**(vars(last) | {"switches": first.switches + max(0, switches)}))
                is_asked, is_alive = True, self._ran_at > first_at
        seen = Seen(
            first,
            second,
            apart_s,
            place_of(main_thread(stacks)),
            is_asked,
            is_alive,
            lacks=() if stacks else (f"no stacks: {why_not}",),
            has_handler=bool(stacks) or has_handler,
        )
        identity = {
            "rank": number,
            "node": os.uname().nodename,
            "local_rank": 0,
            "pid": self._pid,
        }
        return digest(identity, seen, None, None, None, 0.0)
