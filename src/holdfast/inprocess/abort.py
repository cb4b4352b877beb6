"""What frees ranks that wait for each other, on every rank, before its function is interrupted."""

from __future__ import annotations

import abc
import logging
import sys
from typing import Any

from holdfast.inprocess.state import FrozenState

__all__ = ["Abort", "AbortPersistentCheckpointProcesses", "AbortTransformerEngine"]

LOGGER = logging.getLogger("holdfast")
_JOIN_S = 5.0
"""For a process that was told to end, before it is killed; likely it ends at once."""


class Abort(abc.ABC):
    """Base of all aborts; runs in a thread while the function still waits in a collective."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Free what is waited for; give back ``state``, which may be ``None``."""


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
        executor: Any = sys.modules.get("torch.distributed.checkpoint._async_process_executor")
        checkpointer = getattr(executor, "_CHECKPOINT_PROCESS", None)
        if checkpointer is None:
            return state
        executor._CHECKPOINT_PROCESS = None  # noqa: SLF001 - torch has no public way
        process = getattr(checkpointer, "_save_process", None)
        if process is not None and process.is_alive():
            process.terminate()
            process.join(_JOIN_S)
            if process.is_alive():
                process.kill()
            LOGGER.info("ended the asynchronous checkpoint process %s", process.pid)
        return state
