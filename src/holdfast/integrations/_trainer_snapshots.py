"""Snapshots of Hugging Face's ``Trainer``: taken between its steps, put back as it resumes.

A folder that holds ``trainer_state.json`` alone stands for a snapshot: the trainer resumes from it
as from any checkpoint, with its step, its epoch and its place in the data, and the methods that
would read weights, optimizer and random states from the folder take them from the snapshot.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_callback import ExportableState, TrainerState
from transformers.trainer_utils import get_last_checkpoint

from holdfast.base.rank_log import rank_logger
from holdfast.integrations._agreement import (
    NOT_IN_PLACE,
    agreed_step,
    begins_from_snapshot,
    restore_as_agreed,
)
from holdfast.integrations._pure.snapshot_moments import Position, SnapshotMoments
from holdfast.integrations._surround import replace
from holdfast.integrations._text_tensor import GrowingText
from holdfast.snapshot import Snapshots
from holdfast.snapshot import _random_state as random_state
from holdfast.snapshot._link import restarts_in_place
from holdfast.snapshot._waiting import WaitingSnapshot, has_launcher, waiting_snapshot

STATE_NAME = "trainer_state.json"
_METHODS = (
    "train",
    "_init_training_state",
    "_load_from_checkpoint",
    "_load_optimizer_and_scheduler",
    "_load_rng_state",
    "_run_epoch",
    "_maybe_log_save_evaluate",
)
_OF_THIS_RUN = frozenset(
    {
        "is_hyper_param_search",
        "is_local_process_zero",
        "is_world_process_zero",
        "log_history",
        "max_steps",
        "num_train_epochs",
        "stateful_callbacks",
        "trial_name",
        "trial_params",
    }
)
"""Fields of the trainer's state that a new process has itself, or that are kept in another way."""
_LOSS = (
    "_tr_loss",
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
    "current_flos",
)


