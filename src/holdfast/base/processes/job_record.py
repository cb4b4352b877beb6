"""A launcher's record of its processes, for monitors that end them when it is dead.

One small file in the runtime directory, rewritten in each cycle. The job's monitors read it when
the launcher is gone, and the next launcher of that user does when the monitors are gone as well.
"""

from __future__ import annotations

import json
import os

from holdfast.base import clock
from holdfast.base.processes import proc
from holdfast.base.pure.ownership import Claim, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Any

    from holdfast.base.pure.ownership import Identity

FILE = "processes.json"
_BYTES_MIN = 4096
"""Written at once, so that a tmpfs which fills later has room for the next cycles."""


class JobRecord:
    """The launcher's side: a claim. Without the file, only markers tell a job's processes."""

    def __init__(self, folder: str, job: str) -> None:
        own, *ancestors = _lineage(os.getpid())
        self.claim = Claim(job, own, _own_origin(), reapers=[own, *ancestors])
        self._path = os.path.join(folder, FILE)
        self._write()

    def ranks_started(self, pids: Sequence[int]) -> None:
        """Ranks of a cycle run; ``pids`` are by local rank, and not reaped yet."""
        found = [proc.identity(pid) for pid in pids]
        self.claim.ranks = {each[0]: (each[1], None) for each in found if each is not None}
        self._write()

    def ranks_ended(self, pids: Collection[int]) -> None:
        """These were reaped."""
        now = ticks_now()
        ranks = self.claim.ranks
        ranks.update({pid: (ranks[pid][0], now) for pid in pids if pid in ranks})
        self._write()

    def _write(self) -> None:
        claim = self.claim
        text = json.dumps(
            {
                "job": claim.job,
                "launcher": claim.launcher,
                "uid": claim.origin.uid,
                "cgroups": claim.origin.cgroups,
                "login": claim.origin.login,
                "reapers": sorted(claim.reapers),
                "ranks": [(pid, *life) for pid, life in claim.ranks.items()],
                "written_at": ticks_now(),
            }
        )
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(fd, f"{text}\n".encode().ljust(_BYTES_MIN), 0)  # the first line counts
            finally:
                os.close(fd)
        except OSError:
            pass


def read_claim(folder: str) -> Claim | None:
    """The record of the launcher of this runtime directory; None: it has written none.

    Its ranks are known to have been alive when that was written.
    """
    try:
        with open(os.path.join(folder, FILE), "rb") as file:
            text = json.loads(file.readline())
        return _claim(text)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def minimal_claim(job: str, launcher: Identity) -> Claim:
    """Where nothing is written down: for a process beside the launcher, of the same origin."""
    return Claim(job, launcher, _own_origin(), reapers=[launcher])


def ticks_now() -> int:
    """The clock tick of now: no process that runs was started in a later one."""
    return int(clock.since_boot() * os.sysconf("SC_CLK_TCK")) + 1


def origin_of(pid: int, marker: str) -> Origin:
    """The origin of a process with a known marker."""
    return Origin(marker, proc.owner(pid), proc.cgroups(pid), proc.login(pid))


def _own_origin() -> Origin:
    pid = os.getpid()
    return Origin("", os.geteuid(), proc.cgroups(pid), proc.login(pid))


def _lineage(pid: int) -> list[Identity]:
    """``pid`` and its ancestors, as far as they can be seen."""
    found: list[Identity] = []
    while (stat := proc.stat(pid)) is not None and (pid, stat.started) not in found:
        found.append((pid, stat.started))
        pid = stat.parent
    return found


def _claim(text: Any) -> Claim:
    cgroups = {str(name): str(path) for name, path in text["cgroups"].items()}
    return Claim(
        str(text["job"]),
        _identity(text["launcher"]),
        Origin("", int(text["uid"]), cgroups, str(text["login"])),
        reapers=[_identity(each) for each in text["reapers"]],
        ranks={int(pid): (int(began), ended) for pid, began, ended in text["ranks"]},
        alive_at=int(text["written_at"]),
    )


def _identity(value: Any) -> Identity:
    pid, started = value
    return int(pid), int(started)
