"""What importing us brings along: seconds matter where a process stands between fault and step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ["torch", "numpy", "yaml", "asyncio", "argparse", "difflib", "multiprocessing"]


@pytest.mark.parametrize(
    "module",
    [
        "holdfast",
        "holdfast.fault_tolerance",
        "holdfast.fault_tolerance.config",
        "holdfast.options.arguments",
        "holdfast.options.plan",
        "holdfast.inprocess",
        "holdfast.inprocess._arguments",
        "holdfast.inprocess._plugin_call",
        "holdfast.health",
    ],
)
def test_importing_is_light(module):
    """No torch, and nothing else that takes long and is seldom needed."""
    code = f"import sys, {module}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_submodules_of_inprocess_are_its_attributes():
    """As in ``import holdfast.inprocess``, then ``inprocess.rank_assignment.ShiftRanks()``."""
    code = """import holdfast.inprocess as inprocess
names = [name for name in dir(inprocess) if not name.startswith("_")]
print(all(getattr(inprocess, name) is not None for name in names), "rank_filter" in names)
print(inprocess.rank_filter.MaxActiveWorldSize(1).__class__ is
      inprocess.rank_assignment.MaxActiveWorldSize, hasattr(inprocess, "nothing"))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "True True\nTrue False\n"


def test_a_file_of_the_users_that_is_named_as_a_module_of_python_is_not_run(tmp_path: Path) -> None:
    """In a rank, whose script's folder comes first: torch itself imports no ``resource``."""
    (tmp_path / "resource.py").write_text("raise SystemExit('the file of the user ran')")
    code = (
        "import holdfast.fault_tolerance.rank_monitor_client, holdfast.page.page, "
        "holdfast.watch.rank.auto_heartbeat, holdfast.watch.rank.look_helper, "
        "holdfast.evidence.dump_signal, holdfast.base.own_descriptor as own\n"
        "own.OwnSocket().close()"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)

    assert (done.returncode, done.stderr) == (0, "")
