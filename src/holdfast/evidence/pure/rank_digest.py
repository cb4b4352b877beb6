"""From the evidence of a rank to its digest. Pure, and light."""

from __future__ import annotations

from holdfast.base.pure.value import Value
from holdfast.evidence.pure import evidence as ev
from holdfast.evidence.pure.evidence import RankDigest
from holdfast.evidence.pure.stacks import ThreadPlace, hash_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from holdfast.evidence.pure.evidence import Operations
    from holdfast.page.pure.clocks import RunningClock, Snapshot

_WAITS = (
    ("futex", ev.LOCK),
    ("nanosleep", ev.SLEEP),
    ("wait_for_partner", ev.FIFO),
    ("pipe", ev.PIPE),
    ("do_wait", ev.CHILD),
    ("n_tty", ev.TERMINAL),
    ("poll", ev.SOCKET_OR_PIPE),
    ("select", ev.SOCKET_OR_PIPE),
    ("unix_stream", ev.SOCKET),
    ("sk_wait", ev.SOCKET),
    ("inet", ev.SOCKET),
    ("wait_woken", ev.SOCKET),  # a terminal, too, but that is read by read(2)
    ("locks_lock", ev.FILE_LOCK),
    ("pause", ev.SIGNAL),
    ("sigsuspend", ev.SIGNAL),
    ("sigtimedwait", ev.SIGNAL),
)
"""Kernel functions by a part of their name, and the reason why a process sleeps there."""
_READS = (("pipe:", ev.PIPE), ("socket:", ev.SOCKET))
"""The same by the object that it reads from; any other one is a file."""
_PLACES_MAX = 200
_STORE_CALLS = ("wait", "get", "multi_get", "add", "compare_set", "check", "queue_pop", "barrier")
"""Methods of torch's stores that wait for an answer."""


class Sight(Value):
    """One look at a process's main thread, in /proc.

    Attributes:
        state: Letter of ps(1).
        wchan: Kernel function that it sleeps in; "": not known, or it runs.
        reads: The file, pipe or socket that it reads from; "": none, or not known.
    """

    state: str
    wchan: str
    cpu_ns: int
    switches: int
    reads: str = ""


class RankEvidence(Value):
    """All that was seen of a rank.

    Attributes:
        first: Of two looks, at the main thread, or at the one that trains instead of it.
        second: The later one; None: it was gone, or there was no time.
        apart_s: Seconds between them.
        place: Where its main thread is.
        is_asked: Its helper thread was asked.
        is_alive: It has answered.
        operations: Its answer.
        unread_bytes: In its TCP connections.
        worker: A data loader's worker, for people.
        is_worker_hidden: Its stack cannot be taken.
        has_handler: False: the process takes no stacks any more.
        lacks: Missing facts, and why.
        is_frozen: Its control group is frozen.
    """

    first: Sight | None
    second: Sight | None = None
    apart_s: float = 0.0
    place: ThreadPlace = ThreadPlace()
    is_asked: bool = False
    is_alive: bool = False
    operations: Operations | None = None
    unread_bytes: int = 0
    worker: str = ""
    lacks: Sequence[str] = ()
    is_frozen: bool = False
    is_worker_hidden: bool = False
    has_handler: bool = True


def state_of(first: Sight | None, second: Sight | None) -> str:
    """Letter of ps(1) in both looks; one that changes is that of a process that runs, or stops.

    A profiler (py-spy) stops a process for moments, as a debugger does (``t``): that is no state.
    """
    if first is None or second is None:
        return "" if first is None else first.state
    if first.state == second.state == "t" and first.switches != second.switches:
        return "R"
    if second.state in (first.state, "T") or first.state == "t":
        return second.state
    return first.state if second.state == "t" else "R"


def waits_for(sight: Sight | None) -> str:
    """Reason why a process sleeps, as far as the kernel says."""
    if sight is None or sight.state not in ("S", "D"):
        return ""
    if sight.reads:
        return next((reason for part, reason in _READS if sight.reads.startswith(part)), ev.FILE)
    return next((reason for part, reason in _WAITS if part in sight.wchan), "")


