"""Snapshots of tensors on a CUDA device: copied by its copy engine, beside the computation."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from holdfast.base.rank_log import rank_logger
from holdfast.snapshot import _tensors
from holdfast.snapshot._loading import Put

LOGGER = rank_logger("holdfast.snapshot")
_BOUNCE_BYTES = 32 << 20
_cuda: Any = torch.cuda


class CudaDevice:
    """The current CUDA device. Copies run on a stream of their own, into registered memory."""

    has_copy_engine = True

    def __init__(self) -> None:
        self._index = _cuda.current_device()
        self._side = _cuda.Stream()
        self._pinned: dict[int, int] = {}
        self._cannot_pin = False
        self._held: deque[tuple[Any, Any]] = deque()

    def pin(self, memory: torch.Tensor) -> None:
        """Register it; where that is refused, copies are slower, and hold up the host."""
        if self._cannot_pin:
            return
        _cuda.set_device(self._index)  # of this thread
        cudart = _cuda.cudart()
        code = int(cudart.cudaHostRegister(memory.data_ptr(), memory.numel(), 0))
        if code:
            self._cannot_pin = True
            LOGGER.warning(
                "CUDA does not register memory for snapshots (error %d); copies are slower", code
            )
        else:
            self._pinned[memory.data_ptr()] = memory.numel()

    def unpin(self, memory: torch.Tensor) -> None:
        """Before it is unmapped: the driver would go on using the pages."""
        if self._pinned.pop(memory.data_ptr(), None):
            cudart = _cuda.cudart()
            cudart.cudaHostUnregister(memory.data_ptr())

    def stage(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Clones, in the order of the computation."""
        return [tensor.detach().clone() for tensor in tensors]

    def mark(self) -> Any:
        """An event of the computation's stream."""
        event = _cuda.Event(blocking=True)  # the host sleeps, and does not spin
        event.record()
        return event

    def wait_for(self, mark: Any) -> None:
        """Without the interpreter's lock."""
        mark.synchronize()

    def copy(self, into: list[torch.Tensor], of: list[torch.Tensor]) -> Any:
        """On the side stream; the mark is over."""
        _cuda.set_device(self._index)
        event = _cuda.Event(blocking=True)  # the host sleeps, and does not spin
        with _cuda.stream(self._side):
            _tensors.copy_all(into, of, non_blocking=True)
            event.record()
        return event

    def hold(self, copy: Any) -> None:
        """The stream waits, and the host does not."""
        before, after = _cuda.Event(enable_timing=True), _cuda.Event(enable_timing=True)
        before.record()
        _cuda.current_stream().wait_event(copy)
        after.record()
        self._held.append((before, after))

    def finish(self, copy: Any) -> None:
        """Without the interpreter's lock."""
        copy.synchronize()

    def waits(self) -> list[float]:
        """Of those that are over."""
        found = []
        while self._held and self._held[0][1].query():
            before, after = self._held.popleft()
            found.append(before.elapsed_time(after) / 1e3)
        return found

    def put(self) -> Put:
        """Through pinned memory: the mapping is not registered yet."""
        _cuda.synchronize()  # live tensors may still be on their way to their first values
        return _Bounce(self._index)

    def finish_puts(self) -> None:
        """On all streams."""
        _cuda.synchronize()


class _Bounce:
    """Copies host memory to the device through two pinned buffers in turn. One thread's."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._buffers = [
            torch.empty(_BOUNCE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)
        ]
        self._free: list[Any] = [None, None]
        self._turn = self._used = 0

    def __call__(self, into: list[torch.Tensor], of: list[torch.Tensor]) -> None:
        """Each of ``of`` into its own."""
        _cuda.set_device(self._index)  # of this thread
        for live, saved in zip(into, of, strict=True):
            if live.device.type != "cuda":
                _tensors.copy_all([live], [saved])
            elif live.is_contiguous() and saved.is_contiguous():
                self._send(live.view(-1).view(torch.uint8), saved.view(-1).view(torch.uint8))
            else:
                whole = torch.empty_like(
                    saved, device=live.device, memory_format=torch.contiguous_format
                )
                dense = saved.contiguous()
                self._send(whole.view(-1).view(torch.uint8), dense.view(-1).view(torch.uint8))
                _tensors.copy_all([live], [whole])

    def _send(self, live: torch.Tensor, saved: torch.Tensor) -> None:
        for begin in range(0, saved.numel(), _BOUNCE_BYTES):
            part = saved[begin : begin + _BOUNCE_BYTES]
            if self._used + part.numel() > _BOUNCE_BYTES:
                self._change_buffer()
            pinned = self._buffers[self._turn][self._used : self._used + part.numel()]
            pinned.copy_(part)
            live[begin : begin + part.numel()].copy_(pinned, non_blocking=True)
            self._used += part.numel()

    def _change_buffer(self) -> None:
        """The other one, once its copies are over."""
        event = _cuda.Event(blocking=True)
        event.record()
        self._free[self._turn] = event
        self._turn, self._used = 1 - self._turn, 0
        if self._free[self._turn] is not None:
            self._free[self._turn].synchronize()
