"""The messages of ranks, node guards and the coordinator of a restart in place. Pure.

Their JSON form follows from their fields (``base/pure/codec.py``).

    up     JoinCall FaultReported RankLeaves Done RanksReady     rank -> guard -> coordinator
           RanksPlaced Dead RankReturned GuardBeat HungAgain
    down   AbortEpoch Commit BeginFrom KillLateRanks Exit  coordinator -> guard -> rank
           RankRefused Echo
    only between a rank and its guard: Attach, before all others; Hosting, GuardLog; OpenedArena,
    SnapshotUnusable

Connections keep order and lose nothing while they last; with one, its sender is lost. *Epoch*: one
call of the wrapped function by all ranks, counted 0, 1, 2 ... (the user's ``iteration``). A message
of another epoch means nothing, except where a member is gone for good.

*Rank* alone means the number a process was born with (``RANK`` at its start), which stays. Its
number in an epoch is its *place*: every rank computes its own by the rank assignment, see
:class:`Standing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

from holdfast.arena.pure.messages import SnapshotUnusable
from holdfast.arena.pure.snapshots import Holdings, Restore, SnapshotId
from holdfast.arena.pure.trust import PROGRESS
from holdfast.base.pure.codec import Count, Raw, Text, Whole, family
from holdfast.base.pure.value import Value
from holdfast.evidence.pure.evidence import RankDigest, Verdict
from holdfast.inplace.pure.job_calls import Cause, FaultKind
from holdfast.inplace.pure.timing import JOIN_S, MAX_START_FAULTS

MAX_WHOLE = 1 << 53
"""Largest whole number accepted: every smaller one is exact as a floating-point number."""
MAX_WORLD = 1 << 20
"""Largest job accepted, in ranks."""
Rank: TypeAlias = Annotated[int, Whole(-1, MAX_WHOLE)]
Epoch: TypeAlias = Annotated[int, Whole(-1, MAX_WHOLE)]
World: TypeAlias = Annotated[int, Whole(-1, MAX_WORLD)]


HANGS = (FaultKind.SOFT_TIMEOUT, FaultKind.HARD_TIMEOUT)


# ---------------------------------------------------------------- values
class Numbering(Value):
    """The place of a rank among ``world`` in ``epoch``. Epoch -1: as it was born."""

    epoch: Epoch
    place: Rank
    world: World


class Standing(Value):
    """A rank's own numbering when it is ready for the next epoch.

    Assignments may exchange data, so a fault can catch some ranks before theirs is made and some
    after. ``assigned`` is the last one this rank made, ``base`` the one it started from. ``seen``:
    where its main thread was at the abort of a hang, with the rank that torch knows it by; None: no
    hang, or its function was not called.
    """

    SPARSE = True

    rank: Rank
    assigned: Numbering
    base: Numbering
    seen: RankDigest | None = None


class Place(Value):
    """A rank's number for its function in an epoch, of ``world``; -1: it is not called there."""

    rank: Rank
    place: Rank
    world: World


# ---------------------------------------------------------------- up
class JoinCall(Value):
    """A rank is here and ready for epoch 0, of a job of ``world`` ranks."""

    rank: Rank
    world: World


class FaultReported(Value):
    """Something is wrong with a rank that stays a member.

    ``at_start``: it failed before the function was entered, or in its ``init_process_group``.
    """

    epoch: Epoch
    rank: Rank
    kind: FaultKind
    text: Text = ""
    at_start: bool = False

    @property
    def cause(self) -> Cause:
        """The cause that other ranks get."""
        return Cause(self.rank, self.kind, self.text)


class RankLeaves(Value):
    """A rank leaves.

    ``fault`` False: the assignment that all compute has no place for it, or its program has ended
    with success. The others are not interrupted.
    """

    epoch: Epoch
    rank: Rank
    fault: bool
    text: Text = ""


class Done(Value):
    """The function has returned; ``active`` False: it was not called on this rank."""

    epoch: Epoch
    rank: Rank
    active: bool


class RanksReady(Value):
    """These ranks have left ``epoch`` behind and wait for the next.

    ``holdings``: the snapshots of all ranks that were on the node, as its guard finds them; None:
    none of them has used any. ``began``, ``progress``: see :class:`OpenedArena`.
    """

    SPARSE = True

    epoch: Epoch
    standings: tuple[Standing, ...]
    holdings: Holdings | None = None
    began: Restore | None = None
    progress: Count = PROGRESS


class RanksPlaced(Value):
    """In an epoch that begins from snapshots: these ranks have computed their assignment."""

    epoch: Epoch
    places: tuple[Place, ...]


class OpenedArena(Value):
    """To a guard from its rank: memory of its snapshots, ``fd`` in its process.

    The guard keeps it when the rank dies. ``began``: the launchers' choice for the cycle; None:
    there is none. ``progress``: new steps after which a snapshot counts as one that leads on.
    """

    SPARSE = True

    rank: Rank
    fd: Count
    began: Restore | None = None
    progress: Count = PROGRESS


class Dead(Value):
    """A rank is gone, by its guard. ``seen``: the evidence of one that the guard has ended."""

    SPARSE = True

    rank: Rank
    kind: FaultKind
    text: Text = ""
    seen: RankDigest | None = None


class RankReturned(Value):
    """A rank has returned to its caller after Exit, or has left: nothing more comes from it."""

    rank: Rank


class GuardBeat(Value):
    """A guard is alive; ``sent_at`` is the guard's own clock, and comes back."""

    sent_at: float


class HungAgain(Value):
    """To a guard from its rank: it hung again, and should be ended instead of interrupted."""

    epoch: Epoch
    rank: Rank
    text: Text


