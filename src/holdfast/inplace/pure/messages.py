"""What ranks, node guards and the coordinator of an in-process restart say to each other.

Pure: plain values; their JSON form follows from their fields (``base/pure/codec.py``).

    up     Hello Fault Leave Done Ready Dead Bye Beat Stuck         rank -> guard -> coordinator
    down   Abort Commit Kill Exit Refused Echo Lost           coordinator -> guard -> rank
    only between a rank and its guard: Attach, before all others; Hosting, Log

Connections keep order and lose nothing while they last; when one is lost, so is whoever was behind
it. *Epoch*: one call of the wrapped function by all ranks, counted 0, 1, 2 ... (the user's
``iteration``). A message of another epoch means nothing, except where a member is gone for good.

*Rank* alone means the number a process was born with (``RANK`` at its start): the name by which
machines know it for ever. What it is called in an epoch is its *place*, and that is the business of
the rank assignment, which every rank computes by itself: see :class:`Standing`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, TypeAlias

from holdfast.base.pure.codec import Count, Raw, Text, Whole, family
from holdfast.base.pure.value import Value
from holdfast.evidence.pure.evidence import RankDigest, Verdict

MAX_WHOLE = 1 << 53
"""Largest whole number accepted: every one below it has its own floating-point number."""
MAX_WORLD = 1 << 20
"""Largest job accepted, in ranks."""
Rank: TypeAlias = Annotated[int, Whole(-1, MAX_WHOLE)]
Epoch: TypeAlias = Annotated[int, Whole(-1, MAX_WHOLE)]
World: TypeAlias = Annotated[int, Whole(-1, MAX_WORLD)]


class Kind(enum.Enum):
    """What interrupted an epoch, by the names that users of the field know."""

    EXCEPTION = "EXCEPTION"
    """The function raised; the rank stays."""
    BASE_EXCEPTION = "BASE_EXCEPTION"
    """The rank leaves: SystemExit, KeyboardInterrupt, RestartAbort, or it is not well."""
    SOFT_TIMEOUT = "SOFT_TIMEOUT"
    """No progress for the soft limit; the rank is interrupted where it stands."""
    HARD_TIMEOUT = "HARD_TIMEOUT"
    """No progress for the hard limit; the rank is killed."""
    TERMINATED = "TERMINATED"
    """Its process ended without a word."""
    UNRESPONSIVE = "UNRESPONSIVE"
    """Its node is not heard of any more."""
    MONITOR_PROCESS_EXCEPTION = "MONITOR_PROCESS_EXCEPTION"
    """Its node guard failed."""


HANGS = (Kind.SOFT_TIMEOUT, Kind.HARD_TIMEOUT)


# ---------------------------------------------------------------- values
class Cause(Value):
    """Why an epoch ended: ``rank`` did, or had done to it, ``kind``; ``text`` is for people."""

    rank: Rank
    kind: Kind
    text: Text = ""


class Numbering(Value):
    """What a rank was called in ``epoch``: its place among ``world``. Epoch -1: as it was born."""

    epoch: Epoch
    place: Rank
    world: World


class Standing(Value):
    """What a rank knows of its own numbering when it is ready for the next epoch.

    Assignments may exchange data, so a fault can catch some ranks before theirs is made and some
    after. ``assigned`` is the last one this rank made, ``base`` the one it started from. ``seen``:
    where its main thread was when it heard of a hang, with the rank that torch knows it by; None:
    it heard of none, or was not called.
    """

    SPARSE = True

    rank: Rank
    assigned: Numbering
    base: Numbering
    seen: RankDigest | None = None


# ---------------------------------------------------------------- up
class Hello(Value):
    """A rank is here and ready for epoch 0, of a job of ``world`` ranks."""

    rank: Rank
    world: World


class Fault(Value):
    """Something is wrong with a rank that stays a member.

    ``at_start``: it failed before the function was entered, or in its ``init_process_group``.
    """

    epoch: Epoch
    rank: Rank
    kind: Kind
    text: Text = ""
    at_start: bool = False

    @property
    def cause(self) -> Cause:
        """As others hear of it."""
        return Cause(self.rank, self.kind, self.text)


class Leave(Value):
    """A rank goes, in words. ``fault`` False: the assignment that all compute left it out."""

    epoch: Epoch
    rank: Rank
    fault: bool
    text: Text = ""


class Done(Value):
    """The function has returned; ``active`` False: there was none to call on this rank."""

    epoch: Epoch
    rank: Rank
    active: bool


class Ready(Value):
    """These ranks have left ``epoch`` behind and wait for the next."""

    epoch: Epoch
    standings: tuple[Standing, ...]


class Dead(Value):
    """A rank is gone without a word of its own. ``seen``: of one that its guard has ended."""

    SPARSE = True

    rank: Rank
    kind: Kind
    text: Text = ""
    seen: RankDigest | None = None


class Bye(Value):
    """A rank has returned to its caller after Exit, or has left: nothing more comes from it."""

    rank: Rank


class Beat(Value):
    """A guard is alive; ``sent_at`` is the guard's own clock, and comes back."""

    sent_at: float


