"""Have a rank run ``watch/rank/first_lines.py`` before its script."""

from __future__ import annotations

from holdfast.base.processes import start_hook
from holdfast.base.pure.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ORDERS = "HOLDFAST_AUTO"
"""Environment variable with the orders; see there."""


class StartHook(Value):
    """Set up by the first lines of a rank.

    Attributes:
        counts_steps: Optimizer steps are counted.
        exception_grace_s: How long exit handlers may take after an exception that nothing caught;
            None: the rank ends by itself, as without a launcher.
    """

    counts_steps: bool = False
    exception_grace_s: float | None = None

    def added_to(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment to start a Python with that is to find ``env`` when its script begins."""
        path = env.get("PYTHONPATH")
        grace = "-" if self.exception_grace_s is None else f"{self.exception_grace_s:g}"
        orders = f"{self.counts_steps:d} {grace} {'' if path is None else f'+{path}'}"
        return start_hook.with_part(env, ORDERS, orders)
