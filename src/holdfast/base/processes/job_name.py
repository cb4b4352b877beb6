"""The name of a *job*: one run of one launcher.

    <pid>-<start ticks>-<pid namespace>-<time namespace>-<boot>-<random>

It names the runtime folder and marks the environment of every process of its ranks, and says by
itself whether its launcher is alive: to a process of the same boot and namespaces, where pids and
ticks mean the same. All other processes can't know, and must leave the job alone.
"""

from __future__ import annotations

import os

from holdfast.base.processes import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.base.pure.ownership import Identity

PREFIX = "holdfast_"
"""Of the names of runtime folders."""
_FIELDS = 6
_BOOT_DIGITS = 8
_NO_BOOT = "0"


def new_job() -> str:
    """A name for the job of this process. Short: paths of sockets hold 107 bytes."""
    pid = os.getpid()
    return f"{pid}-{proc.start_ticks(pid)}-{'-'.join(_place())}-{os.urandom(3).hex()}"


def node_id(host: str, job: str) -> str:
    """The name of a launcher among those of its job."""
    return f"{host}-{job}"


def host_of(node: str) -> str:
    """The host in such a name, for people; a name of another form as it is."""
    fields = node.rsplit("-", _FIELDS)
    return fields[0] if len(fields) > _FIELDS else node


def launcher_of(job: str) -> Identity | None:
    """Pid and start of its launcher; None: it ran elsewhere, or that can't be known."""
    fields = job.split("-")
    # The cheap test first: hundreds of folders of runs may begin with this prefix as well.
    if len(fields) != _FIELDS or not (fields[0].isdecimal() and fields[1].isdecimal()):
        return None
    place = _place()
    if fields[2:5] != place or place[-1] == _NO_BOOT:
        return None
    return int(fields[0]), int(fields[1])


def clock_of(job: str) -> str | None:
    """Equal for launchers that share their monotonic clock; None: not known."""
    fields = job.split("-")
    return None if len(fields) != _FIELDS or fields[4] == _NO_BOOT else "-".join(fields[3:5])


def is_living(job: str) -> bool | None:
    """Whether its launcher is alive; None: it ran elsewhere, or that can't be known."""
    launcher = launcher_of(job)
    return None if launcher is None else proc.is_alive(launcher)


def living_launchers(folder: str) -> list[Identity]:
    """Launchers whose runtime folders lie in ``folder``, and that are alive."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = [launcher_of(name[len(PREFIX) :]) for name in names if name.startswith(PREFIX)]
    return [each for each in found if each is not None and proc.is_alive(each)]


def _place() -> list[str]:
    namespaces = [f"{proc.namespace(kind):x}" for kind in ("pid", "time")]
    return [*namespaces, proc.boot_id()[:_BOOT_DIGITS] or _NO_BOOT]
