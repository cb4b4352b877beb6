"""Messages between the launcher of a node and the monitors of its ranks.

Pure: plain values; their JSON form follows from their fields (``base/pure/codec.py``). ::

    launcher ──► monitor    ConfigureMonitor, once    Cycle    Tripped    Await    Stopping
                            CollectEvidence    Proceed
    monitor ──► launcher    MonitorReady RankConnected WatchBegan RankLeft     of a rank's life
                            Overdue Evidence Signalled Unkillable Recovered Closed  of a verdict
                            EvidenceCollected           of one incident of the job
                            MonitorLog

An incident of the job: every rank is looked at before one is signalled. ::

    monitor of an overdue rank ──Overdue──► launcher ──► leader: incident N
    every monitor of the job ◄──CollectEvidence(N)── launcher
                               ──EvidenceCollected(N)──► launcher ──► leader
    every monitor of the job ◄──Proceed(N)── launcher ◄── leader: the verdict

The monitor of an overdue rank looks at once, and waits for ``Proceed`` before it ends its rank, but
no longer than the timeout of evidence. The messages of a verdict are records of the event files,
too (``events/pure/schema.py``).
"""

from __future__ import annotations

from holdfast.base.pure.codec import Characters, Count, Raw, family
from holdfast.base.pure.value import Value
from holdfast.evidence.pure.evidence import Overdue as Overdue  # noqa: PLC0414 - a message
from holdfast.evidence.pure.evidence import RankDigest
from holdfast.evidence.pure.evidence import Verdict as JobVerdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    Line: TypeAlias = str
else:
    Line = Characters(most=1 << 17, is_cut=True)  # stacks that no file takes: less than a frame


# ---------------------------------------------------------------- to a monitor
class ConfigureMonitor(Value):
    """The first message to a monitor.

    Attributes:
        cfg: The configuration (``FaultToleranceConfig.to_wire``).
        local_rank: Whose monitor it is.
        marker: The job's, in the environment of its processes; None: they are left alone.
        grace_s: From the configured signal to SIGKILL; None: no SIGKILL follows.
        node: Name of the node, for people.
        runtime_dir: Folder of the launcher's records; None: there is none.
        lease: Page of a launcher that others may go on without; None: there are no others.
        standalone: It has no launcher: it writes its lines itself, and ends on a signal.
        restarter: It writes lines of layered restarts.
        private_dir: Folder that it removes when it ends; None: there is none.
        awaits_verdict: The launcher answers ``Overdue`` with ``CollectEvidence`` and ``Proceed``.
    """

    cfg: dict[str, object]
    local_rank: Count
    marker: Raw | None
    grace_s: float | None
    node: Raw
    runtime_dir: Raw | None = None
    lease: Raw | None = None
    standalone: bool = False
    restarter: bool = False
    private_dir: Raw | None = None
    awaits_verdict: bool = False


class Cycle(Value):
    """A cycle begins: forget the rank of the last one.

    Attributes:
        page: Page of the rank; None: there was no space for one.
        dump: Where the rank writes its stacks.
        incidents: Folder of incidents; None: none are written.
        staged: Beginning of these paths; the launcher copies their files to the run folder.
        run_dir: The run folder.
        room: A file that keeps space free for an incident.
    """

    cycle: Count
    page: Raw | None
    dump: Raw | None = None
    incidents: Raw | None = None
    staged: Raw | None = None
    run_dir: Raw | None = None
    room: Raw | None = None


class Tripped(Value):
    """A learned limit tripped on another rank of this node."""

    clock: str
    name: Raw | None
    limit_s: float


class Await(Value):
    """The rank, which is process ``pid``, is to be armed: another of this node was at ``since``."""

    cycle: Count
    rank: Count
    pid: Count
    since: float


class Stopping(Value):
    """The rank was asked to end, and may save its work; its launcher ends it after its grace.

    A verdict that was begun is carried out. From now on only those of its sections count in this
    cycle that it opens after ``at``, the instant before it was asked; the first one counts.
    """

    cycle: Count
    at: float


class CollectEvidence(Value):
    """An incident has begun: take evidence of the rank, hung or not; ``EvidenceCollected`` answers.

    Attributes:
        incident: Its number in the job, from 1.
        pid: The process that the launcher has started for it: it may not have said hello.
        within_s: Seconds; evidence that takes longer is left out, and the digest says so.
        is_gentle: It is for a line of the log alone: the rank is not disturbed.
    """

    incident: Count
    cycle: Count
    rank: Count
    pid: Count
    within_s: float
    is_gentle: bool = False


JOINS_S = 5.0
"""A rank that is overdue so soon after a verdict belongs to that incident."""


class Proceed(Value):
    """All evidence of an incident is there that will come: end the rank, if it is hung."""

    incident: Count
    cycle: Count
    verdict: JobVerdict


# ---------------------------------------------------------------- to the launcher: one rank
class MonitorReady(Value):
    """The monitor is configured."""


class RankConnected(Value):
    """A rank has connected."""

    rank: Count
    pid: Count


class WatchBegan(Value):
    """The rank is watched from now on. ``by_steps``: it reports nothing but optimizer steps."""

    cycle: Count
    by_steps: bool = False


class RankLeft(Value):
    """The rank has left."""

    rank: Count
    pid: Count


class LeaseOver(Value):
    """The ranks of this node are ended, for their launcher did nothing for ``slept_s``."""

    cycle: Count
    slept_s: float


# ---------------------------------------------------------------- to the launcher: one verdict
class Evidence(Value):
    """All evidence of a hung rank is there that will come.

    Attributes:
        stacks: Path.
        incident: Path.
        why_not: Why there are no stacks.
    """

    cycle: Count
    rank: Count
    pid: Count
    stacks: Raw | None
    incident: Raw | None
    took_s: float
    why_not: Raw | None


class Signalled(Value):
    """A monitor sent a signal to its rank."""

    cycle: Count
    rank: Count
    pid: Count
    signal: Count
    why: str


class Unkillable(Value):
    """SIGKILL did not end a rank.

    Attributes:
        place: In the kernel.
    """

    cycle: Count
    rank: Count
    pid: Count
    since_s: float
    place: Raw


class Recovered(Value):
    """The verdict is dropped: the rank was armed anew, or is not hung."""

    cycle: Count


class Closed(Value):
    """Nothing more is written about the verdict."""

    cycle: Count


# ---------------------------------------------------------------- to the launcher: one incident
class EvidenceCollected(Value):
    """The answer to ``CollectEvidence``. Texts are in the incident's folder on this node."""

    incident: Count
    cycle: Count
    digest: RankDigest


# ---------------------------------------------------------------- to the launcher: for people
class MonitorLog(Value):
    """A line of the log. ``level``: ``debug``, ``info``, ``warning`` or ``error``."""

    level: str
    text: Line


ToMonitor = ConfigureMonitor | Cycle | Tripped | Await | Stopping | CollectEvidence | Proceed
Verdict = Overdue | Evidence | Signalled | Unkillable | Recovered | Closed
ToLauncher = (
    MonitorReady
    | RankConnected
    | WatchBegan
    | RankLeft
    | LeaseOver
    | Verdict
    | EvidenceCollected
    | MonitorLog
)

TO_MONITOR: Mapping[str, type[ToMonitor]] = family(ToMonitor)
TO_LAUNCHER: Mapping[str, type[ToLauncher]] = family(ToLauncher)
