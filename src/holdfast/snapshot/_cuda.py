"""Snapshots of tensors on a CUDA device: copied by its copy engine, beside the computation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from holdfast.base.rank_log import rank_logger
from holdfast.snapshot import _tensors

LOGGER = rank_logger("holdfast.snapshot")
_BOUNCE_BYTES = 64 << 20
_cuda: Any = torch.cuda


class CudaDevice:
    """The current CUDA device. Copies run on a stream of their own, into registered memory."""

    has_copy_engine = True

    def __init__(self) -> None:
        self._index = _cuda.current_device()
        self._side = _cuda.Stream()
        self._pinned: dict[int, int] = {}
        self._cannot_pin = False

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
        _cuda.current_stream().wait_event(copy)

    def finish(self, copy: Any) -> None:
        """Without the interpreter's lock."""
        copy.synchronize()

    def load(self, into: Sequence[torch.Tensor], of: Sequence[torch.Tensor]) -> None:
        """Through two pinned buffers in turn: the mapping is not registered yet."""
        bounce = [torch.empty(_BOUNCE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        free = [_cuda.Event(), _cuda.Event()]
        turn = 0
        small: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for live, saved in zip(into, of, strict=True):
            if live.device.type != "cuda" or saved.numel() * saved.element_size() < (1 << 20):
                small[0].append(live)
                small[1].append(saved)
                continue
            is_dense = live.is_contiguous()
            whole = live if is_dense else torch.empty_like(saved, device=live.device)
            to, source = (each.view(-1).view(torch.uint8) for each in (whole, saved))
            for begin in range(0, source.numel(), _BOUNCE_BYTES):
                part = source[begin : begin + _BOUNCE_BYTES]
                free[turn].synchronize()
                pinned = bounce[turn][: part.numel()]
                pinned.copy_(part)
                to[begin : begin + part.numel()].copy_(pinned, non_blocking=True)
                free[turn].record()
                turn = 1 - turn
            if not is_dense:
                live.copy_(whole)
        _tensors.copy_all(*small)
        _cuda.synchronize()
