"""What importing us brings along: seconds matter where a process stands between fault and step."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ["torch", "numpy", "yaml", "asyncio", "argparse", "difflib", "multiprocessing"]


@pytest.mark.parametrize(
    "module",
    [
        "holdfast",
        "holdfast.fault_tolerance",
        "holdfast.fault_tolerance.config",
        "holdfast.fault_tolerance.command_line.arguments",
        "holdfast.fault_tolerance.plan",
    ],
)
def test_importing_is_light(module):
    """No torch, and nothing else that takes long and is seldom needed."""
    code = f"import sys, {module}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
