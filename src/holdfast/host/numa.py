"""NUMA nodes of this host, and torch's idea of which CPUs are near which GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

_ONLINE = "/sys/devices/system/node/online"
_BOOT = (
    "import sys; sys.path = [folder for folder in sys.path if folder]; "  # not the job's folder
    "from holdfast.torch_edge.numa_commands import main; main()"
)
_LIMIT_S = 120.0
"""Importing torch from a slow file system and starting CUDA may take that long."""
_TRIAL_LIMIT_S = 30.0
_NOTHING = (sys.executable, "-I", "-S", "-c", "")
"""A program that is there, and does nothing."""


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
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode == 0:
            prefixes: list[list[str]] = json.loads(done.stdout)
            return prefixes
    except subprocess.TimeoutExpired:
        raise NoBindingError(f"no answer within {_LIMIT_S:g} s") from None
    except (OSError, ValueError) as error:
        raise NoBindingError(f"{type(error).__name__}: {error}") from None
    raise NoBindingError(_last_line(done.stderr, done.returncode))


def why_not_bound(prefix: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """What a program says that cannot be started with ``prefix`` before it; None: it can.

    A container may be kept from the nodes that it sees, or from binding memory at all. 10 ms.
    """
    import subprocess  # noqa: PLC0415 - seldom used

    try:
        done = subprocess.run(
            [*prefix, *_NOTHING],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_TRIAL_LIMIT_S,
            check=False,
        )
    except OSError as error:
        return str(error.strerror)
    except subprocess.TimeoutExpired:
        return f"it does not end within {_TRIAL_LIMIT_S:g} s"
    return None if done.returncode == 0 else _last_line(done.stderr, done.returncode)


def _last_line(stderr: bytes, exit_code: int) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else f"exit code {exit_code}"
