"""Facts of a start that explain a run later: command line, commit, versions, environment.

Read from files alone: no process is started, and torch is not imported. Called in the thread that
writes events, as the working directory may be on a file system that hangs. A fact that cannot be
read is left out.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from holdfast import __version__
from holdfast.events.pure.schema import LaunchFacts
from holdfast.node.pure import shareable

_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_TORCH = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*= *['\"]([^'\"\n]+)", re.MULTILINE)
_NCCL = re.compile(r"nvidia_nccl_cu\d+-([\d.]+)\.dist-info")
_DRIVER = Path("/sys/module/nvidia/version")
_LAUNCHERS = ("launcher.py", "ft_launcher", "ft_launcher.py")
_BYTES_MAX = 1 << 20


def launch_facts(
    argv: Sequence[str], environ: Mapping[str, str], path: Iterable[str]
) -> LaunchFacts:
    """The facts of this process.

    Args:
        argv: Its command line.
        environ: Its environment.
        path: Where Python finds modules.
    """
    folder, commit, branch = "", None, None
    with suppress(OSError):
        folder = str(Path.cwd())
        commit, branch = commit_of(Path(folder))
    program = Path(argv[0]).name if argv else ""
    words = ["ft_launcher" if program in _LAUNCHERS else program, *argv[1:]]
    return LaunchFacts(
        command=shareable.command(words),
        folder=folder,
        commit=commit,
        branch=branch,
        versions=dict(_versions(path)),
        environment=shareable.environment(environ),
    )


def commit_of(folder: Path) -> tuple[str | None, str | None]:
    """Commit and branch of the repository that holds a folder; None: not known.

    Args:
        folder: Its absolute path.
    """
    for parent in (folder, *folder.parents):
        link, git = _read(parent / ".git"), parent / ".git"
        if link.startswith("gitdir:"):  # a worktree, or a submodule
            git = parent / link.removeprefix("gitdir:").strip()
        if head := _read(git / "HEAD").strip():
            return _commit_at(git, head)
    return None, None


def _commit_at(git: Path, head: str) -> tuple[str | None, str | None]:
    if not head.startswith("ref:"):
        return (head if _HASH.fullmatch(head) else None), None
    ref = head.removeprefix("ref:").strip()
    shared = git / _read(git / "commondir").strip()
    found = _read(git / ref).strip() or _read(shared / ref).strip()
    if not found:
        line = re.compile(rf"^([0-9a-f]+) {re.escape(ref)}$", re.MULTILINE)
        packed = line.search(_read(shared / "packed-refs"))
        found = packed[1] if packed else ""
    return (found if _HASH.fullmatch(found) else None), ref.removeprefix("refs/heads/")


def _versions(path: Iterable[str]) -> Iterator[tuple[str, str]]:
    yield "holdfast", __version__
    yield "Python", sys.version.partition(" ")[0]
    for place in map(Path, path):
        if text := _read(place / "torch" / "version.py"):
            names = {"__version__": "torch", "cuda": "CUDA", "hip": "ROCm"}
            yield from ((names[name], version) for name, version in _TORCH.findall(text))
            with suppress(OSError):
                found = (_NCCL.fullmatch(each.name) for each in place.iterdir())
                yield from (("NCCL", nccl[1]) for nccl in found if nccl)
            break
    if driver := _read(_DRIVER).strip():
        yield "driver", driver
    system = os.uname()
    yield "system", f"{system.sysname} {system.release} {system.machine}"


def _read(path: Path) -> str:
    with suppress(OSError, ValueError), path.open("rb") as file:
        return file.read(_BYTES_MAX).decode(errors="replace")
    return ""
