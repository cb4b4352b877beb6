"""Decide for all ranks of a restart in place: its members, the end of an epoch, that of the call.

Pure: ``handle(event, now)`` returns effects, :meth:`Coordinator.next_deadline` says when it wants
to be woken. Times are seconds on the caller's monotonic clock.

    FORMING --- all ranks said Hello ---> RUNNING(0)
    RUNNING(e) --- Fault, Leave, Dead, a silent node, completion too late ---> ABORTING(e)
    ABORTING(e) --- every member is Ready, or gone ---> RUNNING(e+1)
    RUNNING(e) --- every member is Done ---> OVER (finished)
    RUNNING(e) --- Fault at the start, as in too many epochs before ---> OVER (failed)
    FORMING --- a rank or the time is lost --->  OVER (failed)
    any --- no member is left ---> OVER (failed)

The barrier of ABORTING gathers concurrent faults: all that are reported before the last member is
RanksReady belong to the same epoch, so nothing waits for a fixed time.

Numbers. A member is known by the rank it was born with. Every rank computes its own place in an
epoch by the assignment, and reports it with RanksReady. Lost places are the complement of those
reported, so it does not matter whether a rank died before it could report one, was left out by the
assignment, or died later. Where a fault caught some ranks before they had an assignment and others
after, all go back to the one before (``Commit.base``). Two ranks that report the same place, or
worlds of different size, have computed different assignments: the call ends for all, rather than
train with two rank 3s.

Snapshots. With RanksReady each guard lists the snapshots of its ranks. Where there are some of this
call, each rank reports the place that its assignment gives it, and then the coordinator names the
newest snapshot whose parts all are on the nodes that need them, or none, by the rule of the
launchers' leader (``arena/pure/beginning.py``). A rank waits for that only where it restores. T-1:
all ranks of an epoch begin from one snapshot, or all from none. Until there are some, epochs begin
as the launchers chose for the cycle, but not for ever: the coordinator gives that snapshot up by
the rule of ``arena/pure/trust.py``. An epoch in which no rank came to restore it does not count.
An epoch that begins from none leaves older snapshots where they are, up to the first that was given
up: they are of another world, and launchers that end all ranks may go back to them. No later epoch
of this call does.

Invariants: R-1 a place has one owner per epoch. R-2 every member of an epoch is Ready for the same
next one, or is gone, or the call ends for all; in bounded time, since each wait has a deadline and
guards answer Kill with Dead.
"""

from __future__ import annotations

import enum
import json

from holdfast.arena.pure import trust
from holdfast.arena.pure.messages import SnapshotUnusable
from holdfast.base.pure.common_events import TimePassed
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.never import assert_never
from holdfast.base.pure.rank_sets import ranks_of, text_of
from holdfast.base.pure.value import Value
from holdfast.base.pure.wording import count
from holdfast.evidence.pure.evidence import GroupDigest, RankDigest, Verdict
from holdfast.inplace.pure import messages as msg
from holdfast.inplace.pure.job_calls import Cause, FaultKind
from holdfast.inplace.pure.timing import FaultsInARow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from holdfast.arena.pure.snapshots import Holdings, Restore, SnapshotId

MAX_CAUSES = 64
"""Causes in one message: the first ones explain, and a frame has a size limit."""
_TEXT_BYTES_MAX = 12 << 10
"""Text of one cause, as JSON; all of them fit into one frame (1 MiB)."""
_TEXT_CHARS_KEPT = 1024


_OTHER_DEATHS = frozenset(
    {FaultKind.TERMINATED, FaultKind.UNRESPONSIVE, FaultKind.MONITOR_PROCESS_EXCEPTION}
)


# ---------------------------------------------------------------- events
class NodeMessage(Value):
    """A message from a node's guard."""

    node: str
    message: msg.Up


class NodeGone(Value):
    """The connection to a node's guard has ended."""

    node: str
    how: str


Event = NodeMessage | NodeGone | TimePassed


