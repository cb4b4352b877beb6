"""The training that each kind of fault costs a job, with snapshots and without; and their memory.

Pure. The rules are those of ``arena/pure/choice.py`` and ``arena/pure/budget.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.arena.pure.budget import LEAST_SLOTS, SHARE, shown
from holdfast.base.pure.value import Value
from holdfast.base.pure.wording import count
from holdfast.health.pure.health import Finding, Fitness
from holdfast.options.plan import LaunchPlan

_ALL = "all steps since your last checkpoint"
_OPTION = "--ft-snapshot-memory"


class Loss(Value):
    """Steps that are computed again after one kind of fault.

    Attributes:
        with_snapshots: Where the script takes them.
        without: Where it takes none.
    """

    fault: str
    with_snapshots: str
    without: str


def losses_of(plan: LaunchPlan) -> list[Loss]:
    """Of faults that are followed by a restart, those of processes first."""
    if not plan.max_restarts:
        return []
    is_off = plan.snapshot_memory == 0
    newest = f"{_ALL}: {_OPTION} is 0" if is_off else _newest()
    gone = "" if is_off else "; its snapshots are gone, and all ranks begin from one state"
    found = [Loss("a rank raises, crashes, is killed or hangs, on any node", newest, _ALL)]
    if plan.meeting is None:
        return found
    lost = _ALL + gone if is_off or not plan.snapshot_keep_s else _since_kept(plan.snapshot_keep_s)
    found.append(Loss("a node or its launcher is lost, or replaced by a spare", lost, _ALL))
    found.append(Loss("the node or launcher that leads is lost, and another one leads", lost, _ALL))
    if plan.min_nodes < plan.max_nodes:
        text = "" if is_off else "; a snapshot is of one number of ranks"
        found.append(Loss("the number of nodes changes", _ALL + text, _ALL))
    return found


def _since_kept(period_s: float) -> str:
    return (
        f"the steps of {period_s:g} s (--ft-snapshot-keep) and of the copy to another node, if a "
        "spare takes its place; " + _ALL + " if its peer is lost as well"
    )


def _newest() -> str:
    return (
        "the step that was in work; one more where copies are made beside the next step; "
        "up to N where one step of N is taken"
    )


def about_memory(plan: LaunchPlan, left: int | None) -> Iterator[Finding]:
    """Room for snapshots, should the script take them.

    Args:
        plan: Of the job.
        left: Bytes that processes could have here: the least of the host's MemAvailable, its
            commit limit, and the rest of the control groups; None: not known.
    """
    limit = plan.snapshot_memory
    if limit == 0:
        yield Finding("snapshots", "memory", Fitness.HEALTHY, f"off: {_OPTION} is 0")
        return
    if left is None:
        text = "how much is left here is not known, so snapshots are off without " + _OPTION
        verdict = Fitness.HEALTHY if limit is not None else Fitness.UNKNOWN
        yield Finding("snapshots", "memory", verdict, text)
        return
    most = left // SHARE if limit is None else min(limit, left)
    each = most // (LEAST_SLOTS * plan.nproc_per_node)
    part = f"1/{SHARE} of the" if limit is None else f"{shown(limit)} ({_OPTION}) of"
    text = (
        f"{part} {shown(left)} that are left here: room for a state of {shown(each)} for each of "
        f"{count(plan.nproc_per_node, 'rank')}, twice (weights, optimizer, buffers)"
    )
    if limit is not None and limit > left:
        text += "; the limit is more than there is, so it is not reached"
        yield Finding("snapshots", "memory", Fitness.SUSPECT, text)
        return
    yield Finding("snapshots", "memory", Fitness.HEALTHY, text)
