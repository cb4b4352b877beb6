"""Facts about the health of a host, and whether a node may take part. Pure.

A *probe* looks at one kind of thing and returns *findings*: facts, each with a verdict. Only a
thing known to be broken keeps a node out: one that can't be determined is logged once.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.base.pure.codec import Raw


class Fitness(enum.Enum):
    """The meaning of a fact for a node that wants to take part."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"
    """Cannot be determined: no driver, no permission, no answer. Does not keep a node out."""
    SUSPECT = "suspect"
    """Not as it should be, and no reason to leave: a person is to read it."""


Fact = tuple[Fitness, str]
_FROM_WORST = (Fitness.UNHEALTHY, Fitness.SUSPECT, Fitness.UNKNOWN, Fitness.HEALTHY)


@dataclass(frozen=True)
class Finding:
    """A check found one fact about one thing of the node.

    Attributes:
        probe: Which check: ``gpu``, ``xid``, ``nvlink``, ``nic``, ``storage``, ``host`` or
            ``service``.
        subject: The thing: ``GPU 3 (GPU-8f...)``, ``mlx5_0 port 1``, ``/lustre``.
        verdict: ``healthy``, ``unhealthy``, ``unknown`` or ``suspect``.
        text: The fact, with numbers, and the remedy; one line.
        device: Position among the GPUs that this node's ranks use; None: it belongs to none.
    """

    probe: str
    subject: Raw
    verdict: Fitness
    text: Raw = ""
    device: int | None = None

    def __str__(self) -> str:
        """For a log: ``nic mlx5_0 port 1: link is DOWN``."""
        return f"{self.probe} {self.subject}: {self.text or self.verdict.value}"


def finding_of(
    probe: str, subject: str, facts: Iterable[Fact], device: int | None = None
) -> Finding:
    """Several facts about one thing make one finding: the worst decides, and comes first.

    No fact: it is healthy.
    """
    ordered = sorted(facts, key=lambda fact: _FROM_WORST.index(fact[0]))
    verdict = ordered[0][0] if ordered else Fitness.HEALTHY
    return Finding(probe, subject, verdict, "; ".join(text for _, text in ordered if text), device)


def why_unfit(findings: Iterable[Finding]) -> str | None:
    """Why a node with these findings leaves; ``None``: it may take part."""
    broken = [str(finding) for finding in findings if finding.verdict is Fitness.UNHEALTHY]
    return "; ".join(broken) or None
