"""Read incidents from the folder of a run. Pure but for reading; a file may hold anything.

    incidents/<NNNN...>/incident.json   one per incident of the job; stacks of ranks beside it
    incidents/cycle<N>_rank<R>.json     one per hung rank; of earlier versions

Both are shown as one :class:`Incident`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.failure import Hang
from holdfast.observe.rank_spans import number

_STACK_BYTES_MAX = 64 << 10
_TEXTS_MAX = 64
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.*)$')


@dataclass
class Group:
    """Ranks with equal stacks."""

    ranks: list[int]
    text: str


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
        ranks: What is known of each rank, as the file has it.
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
    ranks: Mapping[str, Any] = field(default_factory=dict)


def read_incidents(folders: Iterable[tuple[str, Path]]) -> list[Incident]:
    """All incidents of these folders, in order of time; files that are none are passed over.

    Args:
        folders: Name of each node, and its run folder.
    """
    new: dict[tuple[str, int], Incident] = {}
    old: list[Incident] = []
    for node, folder in folders:
        for path in sorted(folder.glob("incidents/*/incident.json")):
            if (data := _read(path)) is not None and (found := _of_job(path, node, data)):
                # Every node writes it; the one that knows of most ranks is shown.
                key = path.parent.name, found.cycle
                if key not in new or len(found.ranks) > len(new[key].ranks):
                    new[key] = found
        for path in sorted(folder.glob("incidents/*.json")):
            if (data := _read(path)) is not None and (one := _of_rank(path, node, data)):
                old += [one]
    found_all = [*new.values(), *_merged(old)]
    return sorted(found_all, key=lambda one: (one.cycle, one.wall or 0.0))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _of_job(path: Path, node: str, data: Mapping[str, Any]) -> Incident | None:
    ranks = data.get("ranks")
    listed = ranks if isinstance(ranks, list) else []
    by_rank = (
        ranks
        if isinstance(ranks, dict)
        else {
            str(each.get("rank", i)): each
            for i, each in enumerate(listed)
            if isinstance(each, dict)
        }
    )
    texts = {
        rank: text
        for stacks in sorted(path.parent.glob("*.txt"))[:_TEXTS_MAX]
        if stacks.name != "incident.txt" and (rank := _number_in(stacks.stem)) is not None
        if (text := _text(stacks))
    }
    return Incident(
        path,
        str(data.get("node") or node),
        int(number(data.get("cycle")) or 0),
        number(data.get("wall")),
        _whole_numbers(data.get("culprits")),
        str(data.get("kind") or "unknown"),
        str(data.get("confidence") or ""),
        str(data.get("reason") or ""),
        _groups(data.get("groups"), texts),
        _words(data.get("actions") or data.get("done")),
        by_rank,
    )


def _of_rank(path: Path, node: str, data: Mapping[str, Any]) -> Incident | None:
    rank, age_s, limit_s = (number(data.get(key)) for key in ("rank", "age_s", "limit_s"))
    if rank is None or age_s is None or limit_s is None:
        return None
    stacks = str(data.get("stacks_text") or "")[:_STACK_BYTES_MAX]
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
        [Group([int(rank)], stacks)],
        _words(data.get("actions")),
        {str(int(rank)): {key: data.get(key) for key in data if key != "stacks_text"}},
    )


def _merged(alone: Sequence[Incident]) -> list[Incident]:
    """Ranks that hung in one cycle are one incident; who of them keeps the others is not known."""
    merged: dict[int, Incident] = {}
    for one in alone:
        if (into := merged.setdefault(one.cycle, one)) is one:
            continue
        into.reason += f"; {one.reason}"
        into.ranks = {**into.ranks, **one.ranks}
        into.actions += [action for action in one.actions if action not in into.actions]
        for group in one.groups:
            key = stack_key(group.text)
            same = next((g for g in into.groups if stack_key(g.text) == key), None)
            if same is None:
                into.groups.append(group)
            else:
                same.ranks = sorted({*same.ranks, *group.ranks})
    for one in merged.values():
        one.groups.sort(key=lambda group: len(group.ranks))
    return list(merged.values())


def _groups(data: Any, texts: Mapping[int, str]) -> list[Group]:
    groups = []
    for each in data if isinstance(data, list) else []:
        if isinstance(each, list):
            each = {"ranks": each}  # noqa: PLW2901
        if not isinstance(each, dict) or not (ranks := _whole_numbers(each.get("ranks"))):
            continue
        said = next((str(each[k]) for k in ("stack", "text", "line", "stacks") if each.get(k)), "")
        text = next((texts[rank] for rank in ranks if rank in texts), "")
        groups.append(Group(ranks, text or said))
    return groups


def stack_key(text: str) -> tuple[tuple[str, str, str], ...]:
    """Equal for equal stacks: frames without thread numbers."""
    frames = [match for match in map(_FRAME.match, text.splitlines()) if match]
    return tuple((frame["file"], frame["line"], frame["name"]) for frame in frames)


def top_frame(text: str) -> str:
    """``step train.py:41``: where the main thread is, which faulthandler writes last."""
    thread = text.rsplit("\n\n", 1)[-1] if "\n\n" in text else text
    blocks = re.split(r"(?m)^(?:Current thread|Thread) ", thread)
    for line in (blocks[-1] if blocks else thread).splitlines():
        if match := _FRAME.match(line):
            return f"{match['name']} {Path(match['file']).name}:{match['line']}"
    return text.strip().splitlines()[0] if text.strip() else ""


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_STACK_BYTES_MAX).decode(errors="replace")
    except OSError:
        return ""


def _number_in(stem: str) -> int | None:
    found = re.findall(r"\d+", stem)
    return int(found[-1]) if found else None


def _whole_numbers(data: Any) -> list[int]:
    is_list = isinstance(data, list)
    return [each for each in data if isinstance(each, int)] if is_list else []


def _words(data: Any) -> list[str]:
    if isinstance(data, str):
        return [data]
    return [str(each) for each in data] if isinstance(data, list) else []
