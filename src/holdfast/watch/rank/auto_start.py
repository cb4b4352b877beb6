"""Have a rank run ``watch/rank/auto/sitecustomize.py`` before its script."""

from __future__ import annotations

import os

from holdfast.base.pure.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = os.path.join(os.path.dirname(__file__), "auto")
ORDERS = "HOLDFAST_AUTO"
"""See there."""


class StartHook(Value):
    """What the first lines of a rank set up.

    Attributes:
        counts_steps: Optimizer steps are heartbeats, if the rank sends none.
        exception_grace_s: How long exit handlers may take after an exception that nothing caught;
            None: the rank ends by itself, as without a launcher.
    """

    counts_steps: bool = False
    exception_grace_s: float | None = None

    def added_to(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment to start a Python with that is to find ``env`` when its script begins."""
        path = env.get("PYTHONPATH")
        added = os.pathsep.join(filter(None, (FOLDER, path)))
        grace = "-" if self.exception_grace_s is None else f"{self.exception_grace_s:g}"
        orders = f"{self.counts_steps:d} {grace} {'' if path is None else f'+{path}'}"
        return {**env, "PYTHONPATH": added, ORDERS: orders}
