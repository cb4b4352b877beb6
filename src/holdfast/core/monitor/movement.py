"""Since when a rank and all that it has started have done nothing, from looks at /proc. Pure.

A main thread that hangs does not run at all. Two degrees, as the reader of a data loader wakes up
every few seconds to see whether its workers live::

    still   the main thread has not run once; the rest has done next to nothing
    calm    the same, but the main thread may have woken up, once a second at most

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
    """Since when a rank is still, and calm; :meth:`looked` is called now and then."""

    def __init__(self) -> None:
        self._before: tuple[Moves, float] | None = None
        self.still_since: float | None = None
        self.calm_since: float | None = None

    def forget(self) -> None:
        """The rank has made progress."""
        self._before = self.still_since = self.calm_since = None

    def looked(self, now_shown: Moves | None, now: float) -> None:
        """Take in a look; None: there was nothing to see."""
        before, self._before = self._before, None if now_shown is None else (now_shown, now)
        if before is None or now_shown is None:
            self.still_since = self.calm_since = None
            return
        shown, at = before
        if not _is_calm(shown, now_shown, now - at):
            self.still_since = self.calm_since = None
            return
        if self.calm_since is None:
            self.calm_since = at
        is_still = now_shown.switches == shown.switches
        self.still_since = (self.still_since or at) if is_still else None

    def still_s(self, now: float, *, calm: bool) -> float:
        """For how long it is still, or at least calm; 0.0: it is not."""
        since = self.calm_since if calm else self.still_since
        return 0.0 if since is None else now - since


def _is_calm(before: Moves, after: Moves, apart_s: float) -> bool:
    woken = after.switches - before.switches
    main_s = after.main_s - before.main_s
    rest_s = after.all_s - before.all_s - main_s
    return (
        not after.is_in_kernel
        and before.pids == after.pids
        and woken <= _WAKES_S * max(1.0, apart_s)
        and after.wakes - before.wakes <= _WAKES_S * max(1.0, apart_s) * len(after.pids)
        and main_s <= _WAKE_CPU_S * max(1.0, apart_s)
        and abs(rest_s) <= SHARE * apart_s + TICK_S
        and after.n_bytes - before.n_bytes <= BYTES_S * max(1.0, apart_s)
    )
