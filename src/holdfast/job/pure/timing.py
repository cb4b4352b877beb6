"""All times of the protocol between the launchers of a job, in one place.

A node that is cut off ends its ranks before the others go on without it. Both clocks start at the
last beat that came through. With the defaults (``keep_alive_timeout`` 15 s):

     3.0 s  a beat of the leader, which each launcher answers
     4.5 s  a node that slept has waited that long for an answer of the leader (``ask_s``)
    10.0 s  a node that receives nothing from the leader kills its ranks (``fence_s``)
    10.5 s  if its launcher cannot, its monitors do (``lease_s`` later)
    10.0 s  a launcher without ranks looks for the next leader (``fence_s``)
    12.0 s  if the launcher is stopped while it does, its monitors do (four of these later)
    14.5 s  a leader that no majority answers ends its own ranks (``leader_lease_s``)
    15.0 s  the leader gives the node up, and its place to another (``silence_s``)
    19.5 s  the next leader starts ranks (``takeover_s``); the one before has stepped down
   130.0 s  a launcher without ranks no longer waits for the leader (``fence_s + return_s``)

Pure. Seconds, or shares of a timeout. Tested as a whole: tests/unit/job/test_timing.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """How long silence may last, in seconds. All launchers of a job use the same.

    ``fence_s`` plus the time SIGKILL takes stays below ``silence_s`` less one ``beat_s`` and the
    delay of a message. For launchers that slept see decision 42; a delay of less than a beat does
    not count as sleep.

    Attributes:
        silence_s: A node that has sent nothing for this long is given up. Longer than any pause of
            a healthy launcher; the price of a machine that loses power is this long.
        beat_s: Send a message at least this often; several beats fit in a silence.
        fence_s: A launcher that receives nothing from the leader for this long ends its ranks.
        join_timeout_s: How long a cycle may take to form before the job is given up.
    """

    silence_s: float = 15.0
    beat_s: float = 3.0
    fence_s: float = 10.0
    join_timeout_s: float = 900.0

    def __post_init__(self) -> None:
        if math.isinf(self.beat_s):
            return  # of a job that has one launcher, and can have no other
        if not 0 < self.beat_s < self.fence_s <= self.silence_s - self.beat_s:
            raise ValueError(
                f"beat_s ({self.beat_s:g}) < fence_s ({self.fence_s:g}) <= silence_s - beat_s "
                f"({self.silence_s - self.beat_s:g}) must hold: a node that is cut off stops its "
                "ranks before the others continue without it"
            )
        if self.join_timeout_s <= 0:
            raise ValueError(f"join_timeout_s must be positive, is {self.join_timeout_s:g}")

    @property
    def ask_s(self) -> float:
        """How long a node that slept may wait, once, for the leader's answer, its ranks alive.

        A leader that is there answers within one ``beat_s``.
        """
        return min(self.fence_s, 1.5 * self.beat_s)

    @property
    def leader_lease_s(self) -> float:
        """How long a leader leads after it sent a beat that a majority has answered.

        A beat grants the rest of that, and so no less than ``fence_s`` where the beat before it
        was answered in time. No node that the leader needs is given up before the lease is over.
        """
        return min(self.fence_s + 1.5 * self.beat_s, self.silence_s)

    @property
    def takeover_s(self) -> float:
        """How long after the last beat that it received a voter of the next leader may be sure.

        No ranks of the leader before are alive then: its last beat was granted at the end of its
        lease, was under way for a ``beat_s``, and the ranks were ended by monitors.
        """
        return self.leader_lease_s + self.beat_s + self.killing_lease_s

    @property
    def step_down_s(self) -> float:
        """How long a leader without a lease waits for a majority: others may lead then."""
        return self.takeover_s - self.leader_lease_s

    @property
    def return_s(self) -> float:
        """How long a launcher without ranks waits, beyond ``fence_s``, for a leader to return.

        The leader waits as long for a node that no other rank needs. Either may be asleep.
        """
        return 8 * self.silence_s

    def call_pause_s(self, since_s: float) -> float:
        """How long after a call without an answer a leader calls the one before again.

        ``since_s``: after the first call. One that slept ends its ranks by itself, within ``ask_s``
        of waking, and the sooner if it is called; it is hardly asleep for longer than others would
        wait for it. So from ``return_s`` on each pause is twice as long as the one before.
        """
        return min(max(CALL_S, since_s - self.return_s), RARE_CALL_S)

    @property
    def lease_s(self) -> float:
        """How much later than the launcher its monitors end ranks, if the launcher cannot."""
        return (self.silence_s - self.beat_s - self.fence_s) / 4

    @property
    def killing_lease_s(self) -> float:
        """The same, if the launcher has begun to end them: the last moment before others go on."""
        return 4 * self.lease_s

    @classmethod
    def of(cls, silence_s: float, join_timeout_s: float = 900.0) -> Pace:
        """The pace for a timeout of silence: five beats in it, fenced after two thirds of it.

        Below the default ten beats, and three quarters: a process may stand still for
        ``fence_s - beat_s`` at no cost, and a busy host stops one for as long whatever the timeout.
        """
        if silence_s < cls.silence_s:
            return cls(silence_s, silence_s / 10, silence_s * 3 / 4, join_timeout_s)
        return cls(silence_s, silence_s / 5, silence_s * 2 / 3, join_timeout_s)

    @classmethod
    def of_one(cls) -> Pace:
        """Of a job that has one launcher, and can have no other to wait for."""
        return cls(math.inf, math.inf, math.inf, math.inf)


# ---------------------------------------------------------------- an incident
# Shares of the timeout of evidence, in this order. The rest of it is for the verdict's way to the
# monitors, which act without one when the timeout is over.
ALONE_SHARE = 0.25
"""A launcher whose suspicion the leader does not answer looks at its ranks alone."""
LOOK_SHARE = 0.5
"""The look at one rank is over."""
ANSWER_SHARE = 0.6
"""A launcher sends the leader the evidence that it has."""
VERDICT_SHARE = 0.8
"""The leader judges by the evidence that it has."""
JUDGE_SHARE = 0.95
"""A launcher to which no verdict came judges alone."""

# ---------------------------------------------------------------- a cycle forms
NEWS_S = 1.0
"""Launchers that wait learn why once the wait is this old, and of changes this long after them.

So the number of texts that a node reads grows with the time it waits, and not with the number of
nodes.
"""
READ_LIMIT_S = 5.0
"""How long reading the iteration of a checkpoint may hold up a restart."""

# ---------------------------------------------------------------- connections of launchers
WELCOME_S = 30.0
"""How long the leader may take to answer a new launcher; it is awake, or is missed soon."""
LAST_WORDS_S = 5.0
"""How long a launcher that leaves tries to send its last messages."""
CALL_S = 1.0
"""How often a leader calls a launcher that may not know of it; a listener elsewhere is no event."""
RARE_CALL_S = 30.0
"""How often it calls one that is gone for good, as it seems."""
TRY_AGAIN_S = 0.2
"""How often a rendezvous backend that is away is tried: it cannot announce its return."""
