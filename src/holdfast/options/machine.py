"""Questions of a launch plan to its node; :mod:`holdfast.base.facts` answers them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol


class Machine(Protocol):
    """One node, as far as a plan depends on it."""

    def cpu_count(self) -> int:
        """CPUs that this process may run on."""

    def gpu_count(self, environ: Mapping[str, str], /) -> int | None:
        """GPUs that a rank would see; ``None``: some, but it is not known how many."""

    def path_exists(self, path: str, /) -> bool:
        """There is a file or folder."""

    def program_exists(self, name: str, environ: Mapping[str, str], /) -> bool:
        """A program of this name or path can be executed."""

    def module_exists(self, name: str, /) -> bool:
        """The top package of a module can be found."""

    def plug_in_names(self, group: str, /) -> Collection[str]:
        """Names that installed packages register under a group of entry points."""

    def numa_nodes(self) -> frozenset[int] | None:
        """NUMA nodes that are online; ``None``: not known."""

    def torchs_numa_prefixes(self, mode: str, nproc: int, /) -> list[list[str]]:
        """Words that torch puts before the command of each local rank."""

    def why_not_bound(self, prefix: Sequence[str], environ: Mapping[str, str], /) -> str | None:
        """The error of a program started with this binding; ``None``: it starts."""

    def script_digest(self, path: str, /, *, program: bool) -> str | None:
        """SHA-256 of a script's file; ``None``: it cannot be read, or is a program of no text."""

    def loopback(self) -> str:
        """The address at which processes of this node reach each other."""

    def has_terminal(self) -> bool:
        """The launcher's stdin is a terminal."""

    def open_files_max(self) -> int:
        """How many open files the launcher may have."""

    def absolute(self, path: str, /) -> str:
        """The path from the root on."""

    def random_id(self) -> str:
        """A name that no other job has."""
