"""An alias: programs that import this module get holdfast's module of the same name."""

import sys

import holdfast.fault_tolerance.rank_monitor_server as _original
from holdfast.fault_tolerance.rank_monitor_server import *  # noqa: F403 - for type checkers and editors

sys.modules[__name__] = _original
