"""The launchers that a leader knows: which are there, which wait for a place, which are gone.

Pure. Times are seconds on the leader's clock. A node that is gone stays gone: what returns is
another incarnation.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

from holdfast.base.pure.excuse import Excuse
from holdfast.job.pure.assign import AssignmentError, NodeDesc, name_some
from holdfast.job.pure.membership import Join, Leave, LeaveWhy, Message

_UNFIT_NAMED = 4


@dataclass
class Nodes:
    """Launchers of a job, by their ids.

    Attributes:
        alive: Those that joined and have neither left nor fallen silent.
        ready: Those of them that wait for a place, in the order of joining.
        ports: Free on their hosts for the next cycle's MASTER_PORT.
        unfit: Excluded or not healthy, and why: whoever started them starts no others.
        silent: Those that fell silent, and for how many seconds they had been when given up.
        excuse: Of the leader, if it was held up itself: others have that much longer to speak.
        awaited: Those that are silent and are not given up, until they speak.
    """

    alive: dict[str, NodeDesc] = field(default_factory=dict)
    ready: dict[str, None] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    unfit: dict[str, str] = field(default_factory=dict)
    silent: dict[str, float] = field(default_factory=dict)
    excuse: Excuse | None = None
    awaited: set[str] = field(default_factory=set)
    _joined: int = 0
    _joined_at: dict[str, float] = field(default_factory=dict)
    _heard: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """The longest silent first."""
    _gone: dict[str, str] = field(default_factory=dict)
    _told_gone: set[str] = field(default_factory=set)
    _unheard: dict[str, float] = field(default_factory=dict)
    """Nodes whose claim to an infra rank stands only if they speak after that time."""

    # ------------------------------------------------------------ coming and going
    def join(self, join: Join, now: float) -> bool:
        """A node is there, or says more of itself; whether it is a new one."""
        node, desc = join.node, join.desc
        known = self.alive.get(node)
        if known is None:
            self._joined += 1
            self._heard[node] = self._joined_at[node] = now
        self.alive[node] = NodeDesc(
            id=node,
            addr=desc.addr,
            pid=desc.pid,
            nproc=desc.nproc,
            joined=self._joined if known is None else known.joined,
            hostname=desc.hostname,
            infra_rank=desc.infra_rank,
            infra_is_place=desc.infra_is_place,
            domain=desc.domain,
        )
        self.ports[node] = desc.port
        return known is None

    def heard(self, node: str, now: float) -> None:
        """A node that is there has spoken."""
        self._heard[node] = now
        self._heard.move_to_end(node)
        self.awaited.discard(node)

    def lose(self, node: str, why: str, silent_s: float | None) -> str:
        """A node is out of the job, by its own word (None) or by its silence; in words."""
        lost = f"{self.shown(node)} {'left the job' if silent_s is None else 'was lost'} ({why})"
        del self.alive[node], self._heard[node], self._joined_at[node], self.ports[node]
        self.ready.pop(node, None)
        self.awaited.discard(node)
        self._gone[node] = why
        if silent_s is None:
            self._told_gone.add(node)
        else:
            self.silent[node] = silent_s
        return lost

    def never_joins(self, leave: Leave) -> None:
        """It was never fit to join, or overtook its join, which must not count then."""
        self._gone[leave.node] = leave.why.value
        self._told_gone.add(leave.node)
        self.note_unfit(leave)

    def refuse(self, node: str) -> None:
        """It must not join, and has been told so."""
        self._gone[node] = "refused"
        self._told_gone.add(node)

    def is_gone(self, node: str) -> bool:
        """Whether its place may be another's by now."""
        return node in self._gone

    def refusal(self, message: Message) -> str | None:
        """Why a node that is gone, and lives after all, is refused; None: it knows, or leaves."""
        if message.node in self._told_gone or isinstance(message, Leave):
            return None
        self._told_gone.add(message.node)
        return self._gone[message.node]

    # ------------------------------------------------------------ silence
    def silent_at(self, silence_s: float) -> float:
        """When the next node will have been silent for so long; awaited ones are not."""
        heard = (at for node, at in self._heard.items() if node not in self.awaited)
        return self._over_at(next(heard, math.inf), silence_s)

    def next_silent(self, silence_s: float, now: float) -> tuple[str, float] | None:
        """A node that has been silent for that long, less the time the leader slept; how long."""
        for node, at in self._heard.items():
            if node not in self.awaited:
                is_over = now >= self._over_at(at, silence_s)
                return (node, self._silence_s(at, now)) if is_over else None
        return None

    def longest_awaited(self, silence_s: float) -> tuple[str, float] | None:
        """The awaited node that has been silent for longest, and when it was for that long."""
        for node, at in self._heard.items():
            if node in self.awaited:
                return node, self._over_at(at, silence_s)
        return None

    def silence_of(self, node: str, now: float) -> float:
        """For how long it has been silent, less the time the leader slept."""
        return self._silence_s(self._heard[node], now)

    def _over_at(self, heard_at: float, silence_s: float) -> float:
        at = heard_at + silence_s
        return at if self.excuse is None else self.excuse.extend(at, silence_s)

    def _silence_s(self, heard_at: float, now: float) -> float:
        excuse = self.excuse
        if excuse is None or heard_at >= excuse.woke_at:
            return now - heard_at
        return max(0.0, now - heard_at - excuse.late_s)

    # ------------------------------------------------------------ claims to one infra rank
    def at_fault(self, error: AssignmentError, beat_s: float) -> tuple[str, ...]:
        """Nodes that cannot have ranks beside the others.

        Of nodes that claim one infra rank, in the order of joining, these are all but the first.
        Unless the first has not spoken since the later one joined: then it may be what a launcher
        that was started again has left of itself, and its next beat, or its silence, will tell. (A
        message may be under way for one ``beat_s``, so that long after is not since.)
        """
        self._unheard = {}
        if error.problem != "duplicate infra rank":
            return error.nodes
        owners: dict[int | None, str] = {}
        later = []
        for node in error.nodes:
            owner = owners.setdefault(self.alive[node].infra_rank, node)
            if owner == node:
                continue
            since = self._joined_at[node] + beat_s
            if self._heard[owner] > since:
                later.append(node)
            else:
                self._unheard[owner] = since
        return tuple(later)

    @property
    def has_open_claims(self) -> bool:
        """Whether a node was found that must speak, or fall silent, before ranks can be given."""
        return bool(self._unheard)

    @property
    def is_a_word_missing(self) -> bool:
        """Whether such a node still has to."""
        return any(self._heard.get(node, at + 1) <= at for node, at in self._unheard.items())

    # ------------------------------------------------------------ for people
    def shown(self, node: str) -> str:
        """Host and pid of a launcher; its id where it never joined."""
        return str(self.alive.get(node, node))

    def ready_named(self) -> str:
        """The first few of those that wait for a place."""
        return name_some([self.alive[node] for node in self.ready]) or "nobody"

    def note_unfit(self, leave: Leave) -> None:
        """A node leaves; it will not be fit for ranks again where it says so."""
        if leave.why in (LeaveWhy.EXCLUDED, LeaveWhy.UNHEALTHY):
            text = f" ({leave.text})" if leave.text else ""
            self.unfit[leave.node] = f"{self.shown(leave.node)}: {leave.why.value}{text}"

    def unfit_named(self) -> str:
        """The first few, each with the reason, and how many more there are."""
        shown = "; ".join(list(self.unfit.values())[:_UNFIT_NAMED])
        more = len(self.unfit) - _UNFIT_NAMED
        return f"{shown}; and {more} more" if more > 0 else shown
