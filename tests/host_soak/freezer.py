"""Freeze all processes of a host at once, and thaw them: a control group, version 2."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_ROOTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
_BECOME = 'echo $$ > "$1" || exit 99; shift; exec "$@"'


def root() -> Path | None:
    """Where version 2 is mounted; None: nowhere."""
    return next((it for it in _ROOTS if (it / "cgroup.controllers").exists()), None)


class Freezer:
    """One host's processes.

    Raises:
        OSError: This machine has no such control groups, or this user may not make one.
    """

    def __init__(self, name: str) -> None:
        above = root()
        if above is None:
            raise FileNotFoundError("no control groups of version 2 are mounted")
        self._group = above / name
        self._group.mkdir()

    def prefix(self) -> Sequence[str]:
        """The command that executes another among them."""
        return ("sh", "-c", _BECOME, "sh", str(self._group / "cgroup.procs"))

    def freeze(self) -> None:
        self._set(1)

    def thaw(self) -> None:
        self._set(0)

    def pids(self) -> list[int]:
        return [int(pid) for pid in (self._group / "cgroup.procs").read_text().split()]

    def close(self) -> None:
        """Thaw; the group goes if it is empty."""
        with suppress(OSError):
            self.thaw()
        with suppress(OSError):
            self._group.rmdir()

    def _set(self, value: int) -> None:
        (self._group / "cgroup.freeze").write_text(f"{value}\n")
