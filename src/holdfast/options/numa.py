"""Bind each rank to CPUs and memory near its GPU, by words before its command.

Two ways. ``NVRX_GPUS_PER_NUMA=G``: the ranks of G GPUs in a row belong to one NUMA node; CPUs and
memory are that node's. ``--numa-binding MODE``: torch asks CUDA where each GPU is, and chooses
CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.base.facts import NoBindingError
from holdfast.options.option import UsageError

if TYPE_CHECKING:
    from holdfast.options.machine import Machine

GPUS_PER_NUMA = "NVRX_GPUS_PER_NUMA"
_NUMACTL = "numactl"

Prefixes = tuple[tuple[str, ...], ...]
"""By local rank, words before its command; nothing at all: no rank is bound."""


def bindings(
    mode: str | None, nproc: int, environ: Mapping[str, str], machine: Machine
) -> Prefixes:
    """The words before the command of each rank; ``mode``: of ``--numa-binding``.

    Raises:
        UsageError: The ranks cannot be bound as it is asked for.
    """
    text = environ.get(GPUS_PER_NUMA, "").strip()
    if text and mode:
        raise UsageError(
            f"--numa-binding={mode} and {GPUS_PER_NUMA}={text} both bind ranks; take one of them"
        )
    if not text and not mode:
        return ()
    setting = f"--numa-binding={mode}" if mode else f"{GPUS_PER_NUMA}={text}"
    found: Prefixes = () if mode else by_count(text, nproc, machine.numa_nodes())
    if not machine.program_exists(_NUMACTL, environ):
        raise UsageError(f"{setting} needs the program numactl, which is not on PATH; install it")
    if mode:
        try:
            found = tuple(tuple(words) for words in machine.torchs_numa_prefixes(mode, nproc))
        except NoBindingError as error:
            raise UsageError(f"{setting}: torch cannot bind ranks to CPUs here: {error}") from None
    for prefix in dict.fromkeys(found):
        if (problem := machine.why_not_bound(prefix, environ)) is not None:
            raise UsageError(
                f"{setting}: local rank {found.index(prefix)} would be started with "
                f"`{' '.join(prefix)}`, which fails on this host: {problem}"
            )
    return found


def by_count(text: str, nproc: int, present: frozenset[int] | None) -> Prefixes:
    """As ``text``, the value of ``NVRX_GPUS_PER_NUMA``, asks for.

    ``present``: NUMA nodes that there are; None: not known.

    Raises:
        UsageError: It is no number, or asks for a NUMA node that does not exist.
    """
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise UsageError(
            f"{GPUS_PER_NUMA}={text!r} cannot be used; it takes the number of GPUs per NUMA node, "
            "1 or more"
        )
    wanted = [local_rank // int(text) for local_rank in range(nproc)]
    missing = sorted(set(wanted) - present) if present is not None else []
    if missing:
        ranks = [str(local_rank) for local_rank, node in enumerate(wanted) if node in missing]
        raise UsageError(
            f"{GPUS_PER_NUMA}={text} puts local rank {', '.join(ranks)} on NUMA node "
            f"{', '.join(map(str, missing))}, which this host does not have (it has "
            f"{', '.join(map(str, sorted(present or ())))})"
        )
    return tuple((_NUMACTL, "--cpunodebind", str(node), "--membind", str(node)) for node in wanted)
