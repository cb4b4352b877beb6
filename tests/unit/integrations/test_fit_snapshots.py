"""Callbacks of Lightning whose state a snapshot does not see: no snapshots, or a warning."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from holdfast.integrations import _fit_snapshots as fit
from tests.unit.integrations.test_callbacks_in_place import strategy_that_is_supported


def callback(base: str, module: str = "lightning.pytorch.callbacks", **members: Any) -> Any:
    """Of a class of the user's, derived from one of this name."""
    parent = type(base, (), {**members, "__module__": module})
    return type("Mine", (parent,), {"__module__": "train"})()


@pytest.mark.parametrize("base", ["StochasticWeightAveraging", "WeightAveraging", "BaseFinetuning"])
def test_a_training_that_only_a_checkpoint_can_continue_takes_no_snapshots(
    caplog: pytest.LogCaptureFixture, base: str
) -> None:
    trainer = strategy_that_is_supported()
    trainer.callbacks = [callback("EarlyStopping"), callback(base)]
    fit.FitSnapshots(trainer, {}).begin()
    assert trainer.fit_loop.setup_data is None
    assert "no snapshots are taken: Mine " in caplog.text


@pytest.mark.parametrize(
    ("module", "is_launched", "is_named"),
    [("train", True, True), ("train", False, False), ("lightning.pytorch.core", True, False)],
)
def test_a_hook_of_the_users_that_snapshots_do_not_call_is_named(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: str,
    is_launched: bool,
    is_named: bool,
) -> None:
    monkeypatch.setattr(fit, "has_launcher", lambda: is_launched)
    trainer = strategy_that_is_supported()
    trainer.lightning_module = callback("Model", module, on_save_checkpoint=print)
    fit.FitSnapshots(trainer, {}).begin()
    assert trainer.fit_loop.setup_data is not None
    assert ("on_save_checkpoint of Mine is not called at snapshots" in caplog.text) is is_named


@pytest.mark.parametrize(("of_snapshot", "then"), [(False, False), (True, True), (None, True)])
def test_ddp_sends_buffers_at_the_next_forward_only_if_it_had_done_so_before(
    of_snapshot: bool | None, then: bool
) -> None:
    """With manual optimization it does so once; buffers are each rank's own from then on."""
    trainer = strategy_that_is_supported()
    trainer.global_step, trainer.fit_loop.load_state_dict = 3, lambda _: None
    trainer.strategy = SimpleNamespace(model=SimpleNamespace(require_forward_param_sync=True))
    trainer._logger_connector = SimpleNamespace(**{name: {} for name in fit._METRICS})
    snapshots = fit.FitSnapshots(trainer, {})
    metrics: dict[str, Any] = {name: {} for name in fit._METRICS}
    snapshots._restored = {
        "loops": {},
        "should_stop": False,
        "metrics": metrics,
        "syncs_buffers": of_snapshot,
    }
    snapshots.train_starts()
    assert trainer.strategy.model.require_forward_param_sync is then
