"""NUMA nodes of this host, and torch's idea of which CPUs are near which GPU."""

from __future__ import annotations

import json
import sys

_ONLINE = "/sys/devices/system/node/online"
_BOOT = "from holdfast.torch_edge.numa_commands import main; main()"
_LIMIT_S = 120.0
"""Importing torch from a slow file system and starting CUDA may take that long."""


class NoBindingError(LookupError):
    """Torch cannot say how to bind ranks; the text says why."""


def nodes(path: str = _ONLINE) -> frozenset[int] | None:
    """NUMA nodes that are online; None: this kernel does not say."""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read().strip()
        found: set[int] = set()
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        return None
    return frozenset(found)


def torchs_prefixes(mode: str, nproc: int) -> list[list[str]]:
    """What torch puts before the command of each local rank for ``--numa-binding MODE``.

    Raises:
        NoBindingError: This torch, CUDA or host does not tell.
    """
    import subprocess  # noqa: PLC0415 - seldom used

    command = [sys.executable, "-c", _BOOT, mode, str(nproc)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=False)
        if done.returncode == 0:
            prefixes: list[list[str]] = json.loads(done.stdout)
            return prefixes
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise NoBindingError(f"{type(error).__name__}: {error}") from None
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    raise NoBindingError(last[0] if last else f"exit code {done.returncode}")
