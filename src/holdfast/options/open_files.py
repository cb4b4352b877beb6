"""How many open files a launcher needs, and the parts that it leaves out to need fewer. Pure.

Without a monitor a rank trains on, and its hangs are not found. Where that is not enough, ranks
from a certain one on write to the launcher's own stdout and stderr, which needs no file here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from holdfast.base.pure.value import Value

_OF_LAUNCHER = 64
"""Besides its ranks, at any moment of a cycle; in a large job the leader has more."""
_OF_MONITOR = 4
"""A rank's socket, connection and page, and the connection to its parked interpreter."""


class Affordable(Value):
    """The parts that fit. ``warning`` names those that do not; empty: there are none.

    ``n_carried``: the output of so many local ranks, from 0 on, may go through the launcher.
    """

    monitored: bool
    n_carried: int
    warning: str = ""


def affordable(limit: int, of_output: Sequence[int], *, monitored: bool) -> Affordable:
    """Choose the parts that fit.

    Args:
        limit: Open files that this process may have.
        of_output: Those that the output of each local rank needs.
        monitored: Ranks are to have monitors.
    """
    nproc = len(of_output)
    needed = _OF_LAUNCHER + sum(of_output) + nproc * _OF_MONITOR * monitored
    if needed <= limit:
        return Affordable(monitored, nproc)
    n_carried = sum(_OF_LAUNCHER + files <= limit for files in accumulate(of_output))
    without = ["hangs of ranks are not found"] * monitored
    if n_carried < nproc:
        without.append(
            f"the output of local ranks {n_carried} to {nproc - 1} goes to the console alone, as "
            "they write it"
        )
    return Affordable(
        False,
        n_carried,
        f"the launcher may have {limit} open files (ulimit -Hn) and needs {needed}: "
        f"{'; '.join(without)}",
    )
