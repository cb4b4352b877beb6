"""A loop over accelerate, watched: hangs of it are found, and explained.

    with watch(accelerator, "out") as training:
        for batch in training.steps(loader):
            ...

Sections: ``setup`` (to the first step), ``step``, ``checkpointing`` (calls of ``save_state``), and
``evaluation`` (``with training.evaluation():``). A step is paused while one of the last two is
open. Without ``ft_launcher``, nothing happens.

A loop with snapshots in memory goes on at the batch that comes next::

    batches = SnapshotBatches(accelerator, loader)
    snapshots = Snapshots(model=model, optimizer=optimizer, scheduler=scheduler, batches=batches)
    step = snapshots.restore()
    for epoch in batches.epochs(3):
        for batch in batches:
            ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from holdfast.integrations._surround import surround
from holdfast.integrations._training_sections import TrainingSections

__all__ = ["SnapshotBatches", "WatchedLoop", "watch"]

_Batch = TypeVar("_Batch")


class WatchedLoop:
    """Methods for a training loop; made by :func:`watch`."""

    def __init__(self, training: TrainingSections) -> None:
        self._training = training

    def steps(self, batches: Iterable[_Batch]) -> Iterator[_Batch]:
        """The same batches; the body of the loop is a step, the loader is outside of sections."""
        for batch in batches:
            with self.step():
                yield batch

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One step, for a loop without a loader."""
        self._training.step_begins()
        try:
            yield
        except BaseException:
            self._training.step_breaks()
            raise
        self._training.step_ends(self._training.iterations + 1)

    def evaluation(self) -> contextlib.AbstractContextManager[None]:
        """An evaluation, within a step or between two."""
        return self._training.evaluation()


@contextlib.contextmanager
def watch(
    accelerator: Any, folder: str | Path, *, learn_timeouts: bool = True
) -> Iterator[WatchedLoop]:
    """Watch a training loop until the block ends.

    Args:
        accelerator: The ``Accelerator``; its ``save_state`` and ``load_state`` are noticed.
        folder: Where learned timeouts are kept (``ft_state.json``): that of the checkpoints.
        learn_timeouts: Learn the timeouts of sections after each save.

    Raises:
        RankMonitorClientError: There is a monitor, and it refused or cannot be reached.
    """
    training = TrainingSections(folder, learns=learn_timeouts)

    @contextlib.contextmanager
    def loading() -> Iterator[None]:
        yield
        training.loaded()

    restores = [
        surround(
            accelerator, "save_state", lambda: training.checkpointing(training.iterations + 1)
        ),
        surround(accelerator, "load_state", loading),
    ]
    is_clean = False
    try:
        yield WatchedLoop(training)
        is_clean = True
    finally:
        for restore in restores:
            restore()
        training.end(is_clean=is_clean)


class SnapshotBatches:
    """The batches of a loader that ``prepare`` returned, epoch by epoch; a part of a snapshot.

    After a restore it goes on behind the batch in whose body the snapshot was taken. The order of
    an epoch must follow from its number: ``DataLoaderConfiguration(use_seedable_sampler=True)``.

    Args:
        accelerator: The ``Accelerator``.
        loader: As its ``prepare`` has returned it.

    Attributes:
        epoch: Counted from 0.
    """

    def __init__(self, accelerator: Any, loader: Any) -> None:
        self._accelerator = accelerator
        self._loader = loader
        self.epoch = 0
        self._batches = 0

    def epochs(self, n: int) -> Iterator[int]:
        """The epochs that are left of ``n``; the first may be one that has begun."""
        while self.epoch < n:
            yield self.epoch
            self.epoch, self._batches = self.epoch + 1, 0

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left in this epoch."""
        from holdfast.snapshot import _random_state  # noqa: PLC0415 - imports torch

        loader, before = self._loader, None
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(self.epoch)
        if self._batches:
            # To begin an iteration draws random numbers, which the old process has drawn already.
            loader, before = (
                self._accelerator.skip_first_batches(loader, self._batches),
                _random_state.read(),
            )
        for batch in loader:
            if before is not None:
                _random_state.write(before)
                before = None
            self._batches += 1
            yield batch
        if before is not None:
            _random_state.write(before)

    def state_dict(self) -> dict[str, int]:
        """Where it is."""
        return {"epoch": self.epoch, "batches": self._batches}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go there."""
        self.epoch, self._batches = state["epoch"], state["batches"]
