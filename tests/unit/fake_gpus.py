"""GPUs of a host, in this process: the fake ``pynvml`` with a state that a test writes."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.health import nvml

FAKE_NVML = Path(__file__).parents[1] / "fake_nvml"
NOT_SUPPORTED, GPU_IS_LOST, RESET_REQUIRED, UNKNOWN_ERROR = 3, 15, 16, 999

Gpus = Callable[..., None]


def fake_pynvml() -> ModuleType:
    """A fresh one."""
    spec = importlib.util.spec_from_file_location("pynvml", FAKE_NVML / "pynvml.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    """Called with a dict for each GPU, and keywords for the driver; until then there is none."""
    state = tmp_path / "nvml.json"
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml())
    monkeypatch.setattr(nvml, "_loaded", None)
    monkeypatch.setenv("FAKE_NVML", str(state))

    def describe(*each: dict[str, Any], **driver: Any) -> None:
        state.write_text(json.dumps({"gpus": each, **driver}))

    return describe
