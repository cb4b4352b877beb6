"""The events of a run: one record per kind, one JSON object per line, one file per launcher.

Pure. Reports, traces and live views are derived from events. A line has the fields of
:class:`Event` and those of the record of its kind::

    {"t": 7.1, "wall": 1.7e9, "kind": "worker_exited", "node": "n0", "cycle": 0,
     "local_rank": 1, "rank": 1, "pid": 4711, "exit_code": -9, "signal": 9}

``KINDS`` maps kinds to records; docs/run-folder.md is made from it. Messages of monitors, health
checks and restarts in place are written as they are. Kinds keep the names that files have always
had; classes have those of docs/glossary.md. A field without a default must be in every file; one
with a default may be missing, or unreadable, in the file of another version.
"""

from __future__ import annotations

from holdfast.base.pure.codec import (
    Count,
    Instant,
    MessageError,
    Raw,
    decode_fields,
    encode_fields,
    well_formed,
)
from holdfast.base.pure.value import Value
from holdfast.health.pure.health import Finding
from holdfast.inplace.pure.job_calls import Cause
from holdfast.page.pure.page_view import RankProgress
from holdfast.watch.pure.monitor_messages import Evidence, Overdue, Signalled, Unkillable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeAlias

SCHEMA_VERSION = 1
"""Of this schema. It grows when a file can no longer be read as before; a new kind or field is
no such change."""
LAUNCHER_FILE = "events-launcher.jsonl"
PATTERN = "events-*.jsonl"


# ---------------------------------------------------------------- launcher and node
class LauncherStarted(Value):
    """The launcher begins.

    Attributes:
        job: Its name in the environment of processes.
        nproc: Ranks of this node.
    """

    pid: Count = 0
    job: Raw = ""
    run_id: Raw = "?"
    name: Raw = "?"
    nproc: Count = 0
    max_restarts: int | None = None
    schema_version: Count = 1


class LaunchFacts(Value):
    """How a launcher was started; secrets are hidden.

    Attributes:
        versions: By name: `holdfast`, `Python`, `torch`, `CUDA`, `NCCL`, `driver`, `system`.
        environment: Variables that holdfast, torch or NCCL read.
    """

    command: tuple[Raw, ...] = ()
    folder: Raw = ""
    commit: Raw | None = None
    branch: Raw | None = None
    versions: dict[str, Raw] = {}  # noqa: RUF012 - a default of a frozen record
    environment: dict[str, Raw] = {}  # noqa: RUF012 - as above


class Joining(Value):
    """The node joins the rendezvous, in a job of several nodes."""


class StandingBy(Value):
    """A cycle began without this node, which waits as a spare.

    Attributes:
        without_us: That cycle.
    """

    without_us: int  # the name that files have always had


class LeaderMoved(Value):
    """The launcher of this node leads the job from now on.

    Attributes:
        term: From 1.
        before: The node that led, and has died.
        votes: Of so many launchers.
        text: How its death was found.
    """

    term: Count
    before: Raw = ""
    votes: Count = 0
    text: Raw = ""


class WitnessJoined(Value):
    """A witness of the job is there; this node leads.

    Attributes:
        witness: Its name.
    """

    witness: Raw = ""


class WitnessLeft(Value):
    """A witness is lost; the job continues.

    Attributes:
        witness: Its name.
        text: Why.
    """

    witness: Raw = ""
    text: Raw = ""


class NodeChecked(Value):
    """The node was checked before a start.

    Attributes:
        problem: null where it is healthy.
    """

    problem: Raw | None = None


class GpuMemory(Value):
    """A restart waits for the memory of GPUs, or has it."""

    text: Raw = ""


class SignalReceived(Value):
    """A signal (SIGTERM, SIGINT ...) asks the launcher to end the job."""

    signal: int


class JobOver(Value):
    """How the launcher's part of the job ended.

    Attributes:
        never_ran: Why this node had no ranks; null: it had.
    """

    end: Raw = ""
    exit_code: int | None = None
    never_ran: Raw | None = None


class JobSucceeded(JobOver):
    """This launcher's part of the job has succeeded."""


