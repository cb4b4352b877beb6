"""The training that each kind of fault costs a job, with snapshots and without; and their memory.

Pure. The rules are those of ``arena/pure/choice.py``, ``kept_steps.py`` and ``budget.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from holdfast.arena.pure.budget import LEAST_SLOTS, SHARE, shown
from holdfast.arena.pure.slots import KEPT_SLOTS, PEER_SLOTS
from holdfast.base.pure.value import Value
from holdfast.base.pure.wording import count, duration
from holdfast.health.pure.health import Finding, Fitness
from holdfast.options.plan import LaunchPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.tools.doctor.earlier_run import EarlierRun

_ALL = "all steps since your last checkpoint"
_OPTION, _KEEP, _DIR = "--ft-snapshot-memory", "--ft-snapshot-keep", "--ft-snapshot-dir"


class Loss(Value):
    """Steps that are computed again after one kind of fault.

    Attributes:
        with_snapshots: Where the script takes them.
        without: Where it takes none.
        steps_max: With them, by the numbers of the last run; None: not known.
    """

    fault: str
    with_snapshots: str
    without: str
    steps_max: int | None = None


def losses_of(plan: LaunchPlan, last: EarlierRun | None = None) -> list[Loss]:
    """Of faults that are followed by a restart, those of processes first; then the job's end.

    Args:
        plan: Of the job.
        last: The last run of its script; None: not known.
    """
    if not plan.max_restarts:
        return []
    is_off = plan.snapshot_memory == 0
    if is_off:
        last = None
    process = Loss("a rank raises, crashes, is killed or hangs, on any node", _newest(last), _ALL)
    process = process.but(steps_max=None if last is None else last.every or None)
    if is_off:
        process = process.but(with_snapshots=f"{_ALL}: {_OPTION} is 0")
    ends = [_at_the_end(plan, is_off=is_off)]
    if plan.meeting is None:
        gone = _ALL + ("" if is_off else "; the memory of its snapshots is gone with it")
        return [process, Loss("the host or its launcher is lost", gone, _ALL), *ends]
    return [process, *_of_nodes(plan, last, is_off=is_off), *ends]


def _of_nodes(plan: LaunchPlan, last: EarlierRun | None, *, is_off: bool) -> Iterator[Loss]:
    keeps = plan.snapshot_keep_s and not is_off
    gone = "" if is_off else "; its snapshots are gone, and all ranks begin from one state"
    lost = Loss("", _since_kept(plan.snapshot_keep_s, last) if keeps else _ALL + gone, _ALL)
    if keeps:
        lost = lost.but(steps_max=_kept_steps(plan.snapshot_keep_s, last))
    elif not is_off:
        more = f"; {_KEEP} SECONDS would keep a step at other nodes"
        lost = lost.but(with_snapshots=lost.with_snapshots + more)
    yield lost.but(fault="a node or its launcher is lost, and a spare takes its place")
    yield lost.but(
        fault="the node or launcher that leads is lost, another one leads, and a spare takes its "
        "place"
    )
    if keeps:
        text = f"{_ALL}: of its ranks no node has the kept step"
        yield Loss("a node is lost, and its peer with it", text, _ALL)
    text = "" if is_off else "; a snapshot is of one number of ranks"
    if plan.min_nodes < plan.max_nodes:
        yield Loss("the number of nodes changes", _ALL + text, _ALL)


def _at_the_end(plan: LaunchPlan, *, is_off: bool) -> Loss:
    fault = "the job is preempted, or has no restart left, and is started again"
    if is_off or plan.snapshot_dir is None:
        text = _ALL if is_off else f"{_ALL}; with {_DIR} its newest snapshot would be on disk"
        return Loss(fault, text, _ALL)
    text = (
        f"as after the loss of a rank: the newest snapshot is left in {plan.snapshot_dir}, if that "
        f"is written within {plan.snapshot_dir_timeout_s:g} s ({_DIR}-timeout)"
    )
    return Loss(fault, text, _ALL)


def _newest(last: EarlierRun | None) -> str:
    text = (
        "the step that was in work; one more where copies are made beside the next step; "
        "up to N where one step of N is taken"
    )
    if last is None or not last.every:
        return text
    took = "" if last.step_s is None else f", {duration(last.every * last.step_s)}"
    return f"{text}. In run {last.name} N was {last.every}: {count(last.every, 'step')}{took}"


def _since_kept(period_s: float, last: EarlierRun | None) -> str:
    text = f"the steps of {period_s:g} s ({_KEEP}) and of the copy to another node"
    steps = _kept_steps(period_s, last)
    if last is None or steps is None:
        return text
    took = "" if last.copy_s is None else f", and {duration(last.copy_s)} for the copy"
    by = f"{duration(last.step_s or 0.0)} a step{took}, as in run {last.name}"
    return f"{text}: up to {count(steps, 'step')} by {by}"


def _kept_steps(period_s: float, last: EarlierRun | None) -> int | None:
    if last is None or not last.step_s:
        return None
    return math.ceil((period_s + (last.copy_s or 0.0)) / last.step_s) + last.every


def about_memory(
    plan: LaunchPlan, left: int | None, last: EarlierRun | None = None
) -> Iterator[Finding]:
    """Room for snapshots, should the script take them.

    Args:
        plan: Of the job.
        left: Bytes that processes could have here: the least of the host's MemAvailable, its
            commit limit, and the rest of the control groups; None: not known.
        last: The last run of the script; None: not known.
    """
    limit = plan.snapshot_memory
    if limit == 0:
        yield _finding("memory", Fitness.HEALTHY, f"off: {_OPTION} is 0")
        return
    if left is None:
        text = "how much is left here is not known, so snapshots are off without " + _OPTION
        yield _finding("memory", Fitness.HEALTHY if limit is not None else Fitness.UNKNOWN, text)
        return
    most = left // SHARE if limit is None else min(limit, left)
    part = f"1/{SHARE} of the" if limit is None else f"{shown(limit)} ({_OPTION}) of"
    ranks = count(plan.nproc_per_node, "rank")
    each = most // (LEAST_SLOTS * plan.nproc_per_node)
    text = (
        f"{part} {shown(left)} that are left here: room for a state of {shown(each)} for each of "
        f"{ranks}, twice (weights, optimizer, buffers)"
    )
    is_beyond = limit is not None and limit > left
    if is_beyond:
        text += "; the limit is more than there is, so it is not reached"
    is_large = last is not None and last.slot_bytes > each
    if last is not None:
        text += f". In run {last.name} it was {shown(last.slot_bytes)}"
        text += ": too large, so snapshots are off" if is_large else ""
    verdict = Fitness.SUSPECT if is_beyond or is_large else Fitness.HEALTHY
    yield _finding("memory", verdict, text)
    if plan.snapshot_keep_s and plan.meeting is not None:
        slots = LEAST_SLOTS + KEPT_SLOTS + PEER_SLOTS
        each = most // (slots * plan.nproc_per_node)
        is_large = last is not None and last.slot_bytes > each
        text = (
            f"room for a state of {shown(each)} for each of {ranks}, "
            f"{count(slots, 'time')} ({_KEEP})"
        )
        text += "; a larger one is not kept at other nodes"
        yield _finding("kept steps", Fitness.SUSPECT if is_large else Fitness.HEALTHY, text)


def about_pages(
    plan: LaunchPlan, huge_pages: str | None, *, has_memory_files: bool
) -> Iterator[Finding]:
    """How the kernel gives that memory.

    Args:
        plan: Of the job.
        huge_pages: The kernel's setting for shared memory; None: not known.
        has_memory_files: There is memfd_create.
    """
    if plan.snapshot_memory == 0:
        return
    if not has_memory_files:
        text = "memfd_create is refused here, so snapshots get no memory and are off"
        yield _finding("pages", Fitness.SUSPECT, text)
        return
    text = (
        "in memory files, so the size of /dev/shm sets no limit, and not locked, so ulimit -l "
        "(memlock) sets none either"
    )
    if huge_pages is not None:
        has_them = huge_pages in ("always", "within_size", "advise", "force")
        size = "huge pages" if has_them else "pages of 4 KiB; with advise they would be huge"
        text += f"; shmem_enabled is {huge_pages}: {size}"
    yield _finding("pages", Fitness.HEALTHY, text)


def _finding(subject: str, verdict: Fitness, text: str) -> Finding:
    return Finding("snapshots", subject, verdict, text)
