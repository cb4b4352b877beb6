"""A callback for Hugging Face's ``Trainer``: hangs of a training are found, and explained.

    trainer = Trainer(..., callbacks=[FaultToleranceCallback()])
    trainer.train(resume_from_checkpoint=last_checkpoint("out"))

Sections: ``setup`` (a call of ``train``, to its first step), ``step``, ``evaluation``,
``checkpointing``. The callback calls nothing that only ``ft_launcher`` provides, so the same script
runs under torchrun and plain ``python``.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from holdfast.base.rank_log import rank_logger
from holdfast.integrations._surround import surround
from holdfast.integrations._trainer_snapshots import TrainerSnapshots
from holdfast.integrations._training_sections import TrainingSections

__all__ = ["FaultToleranceCallback", "SnapshotCallback", "last_checkpoint"]

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_STATE = "trainer_state.json"


class FaultToleranceCallback(TrainerCallback):
    """Marks the sections of a training.

    A trainer tells its callbacks when a save or an evaluation has ended, not that it begins; and
    nothing of an exception. So the callback surrounds the trainer's own methods: ``train``,
    ``evaluate`` and ``_save_checkpoint``.

    Args:
        learn_timeouts: Learn the timeouts of sections after each save, keep them in
            ``ft_state.json`` beside the checkpoints, and use them in the next run.
        folder: Where that file is; ``None``: the trainer's ``output_dir``.
    """

    def __init__(self, *, learn_timeouts: bool = True, folder: str | Path | None = None) -> None:
        self._learns = learn_timeouts
        self._folder = folder
        self._trainer: Any = None
        self._training: TrainingSections | None = None
        self._is_in_train = False

    def on_init_end(self, *_: Any, **__: Any) -> None:
        """The trainer is complete, but for callbacks that are added later."""
        self._attach()

    def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Checkpoints are loaded. A callback that was added after the trainer begins here."""
        self._attach()
        if self._training is None:
            self._begin()
        if self._training is not None and state.global_step > 0:
            self._training.loaded()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Of the optimizer's step, with all its batches."""
        if self._training is not None:
            self._training.step_begins()

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Before the trainer logs, evaluates and saves."""
        if self._training is not None:
            self._training.step_ends(state.global_step)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The end of a training whose ``train`` is not surrounded."""
        if not self._is_in_train:
            self._end(is_clean=True)

    def _attach(self) -> None:
        trainer = _trainer_of(self)
        if trainer is None or trainer is self._trainer:
            return
        self._trainer = trainer
        surround(trainer, "train", self._in_train)
        surround(trainer, "evaluate", self._in_evaluation)
        if hasattr(trainer, "_save_checkpoint"):
            surround(trainer, "_save_checkpoint", self._in_save)
        else:
            rank_logger(__name__).warning(
                "this release of transformers saves in another way: section 'checkpointing' is "
                "not timed, saves count as time outside sections"
            )

    def _begin(self) -> None:
        if self._trainer is not None:
            folder = self._folder or self._trainer.args.output_dir
            self._training = TrainingSections(folder, learns=self._learns)

    def _end(self, *, is_clean: bool) -> None:
        training, self._training = self._training, None
        if training is not None:
            training.end(is_clean=is_clean)

    @contextlib.contextmanager
    def _in_train(self) -> Iterator[None]:
        if self._is_in_train:
            yield
            return
        self._is_in_train, is_clean = True, False
        try:
            self._begin()
            yield
            is_clean = True
        finally:
            self._is_in_train = False
            self._end(is_clean=is_clean)

    def _in_evaluation(self) -> contextlib.AbstractContextManager[object]:
        training = self._training
        return contextlib.nullcontext() if training is None else training.evaluation()

    def _in_save(self) -> contextlib.AbstractContextManager[object]:
        training = self._training
        if training is None:
            return contextlib.nullcontext()
        return training.checkpointing(self._trainer.state.global_step)


class SnapshotCallback(TrainerCallback):
    """Snapshots of a training in memory: a restart begins from the last step, not from a save.

    A script with this callback in ``callbacks=[...]`` needs no other change. ``trainer.train()``
    begins from the newest snapshot that all ranks have, with ``resume_from_checkpoint`` from the
    newer of that and the checkpoint: model, optimizer, scheduler, scaler, random numbers, the place
    in the data, the trainer's state with its log, and callbacks that are ``ExportableState``. The
    trainer's own methods are surrounded, as those of its checkpoints. Snapshots are taken in the
    first call of ``train`` of a process, when all that belongs to a step is done: logging,
    evaluation and save.

    Args:
        **more: Further parts of the state, by name, as for :class:`holdfast.snapshot.Snapshots`:
            parts beside the model, such as a moving average of its weights.
    """

    def __init__(self, **more: Any) -> None:
        self._more = more
        self._snapshots: TrainerSnapshots | None = None

    def on_init_end(self, *_: Any, **__: Any) -> None:
        """The trainer is complete."""
        trainer = _trainer_of(self)
        if trainer is not None and self._snapshots is None:
            self._snapshots = TrainerSnapshots(trainer, self._more)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Checkpoints are loaded."""
        if self._snapshots is None:
            rank_logger(__name__).warning(
                "no snapshots are taken: SnapshotCallback was added to a complete trainer; give it "
                "in Trainer(callbacks=[...])"
            )
        else:
            self._snapshots.train_begins()

    def on_epoch_begin(self, *_: Any, train_dataloader: Any = None, **__: Any) -> None:
        """Before the first batch."""
        if self._snapshots is not None:
            self._snapshots.epoch_begins(train_dataloader)

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        """A batch whose gradients are added to those of the next."""
        if self._snapshots is not None:
            self._snapshots.batch_ended(has_stepped=False)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Before the trainer logs, evaluates and saves."""
        if self._snapshots is not None:
            self._snapshots.batch_ended(has_stepped=True)

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """Before the trainer logs, evaluates and saves."""
        if self._snapshots is not None:
            self._snapshots.epoch_ended()


def _trainer_of(callback: TrainerCallback) -> Any:
    """The trainer that calls ``callback`` now. It does not hand itself to its callbacks."""
    frame: Any = sys._getframe(1)  # noqa: SLF001 - the caller that is looked for is above
    while frame is not None:
        caller = frame.f_locals.get("self")
        handler = getattr(caller, "callback_handler", None)
        if any(each is callback for each in getattr(handler, "callbacks", ())):
            return caller
        frame = frame.f_back
    return None


def last_checkpoint(folder: str | Path) -> str | None:
    """The newest checkpoint that is complete, to be given to ``resume_from_checkpoint``.

    A rank that is killed during a save leaves a part of a checkpoint. transformers' own
    ``get_last_checkpoint`` returns that one, and every restart would fail in it. The trainer writes
    ``trainer_state.json`` last.

    Returns:
        Its path; ``None``: there is none, or no folder.
    """
    root = Path(folder)
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    steps = [int(match[1]) for match in map(_CHECKPOINT.fullmatch, names) if match]
    for step in sorted(steps, reverse=True):
        path = root / f"checkpoint-{step}"
        with contextlib.suppress(OSError, ValueError):
            json.loads((path / _STATE).read_text(encoding="utf-8"))
            return str(path)
    return None
