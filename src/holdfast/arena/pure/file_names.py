"""Names and lists of the files of snapshots, in a folder that outlives the job. Pure.

::

    step-120-of-4-5f0c96aa61b2/    a snapshot; the last word names the cycle of the job that took it
        rank-0.safetensors ...     the states of the ranks
        ranks-0.json               the list of files of one node, which begins with this rank: a
                                   file counts only where a list has it, with its size and sum
        begun, rescued, given-up   see :class:`Mark`
        tried-83d1c07a9f4e ...     a job has begun from it, ended, and got no further

Names have no unit or clock of one host in them, so all nodes of a job give a snapshot one name.
"""

from __future__ import annotations

import enum
import hashlib
import re
from typing import NamedTuple

from holdfast.base.pure.codec import Count, Raw, family
from holdfast.base.pure.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NAME = re.compile(r"step-(\d{1,18})-of-(\d{1,9})-([0-9a-f]{12})")
_LIST = re.compile(r"ranks-\d{1,9}\.json")
TRIES = 2
"""So many jobs may begin from a snapshot and get no further."""


class Mark(enum.Enum):
    """An empty file, or one with a text for people, in the folder of a snapshot."""

    BEGUN = "begun"
    """A job has begun from it, and has not said yet how it ended: its checkpoints may be newer."""
    RESCUED = "rescued"
    """Its job was going on when it was written (``holdfast rescue``), and may save checkpoints."""
    GIVEN_UP = "given-up"
    """It cannot be used, or has led nowhere."""


class NamedSnapshot(NamedTuple):
    """The words of a name.

    Attributes:
        step: Number of steps done.
        world_size: Of the ranks that took it.
        life: See :func:`life_name`.
    """

    step: int
    world_size: int
    life: str

    def __str__(self) -> str:
        return f"step-{self.step}-of-{self.world_size}-{self.life}"


def parsed(name: str) -> NamedSnapshot | None:
    """None: it is the name of something else."""
    found = _NAME.fullmatch(name)
    return NamedSnapshot(int(found[1]), int(found[2]), found[3]) if found else None


def life_name(leader: str, term: int, cycle: int) -> str:
    """Of a cycle, among those of all jobs: no two launchers have one name."""
    return hashlib.sha256(f"{leader} {term} {cycle}".encode()).hexdigest()[:12]


def rank_file(rank: int) -> str:
    """The state of a rank."""
    return f"rank-{rank}.safetensors"


def list_file(first_rank: int) -> str:
    """The list of a node."""
    return f"ranks-{first_rank}.json"


def is_list(name: str) -> bool:
    """Whether a file is the list of a node."""
    return _LIST.fullmatch(name) is not None


def tried_file(life: str) -> str:
    """The mark of a job that has begun from a snapshot, and got no further."""
    return f"{_TRIED}{life}"


_TRIED = "tried-"


class RankFile(Value):
    """A file of one rank.

    Attributes:
        n_bytes: Its size.
        total: The sum of its bytes, as :mod:`holdfast.arena.sums` adds them; None: the rank was
            gone before it had added them.
        crc32: Then it has this, as zlib has it.
    """

    rank: Count
    n_bytes: Count
    total: int | None = None
    crc32: Count | None = None


class FileList(Value):
    """The files of a snapshot that one node has written."""

    step: Count
    world_size: Count
    files: tuple[RankFile, ...]


LISTS: Mapping[str, type[FileList]] = family(FileList)


class NodeSnapshotNames(Value):
    """The ranks of a node whose launcher runs, and names of its cycles.

    Attributes:
        first_rank, n_ranks: Of the node, in the present cycle.
        world_size: Of that cycle.
        lives: By cycle: see :func:`life_name`.
    """

    first_rank: Count
    n_ranks: Count
    world_size: Count
    lives: dict[str, Raw]

    @property
    def life(self) -> str:
        """The name of the newest cycle: equal for the nodes that are in it; empty: none."""
        newest = max(filter(str.isdecimal, self.lives), key=int, default="")
        return self.lives.get(newest, "")


NAMES: Mapping[str, type[NodeSnapshotNames]] = family(NodeSnapshotNames)


def why_unused(names: Iterable[str]) -> str:
    """Why no job begins from the snapshot whose folder has these files; empty: one may.

    A job that was killed may have saved checkpoints that are newer, and days of work:
    invariant T-5.
    """
    names = {*names}
    if Mark.GIVEN_UP.value in names:
        return "it was given up"
    if Mark.BEGUN.value in names:
        return (
            "a job has begun from it, and still runs or was killed: checkpoints of that job may be "
            f"newer. To use it nevertheless, remove its file {Mark.BEGUN.value!r}"
        )
    if Mark.RESCUED.value in names:
        return (
            "it was rescued from a job that continued: checkpoints of that job may be newer. To "
            f"use it nevertheless, remove its file {Mark.RESCUED.value!r}"
        )
    if sum(name.startswith(_TRIED) for name in names) >= TRIES:
        return f"{TRIES} jobs have begun from it and got no further"
    return ""
