"""Plug-ins that free ranks from waiting for each other, before the function is interrupted."""

from __future__ import annotations

import abc
import os
import sys
import threading
from pathlib import Path
from typing import Any

from holdfast.base.rank_log import rank_logger
from holdfast.inprocess.state import FrozenState

__all__ = [
    "Abort",
    "AbortPersistentCheckpointProcesses",
    "AbortTorchDistributed",
    "AbortTransformerEngine",
]

LOGGER = rank_logger(__name__)
_JOIN_S = 5.0
"""For a process that got SIGTERM, before it is killed; likely it ends at once."""


class Abort(abc.ABC):
    """Base of all aborts; runs in a thread while the function still waits in a collective."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Free waiting threads; give back ``state``, which may be ``None``."""


class AbortTorchDistributed(Abort):
    """Ends every collective of ``torch.distributed`` that this rank is in.

    Groups of backends that can abort (NCCL) do, all at the same time; the connections of gloo's
    groups are broken (:mod:`holdfast.inplace.torch_edge.gloo_abort`).

    Called in the main thread, it then puts torch's state back to where ``init_process_group`` works
    again. In another thread, as the wrapper's, it leaves that to the main thread
    (:func:`holdfast.inplace.torch_edge.abort_distributed.discard_process_groups`).
    """

    def __init__(self, torch_fr_trace_path: str | None = None) -> None:
        """Note where to.

        Args:
            torch_fr_trace_path: Folder for torch's flight recorder, if that is on
                (``TORCH_FR_BUFFER_SIZE`` or ``TORCH_NCCL_TRACE_BUFFER_SIZE`` above 0): each abort
                writes ``iter_<iteration>/rank_<rank>`` in there. Default: the environment's
                ``NVRX_FR_TRACE_PATH``; without either, nothing is written.
        """
        self.torch_fr_trace_path = torch_fr_trace_path or os.environ.get("NVRX_FR_TRACE_PATH")
        self._dumped: int | None = None

    def __call__(self, state: Any) -> Any:
        """See the class; does nothing where torch has no ``distributed``."""
        import torch.distributed as dist  # noqa: PLC0415 - who makes a plug-in need not load torch

        if not dist.is_available():
            return state
        from holdfast.inplace.torch_edge import abort_distributed  # noqa: PLC0415

        if dist.is_initialized():
            self._dump(state)
        for problem in abort_distributed.abort_collectives():
            LOGGER.warning("%s", problem)
        if threading.current_thread() is threading.main_thread():
            abort_distributed.discard_process_groups()
        return state

    def _dump(self, state: Any) -> None:
        from holdfast.evidence.current_collectives import (  # noqa: PLC0415
            dump_flight_record,
            is_recording,
        )

        iteration = int(getattr(state, "iteration", 0))
        if not self.torch_fr_trace_path or self._dumped == iteration or not is_recording():
            return
        self._dumped = iteration
        rank = int(getattr(state, "initial_rank", os.environ.get("RANK", "0")))
        try:
            dump_flight_record(Path(self.torch_fr_trace_path) / f"iter_{iteration}", rank)
        except (OSError, RuntimeError) as error:
            LOGGER.warning(
                "the flight recorder of rank %d could not be written to %s: %s",
                rank,
                self.torch_fr_trace_path,
                error,
            )


class AbortTransformerEngine(Abort):
    """Frees Transformer Engine's userbuffers and its global FP8 state, where it was imported."""

    def __call__(self, state: FrozenState) -> FrozenState:
        """Give back ``state``."""
        base = sys.modules.get("transformer_engine.pytorch.module.base")
        if base is not None and getattr(base, "_ub_communicators", None) is not None:
            base.destroy_ub()
        for name in ("transformer_engine.pytorch.quantization", "transformer_engine.pytorch.fp8"):
            manager = getattr(sys.modules.get(name), "FP8GlobalStateManager", None)
            if manager is not None:
                manager.reset()
                break
        return state


class AbortPersistentCheckpointProcesses(Abort):
    """Ends the process that ``torch.distributed.checkpoint`` keeps for asynchronous saves.

    It is in a process group of its own, with those of ranks that are lost. A save that is under way
    is lost; the next one starts another process.
    """

    def __call__(self, state: FrozenState) -> FrozenState:
        """Give back ``state``."""
        from holdfast.base.torch_private import take_checkpoint_process  # noqa: PLC0415

        process = take_checkpoint_process()
        if process is not None and process.is_alive():
            process.terminate()
            process.join(_JOIN_S)
            if process.is_alive():
                process.kill()
            LOGGER.info("killed the asynchronous checkpoint process %s", process.pid)
        return state
