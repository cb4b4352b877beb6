"""The last round that a launcher has received, and the leader that it follows, or followed.

Pure. Times are seconds on the launcher's clock. The last round names the launchers that vote when
its leader is lost. It may have reached few of them. So those that had a vote in the rounds before
have one as well (:mod:`.votes`), back to a round that is *settled* (``LeaderBeat.settled``): as
many launchers have that one as no majority can do without.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from holdfast.base.pure.never import assert_never
from holdfast.job.pure import membership as msg
from holdfast.job.pure.lost_leaders import LostLeaders
from holdfast.job.pure.timing import Pace
from holdfast.job.pure.votes import is_majority


@dataclass
class Following:
    """Of one launcher.

    Attributes:
        round: The last one that it has received.
        electorates: Since the last round that is settled; None: some are not known.
        stop: Of that round's cycle; None: it runs.
        is_sure: No later round can have been formed: no stop came, and no other leader had the
            vote of this launcher.
        incident: Number of the last one.
        followed: The greatest term of a leader that this launcher has answered: it never returns
            to one of a lower term.
        leader: The node that leads, or led.
        leads_at: Where it serves.
    """

    pace: Pace

    round: msg.Round | None = field(default=None, init=False)
    electorates: list[frozenset[str]] | None = field(default=None, init=False)
    stop: msg.StopCycle | None = field(default=None, init=False)
    is_sure: bool = field(default=False, init=False)
    incident: int = field(default=0, init=False)
    followed: int = field(default=0, init=False)
    leader: str = field(default="", init=False)
    leads_at: msg.Successor | None = field(default=None, init=False)
    _leader_at: float = field(default=-math.inf, init=False)
    """When the leader has sent something."""

    @property
    def round_term(self) -> int:
        """Of the leader that formed the last round; 0: there is none yet."""
        return 0 if self.round is None else self.round.term

    @property
    def can_move(self) -> bool:
        """Whether another launcher may be elected, if the leader dies now.

        Not before the first round, nor in a last cycle, after which there is no other; nor where
        the launchers without the leader are no majority.
        """
        formed = self.round
        if formed is None or formed.is_last or not formed.successors:
            return False
        others = formed.electorate - {msg.elector(formed.leader)}
        return is_majority(others, formed.electorate)

    @property
    def can_move_if_it_stays(self) -> bool:
        """The same, if the leader lives, and may be elected again, with its own vote."""
        formed = self.round
        if formed is None or formed.is_last:
            return False
        return bool(formed.successors) or (formed.leads_at is not None and formed.leads_at.port > 0)

    def offer(self, join: msg.Join, term: int, lost: LostLeaders, now: float) -> msg.Offer:
        """The vote of this launcher, which says all that the next leader has to know from it."""
        formed = self.round
        assert formed is not None
        return msg.Offer(
            join.node,
            term,
            join,
            formed.version,
            self.is_sure,
            tuple(sorted(lost.ended)),
            self.incident,
            formed.restarts_used,
            # One that names the electorates before it: of a job that is not large.
            formed if join.desc.is_witness and (formed.since or not formed.after) else None,
            lost.silent_ranks_s(now),
            self.followed,
        )

    # ------------------------------------------------------------ decisions
    def receive(self, decision: msg.Decision, now: float) -> None:
        """Of the leader."""
        self._leader_at = now
        match decision:
            case msg.Round():
                self._on_round(decision)
            case msg.StopCycle():
                self.stop, self.is_sure = decision, False
            case msg.OpenIncident(incident=incident):
                self.incident = max(self.incident, incident)
            case msg.LeaderBeat(term=term, settled=settled):
                self.followed = max(self.followed, term)
                formed = self.round
                if formed is not None and formed.version == settled:
                    self.electorates = [formed.electorate]
            case (
                msg.End()
                | msg.NodeRefused()
                | msg.Judged()
                | msg.Resigned()
                | msg.Cadence()
                | msg.Keep()
                | msg.Kept()
            ):
                pass
            case _:
                assert_never(decision)

    def _on_round(self, formed: msg.Round) -> None:
        if self.round is not None and self.round.version == formed.version:
            return  # once more, for another launcher
        known, self.round, self.stop, self.is_sure = self.round, formed, None, True
        self.followed, self.leads_at = max(self.followed, formed.term), formed.leads_at
        self.leader = formed.leader
        if not formed.after or formed.since:
            self.electorates = [*map(frozenset, formed.since), formed.electorate]
        elif known is None or known.version != formed.after:
            self.electorates = None
        elif self.electorates is not None:
            self.electorates.append(formed.electorate)

    def adopt(self, later: msg.Round) -> None:
        """A round that has not come here, from a voter: as if it came before the leader died.

        If it is of another cycle, nothing is certain of rounds after it.
        """
        known, stop, is_sure = self.round, self.stop, self.is_sure
        self._on_round(later)
        is_same_cycle = known is not None and known.cycle == later.cycle
        self.stop, self.is_sure = (stop, is_sure) if is_same_cycle else (None, False)

    def find(self, leads_at: msg.Successor, now: float) -> None:
        """This launcher leads, and has this one's vote."""
        self.leader, self.leads_at, self._leader_at = leads_at.node, leads_at, now
        self.is_sure = False

    # ------------------------------------------------------------ the leader
    def is_superseded(self, decision: msg.Decision) -> bool:
        """Whether it is of a leader that another one has followed, which this launcher knows."""
        if not isinstance(decision, msg.LeaderBeat | msg.Round):
            return False
        return decision.term < self.followed

    def has_vote(self, node: str) -> bool:
        """Whether a launcher could be elected, or vote, in the last round, as far as is known."""
        formed = self.round
        electorates = self.electorates or ([] if formed is None else [formed.electorate])
        return any(msg.elector(node) in one for one in electorates)

    def leads_lately_at(self, now: float) -> msg.Successor | None:
        """Where the leader serves; None: it has sent nothing for a while, and may be lost."""
        return self.leads_at if now - self._leader_at <= self.pace.ask_s else None
