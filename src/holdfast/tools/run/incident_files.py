"""Read incidents from the folders of a run; a file may hold anything.

::

    incidents/<NNNN>-cycle<N>/incident.json   one per incident of the job, on each node
    incidents/<NNNN>-cycle<N>/rank<R>.json    evidence of that node's monitors: stacks
    incidents/cycle<N>_rank<R>.json           one per hung rank, with --ft-evidence-timeout 0
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from holdfast.base.pure.codec import MessageError, Raw, decode_fields, well_formed
from holdfast.base.pure.value import Value
from holdfast.events.pure import schema
from holdfast.events.run.run_words import restart_words, signal_words
from holdfast.evidence.pure import stacks
from holdfast.evidence.pure.evidence import folder_name, overdue_text
from holdfast.watch.pure.monitor_messages import Signalled

_STACK_CHARS_MAX = 64 << 10
_T = TypeVar("_T")


class Group(Value):
    """Ranks that show the same.

    Attributes:
        text: For people; completes "rank 5".
        stack: Of one of them; empty where no monitor's file has it.
    """

    ranks: tuple[int, ...]
    text: Raw = ""
    stack: str = ""


class _Facts(Value):
    """The facts of an incident, by the names that they have in its file (docs/incidents.md).

    Attributes:
        cycle: In which.
        wall: When, seconds since 1970; None: not known.
        culprits: Global ranks; empty: none can be named.
        groups: Ranks that show the same.
        next_cycle: The cycle that was started after it; None: none was.
        next: Advice; empty: there is none.
        stall: Ranks made no optimizer steps and none was ended, so it is no hang.
    """

    node: Raw = ""
    cycle: int = 0
    wall: float | None = None
    culprits: tuple[int, ...] = ()
    kind: Raw = "unknown"
    confidence: Raw = ""
    reason: Raw = ""
    groups: tuple[Group, ...] = ()
    signals: tuple[Signalled, ...] = ()
    next_cycle: int | None = None
    next: Raw = ""
    stall: bool = False


class _OfJob(_Facts):
    """An ``incident.json``.

    Files of version 0.1 have ``left_alone`` for ``stall``; those up to 0.6 have no ``signals`` and
    no ``next_cycle``, so that ``done`` is shown as it is.
    """

    done: tuple[Raw, ...] = ()
    left_alone: bool = False
    ranks: dict[str, object] = {}  # noqa: RUF012 - a default of a frozen record


class _OfRank(Value):
    rank: int
    age_s: float
    limit_s: float
    clock: Raw = ""
    name: Raw | None = None
    node: Raw = ""
    cycle: int = 0
    wall: float | None = None
    why_not: Raw | None = None
    actions: tuple[Raw, ...] = ()
    stacks_text: object = ""


class Incident(_Facts):
    """One incident; its smallest group comes first.

    Attributes:
        path: Its file.
        texts: Lines of a file without these facts.
        n_ranks: Ranks of which the file has a digest.
        at: When, on the axis of its run; None: not known.
    """

    path: Path = Path()
    texts: tuple[str, ...] = ()
    n_ranks: int = 0
    at: float | None = None

    @property
    def name(self) -> str:
        """Of its folder: the same on all nodes."""
        return self.path.parent.name

    @property
    def done(self) -> list[str]:
        """A line for each signal and for the restart, in words."""
        lines = [signal_words(each.signal, [each.rank], each.why) for each in self.signals]
        return [*lines, *restart_words(self.next_cycle)] or [*self.texts]


def read_incidents(folders: Iterable[tuple[str, Path]]) -> list[Incident]:
    """All incidents of these folders, in order; files that are none are passed over.

    Args:
        folders: Name of each node, and its run folder.
    """
    of_job: dict[str, list[Incident]] = {}
    of_monitors: dict[str, dict[str, Path]] = {}
    of_ranks: list[Incident] = []
    for node, folder in folders:
        for path in sorted(folder.glob("incidents/*/incident.json")):
            if (found := of_file(path, node)) is not None:
                of_job.setdefault(found.name, []).append(found)
        for path in sorted(folder.glob("incidents/*/rank*.json")):
            of_monitors.setdefault(path.parent.name, {})[path.stem] = path
        for path in sorted(folder.glob("incidents/*.json")):
            of_ranks += filter(None, [_of_rank(path, node)])
    merged = [_of_nodes(some, of_monitors.get(name, {})) for name, some in of_job.items()]
    return sorted([*merged, *_of_cycles(of_ranks)], key=lambda one: (one.cycle, one.name))


def _of_nodes(found: Sequence[Incident], of_monitors: dict[str, Path]) -> Incident:
    """One incident from the files of all nodes; each lists the signals to its own ranks."""
    kept: dict[str, Incident] = {}
    for one in found:
        keep(kept, one)
    (known,) = kept.values()
    groups = []
    for group in known.groups:  # one file of each: a job of many ranks has many
        paths = (of_monitors.get(f"rank{rank}") for rank in group.ranks)
        read = (_stack_in(_read(path).get("stacks_text")) for path in paths if path is not None)
        groups.append(Group(group.ranks, group.text, next(filter(None, read), "")))
    return known.but(
        groups=tuple(groups),
        signals=tuple(dict.fromkeys(each for one in found for each in one.signals)),
        next_cycle=next((one.next_cycle for one in found if one.next_cycle is not None), None),
        texts=tuple(dict.fromkeys(text for one in found for text in one.texts)),
    )


def keep(incidents: dict[str, Incident], found: Incident) -> None:
    """By the name of its folder; of the files of all nodes that with the most ranks stays."""
    before = incidents.get(found.name)
    if before is None or found.path == before.path or found.n_ranks > before.n_ranks:
        incidents[found.name] = found


def of_event(event: schema.Event, judged: schema.RanksJudged, folder: Path) -> Incident:
    """The incident of an event, where the launcher could write no file."""
    return Incident(
        path=folder / "incidents" / folder_name(judged.incident, event.cycle) / "incident.json",
        node=event.node,
        cycle=event.cycle,
        wall=event.wall,
        culprits=judged.culprits,
        kind=judged.verdict,
        confidence=judged.confidence,
        reason=judged.reason,
        stall=isinstance(judged, schema.StallFound),
        at=event.t,
    )


def of_file(path: Path, node: str) -> Incident | None:
    """The incident of an ``incident.json``; None: it is not there, or not whole."""
    found = _record(_OfJob, path)
    if found is None:
        return None
    facts: dict[str, Any] = {name: getattr(found, name) for name in _Facts.__match_args__}
    facts["node"] = found.node or node
    facts["groups"] = tuple(sorted(found.groups, key=lambda group: len(group.ranks)))
    facts["stall"] = found.stall or found.left_alone
    return Incident(**facts, path=path, texts=found.done, n_ranks=len(found.ranks))


def _of_rank(path: Path, node: str) -> Incident | None:
    found = _record(_OfRank, path)
    if found is None:
        return None
    stack = _stack_in(found.stacks_text)
    hang = overdue_text(found.clock, found.name, found.age_s, found.limit_s)
    why_not = f"; no stacks: {found.why_not}" if found.why_not else ""
    return Incident(
        path=path,
        node=found.node or node,
        cycle=found.cycle,
        wall=found.wall,
        kind="hang",
        reason=f"rank {found.rank} hung ({hang}){why_not}",
        groups=(Group((found.rank,), place_in(stack), stack),),
        texts=found.actions,
        n_ranks=1,
    )


def _of_cycles(found: Sequence[Incident]) -> list[Incident]:
    """Ranks that hung in one cycle are one incident; ranks with equal stacks are one group."""
    merged: dict[int, Incident] = {}
    for one in found:
        before = merged.get(one.cycle)
        if before is None:
            merged[one.cycle] = one
            continue
        groups = {_code(group.stack): group for group in before.groups}
        (new,) = one.groups
        same = groups.setdefault(_code(new.stack), new)
        ranks = tuple(sorted({*same.ranks, *new.ranks}))
        groups[_code(new.stack)] = Group(ranks, same.text, same.stack)
        merged[one.cycle] = before.but(
            reason=f"{before.reason}; {one.reason}",
            groups=tuple(sorted(groups.values(), key=lambda group: len(group.ranks))),
            texts=tuple(dict.fromkeys((*before.texts, *one.texts))),
            n_ranks=before.n_ranks + 1,
        )
    return list(merged.values())


def _record(kind: type[_T], path: Path) -> _T | None:
    """A field with a default that is of another form counts as missing."""
    data = _read(path)
    try:
        return decode_fields(kind, well_formed(kind, data)) if data else None
    except MessageError:
        return None


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _stack_in(stacks_text: object) -> str:
    return str(stacks_text or "")[:_STACK_CHARS_MAX]


def place_in(stack: str) -> str:
    """``load_batch data.py:88``: where the main thread is; empty: the text does not say."""
    return stacks.place_of(stacks.main_thread(stack)).line


def _code(stack: str) -> str:
    return stacks.hash_of(stacks.main_thread(stack))
