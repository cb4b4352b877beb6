"""Run a part of a test in namespaces of its own, where what is killed by mistake is nobody's."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import pytest

UNSHARE = ("unshare", "--fork", "--pid", "--mount-proc", "--mount")
_INIT = 'mount -t tmpfs tmpfs /dev/shm || exit 99; "$@"; exit $?'


@functools.cache
def why_not() -> str | None:
    """Why this host has no namespaces for us; None: it has."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", _INIT, "sh", "true"], capture_output=True, text=True, check=False
    )
    return done.stderr.strip() or "unshare failed" if done.returncode else None


def in_pid_namespace(script: Path, *args: str | Path, bound_s: float, exec_it: bool = False) -> str:
    """Run a shell script as process 2, or as process 1 (``exec_it``); returns what it printed.

    Everything in there ends with it. Skips where that is not allowed.
    """
    if (why := why_not()) is not None:
        pytest.skip(f"no pid namespace of our own: {why}")
    init = _INIT.replace('"$@"; exit $?', 'exec "$@"') if exec_it else _INIT
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", init, "sh", "bash", script, *map(str, args)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=bound_s, check=False,
    )  # fmt: skip
    return done.stdout
