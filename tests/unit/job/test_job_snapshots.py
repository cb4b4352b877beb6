"""The two machines that decide about the snapshots of a job: facts that one has of the other."""

from __future__ import annotations

import math

from holdfast.arena.pure.snapshots import Held, Holdings, SnapshotId
from holdfast.job.pure.assign import NodeDesc
from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.job_snapshots import JobSnapshots
from holdfast.job.pure.membership import (
    Cadence,
    Complete,
    CyclePlace,
    Descriptor,
    Join,
    Keep,
    Keeper,
    Kept,
    Missed,
    Round,
    SnapshotCosts,
)
from holdfast.job.pure.rules import Rules

NAMES = "a", "b"
PLACES = tuple(CyclePlace(name, k, 1, k, name) for k, name in enumerate(NAMES))


def nodes(keeps: int = 7) -> list[NodeDesc]:
    descs = [Descriptor(name, name, 1, 1, keeps=keeps) for name in NAMES]
    return [NodeDesc(**vars(it), id=it.hostname, joined=k) for k, it in enumerate(descs)]


def joined(one: JobSnapshots, have_cycle: int, *held: Held) -> None:
    for name in NAMES:
        desc, holdings = Descriptor(name, name, 1, 1), Holdings(held)
        one.joined(Join(name, desc, have_cycle, holdings=holdings))


def begun() -> JobSnapshots:
    """In cycle 0, at 100.0."""
    one = JobSnapshots(Rules(NodePolicy(2, 2), snapshot_keep_s=30.0))
    joined(one, -1)
    beginning, parts, _ = one.choose(0, 0, PLACES, nodes(), 100.0)
    one.begin(Round(0, PLACES, world_size=2, beginning=beginning, keepers=parts), 100.0)
    assert one.time_passed(100.0) == [Keep(0, 0)]
    return one


def test_the_kept_step_is_one_of_those_of_which_snapshots_are_taken() -> None:
    one = begun()
    assert one.on_message(SnapshotCosts("a", 0, 3, 5), 0, NAMES, 100.1) == []
    (cadence,) = one.on_message(SnapshotCosts("b", 0, 3, 2), 0, NAMES, 100.1)
    assert isinstance(cadence, Cadence)
    assert cadence.every == 5
    assert one.on_message(Missed("a", 0, 0, 4), 0, NAMES, 100.2) == [Keep(0, 10)]


def test_the_next_cycle_knows_the_kept_step_and_its_age() -> None:
    one, kept = begun(), SnapshotId(0, 0, 6)
    one.on_message(Missed("a", 0, 0, 4), 0, NAMES, 100.0)
    one.on_message(Complete("a", 0, kept, 50), 0, NAMES, 101.0)
    assert one.on_message(Complete("b", 0, kept, 50), 0, NAMES, 102.0) == [Kept(0, kept, 100, 2.0)]
    one.stop()
    joined(one, 0, *(Held(rank, 2, 0, 0, 6) for rank in (0, 1)))
    beginning, parts, _ = one.choose(1, 0, PLACES, nodes(), 110.0)
    assert beginning is not None
    assert (beginning.kept, beginning.kept_age_s) == (kept, 10.0)
    assert parts == (Keeper(7, 1), Keeper(7, 0))


def test_a_job_with_a_node_that_takes_no_snapshots_keeps_no_step_and_says_so_once() -> None:
    one = JobSnapshots(Rules(NodePolicy(2, 2), snapshot_keep_s=30.0))
    _, parts, notes = one.choose(0, 0, PLACES, nodes(keeps=0), 100.0)
    assert (parts, len(notes)) == ((), 1)
    _, parts, notes = one.choose(1, 0, PLACES, nodes(keeps=0), 200.0)
    assert (parts, notes) == ((), [])
    one.begin(Round(1, PLACES, world_size=2), 200.0)
    assert one.due_at == math.inf
