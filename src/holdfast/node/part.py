"""What those parts of a launcher have in common that go their own way.

A part hears what happens, has deadlines or has processes of its own. None is waited for: a part
must not slow a recovery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.base.pure.common_events import SignalArrived
from holdfast.base.pure.value import Value
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.node.pure.rank_life import MonitorSaid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from holdfast.base.processes.child import Reaped
    from holdfast.net.loop import Loop
    from holdfast.node.processes.ranks import Rank, Ranks


class Waiting(Value):
    """The node waits for a cycle to take part in."""


class CycleBegins(Value):
    """These ranks are about to be started."""

    ranks: Ranks


class CycleStarted(Value):
    """All these ranks were started."""

    ranks: Ranks


class CycleEnding(Value):
    """The ranks are being stopped, or have ended."""


class RankKilled(Value):
    """A rank was ended by SIGKILL; by the kernel, perhaps, because memory ran out."""

    rank: Rank


Happening = (
    Waiting
    | CycleBegins
    | CycleStarted
    | CycleEnding
    | RankKilled
    | MonitorSaid
    | SignalArrived
    | IncidentOver
)


class Part:
    """One of them. Main thread only."""

    def hear(self, happening: Happening) -> None:
        """It has happened just now."""

    def next_deadline(self) -> float | None:
        """When :meth:`on_time` is due; None: never."""
        return None

    def on_time(self) -> None:
        """That instant may have come."""

    def pids(self) -> frozenset[int]:
        """Its processes, those included that were told to end and have not; they outlive cycles."""
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
    """What a launcher has for a part that is made for it.

    Attributes:
        loop: Where descriptors are waited for.
        tie: See :func:`.child.death_tie`.
        job: Marks the environment of its processes.
        folder: Private, for what they leave word in.
        like: Command, environment and pid of a rank as it would be started now; no pid where none
            runs.
    """

    loop: Loop
    tie: Sequence[str]
    job: str
    folder: str
    like: Callable[[int], tuple[list[str], dict[str, str], int | None]]


if TYPE_CHECKING:
    MakePart: TypeAlias = Callable[[Context], Part]
