"""Do the file systems that come over the network answer?

Looked at are Lustre's own word on its health, every Lustre and NFS mount of this host, and paths
that the user names. A file system that says no ("permission denied") has answered.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.processes import file_read
from holdfast.base.processes.file_read import FileRead
from holdfast.health.pure.health import Finding, Fitness

PROBE = "storage"
MOUNT_S = 15.0  # with the start of a process, a look takes no longer than PROBES_S
PATH_S = 5.0
MAX_MOUNTS = 64
_KINDS = frozenset({"lustre", "nfs", "nfs4"})
_REFUSED = frozenset({errno.EACCES, errno.EPERM})
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR})


# ---------------------------------------------------------------- touching paths
@dataclass(frozen=True)
class Touch:
    """A path to be touched within ``bound_s``: its status and, of a folder, its first entry.

    ``reads``: read this file instead.
    """

    path: str
    bound_s: float
    reads: bool = False


@dataclass(frozen=True)
class Answer:
    """The outcome of a touch: the text that was read, or why there is none.

    Attributes:
        is_late: It did not come back in time.
        error: ``errno`` of what went wrong; None: no error, or it is not known.
        is_unknown: The path was not touched: no process could be started for it.
    """

    is_late: bool = False
    error: int | None = None
    text: str = ""
    is_unknown: bool = False


class PathLook:
    """Touches paths side by side, each in a process of its own. Not for two threads at once.

    As long as a process that hangs in a dead file system exists, its path is not touched again. So
    hung file systems cost one process per path, and no waiting.
    """

    def __init__(self) -> None:
        self._hung: dict[Touch, int] = {}
        """Processes that did not come back."""

    def touch(self, touches: Iterable[Touch]) -> dict[Touch, Answer]:
        """All of them at once; returns when all have answered or are late."""
        answers: dict[Touch, Answer] = {}
        reads: dict[Touch, FileRead] = {}
        hung = file_read.readers()
        for touch in touches:
            pid = self._hung.get(touch)
            if pid in hung:
                text = f"a look before this one still hangs (process {pid})"
                answers[touch] = Answer(is_late=True, text=text)
            else:
                reads[touch] = FileRead(
                    [touch.path],
                    bound_s=touch.bound_s,
                    touches=not touch.reads,
                    awaits_late=False,  # many may hang at once
                )
        file_read.finish(reads.values())
        self._hung.update({touch: read.pid for touch, read in reads.items() if read.late})
        return answers | {touch: _answer(touch, read) for touch, read in reads.items()}


def _answer(touch: Touch, read: FileRead) -> Answer:
    path = touch.path
    if error := read.errors.get(path):
        return Answer(error=error, text=os.strerror(error))
    if (text := read.found.get(path)) is not None:
        return Answer(text=text.decode(errors="replace"))
    if path in read.late:
        return Answer(is_late=True, text=f"no answer within {touch.bound_s:g} s")
    return Answer(text=read.problem, is_unknown=True)


# ---------------------------------------------------------------- the probe
@dataclass(frozen=True)
class Places:
    """Where to look.

    Attributes:
        paths: Must be reachable.
        mounts: The table of mounts.
        lustre_health: Files with Lustre's word on its health; the first that is there is read.
    """

    paths: tuple[str, ...] = ()
    mounts: str = "/proc/self/mounts"
    lustre_health: tuple[str, ...] = ("/sys/fs/lustre/health_check", "/proc/fs/lustre/health_check")


class Storage:
    """Looks at file systems that come over the network, and at paths that the user names.

    With ``--ft-enable-dist-storage-healthcheck`` Lustre's health file, Lustre and NFS mounts (the
    first 64); and the paths of ``--ft-storage-health-check-path``.

    Unhealthy: Lustre is not ``healthy``; a mount hangs for 15 s, or answers with an error; a path
    is missing, hangs for 5 s, or answers with an error.

    Suspect: never.
    """

    def __init__(self, places: Places, path_look: PathLook | None = None) -> None:
        self._places = places
        self._path_look = path_look or PathLook()

    def look(self) -> list[Finding]:
        """One finding for each thing looked at; none: there is nothing."""
        health = [Touch(path, PATH_S, reads=True) for path in self._lustre_health()]
        mounts, findings = self._mounts()
        paths = [Touch(path, PATH_S) for path in dict.fromkeys(self._places.paths)]
        answers = self._path_look.touch([*health, *mounts, *paths])
        for touch in health:
            findings.append(Finding(PROBE, "Lustre", *_of_health(touch, answers[touch])))
        for touch in mounts:
            findings.append(Finding(PROBE, f"mount {touch.path}", *_of_mount(answers[touch])))
        for touch in paths:
            findings.append(Finding(PROBE, f"path {touch.path}", *_of_path(answers[touch])))
        return findings

    def _lustre_health(self) -> list[str]:
        return [path for path in self._places.lustre_health if Path(path).exists()][:1]

    def _mounts(self) -> tuple[list[Touch], list[Finding]]:
        try:
            table = Path(self._places.mounts).read_text(errors="surrogateescape")
        except OSError as error:
            text = f"which file systems are mounted is not known: {error}"
            return [], [Finding(PROBE, "mounts", Fitness.UNKNOWN, text)]
        points = network_mounts(table.splitlines())
        findings: list[Finding] = []
        if len(points) > MAX_MOUNTS:
            text = f"{len(points)} of Lustre and NFS: only the first {MAX_MOUNTS} are checked"
            findings.append(Finding(PROBE, "mounts", Fitness.UNKNOWN, text))
        return [Touch(point, MOUNT_S) for point in points[:MAX_MOUNTS]], findings


def network_mounts(table: Iterable[str]) -> list[str]:
    """Where Lustre and NFS are mounted, from lines of ``/proc/self/mounts``; each once."""
    points: dict[str, None] = {}
    for line in table:
        fields = line.split(" ")
        if len(fields) > 2 and fields[2] in _KINDS:
            points[_unescaped(fields[1])] = None
    return list(points)


def _unescaped(field: str) -> str:
    r"""A space is ``\040`` in the table."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _of_health(touch: Touch, answer: Answer) -> tuple[Fitness, str]:
    if answer.is_late or answer.is_unknown or answer.error is not None:
        return Fitness.UNKNOWN, f"{touch.path}: {answer.text}"
    said = " ".join(answer.text.split())
    if said == "healthy":
        return Fitness.HEALTHY, ""
    return Fitness.UNHEALTHY, f"{touch.path} says {said!r} instead of 'healthy'"


def _of_mount(answer: Answer) -> tuple[Fitness, str]:
    if answer.error in _GONE:
        return Fitness.UNKNOWN, f"unmounted, or out of reach by its path: {answer.text}"
    if answer.error in _REFUSED:
        return Fitness.HEALTHY, ""
    return _of_either(answer)


def _of_path(answer: Answer) -> tuple[Fitness, str]:
    if answer.error in _REFUSED:
        return Fitness.UNKNOWN, f"{answer.text}: it answers, and this user may not see what"
    return _of_either(answer)


def _of_either(answer: Answer) -> tuple[Fitness, str]:
    if answer.is_unknown:
        return Fitness.UNKNOWN, answer.text
    if answer.is_late:
        return Fitness.UNHEALTHY, f"{answer.text}: its server does not answer"
    if answer.error is not None:
        return Fitness.UNHEALTHY, f"cannot be reached: {answer.text}"
    return Fitness.HEALTHY, ""
