"""Decide for all ranks of an in-process restart: who is in, when an epoch ends, when the call does.

Pure: ``handle(event, now)`` returns effects, :meth:`Coordinator.next_deadline` says when it wants
to be woken. Times are seconds on the caller's monotonic clock. Sockets, ranks and collectives are
the business of others; here there are only names of nodes and numbers of ranks.

    FORMING --- all ranks said Hello ---> RUNNING(0)
    RUNNING(e) --- Fault, Leave, Dead, a silent node, completion too late ---> ABORTING(e)
    ABORTING(e) --- every member is Ready, or gone ---> RUNNING(e+1)
    RUNNING(e) --- every member is Done ---> OVER (finished)
    RUNNING(e) --- Fault at the start, as in too many epochs before ---> OVER (failed)
    FORMING --- a rank or the time is lost --->  OVER (failed)
    any --- no member is left ---> OVER (failed)

The barrier of ABORTING is what gathers concurrent faults: whatever is reported before the last
member is Ready belongs to the same epoch, so nothing waits for a fixed time. ``last_call_wait_s``
is a minimum for those who ask for one.

Numbers. A member is known by the rank it was born with. Its place in an epoch is what the
assignment made of it, on every rank by itself; members report it with Ready. The places that nobody
holds any more are the complement of those reported, so it does not matter whether a rank died
before it could say its place, was left out by the assignment, or died with it. Where a fault caught
some ranks before they had an assignment and others after, all go back to the one before
(``Commit.base``). Two ranks that report the same place, or worlds of different size, have computed
different assignments: the call ends for all, named, rather than train with two rank 3s.

Invariants: R-1 a place has one owner per epoch. R-2 every member of an epoch is Ready for the same
next one, or is gone, or the call ends for all; in bounded time, since each wait has a deadline and
guards answer Kill with Dead.
"""

from __future__ import annotations

import enum
import json

from holdfast.base.pure.common_events import TimePassed
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.never import assert_never
from holdfast.base.pure.value import Value
from holdfast.base.pure.wording import count
from holdfast.evidence.pure.evidence import RankDigest, Verdict
from holdfast.inplace.pure import messages as msg
from holdfast.inplace.pure.start_faults import MOST, StartFaults

MAX_CAUSES = 64
"""Causes told to all: the first are the ones that explain, and a message has an end."""
_TEXT_BYTES_MAX = 12 << 10
"""Text of one cause, as JSON; all of them fit into one frame (1 MiB)."""
_TEXT_CHARS_KEPT = 1024


_OTHER_DEATHS = frozenset(
    {msg.Kind.TERMINATED, msg.Kind.UNRESPONSIVE, msg.Kind.MONITOR_PROCESS_EXCEPTION}
)


# ---------------------------------------------------------------- events
class Heard(Value):
    """A message from a node's guard."""

    node: str
    message: msg.Up


class NodeGone(Value):
    """The connection to a node's guard has ended."""

    node: str
    how: str


Event = Heard | NodeGone | TimePassed


# ---------------------------------------------------------------- effects
class Tell(Value):
    """Send to one node's guard."""

    node: str
    message: msg.Down


class TellAll(Value):
    """Send to every guard that has not gone."""

    message: msg.Down


class HangUp(Value):
    """Close the connection to a guard that is given up."""

    node: str


Effect = Tell | TellAll | HangUp


class Patience(Value):
    """How long the coordinator waits, in seconds; all from the wrapper's arguments.

    Attributes:
        barrier_s: For all ranks to come at the start, and for all to be back after a fault.
        completion_s: From the first rank that completed to the last.
        last_call_wait_s: Least time between a fault and the next epoch.
        silence_s: A node whose guard is not heard of for this long is gone.
        max_start_faults: Restarts in a row after faults at the start; None: without end.
    """

    barrier_s: float = 120.0
    completion_s: float = 120.0
    last_call_wait_s: float = 0.0
    silence_s: float = 30.0
    max_start_faults: int | None = MOST


class Phase(enum.Enum):
    """Where the call is."""

    FORMING = "forming"
    RUNNING = "running"
    ABORTING = "aborting"
    OVER = "over"


class _Member:
    """One rank that takes part."""

    __slots__ = ("done", "node", "standing")

    def __init__(self, node: str) -> None:
        self.node = node
        self.done = False
        self.standing: msg.Standing | None = None


