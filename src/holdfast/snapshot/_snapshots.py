"""The object of the training loop: it takes snapshots and restores one."""

from __future__ import annotations

import sys

from holdfast.base.rank_log import rank_logger
from holdfast.errors import SnapshotError
from holdfast.snapshot._link import launcher_link, restarts_in_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast.snapshot._reader import SnapshotReader
    from holdfast.snapshot._taking import Taking

__all__ = ["SnapshotError", "Snapshots"]

LOGGER = rank_logger("holdfast.snapshot")


class Snapshots:
    """The state of this rank's training, in memory that its launcher keeps when the rank dies.

    ``take`` copies it, as fast as memory is copied; no rank waits for another, nor for a network.
    When the job restarts, its launchers choose the newest snapshot that all ranks have, and
    ``restore`` puts it back. Under plain ``python`` or ``torchrun`` both do nothing, and ``take``
    costs 0.1 µs; so it is for a second training in the same process. In a function of
    :class:`holdfast.inprocess.Wrapper`, which makes it anew in each iteration, both work with any
    launcher or none, and all ranks of an iteration begin from one snapshot.

    Each keyword names a part of the state, and these can be put back:

    ``torch.nn.Module``
        Parameters, persistent buffers and extra state, as in its ``state_dict()``; of FSDP2 and
        other DTensors the shards of this rank. ``DistributedDataParallel`` and what
        ``torch.compile`` returns are seen through. Non-persistent buffers are not part of it.
    ``torch.optim.Optimizer``
        The options of each group, and the state of each parameter. State that does not exist yet
        is made as it was when the snapshot was taken.
    an object with ``state_dict()`` and ``load_state_dict()``
        Schedulers, ``GradScaler``, ``StatefulDataLoader`` and so on. Both are called, the former
        at each snapshot. It returns plain data, tensors and arrays of NumPy.
    ``torch.Tensor``, a random generator (``torch.Generator``, ``numpy.random.Generator``,
    ``random.Random``)
        Put back into the live one.
    ``dict`` or ``list`` of plain data
        Emptied and filled again, with new objects.

    The random numbers of Python, NumPy, torch and the current CUDA device are always part of it.
    Plain data are None, bool, int, float, complex, str, bytes, and lists, tuples, dicts and sets of
    them; a number of NumPy and an enum of int or str come back as their plain value. Give only
    state of this rank: nothing is sent anywhere.

    Args:
        beside: Copy weights and optimizer state beside the next step, and hold the next optimizer
            step until they are copied. Needs a third slot of memory. None: where the weights are on
            a CUDA device. Not for weights that change elsewhere than in the step of a
            ``torch.optim.Optimizer``; where they do, holdfast notices, drops that snapshot and
            copies in the step from then on.
        every: Take one step of so many, on all ranks the same. None: the ranks measure the cost
            of a snapshot, and agree on a number so that this is 1 % of the time at most.
        **state: The parts.

    Raises:
        TypeError: A part is of none of these kinds; the text names it.
        ValueError: ``every`` is less than 1.
    """

    take: Callable[..., bool]
    """``take(step, *, healthy=True)``, to be called at the end of each step: after the optimizer,
    the scheduler, ``GradScaler.update()`` and moving averages. ``step``: number of steps done.
    ``healthy=False``: the state is not worth keeping (a loss that is not finite), and no rank will
    be restored to this step. Returns whether a snapshot was taken, or is being copied. It raises
    nothing and, where memory is missing, takes nothing; a step that was taken already is not taken
    again."""

    def __init__(
        self, *, beside: bool | None = None, every: int | None = None, **state: Any
    ) -> None:
        if every is not None and every < 1:
            raise ValueError(f"every={every}: it is a number of steps, 1 or more")
        if "torch" in sys.modules:  # otherwise no part is torch's, and none is refused in vain
            from holdfast.snapshot._parts import check_kinds  # noqa: PLC0415 - imports torch

            check_kinds(state)
        self.take = _take_nothing
        self._state = state
        self._beside = beside
        self._every = every
        self._link = launcher_link()
        self._taking: Taking | None = None
        self._world_changed = False

    @property
    def world_changed(self) -> bool:
        """Whether another number of ranks took the snapshot: ``restore`` leaves it to the program.

        Known from the call of ``otherwise`` on, and the same on all ranks. It is so only in a job
        with ``--ft-snapshot-dir``, where an earlier job with more or fewer ranks has left one.
        """
        return self._world_changed

    def reader(self) -> SnapshotReader:
        """Read a snapshot that another number of ranks took, where :attr:`world_changed`.

        Returns:
            A :class:`torch.distributed.checkpoint.StorageReader` for ``dcp.load``, over the files
            of all ranks, with the attributes ``step`` and ``world_size``. Its keys are those of a
            checkpoint of ``{"model": ..., "optimizer": ...}`` with the results of
            ``get_state_dict``, if these were the keywords of the parts; other parts have theirs.
            DCP makes the shards of the ranks that load. Tensors that are not sharded, and plain
            parts, are as rank 0 had them. Random numbers are not part of it.

        Raises:
            RuntimeError: There is no such snapshot; see :attr:`world_changed`.
            SnapshotError: A file is damaged, or a tensor's shards cannot be put together; the
                launchers then choose another snapshot at the next restart. It is raised in
                ``dcp.load``, too, when the bytes of a file are first needed.
        """
        if self._taking is None or not self._world_changed:
            raise RuntimeError(
                "reader(): there is no snapshot of another number of ranks. Call it after "
                "restore() or in its `otherwise`, and where `world_changed` is True"
            )
        return self._taking.read_other_world()

    def restore(self, otherwise: Callable[[], int | None] | None = None) -> int:
        """Put the chosen snapshot back, or call ``otherwise``; to be called once, by all ranks.

        To be called when the parts are complete: after ``fully_shard``, after the optimizer is
        made. Snapshots are taken only after it.

        Args:
            otherwise: Loads a checkpoint of the program's, and returns its step (None: 0). It is
                called where there is no snapshot of so many ranks, on all ranks or on none. Where
                :attr:`world_changed`, it may load :meth:`reader` instead, and return its step.

        Returns:
            The number of steps done.

        Raises:
            SnapshotError: A part holds a value that a snapshot cannot; or the snapshot does not fit
                these parts, or its bytes are damaged, and the launchers then choose another one; or
                this rank does not learn from its launcher which one was chosen. The parts may hold
                a mixture then.
        """
        if self._taking is not None:
            LOGGER.warning("restore() is called again: it puts no snapshot back a second time")
            return (otherwise() or 0) if otherwise is not None else self._taking.step
        if (taking := self._begin()) is not None:
            step = taking.restore()
            self.take = taking.take
            self._world_changed = taking.other_world is not None
            if step is not None:
                return step
        return (otherwise() if otherwise is not None else None) or 0

    def begin(self, step: int) -> None:
        """In place of ``restore``: the program has loaded newer state itself, on all ranks.

        Args:
            step: Number of steps done.

        Raises:
            SnapshotError: A part has a value that a snapshot cannot hold.
        """
        if (taking := self._begin()) is not None:
            taking.begin_at(step)
            self.take = taking.take

    def _begin(self) -> Taking | None:
        """The first time, where there is a launcher that gives memory."""
        if self._link is not None and restarts_in_place() and not self._link.call:
            LOGGER.warning(
                "no snapshots are taken: make Snapshots in the function that restarts in place, "
                "anew in each iteration"
            )
            return None
        if self._link is None or self._taking is not None:
            return None
        from holdfast.snapshot._taking import begin  # noqa: PLC0415 - imports torch

        self._taking = begin(self._link, self._state, beside=self._beside, every=self._every)
        if self._taking is not None:
            self._taking.on_end = self._end
        return self._taking

    def close(self) -> None:
        """Take no more; wait for the copy that is under way. May be called again."""
        self.take = _take_nothing
        if self._taking is not None:
            self._taking.close()

    def _end(self) -> None:
        self.take = _take_nothing


def _take_nothing(step: int, *, healthy: bool = True) -> bool:  # noqa: ARG001
    return False
