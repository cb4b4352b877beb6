"""Snapshots of a Lightning ``fit``: taken between its steps, put back before the first one.

Lightning resumes from a checkpoint in the middle of an epoch with other batches than those that
were left, and counts some hooks twice. So its loops are not resumed here: they begin as for a new
training, with the progress that the snapshot has, at the batch that comes next.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from holdfast.arena.pure.plain_data import NotPlainError, encode
from holdfast.base.rank_log import rank_logger
from holdfast.integrations._agreement import (
    NOT_IN_PLACE,
    agreed_step,
    begins_from_snapshot,
    restore_as_agreed,
)
from holdfast.integrations._epoch_data import EpochData
from holdfast.integrations._epoch_sums import EpochSums
from holdfast.integrations._pure.snapshot_moments import Position, SnapshotMoments
from holdfast.integrations._surround import replace
from holdfast.snapshot import Snapshots
from holdfast.snapshot import _random_state as random_state
from holdfast.snapshot._link import restarts_in_place
from holdfast.snapshot._waiting import has_launcher, waiting_snapshot

_EPOCH_LOOP = "epoch_loop."
_LEFT_TO_CHECKPOINTS = {
    "StochasticWeightAveraging": "averages weights, and changes schedulers, outside its own state",
    "WeightAveraging": "has its averages in checkpoints alone",
    "BaseFinetuning": "adds groups of parameters in mid-training, which a restart does not have",
}
"""Callbacks of Lightning, and why a training with them begins from its checkpoints."""
_METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")


class FitSnapshots:
    """The snapshots of one call of ``fit``.

    Args:
        trainer: Methods of its loops are replaced until :meth:`end`.
        more: Further parts of the state, by name.
    """

    def __init__(self, trainer: Any, more: Mapping[str, Any]) -> None:
        self._trainer = trainer
        self._more = more
        self._logger = rank_logger(__name__)
        self._snapshots: Snapshots | None = None
        self._moments = SnapshotMoments(Position())
        self._data = EpochData(trainer.fit_loop)
        self._sums = EpochSums()
        self._restored: dict[str, Any] | None = None
        self._after: dict[str, Any] = {}
        self._global_step = 0
        self._is_chosen = False
        self._waiting_step = -1
        self._left_out: set[str] = set()
        self._undo: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Before a checkpoint is loaded, if there is one."""
        if why := self._why_not():
            if self._trainer.global_rank == 0:
                self._logger.warning("no snapshots are taken: %s", why)
            return
        connector, loop = self._trainer._checkpoint_connector, self._trainer.fit_loop
        self._warn_of_hooks()
        self._undo = [
            replace(connector, "resume_start", self._resume_start),
            replace(connector, "resume_end", self._resume_end),
            replace(loop, "setup_data", self._setup_data),
            replace(loop, "on_advance_start", self._epoch_starts),
            replace(loop, "on_advance_end", self._epoch_ends),
            replace(loop.epoch_loop, "on_run_start", self._batches_start),
            replace(loop.epoch_loop, "on_advance_end", self._batch_ends),
        ]

    def end(self) -> None:
        """Methods are themselves again."""
        while self._undo:
            self._undo.pop()()

    def _why_not(self) -> str:
        if restarts_in_place():
            return NOT_IN_PLACE
        strategy = type(self._trainer.strategy).__name__
        if strategy in ("DeepSpeedStrategy", "FSDPStrategy", "XLAStrategy"):
            return f"{strategy} keeps the state in a form of its own; ddp does not"
        if not hasattr(self._trainer.fit_loop, "_restart_stage"):
            return "this release of Lightning counts its progress in another way; 2.6 is supported"
        for each in self._trainer.callbacks:
            for kind in type(each).__mro__:
                if why := _LEFT_TO_CHECKPOINTS.get(kind.__name__):
                    return f"{type(each).__name__} {why}"
        return ""

    def _warn_of_hooks(self) -> None:
        """Name those of the user's that keep state where a snapshot does not see it."""
        if self._trainer.global_rank != 0 or not has_launcher():
            return
        for each in (self._trainer.lightning_module, *self._trainer.callbacks):
            if _own_hook(type(each)):
                self._logger.warning(
                    "on_save_checkpoint of %s is not called at snapshots: give the state that it "
                    "saves as SnapshotCallback(name=...), or have state_dict() return it",
                    type(each).__name__,
                )

    # ------------------------------------------------------------------ loaded

    def _resume_start(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        self._is_chosen = self._choose()
        if self._is_chosen:
            connector = self._trainer._checkpoint_connector
            connector._loaded_checkpoint, connector._ckpt_path = {}, None

    def _choose(self) -> bool:
        """Whether this fit begins from the snapshot that waits."""
        device = self._trainer.strategy.root_device
        waiting = waiting_snapshot()
        step = -1 if waiting is None else waiting.step
        if not has_launcher() or agreed_step(step, device) < 0 or waiting is None:
            return False
        self._waiting_step = step
        loaded = self._trainer._checkpoint_connector._loaded_checkpoint
        other = loaded.get("global_step") if loaded else None
        own = waiting.parts["trainer"]["global_step"]
        return begins_from_snapshot(own, other, device) if loaded else True

    def _resume_end(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._snapshots = self._new_snapshots()
        if self._is_chosen:
            restore_as_agreed(self._snapshots, self._waiting_step)
            self._after = random_state.read()
            # Its check before the training would change buffers, as it leaves out for checkpoints.
            self._trainer.fit_loop.epoch_loop.val_loop._restarting = True
        else:
            self._snapshots.begin(self._step())
        original(*args, **kwargs)

    def _new_snapshots(self) -> Snapshots:
        trainer = self._trainer
        parts: dict[str, Any] = {"model": trainer.lightning_module}
        for name, found in (
            ("optimizer", trainer.optimizers),
            ("scheduler", [each.scheduler for each in trainer.lr_scheduler_configs]),
        ):
            parts.update({f"{name}{i or ''}": each for i, each in enumerate(found)})
        return Snapshots(**parts, precision=trainer.precision_plugin, trainer=self, **self._more)

    def _setup_data(self, original: Callable[..., Any]) -> None:
        restored = self._restored
        if restored is not None and self._trainer.fit_loop._combined_loader is None:
            is_within = Position(*restored["position"]).batches > 0
            self._data.setup_again(original, restored["data"] if is_within else {})
        else:
            self._data.setup(original)

    def train_starts(self) -> None:
        """All is set up; the first epoch follows."""
        self._global_step = self._trainer.global_step
        if self._restored is None:
            return
        trainer, loop, state = self._trainer, self._trainer.fit_loop, self._restored
        loop.load_state_dict(state["loops"])
        _begin_anew(loop)
        self._global_step = trainer.global_step
        if state["syncs_buffers"] is not None:  # of manual optimization: the first forward alone
            trainer.strategy.model.require_forward_param_sync = state["syncs_buffers"]
        if self._moments.at.batches > 0:
            loop._restart_stage = sys.modules[
                type(loop).__module__
            ].RestartStage.RESTARTED_MID_EPOCH
        trainer.should_stop = state["should_stop"]
        for name in _METRICS:
            getattr(trainer._logger_connector, name).update(state["metrics"][name])

    def _epoch_starts(self, original: Callable[..., Any]) -> None:
        if self._restored is not None and self._moments.at.batches == 0:
            self._restored = None
            random_state.write(self._after)
        original()

    def _batches_start(self, original: Callable[..., Any], fetcher: Any) -> None:
        state, self._restored = self._restored, None
        if state is None:
            self._data.begin(original, fetcher)
            return
        self._data.go_on(original, fetcher, state["data"])
        epoch_loop = self._trainer.fit_loop.epoch_loop
        epoch_loop.load_state_dict(state["loops"], prefix=_EPOCH_LOOP)
        _begin_anew(epoch_loop)
        connector = self._trainer._logger_connector
        connector._first_loop_iter, connector._current_fx = False, None
        self._sums.put_back(epoch_loop._results, self._trainer.lightning_module, state["sums"])
        random_state.write(self._after)

    # ------------------------------------------------------------------ taken

    def _batch_ends(self, original: Callable[..., Any], fetcher: Any) -> None:
        step = self._trainer.global_step
        has_stepped, self._global_step = step > self._global_step, step
        original(fetcher)
        self._moments.batch_ended(has_stepped=has_stepped)
        if self._moments.step_done(is_last=self._trainer.fit_loop.epoch_loop.done):
            self._take()

    def _epoch_ends(self, original: Callable[..., Any]) -> None:
        original()
        self._sums.forget()
        if self._moments.epoch_done(is_over=False):
            self._take()

    def _take(self) -> None:
        if self._snapshots is not None:
            self._snapshots.take(self._step())

    def _step(self) -> int:
        """Steps so far, each counted by one."""
        if self._trainer.lightning_module.automatic_optimization:
            return int(self._trainer.global_step)
        return int(self._trainer.fit_loop.epoch_loop.batch_progress.total.completed)

    def state_dict(self) -> dict[str, Any]:
        """The trainer's own state, as plain data and tensors."""
        trainer = self._trainer
        connector, loops = trainer._logger_connector, trainer.fit_loop.state_dict()
        loops["state_dict"] = {
            k: v for k, v in loops["state_dict"].items() if k != "combined_loader"
        }
        data = trainer.datamodule
        return {
            "global_step": trainer.global_step,
            "position": list(self._moments.at),
            "loops": loops,
            "callbacks": {
                each.state_key: self._plain(f"state of {type(each).__qualname__}", state)
                for each in trainer.callbacks
                if (state := each.state_dict())
            },
            "datamodule": {}
            if data is None
            else self._plain("state of the datamodule", data.state_dict()),
            "should_stop": trainer.should_stop,
            "syncs_buffers": getattr(trainer.strategy.model, "require_forward_param_sync", None),
            "metrics": {
                name: {k: _detached(v) for k, v in getattr(connector, name).items()}
                for name in _METRICS
            },
            "sums": self._sums.state(
                trainer.fit_loop.epoch_loop._results, trainer.lightning_module
            ),
            "data": self._data.state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Kept until Lightning has set up its loops; callbacks load theirs now."""
        self._restored = state
        self._moments = SnapshotMoments(Position(*state["position"]))
        trainer = self._trainer
        for each in trainer.callbacks:
            if own := state["callbacks"].get(each.state_key):
                each.load_state_dict(own)
        if trainer.datamodule is not None and state["datamodule"]:
            trainer.datamodule.load_state_dict(state["datamodule"])

    def _plain(self, what: str, state: Mapping[str, Any]) -> dict[str, Any]:
        """Without the values that a snapshot cannot hold, each named once."""
        kept = {}
        for key, value in state.items():
            try:
                encode(value, str(key), _is_tensor)
            except NotPlainError as error:
                if (name := f"{what}: {error}") not in self._left_out:
                    self._left_out.add(name)
                    self._logger.warning(
                        "left out of snapshots, which hold plain data and tensors: %s", name
                    )
            else:
                kept[key] = value
        return kept


def _begin_anew(loop: Any) -> None:
    """The loop and those in it have their progress, and do not count as restarted."""
    for each in vars(loop).values():
        if hasattr(each, "_loaded_from_state_dict"):
            _begin_anew(each)
    loop._restarting = loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
    if hasattr(loop, "_combined_loader_states_to_load"):
        loop._combined_loader_states_to_load = []


def _own_hook(kind: type) -> bool:
    """Whether a class of the user's saves something beside ``state_dict()``."""
    return any(
        "on_save_checkpoint" in vars(each)
        and each.__module__.partition(".")[0] not in ("lightning", "pytorch_lightning", "holdfast")
        for each in kind.__mro__
    )


def _is_tensor(path: str, value: Any) -> str | None:
    """For :func:`encode`: tensors and NumPy's arrays and numbers are held as they are."""
    is_held = isinstance(value, torch.Tensor) or (
        type(value).__module__ == "numpy"
        and getattr(getattr(value, "dtype", None), "kind", "-") in "biufc"
    )
    return path if is_held else None


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value