# ---------------------------------------------------------------- effects
class Tell(Value):
    """Send to one node's guard."""

    node: str
    message: msg.Down


class HangUp(Value):
    """Close the connection to a guard that is given up as lost."""

    node: str


Effect = Tell | msg.Down | HangUp
"""``Down`` goes to every guard that is connected."""


class CallPhase(enum.Enum):
    """Where the call is."""

    FORMING = "forming"
    RUNNING = "running"
    ABORTING = "aborting"
    OVER = "over"


class _Member:
    """One rank that takes part."""

    __slots__ = ("done", "node", "place", "standing")

    def __init__(self, node: str) -> None:
        self.node = node
        self.done = False
        self.place: msg.Place | None = None
        self.standing: msg.Standing | None = None


class Coordinator:
    """One per call of the wrapped function, for all ranks.

    Attributes:
        phase: Where the call is.
        epoch: The one that runs or is being left; -1 while forming.
    """

    def __init__(self, timeouts: msg.CoordinatorTimeouts) -> None:
        self._timeouts = timeouts
        self.phase = CallPhase.FORMING
        self.epoch = -1
        self._base = -1
        self._world: int | None = None
        self._members: dict[int, _Member] = {}
        self._waiting = 0
        """Members that are not yet Ready (ABORTING) or not yet Done (RUNNING)."""
        self._ended = ""
        """OVER: why, for ranks that come too late."""
        self._last_message_at: dict[str, float] = {}
        self._lost_nodes: set[str] = set()
        self._silent_from: float | None = None
        """No node is silent for too long before then; moved when it comes, not with each beat."""
        self._causes: list[Cause] = []
        self._ended_for_hang: dict[int, RankDigest | None] = {}
        """By rank: the evidence that its guard took."""
        self._barrier_at: float | None = None
        """FORMING: given up then. ABORTING: those not back are killed then."""
        self._complete_at: float | None = None
        self._not_before = 0.0
        self._began_at = 0.0
        """RUNNING: when the epoch was committed."""
        self._faults = FaultsInARow(timeouts.max_start_faults)
        self._holdings: dict[str, Holdings] = {}
        """By node: the snapshots of its ranks, when they were ready."""
        self._awaits_places = False
        self._was_chosen = True
        """For the last epoch, a snapshot or none; False: it failed before that."""
        self._restore: Restore | None = None
        """The snapshot that the epoch began from."""
        self._has_chosen = False
        """From then on, the launchers' choice for the cycle holds no more."""
        self._left: SnapshotId | None = None
        """No epoch begins from this one or an older one: one has begun from none since."""
        self._progress = trust.PROGRESS

    @property
    def members(self) -> AbstractSet[int]:
        """Ranks that take part, by the number they were born with."""
        return self._members.keys()

    def next_deadline(self) -> float | None:
        """When to feed :class:`TimePassed`, at the latest."""
        if self.phase is CallPhase.OVER:
            return None
        return earliest(
            self._silent_from,
            self._barrier_at,
            self._complete_at,
            self._not_before if self.phase is CallPhase.ABORTING and not self._waiting else None,
        )

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The effects of ``event``, in order."""
        match event:
            case NodeMessage():
                return self._receive(event.node, event.message, now)
            case NodeGone():
                return self._lose_node(event.node, event.how, now)
            case TimePassed():
                return self._pass_time(now)
            case _:
                assert_never(event)

    # ------------------------------------------------------------ messages

    def _receive(self, node: str, message: msg.Up, now: float) -> list[Effect]:
        if node in self._lost_nodes:
            return []
        self._last_message_at[node] = now
        if self._silent_from is None:
            self._silent_from = now + self._timeouts.silence_s
        match message:
            case msg.JoinCall():
                return self._welcome(node, message, now)
            case msg.FaultReported():
                if message.epoch != self.epoch or self._member(node, message.rank) is None:
                    return []
                return self._fault(message.cause, now, at_start=message.at_start)
            case msg.RankLeaves():
                cause = Cause(message.rank, FaultKind.BASE_EXCEPTION, message.text)
                return self._lose_rank(node, message.rank, [cause] if message.fault else [], now)
            case msg.Dead():
                cause = Cause(message.rank, message.kind, message.text)
                if self._member(node, message.rank) and message.kind is FaultKind.HARD_TIMEOUT:
                    self._ended_for_hang[message.rank] = message.seen
                return self._lose_rank(node, message.rank, [cause], now)
            case msg.Done():
                return self._done(node, message, now)
            case msg.RanksReady():
                return self._ready(node, message, now)
            case msg.RanksPlaced():
                return self._placed(node, message)
            case msg.RankReturned() | msg.HungAgain() | msg.OpenedArena() | SnapshotUnusable():
                return []
            case msg.GuardBeat():
                return [Tell(node, msg.Echo(message.sent_at))]
            case _:
                assert_never(message)

    def _member(self, node: str, rank: int) -> _Member | None:
        """``rank``, as far as ``node`` may speak for it."""
        # A process with the number of another rank is refused; until its guard knows that, its
        # messages are not about the member.
        member = self._members.get(rank)
        return None if member is None or member.node != node else member

    def _welcome(self, node: str, hello: msg.JoinCall, now: float) -> list[Effect]:
        rank = hello.rank
        if self._world is None:
            self._world = hello.world
            self._barrier_at = now + self._timeouts.join_s
        problem = self._why_not(hello)
        if problem is not None:
            return [Tell(node, msg.RankRefused(rank, problem))]
        self._members[rank] = _Member(node)
        if len(self._members) < self._world:
            return []
        return self._commit([], now, base=-1)

    def _why_not(self, hello: msg.JoinCall) -> str | None:
        rank = hello.rank
        if self.phase is CallPhase.OVER:
            return f"rank {rank} came to a call that is over: {self._ended}"
        if self.phase is not CallPhase.FORMING:
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
        is_due = self.phase is CallPhase.RUNNING and done.epoch == self.epoch
        if member is None or member.done or not is_due:
            return []
        member.done = True
        self._waiting -= 1
        if done.active and self._complete_at is None:
            self._complete_at = now + self._timeouts.completion_s
        return self._finish_if_all_done()

    def _ready(self, node: str, ready: msg.RanksReady, now: float) -> list[Effect]:
        if self.phase is not CallPhase.ABORTING or ready.epoch != self.epoch:
            return []
        for standing in ready.standings:
            member = self._member(node, standing.rank)
            if member is not None and member.standing is None:
                member.standing = standing
                self._waiting -= 1
        if ready.holdings is not None:
            self._holdings[node] = ready.holdings
            self._progress = ready.progress
            if not self._has_chosen and self._restore is None:
                self._restore = ready.began
        return self._commit_if_all_ready(now)

    # ------------------------------------------------------------ snapshots

    def _placed(self, node: str, placed: msg.RanksPlaced) -> list[Effect]:
        if self.phase is not CallPhase.RUNNING or placed.epoch != self.epoch:
            return []
        for place in placed.places:
            if (member := self._member(node, place.rank)) is not None:
                member.place = place
        return self._begin_if_all_are_placed()

    def _begin_if_all_are_placed(self) -> list[Effect]:
        places = [m.place for m in self._members.values() if m.place is not None]
        is_due = self._awaits_places and self.phase is CallPhase.RUNNING
        if not is_due or len(places) < len(self._members):
            return []
        self._awaits_places = False
        by_node: dict[str, set[int]] = {}
        for member in self._members.values():
            if member.place is not None and member.place.place >= 0:
                by_node.setdefault(member.node, set()).add(member.place.place)
        called = [place for place in places if place.place >= 0]
        worlds = {place.world for place in called}
        restore, why = None, "ranks computed different assignments"
        if worlds == {len(called)} == {sum(map(len, by_node.values()))}:
            restore, why = self._choose(by_node)
        fallback = None
        if restore is None and (fallback := self._newest_not_given_up()) is not None:
            self._left = fallback
        self._restore, self._has_chosen = restore, True
        return [msg.BeginFrom(self.epoch, restore, why, fallback)]

    def _choose(self, places: Mapping[str, set[int]]) -> tuple[Restore | None, str]:
        # Needed where snapshots are used, and the guard of a node starts while its ranks wait.
        from holdfast.arena.pure.beginning import next_restore  # noqa: PLC0415
        from holdfast.arena.pure.lineage import last_life  # noqa: PLC0415

        left = self._left
        held = {
            node: [it for it in holdings.held if left is None or it.id > left]
            for node, holdings in self._holdings.items()
        }
        # Guards void the snapshots that an epoch does not go back to: the rest is one history.
        cycles = {it.cycle for its in held.values() for it in its}
        return next_restore(
            held,
            places,
            [last_life(0, cycle) for cycle in cycles],
            self._last_restore(),
            self._last_step(),
            {node: holdings.refused for node, holdings in self._holdings.items()},
            self._progress,
            void_until=trust.void_until(self._holdings.values()),
        )

    def _newest_not_given_up(self) -> SnapshotId | None:
        """The newest snapshot older than all that were refused, or have led nowhere."""
        known = self._holdings.values()
        void_until = trust.void_until(known)
        given_up = [refused.snapshot for it in known for refused in it.refused]
        last = self._last_restore()
        if last is not None and trust.is_spent(last, self._last_step(), self._progress):
            given_up.append(last.snapshot)
        every = (held.id for it in known for held in it.held)
        names = (it for it in every if void_until is None or it > void_until)
        return max((it for it in names if all(it < bad for bad in given_up)), default=None)

    def _last_step(self) -> int:
        return max((it.last_step for it in self._holdings.values()), default=-1)

    def _last_restore(self) -> Restore | None:
        """The snapshot of the last epoch with one, which counts if any of its ranks came so far."""
        last = self._restore
        if last is None or not self._was_chosen or self._last_step() >= last.snapshot.step:
            return last
        return last.but(times=last.times - 1)

    def _begins_as_the_cycle(self) -> bool:
        """Whether the launchers' choice for the cycle stays in force; counts one more life."""
        known = self._holdings.values()
        if self._has_chosen or any(it.refused for it in known):
            return False
        began = self._restore
        if any(began is None or held.id > began.snapshot for it in known for held in it.held):
            return False
        void_until = trust.void_until(known)
        if began is not None and void_until is not None and began.snapshot <= void_until:
            return False
        last, last_step, progress = self._last_restore(), self._last_step(), self._progress
        if last is None:
            return True
        if trust.is_spent(last, last_step, progress):
            return False
        times = trust.times(last, last_step, progress, last.snapshot)
        self._restore = last.but(times=times)
        return True

    # ------------------------------------------------------------ faults

    def _fault(self, cause: Cause, now: float, *, at_start: bool = False) -> list[Effect]:
        """End an epoch that runs; to one that is ending, add a cause."""
        if len(self._causes) < MAX_CAUSES:
            if len(json.dumps(cause.text)) > _TEXT_BYTES_MAX:  # up to 12 bytes for a character
                cause = Cause(cause.rank, cause.kind, cause.text[:_TEXT_CHARS_KEPT])
            self._causes.append(cause)
        if self.phase is not CallPhase.RUNNING:
            return []
        wait_s = self._faults.wait_s(now - self._began_at, at_start=at_start)
        if wait_s is None:
            times, most = self._faults.at_start, self._timeouts.max_start_faults
            return self._over(
                f"gave up after {count(times, 'iteration')} in a row that failed at the start, "
                "before the function was entered or in its init_process_group "
                f"(max_start_faults={most}); the last one by {cause.kind.value} of rank "
                f"{cause.rank}: {cause.text}",
                gave_up=True,
            )
        self.phase = CallPhase.ABORTING
        self._complete_at = None
        self._barrier_at = now + self._timeouts.barrier_s
        self._not_before = now + max(self._timeouts.last_call_wait_s, wait_s)
        for member in self._members.values():
            member.standing = None
        self._holdings.clear()
        self._waiting = len(self._members)
        return [msg.AbortEpoch(self.epoch, tuple(self._causes))]

    def _lose_rank(self, node: str, rank: int, causes: list[Cause], now: float) -> list[Effect]:
        return [] if self._member(node, rank) is None else self._remove([rank], causes, now)

    def _remove(self, ranks: list[int], causes: list[Cause], now: float) -> list[Effect]:
        """These are gone for good; with no causes, no other rank is interrupted."""
        if self.phase is CallPhase.OVER:
            return []
        for rank in ranks:
            member = self._members.pop(rank)
            is_here = (
                member.done if self.phase is CallPhase.RUNNING else member.standing is not None
            )
            self._waiting -= not is_here
        if self.phase is CallPhase.FORMING:
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
        if self.phase is CallPhase.ABORTING:
            return effects + self._commit_if_all_ready(now)
        return effects + self._begin_if_all_are_placed() + self._finish_if_all_done()

    def _lose_node(self, node: str, how: str, now: float) -> list[Effect]:
        if self._last_message_at.pop(node, None) is None:
            return []
        self._lost_nodes.add(node)
        self._holdings.pop(node, None)
        ranks = sorted(rank for rank, member in self._members.items() if member.node == node)
        text = f"the guard of {node} is gone: {how}"
        return self._remove(
            ranks, [Cause(rank, FaultKind.UNRESPONSIVE, text) for rank in ranks], now
        )

    # ------------------------------------------------------------ agreements of all

    def _finish_if_all_done(self) -> list[Effect]:
        if self._waiting:
            return []
        self.phase = CallPhase.OVER
        self._ended = "all ranks have completed"
        return [msg.Exit(finished=True)]

    def _commit_if_all_ready(self, now: float) -> list[Effect]:
        if self.phase is not CallPhase.ABORTING or self._waiting or now < self._not_before:
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
        return self._commit(free, now, base=base)

    def _commit(self, terminated: list[int], now: float, *, base: int) -> list[Effect]:
        causes = self._causes_in_order()
        verdict = self._verdict()
        self._causes, self._ended_for_hang = [], {}
        self._base = base
        self.epoch += 1
        self.phase = CallPhase.RUNNING
        self._began_at = now
        self._barrier_at = None
        self._was_chosen = not self._awaits_places
        self._awaits_places = bool(self._holdings) and not self._begins_as_the_cycle()
        for member in self._members.values():
            member.done = False
            member.place = None
        self._waiting = len(self._members)
        rows = self._faults
        about = causes, rows.at_start, verdict, self._awaits_places, rows.at_once
        return [msg.Commit(self.epoch, base, tuple(terminated), *about)]

    def _causes_in_order(self) -> tuple[Cause, ...]:
        """As they came, with echoes (errors that name a peer) last."""
        if len(self._causes) < 2:
            return tuple(self._causes)
        # Rarely needed, and the guard of a node starts while its ranks wait.
        from holdfast.evidence.pure.echoes import is_echo  # noqa: PLC0415

        return tuple(sorted(self._causes, key=lambda cause: is_echo(cause.text)))

    def _verdict(self) -> Verdict | None:
        """After a hang, if every rank that died in it was ended by a guard that has seen it."""
        kinds = {cause.kind for cause in self._causes}
        if not kinds.intersection(msg.HANGS) or kinds.intersection(_OTHER_DEATHS):
            return None
        if None in self._ended_for_hang.values():
            return None
        seen = {
            rank: member.standing.seen
            for rank, member in self._members.items()
            if member.standing is not None
        }
        return verdict_of(seen | self._ended_for_hang)

    def _over(self, why: str, *, gave_up: bool = False, disagree: bool = False) -> list[Effect]:
        self.phase = CallPhase.OVER
        self._ended = why
        self._barrier_at = None
        return [msg.Exit(False, why, gave_up, disagree)]

    # ------------------------------------------------------------ time

    def _pass_time(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.phase is CallPhase.OVER:
            return effects
        if self._silent_from is not None and now >= self._silent_from:
            effects += self._lose_silent_nodes(now)
        if self._barrier_at is not None and now >= self._barrier_at:
            effects += self._barrier_is_late(now)
        if self._complete_at is not None and now >= self._complete_at:
            effects += self._completion_is_late(now)
        return effects + self._commit_if_all_ready(now)

    def _lose_silent_nodes(self, now: float) -> list[Effect]:
        limit_s = self._timeouts.silence_s
        effects: list[Effect] = []
        for node, last_at in list(self._last_message_at.items()):
            if now >= last_at + limit_s:
                effects += self._lose_node(node, f"silent for {now - last_at:.1f} s", now)
                effects.append(HangUp(node))
        first = min(self._last_message_at.values(), default=None)
        self._silent_from = None if first is None else first + limit_s
        return effects

    def _barrier_is_late(self, now: float) -> list[Effect]:
        if self.phase is CallPhase.FORMING:
            missing = sorted(set(range(self._world or 0)) - set(self._members))
            return self._over(
                f"{len(missing)} of {self._world} ranks did not come within "
                f"{self._timeouts.join_s:g} s (barrier_timeout): {_some(missing)}"
            )
        wait_s = self._timeouts.barrier_s
        late = sorted(rank for rank, m in self._members.items() if m.standing is None)
        # The guards answer with Dead; should one not, it is lost by its own silence.
        self._barrier_at = now + wait_s
        if not late:
            return []
        text = f"not back {wait_s:g} s (barrier_timeout) after iteration {self.epoch} was aborted"
        return [msg.KillLateRanks(self.epoch, tuple(late), text)]

    def _completion_is_late(self, now: float) -> list[Effect]:
        late = sorted(rank for rank, m in self._members.items() if not m.done)
        text = (
            f"{_some(late)} not done {self._timeouts.completion_s:g} s (completion_timeout) after "
            "the first rank that completed"
        )
        return self._fault(Cause(late[0], FaultKind.EXCEPTION, text), now)


def _some(ranks: list[int], most: int = 16) -> str:
    """Numbers for people, not all of 16,384."""
    shown = ", ".join(map(str, ranks[:most]))
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def verdict_of(shown: Mapping[int, RankDigest | None]) -> Verdict | None:
    """Which rank held up the others in a hang; None: no rank has shown anything.

    The rank whose soft timeout ran out is mostly a victim. So each rank notes where its main thread
    is before it frees it, and its guard looks at one that it ends; the rules for a hung job judge.

    Args:
        shown: By rank, as it was born; digests have the numbers of torch, which each restart may
            change.
    """
    # Rarely needed, and the guard of a node starts while its ranks wait.
    from holdfast.evidence.pure.verdict import judge  # noqa: PLC0415

    seen = {rank: digest for rank, digest in shown.items() if digest is not None}
    born = {digest.rank: rank for rank, digest in seen.items()}
    try:
        digests = {rank: _renumbered(rank, digest, born) for rank, digest in seen.items()}
        return judge(digests, {}) if digests else None
    except Exception:  # noqa: BLE001 - a text for people: no restart may end of it
        return None


def _renumbered(rank: int, digest: RankDigest, born: Mapping[int, int]) -> RankDigest:
    def name(ranks: str) -> str:
        return text_of([born[each] for each in ranks_of(ranks) if each in born])

    def of(group: GroupDigest) -> GroupDigest:
        named = {"members": name(group.members), "peers": name(group.peers)}
        return GroupDigest(**(vars(group) | named))

    return RankDigest(**(vars(digest) | {"rank": rank, "groups": tuple(map(of, digest.groups))}))
