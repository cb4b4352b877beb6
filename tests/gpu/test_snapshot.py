"""Snapshots of a training on a CUDA device: what they cost, and what is restored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.gpu import machine
from tests.gpu.report import Found


@pytest.mark.gpu(50, 120)
def test_snapshots_beside_the_step_are_those_of_an_undisturbed_run(found: Found) -> None:
    """Snapshots copied beside the step restore, bit by bit, what a run without them computes."""
    if machine.is_stand_in():
        pytest.skip("streams and registered memory need a CUDA device")
    env = os.environ | {"PYTHONPATH": f"{machine.ROOT / 'src'}:{machine.ROOT}"}
    command = [sys.executable, str(machine.ROOT / "tests" / "gpu" / "snapshot_probe.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for name, value in facts.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found.figure(name.replace("_", " "), float(value))
    assert not [name for name in facts if name.endswith("_failed")], done.stdout[-3000:]
    assert facts["register_code"] == 0
    assert facts["bitwise_not_repeatable_without_snapshots"] == 0
    assert facts["bitwise_wrong"] == 0
    assert max(facts["bitwise_restored_at"]) > 0
    assert facts["kill_bytes_intact"]
