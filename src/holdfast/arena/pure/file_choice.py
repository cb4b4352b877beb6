"""Decide which snapshot on disk a job begins from, which are written, and which removed. Pure.

A snapshot on disk counts where the files of all its ranks are whole. Nodes share a folder, or each
has its own: so a rank's file must be in the folder of the node that will have that rank. One of
another number of ranks counts where every node has all of its files, for each rank needs parts of
several; and only where there is none of this number.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.base.pure.rank_sets import named, ranks_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from holdfast.arena.pure.snapshots import Held, OnDisk, SnapshotId


class ChosenFile(NamedTuple):
    """The snapshot on disk that all ranks begin from.

    Attributes:
        file: None: there is none.
        why: Why it is no newer one, for people; empty: it is the newest.
    """

    file: OnDisk | None
    why: str


def choose_file(
    on_disk: Mapping[str, Iterable[OnDisk]],
    places: Mapping[str, range],
    given_up: Collection[str] = (),
) -> ChosenFile:
    """Choose the newest that is whole for the ranks of ``places``, which is by node.

    If there is none of so many ranks: the newest of another number that each node has whole.
    """
    ranks_with: dict[str, set[int]] = {}
    facts: dict[str, OnDisk] = {}
    nodes_with: dict[str, set[str]] = {}
    for node, found in on_disk.items():
        wanted = places.get(node, range(0))
        for it in whole(found):
            nodes_with.setdefault(it.name, set()).add(node)
        for it in found:
            if it.name not in given_up:
                facts[it.name] = it
                ranks_with.setdefault(it.name, set()).update(
                    rank for rank in ranks_of(it.ranks) if rank in wanted
                )
    world_size = sum(len(ranks) for ranks in places.values())
    in_order = sorted(facts.values(), key=newest_first)
    of_this_size = (
        it
        for it in in_order
        if it.world_size == world_size and len(ranks_with[it.name]) == world_size
    )
    of_another = (
        it
        for it in in_order
        if it.world_size != world_size and nodes_with.get(it.name, set()) >= places.keys()
    )
    chosen = next(of_this_size, None) or next(of_another, None)
    newest = next(iter(in_order), None)
    if newest is None or newest == chosen:
        return ChosenFile(chosen, "")
    if newest.world_size != world_size:
        lacks = f"is of {newest.world_size} ranks, and there are {world_size}"
        if chosen is None:
            lacks += ", and not each node has all of its files"
    else:
        missing = {*range(world_size)} - ranks_with[newest.name]
        lacks = f"is not there for {named(sorted(missing))}"
    return ChosenFile(chosen, f"step {newest.step} on disk {lacks}")


def newest_first(it: OnDisk) -> tuple[int, str]:
    """The key to sort by; a later step is newer, and equal ones are put in the same order."""
    return -it.step, it.name


def to_write(
    held: Collection[Held],
    ranks: range,
    world_size: int,
    without: Collection[SnapshotId] = (),
) -> list[SnapshotId]:
    """The snapshots that a node writes when the job ends, in this order.

    One node that has all ranks writes the newest. One of several does not know the snapshots of
    the others, and some may be a step behind: it writes each that its own ranks have.

    Args:
        held: In the memory of this node.
        ranks: Of this node.
        world_size: Of the job.
        without: Snapshots that a rank could not use.
    """
    ranks_with: dict[SnapshotId, set[int]] = {}
    for it in held:
        if it.rank in ranks and it.world_size == world_size and it.id not in without:
            ranks_with.setdefault(it.id, set()).add(it.rank)
    found = sorted((it for it, its in ranks_with.items() if its >= {*ranks}), reverse=True)
    return found[:1] if len(ranks) == world_size else found


def whole(found: Iterable[OnDisk]) -> list[OnDisk]:
    """Those of which this folder has the files of all ranks; the newest first."""
    # Counted: a name may speak of any number of ranks, and files are of ranks below it.
    full = (it for it in found if len({*ranks_of(it.ranks)}) == it.world_size)
    return sorted(full, key=newest_first)


def to_remove(
    found: Iterable[OnDisk],
    written: Collection[str],
    known: Collection[str],
    useless: Collection[str],
) -> set[str]:
    """Snapshots that are removed once this node has written its part.

    Where none that was written is whole here, the other nodes have folders of their own, or still
    write: then only useless ones. Never one of a job that is not known.

    Args:
        found: In the folder now.
        written: Names of those that this node has written.
        known: Names of those that were there when the job began.
        useless: Of these, those that no job begins from any more.
    """
    newest = next((it.name for it in whole(found) if it.name in written), None)
    if newest is None:
        return {*useless} - {*written}
    return {*written, *known} - {newest}
