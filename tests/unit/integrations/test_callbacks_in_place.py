"""Snapshots of trainers are off in a function that restarts in place: they are not tried there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from holdfast.integrations import _fit_snapshots as fit


def strategy_that_is_supported() -> SimpleNamespace:
    connector = SimpleNamespace(resume_start=None, resume_end=None)
    epoch_loop = SimpleNamespace(on_run_start=None, on_advance_end=None)
    moments = {"setup_data": None, "on_advance_start": None, "on_advance_end": None}
    loop = SimpleNamespace(_restart_stage=None, epoch_loop=epoch_loop, **moments)
    return SimpleNamespace(
        strategy=object(),
        fit_loop=loop,
        _checkpoint_connector=connector,
        callbacks=[],
        lightning_module=object(),
        global_rank=0,
    )


@pytest.mark.parametrize("in_place", [False, True])
def test_lightnings_methods_are_left_alone_in_place_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, in_place: bool
) -> None:
    monkeypatch.setattr(fit, "restarts_in_place", lambda: in_place)
    trainer = strategy_that_is_supported()
    fit.FitSnapshots(trainer, {}).begin()
    assert (trainer.fit_loop.setup_data is None) == in_place
    assert ("does not work in a function that restarts in place" in caplog.text) == in_place


@pytest.mark.parametrize("in_place", [False, True])
def test_trainers_train_takes_no_snapshots_in_place_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, in_place: bool
) -> None:
    """Also where the trainer was made before the function was entered."""
    pytest.importorskip("transformers")
    from holdfast.integrations import _trainer_snapshots as module

    trainer = SimpleNamespace(args=SimpleNamespace(device="cpu", output_dir="out"))
    for name in module._METHODS:
        setattr(trainer, name, lambda *_: None)
    module.TrainerSnapshots(trainer, {})
    monkeypatch.setattr(module, "restarts_in_place", lambda: in_place)
    trainer.train()
    assert ("does not work in a function that restarts in place" in caplog.text) == in_place
