"""Decide for a witness: a process of a job that has no ranks, never leads, and may have a vote.

    the job's log --> Member (joins, beats, follows) <--> Succession (votes when the leader dies)

Pure. Times are seconds on the caller's monotonic clock. The duties of the caller are those of
:mod:`holdfast.node.pure.launcher`, as far as they are not about ranks. No launcher votes for a
witness, for it serves nowhere (:attr:`.Descriptor.serves`), and it counts no votes.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.pure.common_events import Begin, Note, SignalArrived, TimePassed
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.value import Value
from holdfast.base.pure.wording import count
from holdfast.job.pure.exit_codes import Ending
from holdfast.job.pure.member import Member
from holdfast.job.pure.member_messages import (
    LeaderFound,
    LeaderLost,
    LeaderMissing,
    LeaderReplaced,
    LeaveJob,
)
from holdfast.job.pure.membership import (
    Decision,
    Join,
    LeaderBeat,
    LeaveWhy,
    Message,
    NodeRefused,
    Offer,
    Resigned,
    Round,
)
from holdfast.job.pure.succession import Succession
from holdfast.job.pure.succession_messages import (
    Approach,
    Follows,
    Give,
    LeaderDied,
    LeaderSilent,
    LeaveLeader,
    NotReached,
    PeerDied,
    Reached,
    Ready,
    Release,
    Released,
)
from holdfast.node.pure import launcher

Event = launcher.Event


class WitnessLeaves(Value):
    """Its part is over: exit with this code. ``text``: how the job ended, or why it leaves."""

    exit_code: int
    text: str


Effect = Message | Approach | Give | LeaveLeader | Release | Note | WitnessLeaves


@dataclass
class Witness:
    """One witness."""

    member: Member
    succession: Succession

    finished: WitnessLeaves | None = field(default=None, init=False)
    _has_vote: bool | None = field(default=None, init=False)
    _effects: list[Effect] = field(default_factory=list, init=False)

    def next_deadline(self) -> float | None:
        """Earliest time at which :class:`TimePassed` would do something; None: never."""
        if self.finished is not None:
            return None
        return earliest(self.member.next_deadline(), self.succession.next_deadline())

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The effects of ``event``, in order."""
        self._effects = []
        if self.finished is None:
            for machine, its_event in self._addressees(event):
                self._run(machine, its_event, now)
        return self._effects

    def _addressees(self, event: Event) -> list[_Addressed]:
        match event:
            case launcher.Met(addr=addr):
                self.member.desc = dataclasses.replace(self.member.desc, addr=addr)
                return [(self.member, Begin())]
            case Offer(node, term):
                self._effects.append(Release((node,), term + 1))
                return []
            case LeaderDied(why) | Resigned(why):
                return self._on_leader_gone(event, why)
            case Reached() | NotReached() | PeerDied() | Follows() | Released():
                return [(self.succession, event)]
            case LeaderLost():
                return [(self.member, event)]
            case TimePassed():
                return [(self.succession, event), (self.member, event)]
            case SignalArrived():
                return [(self.member, event)]
        is_of_leader = isinstance(event, Round | LeaderBeat | NodeRefused)
        if is_of_leader and self.succession.is_leaderless:
            return []  # late, of the leader before
        if isinstance(event, Decision):
            if self.succession.is_superseded(event):
                return []
            self._note_vote(event)
            return [(self.succession, event), (self.member, event)]
        return []  # for launchers

    def _on_leader_gone(self, event: LeaderDied | Resigned, why: str) -> list[_Addressed]:
        if self.succession.is_leaderless:
            return []
        if not self.succession.can_move_after(event):
            return [(self.member, LeaderLost(why))]
        return [(self.succession, event), (self.member, LeaderReplaced(why))]

    def _note_vote(self, decision: Decision) -> None:
        """A vote counts when so many launchers know of it that none can lead without knowing."""
        match decision:
            case Round():
                formed, counts = decision, decision.witness != self.member.node
            case LeaderBeat(settled=settled) if self.succession.round is not None:
                formed = self.succession.round
                counts = settled == formed.version
            case _:
                return
        has_vote = formed.witness == self.member.node
        if has_vote is self._has_vote or not counts:
            return
        self._has_vote = has_vote
        votes = count(len(formed.electorate), "vote")
        if has_vote:
            text = f"this witness has one of {votes} of the job"
        elif formed.witness:
            text = "this witness has no vote now: another one has"
        else:
            text = f"this witness has no vote now: the launchers have {votes}, an odd number"
        self._effects.append(Note("info", text))

    def _run(self, machine: _Machine, event: Any, now: float) -> None:
        queue: deque[_Addressed] = deque([(machine, event)])
        while queue:
            machine, event = queue.popleft()
            effects: list[Any] = machine.handle(event, now)
            for effect in effects:
                queue += self._route(effect)

    def _on_leader_missing(self, missing: LeaderMissing) -> list[_Addressed]:
        if not self.succession.can_move_by_silence:
            return []
        why = f"nothing came from it for {missing.silent_s:.1f} s"
        ranks_s = max(0.0, self.member.pace.takeover_s - missing.silent_s)
        return [
            (self.succession, LeaderSilent(why, ranks_s)),
            (self.member, LeaderReplaced(why)),
        ]

    def _route(self, effect: Any) -> list[_Addressed]:
        """The machine that an effect of the other one is for; the rest is for the caller."""
        match effect:
            case Join() if self.succession.is_leaderless:
                return [(self.succession, Ready(effect))]
            case LeaderFound():
                return [(self.member, effect)]
            case LeaderMissing():
                return self._on_leader_missing(effect)
            case LeaveJob():
                self._leave(effect)
            case Note(level="info"):
                pass  # of nodes that wait for a place
            case Approach() | Give() | LeaveLeader() | Release() | Note():
                self._effects.append(effect)
            case _ if isinstance(effect, Message):
                self._effects.append(effect)
        return []

    def _leave(self, last: LeaveJob) -> None:
        released = self.succession.quit()
        self._effects += [it for it in released if isinstance(it, Release)]
        code = Ending.LEADER_LOST if last.why is LeaveWhy.FENCED else Ending.SUCCEEDED
        text = last.text
        if last.outcome is not None:
            how = last.outcome.value
            text = f"the job has ended, {how}: {text}" if text else f"the job has ended, {how}"
        self.finished = WitnessLeaves(code.code(), text)
        self._effects.append(self.finished)


_Machine = Member | Succession
_Addressed = tuple[_Machine, Any]
"""A machine, and an event for it."""
