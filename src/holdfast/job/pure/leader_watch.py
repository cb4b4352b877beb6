"""The silence of the leader, as one launcher sees it: when its ranks end, when it votes or leaves.

Pure. Times are seconds on the launcher's clock.

    a decision comes ── fence_s ──► the ranks end, the launcher votes ── return_s ──► it leaves

The leader's beats grant the ranks no more time than its own lease has left (:mod:`.leader_lease`),
and count from when they should have come (:mod:`.beat_age`).

A launcher that has slept, or finds that nothing came for too long, *asks*: the beat that is due
goes to the leader, and decisions that arrive within ``ask_s`` may be older than the silence. They
give the ranks no more time than that, and start none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from holdfast.base.pure.excuse import LATE_S
from holdfast.job.pure import membership as msg
from holdfast.job.pure.beat_age import BeatAge
from holdfast.job.pure.sleep import SleepDetector
from holdfast.job.pure.timing import Pace


@dataclass
class LeaderWatch:
    """Of one launcher.

    Attributes:
        leader_at: When the last decision came.
        fence_at: When the ranks end, if nothing comes.
        has_met: The leader has sent a decision.
        is_leaderless: The leader is lost, and another will be found.
        silent_s: How long the silence was when the launcher began to ask, at least.
    """

    pace: Pace

    leader_at: float = field(default=0.0, init=False)
    fence_at: float = field(default=0.0, init=False)
    has_met: bool = field(default=False, init=False)
    is_leaderless: bool = field(default=False, init=False)
    silent_s: float = field(default=0.0, init=False)
    _granted_until: float = field(default=math.inf, init=False)
    """By the leader's lease; infinity: it has said nothing of that."""
    _asks_until: float | None = field(default=None, init=False)
    """None: there was no silence, or the leader has answered since."""
    _asks_from: float = field(default=0.0, init=False)
    _slept_s: float = field(default=0.0, init=False)
    """How much of the silence this launcher slept."""
    _overslept_s: float = field(default=0.0, init=False)
    """For so long it slept after the first time to ask, which gave its ranks no more time."""
    _has_joined: bool = field(default=False, init=False)
    _has_joined_since: bool = field(default=False, init=False)
    """A round with this node follows that, and is not older."""
    _has_reported: bool = field(default=False, init=False)
    """The silence is known to the succession."""

    def __post_init__(self) -> None:
        self._sleep = SleepDetector(self.pace.beat_s)
        self._age = BeatAge(self.pace)

    # ------------------------------------------------------------ events
    def begin(self, now: float) -> None:
        """There is a leader."""
        self.leader_at, self.fence_at = now, now + self.pace.fence_s
        self._overslept_s = 0.0

    def joined(self) -> None:
        """This launcher sends its join."""
        self._has_joined = self._has_joined_since = True

    def sent(self, now: float) -> None:
        """A message of this launcher is on its way to the leader."""
        self._age.sent(now)

    def lost(self, now: float) -> None:
        """The leader is gone, and another will be found."""
        self.is_leaderless, self.fence_at = True, now

    def found(self, waited_s: float, now: float) -> None:
        """Another one leads; its decisions may be ``waited_s`` old."""
        self.is_leaderless = self._has_reported = False
        self.begin(now)
        self._granted_until, self._asks_until, self._slept_s = math.inf, None, 0.0
        self._age.leader_changes()
        if waited_s >= self.pace.fence_s:
            self._begin_to_ask(now + self.pace.ask_s, now)

    def handled(self, now: float, due_at: float | None) -> None:
        """The launcher has handled an event, and is due again."""
        self._sleep.handled(now, due_at)

    def woke(self, now: float) -> None:
        """It handles the next event: if it slept, it asks, and waits a little for an answer."""
        # Its time to ask is short: a stall that is no sleep otherwise may take all of it.
        excuse = self._sleep.called(now, None if self._asks_until is None else LATE_S)
        if excuse is None:
            return
        if self._asks_until is None or self.leader_at > self._asks_from:
            until = now + self.pace.ask_s
            if self._asks_until is not None:
                until = excuse.extend(now, self.pace.ask_s)
            self._begin_to_ask(until, now, slept_s=self._sleep.slept_s)
            self.fence_at = max(self.fence_at, until)
        else:
            self._overslept_s += excuse.late_s

    def received(self, decision: msg.Decision, now: float, own_lease_s: float = 0.0) -> bool:
        """The leader was there when it sent this, which may have been before the silence.

        ``own_lease_s``: it lives in this launcher, and its lease has so much left at this moment.
        Returns whether this ends a silence: the launcher asks at once.
        """
        self.has_met, self._has_reported = True, False
        if own_lease_s:  # there is no other leader, however old the decision is
            self.leader_at = now
            if now + own_lease_s < (self._asks_until or 0.0):
                return False  # the others may have slept as well: they have as long to answer
            self._asks_until, self._slept_s = None, 0.0
            self._grant(own_lease_s, now, now + self.pace.fence_s)
            return False
        is_late = now >= max(self.leader_at + self.pace.fence_s, self._asks_until or 0.0)
        begins = is_late and self._has_joined and not self._asks(now)
        if begins:  # cut off, or the leader slept
            self._begin_to_ask(now + self.pace.ask_s, now)
        lease_s = None
        if isinstance(decision, msg.LeaderBeat):
            lease_s = decision.lease_s
            if decision.sent_at:
                self._age.came(decision.sent_at, now)
        # Any other decision was sent after the last beat, and may be as old.
        came_at = now if self._age.came_at is None else self._age.came_at
        self.leader_at = max(self.leader_at, came_at)
        if self._asks(now) and lease_s != 0.0:
            self.fence_at = max(self.fence_at, now + self.pace.ask_s)
        elif self._asks(now):
            pass  # the leader may have slept as well: it asks the others
        else:
            self._asks_until, self._slept_s = None, 0.0
            self._grant(lease_s, came_at, self._age.granted_until(came_at))
        return begins

    def _grant(self, lease_s: float | None, came_at: float, until: float) -> None:
        if lease_s:  # 0: over, or not begun; the leader may get one by the answer to this
            # Also if it ends sooner: a beat that was under way for long has granted too much.
            self._granted_until = came_at + lease_s
            self.fence_at = min(until, self._granted_until)
        else:
            self.fence_at = max(self.fence_at, min(until, self._granted_until))

    def reported(self, now: float) -> float:
        """The succession learns of the silence, which is so long."""
        self._has_reported = True
        return now - self.leader_at

    def _begin_to_ask(self, until: float, now: float, slept_s: float = 0.0) -> None:
        self._asks_from, self._asks_until, self._has_joined_since = now, until, False
        self.silent_s, self._slept_s, self._overslept_s = now - self.leader_at, slept_s, 0.0

    # ------------------------------------------------------------ consequences
    def _asks(self, now: float) -> bool:
        """Whether the launcher does not know yet if the others went on."""
        return self._asks_until is not None and now < self._asks_until

    def may_be_old(self, now: float) -> bool:
        """Whether a round that comes now may be older than the silence."""
        return self._asks(now) and not self._has_joined_since

    @property
    def leaves_at(self) -> float:
        """When a launcher without ranks no longer waits for a leader, all its sleeps left out."""
        return self.fence_at + self._overslept_s + self.pace.return_s

    def killed_at(self, *, are_ended: bool) -> float:
        """When monitors end the ranks, as the launcher is stopped; ``are_ended``: while it did."""
        pace = self.pace
        return self.fence_at + (pace.killing_lease_s if are_ended else pace.lease_s)

    def missing_at(self, *, ended_well: bool) -> float:
        """When a launcher without ranks can vote for another leader; infinity: it need not.

        ``ended_well``: all its ranks of this cycle did. Nothing is at stake but the job's end,
        which is near, and the leader may sleep as long as others may.
        """
        if self.is_leaderless or self._has_reported or not self.has_met:
            return math.inf
        if ended_well:
            awake_at = self.leader_at if self._asks_until is None else self._asks_from
            return max(self.leader_at, awake_at) + self.pace.silence_s
        return max(self.leader_at + self.pace.fence_s, self._asks_until or 0.0)

    def why_silent(self, silent_s: float) -> str:
        """For people."""
        if silent_s < self.pace.fence_s - self.pace.beat_s and not self._slept_s:
            return "the leader of the job has not had an answer of most of its launchers in time"
        text = f"no message from the leader of the job for {silent_s:.1f} s"
        slept = f", in {self._slept_s:.1f} s of which this launcher did nothing itself"
        return text + slept if self._slept_s else text


@dataclass
class LastCycle:
    """Whether no other cycle can follow while the ranks of this node run.

    A round that says so is believed if it follows the last one that this launcher has received, or
    when it is settled: there may be a leader that does not know it.
    """

    is_certain: bool = field(default=False, init=False)
    _is_said: bool = field(default=False, init=False)
    """The round of this node's cycle says so."""
    _version: tuple[int, ...] = field(default=(), init=False)
    """Of the newest round that does."""

    def began(self, formed: msg.Round) -> None:
        """This node has ranks in the cycle."""
        self._is_said = formed.is_last
        follows_last = not formed.after or formed.after == self._version
        self.is_certain = formed.is_last and follows_last

    def received(self, formed: msg.Round) -> None:
        """A round, with this node or without, also a revised one."""
        if formed.is_last:
            self._version = formed.version

    def settled(self, version: tuple[int, ...], cycle: int) -> None:
        """The leader's beat names this round; ``cycle``: the last of this node."""
        if self._is_said and version and version[1] == cycle:
            self.is_certain = True
