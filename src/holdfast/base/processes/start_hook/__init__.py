"""Have a Python run parts of holdfast as it starts, before its script: see ``sitecustomize.py``."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = os.path.dirname(__file__)
"""To put on PYTHONPATH."""


def with_part(env: Mapping[str, str], variable: str, orders: str) -> dict[str, str]:
    """``env``, and with it a Python finds the hook, and the part its orders in ``variable``.

    The part is to give PYTHONPATH back to ``env``'s.
    """
    path = os.pathsep.join(filter(None, (FOLDER, env.get("PYTHONPATH"))))
    return {**env, "PYTHONPATH": path, variable: orders}
