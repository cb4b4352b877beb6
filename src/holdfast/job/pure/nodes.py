"""The launchers that a leader knows: those that are there, that wait for a place, that are gone.

Pure. Times are seconds on the leader's clock. A node that is gone stays gone: what returns is
another incarnation.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

from holdfast.base.pure.excuse import Excuse
from holdfast.job.pure.assign import AssignmentError, NodeDesc, Problem
from holdfast.job.pure.membership import Join, Leave, LeaveWhy, Message


@dataclass
class Nodes:
    """Launchers of a job, by their ids.

    Attributes:
        alive: Those that joined and have neither left nor fallen silent.
        witnesses: The same of those that never have ranks, in the order of joining.
        ready: Those of them that wait for a place, in the order of joining.
        unfit: Names and last messages of nodes that were excluded or not healthy; a scheduler
            starts no others for them.
        silent: Those that fell silent, and for how many seconds they had been when given up.
        excuse: Of the leader, if it was held up itself: others have that much longer.
        awaited: Those that are silent and are not given up, until they send a message.
    """

    alive: dict[str, NodeDesc] = field(default_factory=dict)
    witnesses: dict[str, NodeDesc] = field(default_factory=dict)
    ready: dict[str, None] = field(default_factory=dict)
    unfit: dict[str, tuple[str, Leave]] = field(default_factory=dict)
    silent: dict[str, float] = field(default_factory=dict)
    excuse: Excuse | None = None
    awaited: set[str] = field(default_factory=set)
    _joined: int = 0
    _joined_at: dict[str, float] = field(default_factory=dict)
    _last_at: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """When each has sent its last message; the longest silent first."""
    _gone: dict[str, str | None] = field(default_factory=dict)
    """And why, until they know it."""
    _open_claims: dict[str, float] = field(default_factory=dict)
    """Their claims to an infra rank stand only if they send a message after that time."""

    # ------------------------------------------------------------ coming and going
    def join(self, join: Join, now: float) -> bool:
        """A node is there, or describes itself anew; whether it is a new one."""
        node = join.node
        here = self.witnesses if join.desc.is_witness else self.alive
        known = here.get(node)
        if known is None:
            self._joined += 1
            self._last_at[node] = self._joined_at[node] = now
        joined = self._joined if known is None else known.joined
        here[node] = NodeDesc(**vars(join.desc), id=node, joined=joined)
        return known is None

    def witness_for(self, launchers: int) -> str:
        """The witness that has a vote, beside so many launchers; empty: none has.

        One, the first that came, and only where launchers are even in number: then a majority of
        them is one with the witness, too, and half of them is one with it.
        """
        return next(iter(self.witnesses), "") if launchers % 2 == 0 else ""

    def has_sent(self, node: str, now: float) -> None:
        """A node that is there has sent a message."""
        self._last_at[node] = now
        self._last_at.move_to_end(node)
        self.awaited.discard(node)

    def lose(self, node: str, why: str, silent_s: float | None) -> None:
        """A node is out of the job, by its own message (None) or by its silence."""
        del self._last_at[node], self._joined_at[node]
        self.alive.pop(node, None)
        self.witnesses.pop(node, None)
        self.ready.pop(node, None)
        self.awaited.discard(node)
        self._gone[node] = None if silent_s is None else why
        if silent_s is not None:
            self.silent[node] = silent_s

    def never_joins(self, leave: Leave) -> None:
        """It was never fit to join, or its leave overtook its join, which must not count then."""
        self._gone[leave.node] = None
        self.note_unfit(leave)

    def refuse(self, node: str) -> None:
        """A node must not join, and the leader has sent it so."""
        self._gone[node] = None

    def is_gone(self, node: str) -> bool:
        """Whether its place may be another's by now."""
        return node in self._gone

    def refusal(self, message: Message) -> str | None:
        """Why a node that is gone, and lives after all, is refused; None: it knows, or leaves."""
        if isinstance(message, Leave):
            return None
        why, self._gone[message.node] = self._gone[message.node], None
        return why

    # ------------------------------------------------------------ silence
    def silent_at(self, silence_s: float) -> float:
        """When the next node will have been silent for so long; awaited ones are not."""
        last = (at for node, at in self._last_at.items() if node not in self.awaited)
        return self._over_at(next(last, math.inf), silence_s)

    def next_silent(self, silence_s: float, now: float) -> tuple[str, float] | None:
        """A node that has been silent for that long, less the time the leader slept; how long."""
        for node, at in self._last_at.items():
            if node not in self.awaited:
                is_over = now >= self._over_at(at, silence_s)
                return (node, self._silence_s(at, now)) if is_over else None
        return None

    def longest_awaited(self, silence_s: float) -> tuple[str, float] | None:
        """The awaited node that has been silent for longest, and when it was for that long."""
        for node, at in self._last_at.items():
            if node in self.awaited:
                return node, self._over_at(at, silence_s)
        return None

    def silence_of(self, node: str, now: float) -> float:
        """For how long it has been silent, less the time the leader slept."""
        return self._silence_s(self._last_at[node], now)

    def _over_at(self, last_at: float, silence_s: float) -> float:
        at = last_at + silence_s
        return at if self.excuse is None else self.excuse.extend(at, silence_s)

    def _silence_s(self, last_at: float, now: float) -> float:
        excuse = self.excuse
        if excuse is None or last_at >= excuse.woke_at:
            return now - last_at
        return max(0.0, now - last_at - excuse.late_s)

    # ------------------------------------------------------------ claims to one infra rank
    def at_fault(self, error: AssignmentError, beat_s: float) -> tuple[str, ...]:
        """Nodes that cannot have ranks beside the others.

        Of nodes that claim one infra rank, in the order of joining, these are all but the first.
        Unless the first has sent nothing since the later one joined: then it may be a launcher that
        is dead and was started again, and its next beat, or its silence, decides. (A message may be
        under way for one ``beat_s``, so that long after is not since.)
        """
        self._open_claims = {}
        if error.problem is not Problem.DUPLICATE_INFRA_RANK:
            return error.nodes
        owners: dict[int | None, str] = {}
        later = []
        for node in error.nodes:
            owner = owners.setdefault(self.alive[node].infra_rank, node)
            if owner == node:
                continue
            since = self._joined_at[node] + beat_s
            if self._last_at[owner] > since:
                later.append(node)
            else:
                self._open_claims[owner] = since
        return tuple(later)

    @property
    def has_open_claims(self) -> bool:
        """Whether a node must send a message, or fall silent, before ranks can be given."""
        return bool(self._open_claims)

    @property
    def awaits_claimants(self) -> bool:
        """Whether such a node still has to."""
        claims = self._open_claims.items()
        return any(self._last_at.get(node, at + 1) <= at for node, at in claims)

    def shown(self, node: str) -> str:
        """Host and pid of a launcher; its id where it never joined."""
        return str(self.alive.get(node) or self.witnesses.get(node) or node)

    def note_unfit(self, leave: Leave) -> None:
        """A node leaves; it will not be fit for ranks again where it says so."""
        if leave.why in (LeaveWhy.EXCLUDED, LeaveWhy.UNHEALTHY):
            self.unfit[leave.node] = self.shown(leave.node), leave