# ---------------------------------------------------------------- down
class AbortEpoch(Value):
    """Leave ``epoch``: free threads that wait in a collective, and come back."""

    epoch: Epoch
    causes: tuple[Cause, ...]

    @property
    def is_hang(self) -> bool:
        """Whether a rank made no progress for one of its timeouts."""
        return any(cause.kind in HANGS for cause in self.causes)


class Commit(Value):
    """All ranks that are left enter ``epoch``.

    ``terminated``: the places of lost ranks, as numbered in epoch ``base``: the input of the rank
    assignment. ``causes``: of the epoch before. ``start_faults``: how many epochs before
    this one have failed at their start, one after the other. ``verdict``: which ranks held up the
    others, after a hang; None: there was none, or a rank died in another way. ``snapshots``: ranks
    say which places they get, and :class:`BeginFrom` follows. ``faults_at_once``: how many epochs
    before this one have failed at once, one after the other.
    """

    epoch: Epoch
    base: Epoch
    terminated: tuple[Rank, ...]
    causes: tuple[Cause, ...]
    start_faults: Count = 0
    verdict: Verdict | None = None
    snapshots: bool = False
    faults_at_once: Count = 0


class BeginFrom(Value):
    """All ranks of ``epoch`` begin from this snapshot; None: from none.

    ``why``: why it is no newer one, for people. ``fallback``: where they begin from none, launchers
    that end the ranks soon may go back to this one, or to older ones; None: there is none. To a
    rank its guard adds where its part is: in a slot of the memory file ``path``; "": the function
    is not called on this rank.
    """

    SPARSE = True

    epoch: Epoch
    restore: Restore | None = None
    why: Text = ""
    fallback: SnapshotId | None = None
    path: Raw = ""
    slot: Count = 0


class KillLateRanks(Value):
    """These did not come back in time; their guards kill those of them that still have not."""

    epoch: Epoch
    ranks: tuple[Rank, ...]
    text: Text


class Exit(Value):
    """The call is over for all. ``finished`` False: it failed, for the reason in ``text``.

    A guard sends one by itself where it has lost the coordinator: others may go on. ``gave_up``:
    too many iterations have failed at their start. ``disagree``: ranks have computed different
    assignments.
    """

    finished: bool
    text: Text = ""
    gave_up: bool = False
    disagree: bool = False


class RankRefused(Value):
    """This one rank can't take part; the others are not affected."""

    rank: Rank
    text: Text


class Echo(Value):
    """The coordinator's answer to the beat that was sent at ``sent_at``."""

    sent_at: float


Up = (
    JoinCall
    | FaultReported
    | RankLeaves
    | Done
    | RanksReady
    | RanksPlaced
    | OpenedArena
    | SnapshotUnusable
    | Dead
    | RankReturned
    | GuardBeat
    | HungAgain
)
Down = AbortEpoch | Commit | BeginFrom | KillLateRanks | Exit | RankRefused | Echo


# ---------------------------------------------------------------- between a rank and its guard
class CallTimeouts(Value):
    """From the wrapper's arguments, for the guard, in seconds.

    Attributes:
        soft_s: Progress older than this interrupts all ranks.
        hard_s: Progress older than this kills the rank.
        grace_s: Between SIGTERM and SIGKILL, and for leaving when the coordinator is lost.
        beat_s: How often the guard sends a heartbeat to the coordinator.
        silence_s: A node whose guard is silent for this long is gone.
    """

    soft_s: float = 60.0
    hard_s: float = 90.0
    grace_s: float = 5.0
    beat_s: float = 1.0
    silence_s: float = 30.0


class CoordinatorTimeouts(Value):
    """From the wrapper's arguments, for the coordinator, in seconds.

    Attributes:
        barrier_s: For all ranks to be back after a fault.
        completion_s: From the first rank that completed to the last.
        last_call_wait_s: Least time between a fault and the next epoch.
        silence_s: A node whose guard is silent for this long is gone.
        max_start_faults: Restarts in a row after faults at the start; None: without end.
        join_s: For all ranks to come at the start.
    """

    barrier_s: float = 120.0
    completion_s: float = 120.0
    last_call_wait_s: float = 0.0
    silence_s: float = 30.0
    max_start_faults: Count | None = MAX_START_FAULTS
    join_s: float = JOIN_S


class Attach(Value):
    """The first message of a rank to its guard; the first one that comes configures the guard.

    Attributes:
        page_fd: Descriptor of its page, in its process.
        dump_signal: Makes it write its stacks to ``dump_path``; 0: there is none.
        log: A file for the guard's own lines; None: none is wanted.
        pidfile: The guard writes its pid there; None: it does not.
        launcher: Socket of the launcher that started it; None: there is none.
        hosts: The coordinator of the job belongs into this guard.
        host: Where the coordinator is, otherwise.
        port: Likewise.
    """

    rank: Rank
    world: World
    page_fd: Count
    dump_signal: Count
    timeouts: CallTimeouts
    coordinator: CoordinatorTimeouts
    dump_path: Raw | None = None
    log: Raw | None = None
    pidfile: Raw | None = None
    launcher: Raw | None = None
    hosts: bool = False
    host: str = ""
    port: Count = 0


class Hosting(Value):
    """To the rank that asked for it: the coordinator is in its guard, on this port."""

    port: Count


class GuardLog(Value):
    """A line of the guard for the log of a rank. ``level``: ``warning`` or ``error``."""

    text: Text
    level: str


UP: Mapping[str, type[Up]] = family(Up)
DOWN: Mapping[str, type[Down]] = family(Down)
ATTACH: Mapping[str, type[Attach]] = family(Attach)
TO_RANK: Mapping[str, type[Down | GuardLog]] = family(Down | GuardLog)
TO_FIRST_RANK: Mapping[str, type[Hosting | RankRefused]] = family(Hosting | RankRefused)
