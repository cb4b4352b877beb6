"""Memory in use on the GPUs of a node's ranks, its holders, and waiting until it is free.

A driver reports processes by their pid in the host's namespace; in a container that hides that
namespace it reports none, or pids that are others' here. So they are hints for when to look again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from holdfast.base import clock
from holdfast.base.processes.proc import Process, await_any
from holdfast.health import nvml
from holdfast.health.nvml import Gpu, Nvml, NvmlError
from holdfast.health.pure.reclaim import Over, Reclaim


def used_mib(visible_devices: str | None, limit: int | None = None) -> dict[str, float]:
    """MiB in use on each GPU, or MIG instance, by its name; those that do not say are not in it.

    Nothing where there is no driver. Which GPUs: see :meth:`.Nvml.visible`.
    """
    used: dict[str, float] = {}
    for library, gpu in _each(visible_devices, limit):
        with contextlib.suppress(NvmlError):
            used[gpu.name] = library.used_mib(gpu.instance)
    return used


def holders(visible_devices: str | None, limit: int | None = None) -> list[int]:
    """Processes that hold memory on these GPUs, as far as the driver says; see :func:`used_mib`."""
    pids: set[int] = set()
    for library, gpu in _each(visible_devices, limit):
        with contextlib.suppress(NvmlError):
            processes = library.ask("nvmlDeviceGetComputeRunningProcesses", gpu.instance)
            pids.update(int(process.pid) for process in processes)
    return sorted(pids)


def _each(visible_devices: str | None, limit: int | None) -> Iterator[tuple[Nvml, Gpu]]:
    try:
        library, gpus = nvml.visible(visible_devices, limit)
    except NvmlError:
        return
    for gpu in gpus:
        if gpu.error is None:
            yield library, gpu


def wait(
    reclaim: Reclaim,
    used_mib: Callable[[], Mapping[str, float]],
    holders: Callable[[], Iterable[int]],
    report: Callable[[str], None],
) -> Over:
    """Until the memory of ranks that have ended is free or the time is over.

    The end of a process that holds some is not slept through, nor one between the look at the
    memory and the look at the process. ``report``: called with lines for a person who waits.
    """
    known_ended: set[int] = set()
    while True:
        step = reclaim.look(used_mib(), clock.monotonic())
        if isinstance(step, Over):
            return step
        if step.text:
            report(step.text)
        with contextlib.ExitStack() as stack:
            living, ended = [], set()
            for pid in holders():
                try:
                    process = Process(pid)
                except OSError:
                    ended.add(pid)
                    continue
                stack.callback(process.close)
                if process.has_ended():
                    ended.add(pid)
                else:
                    living.append(process)
            if ended <= known_ended:  # a driver names them while it frees their memory
                await_any(living, step.seconds)
            known_ended |= ended
