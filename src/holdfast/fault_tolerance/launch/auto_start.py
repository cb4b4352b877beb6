"""Have a rank run ``fault_tolerance/rank/auto/sitecustomize.py`` before its script."""

from __future__ import annotations

import os
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = str(Path(__file__).parents[1] / "rank" / "auto")
ORDERS = "HOLDFAST_AUTO"
"""See there."""


def counting_steps(env: Mapping[str, str]) -> dict[str, str]:
    """The environment to start a Python with, which is to find ``env`` when its script begins."""
    path = env.get("PYTHONPATH")
    added = os.pathsep.join(filter(None, (FOLDER, path)))
    return {**env, "PYTHONPATH": added, ORDERS: "" if path is None else f"+{path}"}