class Stuck(Value):
    """To a guard from its rank: it hung again, and should be ended instead of interrupted."""

    epoch: Epoch
    rank: Rank
    text: Text


# ---------------------------------------------------------------- down
class Abort(Value):
    """Leave ``epoch``: free whoever waits in a collective, and come back."""

    epoch: Epoch
    causes: tuple[Cause, ...]


class Commit(Value):
    """Everybody who is left enters ``epoch``.

    ``terminated``: the places, as numbered in epoch ``base``, that nobody holds any more: what the
    rank assignment starts from. ``causes``: of the epoch before. ``start_faults``: how many epochs
    before this one have failed at their start, one after the other. ``verdict``: which ranks held
    up the others, after a hang; None: there was none, or a rank died in another way.
    """

    epoch: Epoch
    base: Epoch
    terminated: tuple[Rank, ...]
    causes: tuple[Cause, ...]
    start_faults: Count = 0
    verdict: Verdict | None = None


class Kill(Value):
    """These did not come back in time; their guards kill those of them that still have not."""

    epoch: Epoch
    ranks: tuple[Rank, ...]
    text: Text


class Exit(Value):
    """The call is over for all. ``finished`` False: it failed, for the reason in ``text``.

    ``gave_up``: too many iterations have failed at their start. ``disagree``: ranks have computed
    different assignments.
    """

    finished: bool
    text: Text = ""
    gave_up: bool = False
    disagree: bool = False


class Refused(Value):
    """This one rank can't take part; nobody else is concerned."""

    rank: Rank
    text: Text


class Echo(Value):
    """The coordinator has heard the beat that was sent at ``sent_at``."""

    sent_at: float


class Lost(Value):
    """From a guard to its ranks: the coordinator is gone; leave, the others may go on without."""

    text: Text


Up = Hello | Fault | Leave | Done | Ready | Dead | Bye | Beat | Stuck
Down = Abort | Commit | Kill | Exit | Refused | Echo | Lost


# ---------------------------------------------------------------- between a rank and its guard
class Attach(Value):
    """The first message of a rank to its guard; the first one that comes configures the guard.

    Attributes:
        page_fd: Descriptor of its progress page, in its process.
        dump_signal: Makes it write its stacks to ``dump_path``; 0: there is none.
        log: A file for the guard's own lines; None: none is wanted.
        pidfile: The guard writes its pid there; None: it does not.
        launcher: Socket of the launcher that started it; None: there is none.
        soft_s: This and the next four: see ``inplace/pure/guard.py``.
        barrier_s: This, the next two and ``max_start_faults``: see
            ``inplace/pure/coordinator.py``.
        hosts: The coordinator of the job belongs into this guard.
        host: Where the coordinator is, otherwise.
        port: Likewise.
    """

    rank: Rank
    world: World
    page_fd: Count
    dump_signal: Count
    soft_s: float
    hard_s: float
    grace_s: float
    beat_s: float
    silence_s: float
    barrier_s: float
    completion_s: float
    last_call_wait_s: float
    max_start_faults: Count | None = None
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


class Log(Value):
    """A line of the guard for the log of a rank. ``level``: ``warning`` or ``error``."""

    text: Text
    level: str


UP: Mapping[str, type[Up]] = family(Up)
DOWN: Mapping[str, type[Down]] = family(Down)
ATTACH: Mapping[str, type[Attach]] = family(Attach)
TO_RANK: Mapping[str, type[Down | Log]] = family(Down | Log)
TO_FIRST_RANK: Mapping[str, type[Hosting | Refused]] = family(Hosting | Refused)
