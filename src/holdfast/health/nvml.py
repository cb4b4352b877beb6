"""NVIDIA's management library (NVML) through ``pynvml``, as a few typed questions. Decides nothing.

Loaded once per process, on the first question; where there is no driver, every question asks again,
so that one that is loaded later is found. A driver may hang in any call: callers have bounds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

_TIMEOUT, _GPU_IS_LOST, _RESET_REQUIRED = 10, 15, 16
_NOT_TOLD = frozenset({3, 4, 13, 21, 22, 25, 26})
"""Not supported, no permission, no such function, no data, no ECC here, other version, deprecated:
the driver has no answer, which says nothing about the GPU. ``NVML_ERROR_*`` of nvml.h."""
_MIB = 1 << 20


class NvmlError(Exception):
    """The driver did not answer a question; the text says why, without naming the GPU."""


class NoAnswerError(NvmlError):
    """The driver has not answered, which says nothing about the GPU."""


class NotToldError(NoAnswerError):
    """The driver does not know, or does not say."""


class NothingHappenedError(NoAnswerError):
    """There is no event, or the answer took too long."""


class GpuBrokenError(NvmlError):
    """The driver has lost the GPU, or can't use it before it is reset."""


@dataclass(frozen=True)
class Gpu:
    """One GPU that ranks see.

    Attributes:
        position: Its number for CUDA in the ranks; :attr:`.Finding.device`.
        name: ``GPU 3``, as nvidia-smi counts, with the MIG instance where it is one; the same at
            each look.
        handle: NVML's, of the whole GPU; None: the driver does not give it, see ``error``.
        instance: NVML's, of the MIG instance; otherwise ``handle``.
        error: Why there is no handle.
    """

    position: int
    name: str
    handle: Any = None
    instance: Any = None
    error: NvmlError | None = None