class Coordinator:
    """One per call of the wrapped function, for all ranks.

    Attributes:
        phase: Where the call is.
        epoch: The one that runs or is being left; -1 while forming.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self.phase = Phase.FORMING
        self.epoch = -1
        self._base = -1
        self._world: int | None = None
        self._members: dict[int, _Member] = {}
        self._waiting = 0
        """Members that are not yet Ready (ABORTING) or not yet Done (RUNNING)."""
        self._ended = ""
        """OVER: why, for who comes too late."""
        self._heard_at: dict[str, float] = {}
        self._lost_nodes: set[str] = set()
        self._silent_from: float | None = None
        """No node is silent for too long before then; moved when it comes, not with each beat."""
        self._causes: list[msg.Cause] = []
        self._ended_for_hang: dict[int, RankDigest | None] = {}
        """By rank: what it showed its guard."""
        self._barrier_at: float | None = None
        """FORMING: given up then. ABORTING: those not back are killed then."""
        self._complete_at: float | None = None
        self._not_before = 0.0
        self._start_faults = StartFaults(patience.max_start_faults)

    @property
    def members(self) -> frozenset[int]:
        """Ranks that take part, by the number they were born with."""
        return frozenset(self._members)

    def is_member(self, rank: int) -> bool:
        """Whether this rank takes part."""
        return rank in self._members

    def next_deadline(self) -> float | None:
        """When to feed :class:`TimePassed`, at the latest."""
        if self.phase is Phase.OVER:
            return None
        return earliest(
            self._silent_from,
            self._barrier_at,
            self._complete_at,
            self._not_before if self.phase is Phase.ABORTING and not self._waiting else None,
        )

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What follows from ``event``."""
        match event:
            case Heard():
                return self._hear(event.node, event.message, now)
            case NodeGone():
                return self._lose_node(event.node, event.how, now)
            case TimePassed():
                return self._pass_time(now)
            case _:
                assert_never(event)

    # ------------------------------------------------------------ messages

    def _hear(self, node: str, message: msg.Up, now: float) -> list[Effect]:
        if node in self._lost_nodes:
            return []
        self._heard_at[node] = now
        if self._silent_from is None:
            self._silent_from = now + self._patience.silence_s
        match message:
            case msg.Hello():
                return self._welcome(node, message, now)
            case msg.Fault():
                if message.epoch != self.epoch or self._member(node, message.rank) is None:
                    return []
                return self._fault(message.cause, now, at_start=message.at_start)
            case msg.Leave():
                cause = msg.Cause(message.rank, msg.Kind.BASE_EXCEPTION, message.text)
                return self._lose_rank(node, message.rank, [cause] if message.fault else [], now)
            case msg.Dead():
                cause = msg.Cause(message.rank, message.kind, message.text)
                if self._member(node, message.rank) and message.kind is msg.Kind.HARD_TIMEOUT:
                    self._ended_for_hang[message.rank] = message.seen
                return self._lose_rank(node, message.rank, [cause], now)
            case msg.Done():
                return self._done(node, message, now)
            case msg.Ready():
                return self._ready(node, message, now)
            case msg.Bye() | msg.Stuck():
                return []
            case msg.Beat():
                return [Tell(node, msg.Echo(message.sent_at))]
            case _:
                assert_never(message)

    def _member(self, node: str, rank: int) -> _Member | None:
        """``rank``, as far as ``node`` may speak for it.

        A process with the number of another is refused; what its guard says of it until it hears of
        that is not about the member.
        """
        member = self._members.get(rank)
        return None if member is None or member.node != node else member

    def _welcome(self, node: str, hello: msg.Hello, now: float) -> list[Effect]:
        rank = hello.rank
        if self._world is None:
            self._world = hello.world
            self._barrier_at = now + self._patience.barrier_s
        problem = self._why_not(hello)
        if problem is not None:
            return [Tell(node, msg.Refused(rank, problem))]
        self._members[rank] = _Member(node)
        if len(self._members) < self._world:
            return []
        return self._commit([], base=-1)

    def _why_not(self, hello: msg.Hello) -> str | None:
        rank = hello.rank
        if self.phase is Phase.OVER:
            return f"rank {rank} came to a call that is over: {self._ended}"
        if self.phase is not Phase.FORMING:
            return (
                f"rank {rank} came to a call that all {count(self._world or 0, 'rank')} had "
                f"already begun (iteration {self.epoch}): a rank that was lost cannot come back "
                "within one call"
            )
        if hello.world != self._world:
            return (
                f"rank {rank} has WORLD_SIZE {hello.world}, others have {self._world}: "
                "they belong to different jobs or were started with different sizes"
            )
        if rank in self._members:
            return f"there are two processes with RANK {rank}"
        if not 0 <= rank < hello.world:
            return f"RANK {rank} is outside of WORLD_SIZE {hello.world}"
        return None

    def _done(self, node: str, done: msg.Done, now: float) -> list[Effect]:
        member = self._member(node, done.rank)
        if (
            member is None
            or member.done
            or self.phase is not Phase.RUNNING
            or done.epoch != self.epoch
        ):
            return []
        member.done = True
        self._waiting -= 1
        if done.active and self._complete_at is None:
            self._complete_at = now + self._patience.completion_s
        return self._finish_if_all_done()

    def _ready(self, node: str, ready: msg.Ready, now: float) -> list[Effect]:
        if self.phase is not Phase.ABORTING or ready.epoch != self.epoch:
            return []
        for standing in ready.standings:
            member = self._member(node, standing.rank)
            if member is not None and member.standing is None:
                member.standing = standing
                self._waiting -= 1
        return self._commit_if_all_ready(now)

    # ------------------------------------------------------------ faults

    def _fault(self, cause: msg.Cause, now: float, *, at_start: bool = False) -> list[Effect]:
        """An epoch that runs ends; to one that is ending, this adds a cause."""
        if len(self._causes) < MAX_CAUSES:
            if len(json.dumps(cause.text)) > _TEXT_BYTES_MAX:  # up to 12 bytes for a character
                cause = msg.Cause(cause.rank, cause.kind, cause.text[:_TEXT_CHARS_KEPT])
            self._causes.append(cause)
        if self.phase is not Phase.RUNNING:
            return []
        wait_s = self._start_faults.wait_s(at_start=at_start)
        if wait_s is None:
            times, most = self._start_faults.in_a_row, self._patience.max_start_faults
            return self._over(
                f"gave up after {count(times, 'iteration')} in a row that failed at the start, "
                "before the function was entered or in its init_process_group "
                f"(max_start_faults={most}); the last one by {cause.kind.value} of rank "
                f"{cause.rank}: {cause.text}",
                gave_up=True,
            )
        self.phase = Phase.ABORTING
        self._complete_at = None
        self._barrier_at = now + self._patience.barrier_s
        self._not_before = now + max(self._patience.last_call_wait_s, wait_s)
        for member in self._members.values():
            member.standing = None
        self._waiting = len(self._members)
        return [TellAll(msg.Abort(self.epoch, tuple(self._causes)))]

    def _lose_rank(self, node: str, rank: int, causes: list[msg.Cause], now: float) -> list[Effect]:
        return [] if self._member(node, rank) is None else self._remove([rank], causes, now)

    def _remove(self, ranks: list[int], causes: list[msg.Cause], now: float) -> list[Effect]:
        """These are gone for good; with no causes, nobody else is interrupted."""
        if self.phase is Phase.OVER:
            return []
        for rank in ranks:
            member = self._members.pop(rank)
            is_here = member.done if self.phase is Phase.RUNNING else member.standing is not None
            self._waiting -= not is_here
        if self.phase is Phase.FORMING:
            if not causes:
                return []
            return self._over(
                f"rank {causes[0].rank} was lost before all {count(self._world or 0, 'rank')} had "
                f"come: {causes[0].text}"
            )
        effects: list[Effect] = []
        for cause in causes:
            effects += self._fault(cause, now)
        if not self._members:
            return [*effects, *self._over("no rank is left")]
        if self.phase is Phase.ABORTING:
            return effects + self._commit_if_all_ready(now)
        return effects + self._finish_if_all_done()

    def _lose_node(self, node: str, how: str, now: float) -> list[Effect]:
        if self._heard_at.pop(node, None) is None:
            return []
        self._lost_nodes.add(node)
        ranks = sorted(rank for rank, member in self._members.items() if member.node == node)
        text = f"the guard of {node} is gone: {how}"
        return self._remove(
            ranks, [msg.Cause(rank, msg.Kind.UNRESPONSIVE, text) for rank in ranks], now
        )

    # ------------------------------------------------------------ what all agree on

    def _finish_if_all_done(self) -> list[Effect]:
        if self._waiting:
            return []
        self.phase = Phase.OVER
        self._ended = "all ranks have completed"
        return [TellAll(msg.Exit(finished=True))]

    def _commit_if_all_ready(self, now: float) -> list[Effect]:
        if self.phase is not Phase.ABORTING or self._waiting or now < self._not_before:
            return []
        standings = [m.standing for m in self._members.values() if m.standing is not None]
        everyone_assigned = all(s.assigned.epoch == self.epoch for s in standings)
        numberings = {s.rank: s.assigned if everyone_assigned else s.base for s in standings}
        base = self.epoch if everyone_assigned else self._base
        holders: dict[int, int] = {}
        first = min(numberings)
        world = numberings[first].world
        for rank, numbering in sorted(numberings.items()):
            if numbering.epoch != base or numbering.world != world:
                return self._over(
                    f"ranks computed different assignments: rank {first} has a world of {world} "
                    f"in iteration {base}, rank {rank} one of {numbering.world} in iteration "
                    f"{numbering.epoch}; rank_assignment must give every rank the same answer",
                    disagree=True,
                )
            if numbering.place in holders or not 0 <= numbering.place < world:
                return self._over(
                    f"ranks computed different assignments: rank {rank} is {numbering.place} of "
                    f"{world} in iteration {base}"
                    + (
                        f", and so is rank {holders[numbering.place]}"
                        if numbering.place in holders
                        else ", which does not exist"
                    )
                    + "; rank_assignment must give every rank the same answer",
                    disagree=True,
                )
            holders[numbering.place] = rank
        free = [place for place in range(world) if place not in holders]
        return self._commit(free, base=base)

    def _commit(self, terminated: list[int], *, base: int) -> list[Effect]:
        causes = self._causes_in_order()
        verdict = self._verdict()
        self._causes, self._ended_for_hang = [], {}
        self._base = base
        self.epoch += 1
        self.phase = Phase.RUNNING
        self._barrier_at = None
        for member in self._members.values():
            member.done = False
        self._waiting = len(self._members)
        start_faults = self._start_faults.in_a_row
        commit = msg.Commit(self.epoch, base, tuple(terminated), causes, start_faults, verdict)
        return [TellAll(commit)]

    def _causes_in_order(self) -> tuple[msg.Cause, ...]:
        """As they came; but errors that name a peer are echoes, whatever was told first."""
        if len(self._causes) < 2:
            return tuple(self._causes)
        # Rarely needed, and the guard of a node starts while its ranks wait.
        from holdfast.evidence.pure.echoes import is_echo  # noqa: PLC0415

        return tuple(sorted(self._causes, key=lambda cause: is_echo(cause.text)))

    def _verdict(self) -> Verdict | None:
        """After a hang, if all that died in it was ended by a guard that has looked at it."""
        kinds = {cause.kind for cause in self._causes}
        if not kinds.intersection(msg.HANGS) or kinds.intersection(_OTHER_DEATHS):
            return None
        if None in self._ended_for_hang.values():
            return None
        # Rarely needed, and the guard of a node starts while its ranks wait.
        from holdfast.inplace.pure.hang_verdict import verdict_of  # noqa: PLC0415

        seen = {
            rank: member.standing.seen
            for rank, member in self._members.items()
            if member.standing is not None
        }
        return verdict_of(seen | self._ended_for_hang)

    def _over(self, why: str, *, gave_up: bool = False, disagree: bool = False) -> list[Effect]:
        self.phase = Phase.OVER
        self._ended = why
        self._barrier_at = None
        return [TellAll(msg.Exit(False, why, gave_up, disagree))]

    # ------------------------------------------------------------ time

    def _pass_time(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.phase is Phase.OVER:
            return effects
        if self._silent_from is not None and now >= self._silent_from:
            effects += self._lose_silent_nodes(now)
        if self._barrier_at is not None and now >= self._barrier_at:
            effects += self._barrier_is_late(now)
        if self._complete_at is not None and now >= self._complete_at:
            effects += self._completion_is_late(now)
        return effects + self._commit_if_all_ready(now)

    def _lose_silent_nodes(self, now: float) -> list[Effect]:
        limit_s = self._patience.silence_s
        effects: list[Effect] = []
        for node, heard_at in list(self._heard_at.items()):
            if now >= heard_at + limit_s:
                effects += self._lose_node(node, f"silent for {now - heard_at:.1f} s", now)
                effects.append(HangUp(node))
        first = min(self._heard_at.values(), default=None)
        self._silent_from = None if first is None else first + limit_s
        return effects

    def _barrier_is_late(self, now: float) -> list[Effect]:
        wait_s = self._patience.barrier_s
        if self.phase is Phase.FORMING:
            missing = sorted(set(range(self._world or 0)) - set(self._members))
            return self._over(
                f"{len(missing)} of {self._world} ranks did not come within barrier_timeout of "
                f"{wait_s:g} s: {_some(missing)}"
            )
        late = sorted(rank for rank, m in self._members.items() if m.standing is None)
        # The guards answer with Dead; should one not, it is lost by its own silence.
        self._barrier_at = now + wait_s
        if not late:
            return []
        text = f"not back {wait_s:g} s (barrier_timeout) after iteration {self.epoch} was aborted"
        return [TellAll(msg.Kill(self.epoch, tuple(late), text))]

    def _completion_is_late(self, now: float) -> list[Effect]:
        late = sorted(rank for rank, m in self._members.items() if not m.done)
        text = (
            f"{_some(late)} not done {self._patience.completion_s:g} s (completion_timeout) after "
            "the first rank that completed"
        )
        return self._fault(msg.Cause(late[0], msg.Kind.EXCEPTION, text), now)


def _some(ranks: list[int], most: int = 16) -> str:
    """Numbers for people, not all of 16,384."""
    shown = ", ".join(map(str, ranks[:most]))
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
