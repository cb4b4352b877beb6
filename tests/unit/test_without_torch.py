"""Launchers of several nodes meet through torch; where it is missing, one line says so."""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.fault_tolerance import launcher
from holdfast.fault_tolerance.plan import make_plan
from holdfast.torch_edge.job_threads import Callbacks, JobThreads, StoreAddress


def test_a_launcher_without_torch_ends_before_it_makes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, and what can be done about it."""
    monkeypatch.setattr(launcher, "find_spec", lambda _: None)
    script = tmp_path / "train.py"
    script.touch()
    logs = tmp_path / "logs"

    arguments = launcher.parse_args(
        ["--nnodes=2", "--rdzv-endpoint=localhost:29500", f"--log-dir={logs}", str(script)]
    )

    code = launcher.run(make_plan(arguments, {}))

    [line] = capsys.readouterr().err.splitlines()
    assert code == 1
    assert "needs torch" in line
    assert "Install torch" in line
    assert not logs.exists()


def test_a_torch_that_does_not_load_is_told_as_a_lost_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread must not end without a word: the launcher would wait for ever."""
    monkeypatch.setitem(sys.modules, "holdfast.torch_edge.job_store", None)
    monkeypatch.delattr("holdfast.torch_edge.job_store", raising=False)  # another test's import
    told: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    lost: list[str] = []
    nobody = Callbacks(
        tell=told.put,
        met=lambda _: False,
        heard=lambda _: None,
        arrived=lambda _: None,
        lost=lost.append,
    )

    JobThreads(StoreAddress("localhost", 1, False, 1.0, "job"), nobody).begin()
    told.get(timeout=30)()

    assert "torch cannot be imported" in lost[0]
    assert sys.executable in lost[0]