class JobFailed(JobOver):
    """This launcher's part of the job has failed, or was stopped."""


# ---------------------------------------------------------------- cycles
class CycleJoined(Value):
    """The node takes part in a cycle.

    Attributes:
        group_rank: Number of the node.
    """

    master_port: int | None = None
    group_rank: int | None = None


class CycleOver(Value):
    """The cycle is over: ranks are asked to end.

    Attributes:
        cause_local_rank: Where it is of this node.
        restart: Another cycle follows.
        at_once: Ranks have no grace.
        silent_s: Of a lost node.
    """

    cause: Raw = ""
    cause_local_rank: int | None = None
    restart: bool = False
    at_once: bool = False
    restarts_left: int | None = None
    silent_s: float = 0.0


class CycleStopped(Value):
    """Nothing of the cycle is left on this node."""


# ---------------------------------------------------------------- ranks
class RankStarted(Value):
    """A rank was started.

    Attributes:
        is_warm: From a parked interpreter.
    """

    local_rank: Count
    rank: Count
    pid: Count = 0
    is_warm: bool = False


class RankExited(Value):
    """A rank has ended.

    Attributes:
        signal: null: it ended by itself.
    """

    local_rank: Count
    rank: Count
    exit_code: int
    pid: Count = 0
    signal: int | None = None


class RankRaised(Value):
    """An uncaught exception has ended a rank's program; exit handlers have had their time.

    Attributes:
        exit_code: 1, as Python's.
    """

    local_rank: Count
    rank: Count
    exit_code: int
    pid: Count = 0


class RankFailed(Value):
    """A rank has failed by itself.

    Attributes:
        failure: Its kind: `missing file`, `port in use` ...; null: not known, as all below.
        what: Which file, port, peer.
        place: `file:line` in your code.
        stderr: Its first and last lines there, up to its exception.
    """

    local_rank: Count
    rank: Count
    failure: Raw | None = None
    what: Raw | None = None
    exception: Raw | None = None
    place: Raw | None = None
    advice: Raw | None = None
    stderr: tuple[Raw, ...] = ()


class FirstCause(Value):
    """The first failure of this node in a cycle, when all ranks have ended; not after hangs.

    Attributes:
        names_a_peer: Its error names another rank.
        hung: It was killed as it did not come back for a restart in place.
        was_exiting: Its program had ended, and the launcher stopped it before its process had.
        left: Ranks that had left by themselves before it lost a peer, the last one first.
        left_how: How that one left, in a sentence; empty: none had, as the next two.
        then: What became of this rank, in the rest of the sentence.
        advice: Where to look for the reason that it left.
    """

    rank: Count
    began_at: Instant
    local_rank: int | None = None
    why: Raw = ""
    names_a_peer: bool = False
    hung: bool = False
    was_exiting: bool = False
    left: tuple[int, ...] = ()
    left_how: Raw = ""
    then: Raw = ""
    advice: Raw = ""

    @property
    def sentence(self) -> str:
        """The cause, beginning with the rank that left, or with the one that failed."""
        return f"{self.left_how}; {self.then}" if self.left_how else f"rank {self.rank}: {self.why}"

    @property
    def culprit(self) -> int:
        """The rank that the sentence begins with."""
        return self.left[0] if self.left_how and self.left else self.rank


class RankArmed(Value):
    """A rank has reported in to its monitor."""

    local_rank: Count
    rank: Count
    armed_at: Instant | None = None
    sections: tuple[Raw, ...] = ()


class PagesRead(Value):
    """The launcher has read the pages of its ranks ([when](report.md)).

    Attributes:
        at: From this instant on.
        final: The cycle is over.
        verdict: All ranks were just inspected for a hang.
        ranks: By local rank: `rank`, `heartbeat_at`, `first_heartbeat_at`, `left_at`,
            `outside_since`, `longest_gap_s` (between heartbeats), `iteration`, `steps` (of its
            optimizer, where it reports nothing else), `open` (sections and since when), `sections`:
            by name how often it has ended, seconds in all, the longest, first opening, last
            closing.
    """

    ranks: dict[str, RankProgress]
    final: bool = False
    at: Instant | None = None
    verdict: bool = False