def digest(
    identity: Mapping[str, Any],
    seen: RankEvidence,
    snapshot: Snapshot | None,
    iteration: int | None,
    overdue: RunningClock | None,
    now: float,
    *,
    pause_s: float = 0.0,
    stopped_s: float = 0.0,
) -> RankDigest:
    """Of one rank, from the evidence that its monitor took, and its page.

    ``snapshot``: None: it is not armed. ``pause_s``: of a rank that is watched by steps, since its
    last sign of progress (``steps.py``). ``stopped_s``: for how long it is known to be stopped.
    """
    first, second = seen.first, seen.second
    last = second or first
    sections = snapshot.sections if snapshot is not None else {}
    section = max(sections, key=sections.__getitem__, default=None)
    beat_at = (snapshot.heartbeat_at or snapshot.stepped_at) if snapshot is not None else None
    place, answer = seen.place, seen.operations
    cpu_ns = second.cpu_ns - first.cpu_ns if first is not None and second is not None else 0
    state = state_of(first, second)
    helper = (ev.ANSWERED if seen.is_alive else ev.SILENT) if seen.is_asked else ""
    call, is_transfer, is_at_store = _native_call(place, answer, last)
    if answer is not None and answer.awaits and place.waits_for == ev.TASKS:
        place, call = place.but(line=answer.awaits[0], call=""), ""
    waits = (place.waits_for if state in ("S", "D") else "") or waits_for(last)
    waits = ev.THAW if seen.is_frozen else ev.STORE if is_at_store else waits
    why_not = (answer.why_not,) if answer is not None and answer.why_not else ()
    return RankDigest(
        **identity,
        state=state,
        wchan=last.wchan if last is not None else "",
        waits_for=waits,
        file=last.reads[:_PLACES_MAX] if waits == ev.FILE and last is not None else "",
        cpu=round(cpu_ns / seen.apart_s / 1e9, 3) if seen.apart_s > 0 else 0.0,
        switches=max(0, second.switches - first.switches) if first and second else 0,
        unread_bytes=seen.unread_bytes,
        overdue="" if overdue is None else clock_name(overdue),
        section=section,
        section_s=round(now - sections[section], 3) if section is not None else 0.0,
        beat_s=None if beat_at is None else round(now - beat_at, 3),
        iteration=iteration,
        stack=place.code,
        place=place.line[:_PLACES_MAX],
        call=(place.call or call)[:_PLACES_MAX],
        is_in_collective=place.is_in_collective,
        is_main_thread=place.is_main,
        is_transfer=place.is_transfer or is_transfer,
        is_in_loader=place.is_in_loader,
        helper=helper,
        groups=answer.groups if answer is not None else (),
        worker=seen.worker[:_PLACES_MAX],
        is_worker_hidden=seen.is_worker_hidden,
        has_handler=seen.has_handler,
        lacks="; ".join((*seen.lacks, *why_not))[:_PLACES_MAX],
        steps=int(snapshot.steps) if snapshot is not None else 0,
        pause_s=round(pause_s, 3) if snapshot is not None and snapshot.steps else 0.0,
        stopped_s=round(stopped_s, 3) if state == "T" else 0.0,
    )


def _native_call(
    place: ThreadPlace, answer: Operations | None, last: Sight | None
) -> tuple[str, bool, bool]:
    """The call in C of a line of the user's; whether it is a transfer, or a wait at a store.

    Frames show neither, and gloo's recorder has no transfers.
    """
    if answer is None or hash_of(answer.frames) != place.code:
        return "", False, False  # it has gone on meanwhile
    waits, name = waits_for(last), answer.call.rpartition(".")[2]
    is_in_group = bool(answer.groups) and not any(group.pending for group in answer.groups)
    is_transfer = name == "wait" and waits == ev.LOCK and is_in_group and not place.call
    is_store_call = name in ("", *_STORE_CALLS) and waits in (ev.SOCKET, ev.SOCKET_OR_PIPE)
    is_at_store = answer.is_at_store and is_store_call and not place.waits_for
    return answer.call, is_transfer, is_at_store


def clock_name(overdue: RunningClock) -> str:
    """``section 'step'``, or the clock."""
    return overdue.clock if overdue.name is None else f"section '{overdue.name}'"
