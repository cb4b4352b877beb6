"""The program that checks a fresh installation, on this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nvidia_resiliency_ext
from tests.waiting import BOUND_S

COMPAT = Path(nvidia_resiliency_ext.__file__).parents[2]


def test_heartbeats_sections_and_restarts_in_place_work_by_the_other_name() -> None:
    """Killed once by its own fault injection, restarted in place once; nothing but old names."""
    done = subprocess.run(
        [sys.executable, COMPAT / "check_install.py", "--module"],
        env={**os.environ, "PYTHONPATH": str(COMPAT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * BOUND_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