class SnapshotsOn(Value):
    """Ranks of this node keep [snapshots](options.md#restarting) in memory.

    Attributes:
        n_slots: For each rank.
        slot_bytes: Of one.
        bytes_max: Of all ranks together.
    """

    n_slots: Count = 0
    slot_bytes: Count = 0
    bytes_max: Count = 0


class SnapshotsOff(Value):
    """Snapshots get no memory in this cycle."""

    why: Raw = ""


class SnapshotsTaken(Value):
    """Snapshots so far in this cycle ([when](report.md)), of the rank of this node with the most.

    Attributes:
        skipped: No slot was free, or no memory.
        seconds: Added to the training.
        step_s: One step without; null: not known.
        step: Of the newest that all ranks of the node have; null: none.
        last_step: That a rank of the node has ended.
        every: One of so many steps; 0: not agreed yet.
        at: When the newest was taken; null: in an earlier cycle.
    """

    taken: Count = 0
    skipped: Count = 0
    seconds: float = 0.0
    step_s: float | None = None
    step: Count | None = None
    last_step: Count | None = None
    every: Count = 0
    at: Instant | None = None


class SnapshotRefused(Value):
    """A rank could not begin from its snapshot: the next cycle has an older one.

    Attributes:
        step: Of the snapshot.
        of_cycle: That had taken it.
        file: Its name on disk; empty: in memory.
        is_damaged: This copy of it is, or is not there: the next cycle has another copy, if there
            is one.
        source: The node that had sent that copy; empty: it was taken here.
    """

    rank: Count
    step: Count
    of_cycle: Count = 0
    why: Raw = ""
    file: Raw = ""
    is_damaged: bool = False
    source: Raw = ""


class SnapshotRestored(Value):
    """All ranks of the cycle begin from one snapshot.

    Attributes:
        step: Of the snapshot.
        of_cycle: That had taken it.
        lost_steps: Computed again; null: not known.
        why: Why no newer one was used; empty: none is newer.
        file: Its name on disk; empty: in memory.
        sources: Nodes that had it for ranks whose own node is lost.
    """

    step: Count
    of_cycle: Count = 0
    lost_steps: int | None = None
    why: Raw = ""
    file: Raw = ""
    sources: tuple[Raw, ...] = ()


class SnapshotOffered(Value):
    """A snapshot on disk is of another number of ranks: the script may read it.

    Attributes:
        step: Of the snapshot.
        world_size: Of the ranks that took it.
        file: Its name on disk.
    """

    step: Count
    world_size: Count = 0
    file: Raw = ""


class SnapshotWritten(Value):
    """The job ends here, and its newest snapshot is to be on disk.

    Attributes:
        step: Of the snapshot.
        of_cycle: That had taken it.
        file: Its name on disk.
        n_bytes: Of this node.
        seconds: For them.
        why: Why it is not there; empty: it is.
    """

    step: Count
    of_cycle: Count = 0
    file: Raw = ""
    n_bytes: Count = 0
    seconds: float = 0.0
    why: Raw = ""


class SnapshotPeer(Value):
    """The node that gets copies of the snapshots of this one in this cycle.

    Attributes:
        peer: That node; empty: none, so no step is kept.
        kept: The step that is kept already; null: none.
        kept_age_s: Since the leader had named it; 0: not known.
    """

    peer: Raw = ""
    kept: Count | None = None
    kept_age_s: float = 0.0


class SnapshotCopied(Value):
    """The peer of this node has the snapshots of all of its ranks.

    Attributes:
        step: Of the snapshots.
        of_cycle: That had taken them.
        peer: That node.
        n_bytes: Of them.
        seconds: From the first byte to the last.
    """

    step: Count
    of_cycle: Count = 0
    peer: Raw = ""
    n_bytes: Count = 0
    seconds: float = 0.0


