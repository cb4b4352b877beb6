"""Parts of a launcher with deadlines or processes of their own.

No recovery waits for a part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.base.pure.common_events import SignalArrived
from holdfast.base.pure.value import Value
from holdfast.node.pure.cycle_events import CycleEnding, Waiting
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.node.pure.rank_life import MonitorSaid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from holdfast.base.processes.child import Reaped
    from holdfast.net.loop import Loop
    from holdfast.node.processes.ranks import RankProcess, Ranks


class CycleStarted(Value):
    """All these ranks were started."""

    ranks: Ranks


class RankKilled(Value):
    """A rank was ended by SIGKILL; by the kernel, perhaps, because memory ran out."""

    rank: RankProcess


Happening = (
    Waiting | CycleStarted | CycleEnding | RankKilled | MonitorSaid | SignalArrived | IncidentOver
)


class Part:
    """One of them. Main thread only."""

    def on_event(self, happening: Happening) -> None:
        """It has happened just now."""

    def next_deadline(self) -> float | None:
        """When :meth:`on_time` is due; None: never."""
        return None

    def on_time(self) -> None:
        """That instant may have come."""

    def pids(self) -> frozenset[int]:
        """Its processes, also killed ones that were not reaped yet; they outlive cycles."""
        return frozenset()

    def died(self, reaped: Reaped) -> bool:
        """Note that a process was reaped; whether it was one of these."""
        del reaped
        return False

    def take(
        self,
        local_rank: int,
        command: Sequence[str],
        env: Mapping[str, str],
        streams: Sequence[int],
    ) -> int | None:
        """Have a process of its own become this rank; its pid. None: a new one is to be started.

        ``streams`` are descriptors for its stdout and stderr, and for its stdin if it has one.
        """
        del local_rank, command, env, streams
        return None

    def end(self) -> None:
        """The job is over: end its processes; they are reaped with all that is left."""


class Context(Value):
    """The launcher's side of a part that is made for it.

    ``folder`` is private, for its sockets and files; ``job`` marks the environment of its
    processes; ``tie``: see :func:`.child.death_tie`. ``like`` gives command, environment and pid of
    a rank as it would be started now; no pid where none runs.
    """

    loop: Loop
    tie: Sequence[str]
    job: str
    folder: str
    like: Callable[[int], tuple[list[str], dict[str, str], int | None]]


if TYPE_CHECKING:
    MakePart: TypeAlias = Callable[[Context], Part]
