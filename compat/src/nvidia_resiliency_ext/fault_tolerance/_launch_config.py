"""The launch configuration, for programs that give it more than holdfast's has."""

from __future__ import annotations

import dataclasses
from typing import Any

from holdfast.fault_tolerance.launch_config import LaunchConfig as _LaunchConfig
from nvidia_resiliency_ext._former import ignore

__all__ = ["LaunchConfig"]


class LaunchConfig(_LaunchConfig):
    """See :class:`holdfast.fault_tolerance.launcher.LaunchConfig`.

    A keyword that it does not have is without effect, and warned of once.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        known = {each.name for each in dataclasses.fields(_LaunchConfig)}
        ignore({name: given.pop(name) for name in set(given) - known}, "LaunchConfig")
        super().__init__(*args, **given)