class SnapshotNotCopied(Value):
    """The peer of this node has not got the snapshots of a step that was to be kept.

    Attributes:
        step: That was to be kept; 0: none was named yet.
        for_good: None is copied in this cycle.
    """

    step: Count = 0
    why: Raw = ""
    for_good: bool = False


class SnapshotKept(Value):
    """All nodes have copied the snapshots of one step to another node: it is the kept step.

    Attributes:
        step: Of the snapshot.
        of_cycle: That had taken it.
        n_bytes: Of all ranks.
        seconds: From the leader's decision to the last copy.
    """

    step: Count
    of_cycle: Count = 0
    n_bytes: Count = 0
    seconds: float = 0.0


class ControlRequest(Value):
    """A rank asked for something (`WorkloadControlRequest`)."""

    rank: int
    action: Raw = ""
    description: Raw = ""


class InPlaceRestart(Value):
    """Ranks have entered their function again ([in place](inprocess.md)).

    Attributes:
        call: Of the function, from 0.
        causes: The first eight: `rank`, `kind`, `text`.
        progress_at: The last of a rank that hung.
        noticed_at: The abort reached the node.
        entered_at: Its ranks entered the function.
        culprits: After a hang, as of an `incident`.
        verdict: The same.
        reason: The same.
        step: Of the [snapshot](snapshots.md) that all begin from; null: none, or as the cycle.
        lost_steps: Computed again; null: not known.
    """

    call: Count
    progress_at: Instant
    noticed_at: Instant
    entered_at: Instant
    causes: tuple[Cause, ...]
    n_causes: Count = 0
    culprits: tuple[int, ...] = ()
    verdict: Raw | None = None
    reason: Raw | None = None
    step: Count | None = None
    lost_steps: Count | None = None


# ---------------------------------------------------------------- monitors
class RanksJudged(Value):
    """All ranks were inspected, and judged.

    Attributes:
        verdict: How they hang.
        overdue: Ranks of this node.
        without: Nodes whose evidence is missing.
        notifies: This node starts the command of `--ft-on-incident`.
        short: The culprits and how they hang, without pids.
    """

    incident: Count = 0
    culprits: tuple[int, ...] = ()
    verdict: Raw = "unknown"
    confidence: Raw = ""
    reason: Raw = ""
    overdue: tuple[int, ...] = ()
    without: Raw = ""
    notifies: bool = False
    short: Raw = ""


class HangFound(RanksJudged):
    """All ranks were inspected because one is hung."""


class StallFound(RanksJudged):
    """Ranks make no optimizer steps for long; [none is ended](no-code-change.md)."""


class PauseFound(RanksJudged):
    """Ranks make no optimizer steps for a tenth of the time of a stall; once in each pause."""


class MonitorExited(Value):
    """A monitor has ended, and another is started."""

    local_rank: Count
    exit_code: int


# ---------------------------------------------------------------- written by a training
class FaultInjected(Value):
    """Written by your training: a fault was injected."""

    rank: Count
    step: int
    what: Raw = ""


class TrainingResumed(Value):
    """Written by your training: it continues from a checkpoint.

    Attributes:
        step: Of the checkpoint.
    """

    step: int


class OtherKind(Value):
    """An event whose kind this version does not know."""


