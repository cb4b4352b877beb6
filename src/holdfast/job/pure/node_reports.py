"""Reports of a node to the member of its job: the end of its ranks. Pure."""

from __future__ import annotations

from holdfast.base.pure.value import Value


class Unhealthy(Value):
    """A health check failed: this node must not have ranks again.

    After a cycle it is reported before :class:`RanksStopped`.
    """

    text: str


class RanksSucceeded(Value):
    """All ranks of this cycle exited with 0, and nothing they started is alive."""

    cycle: int


class RanksStopped(Value):
    """No rank of this cycle is alive, nor anything they started; not all of them exited with 0."""

    cycle: int


class RanksStuck(Value):
    """A rank of this cycle cannot be killed; this node must never have ranks again."""

    cycle: int
    text: str
