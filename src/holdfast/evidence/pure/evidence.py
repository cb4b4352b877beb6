"""Digest of each rank at an incident, in some hundred bytes, and the verdict on all.

Pure records. The monitor of each rank makes a :class:`RankDigest`; launchers bring all of a job to
the leader; ``evidence/pure/verdict.py`` makes a :class:`Verdict` of them. Texts (stacks, last
lines) stay on their node. Imported by the rank monitor, so light.

Ranks are global. A set of ranks is a text: see ``base/pure/rank_sets.py``.
"""

from __future__ import annotations

import enum

from holdfast.base.pure.codec import Count, Instant, Name, Raw, Text
from holdfast.base.pure.value import Value

ANSWERED = "answered"
SILENT = "silent"
"""What became of the question to a rank's helper thread. Silence: the interpreter is held."""

KINDS = (
    DEAD := "dead",
    EXITING := "exiting",
    MISSING := "missing",
    STOPPED := "stopped",
    KERNEL := "kernel",
    LOADER := "loader",
    INTERPRETER := "interpreter",
    COMPUTING := "computing",
    NATIVE := "native",
    WAITING := "waiting",
    MISMATCH := "mismatch",
    COMMUNICATION := "communication",
    SLOW := "slow",
    UNKNOWN := "unknown",
)
"""How a culprit hangs: :attr:`Verdict.kind`."""

GONE = "gone"
"""Not seen to end: it was not there any more when it was looked at."""
ENDED = "ended"
ENDED_BEFORE = "ended before"
"""Long before the incident: it is not blamed for that."""
ENDED_WELL = "ended well"
"""It may have done all its work."""
BEING_STOPPED = "being stopped"
"""It ends, or has ended, as its launcher stops the ranks of its node."""
"""Why there is no evidence of a rank's process: :attr:`RankDigest.end`."""

LOCK = "lock"
SLEEP = "sleep"
"""Nothing but time."""
PIPE = "pipe"
FIFO = "fifo"
SOCKET = "socket"
SOCKET_OR_PIPE = "socket or pipe"
FILE = "file"
"""The one that :attr:`RankDigest.file` names."""
FILE_LOCK = "file lock"
TERMINAL = "terminal"
SIGNAL = "signal"
CHILD = "child"
THAW = "thaw"
"""Of its frozen control group."""
TASKS = "tasks"
"""Work that it has given to threads or processes of its own."""
STORE = "store"
"""A key of torch's store, which another rank may have to set."""
OTHER_PROCESS = "other process"
"""At the other end of a queue or connection of ``multiprocessing``."""
DEBUGGER = "debugger"
PERSON = "person"
SERVER = "server"
"""Objects that a main thread waits for: :attr:`RankDigest.waits_for`."""

STALL = "stall"
"""In the place of a kind, where incidents are counted: no rank was ended for it."""

HIGH, MEDIUM, LOW, NONE = "high", "medium", "low", "none"
"""How sure a verdict is; ``none``: no rank is named."""


Call = tuple[str, str, int, str]
"""Name and members of a group, number of a collective, peers of a send or receive."""


class GroupDigest(Value):
    """Where a rank is in the collectives of one process group.

    Attributes:
        name: As torch counts its groups.
        members: Set of ranks; "": not known.
        enqueued: Sequence number of the last collective that the rank has begun; -1: none.
        completed: Of the last one that has ended.
        pending: The oldest one that has not ended, as ``all_reduce float32[8, 8]``; "": none.
        seq: Its sequence number.
        peers: Set of ranks that it waits for, where it is a send or receive.
        is_unusual: Something is pending, and the rank's own order of operations is broken.
        last: The collective before the pending one, in the same form; "": there was none.
        n_pending: How many have not ended, sends and receives with them.
        n_transfers: How many of those are sends and receives.
        waits_s: For how long the youngest of them has not ended, as far as the recorder knows.
        timeout_s: After which torch ends them: the longest of theirs; 0.0: not known.
    """

    SPARSE = True

    name: Raw
    members: Raw = ""
    enqueued: int = -1
    completed: int = -1
    pending: Raw = ""
    seq: int = -1
    peers: Raw = ""
    is_unusual: bool = False
    last: Raw = ""
    n_pending: Count = 0
    n_transfers: Count = 0
    waits_s: float = 0.0
    timeout_s: float = 0.0

    @property
    def call(self) -> Call:
        """The pending one: equal for ranks that wait in the same."""
        return self.name, self.members, self.seq, self.peers


