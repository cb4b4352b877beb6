"""What tests look up of processes that may end at any moment: nothing then, never an exception."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.base.processes import proc


def command_line(pid: int) -> bytes:
    """Words with a zero byte behind each; empty where there is no such process, or a zombie."""
    return _read(pid, "cmdline")


def environ(pid: int) -> dict[str, str]:
    """Variables that it was started with; empty where there is no such process, or a zombie."""
    words = _read(pid, "environ").decode(errors="replace").split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def descriptors(pid: int) -> list[str]:
    """What its descriptors lead to."""
    found = []
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                found.append(str(link.readlink()))
    return found


def all_pids() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def is_alive(pid: int) -> bool:
    """There, and not a zombie."""
    found = proc.stat(pid)
    return found is not None and found.state not in "ZX"


def send(pid: int, signum: int = signal.SIGKILL) -> None:
    """A signal to a process, and to that alone: 0 and below are groups, ours among them."""
    assert pid > 0, f"{pid} is not a process"
    os.kill(pid, signum)


@contextmanager
def bystander(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process beside the job, ``sleep`` by itself; it ends with the block, a failed one too."""
    with subprocess.Popen(command or ("sleep", "600")) as process:
        try:
            yield process
        finally:
            process.kill()


def _read(pid: int, name: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
