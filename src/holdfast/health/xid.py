"""Errors that the driver reports as they happen: Xids. A fact for people: they keep no node out.

The driver names the remedy itself (``gpu.py``); the number names the error, beside the ranks that
died of it. https://docs.nvidia.com/deploy/xid-errors lists them.

Unhealthy: never.

Suspect: any Xid since the look before, once, with its meaning, but for those of programs (13, 31,
43, 45, 68, 69).
"""

from __future__ import annotations

import ctypes
from typing import Any

from holdfast.health import nvml
from holdfast.health.nvml import Gpu, NothingHappenedError, Nvml, NvmlError
from holdfast.health.pure.health import Fact, Finding, Fitness, finding_of

PROBE = "xid"
_XID_EVENT = 0x8
"""``nvmlEventTypeXidCriticalError``"""
_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 69})
"""Faults of the program that ran, and Xids of any process that is killed."""
_MEANINGS = {
    48: "uncorrectable memory error",
    63: "a row of memory was replaced, or waits to be",
    64: "a row of memory could not be replaced",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many correctable memory errors",
    94: "uncorrectable memory error, contained: it killed the process it hit",
    95: "uncorrectable memory error, not contained: all processes of the GPU are affected",
    119: "the GPU's own processor (GSP) does not answer",
    120: "the GPU's own processor (GSP) failed",
    140: "uncorrectable memory error",
    154: "the recovery action of the GPU has changed",
}
_MOST_AT_ONCE = 1000
"""Events taken in one look; the driver keeps the others for the next."""


class Xids:
    """Reports the Xids since the look before; those of programs are left out.

    Args:
        visible_devices, limit: See :meth:`.Nvml.visible`.
    """

    def __init__(self, visible_devices: str | None = None, limit: int | None = None) -> None:
        self._visible_devices = visible_devices
        self._limit = limit
        self._events: Any = None
        self._deaf: dict[str, str] = {}
        """GPUs that report no Xids, and why."""
        self._watched: dict[int | None, set[str]] = {}
        """Names, in findings, of each GPU that reports: several of one that is split (MIG)."""

    def look(self) -> list[Finding]:
        """One finding for each GPU that ranks use; the first look only begins to listen."""
        try:
            library, gpus = nvml.visible(self._visible_devices, self._limit)
            if self._events is None:
                self._listen(library, gpus)
            counts = self._count_events(library)
        except NvmlError as error:
            return [Finding(PROBE, "driver", Fitness.UNKNOWN, f"Xids cannot be received: {error}")]
        return [finding_of(PROBE, gpu.name, self._facts(gpu, counts), gpu.position) for gpu in gpus]

    def _listen(self, library: Nvml, gpus: list[Gpu]) -> None:
        events = library.ask("nvmlEventSetCreate")
        for gpu in gpus:
            try:
                if gpu.error is not None:
                    raise gpu.error
                address = _address(gpu.handle)
                if address not in self._watched:
                    library.ask("nvmlDeviceRegisterEvents", gpu.handle, _XID_EVENT, events)
                self._watched.setdefault(address, set()).add(gpu.name)
            except NvmlError as error:
                self._deaf[gpu.name] = str(error)
        self._events = events

    def _count_events(self, library: Nvml) -> dict[str, dict[int, int]]:
        """How often each Xid was reported, by the name of the GPU."""
        found: dict[str, dict[int, int]] = {}
        for _ in range(_MOST_AT_ONCE):
            try:
                event = library.ask("nvmlEventSetWait_v2", self._events, 0)
            except NothingHappenedError:
                break
            except NvmlError:  # a GPU was lost, for one: the events before say more
                if found:
                    break
                raise
            for name in self._watched.get(_address(event.device), ()):
                counts = found.setdefault(name, {})
                counts[int(event.eventData)] = counts.get(int(event.eventData), 0) + 1
        return found

    def _facts(self, gpu: Gpu, counts: dict[str, dict[int, int]]) -> list[Fact]:
        if gpu.name in self._deaf:
            return [(Fitness.UNKNOWN, f"reports no Xids: {self._deaf[gpu.name]}")]
        return [
            (Fitness.SUSPECT, _sentence(xid, count))
            for xid, count in sorted(counts.get(gpu.name, {}).items())
            if xid not in _OF_PROGRAMS
        ]


def _address(handle: Any) -> int | None:
    """Of what NVML's handle points to: of a lost GPU, NVML itself does not tell which it is."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def _sentence(xid: int, count: int) -> str:
    times = "" if count == 1 else f", {count} times"
    meaning = _MEANINGS.get(xid, "see the driver's lines in dmesg")
    return f"Xid {xid}{times}: {meaning}"
