"""A snapshot on its way into its slot: in the step, or beside the next one.

Beside the next step, the main thread only marks the point of the computation. A thread waits for
that point, voids the slot, copies, and commits. Weights and optimizer states change in an
optimizer's step alone: before it, the *fence* holds the computation until they are copied. State
that may change earlier (buffers, random numbers) is staged at the mark.

So no slot is voided before the step is really over, on a device that lags behind its host, too,
and the rules of ``arena/pure/slots.py`` hold.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from holdfast.arena.pure.snapshots import Held
from holdfast.snapshot import _tensors
from holdfast.snapshot._live_state import Captured
from holdfast.snapshot._loading import Put
from holdfast.snapshot._ring import Ring, Slot


class Device(Protocol):
    """Where the tensors are: a computation that goes on while its host waits or copies."""

    has_copy_engine: bool
    """Copies beside the computation cost it nothing."""

    def pin(self, memory: torch.Tensor) -> None:
        """Host memory will be copied into."""

    def unpin(self, memory: torch.Tensor) -> None:
        """Host memory will be unmapped."""

    def stage(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of them as they are at this point of the computation."""

    def mark(self) -> Any:
        """This point of the computation."""

    def wait_for(self, mark: Any) -> None:
        """Have this thread wait until the computation has come to that point."""

    def copy(self, into: list[torch.Tensor], of: list[torch.Tensor]) -> Any:
        """Begin copies into host memory; they see all that was computed until now."""

    def hold(self, copy: Any) -> None:
        """Have the computation that follows wait for a copy."""

    def finish(self, copy: Any) -> None:
        """Have this thread wait for a copy."""

    def waits(self) -> list[float]:
        """How long the computation has waited at :meth:`hold`, s: since the last question."""

    def put(self) -> Put:
        """Copies from host memory that is not pinned; one for each thread that calls it."""

    def finish_puts(self) -> None:
        """Have this thread wait for all that was put."""


class HostDevice:
    """Tensors of the host: an operation is over when it returns."""

    has_copy_engine = False

    def pin(self, memory: torch.Tensor) -> None:
        """Nothing is needed."""

    def unpin(self, memory: torch.Tensor) -> None:
        """Nothing is needed."""

    def stage(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Clones."""
        return [tensor.detach().clone() for tensor in tensors]

    def mark(self) -> None:
        """It is here."""

    def wait_for(self, mark: None) -> None:
        """It is there."""

    def copy(self, into: list[torch.Tensor], of: list[torch.Tensor]) -> None:
        """All of it."""
        _tensors.copy_all(into, of)

    def hold(self, copy: None) -> None:
        """It is over."""

    def finish(self, copy: None) -> None:
        """It is over."""

    def waits(self) -> list[float]:
        """The fence has waited, as the caller has measured."""
        return []

    def put(self) -> Put:
        """All of it."""
        return _tensors.copy_all

    def finish_puts(self) -> None:
        """They are over."""


class Copying:
    """One snapshot.

    Attributes:
        is_spoiled: Weights changed while they were copied; nothing was committed.
        is_committed: It is whole.
    """

    def __init__(
        self,
        device: Device,
        ring: Ring,
        slot: Slot,
        captured: Captured,
        held: Held,
        abandoned: threading.Event | None = None,
    ) -> None:
        """Nothing is copied yet. ``abandoned``: set before the computation is cut short."""
        self.is_spoiled = self.is_committed = self._is_failed = False
        self._abandoned = abandoned
        self._device = device
        self._ring = ring
        self._slot = slot
        self._captured = captured
        self._held = held
        self._mark: Any = None
        self._copy: Any = None
        self._changing = captured.changing
        self._versions: list[int] | None = None
        self._lock = threading.Lock()
        self._begun = threading.Event()
        self._done = threading.Event()

    def stage(self) -> None:
        """Let the training go on before it is copied; :meth:`fence` must come before its step."""
        self._changing = self._device.stage(self._captured.changing)
        self._versions = self._fenced_versions()
        self._mark = self._device.mark()

    def run(self) -> None:
        """Copy and commit. In the main thread, or after :meth:`stage` in another one."""
        try:
            self._run()
        except BaseException:
            self._is_failed = True
            raise
        finally:
            self._ring.give_back(self._slot)
            self._begun.set()
            self._done.set()

    def _run(self) -> None:
        device, slot, captured = self._device, self._slot, self._captured
        device.wait_for(device.mark() if self._versions is None else self._mark)
        if self._abandoned is not None and self._abandoned.is_set():
            self._is_failed = True  # aborted collectives bring a device here, with a broken state
            return
        self._ring.arena.begin(slot.index)
        of = [*captured.fenced, *self._changing]
        into = slot.views(captured.head, captured.names)
        self._copy = device.copy(into, of)
        self._check()
        self._begun.set()
        assert slot.memory is not None
        first = torch.frombuffer(bytearray(captured.first_bytes), dtype=torch.uint8)
        slot.memory[: len(first)].copy_(first)
        device.finish(self._copy)
        self._check()
        if not self.is_spoiled:
            self._ring.commit(slot, self._held, captured.head.n_bytes)
            self.is_committed = True

    def fence(self) -> None:
        """Before weights change: the computation that follows waits for the copies."""
        if self._versions is None:
            return
        self._begun.wait()
        if not self._is_failed:
            self._device.hold(self._copy)
        with self._lock:  # the other thread compares before weights change, or not at all
            self._compare()
            self._versions = None

    def wait(self) -> None:
        """Until it is committed, or was given up."""
        self._done.wait()

    def _check(self) -> None:
        with self._lock:
            self._compare()

    def _compare(self) -> None:
        before = self._versions
        if before is not None and before != self._fenced_versions():
            self.is_spoiled = True

    def _fenced_versions(self) -> list[int]:
        return [_tensors.version(tensor) for tensor in self._captured.fenced]