class Nvml:
    """The library, initialised. All questions raise :class:`NvmlError` without an answer.

    Raises:
        NvmlError: It cannot be initialised.
    """

    def __init__(self, pynvml: Any) -> None:
        self._pynvml = pynvml
        self._known: dict[int, tuple[Any, str]] = {}
        """Handle and UUID of each GPU that has answered once: one that is lost later is named."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlError(f"NVML: {error}") from error

    def ask(self, function: str, *arguments: Any) -> Any:
        """What ``pynvml.<function>(*arguments)`` gives.

        Raises:
            NotToldError: The driver, or this version of ``pynvml``, does not know.
            GpuBrokenError: The GPU is lost or must be reset.
            NoAnswerError: Anything else went wrong.
        """
        call = getattr(self._pynvml, function, None)
        if call is None:
            raise NotToldError(f"this nvidia-ml-py has no {function}")
        try:
            return call(*arguments)
        except self._pynvml.NVMLError as error:
            raise _translated(error) from error

    def driver_version(self) -> tuple[int, str]:
        """Major number, and the whole as text."""
        text = str(self.ask("nvmlSystemGetDriverVersion"))
        major = text.split(".", maxsplit=1)[0]
        if not major.isdecimal():
            raise NotToldError(f"the driver's version is {text!r}")
        return int(major), text

    def field(self, gpu: Any, number: int) -> int:
        """Value of field ``NVML_FI_*``, one that is an unsigned number."""
        value = self.ask("nvmlDeviceGetFieldValues", gpu, [number])[0]
        if value.nvmlReturn != 0:
            raise _translated(self._pynvml.NVMLError(value.nvmlReturn))
        return int(value.value.uiVal)

    def used_mib(self, gpu: Any) -> float:
        """Memory in use, without the part that the driver keeps for itself, MiB."""
        try:
            version = getattr(self._pynvml, "nvmlMemory_v2", 0x02000028)
            memory = self.ask("nvmlDeviceGetMemoryInfo", gpu, version)
        except NoAnswerError:  # a driver before 510 does not count its own part as used
            memory = self.ask("nvmlDeviceGetMemoryInfo", gpu)
        return float(memory.used) / _MIB

    def pci_address(self, gpu: Any) -> str:
        """As sysfs writes it: ``0000:1b:00.0``."""
        address = self.ask("nvmlDeviceGetPciInfo", gpu).busId
        text = address.decode() if isinstance(address, bytes) else str(address)
        domain, _, rest = text.lower().partition(":")
        return f"{domain[-4:]}:{rest}"  # eight digits here, four there

    # ------------------------------------------------------------ which GPUs
    def visible(self, visible_devices: str | None, limit: int | None = None) -> list[Gpu]:
        """The GPUs that a process with this ``CUDA_VISIBLE_DEVICES`` sees, in its order.

        As in CUDA, the list ends before its first entry that is no GPU. An index counts as in
        nvidia-smi; CUDA counts the same where all GPUs of a host are of one kind, or with
        ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.

        Args:
            visible_devices: Indices, UUIDs of GPUs or MIG instances, or their beginnings, with
                commas between; None: all.
            limit: Only the first so many, for ranks with one GPU each; None: all.
        """
        count = int(self.ask("nvmlDeviceGetCount"))
        if visible_devices is None:
            entries: Iterable[str] = map(str, range(count))
        else:
            entries = [entry.strip() for entry in visible_devices.split(",")]
        found: list[Gpu] = []
        for entry in entries:
            if limit is not None and len(found) >= limit:
                break
            gpu = self._find(entry, len(found), count)
            if gpu is None:
                break
            found.append(gpu)
        return found

    def _find(self, entry: str, position: int, count: int) -> Gpu | None:
        if entry.isdecimal():
            return self._by_index(int(entry), position) if int(entry) < count else None
        if entry.startswith("GPU-"):
            return self._by_uuid(entry, position, count)
        if entry.startswith("MIG-"):
            return self._instance(entry, position, count)
        return None

    def _by_index(self, index: int, position: int) -> Gpu:
        name = f"GPU {index}"
        try:
            handle, _ = self._identity(index)
        except NvmlError as error:
            return Gpu(position, name, error=error)
        return Gpu(position, name, handle, handle)

    def _by_uuid(self, beginning: str, position: int, count: int) -> Gpu:
        lost: NvmlError | None = None
        for index in range(count):
            try:
                handle, uuid = self._identity(index)
            except NvmlError as error:
                lost = error
                continue
            if uuid.startswith(beginning):
                return Gpu(position, f"GPU {index}", handle, handle)
        missing = lost or NvmlError("the driver knows no such GPU")
        return Gpu(position, f"GPU {beginning}", error=missing)

    def _instance(self, entry: str, position: int, count: int) -> Gpu:
        try:
            instance = self.ask("nvmlDeviceGetHandleByUUID", entry)
            whole = self.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", instance)
            index = int(self.ask("nvmlDeviceGetIndex", whole))
        except NvmlError as error:
            if entry.startswith("MIG-GPU-"):  # of drivers before 470: MIG-<GPU>/<instance>/<part>
                whole_uuid = entry.removeprefix("MIG-").split("/", maxsplit=1)[0]
                gpu = self._by_uuid(whole_uuid, position, count)
                return Gpu(position, f"{gpu.name} {entry}", gpu.handle, gpu.handle, gpu.error)
            return Gpu(position, f"GPU {entry}", error=error)
        return Gpu(position, f"GPU {index} {entry}", whole, instance)

    def _identity(self, index: int) -> tuple[Any, str]:
        if index not in self._known:
            handle = self.ask("nvmlDeviceGetHandleByIndex", index)
            self._known[index] = handle, str(self.ask("nvmlDeviceGetUUID", handle))
        return self._known[index]


def visible(visible_devices: str | None, limit: int | None = None) -> tuple[Nvml, list[Gpu]]:
    """The library, and the GPUs that ranks see: :func:`load` and :meth:`Nvml.visible`."""
    library = load()
    return library, library.visible(visible_devices, limit)


_lock = threading.Lock()
_loaded: Nvml | None = None


def load() -> Nvml:
    """The library of this process.

    Raises:
        NvmlError: There is no driver, no library, or no package to ask through.
    """
    global _loaded  # noqa: PLW0603 - NVML itself is one per process
    with _lock:
        if _loaded is None:
            try:
                pynvml = import_module("pynvml")
            except ImportError as error:
                raise NvmlError(f"no pynvml ({error}): pip install nvidia-ml-py") from error
            _loaded = Nvml(pynvml)
        return _loaded


def _translated(error: Any) -> NvmlError:
    code = getattr(error, "value", None)
    if code in (_GPU_IS_LOST, _RESET_REQUIRED):
        return GpuBrokenError(str(error))
    if code == _TIMEOUT:
        return NothingHappenedError(str(error))
    if code in _NOT_TOLD:
        return NotToldError(str(error))
    return NoAnswerError(str(error))