KINDS: Mapping[str, type[Body]] = {
    "launcher_started": LauncherStarted,
    "launch_facts": LaunchFacts,
    "joining": Joining,
    "leader_moved": LeaderMoved,
    "witness_joined": WitnessJoined,
    "witness_left": WitnessLeft,
    "host_checked": NodeChecked,
    "finding": Finding,
    "gpu_memory": GpuMemory,
    "cycle_started": CycleJoined,
    "worker_started": RankStarted,
    "worker_exited": RankExited,
    "rank_raised": RankRaised,
    "rank_failed": RankFailed,
    "first_cause": FirstCause,
    "rank_armed": RankArmed,
    "progress": PagesRead,
    "rank_overdue": Overdue,
    "incident": HangFound,
    "stall": StallFound,
    "steps_paused": PauseFound,
    "evidence": Evidence,
    "kill_sent": Signalled,
    "rank_stuck": Unkillable,
    "monitor_exited": MonitorExited,
    "restarted_in_place": InPlaceRestart,
    "snapshots_on": SnapshotsOn,
    "snapshots_off": SnapshotsOff,
    "snapshots_taken": SnapshotsTaken,
    "snapshot_refused": SnapshotRefused,
    "snapshot_restored": SnapshotRestored,
    "snapshot_offered": SnapshotOffered,
    "snapshot_written": SnapshotWritten,
    "snapshot_peer": SnapshotPeer,
    "snapshot_copied": SnapshotCopied,
    "snapshot_not_copied": SnapshotNotCopied,
    "snapshot_kept": SnapshotKept,
    "control_request": ControlRequest,
    "cycle_stopping": CycleOver,
    "cycle_stopped": CycleStopped,
    "signal_received": SignalReceived,
    "standing_by": StandingBy,
    "job_succeeded": JobSucceeded,
    "job_failed": JobFailed,
    "fault": FaultInjected,
    "resumed": TrainingResumed,
}
_KIND_OF = {record: kind for kind, record in KINDS.items()}

if TYPE_CHECKING:
    _Job = LauncherStarted | Joining | StandingBy | SignalReceived
    _Leading = LeaderMoved | WitnessJoined | WitnessLeft
    _End = JobSucceeded | JobFailed
    _Host = LaunchFacts | NodeChecked | Finding | GpuMemory | MonitorExited
    _Cycle = CycleJoined | CycleOver | CycleStopped
    _Rank = RankStarted | RankExited | RankRaised | RankFailed | FirstCause | RankArmed
    _Work = PagesRead | ControlRequest | InPlaceRestart
    _Snapshots = (
        SnapshotsOn
        | SnapshotsOff
        | SnapshotsTaken
        | SnapshotRefused
        | SnapshotRestored
        | SnapshotOffered
        | SnapshotWritten
    )
    _Copies = SnapshotPeer | SnapshotCopied | SnapshotNotCopied | SnapshotKept
    _Verdict = Overdue | Evidence | Signalled | Unkillable | HangFound | StallFound | PauseFound
    Body: TypeAlias = (
        _Job
        | _Leading
        | _End
        | _Host
        | _Cycle
        | _Rank
        | _Work
        | _Snapshots
        | _Copies
        | _Verdict
        | FaultInjected
        | TrainingResumed
        | OtherKind
    )


# ---------------------------------------------------------------- an event
class _Head(Value):
    t: Instant
    kind: Raw
    cycle: int
    wall: float | None = None
    node: Raw = ""


class Event(Value):
    """One thing that happened.

    Attributes:
        t: Seconds of the host's monotonic clock, to subtract.
        cycle: From 0.
        body: The record of its kind.
        wall: Seconds since 1970, to show; None: not said.
        node: Host name.
        kind: As the line has it.
        launcher: Which launcher of its run has written it, from 0.
    """

    t: float
    cycle: int
    body: Body
    wall: float | None = None
    node: str = ""
    kind: str = ""
    launcher: int = 0


def kind_of(record: type[Body]) -> str:
    """The name of its kind in a file."""
    return _KIND_OF[record]


def fields_of(event: Event) -> dict[str, object]:
    """An event as a line of a file has it."""
    head = {"t": event.t, "wall": event.wall, "kind": event.kind}
    return {**head, "node": event.node, "cycle": event.cycle, **encode_fields(event.body)}


def event_of(fields: object) -> Event | None:
    """The event of a line of a file; None: it is none, whatever else it may be."""
    if not isinstance(fields, dict):
        return None
    try:
        head = _decode(_Head, fields)
        kind = KINDS.get(head.kind)
        body = OtherKind() if kind is None else _decode(kind, fields)
    except MessageError:
        return None
    return Event(head.t, head.cycle, body, head.wall, head.node, head.kind)


def _decode(kind: type[Any], fields: Mapping[str, object]) -> Any:
    """A field with a default that is of another form is as one that is missing."""
    try:
        return decode_fields(kind, fields)
    except MessageError:
        return decode_fields(kind, well_formed(kind, fields))
