"""What the ranks of a job noted, and the rules that their lives must keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple


class Noted(NamedTuple):
    """One line of a rank; ``at`` in seconds on the machine's monotonic clock."""

    at: float
    what: str
    cycle: int
    rank: int
    pid: int
    step: int


class Life(NamedTuple):
    """One process of a rank: from its first note to its last one."""

    host: int
    cycle: int
    rank: int
    pid: int
    first_at: float
    last_at: float
    begins: int
    """The step that it went on from; -1: it did not come that far."""
    step_at: float
    """When its first step was done; infinity: it made none."""
    step: int
    """The last one."""


class Awake(NamedTuple):
    """A host that slept, in the moments in which it may run ranks beside their successors."""

    host: int
    since: float
    until: float


def noted(path: Path) -> list[Noted]:
    """All lines of one launcher's ranks that are whole."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        words = line.split()
        if len(words) == 6:
            at, what, *numbers = words
            found.append(Noted(float(at), what, *map(int, numbers)))
    return found


def lives(host: int, lines: Iterable[Noted]) -> list[Life]:
    """By process, in order of their beginnings."""
    found: dict[int, Life] = {}
    for it in lines:
        life = found.get(it.pid)
        if life is None:
            life = Life(host, it.cycle, it.rank, it.pid, it.at, it.at, -1, float("inf"), it.step)
        life = life._replace(last_at=it.at, step=it.step)
        if it.what == "begins":
            life = life._replace(begins=it.step)
        if it.what == "step":
            life = life._replace(step_at=min(life.step_at, it.at))
        found[it.pid] = life
    return list(found.values())


def beside_s(all_lives: Iterable[Life], slept: Mapping[int, float]) -> dict[int, float]:
    """By host, for how long at most a rank of it worked beside one of a later cycle.

    ``slept``: until when the processes of a host could do nothing.
    """
    known = list(all_lives)
    found: dict[int, float] = {}
    for one in known:
        for other in known:
            if one.cycle < other.cycle and one.last_at > other.first_at:
                since = max(other.first_at, slept.get(one.host, other.first_at))
                found[one.host] = max(found.get(one.host, 0.0), one.last_at - since)
    return found


def _in_time(several: Iterable[Life]) -> list[Life]:
    return sorted(several, key=lambda life: life.first_at)


def broken_rules(
    all_lives: Iterable[Life], lines: Iterable[Noted], awake: Iterable[Awake] = ()
) -> list[str]:
    """One owner of each rank of a cycle at a time, and a checkpoint that never goes back.

    A cycle that only launchers without a majority knew may have its number again. A host that slept
    may write a checkpoint over a newer one when it wakes, from which the next cycle then begins.
    """
    found = []
    owners: dict[tuple[int, int], list[Life]] = {}
    hosts = {}
    for life in all_lives:
        hosts[life.pid] = life.host
        owners.setdefault((life.cycle, life.rank), []).append(life)
    found += [
        f"rank {rank} of cycle {cycle} had {len(several)} owners: hosts "
        f"{', '.join(str(life.host) for life in several)}"
        for (cycle, rank), several in owners.items()
        if any(one.last_at > other.first_at for one, other in pairwise(_in_time(several)))
    ]
    moments = list(awake)
    step = cycle = -1
    for it in sorted(it for it in lines if it.what in ("checkpoint", "begins")):
        if it.what == "begins" and it.step < step:
            found.append(f"cycle {it.cycle} began at step {it.step} after checkpoint {step}")
        if it.what == "checkpoint":
            host = hosts.get(it.pid)
            is_of_the_past = it.cycle < cycle and any(
                host == one.host and one.since <= it.at <= one.until for one in moments
            )
            if not is_of_the_past and (it.cycle < cycle or it.step <= step):
                found.append(
                    f"cycle {it.cycle} wrote step {it.step} after cycle {cycle} had written {step}"
                )
            step, cycle = it.step, max(it.cycle, cycle)
    return found