class TrainerSnapshots:
    """The snapshots of one trainer, for its first call of ``train``.

    Args:
        trainer: Its methods are replaced, for this object alone.
        more: Further parts of the state, by name.
    """

    def __init__(self, trainer: Any, more: Mapping[str, Any]) -> None:
        self._trainer = trainer
        self._more = more
        self._logger = rank_logger(__name__)
        self._snapshots: Snapshots | None = None
        self._moments: SnapshotMoments | None = None
        self._folder: str | None = None
        self._waiting: WaitingSnapshot | None = None
        self._restored: dict[str, Any] | None = None
        self._after: dict[str, Any] = {}
        self._epoch_begin: dict[str, Any] = {}
        self._generator: torch.Generator | None = None
        self._log = GrowingText()
        self._steps_in_epoch = 0
        self._is_at_epoch_end = self._was_called = False
        if why := self._why_not():
            self._logger.warning("no snapshots are taken: %s", why)
            return
        for name in _METHODS:
            replace(trainer, name, getattr(self, name if name[0] == "_" else f"_{name}"))

    def _why_not(self) -> str:
        if restarts_in_place():
            return NOT_IN_PLACE
        trainer = self._trainer
        missing = [name for name in _METHODS if not hasattr(trainer, name)]
        if missing:
            return f"this release of transformers has no Trainer.{missing[0]}; 5.20 has"
        if getattr(trainer, "is_deepspeed_enabled", False):
            return "DeepSpeed keeps the optimizer's state in a form of its own"
        if getattr(trainer, "is_fsdp_enabled", False):
            plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
            if getattr(plugin, "fsdp_version", 1) != 2:
                return 'of FSDP, version 2 is supported: fsdp_config={"version": 2}'
        return ""

    # ------------------------------------------------------------------ in place of its methods

    def _train(
        self,
        original: Callable[..., Any],
        resume_from_checkpoint: Any = None,
        *rest: Any,
        **more: Any,
    ) -> Any:
        is_first, self._was_called = not self._was_called, True
        if restarts_in_place():  # the trainer was made before
            self._logger.warning("no snapshots are taken: %s", NOT_IN_PLACE)
            self._snapshots = self._moments = None
            return original(resume_from_checkpoint, *rest, **more)
        is_trial = bool(rest and rest[0] is not None) or more.get("trial") is not None
        if not is_first or is_trial:
            if is_first or self._snapshots is not None:
                self._logger.warning(
                    "no snapshots are taken in this call of train(): they are in the first one of "
                    "a process, and in none of a search for hyperparameters"
                )
            self._snapshots = self._moments = None
            return original(resume_from_checkpoint, *rest, **more)
        self._moments = SnapshotMoments(Position())
        with self._snapshot_folder(resume_from_checkpoint) as folder:
            self._folder = folder
            try:
                return original(folder or resume_from_checkpoint, *rest, **more)
            finally:
                self._folder = None
                self._moments = None

    @contextlib.contextmanager
    def _snapshot_folder(self, checkpoint: Any) -> Iterator[str | None]:
        """A folder that stands for the snapshot that waits; None: the script's own begin."""
        device = self._trainer.args.device
        waiting = self._waiting = waiting_snapshot()
        step = -1 if waiting is None else waiting.step
        if not has_launcher() or agreed_step(step, device) < 0 or waiting is None:
            yield None
            return
        if checkpoint:
            other = checkpoint_step(checkpoint, self._trainer.args.output_dir)
            if not begins_from_snapshot(step, other, device):
                yield None
                return
        folder = tempfile.mkdtemp(prefix="holdfast-snapshot-")
        try:
            exportable = [*self._exportable(), self._trainer.control]
            state = {
                **waiting.parts["trainer"]["state"],
                "stateful_callbacks": TrainerState(
                    stateful_callbacks=exportable
                ).stateful_callbacks,
            }
            Path(folder, STATE_NAME).write_text(json.dumps(state), encoding="utf-8")
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _init_training_state(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        if self._folder is None:
            return found
        assert self._waiting is not None
        at = Position(*self._waiting.parts["trainer"]["position"])
        return at.epoch, 0 if self._trainer.args.ignore_data_skip else at.batches

    def _load_from_checkpoint(
        self, original: Callable[..., Any], folder: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return None if folder == self._folder else original(folder, *args, **kwargs)

    def _load_optimizer_and_scheduler(self, original: Callable[..., Any], folder: Any) -> Any:
        if folder is None or folder != self._folder:
            return original(folder)
        self._snapshots = self._new_snapshots()
        assert self._waiting is not None
        restore_as_agreed(self._snapshots, self._waiting.step)
        self._after = random_state.read()
        return None

    def _load_rng_state(self, original: Callable[..., Any], folder: Any) -> Any:
        if folder is None or folder != self._folder:
            return original(folder)
        random_state.write(self._after)
        return None

    def _run_epoch(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._moments is None:
            return original(*args, **kwargs)
        if self._moments.at.is_over:
            self._trainer.control.should_training_stop = True
            return None
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        self._steps_in_epoch = given["steps_in_epoch"]
        self._is_at_epoch_end = False
        return original(*args, **kwargs)

    def _maybe_log_save_evaluate(
        self, original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> None:
        original(*args, **kwargs)
        if self._moments is None or self._snapshots is None:
            return
        control = self._trainer.control
        if self._is_at_epoch_end:
            takes = self._moments.epoch_done(is_over=control.should_training_stop)
        else:
            is_last = self._moments.at.batches >= self._steps_in_epoch
            stops = control.should_epoch_stop or control.should_training_stop
            takes = self._moments.step_done(is_last=is_last or stops)
        if takes:
            norm = args[1] if len(args) > 1 else kwargs.get("grad_norm")
            is_healthy = norm is None or math.isfinite(norm)
            self._snapshots.take(self._trainer.state.global_step, healthy=is_healthy)

    # ------------------------------------------------------------------ events of the callback

    def train_begins(self) -> None:
        """Every part of the training is there, and what resumes has been loaded."""
        if self._moments is None:
            return
        if self._snapshots is None:
            self._snapshots = self._new_snapshots()
            self._snapshots.begin(self._trainer.state.global_step)
        if self._restored is not None:
            self._put_back(self._restored)

    def epoch_begins(self, loader: Any) -> None:
        """Before the first batch is asked for: its order depends on random states."""
        if self._moments is None:
            return
        restored, self._restored = self._restored, None
        self._generator = getattr(loader, "synchronized_generator", None)
        if restored is not None:
            is_within = self._moments.at.batches > 0
            begin = restored["epoch_begin"] if is_within else restored["epoch_next"]
            random_state.write(begin["random"] if is_within else self._after)
            if self._generator is not None and "generator" in begin:
                self._generator.set_state(begin["generator"])
            if is_within:
                self._epoch_begin = begin
                return
        self._epoch_begin = {"random": random_state.read(), **self._generator_state()}

    def _generator_state(self) -> dict[str, Any]:
        generator = self._generator
        return {} if generator is None else {"generator": generator.get_state()}

    def batch_ended(self, *, has_stepped: bool) -> None:
        """Of the training."""
        if self._moments is not None:
            self._moments.batch_ended(has_stepped=has_stepped)

    def epoch_ended(self) -> None:
        """The trainer's work after it follows."""
        self._is_at_epoch_end = True

    # ------------------------------------------------------------------ its state

    def _new_snapshots(self) -> Snapshots:
        trainer = self._trainer
        optimizer = trainer.optimizer
        parts = {
            "model": trainer.model,
            "optimizer": getattr(optimizer, "optimizer", optimizer),
            "scheduler": trainer.lr_scheduler,
            "trainer": self,
        }
        scaler = getattr(trainer.accelerator, "scaler", None)
        if scaler is not None:
            parts["scaler"] = scaler
        return Snapshots(**parts, **self._more)

    def state_dict(self) -> dict[str, Any]:
        """The trainer's own state, as plain data and tensors."""
        trainer, state = self._trainer, self._trainer.state
        assert self._moments is not None
        text, length = self._log.of(state.log_history)
        return {
            "position": list(self._moments.at),
            "state": {
                field.name: getattr(state, field.name)
                for field in dataclasses.fields(state)
                if field.name not in _OF_THIS_RUN
            },
            "callbacks": [
                [type(each).__qualname__, each.state()["attributes"]] for each in self._exportable()
            ],
            "log": text,
            "log_length": length,
            "loss": {name: getattr(trainer, name) for name in _LOSS if hasattr(trainer, name)},
            "epoch_begin": self._epoch_begin,
            "epoch_next": self._generator_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Kept until the trainer has set its own state to the begin of a run."""
        self._restored = state
        self._moments = SnapshotMoments(Position(*state["position"]))
        trainer = self._trainer
        for name, value in state["state"].items():
            setattr(trainer.state, name, value)
        best = trainer.state.best_model_checkpoint
        if best is not None and not Path(best).is_dir():
            trainer.state.best_model_checkpoint = None
        trainer.state.log_history = self._log.entries(state["log"], state["log_length"])
        left = list(state["callbacks"])
        for each in self._exportable():
            for row in left:
                if row[0] == type(each).__qualname__:
                    left.remove(row)
                    vars(each).update(row[1])
                    break

    def _put_back(self, state: dict[str, Any]) -> None:
        for name, value in state["loss"].items():
            live = getattr(self._trainer, name, None)
            if isinstance(live, torch.Tensor):
                live.copy_(value)
            else:
                setattr(self._trainer, name, value)

    def _exportable(self) -> list[Any]:
        """Callbacks that say their state, as transformers' do for its checkpoints."""
        return [
            x for x in self._trainer.callback_handler.callbacks if isinstance(x, ExportableState)
        ]


def checkpoint_step(checkpoint: Any, output_dir: str) -> int | None:
    """The step of a checkpoint that a script asks for; None: it cannot be read."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        folder = get_last_checkpoint(output_dir) if checkpoint is True else checkpoint
        text = Path(folder, STATE_NAME).read_text(encoding="utf-8")
        return int(json.loads(text)["global_step"])
    return None
