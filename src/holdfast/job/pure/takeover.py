"""A job that a leader takes over from the one before: ranks that may be alive, and later rounds.

Pure. Times are seconds on the leader's clock. Launchers from which no word came may have ranks of
the last cycle, or of one that the leader before was forming. The next cycle waits for as long as
they need to end them, or until each node has said that its ranks are gone.

A launcher that offers its vote late may know of another leader, which was elected without this one
or after it (:mod:`.succession`): then its ranks are waited for as well, or this leader steps down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from holdfast.job.pure import membership as msg
from holdfast.job.pure.forming import Forming
from holdfast.job.pure.leader_lease import LeaderLease
from holdfast.job.pure.succession_messages import Leads

_A_LATER_CYCLE = ""
"""In the place of a node: no launcher can say that none has ranks of a cycle that it missed."""


@dataclass
class Takeover:
    """Of one leader.

    Attributes:
        before: As the last leader left the job; None: there was none.
        newest: The last cycle of any node: the leader before may have formed one that only some
            received.
        knows_too_little: A launcher has a round that this leader has not.
        superseded: How it is known that there is a leader of a later term, or was one; empty: it is
            not.
    """

    before: Leads | None
    forming: Forming
    lease: LeaderLease

    newest: int = field(default=-1, init=False)
    knows_too_little: bool = field(default=False, init=False)
    superseded: str = field(default="", init=False)
    _may_form_from: float = field(default=0.0, init=False)
    """If no rank can be alive."""
    _unaccounted: set[str] = field(default_factory=set, init=False)
    """Nodes with ranks that may be alive, of the cycle in which the leader before died."""

    @property
    def term(self) -> int:
        """Greater than that of each leader before; 0: there was none."""
        return 0 if self.before is None else self.before.term

    def begin(self, before: Leads, may_form_from: float) -> None:
        """The next cycle forms then, or when no ranks of the last one can be alive."""
        self._may_form_from = may_form_from
        places = {place.node for place in before.round.places}
        sure = [offer.node in places for offer in before.offers if offer.is_sure]
        is_sure = any(sure) and len(sure) == len(before.offers)
        others = places - before.ended
        self._unaccounted = others if is_sure else {*others, _A_LATER_CYCLE}

    def joined(self, join: msg.Join) -> None:
        """A node joins, maybe of a later cycle than this leader knows."""
        self.newest = max(self.newest, join.have_cycle)

    def account_for(self, node: str) -> None:
        """No rank of the last cycle is alive there; if so everywhere, nothing is waited for."""
        if node in self._unaccounted:
            self._unaccounted.discard(node)
            self.start_early_if_sure()

    def start_early_if_sure(self) -> None:
        """All have said that their ranks are gone, or there were none."""
        if not self._unaccounted:
            self.forming.earliest_at = self._may_form_from

    def formed(self) -> None:
        """The next cycle begins."""
        self._unaccounted.clear()

    def knows_later_round(self, offer: msg.Offer) -> bool:
        """Whether a launcher has a round that this leader did not take over."""
        return self.before is None or offer.last > self.before.round.version

    def superseded_by(self, term: int, node: str) -> None:
        """A launcher has proved that it leads, in this later term.

        Unless it could not be elected: one of an earlier run of this job counts terms of its own.
        """
        if self.lease.is_of(node) and self.lease.until() < math.inf:  # else no other can lead
            self.superseded = f"another launcher leads, in term {term}"

    def offered(self, offer: msg.Offer, now: float, *, has_formed: bool) -> bool:
        """A launcher follows; whether ranks of a leader that it followed are waited for.

        Another leader may have led since this one was elected, if that has formed no round.
        """
        if offer.followed > self.term and math.isfinite(self.lease.until()):
            # By one that is gone; that launcher would never return.
            self.superseded = "a launcher has followed a leader of a later term"
        if self.before is None or has_formed:
            return False
        if self.knows_later_round(offer) and not self.lease.is_established:
            self.knows_too_little = True
        if not offer.ranks_s:
            return False
        self._unaccounted.add(_A_LATER_CYCLE)
        self.forming.earliest_at = max(self.forming.earliest_at, now + offer.ranks_s)
        self.lease.wait_until(now + offer.ranks_s - self.lease.pace.step_down_s)
        return True
