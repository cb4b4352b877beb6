"""Read incidents from the folders of a run; a file may hold anything.

    incidents/<NNNN>-cycle<N>/incident.json   one per incident of the job, on each node
    incidents/<NNNN>-cycle<N>/rank<R>.json    what that node's monitors saw: stacks
    incidents/cycle<N>_rank<R>.json           one per hung rank; of earlier versions

All are shown as :class:`Incident`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.events.pure import schema
from holdfast.evidence.pure import stacks
from holdfast.evidence.pure.failure import Hang
from holdfast.evidence.pure.incident_files import folder_name

_STACK_CHARS_MAX = 64 << 10


@dataclass
class Group:
    """Ranks with equal stacks.

    Attributes:
        ranks: Global.
        doing: Where they are, in a line.
        stack: Of one of them; empty where no monitor's file has it.
    """

    ranks: list[int]
    doing: str
    stack: str = ""


@dataclass
class Incident:
    """What is known of one incident.

    Attributes:
        path: Its JSON file.
        node: Of the launcher that has written it.
        cycle: In which it was.
        wall: When, seconds since 1970; None: not said.
        culprits: Global ranks; none where nobody can be named.
        kind: Of the culprit's trouble.
        confidence: As the verdict has it.
        reason: In a sentence.
        groups: Ranks by equal stacks, the smallest group first.
        actions: What was done, in words.
        advice: What to do next; empty: nothing is known.
        ranks: What is known of each rank, as the file has it.
        at: When, on the axis of its run; None: not known.
        is_stall: Ranks only made no optimizer steps, and none was ended: it is no hang.
    """

    path: Path
    node: str
    cycle: int
    wall: float | None
    culprits: list[int]
    kind: str
    confidence: str
    reason: str
    groups: list[Group] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    advice: str = ""
    ranks: Mapping[str, Any] = field(default_factory=dict)
    at: float | None = None
    is_stall: bool = False

    @property
    def name(self) -> str:
        """Of its folder: the same on all nodes."""
        return self.path.parent.name


def read_incidents(folders: Iterable[tuple[str, Path]]) -> list[Incident]:
    """All incidents of these folders, in order; files that are none are passed over.

    Args:
        folders: Name of each node, and its run folder.
    """
    of_job: dict[str, Incident] = {}
    actions: dict[str, dict[str, None]] = {}
    of_monitors: dict[str, dict[str, Path]] = {}
    of_ranks: list[Incident] = []
    for node, folder in folders:
        for path in sorted(folder.glob("incidents/*/incident.json")):
            if (found := of_file(path, node)) is not None:
                keep(of_job, found)
                actions.setdefault(found.name, {}).update(dict.fromkeys(found.actions))
        for path in sorted(folder.glob("incidents/*/rank*.json")):
            of_monitors.setdefault(path.parent.name, {})[path.stem] = path
        for path in sorted(folder.glob("incidents/*.json")):
            if (data := _read(path)) is not None and (one := _of_rank(path, node, data)):
                of_ranks += [one]
    for name, found in of_job.items():
        # Each node writes what was done to its ranks; then the next cycle began.
        found.actions = sorted(actions[name], key=lambda action: " to rank " not in action)
        known = of_monitors.get(name, {})
        for group in found.groups:  # one file of each: a job of many ranks has many
            paths = (known.get(f"rank{rank}") for rank in group.ranks)
            read = (_read(path) for path in paths if path is not None)
            group.stack = next((_stack_in(data) for data in read if data is not None), "")
    found_all = [*of_job.values(), *_merged(of_ranks)]
    return sorted(found_all, key=lambda one: (one.cycle, one.name))


def keep(incidents: dict[str, Incident], found: Incident) -> None:
    """By the name of its folder; every node writes one: that which knows of most ranks stays."""
    before = incidents.get(found.name)
    if before is None or found.path == before.path or len(found.ranks) > len(before.ranks):
        incidents[found.name] = found


def of_event(event: schema.Event, judged: schema.RanksJudged, folder: Path) -> Incident:
    """What the events of a launcher say of an incident, where it could write no file."""
    return Incident(
        folder / "incidents" / folder_name(judged.incident, event.cycle) / "incident.json",
        event.node,
        event.cycle,
        event.wall,
        [*judged.culprits],
        judged.verdict,
        judged.confidence,
        judged.reason,
        is_stall=isinstance(judged, schema.StallFound),
    )


def number(value: Any) -> float | None:
    """A finite number, else None."""
    is_one = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_one and abs(value) < float("inf") else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def of_file(path: Path, node: str) -> Incident | None:
    """What an ``incident.json`` says; None: it is not there, or not whole."""
    data = _read(path)
    return None if data is None else _of_job(path, node, data)


def _of_job(path: Path, node: str, data: Mapping[str, Any]) -> Incident:
    ranks = data.get("ranks")
    return Incident(
        path,
        str(data.get("node") or node),
        int(number(data.get("cycle")) or 0),
        number(data.get("wall")),
        _whole_numbers(data.get("culprits")),
        str(data.get("kind") or "unknown"),
        str(data.get("confidence") or ""),
        str(data.get("reason") or ""),
        _groups(data.get("groups")),
        _words(data.get("done")),
        str(data.get("next") or ""),
        ranks if isinstance(ranks, dict) else {},
        is_stall=data.get("stall") is True or data.get("left_alone") is True,  # of version 0.1
    )


def _of_rank(path: Path, node: str, data: Mapping[str, Any]) -> Incident | None:
    rank, age_s, limit_s = (number(data.get(key)) for key in ("rank", "age_s", "limit_s"))
    if rank is None or age_s is None or limit_s is None:
        return None
    stack = _stack_in(data)
    name = data.get("name")
    hang = Hang(str(data.get("clock")), None if name is None else str(name), age_s, limit_s)
    why_not = f"; no stacks: {data['why_not']}" if data.get("why_not") else ""
    return Incident(
        path,
        str(data.get("node") or node),
        int(number(data.get("cycle")) or 0),
        number(data.get("wall")),
        [],
        "hang",
        "",
        f"rank {int(rank)} hung ({hang}){why_not}",
        [Group([int(rank)], place_in(stack), stack)],
        _words(data.get("actions")),
        ranks={str(int(rank)): {key: data.get(key) for key in data if key != "stacks_text"}},
    )


def _merged(alone: Sequence[Incident]) -> list[Incident]:
    """Ranks that hung in one cycle are one incident; none says which keeps the others."""
    merged: dict[int, Incident] = {}
    for one in alone:
        if (into := merged.setdefault(one.cycle, one)) is one:
            continue
        into.reason += f"; {one.reason}"
        into.ranks = {**into.ranks, **one.ranks}
        into.actions += [action for action in one.actions if action not in into.actions]
        for group in one.groups:
            code = _code(group.stack)
            same = next((g for g in into.groups if _code(g.stack) == code), None)
            if same is None:
                into.groups.append(group)
            else:
                same.ranks = sorted({*same.ranks, *group.ranks})
    for one in merged.values():
        one.groups.sort(key=lambda group: len(group.ranks))
    return list(merged.values())


def _groups(data: Any) -> list[Group]:
    groups = [
        Group(ranks, str(each.get("text") or ""))
        for each in (data if isinstance(data, list) else [])
        if isinstance(each, dict) and (ranks := _whole_numbers(each.get("ranks")))
    ]
    return sorted(groups, key=lambda group: len(group.ranks))


def _stack_in(data: Mapping[str, Any]) -> str:
    return str(data.get("stacks_text") or "")[:_STACK_CHARS_MAX]


def place_in(stack: str) -> str:
    """``load_batch data.py:88``: where the main thread is; empty: the text does not say."""
    return stacks.place_of(stacks.main_thread(stack)).line


def _code(stack: str) -> str:
    return stacks.hash_of(stacks.main_thread(stack))


def _whole_numbers(data: Any) -> list[int]:
    is_list = isinstance(data, list)
    return [each for each in data if isinstance(each, int)] if is_list else []


def _words(data: Any) -> list[str]:
    return [str(each) for each in data] if isinstance(data, list) else []
