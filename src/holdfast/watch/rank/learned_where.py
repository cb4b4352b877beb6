"""Where timeouts were learned: the script, the world size and the kind of machine.

Durations of one place say little about another. Learned timeouts are saved with their place, and a
state of another place, or of none, starts at the default floor at least.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

LEARNED_WHERE = "learned_where"
"""Its key in a saved state, beside the timeouts: readers of other versions pass over it."""
_GPUS = "/proc/driver/nvidia/gpus"
_SCRIPT_BYTES_MAX = 1 << 24
_MACHINE_BITS = 0xFFFFFF  # what float32 carries exactly: it takes part in a collective


class LearnedWhere(NamedTuple):
    """A place. Numbers, as all ranks have to come to the same ones.

    Attributes:
        script: Checksum of the script's file; 0: it cannot be read.
        world_size: Number of ranks.
        machine: Number for processor and GPUs of every rank's node; 0: they differ.
    """

    script: int
    world_size: int
    machine: int

    def is_known(self) -> bool:
        """All of it is known, so an equal one is the same place."""
        return all(self)


def here(machine: int) -> LearnedWhere:
    """This job, with ``machine`` as ranks agreed on it, or as :func:`machine_kind` says."""
    return LearnedWhere(_script(), _world_size(), machine)


def from_state(state: Mapping[str, Any]) -> LearnedWhere | None:
    """Where a saved state was learned; ``None``: it does not say."""
    where = state.get(LEARNED_WHERE)
    if not isinstance(where, Mapping):
        return None
    values = [where.get(name) for name in LearnedWhere._fields]
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return None
    return LearnedWhere(*values)  # type: ignore[arg-type] # checked above


def machine_kind() -> int:
    """A number for processor and GPUs of this node, never 0. Asking CUDA would take memory."""
    facts = [os.uname().machine, str(os.cpu_count()), _first_value("/proc/cpuinfo", "model name")]
    try:
        gpus = sorted(os.listdir(_GPUS))
    except OSError:
        gpus = []
    facts += [_first_value(f"{_GPUS}/{gpu}/information", "Model") for gpu in gpus]
    return (zlib.crc32("\n".join(facts).encode()) & _MACHINE_BITS) or 1


def _first_value(path: str, name: str) -> str:
    """Of the first line ``name : value``."""
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == name:
                    return value.strip()
    except OSError:
        pass
    return ""


def _script() -> int:
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if not path:
        return 0
    try:
        with open(path, "rb") as file:
            return zlib.crc32(file.read(_SCRIPT_BYTES_MAX)) or 1
    except OSError:
        return 0


def _world_size() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        size: int = distributed.get_world_size()
        return size
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() else 0
