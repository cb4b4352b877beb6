"""What a node reports to the member of its job: how its ranks ended, and what they show. Pure."""

from __future__ import annotations

from holdfast.base.pure.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.evidence.pure.evidence import RankDigest


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


class RankOverdue(Value):
    """For the member: a rank of this cycle is overdue. ``after``, ``clock``: see Suspect."""

    cycle: int
    rank: int
    after: int
    clock: str = ""


class RanksLooked(Value):
    """For the member: what the ranks of this node show at an incident of the job."""

    cycle: int
    incident: int
    digests: tuple[RankDigest, ...]