class Operations(Value):
    """Where a rank is in its collectives and its program, as a thread of it sees.

    Attributes:
        groups: Where the rank is in the collectives of its groups.
        recent: Its last operations, for people, newest last.
        why_not: Why these are missing.
        frames: Of the thread that trains, innermost first, as :class:`~.stacks.Frame` writes them.
        thread: Its number as the kernel has it; 0: it is the main thread.
        call: The function in C that it calls, as ``req.wait``; "": not known.
        awaits: Where tasks wait, if the main thread waits for tasks.
        is_at_store: A request to torch's store has had no answer.
    """

    groups: tuple[GroupDigest, ...] = ()
    recent: tuple[Raw, ...] = ()
    why_not: Raw = ""
    frames: tuple[Raw, ...] = ()
    thread: Count = 0
    call: Raw = ""
    awaits: tuple[Raw, ...] = ()
    is_at_store: bool = False


class RankDigest(Value):
    """One rank at one incident.

    Attributes:
        state: Letter of ps(1), the same in both looks, which were 50 ms apart; "": gone, or it
            changed (then it runs).
        wchan: Kernel function that its main thread sleeps in.
        waits_for: Awaited by its main thread: :data:`LOCK`, ...; "": not known.
        file: The file that it waits for, where that is :data:`FILE`.
        cpu: Share of a CPU that its main thread used between the looks.
        switches: Context switches of its main thread between the looks.
        unread_bytes: In the receive queues of its TCP connections.
        overdue: The clock that ran out, as ``section 'step'``; "": it has not timed out.
        section: The innermost section that is open.
        section_s: For how long.
        beat_s: Seconds since its last heartbeat, or optimizer step if it sends none; None: there
            was none.
        iteration: The last one that it reported.
        stack: Hash of its main thread's frames; "": no stacks.
        place: The telling line: ``load_batch data.py:88``.
        call: The library's function that is called there: ``all_reduce``; "": none with a frame.
        is_in_collective: Its main thread is inside torch.distributed, or in backward.
        is_main_thread: That is the main thread, else another one that trains, or that holds the
            interpreter's lock.
        is_transfer: It is in a send or receive of torch.distributed's.
        is_in_loader: It is inside a data loader of torch.
        helper: :data:`ANSWERED`, :data:`SILENT`, "": it has none.
        groups: Its process groups; empty: there is no flight recorder.
        worker: The one of its child processes that is worth telling, of a rank that waits for its
            data loader or a process: pid, state and telling line.
        exception: First line of the one that has ended its program, while its process still exits.
        is_worker_hidden: Nothing shows the activity of that one.
        end: :data:`GONE`, ...: there is no process; "": there is one, as far as is known.
        exit_code: With which it has ended, -N: by signal N; None: not known.
        ended_before_s: For how long it had ended when the incident began.
        has_handler: False: it takes no stacks any more, though it has asked for that.
        lacks: Why something else is missing, for people; "": nothing is.
        steps: Optimizer steps, as far as they are counted.
        pause_s: Since its last sign of progress, as far as known; 0.0: it is not watched by steps.
        stopped_s: For how long it is known to be stopped (state T), or to have ended.
    """

    LIKE_LAST = True

    rank: Count
    node: Raw = ""
    local_rank: Count = 0
    pid: Count = 0
    state: Raw = ""
    wchan: Raw = ""
    waits_for: Raw = ""
    file: Raw = ""
    cpu: float = 0.0
    switches: Count = 0
    unread_bytes: Count = 0
    overdue: Raw = ""
    section: Raw | None = None
    section_s: float = 0.0
    beat_s: float | None = None
    iteration: int | None = None
    stack: Raw = ""
    place: Raw = ""
    call: Raw = ""
    is_in_collective: bool = False
    is_main_thread: bool = True
    is_transfer: bool = False
    is_in_loader: bool = False
    helper: Raw = ""
    groups: tuple[GroupDigest, ...] = ()
    worker: Text = ""
    is_worker_hidden: bool = False
    exception: Raw = ""
    end: Raw = ""
    exit_code: int | None = None
    ended_before_s: float = 0.0
    has_handler: bool = True
    lacks: Text = ""
    steps: Count = 0
    pause_s: float = 0.0
    stopped_s: float = 0.0

    @property
    def waits_in(self) -> list[GroupDigest]:
        """Those of its groups in which something is pending."""
        return [group for group in self.groups if group.pending]


