"""Facts about the node that a launcher needs before a start: CPUs, GPUs, NUMA, files, programs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence

from holdfast.base.bounded import output_within
from holdfast.base.loopback import own_loopback
from holdfast.base.processes import process_defaults
from holdfast.base.pure.rank_sets import ranks_of

_GPU_NODE = re.compile(r"nvidia\d+")
_AMD_NODE = "/dev/kfd"
_ONLINE = "/sys/devices/system/node/online"
_BOOT = (
    "import sys; sys.path = [folder for folder in sys.path if folder]; "  # not the job's folder
    "from holdfast.options.numa_commands import main; main()"
)
_SCRIPT_MOST = 16 << 20
_TORCH_S = 120.0
"""Importing torch from a slow file system and starting CUDA may take that long."""
_TRIAL_S = 30.0
_NOTHING = (sys.executable, "-I", "-S", "-c", "")
"""A program that is there, and does nothing."""


class NoBindingError(LookupError):
    """Torch cannot say how to bind ranks; the text says why."""


def cpu_count() -> int:
    """CPUs that this process may run on; torch counts them the same way."""
    return len(os.sched_getaffinity(0))


def gpu_count(environ: Mapping[str, str]) -> int | None:
    """NVIDIA GPUs that CUDA would show a process; ``None``: their number can't be determined.

    Counts device nodes, which containers limit to the GPUs they were given, and applies CUDA's
    rules for ``CUDA_VISIBLE_DEVICES``: the list ends at the first entry that names no device, and
    only one MIG slice is ever shown. Neither torch nor the driver's library has to be loaded.
    """
    try:
        present = sum(1 for name in os.listdir("/dev") if _GPU_NODE.fullmatch(name))
    except OSError:
        present = 0
    if present == 0:
        return None if os.path.exists(_AMD_NODE) else 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    count = 0
    for entry in visible.split(","):
        name = entry.strip()
        if name.startswith("MIG-"):
            return 1
        if not name.startswith("GPU-") and not (name.isdecimal() and int(name) < present):
            break
        count += 1
    return count


def has_terminal() -> bool:
    """The launcher's stdin is a terminal."""
    return os.isatty(0)


def loopback() -> str:
    """The address at which processes of this host reach each other."""
    return own_loopback()


def open_files_max() -> int:
    """How many open files the launcher may have, once it has raised its limit."""
    return process_defaults.open_files_max()


def path_exists(path: str) -> bool:
    """There is a file or folder."""
    return os.path.exists(path)


def script_digest(path: str, *, program: bool) -> str | None:
    """SHA-256 of a script's file, in hexadecimal.

    None: it is a folder or cannot be read; it is no file at rest, which reading would use up
    (``/dev/stdin``, ``<(...)``); it has more than 16 MiB; or it is a ``program`` that does not
    begin as a script does, and that each node may have built for itself.
    """
    import hashlib  # noqa: PLC0415 - for jobs of several nodes
    import stat  # noqa: PLC0415

    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            data = file.read(_SCRIPT_MOST + 1)
    except OSError:
        return None
    if len(data) > _SCRIPT_MOST or (program and not data.startswith(b"#!")):
        return None
    return hashlib.sha256(data).hexdigest()


def program_exists(name: str, environ: Mapping[str, str]) -> bool:
    """``execvp`` would find something that this user may execute."""
    if "/" in name:
        return os.path.isfile(name) and os.access(name, os.X_OK)
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    paths = (os.path.join(folder or ".", name) for folder in folders)
    return any(os.path.isfile(path) and os.access(path, os.X_OK) for path in paths)


def module_exists(name: str) -> bool:
    """``python -m`` of this interpreter would find the top package of a module in this folder.

    Looks no deeper, because that would import the package.
    """
    import importlib.util  # noqa: PLC0415 - for --module only
    from importlib.machinery import PathFinder  # noqa: PLC0415

    top = name.partition(".")[0]
    if not top:
        return False
    if top in sys.modules or PathFinder.find_spec(top, [os.getcwd()]) is not None:
        return True
    try:
        return importlib.util.find_spec(top) is not None
    except ValueError:
        return True


def plug_in_names(group: str) -> set[str]:
    """Names that installed packages register under a group of entry points."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - seldom needed

    return {found.name for found in entry_points(group=group)}


def numa_nodes(path: str = _ONLINE) -> frozenset[int] | None:
    """NUMA nodes that are online; None: this kernel does not say."""
    try:
        with open(path, encoding="ascii") as file:
            return frozenset(ranks_of(file.read().strip()))
    except (OSError, ValueError):
        return None


def torchs_numa_prefixes(mode: str, nproc: int) -> list[list[str]]:
    """The prefix that torch gives the command of each local rank for ``--numa-binding MODE``.

    Raises:
        NoBindingError: This torch, CUDA or host does not tell.
    """
    import json  # noqa: PLC0415 - seldom needed

    command = [sys.executable, "-c", _BOOT, mode, str(nproc)]
    try:
        output, why_not = output_within(_TORCH_S, command, os.environ)
        if why_not is None:
            prefixes: list[list[str]] = json.loads(output)
            return prefixes
    except TimeoutError as error:
        raise NoBindingError(str(error)) from None
    except (OSError, ValueError) as error:
        raise NoBindingError(f"{type(error).__name__}: {error}") from None
    raise NoBindingError(why_not)


def why_not_bound(prefix: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """The error of a program that can't be started with ``prefix`` before it; None: it can.

    A container may be kept from the nodes that it sees, or from binding memory at all. 10 ms.
    """
    try:
        return output_within(_TRIAL_S, [*prefix, *_NOTHING], environ)[1]
    except TimeoutError:
        return f"it does not end within {_TRIAL_S:g} s"
    except OSError as error:
        return str(error.strerror)


def absolute(path: str) -> str:
    """The path from the root on."""
    return os.path.abspath(path)


def random_id() -> str:
    """32 random hexadecimal digits."""
    return os.urandom(16).hex()
