"""Since when a rank and all that it has started have done nothing, from looks at /proc. Pure.

A main thread that hangs does not run at all. But the reader of a data loader wakes up every few
seconds to see whether its workers live, and a loop may ask for what never comes. So, in degrees::

    still   the main thread has not run once; the rest has done next to nothing
    calm    the same, but the main thread may have woken up, once a second at most
    dozing  the same, but it may have woken up again and again, for next to no CPU time

The rest are the rank's other threads and its children. Libraries poll in threads of their own, and
the workers of a data loader see whether their rank lives: a little counts as nothing. Seconds.
"""

from __future__ import annotations

from holdfast.core.value import Value

SHARE = 0.02
"""Of a CPU, that threads and children which do nothing may use."""
TICK_S = 0.02
"""CPU time is counted in hundredths of a second."""
BYTES_S = 65536.0
"""Read and written a second, by a rank that does nothing but write its log."""
_WAKES_S = 1.0
_WAKE_CPU_S = 0.002
_DOZE_WAKES_S = 50.0
DOZES = 3.0
"""So many times as long as others a rank must doze to be idle: 0.75 of the floor."""


class Moves(Value):
    """What a rank and its children had done until one instant, in /proc.

    Attributes:
        switches: Context switches of its main thread.
        main_s: CPU time of its main thread.
        all_s: CPU time of all threads, of its children, and of children that have ended.
        n_bytes: Read and written, by all of them.
        wakes: Context switches of its children's main threads.
        pids: Its own, its children's, theirs, and so on.
        is_in_kernel: One of all is in state D: its read or write is under way.
    """

    switches: int
    main_s: float
    all_s: float
    n_bytes: int
    wakes: int = 0
    pids: tuple[int, ...] = ()
    is_in_kernel: bool = False


class Stillness:
    """Since when a rank is still, calm, or dozes; :meth:`looked` is called now and then."""

    def __init__(self) -> None:
        self._before: tuple[Moves, float] | None = None
        self.still_since: float | None = None
        self.calm_since: float | None = None
        self.dozes_since: float | None = None

    def forget(self) -> None:
        """The rank has made progress."""
        self._before = self.still_since = self.calm_since = self.dozes_since = None

    def looked(self, now_shown: Moves | None, now: float) -> None:
        """Take in a look; None: there was nothing to see."""
        before, self._before = self._before, None if now_shown is None else (now_shown, now)
        is_still = is_calm = dozes = False
        since = now
        if before is not None and now_shown is not None:
            shown, since = before
            apart_s = now - since
            dozes = _dozes(shown, now_shown, apart_s)
            is_calm = dozes and _is_calm(shown, now_shown, apart_s)
            is_still = is_calm and now_shown.switches == shown.switches
        self.dozes_since = _first(self.dozes_since, since, goes_on=dozes)
        self.calm_since = _first(self.calm_since, since, goes_on=is_calm)
        self.still_since = _first(self.still_since, since, goes_on=is_still)

    def still_s(self, now: float, *, calm: bool) -> float:
        """For how long it is still, or at least calm; 0.0: it is not."""
        since = self.calm_since if calm else self.still_since
        return 0.0 if since is None else now - since

    def idle_s(self, now: float, least_s: float, *, calm: bool) -> float:
        """For how long it has done nothing; 0.0: it has, or for less than is worth telling.

        Args:
            now: Of the last look.
            least_s: What is worth telling; :data:`DOZES` times that of a rank that only dozes, as
                a loop that sleeps may ask for what comes from outside of the job.
            calm: It need not be still.
        """
        idle_s, dozes_s = self.still_s(now, calm=calm), self.dozes_s(now)
        if idle_s >= least_s:
            return idle_s
        return dozes_s if dozes_s >= DOZES * least_s else 0.0

    def dozes_s(self, now: float) -> float:
        """For how long it dozes, or is calm or still; 0.0: it does not."""
        return 0.0 if self.dozes_since is None else now - self.dozes_since


def _first(known: float | None, since: float, *, goes_on: bool) -> float | None:
    if not goes_on:
        return None
    return since if known is None else known


def _dozes(before: Moves, after: Moves, apart_s: float) -> bool:
    at_least_1_s = max(1.0, apart_s)
    main_s = after.main_s - before.main_s
    rest_s = after.all_s - before.all_s - main_s
    return (
        not after.is_in_kernel
        and before.pids == after.pids
        and after.switches - before.switches <= _DOZE_WAKES_S * at_least_1_s
        and after.wakes - before.wakes <= _WAKES_S * at_least_1_s * len(after.pids)
        and main_s <= SHARE * at_least_1_s
        and abs(rest_s) <= SHARE * apart_s + TICK_S
        and after.n_bytes - before.n_bytes <= BYTES_S * at_least_1_s
    )


def _is_calm(before: Moves, after: Moves, apart_s: float) -> bool:
    at_least_1_s = max(1.0, apart_s)
    return (
        after.switches - before.switches <= _WAKES_S * at_least_1_s
        and after.main_s - before.main_s <= _WAKE_CPU_S * at_least_1_s
    )