class Absence(enum.Enum):
    """Why a node has sent no digests."""

    LOST_BEFORE = "lost before"
    LOST = "lost"
    """Meanwhile: of each such node for a reason of its own."""
    NO_ANSWER = "no answer"
    NOT_ASKED = "not asked"


class Overdue(Value):
    """A monitor found its rank hung; evidence is taken now.

    Attributes:
        name: Of the section; null: of another clock.
        learned: The timeout was computed from intervals.
        at: The clock ran out.
        detected_at: The monitor found that.
    """

    cycle: Count
    rank: Count
    local_rank: Count
    pid: Count
    clock: str
    name: Raw | None
    age_s: float
    limit_s: float
    learned: bool
    at: Instant
    detected_at: Instant

    def __str__(self) -> str:
        return overdue_text(self.clock, self.name, self.age_s, self.limit_s)


def overdue_text(clock: str, name: str | None, age_s: float, limit_s: float) -> str:
    """``section 'step': 6.0 s, timeout 5 s``."""
    timed = f"section {name!r}" if name is not None else clock
    return f"{timed}: {age_s:.1f} s, timeout {limit_s:g} s"


class Missing(Value):
    """A node that has sent no digests, and the set of its ranks."""

    ranks: Raw
    absence: Absence
    why: Text

    @property
    def is_asked(self) -> bool:
        """Whether its ranks can be blamed for their silence."""
        return self.absence is not Absence.NOT_ASKED

    def kind(self, node: str) -> str:
        """Equal for nodes that are missing for one cause; ``node``: its name."""
        return f"LOST {node}" if self.absence is Absence.LOST else self.absence.name


def folder_name(incident: int, cycle: int) -> str:
    """Of an incident of the job, below ``incidents``, on all nodes: ``0001-cycle0``."""
    return f"{incident:04d}-cycle{cycle}"


class Alike(Value):
    """Ranks that show the same.

    Attributes:
        doing: For people; completes "rank 5": ``in `load_batch` data.py:88``.
        shows_nothing: There is no evidence of them.
    """

    ranks: Raw
    count: Count
    doing: Text
    shows_nothing: bool = False


class Verdict(Value):
    """Which ranks hold up the job, how, and how sure that is.

    Attributes:
        culprits: Global ranks, in order; empty where none can be named.
        kind: One of :data:`KINDS`.
        reason: A sentence for people, without its full stop; no code reads it.
        confidence: :data:`HIGH`, :data:`MEDIUM`, :data:`LOW`; :data:`NONE` without culprits.
        groups: All ranks by their state, culprits first, then the largest; the rest is summed
            up in the last one.
        nodes: Nodes of which every rank is a culprit.
        is_hang: Ranks without a chosen timeout are to be ended (``stall.py``).
        is_stall: Ranks only make no optimizer steps, and none is ended for it.
        is_pause: The same, and not for long enough to be a stall.
        is_known: That stall, or pause, has been reported, and no rank has moved since.
        proof: Of a hang or stall: that no time can help; "": there is none.
        why_alone: Of a stall: why no rank is ended.
        short: The first culprits and how they hang, without pids, in a few words; "": there is
            nothing shorter than the reason.
        again_s: After which another look may tell more; 0.0: no such time is known.
    """

    SPARSE = True

    culprits: tuple[Count, ...] = ()
    kind: Name = UNKNOWN
    reason: Text = ""
    confidence: Name = NONE
    groups: tuple[Alike, ...] = ()
    nodes: tuple[Raw, ...] = ()
    is_hang: bool = False
    is_stall: bool = False
    is_pause: bool = False
    is_known: bool = False
    proof: Text = ""
    why_alone: Text = ""
    short: Text = ""
    again_s: float = 0.0
